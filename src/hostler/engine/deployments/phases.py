"""From one phase of a deployment to the next. Pure; each function makes one step at most, or gives back what it got."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from msgspec.structs import replace

from hostler.engine.deployments.call_metrics import NOTHING
from hostler.engine.deployments.gates import Verdict, exceeded, judge
from hostler.engine.deployments.rollout_control import NO_ORDERS, UNDER_WAY, needs_approval, of_next_stage
from hostler.engine.deployments.version_set import Look, can_split, enough, new_side, old_side
from hostler.kit.plural import counted
from hostler.model.deployment import USUAL_STAGES
from hostler.model.rollout import Deployment, Phase, Promotion

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.engine.deployments.call_metrics import Measured
    from hostler.engine.deployments.version_set import Side
    from hostler.model.deployment import Stage

GIVE_UP = 5
"""Failures in a row after which the old version is taken to be broken."""
PROVING = frozenset({Phase.ROLLING, Phase.CANARY, Phase.STANDBY, Phase.KEEPING})
"""A version takes another one's place, and has to be ready for a while to count."""
_STEPS = 12
"""More than there are phases: so many steps are made at one look at most."""


def advanced(deployment: Deployment, look: Look) -> Deployment:
    """The deployment after all steps that can be made now."""
    if deployment.control.abort and deployment.phase in UNDER_WAY and deployment.previous:
        deployment = _backing_out_of(deployment, look, f"{deployment.control.by} aborted it")
    for _ in range(_STEPS):
        after = _PHASES[deployment.phase](deployment, look)
        if after is deployment or after == deployment:
            break
        deployment = after
    return deployment


def stages_of(deployment: Deployment) -> tuple[Stage, ...]:
    """The stages of a canary."""
    return deployment.strategy.stages or USUAL_STAGES


def weight_of(deployment: Deployment) -> int:
    """The share of the calls that the stage gives to the new version; after the last one: all."""
    stages = stages_of(deployment)
    return stages[deployment.stage].weight if deployment.stage < len(stages) else 100


def trial(deployment: Deployment, wished: int) -> int:
    """The instances of the new version that the stage takes."""
    return max(1, math.ceil(wished * weight_of(deployment) / 100))


def first_batch(now: Deployment, look: Look) -> int:
    """The new instances of a rolling upgrade that come before it is approved."""
    return min(look.wished, max(1, look.surge(now.strategy) or now.strategy.max_unavailable))


def _starting(now: Deployment, look: Look) -> Deployment:
    if _is_whole(now, look):
        return _done(now, look)
    if look.gives_up(now.artifact, now.started_at):
        return _moved(now, look, Phase.FAILED, f"{now.artifact} was given up: {_failure(now, look)}", weights={})
    return now


def _rolling(now: Deployment, look: Look) -> Deployment:
    new, old = new_side(now), old_side(now)
    if _is_whole(now, look):
        return _done(now, look)
    if look.gives_up(now.artifact, now.started_at):
        if old is not None:
            return _backing_out_of(now, look, _failure(now, look))
        # It served before, so it stays what is wished for, and is tried for ever.
        return _moved(
            replace(
                now,
                previous=now.artifact,
                previous_template=now.template,
                previous_settings=now.settings,
                previous_needs=now.needs,
            ),
            look,
            Phase.FAILED,
            f"{now.artifact} served before, and does not come up again in full: {_failure(now, look)}",
        )
    if now.control.promote is not None:
        control = replace(of_next_stage(now.control), approved=True)
        now = replace(now, control=control, why=f"promoted by {control.by}: the other instances follow")
    if old is not None and needs_approval(now) and look.of(new).proven >= first_batch(now, look):
        ready = counted(look.of(new).proven, "instance of it is ready", "instances of it are ready")
        now = _awaiting(now, f"{now.artifact}: {ready}")
    # Calls are held to one side while the other goes; unless that side cannot take any.
    held_to = new if old is None else old
    is_over = not look.of(held_to).ready or (old is not None and not any(look.others(new, old)))
    return _weighed(now, look, {}) if now.weights and is_over else now


def _canary(now: Deployment, look: Look) -> Deployment:
    new, old = new_side(now), old_side(now)
    share, weight = now.weights.get(now.artifact, 0), weight_of(now)
    if share == 100 and _is_whole(now, look):
        return _done(now, look)
    if look.gives_up(now.artifact, now.started_at):
        return _backing_out_of(now, look, _failure(now, look))
    if old is None or not now.weights:
        return _splitting(now, look)
    if share in {0, 100} and _is_cut_off(now, look):
        return _weighed(now, look, {})
    judged = _judged(now, look, share, weight) if 0 < share < 100 else None
    if judged is not None:
        return judged
    if now.control.promote is not None:
        return _promoted(now, look)
    stages = stages_of(now)
    if share != weight and not now.control.paused and look.of(new).proven >= trial(now, look.wished):
        if weight < 100 and not look.of(old).ready:
            return now
        text = f"stage {now.stage + 1} of {len(stages)}: {weight} % of the calls" if weight < 100 else "all calls"
        after = _weighed(now, look, {old.artifact: 100 - weight, new.artifact: weight})
        until = ""
        if weight < 100:
            least = now.strategy.gate.min_calls
            calls = f" and until it had {counted(least, 'call')}" if least else ""
            until = f", for {stages[now.stage].hold:g} s{calls}"
        return replace(after, why=f"{text} go to {new.artifact}{until}")
    return now


