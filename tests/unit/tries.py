"""Claims about real time that a machine busy with other tests may spoil: they hold in some of a few tries."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
TRIES = 4


def in_some_try(test: F) -> F:
    """What is wrong by itself fails in every try; what others on this machine have spoiled does not."""

    @functools.wraps(test)
    def tried(*arguments: Any, **more: Any) -> None:
        for _ in range(TRIES - 1):
            try:
                return test(*arguments, **more)
            except Exception as error:  # noqa: BLE001 - whatever it is: it is looked at again
                print(f"tried again after {error!r}")
        return test(*arguments, **more)

    @functools.wraps(test)
    async def tried_on_a_loop(*arguments: Any, **more: Any) -> None:
        for _ in range(TRIES - 1):
            try:
                return await test(*arguments, **more)
            except Exception as error:  # noqa: BLE001 - whatever it is: it is looked at again
                print(f"tried again after {error!r}")
        return await test(*arguments, **more)

    return tried_on_a_loop if inspect.iscoroutinefunction(test) else tried  # type: ignore[return-value]
