"""The `@method` decorator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, overload

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

F = TypeVar("F", bound="Callable[..., Any]")
_MARK = "__hostler_method__"


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of the decorator."""

    name: str
    idempotent: bool = False


@overload
def method(function: F, /) -> F: ...
@overload
def method(*, idempotent: bool = False, name: str = "") -> Callable[[F], F]: ...
def method(function: F | None = None, /, *, idempotent: bool = False, name: str = "") -> F | Callable[[F], F]:
    """Make a function callable from outside. The function itself does not change.

    `idempotent`: calling it twice does no harm, so a failed call is retried elsewhere. `name`: the public name, if it
    differs from the name of the function.
    """

    def mark(found: F) -> F:
        if not callable(found) or isinstance(found, type):
            raise TypeError(f"@method: {found!r} is not a function")
        called = name or found.__name__
        if not called.isidentifier() or called.startswith("_"):
            raise TypeError(f"@method: {called!r} cannot be a method's name; use letters, digits and _, a letter first")
        setattr(found, _MARK, Mark(name=called, idempotent=idempotent))
        return found

    return mark if function is None else mark(function)


def mark_of(found: object) -> Mark | None:
    """Return the mark of a function; None: it has none."""
    mark = getattr(found, _MARK, None)
    return mark if isinstance(mark, Mark) else None
