"""Placements per second in one process on one core: the placement function alone, without a store.

Each placement is `place` and `use`. The cluster starts empty and is filled to three quarters at most. After that old
machines are removed as new ones are placed, so that every round works on the same load.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections import deque
from time import perf_counter, process_time
from typing import TYPE_CHECKING

import click
import msgspec

from bench.options import report_options
from hostler.engine.placement import Cluster, NodeState, PlacementRequest, place
from hostler.entry.cli.progress import Ticker
from hostler.model.inventory import Capacity
from hostler.model.vm import Affinity, Level, VmSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

ROUND = 0.25
RACK = 40
"""Nodes per rack."""
PROJECTS = 97
CPUS = 64
SHAPES = tuple(VmSpec(cpus=cpus, memory_mib=2048 * cpus, disk_gib=10 * cpus) for cpus in (1, 2, 4, 8))
HEADS = ("request", "nodes", "per second", "p50", "p99", "CPU", "placed")
REQUESTS = (
    "plain",
    "a label that one node in ten has",
    "apart by node from its kind",
    "no room anywhere, one shape",
    "no room anywhere, each another shape",
)


class Row(msgspec.Struct, frozen=True):
    """One kind of request in a cluster of a given size. Times in microseconds; rates are medians over the rounds."""

    request: str
    nodes: int
    per_second: float
    p50_us: float
    p99_us: float
    cpu_us: float
    placed: int
    refused: int


def run(sizes: Sequence[int], seconds: float, tell: Callable[[str], None]) -> list[Row]:
    """Measure every kind of request in a cluster of each size."""
    rows = []
    for nodes in sizes:
        for request in REQUESTS:
            tell(f"{request}, {nodes:,} nodes")
            rows.append(_row(request, nodes, seconds))
    return rows


def cells(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """Return the rows as text."""
    return [
        (
            row.request,
            f"{row.nodes:,}",
            f"{row.per_second:,.0f}",
            f"{row.p50_us:.0f} µs",
            f"{row.p99_us:.0f} µs",
            f"{row.cpu_us:.0f} µs",
            f"{row.placed / (row.placed + row.refused):.0%}",
        )
        for row in rows
    ]


def markdown(rows: Sequence[Row]) -> str:
    """Return a Markdown table."""
    lines = ["| " + " | ".join(HEADS) + " |", "|---|" + "--:|" * (len(HEADS) - 1)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in cells(rows))]) + "\n"


def _nodes(count: int) -> Iterator[NodeState]:
    for number in range(count):
        rack = f"r{number // RACK}"
        yield NodeState(
            node=f"{rack}-{number % RACK}",
            capacity=Capacity(cpus=CPUS, memory_mib=4096 * CPUS, disk_gib=100 * CPUS),
            labels={"zone": str(number % 10)},
            rack=rack,
            pdus=(f"{rack}/pdu0", f"{rack}/pdu1"),
            tors=(f"{rack}/tor0",),
        )


def _placement_request(request: str, number: int) -> PlacementRequest:
    project = number % PROJECTS
    kind = {"app": str(project)}
    apart = Affinity(together=False, level=Level.NODE, labels=kind)
    return PlacementRequest(
        vm=f"vm-{number:08}",
        project=f"bench/p{project}",
        spec=_shape(request, number),
        labels=kind,
        node_labels={"zone": str(number % 10)} if request == REQUESTS[1] else {},
        affinity=(apart,) if request == REQUESTS[2] else (),
    )


def _shape(request: str, number: int) -> VmSpec:
    if request == REQUESTS[3]:
        return VmSpec(cpus=4 * CPUS, memory_mib=1024)
    if request == REQUESTS[4]:  # refusals are cached, so a repeated shape would not be evaluated
        return VmSpec(cpus=4 * CPUS, memory_mib=1024 + number)
    return SHAPES[number % len(SHAPES)]


class _Load:
    """A cluster to which machines are added and from which they are removed."""

    def __init__(self, request: str, nodes: int) -> None:
        self._request, self._number = request, 0
        self._cluster = Cluster(_nodes(nodes))
        # With anti-affinity by node, each node can have one machine of a kind, so fewer machines exist at a time.
        average = sum(spec.cpus for spec in SHAPES) / len(SHAPES)
        self._most = int(nodes * CPUS * 0.75 / average) if request != REQUESTS[2] else nodes * PROJECTS // 20
        self._standing: deque[str] = deque()
        self.placed = self.refused = 0

    def round(self, seconds: float) -> tuple[list[float], float, float]:
        """Return the time of each placement, and the wall time and processor time of all."""
        times: list[float] = []
        cpu = 0.0
        while sum(times) < seconds:
            batch = [_placement_request(self._request, self._number + ahead) for ahead in range(50)]
            self._number += len(batch)
            while len(self._standing) + len(batch) > self._most and self._standing:
                self._cluster.free(self._standing.popleft())
            worked = process_time()
            for wanted in batch:
                began = perf_counter()
                decision = place(wanted, self._cluster)
                if decision.node is not None:
                    self._cluster.use(wanted.vm, decision.node, wanted)
                times.append(perf_counter() - began)
                if decision.node is None:
                    self.refused += 1
                else:
                    self.placed += 1
                    self._standing.append(wanted.vm)
            cpu += process_time() - worked
        return times, sum(times), cpu


def _row(request: str, nodes: int, seconds: float) -> Row:
    load = _Load(request, nodes)
    rounds = max(3, round(seconds / ROUND))
    load.round(min(ROUND, seconds))  # not counted
    done = [load.round(seconds / rounds) for _ in range(rounds)]
    ordered = sorted(time for times, _, _ in done for time in times)
    return Row(
        request=request,
        nodes=nodes,
        per_second=statistics.median(len(times) / wall for times, wall, _ in done),
        p50_us=ordered[len(ordered) // 2] * 1e6,
        p99_us=ordered[len(ordered) * 99 // 100] * 1e6,
        cpu_us=statistics.median(cpu / len(times) for times, _, cpu in done) * 1e6,
        placed=load.placed,
        refused=load.refused,
    )


def _sizes(_: click.Context, __: click.Parameter, text: str) -> tuple[int, ...]:
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or min(found) < 10 or max(found) > 100_000:
        raise click.BadParameter(f"{text!r}: give whole numbers from 10 to 100000, like 100,1000,5000")
    return found


@click.command("placement")
@click.option("--nodes", callback=_sizes, default="100,1000,5000", show_default=True, help="Cluster sizes.")
@click.option("--seconds", type=click.FloatRange(min=0.1), default=2.0, show_default=True, help="Time per measurement.")
@report_options
def command(nodes: tuple[int, ...], seconds: float, json_file: Path | None, markdown_file: Path | None) -> None:
    """Measure placements per second, on one core and without a store."""
    with Ticker() as ticker:
        rows = run(nodes, seconds, ticker.tell)
    data = json.dumps({"rows": msgspec.to_builtins(rows)}, indent=2)
    if json_file is not None and str(json_file) == "-":
        click.echo(data)
    else:
        _show(rows)
        if json_file is not None:
            json_file.write_text(data + "\n", encoding="utf-8")
    if markdown_file is not None:
        markdown_file.write_text(markdown(rows), encoding="utf-8")


def _show(rows: list[Row]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="placement", title_justify="left")
    for number, head in enumerate(HEADS):
        table.add_column(head, justify="right" if number else "left", no_wrap=True)
    for row in cells(rows):
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 160).print(table)
