"""Benchmarks of labs: acknowledged requests per second, a thousand running labs, full passes, warm claims on QEMU."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from bench import labs_claim, labs_live, labs_queue, labs_sweep
from bench.options import images_option, parts_option, report_options
from bench.report import report
from hostler.entry.cli.options import complete, path_url, redacted
from hostler.entry.cli.progress import Ticker
from hostler.errors import Invalid, NotFound, Unavailable
from hostler.kit.plural import counted
from hostler.ports.url import extra
from hostler.wiring import open_store

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.report import Row

PARTS = ("queue", "live", "sweep", "claim")


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure, and how much of it."""

    folder: Path
    redis: tuple[str, ...]
    """Each must be empty, and is emptied. The queues are measured on all of them, the rest on the first."""
    peers: Path | None = None
    """A folder with an environment for each other queue."""
    images: Path | None = None
    """Folder of the tiny image; None: it is built."""
    requests: int = 10_000
    rounds: int = 3
    live: int = 1_000
    quiet: float = 10.0
    changes: int = 10
    labs: int = 10_000
    claims: int = 20
    parts: tuple[str, ...] = PARTS


async def run(plan: Plan, tell: Callable[[str], None]) -> tuple[list[Row], dict[str, str]]:
    """Run every part of the plan. Return the rows, and notes on what was not measured."""
    with extra("redis"):
        from redis.asyncio import Redis

    if plan.peers is not None:
        missing = [kind for kind in labs_queue.PEER_COUNTS if not (plan.peers / kind / "bin" / "python").exists()]
        if missing:
            raise NotFound(
                f"{plan.peers}: has no environment for {', '.join(missing)}; scripts/bench-labs creates them"
            )
    rows: list[Row] = []
    said: dict[str, str] = {}
    urls = plan.redis if set(plan.parts) - {"claim"} else ()
    for number, url in enumerate(urls):
        async with Redis.from_url(url) as redis:
            await _check_empty(redis, url)
            try:
                rows += await _on(redis, url, plan, tell, first=number == 0)
            finally:
                await redis.flushdb()
    if "claim" in plan.parts:
        refusal = labs_claim.refusal()
        if refusal:
            said["warm claims on QEMU"] = refusal
        else:
            rows += await labs_claim.measure(plan.folder, plan.images, plan.claims, tell)
    return rows, said


async def _on(redis: Any, url: str, plan: Plan, tell: Callable[[str], None], *, first: bool) -> list[Row]:
    rows: list[Row] = []
    if "queue" in plan.parts:
        queue = labs_queue.Plan(
            url=url, folder=plan.folder, peers=plan.peers, requests=plan.requests, rounds=plan.rounds
        )  # fmt: skip
        rows += await labs_queue.measure(redis, queue, await _persistence(redis), tell)
    if "live" in plan.parts and first:
        rows += await labs_live.measure(
            redis, url, plan.folder, labs=plan.live, quiet=plan.quiet, changes=plan.changes, tell=tell
        )
    if "sweep" in plan.parts and first:
        async with open_store(path_url("sqlite", plan.folder / "sweep.db")) as store:
            rows += await labs_sweep.measure(store, redis, url, plan.labs, tell)
    return rows


async def _persistence(redis: Any) -> str:
    """Return how that Redis persists data."""
    found = {**await redis.config_get("appendonly"), **await redis.config_get("appendfsync")}
    if found["appendonly"] != "yes":
        return "Redis in memory"
    return f"Redis with fsync {found['appendfsync']}"


async def _check_empty(redis: Any, url: str) -> None:
    from redis.exceptions import RedisError

    try:
        size = await redis.dbsize()
    except (RedisError, OSError) as error:
        raise Unavailable(
            f"redis {redacted(url)}: {error}; start one that is empty (scripts/bench-labs does)"
        ) from None
    if size:
        raise Invalid(
            f"redis {redacted(url)}: it holds {counted(size, 'key')}; give an empty one, because the benchmark empties"
            " it"
        )


@click.command("labs")
@click.option("--redis", "redis", multiple=True, metavar="URL", help="An empty Redis, which is flushed; repeatable.")
@click.option(
    "--peers",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="A folder with an environment for each peer queue (scripts/bench-labs creates it). Default: no peers.",
)
@parts_option(PARTS)
@click.option("--requests", type=click.IntRange(min=100), default=10_000, show_default=True, help="Requests per run.")
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True, help="Rounds over all queues.")
@click.option("--live", type=click.IntRange(min=1), default=1_000, show_default=True, help="Idle labs.")
@click.option("--quiet", type=click.FloatRange(min=0.1), default=10.0, show_default=True, help="Idle seconds.")
@click.option("--labs", type=click.IntRange(min=10), default=10_000, show_default=True, help="Labs in the sweep.")
@click.option("--claims", type=click.IntRange(min=1), default=20, show_default=True, help="Warm machines to claim.")
@images_option
@report_options
def command(  # noqa: PLR0917
    redis: tuple[str, ...],
    peers: Path | None,
    parts: tuple[str, ...],
    requests: int,
    rounds: int,
    live: int,
    quiet: float,
    labs: int,
    claims: int,
    images: Path | None,
    json_file: Path | None,
    markdown_file: Path | None,
) -> None:
    """Measure labs: requests per second, writes of idle labs, sweeps, and claims of warm machines on QEMU.

    Each request is in the store, on disk, before it is acknowledged. The peer queues process empty tasks on the same
    Redis, in alternation with Hostler.
    """

    if not redis and set(parts) - {"claim"}:
        raise Invalid("--redis: missing; name an empty Redis, which is flushed, or run scripts/bench-labs")
    with tempfile.TemporaryDirectory(prefix="hostler-bench-") as folder, Ticker() as ticker:
        plan = Plan(
            folder=Path(folder),
            redis=redis,
            peers=None if peers is None else peers.absolute(),
            images=images,
            requests=requests,
            rounds=rounds,
            live=live,
            quiet=quiet,
            changes=max(1, min(10, live // 10)),
            labs=labs,
            claims=claims,
            parts=parts,
        )
        rows, said = complete(run(plan, ticker.tell))
    report("labs", rows, json_file, markdown_file, **said)
