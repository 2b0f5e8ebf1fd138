"""Steps that must not be interrupted half way."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

T = TypeVar("T")


async def whole(step: Coroutine[Any, Any, T] | asyncio.Task[T]) -> T:
    """Run a short step to its end even if the caller is cancelled; then raise the cancellation.

    For work in a thread, which continues when its caller is cancelled: a repetition of the verb must not run into it.
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
