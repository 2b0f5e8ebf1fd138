"""Calls of a slice over HTTP, compared with an echo of the bare framework and with direct calls of the worker.

Server, worker and framework are separate processes. The sides alternate, so that load on the host affects both. The
worker does not share a processor with the server: with only two processors, it shares that of the client.
"""

from __future__ import annotations

import asyncio
import hashlib
import socket
import statistics
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from bench.invoke_worker import ARTIFACT, BASE, METHOD
from bench.options import report_options
from bench.plane_http import MeasuredServer, lines
from bench.plane_process import run_process
from bench.report import Row, report
from hostler.entry.cli.progress import Ticker
from hostler.entry.store_benchmark import ROUND
from hostler.ports.calls import Call
from hostler.wiring.slices import open_lines

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


CONNECTIONS = 16
WANTED_RATE = 0.5
WANTED_MS = 2.0
DIRECT = "the bench's own token"
ARGUMENTS = b'{"text":"a call of a slice, as short as most of them are"}'


def _post(url: str, token: str) -> bytes:
    head = [
        f"POST /v1/invoke/{BASE}/{METHOD} HTTP/1.1",
        f"Host: {urlsplit(url).netloc}",
        "Accept: application/json",
        "Content-Type: application/json",
        f"Content-Length: {len(ARGUMENTS)}",
        f"Authorization: Bearer {token}",
    ]
    return "\r\n".join([*head, "", ""]).encode() + ARGUMENTS


async def measure(folder: Path, seconds: float, tell: Callable[[str], None]) -> list[Row]:
    """Measure the rate, then the latency of single calls."""
    async with AsyncExitStack() as stack:
        port = _free_port()
        address = f"127.0.0.1:{port}"
        server = await stack.enter_async_context(
            run_process(["bench.invoke_server", str(folder), address], {"HOSTLER_CONFIG": "/dev/null"})
        )
        at = await server.says("serving ")
        request = _post(at, await server.says("token "))
        tokens = (await server.says("admit "), hashlib.sha256(DIRECT.encode()).hexdigest())
        worker = await stack.enter_async_context(run_process(["bench.invoke_worker", str(port), *tokens]))
        await worker.says("taking calls")
        bare = await stack.enter_async_context(run_process(["bench.invoke_bare"]))
        bare_at = await bare.says("serving ")
        asking = await stack.enter_async_context(lines(at, CONNECTIONS))
        bare_asking = await stack.enter_async_context(lines(bare_at, CONNECTIONS))
        ours = MeasuredServer(server, asking, request)
        theirs = MeasuredServer(bare, bare_asking, _post(bare_at, "x" * 43))
        rounds = max(3, round(seconds / ROUND))
        for number in range(rounds + 1):
            tell(f"calls by {CONNECTIONS} connections, round {number} of {rounds}")
            for side in (ours, theirs):
                await side.round(seconds / rounds)
        direct = open_lines(DIRECT, caller="bench")
        stack.push_async_callback(direct.aclose)
        call = Call(0, METHOD, ARGUMENTS, 30.0, "", ARTIFACT, 1)
        through, straight = await _turns(
            lambda: asking[0].ask(request), lambda: direct.ask(address, call), seconds, tell
        )
    return [*_rates(ours, theirs), *_times(through, straight)]


async def _turns(
    one: Callable[[], Awaitable[object]],
    other: Callable[[], Awaitable[object]],
    seconds: float,
    tell: Callable[[str], None],
) -> tuple[list[float], list[float]]:
    """Make single calls, alternating between the server and the worker. Return the seconds of each."""
    found: tuple[list[float], list[float]] = ([], [])
    tell("one call after the other")
    until = perf_counter() + seconds
    while perf_counter() < until:
        for times, ask in zip(found, (one, other)):
            for _ in range(20):
                began = perf_counter()
                await ask()
                times.append(perf_counter() - began)
    return found


def _rates(ours: MeasuredServer, theirs: MeasuredServer) -> list[Row]:
    """Return the rates without the first round."""
    ratio = statistics.median(mine / bare for mine, bare in zip(ours.rates[1:], theirs.rates[1:]))
    cpu = statistics.median(bare / mine for mine, bare in zip(ours.cpu_us[1:], theirs.cpu_us[1:]))
    return [
        Row(
            what=f"calls over HTTP, {CONNECTIONS} connections",
            found=statistics.median(ours.rates[1:]),
            unit="per second",
            against="bare starlette, the same body echoed",
            other=statistics.median(theirs.rates[1:]),
            ratio=ratio,
            cpu_ratio=cpu,
        ),
        Row(what="… over the bare framework's rate", found=ratio, unit="", wanted=WANTED_RATE, cpu_ratio=cpu),
    ]


def _times(through: list[float], straight: list[float]) -> list[Row]:
    one, other = statistics.median(through) * 1000, statistics.median(straight) * 1000
    return [
        Row(
            what="a call through the server, p50",
            found=one,
            unit="ms",
            against="straight to the worker",
            other=other,
            ratio=one / other,
        ),
        Row(
            what="… over calling the worker directly, p50", found=one - other, unit="ms", wanted=WANTED_MS, at_most=True
        ),
    ]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run(folder: Path, seconds: float, tell: Callable[[str], None]) -> list[Row]:
    """Run the whole benchmark."""
    return asyncio.run(measure(folder, seconds, tell))


@click.command("invoke")
@click.option("--seconds", type=click.FloatRange(min=0.1), default=6.0, show_default=True, help="Time per measurement.")
@report_options
def command(seconds: float, json_file: Path | None, markdown_file: Path | None) -> None:
    """Measure slice calls, compared with a bare web framework and with direct calls to the worker."""
    with Ticker() as ticker, tempfile.TemporaryDirectory(prefix="hostler-bench-") as folder:
        rows = run(Path(folder), seconds, ticker.tell)
    report("invoke", rows, json_file, markdown_file)
