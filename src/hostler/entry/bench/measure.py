"""Clients that repeat one operation, and rounds in which two sides alternate."""

from __future__ import annotations

import asyncio
import statistics
from time import perf_counter, process_time
from typing import TYPE_CHECKING, TypeAlias

import msgspec

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

Operation: TypeAlias = "Callable[[int, int], Awaitable[object]]"
"""One operation of client `number`, its `turn`-th."""

ROUND = 0.25
BREATH = 16
"""Operations after which a client yields to the others: some engines answer without ever waiting."""


class Figure(msgspec.Struct, frozen=True):
    """The results of one side. Times in microseconds; `per_second` and `cpu_us` are medians over the rounds.

    `cpu_us` is the processor time of this process per operation, in all its threads. On a busy host it is the most
    reliable figure.
    """

    per_second: float
    cpu_us: float
    p50_us: float
    p99_us: float
    count: int


class Round(msgspec.Struct, frozen=True):
    """One round of one side: `times` are seconds."""

    per_second: float
    cpu_us: float
    times: list[float]


async def one_round(operation: Operation, clients: int, seconds: float, turn: int = 0) -> Round:
    """Let the clients repeat the operation for some seconds."""
    times: list[float] = []
    worked = process_time()
    started = perf_counter()
    until = started + seconds

    async def client(number: int) -> None:
        done = 0
        before = perf_counter()
        while before < until:
            await operation(number, turn + done)
            now = perf_counter()
            times.append(now - before)
            done += 1
            if done % BREATH == 0:
                await asyncio.sleep(0)
                now = perf_counter()
            before = now

    await asyncio.gather(*(client(number) for number in range(clients)))
    cpu = (process_time() - worked) * 1e6 / max(1, len(times))
    return Round(len(times) / (perf_counter() - started), cpu, times)


async def alternate(sides: Sequence[Operation], clients: int, seconds: float) -> list[Figure]:
    """Alternate between the sides until each had `seconds`; the first round of each is not counted."""
    done: list[list[Round]] = [[] for _ in sides]
    rounds = max(3, round(seconds / ROUND))
    for number in range(rounds + 1):
        for side, operation in enumerate(sides):
            done[side].append(await one_round(operation, clients, seconds / rounds, number * 100_003))
    return [figure(side[1:]) for side in done]


def figure(rounds: Sequence[Round]) -> Figure:
    """Combine several rounds."""
    ordered = sorted(time for round_ in rounds for time in round_.times) or [0.0]
    return Figure(
        per_second=statistics.median(round_.per_second for round_ in rounds),
        cpu_us=statistics.median(round_.cpu_us for round_ in rounds),
        p50_us=ordered[len(ordered) // 2] * 1e6,
        p99_us=ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)] * 1e6,
        count=len(ordered),
    )
