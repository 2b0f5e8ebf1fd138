"""A document of the inventory in JSON, read piece by piece.

A decoder keeps the interpreter until it is done, a thread of its own or not: half a second for a hundred thousand
blades. Here it is done after each rack, so that in a thread the event loop has its turn in between.
"""

from __future__ import annotations

from typing import Any

import msgspec

from hostler.model.inventory_api import InventoryDocument

LEVELS = ("regions", "zones", "racks")
"""What is taken apart; a rack is read as one."""
KNOWN = {"regions", "racks", "agreed"}
"""What may be at the top."""

_pieces = msgspec.json.Decoder(dict[str, msgspec.Raw])
_list = msgspec.json.Decoder(list[msgspec.Raw])
_whole = msgspec.json.Decoder(dict[str, Any])
_any = msgspec.json.Decoder()


def decode_document(data: bytes) -> InventoryDocument:
    """As `InventoryDocument.decode(data, strict=True)`. Invalid: it is none."""
    try:
        top = _level(msgspec.Raw(data))
        if top.keys() <= KNOWN:
            return msgspec.convert(top, InventoryDocument)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass
    return InventoryDocument.decode(data, strict=True)  # it knows what is wrong, and where


def _level(data: msgspec.Raw) -> dict[str, Any]:
    return {name: _piece(name, value) for name, value in _pieces.decode(data).items()}


def _piece(name: str, value: msgspec.Raw) -> Any:
    if name not in LEVELS:
        return _any.decode(value)
    read = _whole.decode if name == "racks" else _level
    return [read(one) for one in _list.decode(value)]
