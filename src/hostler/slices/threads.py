"""Running plain functions, which are not coroutines, in a thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
T = TypeVar("T")


def run(function: Callable[P, T], /, *arguments: P.args, **named: P.kwargs) -> T:
    """Call the function in a thread. StopIteration and GeneratorExit become RuntimeError, as in generators.

    A future cannot hold StopIteration: its awaiter would wait forever. GeneratorExit from a future closes everything
    that awaits it, without a chance to report the error.
    """
    try:
        return function(*arguments, **named)
    except (StopIteration, GeneratorExit) as error:
        name = getattr(function, "__name__", type(function).__name__)
        raise RuntimeError(f"{name} raised {type(error).__name__}") from error
