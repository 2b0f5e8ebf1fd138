"""Work that is bounded in time, and sleeps that are cut short."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

import pytest

from hostler.kit.tasks import Nap, within
from hostler.kit.virtual_loop import VirtualClock, VirtualLoop, run_virtual

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
CLOCK = VirtualClock()


async def answers(value: T) -> T:
    return value


async def takes(seconds: float, value: T, *, then: float = 0.0) -> T:
    await CLOCK.sleep(seconds)
    await CLOCK.sleep(then)
    return value


async def fails(seconds: float) -> None:
    await CLOCK.sleep(seconds)
    raise ValueError("as it should")


def test_what_needs_not_wait_is_done_without_a_timer() -> None:
    loop = VirtualLoop()

    async def main() -> int:
        found = await within(5.0, answers(7))
        assert loop.next_at() is None
        return found

    assert run_virtual(main, loop=loop) == 7


@pytest.mark.parametrize(("seconds", "then", "in_time"), [(4.0, 0.5, True), (0.0, 4.0, True), (4.0, 2.0, False)])
def test_what_waits_has_as_long_as_it_was_given(seconds: float, then: float, in_time: bool) -> None:
    async def main() -> None:
        work = within(5.0, takes(seconds, "done", then=then))
        if in_time:
            assert await work == "done"
            assert CLOCK.now() == seconds + then
        else:
            with pytest.raises(TimeoutError):
                await work
            assert CLOCK.now() == 5.0

    run_virtual(main)


@pytest.mark.parametrize("seconds", [0.0, 1.0])
def test_an_error_is_the_callers(seconds: float) -> None:
    async def main() -> None:
        with pytest.raises(ValueError, match="as it should"):
            await within(5.0, fails(seconds))

    run_virtual(main)


def test_who_is_cancelled_cancels_the_work() -> None:
    async def main() -> list[str]:
        told: list[str] = []

        async def work() -> None:
            try:
                await CLOCK.sleep(100.0)
            except asyncio.CancelledError:
                await CLOCK.sleep(1.0)  # it tidies up
                told.append("tidy")
                raise

        task = asyncio.create_task(within(50.0, work()))
        await CLOCK.sleep(10.0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert CLOCK.now() == 11.0
        return told

    assert run_virtual(main) == ["tidy"]


def test_a_nap_ends_by_itself_or_when_somebody_ends_it() -> None:
    async def main() -> list[float]:
        nap, ends = Nap(CLOCK), list[float]()

        async def sleeper() -> None:
            for _ in range(3):
                await nap.sleep(10.0)
                ends.append(CLOCK.now())

        task = asyncio.create_task(sleeper())
        await CLOCK.sleep(14.0)
        nap.wake()
        nap.wake()
        await task
        nap.wake()  # nobody sleeps
        assert task.cancelling() == 0
        return ends

    assert run_virtual(main) == [10.0, 14.0, 24.0]


def _cancelled_first(nap: Nap, task: asyncio.Task[None]) -> None:
    task.cancel()
    nap.wake()


def _woken_first(nap: Nap, task: asyncio.Task[None]) -> None:
    nap.wake()
    task.cancel()


@pytest.mark.parametrize("both", [_cancelled_first, _woken_first])
@pytest.mark.parametrize("at", [4.0, 10.0], ids=["asleep", "as it ends"])
@pytest.mark.parametrize("seed", range(4))
def test_who_is_cancelled_while_somebody_wakes_it_ends(
    both: Callable[[Nap, asyncio.Task[None]], None], at: float, seed: int
) -> None:
    async def main() -> None:
        nap = Nap(CLOCK)
        task = asyncio.create_task(nap.sleep(10.0))
        await CLOCK.sleep(at)
        ended = task.done()
        both(nap, task)
        await asyncio.wait((task,))
        assert task.cancelled() or ended

    run_virtual(main, seed=seed)


@pytest.mark.parametrize("seed", range(4))
def test_who_is_woken_as_the_nap_ends_goes_on(seed: int) -> None:
    async def main() -> None:
        nap = Nap(CLOCK)
        task = asyncio.create_task(twice(nap))
        await CLOCK.sleep(10.0)
        nap.wake()
        await task
        assert CLOCK.now() in (15.0, 10.0)

    async def twice(nap: Nap) -> None:
        await nap.sleep(10.0)
        await nap.sleep(5.0)

    run_virtual(main, seed=seed)


def test_a_nap_inside_a_timeout_is_ended_by_it() -> None:
    async def main() -> None:
        nap = Nap(CLOCK)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3.0):
                await nap.sleep(10.0)
        assert CLOCK.now() == 3.0

    run_virtual(main)
