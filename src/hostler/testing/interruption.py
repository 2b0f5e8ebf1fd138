"""Cancellation of an operation at each of its suspension points, for claims that repeating it completes it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator, Sequence


class Cut:
    """Runs a coroutine and cancels it at its `at`-th suspension; 0: never. `waits` counts the suspensions."""

    def __init__(self, verb: Coroutine[Any, Any, Any], at: int) -> None:
        self._verb, self._at, self.waits = verb, at, 0

    def __await__(self) -> Generator[Any, Any, Any]:
        inner = self._verb.__await__()
        error: BaseException | None = None
        while True:
            try:
                waited_for = inner.send(None) if error is None else inner.throw(error)
            except StopIteration as stop:
                return stop.value
            self.waits += 1
            if self.waits == self._at:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            try:
                yield waited_for
            except BaseException as thrown:  # noqa: BLE001 - thrown into the coroutine
                error = thrown
            else:
                error = None


async def cut(verb: Coroutine[Any, Any, Any], at: int) -> int:
    """Run an operation that is cancelled at its `at`-th suspension; return how often it was suspended."""
    runner = Cut(verb, at)

    async def run() -> None:
        await runner

    task = asyncio.create_task(run())
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()
    return runner.waits


def points(waits: int, most: int, turn: int = 0) -> Sequence[int]:
    """Return where to cancel an operation with so many suspensions: everywhere, or at `most` points spread evenly.

    `turn` shifts the points: those of all turns together cover every suspension.
    """
    if waits <= most:
        return range(1, waits + 1)
    return sorted({1 + (turn + index * waits // most) % waits for index in range(most)})
