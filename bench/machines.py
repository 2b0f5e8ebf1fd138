"""Benchmarks of real machines: from request to login, warm and cold, many at once, and their cost to the agent."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from bench import machines_bare, machines_many, machines_start, machines_warm
from bench.machines_plane import MEMORY_MIB, real_plane
from bench.options import images_option, parts_option, report_options
from bench.report import report
from hostler.entry.cli.options import complete
from hostler.entry.cli.progress import Ticker
from hostler.errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.report import Row

PARTS = ("one", "ten", "warm", "make", "many")
EACH_MIB, IDLE_EACH_MIB = MEMORY_MIB + 128, 96
"""Largest host memory of a process: one whose guest boots, and one whose guest is idle."""
MOST = 0.7
"""Fraction of the free memory to use; the rest is for other processes."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure, and how much of it."""

    folder: Path
    images: Path | None = None
    """Folder of the tiny image; None: it is built."""
    rounds: int = 5
    at_once: int = 10
    at_once_rounds: int = 2
    many: int = 50
    parts: tuple[str, ...] = PARTS


async def run(plan: Plan, tell: Callable[[str], None]) -> list[Row]:
    """Run every part of the plan."""
    rows: list[Row] = []
    free = free_memory_mib()
    at_once, many = fitting(plan.at_once, EACH_MIB, free), fitting(plan.many, IDLE_EACH_MIB, free)
    async with real_plane(plan.folder, plan.images, tell) as plane:
        tell("learning how a machine is run")
        recipe = await machines_bare.learn_recipe(plane, plan.folder / "recipe", memory_mib=MEMORY_MIB)
        settings = plane.settings.with_driver_options(accelerator=recipe.accelerator)
        for part in plan.parts:
            tell(part)
            if part == "one":
                pairs = await machines_start.measure(
                    plane, recipe, plan.folder, rounds=plan.rounds, count=1, tell=tell
                )  # fmt: skip
                rows += machines_start.one_rows(pairs)
            elif part == "ten":
                pairs = await machines_start.measure(
                    plane, recipe, plan.folder, rounds=plan.at_once_rounds, count=at_once, tell=tell
                )
                rows += machines_start.at_once_rows(pairs)
            elif part == "warm":
                rows += await machines_warm.measure(plane, settings, rounds=plan.rounds, tell=tell)
            elif part == "make":
                rows += await machines_many.make(settings, plan.folder / "make", times=4 * plan.rounds, tell=tell)
        if "many" in plan.parts:  # last: it ends the control plane, and its machines are then found by another process
            rows += await machines_many.memory(plane, plan.folder, count=many, tell=tell)
            await plane.process.end()
            (place,) = (plane.settings.data / "machines").iterdir()
            rows += await machines_many.inspect(settings, place, count=many)
    return rows


def fitting(count: int, each_mib: int, free_mib: float) -> int:
    """Return how many of `count` machines the memory allows. Invalid: not even two."""
    found = min(count, int(MOST * free_mib / each_mib))
    if found < min(count, 2):
        raise Invalid(
            f"bench: only {free_mib:.0f} MiB of memory are free, too little for {count} machines; free some memory"
        )
    return found


def free_memory_mib() -> float:
    """Return the memory available to new processes."""
    with open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) / 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**20


@click.command("machines")
@parts_option(PARTS, sort=True)  # fixed order: machines kept warm for one part must not speed up another
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True, help="Rounds with one machine.")
@click.option("--at-once", type=click.IntRange(min=1), default=10, show_default=True, help="Limited by free memory.")
@click.option("--at-once-rounds", type=click.IntRange(min=1), default=2, show_default=True, help="Rounds with several.")
@click.option("--many", type=click.IntRange(min=2), default=50, show_default=True, help="Machines on one agent.")
@images_option
@report_options
def command(  # noqa: PLR0917
    parts: tuple[str, ...],
    rounds: int,
    at_once: int,
    at_once_rounds: int,
    many: int,
    images: Path | None,
    json_file: Path | None,
    markdown_file: Path | None,
) -> None:
    """Measure QEMU machines: time from request to login, several at once, warm and cold starts, and overhead.

    Each start is compared with the same QEMU command line without a control plane, in alternating rounds.
    """
    with tempfile.TemporaryDirectory(prefix="hostler-bench-") as folder, Ticker() as ticker:
        plan = Plan(
            folder=Path(folder),
            images=images,
            rounds=rounds,
            at_once=at_once,
            at_once_rounds=at_once_rounds,
            many=many,
            parts=parts,
        )
        before = os.getloadavg()[0]
        rows = complete(run(plan, ticker.tell))
    load = f"{before:.1f} before, {os.getloadavg()[0]:.1f} after"
    report("machines", rows, json_file, markdown_file, load=load)
