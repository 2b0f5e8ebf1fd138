"""YAML as people write it: positions, every doubt at once, and nothing that a hostile file could do."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostler.kit.yaml import Doubts, Location, Malformed, Piece, load, plain, read, wrap

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**17), 10**17)
    | st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Co", "Cn"))),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("abcdef"), inner, max_size=4),
    max_leaves=12,
)


@given(PLAIN)
def test_json_is_read_as_what_it_is(value: object) -> None:
    assert plain(load(json.dumps(value, ensure_ascii=False))) == value
    assert plain(wrap(value)) == value


def test_every_value_knows_its_line() -> None:
    node = load("a: 1\nb:\n  - c: no\n    d:\n      e\n")
    assert isinstance(node.value, dict)
    items = node.value["b"].value
    assert isinstance(items, list)
    inner = items[0].value
    assert isinstance(inner, dict)
    assert (inner["c"].value, inner["c"].line, inner["c"].column) == ("no", 3, 8)
    assert (inner["d"].key_line, inner["d"].line) == (4, 5)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("~", None),
        ("true", True),
        ("yes", "yes"),
        ("12", 12),
        ("1:30", "1:30"),
        ("2026-01-01", "2026-01-01"),
        ("1_000", "1_000"),
        ("0x10", "0x10"),
        ("1.5e3", 1500.0),
        ("'12'", "12"),
        ("|\n  12", "12"),
    ],
)
def test_scalars_are_what_they_look_like(text: str, value: object) -> None:
    found = plain(load(text))
    assert found == value
    assert type(found) is type(value)


def test_a_number_that_is_meant_as_a_name_stays_as_it_was_written() -> None:
    doubts = Doubts()
    assert Piece(load("007"), Location(), doubts).text() == "007"
    assert not doubts


HOSTILE = {
    "laughs": ("a: &a [x,x]\nb: &b [*a,*a]\nc: [*b,*b]", 1, "anchors"),
    "alias": ("a: 1\nb: *a", 2, "aliases"),
    "tag": ("a: !!python/object/apply:os.system [x]", 1, "tags"),
    "deep": ("[" * 100_000, 1, "deep"),
    "deep maps": ("".join(f"{' ' * n}a:\n" for n in range(200)), 33, "deep"),
    "nul": ("a: 1\nb: \0", 2, "U+0000"),
    "surrogate": ("a: \ud800", 1, "U+D800"),
    "latin": (b"a: 1\nb: \xe9", 2, "UTF-8"),
    "twice": ("a: 1\nb:\n  c: 1\n  c: 2", 4, "duplicated; first in line 3"),
    "tab": ("a:\n\tb: 1", 2, "tab"),
    "two documents": ("a: 1\n---\nb: 1", 2, "document"),
    "unclosed": ("a: [1, 2", 2, "began in line 1"),
    "map as key": ("? {a: 1}\n: 1", 1, "key"),
    "huge": ("x" * (16 * 1024 * 1024 + 1), 1, "larger"),
    "version": ("%YAML 9.9\n---\na", 1, "not YAML"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_gives_one_clear_line_at_once(name: str) -> None:
    text, line, word = HOSTILE[name]
    doubts, started = Doubts("f.yaml"), time.process_time()
    assert read(text, doubts) is None
    [told] = doubts.lines()
    assert told.startswith(f"f.yaml:{line}: ")
    assert word in told
    assert "\n" not in told
    assert time.process_time() - started < 1.0


def test_too_many_values_are_refused() -> None:
    with pytest.raises(Malformed, match="too many"):
        load("[" + "1," * 20 + "]", most=20)


@given(st.text(max_size=40) | st.binary(max_size=40))
def test_any_text_is_read_or_refused(text: str | bytes) -> None:
    doubts = Doubts()
    assert (read(text, doubts) is None) == (len(doubts) == 1)


def test_all_doubts_are_told_with_line_and_path() -> None:
    doubts = Doubts("f.yaml")
    top = read("nam: x\nitems:\n  - {n: 0, on: 1, of: z}\n  - 3\ntext: [1]\n'a b': {}\n", doubts)
    assert top is not None
    fields = top.fields("name", "items", "text", "a b")
    top.missing("name")
    for item in fields["items"].items():
        inner = item.fields()
        if inner:
            inner["n"].whole(least=1, most=9)
            inner["on"].flag()
            inner["of"].choice("x", "y")
    fields["text"].text()
    fields["a b"].number()
    assert doubts.lines() == [
        "f.yaml:1: nam: unknown field; did you mean name?",
        "f.yaml:1: name: is missing",
        "f.yaml:3: items[0].n: must be from 1 to 9",
        "f.yaml:3: items[0].on: must be true or false, not 1",
        "f.yaml:3: items[0].of: must be x or y",
        "f.yaml:4: items[1]: must be a map, not 3",
        "f.yaml:5: text: must be text, not a list",
        "f.yaml:6: 'a b': must be a number, not a map",
    ]


def test_what_came_as_json_has_paths_and_no_lines() -> None:
    doubts = Doubts()
    Piece(wrap({"a": ["x"]}), Location(), doubts).fields()["a"].items()[0].whole()
    assert doubts.lines() == ["a[0]: must be a whole number, not 'x'"]


def test_a_flood_of_doubts_is_cut_and_counted() -> None:
    doubts = Doubts("f", most=2)
    for n in range(5):
        doubts.add(Location("x", n + 1), "bad")
    assert doubts.lines() == ["f:1: x: bad", "f:2: x: bad", "f: and 3 more"]
    assert len(doubts) == 5
