"""How a deployment starts when a blueprint changes its slice. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from hostler.engine.deployments.version_set import VersionSet, VersionSnapshot, can_split, enough, new_side, old_side
from hostler.model.deployment import Approval, SliceSettings, StrategyKind
from hostler.model.rollout import Deployment, Phase

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hostler.engine.deployments.version_set import Count
    from hostler.model.deployment import SliceSpec

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


def begun(
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
    served = _served(standing, look)
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


def _served(standing: Deployment | None, look: VersionSnapshot) -> VersionSet | None:
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
