"""Plain data as block-style YAML 1.2: dicts with text keys, lists, text, numbers, booleans, None.

Text that a reader could take for another type is double-quoted, with the escapes of JSON, which YAML shares.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# Quote words that some YAML readers take for a boolean, null or number, and everything that is not plainly a word.
_WORD = re.compile(r"[A-Za-z_/][A-Za-z0-9_/.@+-]*")
_RESERVED = frozenset(["true", "false", "yes", "no", "on", "off", "y", "n", "null", "nan", "inf"])
# Unprintable by the rules of YAML, or a line break to some readers; JSON does not escape these.
_ESCAPED = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


def dump(value: object) -> str:
    """Format the value as YAML, ending in a newline."""
    return "\n".join(_lines(value)) + "\n"


def _lines(value: object) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _entry(f"{_scalar(key)}:", item, "  ")
    elif isinstance(value, list | tuple) and value:
        for item in value:
            first, *rest = _lines(item)
            yield f"- {first}"
            yield from (f"  {line}" for line in rest)
    else:
        yield _scalar(value)


def _entry(head: str, item: object, indent: str) -> Iterator[str]:
    if isinstance(item, dict | list | tuple) and item:
        yield head
        yield from (indent + line for line in _lines(item))
    else:
        yield f"{head} {_scalar(item)}"


def _scalar(value: object) -> str:
    if isinstance(value, str):
        if _WORD.fullmatch(value) and value.lower() not in _RESERVED:
            return value
        return _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(value, ensure_ascii=False))
    if value is None or isinstance(value, bool | int | float):
        return json.dumps(value)
    if value == {}:
        return "{}"
    if value in ([], ()):
        return "[]"
    raise TypeError(f"{type(value).__name__} is not plain data")
