"""What calls of slices take."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from hostler.model.record import Record


class Arguments(Record, frozen=True, kw_only=True):
    """The arguments of a call: a JSON object, by their names. It is handed on as it is; the slice reads it."""

    text: bytes

    schema: ClassVar[dict[str, Any]] = {"title": "Arguments", "type": "object", "description": "By their names."}

    @classmethod
    def decode(cls, data: bytes, *, strict: bool = False) -> Self:  # noqa: ARG003 - nobody here knows the fields
        """Whatever it is: the slice says what is wrong with it."""
        return cls(text=data)
