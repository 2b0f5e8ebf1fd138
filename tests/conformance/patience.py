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
            await in_some_try(lambda _, name=name: check([name]))  # type: ignore[misc]


async def in_some_try(check: Callable[[int], Awaitable[None]], tries: int = 5) -> None:
    """A claim about real time: what is wrong by itself fails in every try, what others have spoiled does not.

    `check` is told which try it is, so that it need not go on where the last one left off."""
    for number in range(1, tries):
        try:
            return await check(number)
        except (AssertionError, TimeoutError, ExceptionGroup) as error:
            print(f"tried again after {error!r}")
    return await check(tries)
