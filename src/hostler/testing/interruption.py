"""Cutting a verb where it waits, for claims that repeating it finishes what was begun."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator, Sequence


class Cut:
    """Runs a coroutine and cancels it where it waits for the `at`-th time; 0: nowhere. `waits` counts them."""

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
            except BaseException as thrown:  # noqa: BLE001 - handed on to where it belongs
                error = thrown
            else:
                error = None


async def cut(verb: Coroutine[Any, Any, Any], at: int) -> int:
    """Run a verb that is cancelled where it waits for the `at`-th time; how often it waited."""
    runner = Cut(verb, at)

    async def run() -> None:
        await runner

    task = asyncio.create_task(run())
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()
    return runner.waits


def points(waits: int, most: int, turn: int = 0) -> Sequence[int]:
    """Where to cut a verb that waits so often: everywhere, or at so many places that are spread over it.

    `turn` moves them: those of all turns together are every place.
    """
    if waits <= most:
        return range(1, waits + 1)
    return sorted({1 + (turn + index * waits // most) % waits for index in range(most)})
