"""Benchmarks of the control plane: creates, placement, API, a hundred thousand machines, a thousand agents, CLI."""

from __future__ import annotations

import tempfile
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from bench import plane_create, plane_get, plane_help, plane_many, plane_place, plane_wake
from bench.options import parts_option, report_options
from bench.report import report
from hostler.entry.cli.options import complete, path_url, redacted
from hostler.entry.cli.progress import Ticker
from hostler.errors import Invalid
from hostler.keys.families import FENCE, LEADER
from hostler.wiring import open_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from bench.report import Row
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
        async with _borrow_store(plan.etcd):
            pass  # checked first, before any other part has run
    for part in plan.parts:
        rows += await _part(part, plan, tell)
    return rows


async def _part(part: str, plan: Plan, tell: Callable[[str], None]) -> list[Row]:
    rows: list[Row] = []
    tell(part)
    if part == "create":
        async with _embedded_store(plan, part) as store:
            rows += await plane_create.measure(store, "sqlite", EMBEDDED, folder=plan.folder, seconds=plan.seconds)
        if plan.etcd is not None:
            async with _borrow_store(plan.etcd) as store:
                rows += await plane_create.measure(store, "etcd", CLUSTER, folder=plan.folder, seconds=plan.seconds)
    elif part == "place":
        async with _embedded_store(plan, part) as store:
            rows += await plane_place.measure(store, plan.place_nodes, plan.place_machines, tell)
    elif part == "get":
        rows += await plane_get.measure(plan.folder, plan.seconds, tell)
    elif part == "many":
        rows += await plane_many.measure(plan.folder, plan.machines, plan.nodes, plan.pages, tell)
    elif part == "wake":
        async with _embedded_store(plan, part) as store:
            rows += await plane_wake.measure(
                store, "sqlite", folder=plan.folder, agents=plan.agents, changes=plan.changes, tell=tell
            )
        if plan.etcd is not None:
            async with _borrow_store(plan.etcd) as store:
                rows += await plane_wake.measure(
                    store, "etcd", folder=plan.folder, agents=plan.agents, changes=plan.changes, tell=tell
                )
    elif part == "help":
        tell("starting the command line")
        rows += plane_help.measure(plan.starts)
    return rows


@asynccontextmanager
async def _embedded_store(plan: Plan, part: str) -> AsyncIterator[Store]:
    async with open_store(path_url("sqlite", plan.folder / f"{part}.db")) as store:
        yield store


@asynccontextmanager
async def _borrow_store(url: str) -> AsyncIterator[Store]:
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


@click.command("plane")
@click.option("--etcd", metavar="URL", help="Also measure on this store, which must be empty. It is emptied again.")
@parts_option(PARTS)
@click.option("--seconds", type=click.FloatRange(min=0.1), default=4.0, show_default=True, help="Time per rate.")
@click.option("--machines", type=click.IntRange(min=1), default=100_000, show_default=True, help="In the full store.")
@click.option("--nodes", type=click.IntRange(min=1), default=1_000, show_default=True, help="In the full store.")
@click.option("--agents", type=click.IntRange(min=1), default=1_000, show_default=True, help="Agents on one store.")
@click.option("--place-nodes", type=click.IntRange(min=1), default=5_000, show_default=True, help="To place on.")
@report_options
def command(  # noqa: PLR0917
    etcd: str | None,
    parts: tuple[str, ...],
    seconds: float,
    machines: int,
    nodes: int,
    agents: int,
    place_nodes: int,
    json_file: Path | None,
    markdown_file: Path | None,
) -> None:
    """Measure the control plane on new embedded stores: creates, placement, API, many machines, many agents.

    Rates are compared with the bare store or the bare web framework, in alternating rounds.
    """
    with tempfile.TemporaryDirectory(prefix="hostler-bench-") as folder, Ticker() as ticker:
        plan = Plan(
            folder=Path(folder),
            etcd=etcd,
            parts=parts,
            seconds=seconds,
            machines=machines,
            nodes=nodes,
            agents=agents,
            place_nodes=place_nodes,
            # A small run uses small numbers everywhere.
            place_machines=max(30, min(6_000, place_nodes * 2)),
            pages=max(10, min(1_000, machines // 100)),
            changes=max(3, min(20, agents // 10)),
            starts=10 if seconds >= 1 else 3,
        )
        rows = complete(run(plan, ticker.tell))
    report("control plane", rows, json_file, markdown_file)
