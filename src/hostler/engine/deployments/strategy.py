"""Computes how one version of a slice replaces another: the desired instances now, from spec, status and time.

Pure. The Deployment record is the only memory between two decisions, so any leader can continue.

    version_set      data types: sides, counts, aims
    rollout          how a rollout starts, and what a user can order during it
    phases           transitions between phases
    call_metrics     whether a version proceeds
    autoscale        how many instances the calls need
    strategy         how many instances each side should have in a phase, and how many ready ones may be removed now
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from hostler.engine.deployments import autoscale
from hostler.engine.deployments.phases import (
    PROVING,
    advance,
    first_batch,
    is_kept_long_enough,
    stages_of,
    trial,
    weight_of,
)
from hostler.engine.deployments.rollout import NO_ORDERS, is_news, needs_approval, start_rollout, target
from hostler.engine.deployments.version_set import Aim, Count, VersionSet, VersionSnapshot, new_side, old_side
from hostler.model.rollout import Deployment, Phase

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hostler.engine.deployments.call_metrics import Measured
    from hostler.model.deployment import SliceSettings, SliceSpec
    from hostler.model.rollout import Retries


GATE_EVERY = 1.0
"""Seconds between two evaluations of a canary's metrics."""

PROOF_EVERY = 0.5
"""Seconds between two checks whether new instances have been ready long enough."""


class RolloutSnapshot(msgspec.Struct, frozen=True):
    """What a decision about the rollout of a slice is based on: the spec, then the status."""

    spec: SliceSpec | None
    """None: no blueprint names it."""
    blueprint: str
    number: int
    """Of the blueprint's revision."""
    rollback: bool
    deployment: Deployment | None
    counts: Mapping[VersionSet, Count]
    retries: Mapping[str, Retries]
    measured: Callable[[str], Measured]
    placeable: bool
    retry: bool = True
    """Whether a new revision is a reason to try again a version that was given up."""


def aim(snapshot: RolloutSnapshot, *, now: float) -> Aim:
    """Return the aim for a slice.

    Decide again after the deployment was written, too: some steps wait until routers can know of the previous one.
    """
    spec, deployment = snapshot.spec, snapshot.deployment
    if spec is None:
        return _removal_aim(deployment, snapshot.counts, now)
    standing = deployment
    if standing is not None:
        standing = autoscale.scaled_deployment(spec, standing, snapshot.measured, now)
    look = VersionSnapshot(
        spec=spec,
        wished=autoscale.desired_count(spec, standing.scale if standing else None),
        counts=snapshot.counts,
        retries=snapshot.retries,
        measured=snapshot.measured,
        now=now,
        placeable=snapshot.placeable,
    )
    blueprint, number = snapshot.blueprint, snapshot.number
    if standing is None or is_news(spec, blueprint, number, standing):
        standing = start_rollout(blueprint, number, standing, look, rollback=snapshot.rollback, retry=snapshot.retry)
    after = advance(standing, look)
    wants, spare = shares(deployment, after, look)
    return Aim(
        wants=tuple(sorted((side, count) for side, count in wants.items() if count)),
        spare=tuple(sorted(spare.items())),
        deployment=after,
        settings=_settings(after),
        again=_again(after, look),
    )


def _removal_aim(deployment: Deployment | None, counts: Mapping[VersionSet, Count], now: float) -> Aim:
    left = {side: count for side, count in counts.items() if count.there or count.leaving or count.failed}
    going = None
    if left and deployment is not None:
        going = deployment
        if going.phase is not Phase.REMOVING:
            going = replace(
                going,
                phase=Phase.REMOVING,
                weights={},
                changed_at=now,
                why="no blueprint names it any more",
                control=NO_ORDERS,
            )
    spare = tuple(sorted((side, count.ready) for side, count in left.items() if count.ready))
    return Aim(spare=spare, deployment=going)


def _settings(now: Deployment) -> dict[int, SliceSettings]:
    found = {now.template: now.settings}
    if now.previous:
        found.setdefault(now.previous_template, now.previous_settings)
    return {template: settings for template, settings in sorted(found.items()) if template}


def _again(now: Deployment, look: VersionSnapshot) -> float:
    """Return the seconds until time or metrics alone can lead to the next step; 0: wait for a change."""
    waits = [autoscale.EVERY] if look.spec.autoscale is not None else []
    if now.phase in PROVING and look.of(new_side(now)).fresh:
        waits.append(PROOF_EVERY)
    passed = look.now - now.changed_at
    if now.phase is Phase.CANARY and 0 < now.weights.get(now.artifact, 0) < 100:
        waits.append(GATE_EVERY)
    elif now.phase is Phase.STANDBY and now.stage and passed < now.strategy.bake:
        waits.append(now.strategy.bake - passed)
    elif now.phase is Phase.KEEPING and passed < now.strategy.keep:
        waits.append(now.strategy.keep - passed)
    return max(0.01, min(waits)) if waits else 0.0


__all__ = [
    "Aim",
    "Count",
    "VersionSet",
    "aim",
    "new_side",
    "old_side",
    "stages_of",
    "target",
    "weight_of",
]


