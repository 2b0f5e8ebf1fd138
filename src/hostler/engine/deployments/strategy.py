"""Computes how one version of a slice replaces another: the desired instances now, from spec, status and time.

Pure. The Deployment record is the only memory between two decisions, so any leader can continue.

    version_set      data types: sides, counts, aims
    rollout_start    how a deployment starts when the blueprint changes
    phases           transitions between phases
    gates            whether a version proceeds
    rollout_control  what a user can order during a rollout
    batch_size       how many instances each side should have, and how many may go
    autoscale        how many instances the calls need
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from hostler.engine.deployments import autoscale
from hostler.engine.deployments.batch_size import shares
from hostler.engine.deployments.phases import PROVING, advanced, stages_of, weight_of
from hostler.engine.deployments.rollout_control import NO_ORDERS
from hostler.engine.deployments.rollout_start import begun, is_news, target
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


def aim(  # noqa: PLR0917 - the spec, then the status
    spec: SliceSpec | None,
    blueprint: str,
    number: int,
    rollback: bool,
    deployment: Deployment | None,
    counts: Mapping[VersionSet, Count],
    *,
    retries: Mapping[str, Retries],
    measured: Callable[[str], Measured],
    now: float,
    placeable: bool,
    retry: bool = True,
) -> Aim:
    """Return the aim for a slice. `spec` None: no blueprint names it. `number`: of the blueprint's revision.

    `retry`: whether a new revision is a reason to try again a version that was given up.

    Decide again after the deployment was written, too: some steps wait until routers can know of the previous one.
    """
    if spec is None:
        return _removed(deployment, counts, now)
    standing = deployment
    if standing is not None:
        standing = autoscale.scaled(spec, standing, measured, now)
    look = VersionSnapshot(
        spec=spec,
        wished=autoscale.wished(spec, standing.scale if standing else None),
        counts=counts,
        retries=retries,
        measured=measured,
        now=now,
        placeable=placeable,
    )
    if standing is None or is_news(spec, blueprint, number, standing):
        standing = begun(blueprint, number, standing, look, rollback=rollback, retry=retry)
    after = advanced(standing, look)
    wants, spare = shares(deployment, after, look)
    return Aim(
        wants=tuple(sorted((side, count) for side, count in wants.items() if count)),
        spare=tuple(sorted(spare.items())),
        deployment=after,
        settings=_settings(after),
        again=_again(after, look),
    )


def _removed(deployment: Deployment | None, counts: Mapping[VersionSet, Count], now: float) -> Aim:
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
