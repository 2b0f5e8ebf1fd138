"""One line of text that people write for others to read: what is shown of it is all that it holds."""

from __future__ import annotations

import unicodedata

from hostler.errors import Invalid

_BARRED = frozenset(("Cc", "Cs", "Zl", "Zp"))
_DRAWN = frozenset(("Cn", "Co"))
"""Signs that are newer than what is known here, and private ones: a box at least."""
_JOINERS = frozenset("\u200c\u200d")
_BLANK = frozenset("\u115f\u1160\u2800\u3164\uffa0")
"""Letters and signs by their category, and nothing to be seen."""
_TAGS = frozenset(map(chr, range(0xE0000, 0xE1000)))


def shows(text: str) -> bool:
    """Whether anything of it is to be seen: spaces, format characters and accents on nothing are not."""
    return any(
        char not in _BLANK and not _hidden(char) and (category[0] in "LNPS" or category in _DRAWN)
        for char, category in ((char, unicodedata.category(char)) for char in text)
    )


def hidden_in(text: str) -> str | None:
    """The first format character, which nobody sees or which turns the text around; None: there is none.

    What joins two letters or signs, as some languages and pictures need it, is none.
    """
    for at, char in enumerate(text):
        if not _hidden(char):
            continue
        joins = char in _JOINERS and 0 < at < len(text) - 1
        if not joins or not _joined(text[at - 1], "LMS") or not _joined(text[at + 1], "LS"):
            return char
    return None


def check_line(text: str, what: str) -> str:
    """`text`, if it can be shown on one line, wherever that is. Invalid: it cannot, or nothing would be seen."""
    barred = next((char for char in text if unicodedata.category(char) in _BARRED), None)
    if barred is not None:
        raise Invalid(f"{what}: must not hold {barred!r}; write it on one line, without control characters")
    hidden = hidden_in(text)
    if hidden is not None:
        raise Invalid(f"{what}: must not hold {hidden!r}, which nobody sees; leave it out")
    if not shows(text):
        raise Invalid(f"{what}: nothing of it can be seen; write a text")
    return text


def _hidden(char: str) -> bool:
    category = unicodedata.category(char)
    return category == "Cf" or (category == "Cn" and (char == "\u2065" or "\ufff0" <= char < "\ufff9" or char in _TAGS))


def _joined(char: str, sorts: str) -> bool:
    return char not in _BLANK and unicodedata.category(char)[0] in sorts
