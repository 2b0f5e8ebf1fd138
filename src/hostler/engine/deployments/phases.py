"""Transitions between the phases of a deployment. Pure; a function takes at most one step, or returns its argument."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from msgspec.structs import replace

from hostler.engine.deployments.call_metrics import NOTHING, Verdict, exceeded_limit, judge
from hostler.engine.deployments.rollout import NO_ORDERS, UNDER_WAY, needs_approval, of_next_stage
from hostler.engine.deployments.version_set import VersionSnapshot, can_split, enough, new_side, old_side
from hostler.kit.plural import counted
from hostler.model.deployment import USUAL_STAGES
from hostler.model.rollout import Deployment, Phase, Promotion

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.engine.deployments.call_metrics import Measured
    from hostler.engine.deployments.version_set import VersionSet
    from hostler.model.deployment import Stage

GIVE_UP = 5
"""Consecutive failures after which the old version counts as broken."""
PROVING = frozenset({Phase.ROLLING, Phase.CANARY, Phase.STANDBY, Phase.KEEPING})
"""Phases in which one version replaces another: its instances count only after `min_ready` seconds."""
_STEPS = 12
"""Maximum number of steps in one decision; more than there are phases."""


def advance(deployment: Deployment, look: VersionSnapshot) -> Deployment:
    """Return the deployment after all steps that can be taken now."""
    if deployment.control.abort and deployment.phase in UNDER_WAY and deployment.previous:
        deployment = _backing_out_of(deployment, look, f"{deployment.control.by} aborted it")
    for _ in range(_STEPS):
        after = _PHASES[deployment.phase](deployment, look)
        if after is deployment or after == deployment:
            break
        deployment = after
    return deployment


def stages_of(deployment: Deployment) -> tuple[Stage, ...]:
    """Return the stages of a canary."""
    return deployment.strategy.stages or USUAL_STAGES


def weight_of(deployment: Deployment) -> int:
    """Return the share of calls (per cent) that the stage gives to the new version; after the last stage: 100."""
    stages = stages_of(deployment)
    return stages[deployment.stage].weight if deployment.stage < len(stages) else 100


def trial(deployment: Deployment, wished: int) -> int:
    """Return the instances of the new version that the stage needs."""
    return max(1, math.ceil(wished * weight_of(deployment) / 100))


def first_batch(now: Deployment, look: VersionSnapshot) -> int:
    """Return the new instances of a rolling upgrade that are started before it is approved."""
    return min(look.wished, max(1, look.surge(now.strategy) or now.strategy.max_unavailable))


def _starting(now: Deployment, look: VersionSnapshot) -> Deployment:
    if _is_whole(now, look):
        return _finish(now, look)
    if look.gives_up(now.artifact, now.started_at):
        return _change_phase(now, look, Phase.FAILED, f"{now.artifact} was given up: {_failure(now, look)}", weights={})
    return now


def _rolling(now: Deployment, look: VersionSnapshot) -> Deployment:
    new, old = new_side(now), old_side(now)
    if _is_whole(now, look):
        return _finish(now, look)
    if look.gives_up(now.artifact, now.started_at):
        if old is not None:
            return _backing_out_of(now, look, _failure(now, look))
        # It served before, so it stays the desired version, and is retried without limit.
        return _change_phase(
            replace(
                now,
                previous=now.artifact,
                previous_template=now.template,
                previous_settings=now.settings,
                previous_needs=now.needs,
            ),
            look,
            Phase.FAILED,
            f"{now.artifact} served before, but not all its instances start: {_failure(now, look)}",
        )
    if now.control.promote is not None:
        control = replace(of_next_stage(now.control), approved=True)
        now = replace(now, control=control, why=f"promoted by {control.by}: the other instances follow")
    if old is not None and needs_approval(now) and look.of(new).proven >= first_batch(now, look):
        ready = counted(look.of(new).proven, "instance is ready", "instances are ready")
        now = _awaiting(now, f"{now.artifact}: {ready}")
    # All calls go to one side while the other is being removed, unless that side cannot take any.
    held_to = new if old is None else old
    is_over = not look.of(held_to).ready or (old is not None and not any(look.others(new, old)))
    return _set_weight(now, look, {}) if now.weights and is_over else now


def _canary(now: Deployment, look: VersionSnapshot) -> Deployment:
    new, old = new_side(now), old_side(now)
    share, weight = now.weights.get(now.artifact, 0), weight_of(now)
    if share == 100 and _is_whole(now, look):
        return _finish(now, look)
    if look.gives_up(now.artifact, now.started_at):
        return _backing_out_of(now, look, _failure(now, look))
    if old is None or not now.weights:
        return _splitting(now, look)
    if share in {0, 100} and _is_cut_off(now, look):
        return _set_weight(now, look, {})
    judged = _apply_verdict(now, look, share, weight) if 0 < share < 100 else None
    if judged is not None:
        return judged
    if now.control.promote is not None:
        return _promote(now, look)
    stages = stages_of(now)
    if share != weight and not now.control.paused and look.of(new).proven >= trial(now, look.wished):
        if weight < 100 and not look.of(old).ready:
            return now
        text = f"stage {now.stage + 1} of {len(stages)}: {weight} % of the calls" if weight < 100 else "all calls"
        after = _set_weight(now, look, {old.artifact: 100 - weight, new.artifact: weight})
        until = ""
        if weight < 100:
            least = now.strategy.gate.min_calls
            calls = f" and until it has {counted(least, 'call')}" if least else ""
            until = f", for {stages[now.stage].hold:g} s{calls}"
        return replace(after, why=f"{text} go to {new.artifact}{until}")
    return now


def _apply_verdict(now: Deployment, look: VersionSnapshot, share: int, weight: int) -> Deployment | None:
    """Apply the gate's verdict while the new version gets a share of the calls; None: no verdict yet."""
    stages, control = stages_of(now), now.control
    hold = stages[now.stage].hold if now.stage < len(stages) else 0.0
    held = look.now - now.changed_at if share == weight else -1.0
    verdict, why = judge(now.strategy.gate, _stage_metrics(now, look), held=held, hold=hold)
    is_forced = control.promote is not None and control.force
    if verdict is Verdict.FAIL and not is_forced:
        return _backing_out_of(now, look, why)
    if verdict is not Verdict.PASS or share != weight or control.paused or control.promote is not None:
        return None
    said = f"stage {now.stage + 1} of {len(stages)} passed: {why}"
    if needs_approval(now):
        return _awaiting(now, said)
    by = f", approved by {control.by}" if control.approved else ""
    after = replace(now, stage=now.stage + 1, changed_at=look.now, control=of_next_stage(control))
    return replace(after, why=f"{said}{by}")


