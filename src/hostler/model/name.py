"""Case-insensitive names: the key holds the folded name, the record holds the name as the user typed it."""

from __future__ import annotations

import unicodedata


def fold(name: str) -> str:
    """Return the folded form of a name. Names that differ only in case or accent composition fold to the same text."""
    folded = _fold_once(name)
    while (again := _fold_once(folded)) != folded:
        folded = again
    return folded


def _fold_once(text: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", text).casefold())
