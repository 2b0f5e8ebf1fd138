"""Values of enums that a later release wrote."""

from __future__ import annotations

import json
from typing import Any, TypeVar

import msgspec

from hostler.model.record import OpenEnum, Record

E = TypeVar("E", bound=OpenEnum)


def later(kind: type[E], text: str = "later") -> E:
    """Return a value of `kind` that this release does not know, as it is read from a store."""
    one: Any = msgspec.defstruct("One", [("value", kind)], bases=(Record,), frozen=True, kw_only=True)
    value: E = one.decode(json.dumps({"value": text}).encode()).value
    return value
