"""What people and programs read: values shown safely, YAML that means what it says."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostler.entry.cli import show
from hostler.ports.store import Event, KeyValue


def test_text_is_shown_as_text_and_bytes_as_marked_base64() -> None:
    assert show.plain_value("grün".encode()) == {"value": "grün", "encoding": "text"}
    assert show.plain_value(b"\xff\x00") == {"value": "/wA=", "encoding": "base64"}
    assert show.value_line(b"\xff\x00") == "(base64) /wA="


def test_no_stored_value_can_move_the_cursor() -> None:
    nasty = b"\x1b[2J\x07a\nb\r\x9bc"
    assert show.value_line(b"\x1b[2J\na") == "\\x1b[2J\\na"
    assert "\x1b" not in show.value_block(nasty)
    assert show.safe("/a\x1b[31m\n") == "/a\\x1b[31m\\n"


def test_short_json_is_laid_out_and_what_only_looks_like_it_is_left() -> None:
    assert show.value_block(b'{"a":[1]}') == '{\n  "a": [\n    1\n  ]\n}'
    assert show.value_block(b"{not json") == "{not json"


def test_an_event_as_plain_data_says_what_stood_there_before() -> None:
    old = KeyValue("/a", b"1", 2, 2, 1)
    gone = Event("delete", KeyValue("/a", b"", 0, 3, 0), old)
    assert show.plain_event(gone) == {
        "type": "delete",
        "key": "/a",
        "mod_revision": 3,
        "previous": {"value": "1", "encoding": "text", "mod_revision": 2},
    }


def test_a_table_keeps_the_widths_of_its_first_rows_and_cuts_nothing_off_a_terminal() -> None:
    lines: list[str] = []
    table = show.Columns("KEY", "VALUE", write=lines.append)
    table.rows([["/a", "x" * 500]])
    table.rows([["/bb", "y"]])
    assert lines[1:] == ["/a   " + "x" * 500, "/bb  y"]


# A reader for the YAML that we write, and no more than that: it shares nothing with the writer.


def read_yaml(text: str) -> Any:
    lines = text.splitlines()
    value, rest = _read(lines, 0)
    assert rest == len(lines), lines[rest:]
    return value


def _read(lines: list[str], at: int) -> tuple[Any, int]:
    indent = len(lines[at]) - len(lines[at].lstrip(" "))
    if lines[at].lstrip(" ").startswith("- "):
        items = []
        while at < len(lines) and lines[at].startswith(" " * indent + "- "):
            lines[at] = " " * (indent + 2) + lines[at][indent + 2 :]
            item, at = _read(lines, at)
            items.append(item)
        return items, at
    table: dict[str, Any] = {}
    while at < len(lines):
        found = re.fullmatch(" " * indent + r'("(?:[^"\\]|\\.)*"|[^ "][^ ]*?):(?: (.*))?', lines[at])
        if found is None:
            if not table:
                return _scalar(lines[at].strip(" ")), at + 1
            return table, at
        name = _scalar(found[1])
        if found[2] is None:
            table[name], at = _read(lines, at + 1)
        else:
            table[name], at = _scalar(found[2]), at + 1
    return table, at


def _scalar(text: str) -> Any:
    if text.startswith('"') or text in ("{}", "[]", "null", "true", "false") or re.match(r"-?\d", text):
        return json.loads(text)
    assert re.fullmatch(r"[A-Za-z_/][\w/.@+-]*", text), text
    assert text.lower() not in ("yes", "no", "on", "off", "y", "n", "~", "null", "true", "false")
    return text


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.slow
@given(plain)
def test_yaml_reads_back_as_what_was_written(value: object) -> None:
    assert read_yaml(show.yaml_text(value)) == value


@given(st.text())
def test_yaml_text_is_printable(text: str) -> None:
    written = show.yaml_text(text).removesuffix("\n")
    assert not re.search("[\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]", written)


@pytest.mark.parametrize("word", ["true", "No", "on", "null", "~", "", "1", "1e3", "0x1", "- a", "a: b", "#", "=", "y"])
def test_yaml_quotes_what_could_be_read_as_something_else(word: str) -> None:
    assert show.yaml_text({"v": word}) == f"v: {json.dumps(word)}\n"
