"""VM service: all operations on machines for the API.

A write changes the spec in one transaction that compares what was read; controllers and agents carry it out. `vm` is an
id or, if no machine has that id, a name. A machine that the caller does not see is NotFound, exactly as if it did not
exist.
"""

from __future__ import annotations

import functools
import shlex
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
from msgspec import UNSET

from hostler.engine import vm_changes
from hostler.engine.idempotent_writer import Beaten
from hostler.engine.phase import may_run_older_spec
from hostler.engine.projects import Projects
from hostler.engine.quotas import Bound, Quotas, Share, Turns, claim, counted, share
from hostler.engine.request import Written
from hostler.engine.vm_queries import VmReader
from hostler.errors import Conflict, Damaged, Invalid, LockHeld, Unavailable, Uncertain
from hostler.keys.entry import Entry
from hostler.keys.families import LOCK, MEMBER, NAME, VM
from hostler.keys.template import check_part
from hostler.model.lab import utc_time
from hostler.model.vm import LockInfo, VirtualMachine, VmHandle
from hostler.model.vm_api import VmView
from hostler.ports.store import CreateRevision, KeyValue

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Callable

    from hostler.engine.idempotent_writer import Writer
    from hostler.engine.quotas import Pieces
    from hostler.engine.request import Caller, Request
    from hostler.engine.runtime.env import Env
    from hostler.engine.view import View
    from hostler.engine.vm_queries import VmQuery
    from hostler.model.vm import VmSpec
    from hostler.model.vm_api import MoveRequest, VmCreate, VmPage, VmRowPage, VmUpdate, Why
    from hostler.ports.store import Comparison, Operation, Store

LOCK_TTL = 30.0
CREATED, DONE, ACCEPTED = 201, 200, 202
_RIGHT = "modify_workloads"
SpecChange: TypeAlias = "Callable[[VirtualMachine, VmHandle | None], VirtualMachine]"


