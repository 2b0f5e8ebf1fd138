"""Commands of users for a rollout in progress, and reasons to refuse them. Pure.

The service writes the command into the deployment's record; `phases` and `batch_size` carry it out.
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
    """Return whether a user approves the stages. An unknown kind of approval, of a later release, counts as manual."""
    return deployment.strategy.approval is not Approval.AUTOMATIC


def needs_approval(deployment: Deployment) -> bool:
    """Return whether a user must approve the current stage before it can end."""
    control = deployment.control
    return is_manual(deployment) and not control.approved and control.promote is None


def refusal(verb: RolloutVerb, deployment: Deployment) -> str:
    """Return why the command is not possible; empty: it is possible."""
    control, phase = deployment.control, deployment.phase
    if phase in {Phase.BACKING_OUT, Phase.FAILED} and deployment.previous:
        return (
            f"rollback of {deployment.artifact} has already started: {deployment.why}; apply the blueprint to try again"
        )
    if phase not in UNDER_WAY or not deployment.previous:
        return "no rollout is in progress; start one by applying a new version"
    if control.abort:
        return f"{control.by} aborted it"
    if verb in {RolloutVerb.PROMOTE, RolloutVerb.APPROVE} and control.paused:
        return f"the rollout is paused by {control.by}; resume it first"
    if verb is RolloutVerb.PAUSE and _is_past_stages(deployment) and deployment.weights.get(deployment.artifact) == 100:
        return f"all calls go to {deployment.artifact} already; abort it to go back"
    if verb is RolloutVerb.RESUME and not control.paused:
        return "the rollout is not paused"
    if verb is RolloutVerb.APPROVE:
        return _nothing_to_approve(deployment)
    if verb is RolloutVerb.PROMOTE:
        return _nothing_to_promote(deployment)
    return ""


def _nothing_to_approve(deployment: Deployment) -> str:
    if not is_manual(deployment):
        return 'its strategy requires no approval; `approval = "manual"` does'
    if deployment.phase is Phase.KEEPING or (deployment.phase is Phase.ROLLING and deployment.control.approved):
        return "everything that needs approval is approved already"
    return "" if not _is_past_stages(deployment) else "all of its stages were approved"


def _nothing_to_promote(deployment: Deployment) -> str:
    if deployment.phase is Phase.ROLLING and not needs_approval(deployment):
        return "a rolling upgrade continues by itself as new instances become ready"
    return "" if not _is_past_stages(deployment) else "the last stage has passed, and the rollout continues by itself"


def _is_past_stages(deployment: Deployment) -> bool:
    return deployment.phase is Phase.CANARY and deployment.stage >= len(deployment.strategy.stages or USUAL_STAGES)


def possible(deployment: Deployment) -> tuple[RolloutVerb, ...]:
    """Return the commands that are possible now, without those that would change nothing."""
    already = {RolloutVerb.PAUSE} if deployment.control.paused else set()
    return tuple(verb for verb in RolloutVerb if verb not in already and not refusal(verb, deployment))


def ordered(
    verb: RolloutVerb, deployment: Deployment, *, by: str, at: float, everything: bool = False, force: bool = False
) -> Deployment:
    """Return the deployment with the command; the same object if nothing changes. `refusal` must be empty."""
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
    """Return what remains of the commands when a stage ends."""
    return replace(control, approved=False, awaiting=False, promote=None, force=False, answer="")
