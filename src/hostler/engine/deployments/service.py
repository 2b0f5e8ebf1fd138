"""The blueprint service, called by HTTP and the command line. An apply is one transaction: all of it, or nothing.

The transaction writes the blueprint, its revision in the history, and the owner of each of its slices. It compares
everything that the apply is based on (`apply_preconditions`).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from hostler.engine.deployments import blueprint_file, redaction, rollout
from hostler.engine.deployments import views as shown
from hostler.engine.deployments.apply_preconditions import comparisons, operations, problems
from hostler.engine.deployments.plan import Placing, about, slice_plan
from hostler.engine.deployments.queries import Reading
from hostler.engine.deployments.toml_lines import lines_of
from hostler.engine.request import Written, check_limit
from hostler.engine.serial_executor import Turn
from hostler.errors import Conflict, HostlerError, Invalid, NotFound
from hostler.keys.families import (
    BLUEPRINT,
    DEPLOYMENT,
    ENDPOINT,
    SLICE,
    endpoints_of,
)
from hostler.keys.template import check_part
from hostler.kit.plural import counted
from hostler.model.blueprint_api import (
    BlueprintFault,
    BlueprintHistory,
    BlueprintPage,
    BlueprintPlan,
    BlueprintRead,
    BlueprintStatus,
    BlueprintView,
    RevisionView,
)
from hostler.model.deployment import Artifact, Blueprint, SliceState, base_of
from hostler.model.name import fold
from hostler.model.rollout import BlueprintRevision, Phase
from hostler.model.slice_api import EndpointPage, SlicePage

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hostler.engine.deployments.apply_preconditions import Case
    from hostler.engine.idempotent_writer import Writer
    from hostler.engine.request import Caller, Request
    from hostler.engine.runtime.env import Env
    from hostler.engine.view import View
    from hostler.keys.entry import Entry
    from hostler.keys.key import Key
    from hostler.model.blueprint_api import RolloutSelection, RolloutVerb, SlicePlan
    from hostler.model.deployment import SliceRecord
    from hostler.model.rollout import Deployment
    from hostler.ports.slices import Artifacts
    from hostler.ports.store import Store

Problems: TypeAlias = "list[HostlerError]"
CREATED, DONE, ACCEPTED = 201, 200, 202
MOST = 120
"""Maximum comparisons or operations of an apply: a transaction has 128, and the writer adds some."""
_ASKED_AT_ONCE = 10


class BlueprintService:
    """The blueprint service of a process. The status of slices comes from its view."""

    def __init__(self, store: Store, writer: Writer, view: View, artifacts: Artifacts, env: Env) -> None:
        self._store, self._writer, self._view, self._artifacts = store, writer, view, artifacts
        self._clock, self._rng = env.clock, env.rng
        self._reading = Reading(store, view)
        self._files = Turn("blueprint's file")

    # Reading

    async def get(self, caller: Caller, name: str, *, stale: bool = False) -> BlueprintView:
        """Return a blueprint with its status. `stale`: as this process last saw it."""
        name = blueprint_file.check_name(name)
        entry, owners, damage = await self._reading.present(name, stale=stale)
        if entry is None:
            raise NotFound(f"blueprint {name}: not found; look at the list of blueprints")
        status = await self._reading.status(name, entry.value, entry.mod_revision, owners)
        return _view_for(caller, name, entry.value, shown.damaged_status(status, damage))

    async def status(self, caller: Caller, name: str, *, stale: bool = False) -> BlueprintStatus:
        """Return the status, slice by slice; also that of a deleted blueprint whose slices are still being removed."""
        name = blueprint_file.check_name(name)
        entry, owners, damage = await self._reading.present(name, stale=stale)
        if entry is None and not owners:
            raise NotFound(f"blueprint {name}: not found; look at the list of blueprints")
        status = await self._reading.status(
            name, None if entry is None else entry.value, 0 if entry is None else entry.mod_revision, owners
        )
        status = shown.damaged_status(status, damage)
        return status if caller.may_deploy else redaction.status(status)

    async def list(
        self,
        caller: Caller,
        *,
        limit: int = 100,
        after: str | None = None,
        stale: bool = False,
    ) -> BlueprintPage:
        """Return a page of all blueprints, ordered by name."""
        check_limit(limit)
        start = None if after is None else BLUEPRINT.fill(blueprint=check_part(after, "after"))
        if stale:
            entries = self._view.blueprints.entries
            keys = [key for key in sorted(entries) if key > (start or "")]
            found = [entries[key] for key in keys[:limit]]
            last = keys[limit - 1] if len(keys) > limit else None
            revision = self._view.blueprints.revision
        else:
            found, last, revision = await self._reading.page(BLUEPRINT, BLUEPRINT.prefix(), start, limit)
        await self._view.fleet.load()
        owners = self._reading.owned_slices(entry.parts["blueprint"] for entry in found)
        seen = self._reading.instance_groups(
            {spec.base for entry in found for spec in entry.value.slices} | _needed(found)
        )
        items = []
        for entry in found:
            name = entry.parts["blueprint"]
            status = await self._reading.status(name, entry.value, entry.mod_revision, owners[name], seen=seen)
            items.append(_view_for(caller, name, entry.value, status))
        return BlueprintPage(
            items=tuple(items), after=None if last is None else BLUEPRINT.parse(last)["blueprint"], revision=revision
        )

    async def history(
        self,
        caller: Caller,  # noqa: ARG002
        name: str,
        *,
        limit: int = 100,
        after: str | None = None,
    ) -> BlueprintHistory:
        """Return a page of the history, newest first."""
        check_limit(limit)
        name = blueprint_file.check_name(name)
        numbers, revision = await self._reading.numbers(name)
        if not numbers:
            raise NotFound(
                f"blueprint {name}: nothing was ever applied under that name; look at the list of blueprints"
            )
        below = _number(after)
        some = [number for number in reversed(numbers) if below is None or number < below]
        items = [_revision_view(one, numbers[-1]) for one in await self._reading.revisions(name, some[:limit])]
        last = str(some[limit - 1]) if len(some) > limit else None
        return BlueprintHistory(items=tuple(items), after=last, revision=revision)

    async def revision(self, caller: Caller, name: str, number: int) -> RevisionView:
        """Return one revision with its complete contents."""
        name = blueprint_file.check_name(name)
        numbers, _ = await self._reading.numbers(name)
        one = await self._reading.revision(name, number, numbers)
        said = one.blueprint.slices
        slices = said if caller.may_deploy else redaction.specs(said)
        return msgspec.structs.replace(_revision_view(one, numbers[-1]), slices=slices)

    async def plan(self, caller: Caller, name: str, wanted: Blueprint) -> BlueprintPlan:
        """Return what an apply would do. Nothing is written. Invalid: the blueprint is wrong in itself.

        Only for callers who may apply it: whether something would change reveals values of environments.
        """
        caller.require_deploy()
        name = blueprint_file.check_name(name)
        blueprint_file.check(wanted, f"blueprint {name}")
        case = await self._reading.case(name, wanted)
        against = problems(case, wanted) or await self._missing(case, wanted)
        before = {spec.base: spec for spec in case.slices}
        specs = {spec.base: spec for spec in wanted.slices}
        bases = [*specs, *(base for base in before if base not in specs)]
        await self._view.fleet.load()
        seen = self._reading.instance_groups({*bases, *(base for spec in wanted.slices for base in spec.needs)})
        placing = Placing(self._view)
        slices = [
            slice_plan(self._reading.slice_facts(base, specs.get(base), 0, seen), before.get(base), placing)
            for base in bases
        ]
        changes = self._differs(case, wanted)
        return BlueprintPlan(
            name=name,
            slices=tuple(slices),
            refused=tuple(str(problem) for problem in against),
            notes=(*self._notes(case, wanted), *self._tight(slices, wanted), *filter(None, [about(slices)])),
            changes=changes,
            revision=case.revision,
        )

    async def read(self, caller: Caller, text: str, file: str = "") -> BlueprintRead:
        """Parse a file; return its contents and all errors, each with its place. Nothing is written."""
        caller.require_deploy()
        return await self._files.run(_read, text, file)

    async def slices(
        self,
        caller: Caller,
        *,
        node: str | None = None,
        artifact: str | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> SlicePage:
        """Return a page of the slices on all nodes, or on one. `artifact`: only this one, or all versions of a base."""
        check_limit(limit)
        prefix = SLICE.prefix() if node is None else SLICE.prefix(node=check_part(fold(node), "node"))
        start = _cursor(SLICE, after)
        if artifact is None:
            found, last, revision = await self._reading.page(SLICE, prefix, start, limit)
        else:
            wanted = _artifact_or_base(artifact)
            entries = self._view.slices.entries
            keys = [
                key
                for key in entries
                if key.startswith(prefix) and key > (start or "") and _is_of(key.rpartition("/")[2], wanted)
            ]
            keys.sort()
            found, last = [entries[key] for key in keys[:limit]], keys[limit - 1] if len(keys) > limit else None
            revision = self._view.slices.revision
        after = None if last is None else last.removeprefix(SLICE.prefix())
        views = map(shown.slice_view, found)
        items = tuple(views if caller.may_deploy else map(redaction.slice_view, views))
        return SlicePage(items=items, after=after, revision=revision)

    async def endpoints(
        self,
        caller: Caller,  # noqa: ARG002
        *,
        artifact: str | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> EndpointPage:
        """Return a page of endpoints. `artifact`: only this one, or all versions of a base."""
        check_limit(limit)
        prefix = ENDPOINT.prefix()
        if artifact is not None:
            wanted = _artifact_or_base(artifact)
            prefix = endpoints_of(wanted) if wanted.count(":") == 1 else ENDPOINT.prefix(artifact=wanted)
        found, last, revision = await self._reading.page(ENDPOINT, prefix, _cursor(ENDPOINT, after), limit)
        after = None if last is None else last.removeprefix(ENDPOINT.prefix())
        return EndpointPage(items=tuple(map(shown.endpoint_view, found)), after=after, revision=revision)

    async def log_place(
        self, caller: Caller, artifact: str, *, node: str | None = None, instance: int | None = None
    ) -> tuple[str, str, int]:
        """Return where the output of a slice is: the node, the artifact, and the instance, or 0 for the last one there.

        Of several instances, the first that is not ready is chosen, otherwise the first. If none is left, the node
        where one failed is chosen, or the given node, because nodes keep logs. NotFound: no instance, no failure.
        """
        caller.require_deploy()
        wanted = _artifact_or_base(artifact)
        node = None if node is None else check_part(fold(node), "node")
        found = [
            (one.state is SliceState.ACTIVE and one.ready, number, entry.parts["node"], entry.parts["artifact"])
            for entry in self._records(wanted, node)
            for number, one in entry.value.each().items()
            if instance in (None, number)
        ]
        if found:
            _, number, on, of = min(found)
            return on, of, number
        if node is not None and wanted.count(":") == 2:
            return node, wanted, instance or 0
        failed = [
            (entry.value.at, failures, on, entry.parts["artifact"])
            for entry in self._view.retries.entries.values()
            if _is_of(entry.parts["artifact"], wanted)
            for on, failures in entry.value.nodes.items()
            if node in (None, on)
        ]
        if failed:
            _, _, on, of = max(failed)
            return on, of, instance or 0
        which = wanted if instance is None else f"{wanted} number {instance}"
        on = "" if node is None else f" on {node}"
        raise NotFound(f"slice {which}: there is no instance{on}, and none has failed{on}; see hostler slice list")

    def _records(self, wanted: str, node: str | None) -> Iterable[Entry[SliceRecord]]:
        """Return the records of this artifact, or of all versions of a base."""
        entries = self._view.slices.entries
        if node is not None and wanted.count(":") == 2:
            entry = self._view.fleet.entry(node, wanted)
            return () if entry is None else (entry,)
        prefix = SLICE.prefix() if node is None else SLICE.prefix(node=node)
        return [e for key, e in entries.items() if key.startswith(prefix) and _is_of(key.rpartition("/")[2], wanted)]

    # Writing

    async def apply(self, request: Request, name: str, wanted: Blueprint) -> Written[BlueprintView]:
        """Create or replace a blueprint.

        Nothing is written if nothing would change, unless a version was given up: then it is tried again. NotFound: an
        artifact is not in the repository. Conflict: a slice belongs to another blueprint.
        """
        request.caller.require_deploy()
        name = blueprint_file.check_name(name)
        blueprint_file.check(wanted, f"blueprint {name}")
        there: set[str] = set()

        async def attempt() -> Written[BlueprintView]:
            case = await self._reading.case(name, wanted)
            return await self._apply(request, "blueprint.apply", case, wanted, there)

        return await self._once(request, name, attempt)

    async def rollback(self, request: Request, name: str, to: int = 0) -> Written[BlueprintView]:
        """Apply revision `to` again; 0: the last revision that differs from the current blueprint."""
        request.caller.require_deploy()
        name = blueprint_file.check_name(name)
        there: set[str] = set()

        async def attempt() -> Written[BlueprintView]:
            entry, damage = await self._reading.standing(name)
            numbers, _ = await self._reading.numbers(name)
            if not numbers:
                raise NotFound(f"blueprint {name}: not found; look at the list of blueprints")
            if to:
                target = await self._reading.revision(name, to, numbers)
            else:
                says = None if entry is None or damage else entry.value
                target = await self._reading.before(name, says, numbers)
            case = await self._reading.case(name, target.blueprint)
            return await self._apply(
                request, "blueprint.rollback", case, target.blueprint, there, rollback_to=target.number
            )

        return await self._once(request, name, attempt)

    async def delete(self, request: Request, name: str) -> Written[BlueprintView]:
        """Delete a blueprint and its slices; its history is kept. Conflict: other blueprints need one of its slices."""
        request.caller.require_deploy()
        name = blueprint_file.check_name(name)

        async def attempt() -> Written[BlueprintView]:
            case = await self._reading.case(name, None)
            if case.entry is None:
                raise NotFound(f"blueprint {name}: not found; look at the list of blueprints")
            request.check_match(f"blueprint {case.name}", case.revision)
            for problem in problems(case, None):
                raise problem
            return await self._write(request, "blueprint.delete", case, None)

        return await self._once(request, name, attempt)

    async def order(
        self,
        request: Request,
        name: str,
        verb: RolloutVerb,
        selection: RolloutSelection,
        *,
        everything: bool = False,
        force: bool = False,
    ) -> Written[BlueprintStatus]:
        """Promote, pause, resume, approve or abort rollouts in progress of a blueprint, in one transaction.

        The leader carries the command out. Conflict: it is not possible, or a rollout has changed since it was `seen`.
        """
        request.caller.require_deploy()
        name = blueprint_file.check_name(name)

        async def attempt() -> Written[BlueprintStatus]:
            entry, owners, damage = await self._reading.present(name, stale=False)
            if entry is None:
                raise NotFound(f"blueprint {name}: not found; look at the list of blueprints")
            # A blueprint written by another program has no owners: the leader then uses its version as the number.
            owners = {spec.base: entry.version for spec in entry.value.slices} | owners
            found = await self._reading.deployments(_selected(name, owners, selection))
            at = self._clock.wall()
            changes: dict[str, Deployment] = {}
            for base, one in _orderable(name, verb, owners, selection, found).items():
                after = rollout.apply_command(
                    verb, one.value, by=request.caller.name, at=at, everything=everything, force=force
                )
                if after is not one.value:
                    changes[base] = after
            orders = {base: changes.get(base, one.value) for base, one in found.items()}
            status = await self._reading.status(name, entry.value, entry.mod_revision, owners, orders=orders)
            status = shown.damaged_status(status, damage)
            when = [DEPLOYMENT.unchanged(found[base]) for base in changes]
            if not changes:
                await self._writer.remember(request, when, status=DONE, answer=status)
                return Written(status, status.revision, DONE)
            then = [DEPLOYMENT.put(after, base=base) for base, after in changes.items()]
            first = next(iter(changes))
            subject, before = found[first].key, found[first].mod_revision
            if len(changes) > 1:
                subject, before = entry.key, entry.mod_revision
            said = f"blueprint.{verb.value}{'-forced' if force else ''}"
            await self._writer.commit(request, said, subject, before, when, then, status=DONE, answer=status)
            return Written(status, status.revision, DONE)

        async def attempts() -> Written[BlueprintStatus]:
            return await self._writer.retry(f"blueprint {name}", attempt, rng=self._rng)

        return await self._writer.once(request, BlueprintStatus, attempts)

    # Internal: writing

    async def _once(self, request: Request, name: str, attempt: Any) -> Written[BlueprintView]:
        async def attempts() -> Written[BlueprintView]:
            return await self._writer.retry(f"blueprint {name}", attempt, rng=self._rng)

        return await self._writer.once(request, BlueprintView, attempts)

    async def _apply(
        self,
        request: Request,
        verb: str,
        case: Case,
        wanted: Blueprint,
        there: set[str],
        *,
        rollback_to: int = 0,
    ) -> Written[BlueprintView]:
        """`there`: artifacts that are known to be in the repository; it is updated."""
        request.check_match(f"blueprint {case.name}", case.revision)
        for problem in problems(case, wanted):
            raise problem
        if case.entry is not None and not self._differs(case, wanted):
            status = await self._reading.status(case.name, case.entry.value, case.revision, case.own)
            view = shown.blueprint_view(case.name, case.entry.value, status)
            when = [BLUEPRINT.unchanged(case.entry)]
            await self._writer.remember(request, when, status=DONE, answer=view)
            return Written(view, case.revision, DONE)
        for problem in await self._missing(case, wanted, there):
            raise problem
        return await self._write(request, verb, case, wanted, rollback_to=rollback_to)

    async def _write(
        self, request: Request, verb: str, case: Case, wanted: Blueprint | None, *, rollback_to: int = 0
    ) -> Written[BlueprintView]:
        name, number = case.name, case.number + 1
        said = wanted if wanted is not None else Blueprint(slices=case.slices)
        record = BlueprintRevision(
            number=number,
            blueprint=said,
            by=request.caller.name,
            at=self._clock.wall(),
            rollback_to=rollback_to,
            deleted=wanted is None,
        )
        when = comparisons(case, wanted, number)
        then = operations(case, wanted, record)
        if max(len(when), len(then)) > MOST:
            raise Invalid(
                f"blueprint {name}: too many slices are added, removed or needed from other blueprints; do it in steps"
            )
        numbers = {**case.own, **({} if wanted is None else {spec.base: number for spec in wanted.slices})}
        status = await self._reading.status(name, wanted, 0, numbers)
        view = shown.blueprint_view(name, said, msgspec.structs.replace(status, number=number))
        code = ACCEPTED if wanted is None else DONE if case.entry is not None else CREATED
        key = BLUEPRINT.fill(blueprint=name)
        revision = await self._writer.commit(request, verb, key, case.revision, when, then, status=code, answer=view)
        return Written(msgspec.structs.replace(view, revision=revision), revision, code)

    def _differs(self, case: Case, wanted: Blueprint) -> bool:
        """Return whether an apply must be written; also if a version was given up, because it is tried again."""
        if case.entry is None or case.damage or case.slices != wanted.slices:
            return True
        for spec in wanted.slices:
            owner, deployment = case.owners.get(spec.base), self._view.deployments.get(base=spec.base)
            if owner is None or owner.value.blueprint != case.name:
                return True
            if deployment is not None and deployment.value.phase is Phase.FAILED:
                return True
        return False

    async def _missing(self, case: Case, wanted: Blueprint, there: set[str] | None = None) -> Sequence[HostlerError]:
        """Return errors for artifacts that the stored blueprint does not name and that are not in the repository."""
        there = set() if there is None else there
        named = {spec.artifact for spec in case.slices}
        asked = [
            (f"blueprint {case.name}: slices[{number}].artifact", spec.artifact)
            for number, spec in enumerate(wanted.slices)
            if spec.artifact not in named and spec.artifact not in there
        ]
        found: Problems = []
        for at in range(0, len(asked), _ASKED_AT_ONCE):
            some = asked[at : at + _ASKED_AT_ONCE]
            answers = await asyncio.gather(*(self._lacks(*one) for one in some))
            there |= {artifact for (_, artifact), problem in zip(some, answers) if problem is None}
            found += [problem for problem in answers if problem is not None]
        return found

    async def _lacks(self, place: str, artifact: str) -> HostlerError | None:
        try:
            await self._artifacts.find(artifact)
        except NotFound:
            return NotFound(f"{place}: {artifact} is not in the repository; publish it: hostler slice push")
        return None

    def _notes(self, case: Case, wanted: Blueprint) -> Iterable[str]:
        if case.damage:
            yield f"the stored blueprint is damaged: {case.damage}; compared with the last applied revision"
        for spec in wanted.slices:
            deployment = self._view.deployments.get(base=spec.base)
            before = case.entry.value.spec_of(spec.base) if case.entry is not None else None
            changed = before is not None and (before.artifact, before.settings) != (spec.artifact, spec.settings)
            if deployment is not None and changed and deployment.value.phase not in (Phase.DONE, Phase.FAILED):
                yield f"{spec.base}: its change to {deployment.value.artifact} is in progress, and would be superseded"
            if deployment is not None and not changed and deployment.value.phase is Phase.FAILED:
                yield f"{spec.base}: {deployment.value.artifact} was given up, and would be tried again"

    def _tight(self, slices: Iterable[SlicePlan], wanted: Blueprint) -> Iterable[str]:
        """Return notes on slices whose new instances may need more memory than their nodes have."""
        for plan in slices:
            spec = wanted.spec_of(plan.base)
            each = None if spec is None else spec.settings.memory_mib
            if each is None:
                continue
            members = ((one, self._view.members.get(node=one.node)) for one in plan.load)
            found = [
                (one, member.value.capacity.memory_mib)
                for one, member in members
                if member is not None and one.instances * each > member.value.capacity.memory_mib
            ]
            if found:
                (first, has), more = found[0], len(found) - 1
                also = f"; the same holds for {counted(more, 'more node')}" if more else ""
                yield (
                    f"{plan.base}: {first.node} would get {counted(first.instances, 'instance')} of up to {each:,} MiB,"
                    f" and has {has:,} MiB of memory in total{also}"
                )


def _read(text: str, file: str) -> BlueprintRead:
    if len(text) > blueprint_file.LARGEST_SENT:
        most = blueprint_file.LARGEST_SENT // 1024
        what = f"it has more than {most} KiB; use the command line for a larger file: hostler blueprint apply FILE"
        return BlueprintRead(name="", slices=(), faults=(BlueprintFault(place="", line=0, what=what),))
    found, faults = blueprint_file.looked_through(text, file)
    return BlueprintRead(
        name="" if found is None else found.name,
        slices=() if found is None else found.blueprint.slices,
        faults=_with_lines(text, faults),
        warnings=() if found is None else _with_lines(text, found.warnings),
    )


def _with_lines(text: str, faults: Sequence[blueprint_file.Fault]) -> tuple[BlueprintFault, ...]:
    return tuple(
        BlueprintFault(place=fault.place, line=line, what=fault.what)
        for fault, line in zip(faults, lines_of(text, faults), strict=True)
    )


def _number(after: str | None) -> int | None:
    if after is None:
        return None
    if not (after.isascii() and after.isdigit() and len(after) < 18):
        raise Invalid(f"after {after[:80]!r}: must be the `after` of the previous page")
    return int(after)


def _cursor(key: Key[Any], after: str | None) -> str | None:
    if after is None:
        return None
    start = key.prefix() + after
    if key.match(start) is None:
        raise Invalid(f"after {after[:80]!r}: must be the `after` of the previous page")
    return start


def _artifact_or_base(text: str) -> str:
    Artifact.parse(text if text.count(":") != 1 else f"{text}:0")
    return text


def _is_of(artifact: str, wanted: str) -> bool:
    return wanted in (artifact, base_of(artifact))


def _named(selection: RolloutSelection) -> list[str]:
    return list(selection.seen) if selection.slice is None else [selection.slice]


def _selected(name: str, owners: Mapping[str, int], selection: RolloutSelection) -> list[str]:
    """Return the slices that a command is for."""
    wanted = _named(selection)
    for base in wanted:
        if base not in owners:
            raise NotFound(f"blueprint {name}: it has no slice {base}; look at its status")
    return wanted or sorted(owners)


def _orderable(
    name: str,
    verb: RolloutVerb,
    owners: Mapping[str, int],
    selection: RolloutSelection,
    found: Mapping[str, Entry[Deployment]],
) -> dict[str, Entry[Deployment]]:
    """Return the deployments that accept the command. Conflict: a named one does not, or none does."""
    against = {base: "the leader has not processed it yet; try again" for base in owners if base not in found}
    for base, entry in found.items():
        now, seen = entry.value, selection.seen.get(base)
        if (now.blueprint, now.number) != (name, owners[base]):
            against[base] = f"the leader has not started revision {owners[base]} yet; try again in a moment"
        elif seen is not None and seen != now.changed_at:
            against[base] = f"the rollout has changed since you read it ({now.why}); read it again"
        elif why := rollout.refusal(verb, now):
            against[base] = why
    for base in _named(selection):
        if base in against:
            raise Conflict(f"blueprint {name}: {base}: cannot {verb.value}: {against[base]}")
    can = {base: entry for base, entry in found.items() if base not in against}
    if not can:
        base = min(found, default=min(against, default=""), key=lambda one: (not found[one].value.previous, one))
        more = f"; the same holds for {counted(len(against) - 1, 'more slice')}" if len(against) > 1 else ""
        raise Conflict(f"blueprint {name}: {base}: cannot {verb.value}: {against[base]}{more}")
    return can


def _needed(found: Iterable[Entry[Blueprint]]) -> set[str]:
    return {base for entry in found for spec in entry.value.slices for base in spec.needs}


def _view_for(caller: Caller, name: str, said: Blueprint, status: BlueprintStatus) -> BlueprintView:
    if caller.may_deploy:
        return shown.blueprint_view(name, said, status)
    return shown.blueprint_view(name, Blueprint(slices=redaction.specs(said.slices)), redaction.status(status))


def _revision_view(one: BlueprintRevision, newest: int) -> RevisionView:
    return RevisionView(
        number=one.number,
        by=one.by,
        at=one.at,
        rollback_to=one.rollback_to,
        deleted=one.deleted,
        current=one.number == newest and not one.deleted,
        artifacts={spec.artifact: spec.instances for spec in one.blueprint.slices},
    )
