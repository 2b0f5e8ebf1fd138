"""Asyncio on virtual time."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from hostler.kit.virtual_loop import Deadlock, Leftover, VirtualClock, run_virtual

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


async def race(names: str) -> str:
    order: list[str] = []

    async def runner(name: str) -> None:
        for _ in range(3):
            await asyncio.sleep(1)
            order.append(name)

    await asyncio.gather(*(runner(name) for name in names))
    return "".join(order)


def test_a_year_of_waiting_costs_nothing() -> None:
    clock = VirtualClock()

    async def main() -> float:
        await clock.sleep(365 * 86_400)
        return clock.now()

    started = time.monotonic()
    assert run_virtual(main) == 365 * 86_400
    assert time.monotonic() - started < 20


def test_the_same_seed_gives_the_same_order_and_seeds_differ() -> None:
    orders = [run_virtual(lambda: race("abcdef"), seed=seed) for seed in range(50)]
    assert orders == [run_virtual(lambda: race("abcdef"), seed=seed) for seed in range(50)]
    assert len(set(orders)) > 40


def test_timers_fire_in_the_order_of_their_instants_whatever_the_seed() -> None:
    async def main() -> list[int]:
        fired: list[int] = []

        async def at(second: int) -> None:
            await asyncio.sleep(second)
            fired.append(second)

        await asyncio.gather(*(at(second) for second in (5, 3, 9, 1)))
        return fired

    for seed in range(20):
        assert run_virtual(main, seed=seed) == [1, 3, 5, 9]


def test_everybody_waiting_for_nothing_is_a_deadlock_that_says_who() -> None:
    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.Event().wait(), name="the waiter")

    with pytest.raises(Deadlock, match="the waiter"):
        run_virtual(main)


def test_a_task_left_behind_is_named() -> None:
    left: list[asyncio.Task[None]] = []

    async def main() -> None:
        left.append(asyncio.create_task(asyncio.sleep(5), name="forgotten"))

    with pytest.raises(Leftover, match="forgotten"):
        run_virtual(main)


def test_timeouts_queues_and_locks_work() -> None:
    async def main() -> list[int]:
        queue: asyncio.Queue[int] = asyncio.Queue(2)
        lock = asyncio.Lock()
        got: list[int] = []

        async def produce() -> None:
            for n in range(10):
                await queue.put(n)

        async def consume() -> None:
            while True:
                async with lock:
                    got.append(await queue.get())
                    if len(got) == 10:
                        return

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3):
                await asyncio.Event().wait()
        await asyncio.gather(produce(), consume())
        return got

    for seed in range(20):
        assert run_virtual(main, seed=seed) == list(range(10))


def test_threads_are_refused() -> None:
    async def main() -> None:
        await asyncio.to_thread(time.sleep, 0)

    with pytest.raises(RuntimeError, match="threads are not supported"):
        run_virtual(main)


@pytest.mark.filterwarnings("error")
def test_a_generator_that_nobody_finishes_is_closed() -> None:
    closed: list[str] = []

    async def numbers(wait: float | None) -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            if wait is not None:
                await asyncio.sleep(wait)
            closed.append(f"after {wait}")

    async def first(wait: float | None) -> None:
        async for _ in numbers(wait):
            return

    async def main() -> None:
        for wait in (None, 0, 5.0):
            await first(wait)
        await asyncio.sleep(6)

    run_virtual(main)
    assert sorted(closed) == ["after 0", "after 5.0", "after None"]
