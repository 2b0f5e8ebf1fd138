"""A large document of the inventory is read piece by piece, and comes to what it would come to in one."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostler.engine.inventory import pieces
from hostler.engine.inventory.pieces import decode_document
from hostler.errors import Invalid
from hostler.model.inventory_api import InventoryDocument

NAMES = st.sampled_from(["regions", "zones", "racks", "blades", "name", "agreed", "unknown", "hostler:unknown", "a"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=12,
)
LEVEL = st.dictionaries(NAMES, VALUES | st.lists(st.dictionaries(NAMES, VALUES, max_size=3), max_size=3), max_size=4)


def outcome(data: bytes, *, in_pieces: bool) -> InventoryDocument | str:
    try:
        return decode_document(data) if in_pieces else InventoryDocument.decode(data, strict=True)
    except Invalid as wrong:
        return str(wrong)


@given(LEVEL)
def test_every_document_comes_to_the_same(document: object) -> None:
    data = msgspec.json.encode(document)
    assert outcome(data, in_pieces=True) == outcome(data, in_pieces=False)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{",
        b'{"racks":[{}]} {}',
        b'{"racks":[{"a":"\xff"}]}',
        b'{"racks":[{"\xff":1}]}',
        b'{"regions":[{"a":"\xff"}]}',
        b'{"racks":[{"a":1,"a":2}],"racks":[{"a":3,"a":4}]}',
        b'{"r\\u0061cks":[{"a":1}]}',
        b'{"hostler:unknown":{"a":1}}',
        b'{"agreed":7}',
        b'{"agreed":"' + b"x" * 65 + b'"}',
        b'{"racks":' + b"[" * 5_000 + b"]" * 5_000 + b"}",
        b'{"regions":[{"zones":[{"racks":[1]}]}]}',
        b'{"regions":[{"zones":7},{"zones":[7]}]}',
        b'{"racks":[' + b",".join([b"{}"] * 10_001) + b"]}",
        b'{"racks":[{"a":1e400}]}',
    ],
)
def test_so_does_what_is_none(data: bytes) -> None:
    assert outcome(data, in_pieces=True) == outcome(data, in_pieces=False)


class Noted:
    """Decodes, and notes how much at a time."""

    def __init__(self, decoder: msgspec.json.Decoder[Any], sizes: list[int]) -> None:
        self._decoder, self._sizes = decoder, sizes

    def decode(self, data: msgspec.Raw) -> Any:
        self._sizes.append(len(bytes(data)))
        return self._decoder.decode(data)


def test_a_rack_is_the_most_that_is_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    racks = [{"name": f"r{n}", "blades": [{"name": f"b{m}"} for m in range(10)]} for n in range(100)]
    for document in ({"racks": racks}, {"regions": [{"name": "eu", "zones": [{"name": "z", "racks": racks}]}]}):
        sizes: list[int] = []
        for decoder in ("_whole", "_any"):
            monkeypatch.setattr(pieces, decoder, Noted(getattr(pieces, decoder), sizes))
        data = msgspec.json.encode(document)
        assert decode_document(data) == InventoryDocument.decode(data)
        assert len(sizes) >= 100
        assert max(sizes) == len(msgspec.json.encode(racks[-1]))
