"""Blueprints of which all slices are upgraded or none: the failure of one takes the whole revision back.

It is a rollback as a person could do it, written by the leader. A revision that is a rollback is never taken back
itself, so this ends. Without an earlier revision there is nothing to go back to, and everything stays as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.engine.controllers.transactions import Txn
from hostler.engine.deployments.apply_preconditions import comparisons, problems, written
from hostler.engine.deployments.guarded_writer import WRITES, Why
from hostler.engine.deployments.queries import Reading
from hostler.errors import NotFound
from hostler.keys.deployment import BLUEPRINT, DEPLOYMENT
from hostler.model.deployment import Atomicity
from hostler.model.rollout import BlueprintRevision, Phase

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.engine.deployments.desired import Wishes
    from hostler.engine.deployments.guarded_writer import Writing
    from hostler.engine.deployments.transactions import Wish
    from hostler.engine.view import View
    from hostler.keys.entry import Entry
    from hostler.kit.clock import Clock
    from hostler.model.deployment import SliceSpec
    from hostler.model.rollout import Deployment
    from hostler.ports.store import Store

BY = "leader"
"""Who stands in the history."""
_FAILED = frozenset({Phase.BACKING_OUT, Phase.FAILED})


class Atomic:
    """For one leadership."""

    def __init__(  # noqa: PLR0917 - what it reads, then what it writes
        self,
        store: Store,
        view: View,
        wishes: Wishes,
        writing: Writing,
        clock: Clock,
        tell: Callable[[str], None],
    ) -> None:
        self._reading = Reading(store, view)
        self._wishes, self._writing, self._clock, self._tell = wishes, writing, clock, tell
        self._left: dict[str, int] = {}  # revisions that cannot be taken back, by blueprint

    async def look(self, base: str, wish: Wish, spec: SliceSpec | None, deployment: Entry[Deployment] | None) -> bool:
        """Whether the blueprint was taken back because this slice failed."""
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
            return False  # it failed in an earlier revision
        why = await self._take_back(base, wish, deployment)
        if why:
            self._left[wish.name] = wish.number
            self._tell(f"blueprint {wish.name}: revision {wish.number} is not taken back, though {base} failed: {why}")
        return not why

    async def _take_back(self, base: str, wish: Wish, deployment: Entry[Deployment]) -> str:
        """Why it cannot be; empty: it was."""
        name, blueprint = wish.name, wish.blueprint
        numbers, _ = await self._reading.numbers(name)
        try:
            target = await self._reading.before(name, None if blueprint is None else blueprint.value, numbers)
        except NotFound:
            return "there is no earlier revision"
        if target.deleted:
            return "it had been deleted before"
        case = await self._reading.case(name, target.blueprint)
        for problem in problems(case, target.blueprint):
            return str(problem)
        number = case.number + 1
        said = f"{base} failed, and all slices of revision {wish.number} are upgraded or none: {deployment.value.why}"
        record = BlueprintRevision(
            number=number, blueprint=target.blueprint, by=BY, at=self._clock.wall(), rollback_to=target.number
        )
        when = [*wish.unchanged(base), DEPLOYMENT.unchanged(deployment), *comparisons(case, target.blueprint, number)]
        txn = Txn(list(dict.fromkeys(when)), written(case, target.blueprint, record))
        if max(len(txn.when), len(txn.then)) > WRITES:
            return "too many slices come and go at once"
        read = (deployment, wish.owner, blueprint)
        why = Why(what="taken back", why=f"{said}; revision {target.number} is brought back", read=read)
        await self._writing.write(base, BLUEPRINT.fill(blueprint=name), txn, why)
        self._tell(f"blueprint {name}: revision {target.number} is brought back as {number}: {said}")
        return ""
