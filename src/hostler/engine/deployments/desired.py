"""Desired slices: which blueprint owns which slice, from the mirrors of blueprints and owners.

A blueprint written by another program has no owner record. Then the first blueprint that names a slice owns it, and
keeps it as long as it names it.

If one slice of an all-or-nothing blueprint fails, the leader rolls back the whole revision. It writes the same rollback
that a user could request. A revision that is itself a rollback is never rolled back, so this ends. Without an earlier
revision there is nothing to roll back to, and everything stays as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from hostler.engine.deployments.apply_preconditions import comparisons, operations, problems
from hostler.engine.deployments.queries import Reading
from hostler.engine.deployments.transactions import WRITES, DesiredSlice
from hostler.engine.runtime.guarded_writer import Txn, Why
from hostler.errors import NotFound
from hostler.keys.families import BLUEPRINT, BLUEPRINT_HISTORY, DEPLOYMENT, SLICE_OWNER
from hostler.model.deployment import Atomicity
from hostler.model.rollout import BlueprintRevision, Phase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from hostler.engine.runtime.guarded_writer import GuardedWriter
    from hostler.engine.view import View
    from hostler.keys.entry import Entry
    from hostler.kit.clock import Clock
    from hostler.model.deployment import SliceSpec
    from hostler.model.rollout import Deployment
    from hostler.ports.store import Store


_OWNERS = SLICE_OWNER.prefix()
_REMEMBERED = 1_000


class DesiredBlueprints:
    """Desired slices, for one leadership."""

    def __init__(self, store: Store, view: View) -> None:
        self._store, self._view = store, view
        self._specs: dict[str, dict[str, SliceSpec]] = {}  # by blueprint, by base
        self._named: dict[str, dict[str, None]] = {}  # blueprints by base
        self._left: dict[str, tuple[SliceSpec, ...]] = {}  # last specs of deleted blueprints
        self._revisions: dict[tuple[str, int], BlueprintRevision | None] = {}

    def listen(self, changed: Callable[[str], None]) -> list[Callable[[], None]]:
        """Call `changed(base)` for each slice whose spec has changed. Return functions that end the notifications."""

        def blueprint(key: str) -> None:
            for base in self._read_blueprint(BLUEPRINT.parse(key)["blueprint"]):
                changed(base)

        for key in tuple(self._view.blueprints.entries):
            self._read_blueprint(BLUEPRINT.parse(key)["blueprint"])
        return [
            self._view.blueprints.listen(blueprint),
            self._view.owners.listen(lambda key: changed(key[len(_OWNERS) :])),
        ]

    def bases(self) -> Iterator[str]:
        """Yield every slice that a blueprint names or named."""
        yield from (key[len(_OWNERS) :] for key in tuple(self._view.owners.entries))
        yield from tuple(self._named)

    def of(self, base: str) -> tuple[DesiredSlice, SliceSpec | None]:
        """Return the owner of a slice and its spec; None: no blueprint names it."""
        owner = self._view.owners.get(base=base)
        if owner is not None:
            name, number = owner.value.blueprint, owner.value.number
            blueprint = self._view.blueprints.get(blueprint=name)
        else:
            named, follows = self._named.get(base, {}), self._deployed_blueprint(base)
            name = follows if follows in named else min(named, default="")
            blueprint = self._view.blueprints.get(blueprint=name) if name else None
            number = 0 if blueprint is None else blueprint.version
        return DesiredSlice(owner, blueprint, name, number), self._specs.get(name, {}).get(base)

    def is_unreadable(self, base: str) -> bool:
        """Return whether the spec of a slice is unknown because a record is unreadable."""
        if SLICE_OWNER.fill(base=base) in self._view.owners.unreadable:
            return True
        owner = self._view.owners.get(base=base)
        name = self._deployed_blueprint(base) if owner is None else owner.value.blueprint
        return bool(name) and BLUEPRINT.fill(blueprint=name) in self._view.blueprints.unreadable

    def _deployed_blueprint(self, base: str) -> str:
        """Return the blueprint of the slice's deployment; empty: none."""
        deployment = self._view.deployments.get(base=base)
        return "" if deployment is None else deployment.value.blueprint

    async def revision(self, desired: DesiredSlice) -> BlueprintRevision | None:
        """Return the applied revision; None: it was not recorded."""
        if not desired.name:
            return None
        at = (desired.name, desired.number)
        if at not in self._revisions:
            entry = await BLUEPRINT_HISTORY.get(self._store, blueprint=desired.name, number=desired.number)
            if len(self._revisions) >= _REMEMBERED:
                self._revisions.clear()
            self._revisions[at] = None if entry is None else entry.value
        return self._revisions[at]

    async def company(self, base: str, desired: DesiredSlice) -> tuple[SliceSpec, ...]:
        """Return the slices that were deployed together with one that is being removed.

        If the blueprint was never applied through Hostler, only the leader that saw its deletion knows them.
        """
        revision = await self.revision(desired)
        return (
            self._left.get(desired.name or self._deployed_blueprint(base), ())
            if revision is None
            else revision.blueprint.slices
        )

    async def leaving(self, but: str) -> list[SliceSpec]:
        """Return the last specs of slices of applied blueprints that no blueprint names any more, except `but`."""
        found: list[SliceSpec] = []
        for key in tuple(self._view.owners.entries):
            base = key[len(_OWNERS) :]
            desired, spec = self.of(base)
            if base == but or spec is not None:
                continue
            revision = await self.revision(desired)
            said = None if revision is None else revision.blueprint.spec_of(base)
            if said is not None:
                found.append(said)
        return found

    async def is_about_others(self, desired: DesiredSlice, spec: SliceSpec, before: int) -> bool:
        """Return whether the blueprint changed since revision `before`, but not in this slice."""
        now, then = await self.revision(desired), await self.revision(replace(desired, number=before))
        if now is None or then is None or then.blueprint.spec_of(spec.base) != spec:
            return False
        return now.blueprint.slices != then.blueprint.slices

    def _read_blueprint(self, name: str) -> list[str]:
        """Read a blueprint again; return the slices that it names or named."""
        entry = self._view.blueprints.get(blueprint=name)
        before = self._specs.pop(name, {})
        now = {} if entry is None else {spec.base: spec for spec in entry.value.slices}
        if now:
            self._specs[name] = now
            self._left.pop(name, None)
        elif before:
            if len(self._left) >= _REMEMBERED:
                self._left.clear()
            self._left[name] = tuple(before.values())
        for base in before:
            if base not in now:
                self._named[base].pop(name, None)
                if not self._named[base]:
                    del self._named[base]
        for base in now:
            self._named.setdefault(base, {})[name] = None
        return list(dict.fromkeys((*before, *now)))


