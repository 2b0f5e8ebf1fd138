"""Calls of slices, as routers would have measured them.

No calls are made in a world, so a scenario sets their rates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from hostler.engine.deployments.call_metrics import NOTHING, Measured
from hostler.model.deployment import base_of

if TYPE_CHECKING:
    from hostler.engine.view import View
    from hostler.kit.clock import Clock


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """How often something is called, and how it answers."""

    per_second: float = 0.0
    errors: float = 0.0
    """The fraction of calls that fails."""
    p95_ms: float = 0.0
    in_flight: float = 0.0


class Traffic:
    """Call rates by artifact, or by `group:name` for every version without a rate of its own."""

    def __init__(self) -> None:
        self._rates: dict[str, Rate] = {}

    def set(self, artifact: str, rate: Rate) -> None:
        """Set the rate from now on."""
        self._rates[artifact] = rate

    def rate(self, artifact: str) -> Rate | None:
        """Return the present rate; None: not set."""
        found = self._rates.get(artifact)
        return found if found is not None else self._rates.get(base_of(artifact))


class Counting:
    """The counts of one leader, since it was first asked."""

    def __init__(self, traffic: Traffic, view: View, clock: Clock) -> None:
        self._traffic, self._view, self._clock = traffic, view, clock
        self._began: float | None = None

    def measured(self, artifact: str) -> Measured:
        """Return the counts of an artifact since the last change of its deployment."""
        now = self._clock.wall()
        if self._began is None:
            self._began = now
        rate = self._traffic.rate(artifact)
        if rate is None:
            return NOTHING
        entry = self._view.deployments.get(base=base_of(artifact))
        since = self._began if entry is None else max(self._began, entry.value.changed_at)
        calls = int(rate.per_second * max(0.0, now - since))
        return Measured(
            calls=calls,
            errors=int(calls * rate.errors),
            p95_ms=rate.p95_ms if calls else 0.0,
            in_flight=rate.in_flight,
            since=since,
        )
