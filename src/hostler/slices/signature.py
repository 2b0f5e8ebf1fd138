"""Arguments from JSON, by the annotations of a function."""

from __future__ import annotations

import inspect
import re
import typing
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, UnsetType

from hostler.slices.error_text import named

if TYPE_CHECKING:
    from collections.abc import Callable

_AT = re.compile(r" - at `\$(?P<place>[^`]*)`$")
_KINDS = {
    inspect.Parameter.POSITIONAL_ONLY: "takes {name} by its position only; remove the /",
    inspect.Parameter.VAR_POSITIONAL: "takes *{name}; name the arguments, or take a list",
    inspect.Parameter.VAR_KEYWORD: "takes **{name}; name the arguments, or take a dict",
}


class BadArguments(Exception):
    """The arguments do not fit the method."""


class Signature:
    """The parameters of a function. TypeError: it cannot be called with JSON, and why."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self._name = name
        parameters = inspect.signature(function).parameters.values()
        try:
            hints = typing.get_type_hints(function, include_extras=True)
        except Exception as error:  # noqa: BLE001 - an annotation may raise anything
            raise TypeError(f"method {name}: its annotations cannot be read: {error}") from None
        fields: list[Any] = []
        for one in parameters:
            if one.kind in _KINDS:
                raise TypeError(f"method {name}: {_KINDS[one.kind].format(name=one.name)}")
            kind = hints.get(one.name, Any)
            given = one.default is inspect.Parameter.empty
            fields.append((one.name, kind) if given else (one.name, typing.Union[kind, UnsetType], UNSET))  # noqa: UP007 - kind may be any
        self._has_defaults = any(len(field) == 3 for field in fields)
        self._takes_nothing = not fields
        try:
            shape = msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True, gc=False)
            self._decode = msgspec.json.Decoder(shape).decode
        except Exception as error:  # noqa: BLE001 - an annotation may be anything
            raise TypeError(f"method {name}: its arguments cannot be read from JSON: {error}") from None
        self._asdict = msgspec.structs.asdict

    def read(self, arguments: bytes) -> dict[str, Any]:
        """Return the arguments by name. BadArguments: they do not fit the method."""
        if not arguments:
            arguments = b"{}"
        if self._takes_nothing and arguments == b"{}":
            return {}
        try:
            found: dict[str, Any] = self._asdict(self._decode(arguments))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:  # ValidationError is one of them
            raise BadArguments(f"{self._name}: {_said(str(error))}") from None
        except BaseException as error:  # noqa: BLE001 - types of the slice may raise anything
            raise BadArguments(f"{self._name}: {named(error)}") from None
        if self._has_defaults:
            return {name: value for name, value in found.items() if value is not UNSET}
        return found


def _said(text: str) -> str:
    """Rewrite a message of msgspec in our words."""
    place = ""
    if found := _AT.search(text):
        place = found["place"].removeprefix(".")
        text = text[: found.start()]
    text = text.replace("Object missing required field", "argument missing:").replace(
        "Object contains unknown field", "unknown argument"
    )
    return f"argument {place}: {text}" if place else text
