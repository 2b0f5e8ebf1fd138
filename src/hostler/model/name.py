"""Names and one-line texts that users write.

Names are case-insensitive: the key holds the folded name, the record the name as the user typed it. A line of text must
not contain invisible characters.
"""

from __future__ import annotations

import unicodedata

from hostler.errors import Invalid


def fold(name: str) -> str:
    """Return the folded form of a name. Names that differ only in case or accent composition fold to the same text."""
    folded = _fold_once(name)
    while (again := _fold_once(folded)) != folded:
        folded = again
    return folded


def _fold_once(text: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", text).casefold())


_BARRED = frozenset(("Cc", "Cs", "Zl", "Zp"))
_DRAWN = frozenset(("Cn", "Co"))
"""Private-use characters, and characters newer than the Unicode version of this Python: drawn at least as a box."""
_JOINERS = frozenset("\u200c\u200d")
_BLANK = frozenset("\u115f\u1160\u2800\u3164\uffa0")
"""Characters whose Unicode category is a letter or symbol, but which are drawn as blank."""
_TAGS = frozenset(map(chr, range(0xE0000, 0xE1000)))


def shows(text: str) -> bool:
    """Return whether the text has a visible character. Spaces, format characters and lone accents are invisible."""
    return any(
        char not in _BLANK and not _hidden(char) and (category[0] in "LNPS" or category in _DRAWN)
        for char, category in ((char, unicodedata.category(char)) for char in text)
    )


def hidden_in(text: str) -> str | None:
    """Return the first invisible format character of the text, including text-direction marks, or None.

    A joiner between two letters or symbols is allowed, because some scripts and emoji need it.
    """
    for at, char in enumerate(text):
        if not _hidden(char):
            continue
        joins = char in _JOINERS and 0 < at < len(text) - 1
        if not joins or not _joined(text[at - 1], "LMS") or not _joined(text[at + 1], "LS"):
            return char
    return None


def check_line(text: str, what: str) -> str:
    """Return `text` if it is visible and fits on one line. Raise Invalid otherwise."""
    barred = next((char for char in text if unicodedata.category(char) in _BARRED), None)
    if barred is not None:
        raise Invalid(f"{what}: must not hold {barred!r}; write it on one line, without control characters")
    hidden = hidden_in(text)
    if hidden is not None:
        raise Invalid(f"{what}: must not hold {hidden!r}, which is invisible; leave it out")
    if not shows(text):
        raise Invalid(f"{what}: has no visible character; write a text")
    return text


def _hidden(char: str) -> bool:
    category = unicodedata.category(char)
    return category == "Cf" or (category == "Cn" and (char == "\u2065" or "\ufff0" <= char < "\ufff9" or char in _TAGS))


def _joined(char: str, sorts: str) -> bool:
    return char not in _BLANK and unicodedata.category(char)[0] in sorts