def _standby(now: Deployment, look: VersionSnapshot) -> Deployment:
    new, old = new_side(now), old_side(now)
    if look.gives_up(now.artifact, now.started_at):
        return _backing_out_of(now, look, _failure(now, look))
    if old is None:
        return _splitting(now, look)
    if look.of(new).ready >= look.wished:
        if not now.stage:
            return replace(now, stage=1, changed_at=look.now, why=f"all instances of {new.artifact} are ready")
        control = now.control
        is_over = look.now - now.changed_at >= now.strategy.bake or control.promote is not None
        baked = is_over and not look.of(new).fresh and not control.paused
        if baked and needs_approval(now):
            now, baked = _awaiting(now, f"all instances of {new.artifact} are ready"), False
        if baked or not look.of(old).ready:
            by = f", {_verb(now)} by {control.by}" if control.approved or control.promote is not None else ""
            switched = replace(now, stage=0, weights={new.artifact: 100, old.artifact: 0})
            return _change_phase(switched, look, Phase.KEEPING, f"all calls go to {new.artifact}{by}")
        return now
    if now.stage:
        control = replace(now.control, awaiting=False)
        return replace(
            now, stage=0, changed_at=look.now, control=control, why=f"not all instances of {new.artifact} are ready"
        )
    if not now.weights:
        return _splitting(now, look)
    return _set_weight(now, look, {}) if _is_cut_off(now, look) else now


