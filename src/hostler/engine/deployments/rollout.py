"""Rollouts: how one starts when a blueprint changes a slice, and the commands of users during it. Pure.

The service writes a command, or the reason to refuse it, into the deployment's record; `phases` and `strategy` carry it
out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from hostler.engine.deployments.version_set import VersionSet, VersionSnapshot, can_split, enough, new_side, old_side
from hostler.model.blueprint_api import RolloutVerb
from hostler.model.deployment import USUAL_STAGES, Approval, SliceSettings, StrategyKind
from hostler.model.rollout import Deployment, Phase, Promotion, RolloutControl

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hostler.engine.deployments.version_set import Count
    from hostler.model.deployment import SliceSpec


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


def apply_command(
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


_USUAL = SliceSettings()
_STOPPED = frozenset({Phase.BACKING_OUT, Phase.FAILED, Phase.REMOVING})
_PHASES = {
    StrategyKind.ROLLING: Phase.ROLLING,
    StrategyKind.CANARY: Phase.CANARY,
    StrategyKind.BLUE_GREEN: Phase.STANDBY,
}


def is_news(spec: SliceSpec, blueprint: str, number: int, standing: Deployment | None) -> bool:
    """Return whether the blueprint specifies something that the deployment does not follow yet."""
    return (
        standing is None
        or (standing.blueprint, standing.number) != (blueprint, number)
        or standing.phase is Phase.REMOVING
        or (standing.artifact, standing.settings) != (spec.artifact, spec.settings)
    )


def target(spec: SliceSpec, standing: Deployment | None, counts: Mapping[VersionSet, Count]) -> VersionSet:
    """Return the side that the blueprint specifies. New settings get a new template number."""
    if spec.settings == _USUAL:
        return VersionSet(spec.artifact)
    known = [0, *(side.template for side in counts)]
    if standing is not None:
        if spec.settings == standing.settings:
            return VersionSet(spec.artifact, standing.template)
        if standing.previous and spec.settings == standing.previous_settings:
            return VersionSet(spec.artifact, standing.previous_template)
        known += [standing.template, standing.previous_template]
    return VersionSet(spec.artifact, 1 + max(known))


def start_rollout(
    blueprint: str,
    number: int,
    standing: Deployment | None,
    look: VersionSnapshot,
    *,
    rollback: bool,
    retry: bool = True,
) -> Deployment:
    """Return the deployment that follows the blueprint's new revision.

    A deployment in progress to the same side continues. One that was given up stays so if the revision concerns only
    other slices (`retry` False). Otherwise a new deployment starts, from the side that is known to serve.
    """
    spec = look.spec
    new = target(spec, standing, look.counts)
    stopped = _STOPPED if retry else {Phase.REMOVING}
    if standing is not None and standing.phase not in stopped and new_side(standing) == new:
        return msgspec.structs.replace(standing, blueprint=blueprint, number=number, needs=spec.needs)
    served = _serving_side(standing, look)
    old = served if served != new else None
    fresh = Deployment(
        blueprint=blueprint,
        number=number,
        artifact=spec.artifact,
        template=new.template,
        settings=spec.settings,
        needs=spec.needs,
        strategy=msgspec.structs.replace(spec.strategy, approval=Approval.AUTOMATIC) if rollback else spec.strategy,
        phase=Phase.STARTING,
        scale=standing.scale if standing else None,
        scaled_at=standing.scaled_at if standing else 0.0,
        needed_at=standing.needed_at if standing else 0.0,
        started_at=look.now,
        changed_at=look.now,
        why=f"requested by revision {number} of blueprint {blueprint}",
    )
    if standing is None or served is None:
        return fresh
    if old is None:
        return msgspec.structs.replace(
            fresh,
            phase=Phase.ROLLING,
            weights=_to_new(new, standing, look),
            why=f"revision {number} of blueprint {blueprint} returns to the version that served before",
        )
    fresh = msgspec.structs.replace(
        fresh,
        previous=old.artifact,
        previous_template=old.template,
        previous_settings=_settings_of(old, standing),
        previous_needs=standing.needs if old == new_side(standing) else standing.previous_needs,
    )
    if _is_kept_for(new, standing, look):
        return msgspec.structs.replace(
            fresh,
            phase=Phase.KEEPING,
            strategy=spec.strategy if spec.strategy.type is StrategyKind.BLUE_GREEN else standing.strategy,
            weights={new.artifact: 100, old.artifact: 0},
            why=f"revision {number} of blueprint {blueprint} returns to instances that are still ready",
        )
    # Calls are split by artifact, so a change of settings alone cannot be tried on a share of them.
    rolls = rollback or new.artifact == old.artifact
    phase = Phase.ROLLING if rolls else _PHASES[spec.strategy.type]
    return msgspec.structs.replace(fresh, phase=phase, weights=_to_old(old, new, phase, standing, look))


def _serving_side(standing: Deployment | None, look: VersionSnapshot) -> VersionSet | None:
    """Return the side that is known to serve: a failed upgrade rolls back to it."""
    if standing is None:
        return None
    new, old = new_side(standing), old_side(standing)
    if standing.phase is Phase.REMOVING:
        ready = [side for side in (new, old) if side is not None and look.of(side).ready]
        return max(ready, key=lambda side: look.of(side).ready, default=None)
    is_proven = standing.phase in {Phase.DONE, Phase.KEEPING} or (
        standing.phase is Phase.CANARY and standing.weights.get(new.artifact) == 100
    )
    if is_proven:
        return new
    if old is not None:
        return old
    # A version that served before is known to work; a first version only if one of its instances became ready.
    return new if standing.phase is Phase.ROLLING or look.of(new).ready else None


def _settings_of(side: VersionSet, standing: Deployment) -> SliceSettings:
    return standing.settings if side.template == standing.template else standing.previous_settings


def _is_kept_for(new: VersionSet, standing: Deployment, look: VersionSnapshot) -> bool:
    """Return whether all calls had been switched to another version, and this one is still ready to take them back."""
    away = standing.weights.get(standing.artifact) == 100 and standing.artifact != new.artifact
    return away and old_side(standing) == new and enough(look, new, standing.strategy)


def _to_old(
    old: VersionSet, new: VersionSet, phase: Phase, standing: Deployment, look: VersionSnapshot
) -> dict[str, int]:
    """Return the initial weights of an upgrade.

    While calls are split, only the old version gets calls until superseded versions are gone. Canary and blue-green
    split calls from the start, unless another version serves too and the old one alone is not enough.
    """
    if old.artifact == new.artifact or not look.of(old).ready:
        return {}
    is_split = standing.weights.get(old.artifact, 0) > 0
    if is_split or (phase is not Phase.ROLLING and can_split(old, look, look.spec.strategy)):
        return {old.artifact: 100, new.artifact: 0}
    return {}


def _to_new(new: VersionSet, standing: Deployment, look: VersionSnapshot) -> dict[str, int]:
    """Return the initial weights of a return: the version being left gets no calls once there are enough others."""
    if standing.artifact == new.artifact or not look.of(new).ready:
        return {}
    if standing.weights.get(new.artifact, 0) > 0 or enough(look, new, look.spec.strategy):
        return {new.artifact: 100, standing.artifact: 0}
    return {}