def shares(
    before: Deployment | None, now: Deployment, look: VersionSnapshot
) -> tuple[dict[VersionSet, int], dict[VersionSet, int]]:
    """Return the desired instances of each side, and how many of its ready ones may be removed.

    `before`: the stored record. Routers know only that one, so a side is free to go only if it has no share there.
    """
    wants = _split(before, now, look) if _is_split(now) else _rolling_counts(now, look)
    free = [side for side in look.counts if _gets_none(side, before, now)]
    spare = {side: look.counts[side].ready for side in free}
    # Only sides with a share both before and after count: routers do not know of new shares yet.
    serving = [side for side in look.counts if _gets_some(side, before) and _gets_some(side, now)]
    floor = look.floor(now.strategy if now.phase in _UNDER_WAY else look.spec.strategy)
    ready = sum(look.counts[side].ready for side in serving)
    if now.phase in PROVING and new_side(now) in serving:
        ready -= look.of(new_side(now)).fresh  # no old instance is removed for one that may fail soon
    budget = max(0, ready - floor)
    for side in sorted(serving, key=lambda side: (*_last(side, now), side)):
        count = look.counts[side]
        unready = count.there - count.ready
        kept = wants.get(side, 0)
        may_go = min(budget, count.ready, max(0, count.there - kept - unready))
        budget -= may_go
        spare[side] = may_go
    old, waited_for = old_side(now), _waited_for(now, look)
    if old is not None and waited_for:
        wants[old] = max(wants.get(old, 0), waited_for + look.of(old).ready - spare.get(old, 0))
    return wants, {side: number for side, number in spare.items() if number}


_UNDER_WAY = frozenset({Phase.ROLLING, Phase.CANARY, Phase.STANDBY, Phase.KEEPING, Phase.BACKING_OUT})
_SPLIT = frozenset({Phase.CANARY, Phase.STANDBY, Phase.KEEPING})


def _is_split(now: Deployment) -> bool:
    return now.phase in _SPLIT and bool(now.previous)


def _split(before: Deployment | None, now: Deployment, look: VersionSnapshot) -> dict[VersionSet, int]:
    """Canary and blue-green: the old version keeps all its instances until the new one gets all calls."""
    new, old = new_side(now), old_side(now)
    if old is None:
        return {new: look.wished}
    if now.phase is Phase.KEEPING:
        kept = 0 if is_kept_long_enough(now, look) else min(look.wished, look.of(old).there)
        return {new: look.wished, old: kept}
    if now.phase is Phase.CANARY and now.weights.get(new.artifact) == 100:
        return {new: look.wished, old: 0 if _gets_none(old, before, now) else look.wished}
    ought = trial(now, look.wished) if now.phase is Phase.CANARY else look.wished
    if before is None or not before.weights:
        # Routers must know that it gets no calls before its first instance exists.
        ought = min(ought, look.of(new).there)
    return {old: look.wished, new: ought}


def _rolling_counts(now: Deployment, look: VersionSnapshot) -> dict[VersionSet, int]:
    """Rolling: one side grows to the desired number, and all others shrink as far as allowed."""
    new, old = new_side(now), old_side(now)
    goes_back = old is not None and now.phase in {Phase.BACKING_OUT, Phase.FAILED}
    goal = old if old is not None and goes_back else new
    going = list(look.others(goal))
    if now.phase is Phase.FAILED and old is None:
        return {goal: min(look.wished, look.of(goal).there)}
    wants: dict[VersionSet, int] = {goal: look.wished}
    if now.phase not in {Phase.ROLLING, Phase.BACKING_OUT}:
        return wants
    there = look.of(goal).there
    if now.weights and now.phase is Phase.ROLLING and old is not None:
        # Superseded versions are removed first: the new one gets no calls yet.
        return {goal: min(there, look.wished), old: look.of(old).there}
    surge = look.surge(now.strategy)
    if now.control.paused and now.phase is Phase.ROLLING and old is not None:
        # Keep the instances of both sides, in total as many as desired.
        kept = min(there, look.wished)
        rest = look.wished - kept
        left = look.of(old).there
        room = max(0, look.wished + surge - there - sum(count.there for _, count in going))
        return {goal: kept, old: max(min(left, rest + surge), min(rest, left + room))}
    room = look.wished + surge - sum(count.there for _, count in going)
    wants[goal] = max(min(there, look.wished), min(look.wished, room))
    if now.phase is Phase.ROLLING and old is not None and needs_approval(now):
        batch = first_batch(now, look)
        wants[goal] = max(min(there, look.wished), min(wants[goal], batch))
        wants[old] = min(
            look.wished if surge else look.wished - batch,
            look.of(old).there + max(0, room - max(there, wants[goal])),
        )
    return wants


def _waited_for(now: Deployment, look: VersionSnapshot) -> int:
    """Return the number of old instances that are not ready but are kept until their turn: they may become ready soon.

    If no instance can be placed, they are removed first, because they may occupy the room that is missing.
    """
    old = old_side(now)
    if old is None or now.phase is not Phase.ROLLING or not look.placeable:
        return 0
    new, rest = look.of(new_side(now)), look.of(old)
    there = rest.there + sum(count.there for _, count in look.others(old))
    may_go = there - look.floor(now.strategy) - (new.there - new.ready)
    return max(0, rest.there - rest.ready - max(0, may_go))


def _last(side: VersionSet, now: Deployment) -> tuple[bool, bool]:
    """Order of removal: superseded versions first, then the version to fall back to, then the desired one."""
    goes_back = now.phase in {Phase.BACKING_OUT, Phase.FAILED} and bool(now.previous)
    goal, rest = (old_side(now), new_side(now)) if goes_back else (new_side(now), old_side(now))
    return side == goal, side == rest


def _weight(side: VersionSet, weights: Mapping[str, int]) -> int:
    return weights.get(side.artifact, 0)


def _gets_none(side: VersionSet, before: Deployment | None, now: Deployment) -> bool:
    return not _gets_some(side, before) and not _gets_some(side, now)


def _gets_some(side: VersionSet, deployment: Deployment | None) -> bool:
    """Return whether calls go to the side: without weights, all sides get calls."""
    return deployment is None or not deployment.weights or _weight(side, deployment.weights) > 0
