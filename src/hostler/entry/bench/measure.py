"""Clients that repeat one operation, and rounds in which two sides take turns."""

from __future__ import annotations

import asyncio
import statistics
from time import perf_counter
from typing import TYPE_CHECKING, TypeAlias

import msgspec

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

Operation: TypeAlias = "Callable[[int, int], Awaitable[object]]"
"""One operation of client `number`, its `turn`-th."""

ROUND = 0.25
BREATH = 16
"""Operations after which a client lets the others go on: some engines answer without ever waiting."""


class Figure(msgspec.Struct, frozen=True):
    """What was measured of one side. Times in microseconds; `per_second` is the median over the rounds."""

    per_second: float
    p50_us: float
    p99_us: float
    count: int


async def one_round(operation: Operation, clients: int, seconds: float, turn: int = 0) -> tuple[float, list[float]]:
    """Operations per second, and how long each took in seconds."""
    times: list[float] = []
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
    return len(times) / (perf_counter() - started), times


async def alternate(sides: Sequence[Operation], clients: int, seconds: float) -> list[Figure]:
    """Let the sides take turns until each had `seconds`; the first round of each is not counted."""
    rates: list[list[float]] = [[] for _ in sides]
    times: list[list[float]] = [[] for _ in sides]
    rounds = max(3, round(seconds / ROUND))
    for number in range(rounds + 1):
        for side, operation in enumerate(sides):
            rate, taken = await one_round(operation, clients, seconds / rounds, number * 100_003)
            if number:
                rates[side].append(rate)
                times[side] += taken
    return [figure(rate, taken) for rate, taken in zip(rates, times)]


def figure(rates: Sequence[float], times: Sequence[float]) -> Figure:
    """Rates and times of several rounds as one figure."""
    ordered = sorted(times) or [0.0]
    return Figure(
        per_second=statistics.median(rates),
        p50_us=ordered[len(ordered) // 2] * 1e6,
        p99_us=ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)] * 1e6,
        count=len(times),
    )