def _keeping(now: Deployment, look: VersionSnapshot) -> Deployment:
    new, old = new_side(now), old_side(now)
    if look.gives_up(now.artifact, now.started_at):
        return _backing_out_of(now, look, _failure(now, look))
    if is_kept_long_enough(now, look) and _is_whole(now, look):
        return _finish(now, look)
    if now.weights:
        return replace(now, weights={}) if _is_cut_off(now, look) else now
    if old is not None and enough(look, new, now.strategy):
        return replace(now, weights={new.artifact: 100, old.artifact: 0})
    return now


def is_kept_long_enough(now: Deployment, look: VersionSnapshot) -> bool:
    """Return whether the old instances of a blue-green deployment may be removed."""
    if now.control.paused:
        return False
    return look.now - now.changed_at >= now.strategy.keep or now.control.promote is not None


def _backing_out(now: Deployment, look: VersionSnapshot) -> Deployment:
    new, old = new_side(now), old_side(now)
    is_gone = not any(look.others(old))
    if old is None or is_gone or look.gives_up(old.artifact, now.changed_at):
        return _change_phase(now, look, Phase.FAILED, now.why)
    return _turned_back(now, new, old, look)


def _fail(now: Deployment, look: VersionSnapshot) -> Deployment:
    new, old = new_side(now), old_side(now)
    if old is None:
        return _finish(now, look) if _is_whole(now, look) else now
    if not look.remains(old):
        return replace(now, weights={}) if now.weights else now
    return _turned_back(now, new, old, look)


def _at_goal(now: Deployment, look: VersionSnapshot) -> Deployment:
    """Keep the weights until all other sides are gone: leaving instances may still have endpoints, and get no calls."""
    return replace(now, weights={}) if now.weights and not look.remains(new_side(now)) else now


def _stays(now: Deployment, _look: VersionSnapshot) -> Deployment:
    return now


_PHASES: dict[Phase, Callable[[Deployment, VersionSnapshot], Deployment]] = {
    Phase.STARTING: _starting,
    Phase.ROLLING: _rolling,
    Phase.CANARY: _canary,
    Phase.STANDBY: _standby,
    Phase.KEEPING: _keeping,
    Phase.BACKING_OUT: _backing_out,
    Phase.FAILED: _fail,
    Phase.DONE: _at_goal,
    Phase.REMOVING: _stays,
}


def _awaiting(now: Deployment, said: str) -> Deployment:
    """Wait for a user to approve the finished stage. Metrics are still counted from its start."""
    if now.control.awaiting:
        return now
    control = replace(now.control, awaiting=True)
    return replace(now, control=control, why=f"{said}; waiting for approval")


def _promote(now: Deployment, look: VersionSnapshot) -> Deployment:
    """Promote a canary to the next stage or past the last one, unless its metrics exceed the gate's limits."""
    control, stages = now.control, stages_of(now)
    against = exceeded_limit(now.strategy.gate, _stage_metrics(now, look))
    if against and not control.force:
        answer = f"not promoted: {against}; promote with force to continue anyway"
        return replace(now, control=replace(control, promote=None, answer=answer))
    stage = len(stages) if control.promote is Promotion.ALL else min(len(stages), now.stage + 1)
    goal = f"stage {stage + 1} of {len(stages)}" if stage < len(stages) else "all calls"
    despite = f", although {against}" if against else ""
    why = f"promoted to {goal} by {control.by}{despite}"
    return replace(now, stage=stage, changed_at=look.now, control=of_next_stage(control), why=why)


def _verb(now: Deployment) -> str:
    return "approved" if now.control.promote is None else "promoted"


