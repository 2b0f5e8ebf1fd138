"""Liveness, readiness, and metrics for Prometheus."""

from __future__ import annotations

import asyncio
import bisect
import math
from collections import Counter
from typing import TYPE_CHECKING

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from hostler.engine.phase import phase
from hostler.entry.server.openapi import PAGE, SCRIPT, STYLE
from hostler.entry.server.problem import UNAVAILABLE, Refusal
from hostler.entry.server.route import Answer, Asked, Route
from hostler.entry.server.static_files import GUARDS, policy, policy_hash
from hostler.keys.families import ALIVE, FENCING
from hostler.model.resources.operation import Access
from hostler.model.rollout import AlertState
from hostler.ports.store import FULL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

    from hostler.engine.view import View
    from hostler.entry.server.feed import Feed
    from hostler.entry.server.route import Handler
    from hostler.entry.server.services import Services
    from hostler.ports.store import Status


HTML = b"text/html; charset=utf-8"
_ALLOWED = policy(script=policy_hash(SCRIPT), style=policy_hash(STYLE))


async def alive(asked: Asked) -> Answer:  # noqa: ARG001 - every handler takes it
    """Answer if the process runs."""
    return Answer(text=b"ok\n", media=b"text/plain; charset=utf-8")


async def ready(asked: Asked) -> Answer:
    """Answer if the store accepts writes, the cache follows it, and the process was not asked to end."""
    if asked.services.stopping():
        raise Refusal(UNAVAILABLE, "replica: shutting down; ask another one")
    view = asked.services.view
    if not asked.services.was_read():
        raise Refusal(UNAVAILABLE, "view: the store has not been read yet; wait")
    if problem := view.problem():
        raise Refusal(UNAVAILABLE, problem)
    return Answer(text=b"ready\n", media=b"text/plain; charset=utf-8")


async def docs(asked: Asked) -> Answer:  # noqa: ARG001
    return Answer(text=PAGE, media=HTML, headers=(_ALLOWED, *GUARDS))


def routes(openapi: Handler, metrics: Handler, *, open_metrics: bool | None = False) -> tuple[Route, ...]:
    """Return the routes; `openapi` and `metrics` are handlers of the app."""
    text = "text/plain"
    figures = Access.NEARBY if open_metrics is None else Access.ANYONE if open_metrics else Access.LOGGED_IN
    return (
        Route(
            method="GET",
            path="/healthz",
            name="health.alive",
            summary="Liveness: the process runs",
            handler=alive,
            access=Access.ANYONE,
            media=text,
        ),
        Route(
            method="GET",
            path="/readyz",
            name="health.ready",
            summary="Readiness: the store accepts writes, and was read",
            handler=ready,
            access=Access.ANYONE,
            media=text,
        ),
        Route(
            method="GET",
            path="/metrics",
            name="health.metrics",
            summary="Prometheus metrics",
            handler=metrics,
            access=figures,
            media=text,
        ),
        Route(
            method="GET",
            path="/openapi.json",
            name="health.openapi",
            summary="This API as an OpenAPI 3.1 document",
            handler=openapi,
            access=Access.ANYONE,
        ),
        Route(
            method="GET",
            path="/docs",
            name="health.docs",
            summary="This API as an HTML page",
            handler=docs,
            access=Access.ANYONE,
            media="text/html",
        ),
    )


BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_LABELS = tuple(str(bound) for bound in (*BOUNDS, "+Inf"))
CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4.encode()
PHASES_EVERY = 5.0
"""Seconds for which a count of all machines and labs is reused."""
CHUNK = 2000
"""Machines that are counted before other tasks may run."""


class _Timing(msgspec.Struct):
    buckets: list[int]
    total: float = 0.0


