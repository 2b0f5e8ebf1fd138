"""Inventory document in JSON, decoded in pieces.

A decoder holds the interpreter until it is done, even in a separate thread: half a second for a hundred thousand
blades. Here it returns after each piece, so that the event loop gets its turn in between. Errors have the same text as
those of `InventoryDocument.decode`, without a decoding of all valid parts.
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
"""Number of bytes that are decoded at once. Larger values are split."""

_Levels: TypeAlias = Annotated[tuple[dict[str, msgspec.Raw], ...], msgspec.Meta(max_length=10_000)]


class _Outline(Record, frozen=True, kw_only=True):
    """An `InventoryDocument` before its contents are decoded. Its errors are those of the expected structure."""

    kind = InventoryDocument.kind

    regions: _Levels = ()
    racks: _Levels = ()
    agreed: Annotated[str, msgspec.Meta(max_length=64)] = ""
    notes: tuple[str, ...] = ()


class _WrongError(Exception):
    """An unreadable value: what is wrong, and where."""

    def __init__(self, what: str, path: str) -> None:
        super().__init__(what, path)
        self.what, self.path = what, path

    def inside(self, step: str) -> _WrongError:
        """Return the error with the path of the enclosing level."""
        return _WrongError(self.what, step + self.path)


_outline = msgspec.json.Decoder(_Outline)
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_items = msgspec.json.Decoder(list[msgspec.Raw])
_any = msgspec.json.Decoder()


def decode_document(data: bytes) -> InventoryDocument:
    """Decode like `InventoryDocument.decode(data, strict=True)`. Invalid: it is not such a document.

    Documents that are refused for their size or depth are read only as far as necessary.
    """
    outline = _outlined(data)
    try:
        data.decode()  # the text was not checked yet
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
    return _Outline.decode(data, strict=True)  # it reports what is wrong, and where


def _levels(name: str, levels: tuple[dict[str, msgspec.Raw], ...]) -> tuple[dict[str, Any], ...]:
    try:
        return tuple(_each(levels, lambda level: _map(level, 2)))
    except _WrongError as wrong:
        raise wrong.inside(name) from None


def _value(raw: msgspec.Raw, depth: int) -> Any:
    """Decode a value. `depth`: its level in the document; 0 is the document."""
    view = memoryview(raw)
    begins = bytes(view[:1])
    if view.nbytes <= AT_ONCE or begins not in (b"{", b"["):
        try:
            return _any.decode(raw)
        except msgspec.ValidationError as error:
            what, _, path = str(error).partition(" - at `$")
            raise _WrongError(what[:1].lower() + what[1:], path.rstrip("`")) from None
    if depth > DEEPEST:
        return None  # too deep in any case: the reader of the document reports it
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
        # One blade too many is enough for a refusal; the rest is not read.
        return _each(_items.decode(raw)[: MOST_BLADES + 1], lambda item: _value(item, depth + 1))
    return _value(raw, depth)


def _each(items: Any, read: Any) -> list[Any]:
    found: list[Any] = []
    try:
        for item in items:
            found.append(read(item))  # noqa: PERF401 - its length locates an error
    except _WrongError as wrong:
        raise wrong.inside(f"[{len(found)}]") from None
    return found
