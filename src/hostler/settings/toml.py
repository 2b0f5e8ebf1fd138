"""Strict TOML for our files: everything in a file is understood, or refused with its position."""

from __future__ import annotations

import re
import tomllib
from typing import Any

from hostler.errors import Invalid

DEPTH = 16
"""The deepest nesting of tables and arrays."""
LARGEST = 2**63 - 1
PARTS = 16
"""The largest number of dotted parts of a key: the cost of reading a key grows with their square."""
_TOKEN = re.compile(
    r"""
    (?P<word> \"""(?:[^"\\]++|\\.|"(?!""))*+"{0,5}+ | '''(?:[^']++|'(?!''))*+'{0,5}+
            | "(?:[^"\\\n]++|\\[^\n])*+"? | '[^'\n]*+'? | [\w-]++ | [ \t]++ )
    | (?P<dot> \. )
    | \#[^\n]*+
    | .
    """,
    re.VERBOSE | re.DOTALL,
)
"""The pattern never backtracks, so its time is linear in the length of the text."""


def parse_toml(name: str, text: str) -> dict[str, Any]:
    """Parse the text of the file `name`. Invalid: it is not TOML, or contains values that no setting can take."""
    _check_keys(name, text)
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise Invalid(f"{name}: not TOML: {error}") from None
    except ValueError:  # Python does not parse numbers of thousands of digits
        raise Invalid(f"{name}: a number in it has too many digits; write a smaller one") from None
    except RecursionError:
        raise _too_deep(name) from None
    _check(name, table)
    return table


def _check_keys(name: str, text: str) -> None:
    """Invalid: a key has too many parts."""
    if text.count(".") < PARTS:
        return
    dots = 0
    for found in _TOKEN.finditer(text):
        if found.lastgroup == "dot":
            dots += 1
            if dots >= PARTS:
                line = text.count("\n", 0, found.start()) + 1
                raise Invalid(f"{name}: a key is too deep, it has more than {PARTS} parts (at line {line}); shorten it")
        elif found.lastgroup != "word":
            dots = 0


def _check(name: str, table: dict[str, Any]) -> None:
    left: list[tuple[object, int]] = [(table, 0)]
    while left:
        value, depth = left.pop()
        if depth > DEPTH:
            raise _too_deep(name)
        if isinstance(value, int) and abs(value) > LARGEST:
            raise Invalid(f"{name}: a number in it is too large; write a smaller one")
        if isinstance(value, dict | list):
            inside = value.values() if isinstance(value, dict) else value
            left += ((each, depth + 1) for each in inside)


def _too_deep(name: str) -> Invalid:
    return Invalid(f"{name}: tables or arrays are nested too deep; remove some levels")
