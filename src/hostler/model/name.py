"""Names that are matched without regard to case: the key holds the folded name, the record the name as typed."""

from __future__ import annotations

import unicodedata


def fold(name: str) -> str:
    """The form in which names that differ only in case, or in how an accent is composed, are equal."""
    folded = _fold_once(name)
    while (again := _fold_once(folded)) != folded:
        folded = again
    return folded


def _fold_once(text: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", text).casefold())
