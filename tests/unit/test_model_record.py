"""Records: their JSON, and respect for what others wrote."""

from __future__ import annotations

import contextlib
import json
import math
from typing import Any

import msgspec
import pytest
from dose import dose
from hypothesis import given, settings
from hypothesis import strategies as st

from hostler.errors import Damaged, Invalid
from hostler.model.record import Fields, Record


class Leaf(Record, frozen=True, kw_only=True):
    n: int
    f: float = 0.0


class Tree(Record, frozen=True, kw_only=True):
    name: str
    leaf: Leaf
    maybe: Leaf | None = None
    leaves: tuple[Leaf, ...] = ()
    named: dict[str, Leaf] = msgspec.field(default_factory=dict)
    numbered: dict[int, list[Leaf]] = msgspec.field(default_factory=dict)
    text: str = ""


class Renamed(Record, frozen=True, kw_only=True):
    memory_mib: int
    inner: Leaf | None = None

    @classmethod
    def lift(cls, fields: Fields) -> Fields:
        if "memory_gib" in fields and "memory_mib" not in fields:
            gib = msgspec.json.decode(fields.pop("memory_gib"), type=int)
            fields["memory_mib"] = msgspec.Raw(str(gib * 1024).encode())
        return fields


def rewritten(data: bytes, cls: type[Record] = Tree) -> Any:
    return json.loads(cls.decode(data).encode())


FULL = {
    "name": "n",
    "leaf": {"n": 1, "f": 0.5, "x": [1, {"y": None}]},
    "maybe": {"n": 2, "f": 0.0, "deep": {"a": {"b": 1}}},
    "leaves": [{"n": 3, "f": 0.0}, {"n": 4, "f": 0.0, "in list": True}],
    "named": {"k": {"n": 5, "f": 0.0, "in dict": "é\u2028"}},
    "numbered": {"7": [{"n": 6, "f": 0.0, "in both": -0.0}]},
    "text": "",
    "top": "level",
}


def test_unknown_fields_are_kept_at_every_depth() -> None:
    assert rewritten(json.dumps(FULL).encode()) == FULL


def test_a_changed_copy_keeps_unknown_fields() -> None:
    tree = Tree.decode(json.dumps(FULL).encode())
    changed = msgspec.structs.replace(tree, name="other", leaf=msgspec.structs.replace(tree.leaf, n=99))
    expected = FULL | {"name": "other", "leaf": {"n": 99, "f": 0.5, "x": [1, {"y": None}]}}
    assert json.loads(changed.encode()) == expected


def test_big_integers_and_long_floats_in_unknown_fields_keep_their_text() -> None:
    data = b'{"n":1,"a":123456789012345678901234567890,"b":1e400,"c":0.1000000000000000055511151231257827,"d":[1.0, 2]}'
    written = Leaf.decode(data).encode()
    for text in (b"123456789012345678901234567890", b"1e400", b"0.1000000000000000055511151231257827", b"[1.0, 2]"):
        assert text in written


def test_big_integers_in_known_fields_are_exact() -> None:
    big = 2**64 - 1
    assert rewritten(b'{"n":%d}' % big, Leaf)["n"] == big
    assert rewritten(b'{"n":%d}' % (10**40), Leaf)["n"] == 10**40


@pytest.mark.parametrize(
    "spelling",
    [b'"hostler:unknown"', b'"hostler\\u003aunknown"', b'"\\u0068ostler:unknown" '],
    ids=["plain", "esc", "esc2"],
)
def test_a_field_called_as_our_own_is_an_unknown_field_like_any_other(spelling: bytes) -> None:
    data = b'{"n":1,' + spelling + b':{"f":7,"z":1}}'
    leaf = Leaf.decode(data)
    assert leaf.f == 0.0
    assert json.loads(leaf.encode()) == {"n": 1, "f": 0.0, "hostler:unknown": {"f": 7, "z": 1}}
    with pytest.raises(Invalid):
        Leaf.decode(data, strict=True)


def test_a_text_that_mentions_our_own_field_is_only_a_text() -> None:
    tree = Tree(name='"hostler:unknown":', leaf=Leaf(n=1))
    assert Tree.decode(tree.encode()) == tree
    assert Tree.decode(tree.encode(), strict=True) == tree


def test_an_escaped_text_is_no_unknown_field() -> None:
    assert Tree.decode(b'{"name":"\\u00e9","leaf":{"n":1}}', strict=True).name == "é"


def test_a_field_that_is_known_by_now_leaves_the_unknown_ones() -> None:
    class Later(Record, frozen=True, kw_only=True):
        n: int
        added: str = ""

    leaf = Leaf.decode(b'{"n":1,"added":"x"}')
    assert Later.decode(leaf.encode()).added == "x"


