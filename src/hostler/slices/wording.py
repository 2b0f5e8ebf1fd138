"""What is told of a slice's own errors and values: few words, whatever they do when they are asked for them."""

from __future__ import annotations

MAX_TOLD = 2000
"""Characters of an exception's message, or of a value, that are handed on."""


def message_of(error: BaseException) -> str:
    """Its message; empty: it has none, or cannot say it."""
    try:
        return str(error)[:MAX_TOLD]
    except BaseException:  # noqa: BLE001 - its own __str__ may raise whatever it likes
        return ""


def named(error: BaseException) -> str:
    """Its class, and its message where it has one."""
    said = message_of(error)
    return f"{type(error).__name__}: {said}" if said else type(error).__name__