def transitive_needs(base: str, specs: Mapping[str, SliceSpec]) -> set[str]:
    """Return the slices that `base` needs, directly or through other slices of `specs`."""
    found: set[str] = set()
    waiting = [base]
    while waiting:
        spec = specs.get(waiting.pop())
        for need in () if spec is None else spec.needs:
            if need not in found:
                found.add(need)
                waiting.append(need)
    return found


BY = "leader"
"""The author in the history."""
_FAILED = frozenset({Phase.BACKING_OUT, Phase.FAILED})


class Atomic:
    """Rollback of all-or-nothing blueprints, for one leadership."""

    def __init__(  # noqa: PLR0917 - first what it reads, then what it writes
        self,
        store: Store,
        view: View,
        blueprints: DesiredBlueprints,
        writing: GuardedWriter,
        clock: Clock,
        tell: Callable[[str], None],
    ) -> None:
        self._reading = Reading(store, view)
        self._blueprints, self._writing, self._clock, self._tell = blueprints, writing, clock, tell
        self._left: dict[str, int] = {}  # revisions that cannot be rolled back, by blueprint

    async def look(
        self, base: str, desired: DesiredSlice, spec: SliceSpec | None, deployment: Entry[Deployment] | None
    ) -> bool:
        """Roll back the blueprint if this slice failed; return whether that was done."""
        if spec is None or deployment is None or desired.blueprint is None:
            return False
        now = deployment.value
        if spec.atomicity is not Atomicity.ALL_OR_NOTHING or now.phase not in _FAILED:
            return False
        if now.number != desired.number or self._left.get(desired.name) == desired.number:
            return False
        revision = await self._blueprints.revision(desired)
        is_new = revision is not None and not revision.rollback_to
        if not is_new or await self._blueprints.is_about_others(desired, spec, desired.number - 1):
            return False  # the slice failed in an earlier revision
        why = await self._take_back(base, desired, deployment)
        if why:
            self._left[desired.name] = desired.number
            self._tell(
                f"blueprint {desired.name}: revision {desired.number} not rolled back although {base} failed: {why}"
            )
        return not why

    async def _take_back(self, base: str, desired: DesiredSlice, deployment: Entry[Deployment]) -> str:
        """Roll back the blueprint. Return the reason if that is not possible; empty: done."""
        name, blueprint = desired.name, desired.blueprint
        numbers, _ = await self._reading.numbers(name)
        try:
            target = await self._reading.before(name, None if blueprint is None else blueprint.value, numbers)
        except NotFound:
            return "there is no earlier revision"
        if target.deleted:
            return "the previous revision is a deletion"
        case = await self._reading.case(name, target.blueprint)
        for problem in problems(case, target.blueprint):
            return str(problem)
        number = case.number + 1
        said = f"{base} failed, and revision {desired.number} is all or nothing: {deployment.value.why}"
        record = BlueprintRevision(
            number=number, blueprint=target.blueprint, by=BY, at=self._clock.wall(), rollback_to=target.number
        )
        when = [
            *desired.unchanged(base),
            DEPLOYMENT.unchanged(deployment),
            *comparisons(case, target.blueprint, number),
        ]
        txn = Txn(list(dict.fromkeys(when)), operations(case, target.blueprint, record))
        if max(len(txn.when), len(txn.then)) > WRITES:
            return "too many slices would be added and removed in one transaction"
        read = (deployment, desired.owner, blueprint)
        why = Why(what="taken back", why=f"{said}; rolling back to revision {target.number}", read=read)
        await self._writing.write(base, BLUEPRINT.fill(blueprint=name), txn, why)
        self._tell(f"blueprint {name}: rolling back to revision {target.number} as revision {number}: {said}")
        return ""
