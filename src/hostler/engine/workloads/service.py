"""The workload service, called by the HTTP API and the CLI. A write changes the spec in one transaction.

A workload belongs to the project of its VMs: a caller who may see the project may see the workload. A workload that the
caller may not see is NotFound, exactly as if it did not exist; only its name is taken.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import msgspec

from hostler.engine.projects import Projects
from hostler.engine.request import MAX_LIMIT, Written, check_limit
from hostler.engine.vm_queries import shown_spec
from hostler.engine.workloads import changes, views
from hostler.engine.workloads.decide import can_have
from hostler.engine.workloads.vm_template import same_template
from hostler.errors import Conflict, Invalid, NotFound
from hostler.keys.families import ACTUAL, HANDLE, INSTANCE, TARGET, VM, WORKLOAD
from hostler.keys.template import check_home, check_new, check_part
from hostler.model.name import fold
from hostler.model.workload import instance_of
from hostler.model.workload_api import InstancePage, WorkloadPage, WorkloadView

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hostler.engine.idempotent_writer import Writer
    from hostler.engine.request import Caller, Request
    from hostler.engine.runtime.env import Env
    from hostler.engine.view import View
    from hostler.engine.workloads.instance_index import WorkloadInstances
    from hostler.keys.entry import Entry
    from hostler.model.workload import Target, Workload, WorkloadInstance
    from hostler.model.workload_api import InstanceView, WorkloadApply, WorkloadScale
    from hostler.ports.store import Operation, Store

CREATED, DONE, ACCEPTED = 201, 200, 202
_RIGHT = "modify_workloads"
_AT_ONCE = 24
"""Number of instances read in one transaction, with all their records."""


class WorkloadService:
    """The workload service; one per process. Its view provides the state of the instances."""

    def __init__(self, store: Store, writer: Writer, view: View, env: Env) -> None:
        self._store, self._writer, self._view, self._clock, self._rng = store, writer, view, env.clock, env.rng
        self._rolls = view.rolls
        self._projects = Projects(store, writer, view, clock=env.clock)

    # Reads

    async def get(self, caller: Caller, name: str, *, stale: bool = False) -> WorkloadView:
        """Return one workload. `stale`: from the cache of this process, also while the store is unreachable."""
        entry = self._known(caller, name) if stale else await self._find(caller, name)
        return await self._shown(caller, entry.value, entry.mod_revision)

    async def list(
        self, caller: Caller, *, limit: int = 100, after: str | None = None, stale: bool = False
    ) -> WorkloadPage:
        """Return a page of the workloads that the caller may see, ordered by name."""
        check_limit(limit)
        start = None if after is None else WORKLOAD.fill(workload=check_part(after, "after"))
        found, revision = self._all(start) if stale else await self._read(caller, start, limit + 1)
        seen = [entry for entry in found if caller.sees(*entry.value.home)]
        items = [await self._shown(caller, entry.value, entry.mod_revision) for entry in seen[:limit]]
        last = fold(items[-1].name) if len(seen) > limit else None
        return WorkloadPage(items=tuple(items), after=last, revision=revision)

    async def instances(
        self, caller: Caller, name: str, *, limit: int = 100, after: str | None = None, stale: bool = False
    ) -> InstancePage:
        """Return a page of a workload's instances, ordered by number.

        The set of instances comes from the cache of this process. The state of each is read from the store.
        """
        check_limit(limit)
        entry = self._known(caller, name) if stale else await self._find(caller, name)
        start = _number(after)
        folded = fold(entry.value.name)
        roll = await self._roll(folded)
        numbers = list(itertools.islice(roll.taken.above(start), limit + 1))
        items: list[InstanceView] = []
        for at in range(0, len(numbers[:limit]), _AT_ONCE):
            some = numbers[at : min(at + _AT_ONCE, limit)]
            items += self._seen(entry.value, some) if stale else await self._read_some(entry.value, some)
        last = str(numbers[limit - 1]) if len(numbers) > limit else None
        return InstancePage(items=tuple(items), after=last, revision=self._view.instances.revision)

    # Writes

    async def apply(self, request: Request, wanted: WorkloadApply) -> Written[WorkloadView]:
        """Create or update a workload. Raise Conflict if its name is taken or it is being deleted."""
        request.caller.require(_RIGHT)
        new = changes.new_workload(wanted, self._clock.wall())
        if not request.caller.sees(*new.home):
            raise NotFound(f"project {'/'.join(new.home)}: not found; name one that you are a member of")

        async def attempt() -> Written[WorkloadView]:
            entry = await WORKLOAD.get(self._store, workload=new.name)
            if entry is not None and not request.caller.sees(*entry.value.home):
                raise Conflict(f"workload {new.name}: the name is taken; choose another")
            request.check_match(f"workload {new.name}", 0 if entry is None else entry.mod_revision)
            if entry is None:
                check_new(new.name, "workload")
                check_home(*new.home, subject=f"workload {new.name}: ")
                if wanted.org or wanted.project:  # otherwise its own project is created for it
                    await self._projects.admit(request, *new.home)
                return await self._enter(request, new)
            return await self._change(request, entry, "workload.apply", lambda old: changes.apply(old, new, wanted))

        return await self._once(request, new.name, attempt)

    async def scale(self, request: Request, name: str, wanted: WorkloadScale) -> Written[WorkloadView]:
        """Change the number of instances, or switch the workload on or off."""
        return await self._asked(request, name, "workload.scale", lambda old: changes.scale(old, wanted))

    async def delete(self, request: Request, name: str) -> Written[WorkloadView]:
        """Delete the workload and its VMs. Repeating the request while it is being deleted is allowed."""
        return await self._asked(request, name, "workload.delete", changes.delete, status=ACCEPTED)

    # Internal: writes

    async def _asked(
        self, request: Request, name: str, verb: str, change: Callable[[Workload], Workload], *, status: int = DONE
    ) -> Written[WorkloadView]:
        request.caller.require(_RIGHT)
        check_part(name, "workload")

        async def attempt() -> Written[WorkloadView]:
            entry = await self._find(request.caller, name)
            request.check_match(f"workload {name}", entry.mod_revision)
            return await self._change(request, entry, verb, change, status=status)

        return await self._once(request, name, attempt)

    async def _once(self, request: Request, name: str, attempt: Any) -> Written[WorkloadView]:
        async def attempts() -> Written[WorkloadView]:
            return await self._writer.retry(f"workload {name}", attempt, rng=self._rng)

        return await self._writer.once(request, WorkloadView, attempts)

    async def _enter(self, request: Request, workload: Workload) -> Written[WorkloadView]:
        put = WORKLOAD.put(workload, workload=workload.name)
        view = await self._shown(request.caller, workload, 0)
        when = [WORKLOAD.absent(workload=workload.name)]
        revision = await self._writer.commit(
            request, "workload.apply", put.key, 0, when, [put], status=CREATED, answer=view
        )
        return Written(msgspec.structs.replace(view, revision=revision), revision, CREATED)

    async def _change(
        self,
        request: Request,
        entry: Entry[Workload],
        verb: str,
        change: Callable[[Workload], Workload],
        *,
        status: int = DONE,
    ) -> Written[WorkloadView]:
        old = entry.value
        new = change(old)
        when = [WORKLOAD.unchanged(entry)]
        if new == old:
            view = await self._shown(request.caller, old, entry.mod_revision)
            await self._writer.remember(request, when, status=status, answer=view)
            return Written(view, entry.mod_revision, status)
        new = msgspec.structs.replace(new, generation=old.generation + 1)
        if not same_template(old, new):
            had = can_have(old, await self._roll(fold(old.name)))
            new = msgspec.structs.replace(new, template=old.template + 1, had=had)
        view = await self._shown(request.caller, new, 0)
        put = WORKLOAD.put(new, workload=new.name)
        revision = await self._writer.commit(
            request, verb, entry.key, entry.mod_revision, when, [put], status=status, answer=view
        )
        return Written(msgspec.structs.replace(view, revision=revision), revision, status)

    # Internal: reads

    async def _find(self, caller: Caller, name: str) -> Entry[Workload]:
        entry = await WORKLOAD.get(self._store, workload=check_part(name, "workload"))
        return _visible(caller, name, entry)

    def _known(self, caller: Caller, name: str) -> Entry[Workload]:
        return _visible(caller, name, self._view.workloads.get(workload=check_part(name, "workload")))

    async def _read(self, caller: Caller, start: str | None, limit: int) -> tuple[Sequence[Entry[Workload]], int]:
        """Return the workloads that the caller may see, and the store's revision at the first read."""
        found: list[Entry[Workload]] = []
        revision = 0
        while True:
            page = await self._store.range(WORKLOAD.prefix(), after=start, limit=MAX_LIMIT)
            revision = revision or page.revision
            for kv in page.items:
                entry = WORKLOAD.readable(kv)
                if entry is not None and caller.sees(*entry.value.home):
                    found.append(entry)
            if len(found) >= limit or not page.more:
                return found[:limit], revision
            start = page.items[-1].key

    def _all(self, start: str | None) -> tuple[Sequence[Entry[Workload]], int]:
        entries = self._view.workloads.entries
        return [entries[key] for key in sorted(entries) if key > (start or "")], self._view.workloads.revision

    async def _shown(self, caller: Caller, workload: Workload, revision: int) -> WorkloadView:
        name = fold(workload.name)
        roll = await self._roll(name)
        number, why = views.first_pending(roll), ""
        if number is not None:
            instance = self._view.instances.get(workload=name, instance=str(number))
            target = self._view.targets.get(workload=name, instance=str(number))
            vm = None if instance is None else self._rolls.machine(instance_of(name, number), instance.value.vm)
            handle = None if vm is None else self._rolls.handle(vm)
            why = views.why_pending(
                number, None if target is None else target.value, None if handle is None else handle.value
            )
        view = views.workload_view(workload, revision, roll, why_pending=why)
        return msgspec.structs.replace(view, spec=shown_spec(caller, *workload.home, view.spec))

    async def _roll(self, name: str) -> WorkloadInstances:
        """Return the instance index of a workload. It is kept current from the first call on."""
        await self._rolls.load()
        return self._rolls.roll(name)

    def _seen(self, workload: Workload, numbers: Sequence[int]) -> Sequence[InstanceView]:
        """Return the instances from the cache of this process."""
        name, found = fold(workload.name), []
        for number in numbers:
            ids: dict[str, Any] = {"workload": name, "instance": str(number)}
            instance, target = self._view.instances.get(**ids), self._view.targets.get(**ids)
            if instance is None:
                continue
            vm = self._rolls.machine(instance_of(name, number), instance.value.vm)
            handle = None if vm is None else self._rolls.handle(vm)
            found.append(
                self._one(
                    workload,
                    instance,
                    None if target is None else target.value,
                    None if vm is None else vm.value,
                    None if handle is None else handle.value,
                )
            )
        return found

    async def _read_some(self, workload: Workload, numbers: Sequence[int]) -> Sequence[InstanceView]:
        """Return the instances as read from the store."""
        name = fold(workload.name)
        ids: list[dict[str, Any]] = [{"workload": name, "instance": str(number)} for number in numbers]
        reads: list[Operation] = [key.get_op(**one) for one in ids for key in (INSTANCE, TARGET, ACTUAL)]
        records = (await self._store.txn([], reads)).responses
        threes = [
            (instance, TARGET.readable(records[at + 1]), ACTUAL.readable(records[at + 2]))
            for at in range(0, len(records), 3)
            if (instance := INSTANCE.readable(records[at])) is not None
        ]
        org, project = workload.home
        places = [{"org": org, "project": project, "vm": instance.value.vm} for instance, _, _ in threes]
        having = [place for place in places if place["vm"]]
        both: list[Operation] = [key.get_op(**place) for place in having for key in (VM, HANDLE)]
        answers = (await self._store.txn([], both)).responses if both else ()
        machines = {
            place["vm"]: (VM.readable(answers[2 * at]), HANDLE.readable(answers[2 * at + 1]))
            for at, place in enumerate(having)
        }
        found = []
        for instance, target, actual in threes:
            vm, handle = machines.get(instance.value.vm, (None, None))
            view = self._one(
                workload,
                instance,
                None if target is None else target.value,
                None if vm is None else vm.value,
                None if handle is None else handle.value,
            )
            found.append(msgspec.structs.replace(view, actual=None if actual is None else actual.value))
        return found

    def _one(
        self, workload: Workload, instance: Entry[WorkloadInstance], target: Target | None, vm: Any, handle: Any
    ) -> InstanceView:
        return views.instance_view(
            workload,
            views.InstanceSnapshot(
                instance,
                target=target,
                actual=views.actual_of(handle, instance.value.vm),
                vm=vm,
                handle=handle,
                alive=handle is not None and bool(handle.node) and not self._rolls.is_silent(handle.node),
            ),
        )


def _number(after: str | None) -> int:
    if after is None:
        return 0
    if not (after.isascii() and after.isdigit() and len(after) < 10):
        raise Invalid(f"after {after!r}: must be the `after` of the previous page")
    return int(after)


def _visible(caller: Caller, name: str, entry: Entry[Workload] | None) -> Entry[Workload]:
    if entry is None or not caller.sees(*entry.value.home):
        raise NotFound(f"workload {name}: not found; see the list of workloads")
    return entry
