"""What was measured of the calls of an artifact. It stays in the leader's memory, never in the store."""

from __future__ import annotations

import msgspec


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """Of one artifact, over all routers.

    A gate looks at one stage of a canary, so `calls` and `errors` are counted anew from the `changed_at` of the slice's
    deployment on, or from when this leader began to count if that was later.
    """

    calls: int = 0
    """That were answered, well or badly, since `since`."""
    errors: int = 0
    """Of those: that failed. Calls that were wrong themselves (no such method, bad arguments) are not among them."""
    p95_ms: float = 0.0
    """95 of 100 calls of the last minute, of those since `since`, took no longer; 0: there were none."""
    in_flight: float = 0.0
    """Calls under way, as a mean over the last seconds."""
    recent_calls: int = 0
    """Of the last minute, of those since `since`."""
    recent_errors: int = 0
    cpu: float = 0.0
    """Processors in use by all its instances, as a mean over the last seconds."""
    since: float = 0.0
    """The instant from which `calls` and `errors` are counted; 0: not told, or nothing is known."""


NOTHING = Measured()
"""Nothing is known."""