class VmService:
    """Operations on machines. One per process. `view` provides the liveness of nodes, and answers stale reads."""

    def __init__(
        self,
        store: Store,
        writer: Writer,
        view: View,
        env: Env,
        *,
        lock_ttl: float = LOCK_TTL,
        holder: Callable[[], str] | None = None,
    ) -> None:
        """`holder`: the replica's holder id, as `hostler leader` shows it; locks contain it."""
        self._store, self._writer = store, writer
        self._clock, self._rng, self._new_id = env.clock, env.rng, env.new_id
        self._view, self._reader = view, VmReader(store, view)
        self._lock_ttl = lock_ttl
        own = env.new_id() if holder is None else ""
        self._holder = holder or (lambda: own)
        self._turns = Turns()
        self.projects = Projects(store, writer, view, clock=env.clock)
        self._limited: set[Bound] = set()  # projects and orgs that had a quota at the last check

    # Reading

    async def get(self, caller: Caller, org: str, project: str, vm: str, *, stale: bool = False) -> VmView:
        """Return one machine. `stale`: from the cache of this process, also while the store is unreachable."""
        return await self._reader.get(caller, org, project, vm, stale=stale)

    async def list(self, caller: Caller, query: VmQuery) -> VmPage:
        """Return a page of the selected machines. A page with an `after` is not the last, even if it is short."""
        return await self._reader.list(caller, query)

    async def rows(self, caller: Caller, query: VmQuery) -> VmRowPage:
        """Return a page of short rows, for long lists."""
        return await self._reader.rows(caller, query)

    async def why(self, caller: Caller, org: str, project: str, vm: str) -> Why:
        """Return the reasons for the machine's node, or for having none."""
        return await self._reader.why(caller, org, project, vm)

    # Writing

    async def create(self, request: Request, org: str, project: str, wanted: VmCreate) -> Written[VmView]:
        """Create a machine. Conflict: the project has one of that name. QuotaExceeded: its quota is exhausted."""
        self._reader.check(request.caller, org, project)
        request.caller.require(_RIGHT)
        vm = vm_changes.create_vm(wanted, vm=self._new_id(), org=org, project=project, wall=self._clock.wall())
        await self.projects.admit(request, org, project)
        if vm.spec.origin is None:
            return await self._writer.once(request, VmView, lambda: self._create(request, vm), ask_first=False)

        async def clone() -> Written[VmView]:
            spec = await self._clone_spec(request, org, project, wanted.spec)
            return await self._create(request, msgspec.structs.replace(vm, spec=spec))

        return await self._writer.once(request, VmView, clone)

    async def add(self, request: Request, vm: VirtualMachine, verb: str, held: Pieces) -> Written[VmView]:
        """Create a machine from a complete record, with the pieces in `held`. It gets its disk from a retained one."""
        self._reader.check(request.caller, vm.org, vm.project)
        check_part(vm.name, "vm")
        return await self._writer.once(request, VmView, lambda: self._create(request, vm, verb, held))

    async def change(
        self, request: Request, vm: VirtualMachine, verb: str, change: SpecChange, held: Pieces
    ) -> Written[VmView]:
        """Change the spec for another service, with the pieces in `held`."""
        return await self._change(request, vm.org, vm.project, vm.id, _Change(verb, change, status=ACCEPTED, held=held))

    async def update(self, request: Request, org: str, project: str, vm: str, update: VmUpdate) -> Written[VmView]:
        """Apply the update. `at_next_boot` of the answer lists what a running machine gets at its next boot."""
        wall = self._clock.wall()
        sized = any(getattr(update, name) is not UNSET for name in ("cpus", "memory_mib", "disk_gib"))
        change = _Change("vm.update", lambda found, _: vm_changes.apply_update(found, update, wall=wall), sized=sized)
        return await self._change(request, org, project, vm, change)

    async def start(self, request: Request, org: str, project: str, vm: str) -> Written[VmView]:
        return await self._change_locked(
            request, org, project, vm, _Change("vm.start", lambda found, _: vm_changes.start(found))
        )

    async def stop(self, request: Request, org: str, project: str, vm: str) -> Written[VmView]:
        return await self._change(
            request, org, project, vm, _Change("vm.stop", lambda found, _: vm_changes.stop(found))
        )

    async def reset(self, request: Request, org: str, project: str, vm: str) -> Written[VmView]:
        """Switch the machine off and on, once."""
        return await self._change(
            request, org, project, vm, _Change("vm.reset", lambda found, _: vm_changes.reset(found))
        )

    async def delete(self, request: Request, org: str, project: str, vm: str) -> Written[VmView]:
        """Delete the machine. Repeated calls are allowed while it is being deleted."""
        change = _Change("vm.delete", lambda found, _: vm_changes.delete(found), status=ACCEPTED)
        return await self._change(request, org, project, vm, change)

    async def snapshot(self, request: Request, org: str, project: str, vm: str, name: str) -> Written[VmView]:
        """Take a snapshot with this name, once."""
        change = _Change("vm.snapshot", lambda found, handle: vm_changes.add_snapshot(found, handle, name))
        return await self._change_locked(request, org, project, vm, change)

    async def restore(self, request: Request, org: str, project: str, vm: str, name: str) -> Written[VmView]:
        """Restore the machine to the snapshot, once."""
        change = _Change("vm.restore", lambda found, handle: vm_changes.request_restore(found, handle, name))
        return await self._change_locked(request, org, project, vm, change)

    async def drop_snapshot(self, request: Request, org: str, project: str, vm: str, name: str) -> Written[VmView]:
        """Delete a snapshot."""
        change = _Change("vm.drop-snapshot", lambda found, handle: vm_changes.drop_snapshot(found, handle, name))
        return await self._change(request, org, project, vm, change)

    async def move(self, request: Request, org: str, project: str, vm: str, wanted: MoveRequest) -> Written[VmView]:
        """Move the machine to another node, once. `moved` of the machine tells when the move has ended."""
        self._reader.check(request.caller, org, project, vm)
        check_part(wanted.to, "node")
        target = await MEMBER.get(self._store, node=wanted.to)

        def move(found: VirtualMachine, handle: VmHandle | None) -> VirtualMachine:
            source = None if handle is None or not handle.node else self._view.members.get(node=handle.node)
            return vm_changes.request_move(
                found,
                handle,
                wanted,
                source=None if source is None else source.value,
                target=None if target is None else target.value,
            )

        return await self._change_locked(request, org, project, vm, _Change("vm.move", move, status=ACCEPTED))

    async def tell_opened(self, request: Request, vm: VmView, door: str) -> None:
        """Write an audit log entry for an opened relay or shell of the machine. The calling code checks the right."""
        subject = VM.fill(org=vm.org, project=vm.project, vm=vm.id)
        await self._writer.commit(request, f"{door}.open", subject, vm.revision, [], [], status=DONE, name=vm.name)

    # Creating

    async def _clone_spec(self, request: Request, org: str, project: str, spec: VmSpec) -> VmSpec:
        """Return the spec of a clone, with its origin's id. NotFound: there is no such machine or snapshot."""
        if spec.origin is None:
            return spec
        origin = await self._reader.find(request.caller, org, project, spec.origin.vm)
        return vm_changes.clone_spec(spec, origin.value, await self._handle(origin))

    async def _create(
        self, request: Request, vm: VirtualMachine, verb: str = "vm.create", more: Pieces = ([], [])
    ) -> Written[VmView]:
        bounds = (Bound(vm.org, vm.project), Bound(vm.org))
        if self._limited.isdisjoint(bounds):
            try:
                return await self._enter(request, vm, Quotas(tuple((bound, None) for bound in bounds)), verb, more)
            except Beaten as beaten:
                found = {bound for bound, quota in zip(bounds, beaten.responses[1:], strict=True) if quota is not None}
                if not found:
                    raise Conflict(f"vm {vm.name}: others wrote the same; nothing was written, try again") from None
                self._limited |= found

        async def attempt() -> Written[VmView]:
            quotas = await counted(self._store, vm.org, vm.project)
            self._limited.difference_update(bounds)
            self._limited.update(quotas.limited)
            return await self._enter(request, vm, quotas, verb, more)

        async with self._turn(vm.org, vm.project):
            return await self._writer.retry(f"vm {vm.name}", attempt, rng=self._rng)

    def _turn(self, org: str, project: str) -> asyncio.Lock:
        """Return the lock of the org if it has a quota, else of the project."""
        whole = Bound(org)
        return self._turns.of(whole if whole in self._limited else Bound(org, project))

    async def _enter(
        self, request: Request, vm: VirtualMachine, quotas: Quotas, verb: str, more: Pieces
    ) -> Written[VmView]:
        """Commit the transaction of a create. Beaten: something other than the name conflicts."""
        place: dict[str, Any] = {"org": vm.org, "project": vm.project}
        when, then = claim(quotas, share(vm.spec))
        put, name = VM.put(vm, vm=vm.id, **place), NAME.put(vm.id, name=vm.name, **place)
        view = self._reader.view(request.caller, Entry(vm, {}, put.key, 0, 0, 0), None)
        try:
            revision = await self._writer.commit(
                request,
                verb,
                put.key,
                0,
                [VM.absent(vm=vm.id, **place), NAME.absent(name=vm.name, **place), *when, *more[0]],
                [put, name, *then, *more[1]],
                status=CREATED,
                answer=view,
                otherwise=[
                    NAME.get_op(name=vm.name, **place),
                    *(bound.key.get_op(**bound.parts) for bound, _ in quotas.bounds),
                ],
                name=vm.name,
            )
        except Beaten as beaten:
            if beaten.responses[0] is not None:
                raise _name_taken(vm) from None
            raise
        return Written(msgspec.structs.replace(view, revision=revision), revision, CREATED)

    # Changing

    async def _change(self, request: Request, org: str, project: str, vm: str, change: _Change) -> Written[VmView]:
        """Change a machine in one transaction."""
        self._reader.check(request.caller, org, project, vm)
        request.caller.require(_RIGHT)

        async def attempts() -> Written[VmView]:
            do = functools.partial(self._attempt, request, org, project, vm, change)
            return await self._writer.retry(f"vm {vm}", do, rng=self._rng)

        async def once() -> Written[VmView]:
            if not change.sized:
                return await attempts()
            async with self._turn(org, project):
                return await attempts()

        return await self._writer.once(request, VmView, once)

    async def _change_locked(
        self, request: Request, org: str, project: str, vm: str, change: _Change
    ) -> Written[VmView]:
        """Change a machine under its lock, so that no other such change of this machine runs concurrently."""
        self._reader.check(request.caller, org, project, vm)
        request.caller.require(_RIGHT)

        async def once() -> Written[VmView]:
            entry = await self._reader.find(request.caller, org, project, vm)
            id_ = entry.parts["vm"]
            async with self._hold(org, project, id_) as held:
                under = msgspec.structs.replace(change, held=held)
                do = functools.partial(self._attempt, request, org, project, id_, under)
                return await self._writer.retry(f"vm {vm}", do, rng=self._rng)

        return await self._writer.once(request, VmView, once)

    async def _attempt(self, request: Request, org: str, project: str, vm: str, change: _Change) -> Written[VmView]:
        entry = await self._reader.find(request.caller, org, project, vm)
        request.check_match(f"vm {entry.value.name}", entry.mod_revision)
        handle = await self._handle(entry)
        held_when, held_then = change.held
        old, new = entry.value, change.apply(entry.value, handle)
        if new == old:
            view, when = self._reader.view(request.caller, entry, handle), [VM.unchanged(entry), *held_when]
            await self._writer.remember(request, when, held_then, status=change.status, answer=view)
            return Written(view, entry.mod_revision, change.status)
        new = msgspec.structs.replace(new, generation=old.generation + 1)
        later = vm_changes.changed_shape(old, new) if may_run_older_spec(handle) else ()
        view = self._reader.view(request.caller, _with(entry, new), handle, at_next_boot=later)
        name_when, name_then = await self._rename_pieces(entry, new)
        quota_when, quota_then = await self._resize_pieces(entry, new)
        revision = await self._writer.commit(
            request,
            change.verb,
            entry.key,
            entry.mod_revision,
            [VM.unchanged(entry), *name_when, *quota_when, *held_when],
            [VM.put(new, org=org, project=project, vm=entry.parts["vm"]), *name_then, *quota_then, *held_then],
            status=change.status,
            answer=view,
            name=new.name,
        )
        return Written(msgspec.structs.replace(view, revision=revision), revision, change.status)

    async def _handle(self, entry: Entry[VirtualMachine]) -> VmHandle | None:
        with suppress(Damaged):  # the spec can be changed, and a machine deleted, even if its handle is damaged
            return await self._reader.handle(entry)
        return None

    async def _rename_pieces(self, entry: Entry[VirtualMachine], new: VirtualMachine) -> Pieces:
        """Return the pieces for a new name: the new one is taken, the old one released."""
        old = entry.value
        if new.name == old.name:
            return [], []
        place: dict[str, Any] = {"org": entry.parts["org"], "project": entry.parts["project"]}
        taken = await NAME.get(self._store, name=new.name, **place)
        if taken is not None:
            if taken.value != old.id:
                raise _name_taken(new)
            return [NAME.unchanged(taken)], []  # only its case changed
        when: list[Comparison] = [NAME.absent(name=new.name, **place)]
        then: list[Operation] = [NAME.put(new.id, name=new.name, **place)]
        before = None
        with suppress(Invalid):  # a name written by another program may be invalid in a key
            before = await NAME.get(self._store, name=old.name, **place)
        if before is None or before.value != old.id:
            return when, then
        return [*when, NAME.unchanged(before)], [*then, NAME.delete(name=old.name, **place)]

    async def _resize_pieces(self, entry: Entry[VirtualMachine], new: VirtualMachine) -> Pieces:
        """Return the pieces for a new size: the quota is charged with the difference."""
        more = share(new.spec).minus(share(entry.value.spec))
        if more == Share():
            return [], []
        return claim(await counted(self._store, entry.parts["org"], entry.parts["project"]), more)

    # Locks

    @asynccontextmanager
    async def _hold(self, org: str, project: str, vm: str) -> AsyncIterator[Pieces]:
        """Hold the machine's lock; yield what the last transaction under it has to compare and to do.

        The lock ends with this scope, whatever happens in it, or with its lease: then that transaction fails.
        """
        try:
            lease = await self._store.grant(self._lock_ttl)
        except Uncertain:
            raise Unavailable(f"vm {vm}: the store gave no answer; nothing was written, try again") from None
        ids: dict[str, Any] = {"org": org, "project": project, "vm": vm}
        lock = LOCK.put(LockInfo(timestamp=int(self._clock.wall()), node_id=self._holder()), lease=lease, **ids)

        async def take() -> int:
            result = await self._store.txn([LOCK.absent(**ids)], [lock], [LOCK.get_op(**ids)])
            if not result.succeeded:
                raise Beaten(f"vm {vm}: its lock is held", result.responses)
            return result.revision

        try:
            try:
                created = await self._writer.retry(
                    f"vm {vm}", take, rng=self._rng, conflict=lambda beaten: _lock_held(vm, beaten)
                )
            except Uncertain:  # if the lock was written after all, it expires with its lease; the spec is unchanged
                raise Unavailable(f"vm {vm}: the store gave no answer; nothing was written, try again") from None
            yield [CreateRevision(lock.key) == created], [LOCK.delete(**ids)]
        finally:
            with suppress(Unavailable, Uncertain):  # then it expires by itself
                await lease.revoke()


