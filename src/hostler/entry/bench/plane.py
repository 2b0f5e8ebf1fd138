"""Benchmarks of the control plane: creates, placement, API, a hundred thousand machines, a thousand agents, CLI."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec

from hostler.entry.bench import plane_create, plane_get, plane_help, plane_many, plane_place, plane_wake
from hostler.entry.cli.store_option import path_url, redacted
from hostler.errors import Invalid
from hostler.keys.replica import FENCE, LEADER
from hostler.wiring import open_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from hostler.entry.bench.plane_row import Row
    from hostler.ports.store import Store

PARTS = ("create", "place", "get", "many", "wake", "help")
EMBEDDED, CLUSTER = 1_000, 300
"""Target creates per second, embedded and on etcd."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure, and how much of it."""

    folder: Path
    etcd: str | None = None
    """URL of a dedicated store: it must be empty, and is emptied."""
    seconds: float = 4.0
    place_nodes: int = 5_000
    place_machines: int = 6_000
    machines: int = 100_000
    nodes: int = 1_000
    pages: int = 1_000
    agents: int = 1_000
    changes: int = 20
    starts: int = 10
    parts: tuple[str, ...] = PARTS


async def run(plan: Plan, tell: Callable[[str], None]) -> list[Row]:
    """Run every part of the plan."""
    rows: list[Row] = []
    if plan.etcd is not None:
        async with _borrowed(plan.etcd):
            pass  # checked first, before any other part has run
    for part in plan.parts:
        rows += await _part(part, plan, tell)
    return rows


async def _part(part: str, plan: Plan, tell: Callable[[str], None]) -> list[Row]:
    rows: list[Row] = []
    tell(part)
    if part == "create":
        async with _embedded(plan, part) as store:
            rows += await plane_create.measure(store, "sqlite", EMBEDDED, folder=plan.folder, seconds=plan.seconds)
        if plan.etcd is not None:
            async with _borrowed(plan.etcd) as store:
                rows += await plane_create.measure(store, "etcd", CLUSTER, folder=plan.folder, seconds=plan.seconds)
    elif part == "place":
        async with _embedded(plan, part) as store:
            rows += await plane_place.measure(store, plan.place_nodes, plan.place_machines, tell)
    elif part == "get":
        rows += await plane_get.measure(plan.folder, plan.seconds, tell)
    elif part == "many":
        rows += await plane_many.measure(plan.folder, plan.machines, plan.nodes, plan.pages, tell)
    elif part == "wake":
        async with _embedded(plan, part) as store:
            rows += await plane_wake.measure(
                store, "sqlite", folder=plan.folder, agents=plan.agents, changes=plan.changes, tell=tell
            )
        if plan.etcd is not None:
            async with _borrowed(plan.etcd) as store:
                rows += await plane_wake.measure(
                    store, "etcd", folder=plan.folder, agents=plan.agents, changes=plan.changes, tell=tell
                )
    elif part == "help":
        tell("starting the command line")
        rows += plane_help.measure(plan.starts)
    return rows


@asynccontextmanager
async def _embedded(plan: Plan, part: str) -> AsyncIterator[Store]:
    async with open_store(path_url("sqlite", plan.folder / f"{part}.db")) as store:
        yield store


@asynccontextmanager
async def _borrowed(url: str) -> AsyncIterator[Store]:
    """Open an empty store, and empty it again afterwards. Invalid: it is in use."""
    async with open_store(url) as store:
        found = (await store.range("", limit=1, keys_only=True)).items
        if found:
            raise Invalid(f"store {redacted(url)}: it holds {found[0].key}; give an empty one")
        try:
            yield store
        finally:
            for prefix in ("/", LEADER.prefix(), FENCE.prefix()):
                await store.delete_prefix(prefix)
