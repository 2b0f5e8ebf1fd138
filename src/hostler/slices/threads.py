"""What runs in a thread: functions that are no coroutines."""

from __future__ import annotations

from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
T = TypeVar("T")


def run(function: Callable[P, T], /, *arguments: P.args, **named: P.kwargs) -> T:
    """Call it, in a thread. What only ends generators comes as a RuntimeError, as it does out of those.

    No future takes StopIteration: whoever awaits it would wait for ever. GeneratorExit out of one closes all that
    awaits it, and none of that can say what happened.
    """
    try:
        return function(*arguments, **named)
    except (StopIteration, GeneratorExit) as error:
        name = getattr(function, "__name__", type(function).__name__)
        raise RuntimeError(f"{name} raised {type(error).__name__}") from error
