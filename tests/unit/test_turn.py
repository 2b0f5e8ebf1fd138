"""Long work beside the loop: one piece at a time."""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest

from hostler.engine import serial_executor
from hostler.engine.serial_executor import Turn
from hostler.errors import Unavailable


async def test_one_works_and_the_others_wait_for_a_while() -> None:
    turn, go = Turn("file", within=0.05), threading.Event()
    working = 0

    def work() -> int:
        nonlocal working
        working += 1
        most = working
        go.wait(60)
        working -= 1
        return most

    first = asyncio.create_task(turn.run(work))
    while not working:
        await asyncio.sleep(0.001)
    with pytest.raises(Unavailable, match="file: other requests are being processed; try again"):
        await turn.run(work)
    first.cancel()  # nobody waits for it any more, and it goes on
    with pytest.raises(Unavailable):
        await turn.run(work)
    go.set()
    while working:
        await asyncio.sleep(0.001)
    patient = Turn("file")
    assert await asyncio.gather(*(patient.run(work) for _ in range(5))) == [1] * 5


async def test_what_work_raises_is_raised_and_the_next_has_its_turn() -> None:
    turn = Turn("file")
    with pytest.raises(ZeroDivisionError):
        await turn.run(lambda: 1 // 0)
    assert await turn.run(lambda: 1) == 1


async def test_full_collections_of_garbage_are_put_off_until_the_last_is_done() -> None:
    usual, begun, go = gc.get_threshold(), threading.Event(), threading.Event()
    put_off = (*usual[:2], serial_executor.NEVER)

    def works() -> None:
        begun.set()
        go.wait(60)

    def fails() -> None:
        raise Unavailable("as it should")

    first = asyncio.create_task(Turn("file").run(works))
    while not begun.is_set():
        await asyncio.sleep(0.001)
    with pytest.raises(Unavailable, match="as it should"):
        await Turn("body").run(fails)
    seen = gc.get_threshold()
    go.set()
    await first
    assert (seen, gc.get_threshold()) == (put_off, usual)
