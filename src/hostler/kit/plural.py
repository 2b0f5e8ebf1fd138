"""Numbers of things, as people read them."""

from __future__ import annotations


def counted(number: int, thing: str, things: str = "") -> str:
    """`1 machine`, `2 machines`, `1,000 machines`; where an s makes no plural of it, `things` is the plural.

    >>> counted(1, "record is", "records are")
    '1 record is'
    """
    return f"{number:,} {thing if number == 1 else things or f'{thing}s'}"
