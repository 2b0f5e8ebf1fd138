"""Call metrics for clients: available on every replica, and collected only while a client reads them.

The leader collects metrics for its own decisions, in memory. Another replica asks the routers instead of the leader:
they give the same figures and remember the last minutes.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hostler.engine.invocation.call_metrics import KEPT, percentile
from hostler.engine.invocation.metrics_collector import Collector
from hostler.model.blueprint_api import BlueprintCalls, SliceCalls, VersionCalls

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable

    from hostler.engine.view import View
    from hostler.kit.clock import Clock
    from hostler.ports.calls import Questions

UNSEEN = 20.0
"""Seconds after the last read for which routers are still polled."""
FIRST, LOOK = 1.0, 0.02
"""Seconds that the first read waits for routers at most; seconds between checks whether they have answered."""


class CallWatch:
    """Call metrics of this process. There is one per process."""

    def __init__(self, view: View, questions: Questions, *, clock: Clock, rng: random.Random) -> None:
        self._view, self._questions, self._clock, self._rng = view, questions, clock, rng
        self._collector: Collector | None = None
        self._watching: asyncio.Task[None] | None = None
        self._asked_at = 0.0

    async def calls(self, name: str, bases: Iterable[str], *, after: float = 0.0) -> BlueprintCalls:
        """Return the metrics of these slices since the instant `after`, as far as they are remembered."""
        self._asked_at = self._clock.now()
        collector = self._collector
        if collector is None:
            collector = self._collector = Collector(self._view, self._questions, clock=self._clock, rng=self._rng)
            self._watching = asyncio.create_task(self._watch(collector), name="calls: watched")
            await self._first_answers(collector)
        return BlueprintCalls(
            name=name,
            now=self._clock.wall(),
            kept=KEPT,
            slices=tuple(SliceCalls(base=base, versions=_versions(collector, base, after)) for base in bases),
        )

    async def aclose(self) -> None:
        """Stop polling routers."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait((self._watching,))

    # Internal

    async def _watch(self, collector: Collector) -> None:
        asking = asyncio.create_task(collector.run(), name="calls: asking")
        try:
            while self._clock.now() - self._asked_at < UNSEEN and not asking.done():
                await self._clock.sleep(1.0)
        finally:
            self._collector = None
            asking.cancel()
            await asyncio.wait((asking,))

    async def _first_answers(self, collector: Collector) -> None:
        routers, end = len(self._view.routers.entries), self._clock.now() + FIRST
        while collector.asked < routers and self._clock.now() < end:
            await self._clock.sleep(LOOK)


def _versions(collector: Collector, base: str, after: float) -> tuple[VersionCalls, ...]:
    found = []
    for artifact, seconds in collector.seconds(base, after).items():
        measured = collector.measured(artifact)
        found.append(
            VersionCalls(
                artifact=artifact,
                calls=measured.calls,
                errors=measured.errors,
                p95_ms=round(measured.p95_ms, 2),
                in_flight=round(measured.in_flight, 2),
                since=measured.since,
                at=tuple(at for at, _ in seconds),
                called=tuple(count.calls for _, count in seconds),
                failed=tuple(count.errors for _, count in seconds),
                latency_ms=tuple(round(percentile(count.times, 0.95) * 1000, 2) for _, count in seconds),
            )
        )
    return tuple(found)