class Metrics:
    """The metrics of one server, in a registry of its own."""

    def __init__(self, services: Services, feed: Feed) -> None:
        self._services, self._feed = services, feed
        self._requests: dict[tuple[str, str, int], int] = {}
        self._timings: dict[tuple[str, str], _Timing] = {}
        self._phases: Counter[str] = Counter()
        self._labs: Counter[str] = Counter()
        self._phases_at = -math.inf
        self._store: Status | None = None
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def count(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        key = (route, method, status)
        self._requests[key] = self._requests.get(key, 0) + 1
        timing = self._timings.get((route, method))
        if timing is None:
            timing = self._timings[route, method] = _Timing([0] * len(_LABELS))
        timing.buckets[bisect.bisect_left(BOUNDS, seconds)] += 1
        timing.total += seconds

    async def text(self) -> bytes:
        """Return all metrics in Prometheus format."""
        await self._count_phases()
        self._store = await self._services.overview.store_status()
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Implement the collector interface of the registry."""
        yield self._count_metric()
        yield self._time_metric()
        yield from self._state()

    # Internal

    async def _count_phases(self) -> None:
        now = self._services.clock.now()
        if now - self._phases_at < PHASES_EVERY:
            return
        self._phases_at = now
        view = self._services.view
        found: Counter[str] = Counter()
        for number, entry in enumerate(list(view.vms.entries.values())):
            handle = view.handles.get(**entry.parts)
            seen = None if handle is None else handle.value
            lives = seen is not None and bool(seen.node) and ALIVE.fill(node=seen.node) in view.alive.entries
            found[phase(entry.value, seen, lives).value] += 1
            if number % CHUNK == CHUNK - 1:
                await asyncio.sleep(0)
        self._phases = found
        labs: Counter[str] = Counter()
        for number, lab in enumerate([entry.value.lab for entry in view.labs.entries.values()]):
            if lab is not None:
                labs[lab.phase.value] += 1
            if number % CHUNK == CHUNK - 1:
                await asyncio.sleep(0)
        self._labs = labs

    def _count_metric(self) -> Metric:
        family = CounterMetricFamily(
            "hostler_http_requests", "Answered requests.", labels=("route", "method", "status")
        )
        for (route, method, status), count in self._requests.items():
            family.add_metric((route, method, str(status)), count)
        return family

    def _time_metric(self) -> Metric:
        family = HistogramMetricFamily(
            "hostler_http_request_seconds", "Time from the request to its answer.", labels=("route", "method")
        )
        for key, timing in self._timings.items():
            running, buckets = 0, []
            for label, count in zip(_LABELS, timing.buckets):
                running += count
                buckets.append((label, running))
            family.add_metric(key, buckets, timing.total)
        return family

    def _state(self) -> Iterator[Metric]:
        view = self._services.view
        machines = GaugeMetricFamily("hostler_vms", "Virtual machines by phase.", labels=("phase",))
        for name, count in sorted(self._phases.items()):
            machines.add_metric((name,), count)
        yield machines
        labs = GaugeMetricFamily("hostler_labs", "Labs by phase.", labels=("phase",))
        for name, count in sorted(self._labs.items()):
            labs.add_metric((name,), count)
        yield labs
        nodes = GaugeMetricFamily("hostler_nodes", "Nodes.", labels=("lifecycle", "alive"))
        kinds = Counter(
            (entry.value.lifecycle.value, str(ALIVE.fill(**entry.parts) in view.alive.entries).lower())
            for entry in view.members.entries.values()
        )
        for labels, count in sorted(kinds.items()):
            nodes.add_metric(labels, count)
        yield nodes
        stale = view.stale_for()
        for name, about, value in (
            ("hostler_leader", "1 while this process leads.", float(self._services.leads())),
            ("hostler_store_healthy", "1 while the store accepts writes.", float(view.writable())),
            (
                "hostler_store_stale_seconds",
                "Seconds since the store last answered.",
                stale if math.isfinite(stale) else -1.0,
            ),
            (
                "hostler_brake_held",
                "1 while fencing is suspended because many nodes are unreachable.",
                float(_held(view)),
            ),
            ("hostler_event_streams", "Open event streams.", float(self._feed.streams)),
        ):
            yield GaugeMetricFamily(name, about, value=value)
        alerts = GaugeMetricFamily(
            "hostler_alert_firing", "1 while an alert of a slice fires.", labels=("blueprint", "slice", "alert")
        )
        for _, entry in sorted(view.alerts.entries.items()):
            where = (entry.value.blueprint, entry.parts["base"], entry.parts["alert"])
            alerts.add_metric(where, float(entry.value.state is AlertState.FIRING))
        yield alerts
        yield from self._store_figures()
        counted = CounterMetricFamily("hostler_work", "Work done by this process.", labels=("what",))
        for what, number in sorted(self._services.counters().items()):
            counted.add_metric((what,), number)
        yield counted

    def _store_figures(self) -> Iterator[Metric]:
        status = self._store
        if status is None:
            return
        yield GaugeMetricFamily("hostler_store_size_bytes", "The store's size.", value=float(status.size_bytes))
        if status.quota_bytes is not None:
            about = "The size at which the store refuses writes."
            yield GaugeMetricFamily("hostler_store_quota_bytes", about, value=float(status.quota_bytes))
        about = "1 while the store raises the alarm: NOSPACE is full, CORRUPT is damaged."
        alarms = GaugeMetricFamily("hostler_store_alarm", about, labels=("alarm",))
        for name in sorted({FULL, *status.alarms}):
            alarms.add_metric((name,), float(name in status.alarms))
        yield alarms


def _held(view: View) -> bool:
    brake = view.brakes.get(scope=FENCING)
    return brake is not None and not brake.value.released
