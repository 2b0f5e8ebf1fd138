"""Metrics of the calls to an artifact. They are kept in the leader's memory, never in the store."""

from __future__ import annotations

import msgspec


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """Metrics of one artifact, over all routers.

    A gate judges one stage of a canary. Therefore `calls` and `errors` are counted from the `changed_at` of the slice's
    deployment on, or from the time when this leader started to count, if that was later.
    """

    calls: int = 0
    """Calls since `since` that were answered, successfully or not."""
    errors: int = 0
    """Calls of these that failed. Invalid calls (no such method, bad arguments) are not included."""
    p95_ms: float = 0.0
    """p95 latency of the calls in the last minute, but not before `since`; 0: there were none."""
    in_flight: float = 0.0
    """Calls in flight, averaged over the last seconds."""
    recent_calls: int = 0
    """Calls in the last minute, but not before `since`."""
    recent_errors: int = 0
    cpu: float = 0.0
    """CPUs in use by all its instances, averaged over the last seconds."""
    since: float = 0.0
    """The instant from which `calls` and `errors` are counted; 0: not reported, or there are no metrics."""


NOTHING = Measured()
"""No metrics are available."""