def _splitting(now: Deployment, look: VersionSnapshot) -> Deployment:
    """Split calls once the old version can take them. If it is broken, roll: there is nothing to compare with."""
    old = old_side(now)
    retries = look.retries.get(now.previous)
    is_broken = retries is not None and (retries.given_up or retries.failures >= GIVE_UP)
    if old is None or (is_broken and not can_split(old, look, now.strategy)):
        why = f"{now.previous} does not serve, so there is nothing to compare with: {now.artifact} replaces it"
        return _change_phase(replace(now, stage=0), look, Phase.ROLLING, why, weights={})
    if can_split(old, look, now.strategy):
        return _set_weight(now, look, {old.artifact: 100, now.artifact: 0})
    return now


def _backing_out_of(now: Deployment, look: VersionSnapshot, why: str) -> Deployment:
    new, old = new_side(now), old_side(now)
    after = _change_phase(now, look, Phase.BACKING_OUT, f"{now.artifact} was given up: {why}")
    return after if old is None else _turned_back(after, new, old, look)


def _turned_back(now: Deployment, new: VersionSet, old: VersionSet, look: VersionSnapshot) -> Deployment:
    """Give no calls to the new version as soon as the old one can do without it; calls are never cut off."""
    if old.artifact == new.artifact:
        return replace(now, weights={}) if now.weights else now
    has_share = now.weights.get(old.artifact, 0) > 0 and look.of(old).ready > 0
    if has_share or enough(look, old, now.strategy):
        return replace(now, weights={old.artifact: 100, new.artifact: 0})
    # While the new version gets all calls, none of it may go, and there may be no room for more of the old one.
    is_stuck = now.weights.get(old.artifact) == 0 and look.of(old).ready > 0
    return replace(now, weights={}) if is_stuck or (now.weights and _is_cut_off(now, look)) else now


def _is_cut_off(now: Deployment, look: VersionSnapshot) -> bool:
    """Return whether no side with a share is ready, while a side without a share is."""
    ready = [side.artifact for side, count in look.others() if count.ready]
    return bool(ready) and not any(now.weights.get(artifact, 0) for artifact in ready)


def _is_whole(now: Deployment, look: VersionSnapshot) -> bool:
    """Return whether all desired instances are ready, and no other side has instances."""
    new = new_side(now)
    count = look.of(new).proven if now.phase in PROVING else look.of(new).ready
    return count >= look.wished and not any(look.others(new))


def _stage_metrics(now: Deployment, look: VersionSnapshot) -> Measured:
    """Return the metrics of this stage; none if they were counted from an earlier time."""
    measured = look.measured(now.artifact)
    return NOTHING if 0 < measured.since < now.changed_at else measured


def _failure(now: Deployment, look: VersionSnapshot) -> str:
    retries = look.retries.get(now.artifact)
    return retries.why if retries is not None and retries.why else "its instances do not start"


def _finish(now: Deployment, look: VersionSnapshot) -> Deployment:
    done = replace(
        now,
        previous="",
        previous_template=0,
        previous_settings=type(now.settings)(),
        previous_needs=(),
        stage=0,
        weights=now.weights if now.weights.get(now.artifact) == 100 else {},
    )
    return _change_phase(done, look, Phase.DONE, f"{look.wished} of {now.artifact} are ready")


def _set_weight(now: Deployment, look: VersionSnapshot, weights: dict[str, int]) -> Deployment:
    return replace(now, weights=weights, changed_at=look.now)


def _change_phase(
    now: Deployment, look: VersionSnapshot, phase: Phase, why: str, weights: dict[str, int] | None = None
) -> Deployment:
    control = of_next_stage(now.control) if phase in UNDER_WAY else NO_ORDERS
    if phase is Phase.KEEPING and now.control.promote is Promotion.ALL:
        control = replace(control, promote=Promotion.ALL)
    weights = now.weights if weights is None else weights
    return replace(now, phase=phase, changed_at=look.now, why=why, weights=weights, control=control)
