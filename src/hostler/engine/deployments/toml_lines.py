"""Finds the line of a path such as `slices[2].strategy.type` in a blueprint file (TOML or JSON). Pure.

The parsers of both formats keep no line numbers. This module searches only for keys, to point users to an error. If a
path is not found, the line of its nearest parent is used.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_SAID = re.compile(r"\bline (\d{1,9})\b")
_HEADER = re.compile(r"(\[\[?)([^\[\]]++)\]\]?\s*+(?:#.*)?$")
_KEY = re.compile(r"""((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""")
_PIECE = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|\n')
_PART = re.compile(r"[^.\[\]]+|\[\d+\]")
_LONGEST = 500
"""Characters of a line and of a key that are examined; more than users write."""
_DEEPEST = 5000
"""Maximum length of a path in characters; deeper ones are not followed."""


def line_of(text: str, place: str, what: str = "") -> int:
    """Return the line number, from 1; 0: unknown. `what`: the error message, which may contain the line number."""
    return lines_of(text, [(place, what)])[0]


def lines_of(text: str, faults: Sequence[tuple[str, str]]) -> list[int]:
    """Return the line of each error, given as (path, message). The text is scanned once."""
    within = {place: _within(place) for place, _ in faults if place}
    wanted = {path for paths in within.values() for path in paths}
    found: dict[str, int] = {}
    if wanted:
        for path, line in _in_json(text) if text.lstrip()[:1] == "{" else _in_toml(text):
            if path in wanted:
                found.setdefault(path, line)
    return [
        next((found[path] for path in within[place] if path in found), 0) if place else _said(text, what)
        for place, what in faults
    ]


def _said(text: str, what: str) -> int:
    if "end of document" in what:
        return text.rstrip().count("\n") + 1
    said = _SAID.search(what)
    return int(said.group(1)) if said else 0


def _within(place: str) -> list[str]:
    """Return the path, its parent, and so on up to the root."""
    parts = _PART.findall(place)
    return [_joined(parts[:end]) for end in range(len(parts), 0, -1)]


def _joined(parts: list[str]) -> str:
    """`slices`, `[2]`, `type` → `slices[2].type`."""
    path = ""
    for part in parts:
        path += part if part.startswith("[") or not path else f".{part}"
    return path


def _in_toml(text: str) -> Iterator[tuple[str, int]]:
    numbers: dict[str, int] = {}
    table = ""
    for number, whole in enumerate(text.split("\n"), start=1):
        line = whole[:_LONGEST].strip()
        if header := _HEADER.match(line):
            name = ".".join(_names(header.group(2)))
            if header.group(1) == "[[":
                numbers[name] = numbers.get(name, -1) + 1
            table = _numbered(name, numbers)
            yield table, number
            yield table.removesuffix(f"[{numbers.get(name)}]"), number
        elif key := _KEY.match(line):
            for name in _growing(_names(key.group(1))):
                yield f"{table}.{name}" if table else name, number


def _names(dotted: str) -> list[str]:
    return [part.strip().strip("\"'") for part in dotted.split(".")]


def _growing(names: list[str]) -> Iterator[str]:
    for end in range(1, len(names) + 1):
        yield ".".join(names[:end])


def _numbered(name: str, numbers: dict[str, int]) -> str:
    """`slices.strategy` in the third `[[slices]]` → `slices[2].strategy`."""
    path = ""
    for grown, part in zip(_growing(name.split(".")), name.split(".")):
        path = f"{path}.{part}" if path else part
        if grown in numbers:
            path += f"[{numbers[grown]}]"
    return path


def _in_json(text: str) -> Iterator[tuple[str, int]]:
    line, path = 1, [""]  # paths of the objects and arrays that are open
    count: list[int] = [-1]  # -1: an object; otherwise the index of the element in an array
    key: str | None = None
    last = ""
    for piece in _PIECE.findall(text):
        if piece == "\n":
            line += 1
        elif piece in "{[":
            here = path[-1] if count[-1] < 0 else f"{path[-1]}[{count[-1]}]"
            if key is not None and len(here) < _DEEPEST:
                here = f"{here}.{key}" if here else key
            yield here, line
            path.append(here)
            count.append(0 if piece == "[" else -1)
            key = None
        elif piece in "}]":
            if len(path) > 1:
                path.pop()
                count.pop()
            key = None
        elif piece == ",":
            key = None
            if count[-1] >= 0:
                count[-1] += 1
        elif piece == ":":
            key = _text(last)[:_LONGEST]
            yield (f"{path[-1]}.{key}" if path[-1] else key), line
        else:
            last = piece


def _text(piece: str) -> str:
    try:
        return str(json.loads(piece))
    except ValueError:
        return piece
