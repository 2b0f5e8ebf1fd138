"""Words for people that several parts say."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

SHORT = 80
"""Characters of what is one part of a sentence."""
_NAMED = 5


def clipped(text: str, most: int = SHORT) -> str:
    """Not longer than that."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def instances(numbers: Sequence[int]) -> str:
    """Which instances, in a few words."""
    shown = ", ".join(map(str, numbers[:_NAMED]))
    more = f" and {len(numbers) - _NAMED} more" if len(numbers) > _NAMED else ""
    return f"instance{'s' if len(numbers) > 1 else ''} {shown}{more}"
