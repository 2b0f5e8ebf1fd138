"""Counts and sizes for people."""

from __future__ import annotations


def counted(number: int, thing: str, things: str = "") -> str:
    """Format a count: `1 machine`, `2 machines`, `1,000 machines`; `things` is the plural if it is not regular.

    >>> counted(1, "record is", "records are")
    '1 record is'
    """
    return f"{number:,} {thing if number == 1 else things or f'{thing}s'}"


def sized(size: int) -> str:
    """Format a size: `512 bytes`, `16.1 MiB`, `2.0 GiB`.

    >>> sized(2**31)
    '2.0 GiB'
    """
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= factor:
            return f"{size / factor:,.1f} {unit}"
    return counted(size, "byte")