class _Change(msgspec.Struct, frozen=True):
    """A change of the spec, and how it is recorded. `sized`: it may change the usage of the project."""

    verb: str
    apply: SpecChange
    status: int = DONE
    sized: bool = False
    held: Pieces = ([], [])


def _with(entry: Entry[VirtualMachine], vm: VirtualMachine) -> Entry[VirtualMachine]:
    """Return the entry as it will be stored; its revision is not known yet."""
    return Entry(vm, entry.parts, entry.key, entry.create_revision, 0, entry.version + 1)


def _lock_held(vm: str, beaten: Beaten) -> LockHeld:
    """Return the error with the holder of the lock, the time since, and when it ends, as far as its record says."""
    found = beaten.responses[0] if beaten.responses else None
    if not isinstance(found, KeyValue):
        return LockHeld(f"vm {vm}: its lock was held until now; nothing was written, try again")
    who = "another program (its record cannot be read)"
    with suppress(Damaged):
        info = LOCK.decode(found.value, where=found.key)
        who = f"{info.node_id[:80]!r} since {utc_time(info.timestamp)}"
    if found.lease:
        return LockHeld(
            f"vm {vm}: its lock is held by {who}; nothing was written, try again when that operation is done"
        )
    advice = f"if that program no longer runs: hostler store delete {shlex.quote(found.key)}"
    return LockHeld(f"vm {vm}: its lock is held by {who} and has no lease, so it never expires; {advice}")


def _name_taken(vm: VirtualMachine) -> Conflict:
    return Conflict(f"vm {vm.name}: the project {vm.org}/{vm.project} has a machine of that name; choose another")
