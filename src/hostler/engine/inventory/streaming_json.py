"""A document of the inventory in JSON, read piece by piece.

A decoder keeps the interpreter until it is done, a thread of its own or not: half a second for a hundred thousand
blades. Here it is done after each piece, so that in a thread the event loop has its turn in between. What is wrong is
told in the words of `InventoryDocument.decode`, without decoding all that is right.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import msgspec

from hostler.engine.inventory.check import MOST_BLADES
from hostler.errors import Invalid
from hostler.kit.yaml import DEEPEST
from hostler.model.inventory_api import InventoryDocument
from hostler.model.record import Record

AT_ONCE = 64 * 1024
"""Bytes that are decoded in one go. What is longer is taken apart."""

_Levels: TypeAlias = Annotated[tuple[dict[str, msgspec.Raw], ...], msgspec.Meta(max_length=10_000)]


class _Outline(Record, frozen=True, kw_only=True):
    """An `InventoryDocument` that is not read yet. Its faults are those that depend on what is expected where."""

    kind = InventoryDocument.kind

    regions: _Levels = ()
    racks: _Levels = ()
    agreed: Annotated[str, msgspec.Meta(max_length=64)] = ""
    notes: tuple[str, ...] = ()


class _WrongError(Exception):
    """A value cannot be read: what is wrong, and where in it."""

    def __init__(self, what: str, path: str) -> None:
        super().__init__(what, path)
        self.what, self.path = what, path

    def inside(self, step: str) -> _WrongError:
        """Seen from one level above."""
        return _WrongError(self.what, step + self.path)


_outline = msgspec.json.Decoder(_Outline)
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_items = msgspec.json.Decoder(list[msgspec.Raw])
_any = msgspec.json.Decoder()


def decode_document(data: bytes) -> InventoryDocument:
    """As `InventoryDocument.decode(data, strict=True)`. Invalid: it is none.

    Of what is refused for its size or depth in any case, only as much is read as that takes.
    """
    outline = _outlined(data)
    try:
        data.decode()  # nobody has looked into the text yet
        regions, racks = (_levels(name, getattr(outline, name)) for name in ("regions", "racks"))
    except UnicodeDecodeError as error:
        raise Invalid(f"{_Outline.kind} at $: {error}") from None
    except _WrongError as wrong:
        raise Invalid(f"{_Outline.kind} at $.{wrong.path}: {wrong.what}") from None
    return InventoryDocument(regions=regions, racks=racks, agreed=outline.agreed)


def _outlined(data: bytes) -> _Outline:
    try:
        outline = _outline.decode(data)
        if outline.unknown is msgspec.UNSET:
            return outline
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass
    return _Outline.decode(data, strict=True)  # it knows what is wrong, and where


def _levels(name: str, levels: tuple[dict[str, msgspec.Raw], ...]) -> tuple[dict[str, Any], ...]:
    try:
        return tuple(_each(levels, lambda level: _map(level, 2)))
    except _WrongError as wrong:
        raise wrong.inside(name) from None


def _value(raw: msgspec.Raw, depth: int) -> Any:
    """`depth`: of the value, as the document counts it; 0 is the document."""
    view = memoryview(raw)
    begins = bytes(view[:1])
    if view.nbytes <= AT_ONCE or begins not in (b"{", b"["):
        try:
            return _any.decode(raw)
        except msgspec.ValidationError as error:
            what, _, path = str(error).partition(" - at `$")
            raise _WrongError(what[:1].lower() + what[1:], path.rstrip("`")) from None
    if depth > DEEPEST:
        return None  # too deep whatever it is: whoever reads the document says so
    if begins == b"{":
        return _map(_fields.decode(raw), depth)
    return _each(_items.decode(raw), lambda item: _value(item, depth + 1))


def _map(fields: dict[str, msgspec.Raw], depth: int) -> dict[str, Any]:
    try:
        return {name: _field(name, raw, depth + 1) for name, raw in fields.items()}
    except _WrongError as wrong:
        raise wrong.inside("[...]") from None


def _field(name: str, raw: msgspec.Raw, depth: int) -> Any:
    view = memoryview(raw)
    if name == "blades" and view.nbytes > AT_ONCE and bytes(view[:1]) == b"[":
        # One too many is enough to be refused, and nobody looks further.
        return _each(_items.decode(raw)[: MOST_BLADES + 1], lambda item: _value(item, depth + 1))
    return _value(raw, depth)


def _each(items: Any, read: Any) -> list[Any]:
    found: list[Any] = []
    try:
        for item in items:
            found.append(read(item))  # noqa: PERF401 - how many there are tells where it went wrong
    except _WrongError as wrong:
        raise wrong.inside(f"[{len(found)}]") from None
    return found
