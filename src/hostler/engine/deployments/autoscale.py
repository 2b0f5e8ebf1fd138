"""Computes the number of instances that the calls need. Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from hostler.model.deployment import OnErrors
from hostler.model.rollout import Phase

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.engine.deployments.call_metrics import Measured
    from hostler.model.deployment import Autoscale, SliceSpec
    from hostler.model.rollout import Deployment

EVERY = 2.0
"""Seconds between two evaluations of the metrics."""
SLACK = 0.1
"""Tolerated excess over the target before instances are added, as a fraction."""
MIN_CALLS = 20
"""Minimum calls in the last minute for an error rate to count."""
_AT_REST = frozenset({Phase.STARTING, Phase.REMOVING})


def desired_count(spec: SliceSpec, scale: int | None) -> int:
    """Return the desired number of instances."""
    auto = spec.autoscale
    if auto is None:
        return spec.instances
    least = min(auto.max, max(auto.min, spec.min_available))
    return min(auto.max, max(least, spec.instances if scale is None else scale))


def scaled_deployment(
    spec: SliceSpec, deployment: Deployment, measured: Callable[[str], Measured], now: float
) -> Deployment:
    """Return the deployment with the number of instances that the calls need now."""
    auto = spec.autoscale
    if auto is None:
        if deployment.scale is None:
            return deployment
        return msgspec.structs.replace(deployment, scale=None, scaled_at=0.0, needed_at=0.0)
    if deployment.phase in _AT_REST:
        return deployment
    had = desired_count(spec, deployment.scale)
    found = combined_metrics(deployment, measured)
    number = scale(auto, now, deployment, found, had, each=spec.settings.cpus or 1.0)
    if number is not None:
        number = desired_count(spec, number)
    if number is not None and number != had:
        return msgspec.structs.replace(deployment, scale=number, scaled_at=now, needed_at=now)
    # Tells the next leader for how long fewer have been enough. Not written at each evaluation, to save writes.
    if (
        had > desired_count(spec, 0)
        and _is_needed(spec, found, had)
        and now - deployment.needed_at >= auto.cool_down / 4
    ):
        return msgspec.structs.replace(deployment, needed_at=now)
    return deployment


def _is_needed(spec: SliceSpec, seen: Measured, had: int) -> bool:
    auto = spec.autoscale
    return auto is not None and _need(auto, seen, had, spec.settings.cpus or 1.0) >= had


def scale(
    auto: Autoscale, now: float, deployment: Deployment, measured: Measured, had: int, *, each: float = 1.0
) -> int | None:
    """Return a number other than `had` if there is reason and it is time; None: keep it. `each`: CPUs per instance.

    A step at most doubles or halves the number, because its effect must be measured first.
    """
    need = min(auto.max, _need(auto, measured, had, each))
    if need > had:
        if auto.on_errors is OnErrors.BLOCK and _fails(auto, measured):
            return None
        return min(need, had * 2) if now - deployment.scaled_at >= auto.warm_up else None
    if need < had and _is_known(auto, measured, now):
        rested = now - max(deployment.scaled_at, deployment.needed_at, deployment.started_at)
        return max(need, math.ceil(had / 2), auto.min) if rested >= auto.cool_down else None
    return None


def _fails(auto: Autoscale, measured: Measured) -> bool:
    """Return whether too many calls of the last minute failed; a few calls prove nothing."""
    enough = measured.recent_calls >= MIN_CALLS
    return enough and measured.recent_errors > auto.max_error_rate * measured.recent_calls


def _need(auto: Autoscale, measured: Measured, had: int, each: float) -> int:
    need = max(auto.min, math.ceil(measured.in_flight / auto.in_flight))
    if need > had and measured.in_flight <= had * auto.in_flight * (1 + SLACK):
        need = had
    if auto.cpu is not None:
        aimed = auto.cpu * each
        by_cpu = math.ceil(measured.cpu / aimed)
        need = max(need, had if by_cpu > had and measured.cpu <= had * aimed * (1 + SLACK) else by_cpu)
    is_slow = auto.latency_ms is not None and measured.p95_ms > auto.latency_ms
    if is_slow or (auto.on_errors is OnErrors.SCALE and _fails(auto, measured)):
        need = max(need, math.ceil(had * 1.25), had + 1)
    return need


def _is_known(auto: Autoscale, measured: Measured, now: float) -> bool:
    """Return whether calls were counted long enough to know that there are few; a new leader has to count first."""
    if measured.since <= 0:
        return measured.calls > 0 or measured.in_flight > 0
    return now - measured.since >= auto.cool_down


def combined_metrics(deployment: Deployment, measured: Callable[[str], Measured]) -> Measured:
    """Return the metrics of both versions together, during a rollout."""
    new = measured(deployment.artifact)
    if not deployment.previous or deployment.previous == deployment.artifact:
        return new
    old = measured(deployment.previous)
    return msgspec.structs.replace(
        new,
        calls=new.calls + old.calls,
        errors=new.errors + old.errors,
        p95_ms=max(new.p95_ms, old.p95_ms),
        in_flight=new.in_flight + old.in_flight,
        recent_calls=new.recent_calls + old.recent_calls,
        recent_errors=new.recent_errors + old.recent_errors,
        cpu=new.cpu + old.cpu,
        since=max(new.since, old.since),
    )
