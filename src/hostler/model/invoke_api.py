"""HTTP API types for calls of slices."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from hostler.model.record import Record


class Arguments(Record, frozen=True, kw_only=True):
    """The arguments of a call: a JSON object by argument name. It is passed on unparsed; the slice decodes it."""

    text: bytes

    schema: ClassVar[dict[str, Any]] = {"title": "Arguments", "type": "object", "description": "By their names."}

    @classmethod
    def decode(cls, data: bytes, *, strict: bool = False) -> Self:  # noqa: ARG003 - the fields are not known here
        """Accept any bytes; the slice validates them."""
        return cls(text=data)