def _judged(now: Deployment, look: Look, share: int, weight: int) -> Deployment | None:
    """What comes of the gate, while the new version gets a share of the calls; None: nothing yet."""
    stages, control = stages_of(now), now.control
    hold = stages[now.stage].hold if now.stage < len(stages) else 0.0
    held = look.now - now.changed_at if share == weight else -1.0
    verdict, why = judge(now.strategy.gate, _measured(now, look), held=held, hold=hold)
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


def _standby(now: Deployment, look: Look) -> Deployment:
    new, old = new_side(now), old_side(now)
    if look.gives_up(now.artifact, now.started_at):
        return _backing_out_of(now, look, _failure(now, look))
    if old is None:
        return _splitting(now, look)
    if look.of(new).ready >= look.wished:
        if not now.stage:
            return replace(now, stage=1, changed_at=look.now, why=f"all of {new.artifact} stand ready")
        control = now.control
        is_over = look.now - now.changed_at >= now.strategy.bake or control.promote is not None
        baked = is_over and not look.of(new).fresh and not control.paused
        if baked and needs_approval(now):
            now, baked = _awaiting(now, f"all of {new.artifact} stand ready"), False
        if baked or not look.of(old).ready:
            by = f", {_verb(now)} by {control.by}" if control.approved or control.promote is not None else ""
            switched = replace(now, stage=0, weights={new.artifact: 100, old.artifact: 0})
            return _moved(switched, look, Phase.KEEPING, f"all calls go to {new.artifact}{by}")
        return now
    if now.stage:
        control = replace(now.control, awaiting=False)
        return replace(
            now, stage=0, changed_at=look.now, control=control, why=f"not all of {new.artifact} are ready any more"
        )
    if not now.weights:
        return _splitting(now, look)
    return _weighed(now, look, {}) if _is_cut_off(now, look) else now


def _keeping(now: Deployment, look: Look) -> Deployment:
    new, old = new_side(now), old_side(now)
    if look.gives_up(now.artifact, now.started_at):
        return _backing_out_of(now, look, _failure(now, look))
    if is_kept_long_enough(now, look) and _is_whole(now, look):
        return _done(now, look)
    if now.weights:
        return replace(now, weights={}) if _is_cut_off(now, look) else now
    if old is not None and enough(look, new, now.strategy):
        return replace(now, weights={new.artifact: 100, old.artifact: 0})
    return now


def is_kept_long_enough(now: Deployment, look: Look) -> bool:
    """Whether the old instances of a blue-green deployment may go."""
    if now.control.paused:
        return False
    return look.now - now.changed_at >= now.strategy.keep or now.control.promote is not None


def _backing_out(now: Deployment, look: Look) -> Deployment:
    new, old = new_side(now), old_side(now)
    is_gone = not any(look.others(old))
    if old is None or is_gone or look.gives_up(old.artifact, now.changed_at):
        return _moved(now, look, Phase.FAILED, now.why)
    return _turned_back(now, new, old, look)


def _failed(now: Deployment, look: Look) -> Deployment:
    new, old = new_side(now), old_side(now)
    if old is None:
        return _done(now, look) if _is_whole(now, look) else now
    if not look.remains(old):
        return replace(now, weights={}) if now.weights else now
    return _turned_back(now, new, old, look)


def _at_goal(now: Deployment, look: Look) -> Deployment:
    """What goes may still have endpoints, and gets no call again."""
    return replace(now, weights={}) if now.weights and not look.remains(new_side(now)) else now


def _stays(now: Deployment, _look: Look) -> Deployment:
    return now


_PHASES: dict[Phase, Callable[[Deployment, Look], Deployment]] = {
    Phase.STARTING: _starting,
    Phase.ROLLING: _rolling,
    Phase.CANARY: _canary,
    Phase.STANDBY: _standby,
    Phase.KEEPING: _keeping,
    Phase.BACKING_OUT: _backing_out,
    Phase.FAILED: _failed,
    Phase.DONE: _at_goal,
    Phase.REMOVING: _stays,
}


def _awaiting(now: Deployment, said: str) -> Deployment:
    """The stage is over, and a person has to approve it. What is measured is still counted from its beginning."""
    if now.control.awaiting:
        return now
    control = replace(now.control, awaiting=True)
    return replace(now, control=control, why=f"{said}; it waits for approval")


