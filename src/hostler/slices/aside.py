"""What runs in a thread: functions that are no coroutines."""

from __future__ import annotations

from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
T = TypeVar("T")


def run(function: Callable[P, T], /, *arguments: P.args, **named: P.kwargs) -> T:
    """Call it, in a thread. No future takes StopIteration, and whoever awaits one would wait for ever: as out of
    coroutines and generators, it comes as a RuntimeError.
    """
    try:
        return function(*arguments, **named)
    except StopIteration as error:
        name = getattr(function, "__name__", type(function).__name__)
        raise RuntimeError(f"{name} raised {type(error).__name__}") from error
