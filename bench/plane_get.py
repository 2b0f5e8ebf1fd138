"""GET of one machine over HTTP, compared with the bare framework and an answer of the same size."""

from __future__ import annotations

import statistics
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from bench.plane_fill import fill, first_path
from bench.plane_http import MeasuredServer, get, lines
from bench.plane_process import replica, run_process, token_kept
from bench.report import Row
from hostler.entry.cli.options import path_url
from hostler.entry.store_benchmark import ROUND

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


WANTED = 0.5
CONNECTIONS = 16


async def measure(folder: Path, seconds: float, tell: Callable[[str], None]) -> list[Row]:
    """Alternate between the two servers."""
    url = path_url("sqlite", folder / "get.db")
    await fill(url, 100, 10, tell)
    async with AsyncExitStack() as stack:
        ours = await stack.enter_async_context(replica(url, folder))
        at = await ours.says("serving ")
        token = token_kept(await ours.says("token is kept in "))
        await ours.says("leading with fence")
        asking = await stack.enter_async_context(lines(at, CONNECTIONS))
        request = get(at, first_path(), token)
        reply = await asking[0].ask(request)
        bare = await stack.enter_async_context(run_process(["bench.plane_bare", str(len(reply.body))]))
        bare_at = await bare.says("serving ")
        bare_asking = await stack.enter_async_context(lines(bare_at, CONNECTIONS))
        sides = [
            MeasuredServer(ours, asking, request),
            MeasuredServer(bare, bare_asking, get(bare_at, first_path(), token)),
        ]
        rounds = max(3, round(seconds / ROUND))
        for number in range(rounds + 1):
            tell(f"GET of one machine, round {number} of {rounds}")
            for side in sides:
                await side.round(seconds / rounds)
    return _rows(*sides, size=len(reply.body))


def _rows(ours: MeasuredServer, bare: MeasuredServer, *, size: int) -> list[Row]:
    """Return the rows without the first round of each side."""
    ratio = statistics.median(mine / theirs for mine, theirs in zip(ours.rates[1:], bare.rates[1:]))
    cpu = statistics.median(theirs / mine for mine, theirs in zip(ours.cpu_us[1:], bare.cpu_us[1:]))
    against = f"bare starlette, {size} bytes"
    found, other = statistics.median(ours.rates[1:]), statistics.median(bare.rates[1:])
    return [
        Row(
            what=f"GET of one VM, {CONNECTIONS} connections",
            found=found,
            unit="per second",
            against=against,
            other=other,
            ratio=ratio,
            cpu_ratio=cpu,
        ),
        Row(what="… over the bare framework's rate", found=ratio, unit="", wanted=WANTED, cpu_ratio=cpu),
    ]
