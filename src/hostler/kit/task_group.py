"""Tasks that run together and end together."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping


async def run_together(owner: str, works: Mapping[str, Coroutine[Any, Any, Any]]) -> None:
    """Run all until one ends, or this is cancelled; then cancel the others, and raise the error of the one that ended.

    The tasks are called `owner: name`.
    """
    tasks = [asyncio.create_task(work, name=f"{owner}: {name}") for name, work in works.items()]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:  # in order: if several ended at once, the same one is always reported
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
