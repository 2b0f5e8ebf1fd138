"""Claims that wait are tried all at once, to save time; on a busy machine one may come too late among the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence


async def together_or_alone(check: Callable[[Sequence[str]], Awaitable[None]], names: Sequence[str]) -> None:
    """Try them together; what does not hold then has to hold alone."""
    try:
        await check(names)
    except ExceptionGroup as group:
        notes = {note for error in group.exceptions for note in getattr(error, "__notes__", ())}
        late = [name for name in names if f"claim: {name.replace('_', ' ')}" in notes]
        if len(late) < len(group.exceptions):
            raise
        for name in late:
            await check([name])
