"""A large document of the inventory is read piece by piece, and comes to what it would come to in one."""

from __future__ import annotations

import re
from typing import Any
from unittest import mock

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostler.engine.inventory import streaming_json
from hostler.engine.inventory.inventory_file import inventory_in
from hostler.engine.inventory.streaming_json import decode_document
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


@given(LEVEL)
def test_nor_does_it_matter_how_large_the_pieces_are(document: object) -> None:
    data = msgspec.json.encode(document)
    with mock.patch.object(streaming_json, "AT_ONCE", 8):
        assert outcome(data, in_pieces=True) == outcome(data, in_pieces=False)


@given(LEVEL, st.data())
def test_nor_where_it_is_broken(document: object, draw: st.DataObject) -> None:
    whole = msgspec.json.encode(document)
    at = draw.draw(st.integers(0, len(whole)))
    data = whole[:at] + draw.draw(st.sampled_from([b"", b"x", b'"', b"}", b",", b"\\", b"\xff"])) + whole[at + 1 :]
    with mock.patch.object(streaming_json, "AT_ONCE", 8):
        assert outcome(data, in_pieces=True) == outcome(data, in_pieces=False)


@pytest.mark.parametrize(
    "data",
    [
        b'{"racks":[{},{"a":[1,{"b":"x","c":[0,1e400]}]}]}',
        b'{"regions":[{"zones":[{"racks":[{},{"blades":["xxxxxxxx",{"a":1e400}]}]}]}]}',
        b'{"regions":[{"zones":[{"racks":[{},{"blades":["xxxxxxxx",{"a":"\xff"}]}]}]}]}',
    ],
)
def test_a_fault_in_a_piece_has_its_place_in_the_document(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(streaming_json, "AT_ONCE", 8)
    assert outcome(data, in_pieces=True) == outcome(data, in_pieces=False)


class Noted:
    """Decodes, and notes how much at a time."""

    def __init__(self, decoder: msgspec.json.Decoder[Any], sizes: list[int]) -> None:
        self._decoder, self._sizes = decoder, sizes

    def decode(self, data: msgspec.Raw) -> Any:
        self._sizes.append(len(bytes(data)))
        return self._decoder.decode(data)


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of all that is decoded."""
    sizes: list[int] = []
    monkeypatch.setattr(streaming_json, "_any", Noted(streaming_json._any, sizes))
    monkeypatch.setattr(InventoryDocument, "decode", None)
    return sizes


def racks(number: int, blades: int) -> list[dict[str, Any]]:
    return [{"name": f"r{n}", "blades": [{"name": f"b{m}"} for m in range(blades)]} for n in range(number)]


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(10_000, 10), (3, 20_000), (1, 1_000)])
def test_only_so_much_is_read_at_once(sizes: list[int], shape: tuple[int, int]) -> None:
    some = racks(*shape)
    for document in ({"racks": some}, {"regions": [{"name": "eu", "zones": [{"name": "z", "racks": some}]}]}):
        read = decode_document(msgspec.json.encode(document))
        kept = [{**rack, "blades": rack["blades"][:1001]} for rack in some]
        assert read.racks == tuple(kept) or read.regions[0]["zones"][0]["racks"] == kept
        assert 0 < max(sizes) <= streaming_json.AT_ONCE


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "says"),
    [
        (b"3]}", "$.racks[9000]: expected object, got int"),
        (b'{}],"rax":1}', "$: object contains unknown field rax"),
        (b'{}],"agreed":1}', "$.agreed: expected str, got int"),
        (b'{"a":nul}]}', "$: JSON is malformed: invalid character"),
        (b'{"a":[0,1e400]}]}', "$.racks[9000][...][1]: number out of range"),
        (b'{"a":"\xff"}]}', "$: 'utf-8' codec can't decode byte 0xff"),
    ],
)
def test_not_even_when_something_is_wrong(sizes: list[int], more: bytes, says: str) -> None:
    with pytest.raises(Invalid, match=re.escape(says)):
        decode_document(msgspec.json.encode({"racks": racks(9_000, 10)})[:-2] + b"," + more)
    assert max(sizes, default=0) <= streaming_json.AT_ONCE


def test_a_rack_with_too_many_blades_is_refused_as_ever() -> None:
    data = msgspec.json.encode({"racks": racks(1, 20_000)})
    said = []
    for read in (decode_document, InventoryDocument.decode):
        with pytest.raises(Invalid) as refused:
            inventory_in({"racks": list(read(data).racks)})
        said.append(str(refused.value))
    assert said[0] == said[1]
    assert "racks[0].blades: a rack has from 1 to 1000, not 1001" in said[0]


def test_what_is_large_and_too_deep_is_refused_as_ever() -> None:
    data = b'{"racks":[{"a":' + b"[" * 100 + b'"' + b"x" * streaming_json.AT_ONCE + b'"' + b"]" * 100 + b"}]}"
    for read in (decode_document, InventoryDocument.decode):
        with pytest.raises(Invalid, match="inventory: nested too deeply"):
            inventory_in({"racks": list(read(data).racks)})