def _promoted(now: Deployment, look: Look) -> Deployment:
    """To the next stage of a canary, or past the last one; not while what was measured exceeds the gate's limits."""
    control, stages = now.control, stages_of(now)
    against = exceeded(now.strategy.gate, _measured(now, look))
    if against and not control.force:
        answer = f"not promoted: {against}; promote with force to go on all the same"
        return replace(now, control=replace(control, promote=None, answer=answer))
    stage = len(stages) if control.promote is Promotion.ALL else min(len(stages), now.stage + 1)
    goal = f"stage {stage + 1} of {len(stages)}" if stage < len(stages) else "all calls"
    despite = f", although {against}" if against else ""
    why = f"promoted to {goal} by {control.by}{despite}"
    return replace(now, stage=stage, changed_at=look.now, control=of_next_stage(control), why=why)


def _verb(now: Deployment) -> str:
    return "approved" if now.control.promote is None else "promoted"


def _splitting(now: Deployment, look: Look) -> Deployment:
    """Calls cannot be split yet: the old version must be able to take them, or there is nothing to compare with."""
    old = old_side(now)
    retries = look.retries.get(now.previous)
    is_broken = retries is not None and (retries.given_up or retries.failures >= GIVE_UP)
    if old is None or (is_broken and not can_split(old, look, now.strategy)):
        why = f"{now.previous} is not there to be compared with: {now.artifact} takes its place"
        return _moved(replace(now, stage=0), look, Phase.ROLLING, why, weights={})
    if can_split(old, look, now.strategy):
        return _weighed(now, look, {old.artifact: 100, now.artifact: 0})
    return now


def _backing_out_of(now: Deployment, look: Look, why: str) -> Deployment:
    new, old = new_side(now), old_side(now)
    after = _moved(now, look, Phase.BACKING_OUT, f"{now.artifact} was given up: {why}")
    return after if old is None else _turned_back(after, new, old, look)


def _turned_back(now: Deployment, new: Side, old: Side, look: Look) -> Deployment:
    """No call to the new version, as soon as the old one can do without it; calls are never cut off."""
    if old.artifact == new.artifact:
        return replace(now, weights={}) if now.weights else now
    has_share = now.weights.get(old.artifact, 0) > 0 and look.of(old).ready > 0
    if has_share or enough(look, old, now.strategy):
        return replace(now, weights={old.artifact: 100, new.artifact: 0})
    # While all calls go to the new version, none of it may go, and there may be no room for more of the old one.
    is_stuck = now.weights.get(old.artifact) == 0 and look.of(old).ready > 0
    return replace(now, weights={}) if is_stuck or (now.weights and _is_cut_off(now, look)) else now


def _is_cut_off(now: Deployment, look: Look) -> bool:
    """Whether no call can be answered by what gets calls, and some could be by what gets none."""
    ready = [side.artifact for side, count in look.others() if count.ready]
    return bool(ready) and not any(now.weights.get(artifact, 0) for artifact in ready)


def _is_whole(now: Deployment, look: Look) -> bool:
    """Whether there is all that is wished for, and nothing else."""
    new = new_side(now)
    count = look.of(new).proven if now.phase in PROVING else look.of(new).ready
    return count >= look.wished and not any(look.others(new))


def _measured(now: Deployment, look: Look) -> Measured:
    """What was measured at this stage; nothing, if it was counted from before it."""
    measured = look.measured(now.artifact)
    return NOTHING if 0 < measured.since < now.changed_at else measured


def _failure(now: Deployment, look: Look) -> str:
    retries = look.retries.get(now.artifact)
    return retries.why if retries is not None and retries.why else "its instances do not come up"


def _done(now: Deployment, look: Look) -> Deployment:
    done = replace(
        now,
        previous="",
        previous_template=0,
        previous_settings=type(now.settings)(),
        previous_needs=(),
        stage=0,
        weights=now.weights if now.weights.get(now.artifact) == 100 else {},
    )
    return _moved(done, look, Phase.DONE, f"{look.wished} of {now.artifact} are ready")


def _weighed(now: Deployment, look: Look, weights: dict[str, int]) -> Deployment:
    return replace(now, weights=weights, changed_at=look.now)


def _moved(now: Deployment, look: Look, phase: Phase, why: str, weights: dict[str, int] | None = None) -> Deployment:
    control = of_next_stage(now.control) if phase in UNDER_WAY else NO_ORDERS
    if phase is Phase.KEEPING and now.control.promote is Promotion.ALL:
        control = replace(control, promote=Promotion.ALL)
    weights = now.weights if weights is None else weights
    return replace(now, phase=phase, changed_at=look.now, why=why, weights=weights, control=control)
