"""Several things that run for as long as all of them do."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping


async def run_together(owner: str, works: Mapping[str, Coroutine[Any, Any, Any]]) -> None:
    """Run all until one ends, or this is cancelled; then end the others, and raise what it raised.

    The tasks are called `owner: name`.
    """
    tasks = [asyncio.create_task(work, name=f"{owner}: {name}") for name, work in works.items()]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:  # in their own order: if several ended at once, it is always the same one that is told of
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
