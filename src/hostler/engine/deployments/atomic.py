"""All-or-nothing blueprints: if one slice fails, the leader rolls back the whole revision.

The leader writes the same rollback that a user could request. A revision that is itself a rollback is never rolled
back, so this ends. Without an earlier revision there is nothing to roll back to, and everything stays as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.engine.deployments.apply_preconditions import comparisons, problems, written
from hostler.engine.deployments.queries import Reading
from hostler.engine.deployments.transactions import WRITES
from hostler.engine.runtime.guarded_writer import Txn, Why
from hostler.errors import NotFound
from hostler.keys.families import BLUEPRINT, DEPLOYMENT
from hostler.model.deployment import Atomicity
from hostler.model.rollout import BlueprintRevision, Phase

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.engine.deployments.desired import DesiredBlueprints
    from hostler.engine.deployments.transactions import DesiredSlice
    from hostler.engine.runtime.guarded_writer import GuardedWriter
    from hostler.engine.view import View
    from hostler.keys.entry import Entry
    from hostler.kit.clock import Clock
    from hostler.model.deployment import SliceSpec
    from hostler.model.rollout import Deployment
    from hostler.ports.store import Store

BY = "leader"
"""The author in the history."""
_FAILED = frozenset({Phase.BACKING_OUT, Phase.FAILED})


class Atomic:
    """Rollback of all-or-nothing blueprints, for one leadership."""

    def __init__(  # noqa: PLR0917 - first what it reads, then what it writes
        self,
        store: Store,
        view: View,
        wishes: DesiredBlueprints,
        writing: GuardedWriter,
        clock: Clock,
        tell: Callable[[str], None],
    ) -> None:
        self._reading = Reading(store, view)
        self._wishes, self._writing, self._clock, self._tell = wishes, writing, clock, tell
        self._left: dict[str, int] = {}  # revisions that cannot be rolled back, by blueprint

    async def look(
        self, base: str, wish: DesiredSlice, spec: SliceSpec | None, deployment: Entry[Deployment] | None
    ) -> bool:
        """Roll back the blueprint if this slice failed; return whether that was done."""
        if spec is None or deployment is None or wish.blueprint is None:
            return False
        now = deployment.value
        if spec.atomicity is not Atomicity.ALL_OR_NOTHING or now.phase not in _FAILED:
            return False
        if now.number != wish.number or self._left.get(wish.name) == wish.number:
            return False
        revision = await self._wishes.revision(wish)
        is_new = revision is not None and not revision.rollback_to
        if not is_new or await self._wishes.is_about_others(wish, spec, wish.number - 1):
            return False  # the slice failed in an earlier revision
        why = await self._take_back(base, wish, deployment)
        if why:
            self._left[wish.name] = wish.number
            self._tell(f"blueprint {wish.name}: revision {wish.number} not rolled back although {base} failed: {why}")
        return not why

    async def _take_back(self, base: str, wish: DesiredSlice, deployment: Entry[Deployment]) -> str:
        """Roll back the blueprint. Return the reason if that is not possible; empty: done."""
        name, blueprint = wish.name, wish.blueprint
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
        said = f"{base} failed, and revision {wish.number} is all or nothing: {deployment.value.why}"
        record = BlueprintRevision(
            number=number, blueprint=target.blueprint, by=BY, at=self._clock.wall(), rollback_to=target.number
        )
        when = [*wish.unchanged(base), DEPLOYMENT.unchanged(deployment), *comparisons(case, target.blueprint, number)]
        txn = Txn(list(dict.fromkeys(when)), written(case, target.blueprint, record))
        if max(len(txn.when), len(txn.then)) > WRITES:
            return "too many slices would be added and removed in one transaction"
        read = (deployment, wish.owner, blueprint)
        why = Why(what="taken back", why=f"{said}; rolling back to revision {target.number}", read=read)
        await self._writing.write(base, BLUEPRINT.fill(blueprint=name), txn, why)
        self._tell(f"blueprint {name}: rolling back to revision {target.number} as revision {number}: {said}")
        return ""