def test_strict_refuses_an_unknown_field_with_its_place() -> None:
    with pytest.raises(Invalid, match=r"Tree at \$\.leaves\[0\]: object contains unknown field x"):
        Tree.decode(b'{"name":"","leaf":{"n":1},"leaves":[{"n":1,"x":2}]}', strict=True)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"name":1,"leaf":{"n":1}}', r"Tree at \$\.name: expected str, got int"),
        (b'{"name":"","leaf":{"n":true}}', r"Tree at \$\.leaf\.n: expected int, got bool"),
        (b'{"name":"","x":1,"leaf":{"n":1.0}}', r"Tree at \$\.leaf\.n: expected int, got float"),
        (b'{"name":"","leaf":{"n":1},"leaves":[{"n":1,"u":0},{}]}', r"Tree at \$\.leaves\[1\]: .*missing.*n"),
        (b'{"name":"","leaf":{"n":1},"named":{"k":{"n":"1","u":0}}}', r"Tree at \$\.named\[\.\.\.\]\.n: expected int"),
        (b'{"name":"","leaf":[],"x":1}', r"Tree at \$\.leaf: expected object, got array"),
        (b"[]", r"Tree at \$: expected object, got array"),
        (b"null", r"Tree at \$: expected object, got null"),
        (b"", r"Tree at \$: .*truncated"),
        (b'{"name":"\xff","leaf":{"n":1}}', r"Tree at \$: .*utf-8"),
        (b'{"name":"","leaf":{"n":1},"x":"\xff"}', r"Tree at \$: .*utf-8"),
        (b'{"name":"","leaf":{"n":1}}}', r"Tree at \$: .*trailing"),
        (b'{"name":"","leaf":{"n":1},"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", r"Tree at \$: nested too deeply"),
    ],
)
def test_what_is_no_record_is_refused_with_kind_path_and_reason(data: bytes, message: str) -> None:
    with pytest.raises(Invalid, match=message):
        Tree.decode(data)
    with pytest.raises(Damaged, match=r"^/some/key: " + message):
        Tree.stored(data, where="/some/key")


@pytest.mark.parametrize(
    "record",
    [
        Leaf(n=True),
        Leaf(n="1"),  # type: ignore[arg-type]
        Leaf(n=1, f=math.nan),
        Leaf(n=1, f=math.inf),
        Tree(name="\ud800", leaf=Leaf(n=1)),
        Tree(name="", leaf=object()),  # type: ignore[arg-type]
        Tree(name="", leaf=Leaf(n=None)),  # type: ignore[arg-type]
    ],
    ids=lambda record: repr(record)[:40].encode("ascii", "replace").decode(),
)
def test_a_record_that_could_not_be_read_back_is_not_written(record: Record) -> None:
    with pytest.raises(Invalid):
        record.encode()


def test_an_older_shape_is_lifted_and_keeps_its_unknown_fields() -> None:
    record = Renamed.decode(b'{"memory_gib":2,"other":1,"inner":{"n":1,"o":2}}')
    assert record.memory_mib == 2048
    assert json.loads(record.encode()) == {"memory_mib": 2048, "other": 1, "inner": {"n": 1, "f": 0.0, "o": 2}}


def test_an_older_shape_without_later_fields_is_read_with_their_defaults() -> None:
    assert Leaf.decode(b'{"n":1}') == Leaf(n=1, f=0.0)


names = st.text(max_size=8) | st.sampled_from(
    ["n", "f", "name", "leaf", "hostler:unknown", "unknown", "", "é", "\u0000"]
)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)
leaf_objects = st.builds(
    lambda extra, n, f: extra | {"n": n, "f": f},
    st.dictionaries(names, anything, max_size=3),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
)
tree_objects = st.builds(
    lambda extra, known: extra | known,
    st.dictionaries(names.filter(lambda n: n not in ("leaf", "name")), anything, max_size=3).map(
        lambda d: {k: v for k, v in d.items() if k not in Tree.__struct_encode_fields__ or k == "hostler:unknown"}
    ),
    st.fixed_dictionaries(
        {
            "name": st.text(max_size=8),
            "leaf": leaf_objects,
            "maybe": st.none() | leaf_objects,
            "leaves": st.lists(leaf_objects, max_size=3),
            "named": st.dictionaries(names, leaf_objects, max_size=3),
            "numbered": st.dictionaries(st.integers().map(str), st.lists(leaf_objects, max_size=2), max_size=2),
            "text": st.text(max_size=8),
        }
    ),
)


@pytest.mark.slow
@settings(max_examples=dose(test=80, full=3000), deadline=None)
@given(tree_objects, st.booleans())
def test_reading_and_writing_back_changes_nothing(tree: dict[str, Any], ascii_only: bool) -> None:
    data = json.dumps(tree, ensure_ascii=ascii_only).encode()
    once = Tree.decode(data)
    assert json.loads(once.encode()) == tree
    assert Tree.decode(once.encode()) == once


@settings(max_examples=dose(test=60, full=2000), deadline=None)
@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_no_bytes_make_it_raise_anything_but_invalid(data: bytes) -> None:
    with contextlib.suppress(Invalid):
        Leaf.decode(data)


def test_a_pattern_is_told_in_words_where_its_model_has_some() -> None:
    from hostler.model.vm_api import SnapshotRequest

    with pytest.raises(Invalid, match=r"at \$\.name: expected str without '/' and control characters"):
        SnapshotRequest.decode(b'{"name":"a/b"}', strict=True)
