"""Processor time that slices use, by artifact. The router reports it with the calls; it is never stored."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from hostler.kit.clock import Clock

SPAN = 4.0
"""Minimum seconds over which a rate is averaged: several processes may query it, each at its own interval."""


class CpuRates:
    """Rates from CPU counters that only grow while an instance lives."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sources: list[Callable[[], Mapping[str, float]]] = []
        self._samples: list[tuple[float, dict[str, float]]] = []

    @contextmanager
    def counting(self, source: Callable[[], Mapping[str, float]]) -> Iterator[None]:
        """Include the counters of a driver (`CpuTimes.cpu_seconds`) while this context is open."""
        self._sources.append(source)
        try:
            yield
        finally:
            self._sources.remove(source)

    def rates(self) -> dict[str, float]:
        """Return the CPUs in use per artifact, over all its instances; an instance counts from its second sample."""
        if not self._sources:
            return {}
        now = self._clock.now()
        latest = {name: seconds for source in self._sources for name, seconds in source().items()}
        while len(self._samples) > 1 and now - self._samples[1][0] >= SPAN:
            del self._samples[0]
        found: dict[str, float] = {}
        if self._samples:
            at, earlier = self._samples[0]
            for name, seconds in latest.items():
                used = seconds - earlier.get(name, seconds)
                if now > at and used >= 0:  # a lower counter means that the process was restarted
                    artifact = name.rpartition("#")[0]
                    found[artifact] = found.get(artifact, 0.0) + used / (now - at)
        if not self._samples or now - self._samples[-1][0] >= SPAN / 4:
            self._samples.append((now, latest))
        return {artifact: round(rate, 3) for artifact, rate in sorted(found.items()) if rate > 0}
