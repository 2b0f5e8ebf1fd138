"""Text helpers for messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

SHORT = 80
"""Length of a text that is quoted inside a sentence."""
_NAMED = 5


def clip(text: str, most: int = SHORT) -> str:
    """Shorten the text to `most` characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def instances(numbers: Sequence[int]) -> str:
    """Return a short list of instance numbers."""
    shown = ", ".join(map(str, numbers[:_NAMED]))
    more = f" and {len(numbers) - _NAMED} more" if len(numbers) > _NAMED else ""
    return f"instance{'s' if len(numbers) > 1 else ''} {shown}{more}"
