"""What a person can order for a rollout that is under way, and why not. Pure.

The service writes the order into the record of the deployment; `phases` and `share` carry it out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from hostler.model.blueprint_api import RolloutVerb
from hostler.model.deployment import USUAL_STAGES, Approval
from hostler.model.rollout import Phase, Promotion, RolloutControl

if TYPE_CHECKING:
    from hostler.model.rollout import Deployment

UNDER_WAY = frozenset({Phase.ROLLING, Phase.CANARY, Phase.STANDBY, Phase.KEEPING})
NO_ORDERS = RolloutControl()


def is_manual(deployment: Deployment) -> bool:
    """Whether a person approves the stages. A kind of approval that only a later release knows is taken for manual."""
    return deployment.strategy.approval is not Approval.AUTOMATIC


def needs_approval(deployment: Deployment) -> bool:
    """Whether the present stage may not be left before a person approves it."""
    control = deployment.control
    return is_manual(deployment) and not control.approved and control.promote is None


def refusal(verb: RolloutVerb, deployment: Deployment) -> str:
    """Why the order is not possible; empty: it is."""
    control, phase = deployment.control, deployment.phase
    if phase in {Phase.BACKING_OUT, Phase.FAILED} and deployment.previous:
        return f"{deployment.artifact} is taken back already: {deployment.why}; apply the blueprint to try again"
    if phase not in UNDER_WAY or not deployment.previous:
        return "no version follows another one now; orders are for upgrades that are under way"
    if control.abort:
        return f"{control.by} aborted it"
    if verb in {RolloutVerb.PROMOTE, RolloutVerb.APPROVE} and control.paused:
        return f"it is paused by {control.by}; resume it first"
    if verb is RolloutVerb.PAUSE and _is_past_stages(deployment) and deployment.weights.get(deployment.artifact) == 100:
        return f"all calls go to {deployment.artifact} already; abort it to go back"
    if verb is RolloutVerb.RESUME and not control.paused:
        return "it is not paused"
    if verb is RolloutVerb.APPROVE:
        return _nothing_to_approve(deployment)
    if verb is RolloutVerb.PROMOTE:
        return _nothing_to_promote(deployment)
    return ""


def _nothing_to_approve(deployment: Deployment) -> str:
    if not is_manual(deployment):
        return 'its strategy asks for no approval; `approval = "manual"` does'
    if deployment.phase is Phase.KEEPING or (deployment.phase is Phase.ROLLING and deployment.control.approved):
        return "all that needs approval was approved"
    return "" if not _is_past_stages(deployment) else "all of its stages were approved"


def _nothing_to_promote(deployment: Deployment) -> str:
    if deployment.phase is Phase.ROLLING and not needs_approval(deployment):
        return "a rolling upgrade goes on by itself, as new instances become ready"
    return "" if not _is_past_stages(deployment) else "it has passed its last stage, and goes on by itself"


def _is_past_stages(deployment: Deployment) -> bool:
    return deployment.phase is Phase.CANARY and deployment.stage >= len(deployment.strategy.stages or USUAL_STAGES)


def possible(deployment: Deployment) -> tuple[RolloutVerb, ...]:
    """What can be ordered now, but for what is so already."""
    already = {RolloutVerb.PAUSE} if deployment.control.paused else set()
    return tuple(verb for verb in RolloutVerb if verb not in already and not refusal(verb, deployment))


def ordered(
    verb: RolloutVerb, deployment: Deployment, *, by: str, at: float, everything: bool = False, force: bool = False
) -> Deployment:
    """The deployment with the order in it; the same one, if that is so already. `refusal` must be empty."""
    before = deployment.control
    if verb is RolloutVerb.PAUSE:
        after = replace(before, paused=True, promote=None, force=False)
    elif verb is RolloutVerb.RESUME:
        after = replace(before, paused=False)
    elif verb is RolloutVerb.APPROVE:
        after = replace(before, approved=True, awaiting=False)
    elif verb is RolloutVerb.ABORT:
        after = replace(before, abort=True)
    else:
        after = replace(before, promote=Promotion.ALL if everything else Promotion.NEXT, force=force, answer="")
    if after == before:
        return deployment
    return replace(deployment, control=replace(after, by=by, at=at))


def of_next_stage(control: RolloutControl) -> RolloutControl:
    """What is left of the orders when a stage ends."""
    return replace(control, approved=False, awaiting=False, promote=None, force=False, answer="")
