"""Steps that cannot be taken back half way."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

T = TypeVar("T")


async def whole(step: Coroutine[Any, Any, T] | asyncio.Task[T]) -> T:
    """Run a short step to its end, however often who waits for it is cancelled; then be cancelled.

    For work in a thread, which goes on when its waiter does not: who repeats the verb must not meet it.
    """
    task = asyncio.ensure_future(step)
    cut: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if task.cancelled():
                raise
            cut = error
        except BaseException:  # noqa: BLE001, S110 - raised by `result`
            pass
    if cut is not None:
        if not task.cancelled():
            task.exception()
        raise cut
    return task.result()
