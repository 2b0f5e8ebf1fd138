"""The mark on what can be called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, overload

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

F = TypeVar("F", bound="Callable[..., Any]")
_MARK = "__hostler_method__"


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """What a function was marked with."""

    name: str
    idempotent: bool = False


@overload
def method(function: F, /) -> F: ...
@overload
def method(*, idempotent: bool = False, name: str = "") -> Callable[[F], F]: ...
def method(function: F | None = None, /, *, idempotent: bool = False, name: str = "") -> F | Callable[[F], F]:
    """Let a function be called from outside. The function itself stays as it is.

    `idempotent`: calling it twice does no harm, so a call that failed is tried elsewhere. `name`: if it is to be called
    by another name than the function's.
    """

    def mark(found: F) -> F:
        if not callable(found) or isinstance(found, type):
            raise TypeError(f"@method: {found!r} is no function")
        called = name or found.__name__
        if not called.isidentifier() or called.startswith("_"):
            raise TypeError(f"@method: {called!r} cannot be a method's name; use letters, digits and _, a letter first")
        setattr(found, _MARK, Mark(name=called, idempotent=idempotent))
        return found

    return mark if function is None else mark(function)


def mark_of(found: object) -> Mark | None:
    """What it was marked with; None: it was not."""
    mark = getattr(found, _MARK, None)
    return mark if isinstance(mark, Mark) else None
