"""The parts of a key: what is allowed between two slashes.

A part is never empty, never `.` or `..`, contains no `/`, no control character or line separator and no lone surrogate,
and has at most `MAX_PART` bytes. So it can neither leave its segment nor make two keys look the same in a listing.
"""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING

import msgspec

from hostler.errors import Invalid
from hostler.model.access import EVERYWHERE
from hostler.model.deployment import Artifact
from hostler.model.lab import lab_project, lab_user
from hostler.model.name import fold
from hostler.model.text_line import shows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MAX_PART = 255
"""Bytes of UTF-8."""
MAX_USER = 4 * 255
"""Bytes of a web user id, which has at most 255 characters, and of the project of that user's lab."""
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._:-]{0,254}", re.ASCII)
PLAIN = {
    "text": _PLAIN,
    "project": _PLAIN,
    "user": _PLAIN,
    "name": re.compile(r"[a-z0-9_][a-z0-9._:-]{0,254}", re.ASCII),
    "rack": re.compile(r"[a-z0-9_][a-z0-9._:]{0,254}", re.ASCII),
    "artifact": re.compile(
        r"(?=[^/]{5,255}(?:/|\Z))[A-Za-z0-9_][A-Za-z0-9._+-]*(?::[A-Za-z0-9_][A-Za-z0-9._+-]*){2}", re.ASCII
    ),
    "base": re.compile(r"(?=[^/]{3,250}(?:/|\Z))[A-Za-z0-9_][A-Za-z0-9._+-]*:[A-Za-z0-9_][A-Za-z0-9._+-]*", re.ASCII),
}
"""By kind: parts that are certainly valid, and appear in the key unchanged."""
_NUMBER = re.compile(r"[1-9][0-9]{0,17}|0", re.ASCII)
_BARRED = frozenset(("Cc", "Cs", "Zl", "Zp"))


def check_part(text: str, what: str = "part", *, most: int = MAX_PART) -> str:
    """Return `text` if it can be a part of a key. Invalid: it cannot."""
    if not isinstance(text, str):
        raise Invalid(f"{what} {text!r}: must be a str, not {type(text).__name__}")
    if _PLAIN.fullmatch(text):
        return text
    if not text:
        raise Invalid(f"{what}: must not be empty")
    if text in (".", ".."):
        raise Invalid(f"{what} {text!r}: must not be . or ..")
    if "/" in text:
        raise Invalid(f"{what} {_short(text)}: must not hold a '/'")
    barred = next((char for char in text if unicodedata.category(char) in _BARRED), None)
    if barred is not None:
        raise Invalid(f"{what} {_short(text)}: must not hold {barred!r} (control characters and surrogates)")
    size = len(text.encode())
    if size > most:
        raise Invalid(f"{what} {_short(text)}: takes {size} bytes, at most {most} are allowed")
    return text


def check_new(text: str, what: str = "name") -> str:
    """Return `text` if it is allowed as the name of a new object. Invalid: people could not see what it says.

    Existing objects may have such a name, and can still be read, changed and removed.
    """
    if _PLAIN.fullmatch(check_part(text, what)):
        return text
    if not text.strip() or not shows(text):
        raise Invalid(f"{what} {text!r}: must not be blank")
    hidden = next((char for char in text if unicodedata.category(char) == "Cf"), None)
    if hidden is not None:
        raise Invalid(f"{what} {_short(text)}: must not hold {hidden!r}, which is invisible; leave it out")
    return text


def check_home(org: str, project: str, subject: str = "") -> None:
    """Raise Invalid unless a new object can be created in this org and project."""
    for what, text in (("org", org), ("project", project)):
        if check_new(text, f"{subject}{what}") == EVERYWHERE:
            raise Invalid(f"{subject}{what} {text!r}: means all of them; name one")


def _short(text: str) -> str:
    return repr(text) if len(text) <= 80 else f"{text[:80]!r}…"


def _text(value: str | int, what: str) -> str:
    return check_part(value, what)  # type: ignore[arg-type]


def _project(value: str | int, what: str) -> str:
    return check_part(value, what, most=MAX_USER)  # type: ignore[arg-type]


def _user(value: str | int, what: str) -> str:
    if not isinstance(value, str):
        raise Invalid(f"{what} {value!r}: must be a str, not {type(value).__name__}")
    return check_part(lab_project(value), what, most=MAX_USER)


def _name(value: str | int, what: str) -> str:
    return check_part(fold(_text(value, what)), what)


def _rack(value: str | int, what: str) -> str:
    name = _name(value, what)
    if "-" in name:
        raise Invalid(f"{what} {name!r}: a rack id must not hold a '-', because a node id is rack-blade")
    return name


def _number(value: str | int, what: str) -> str:
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(text, str) or not _NUMBER.fullmatch(text):
        raise Invalid(f"{what} {value!r}: must be a whole number of at least 0, written without leading zeros")
    return text


def _artifact(value: str | int, what: str) -> str:
    return str(Artifact.parse(_text(value, what)))


def _base(value: str | int, what: str) -> str:
    text = _text(value, what)
    Artifact.parse(f"{text}:0")
    return text


KINDS: Mapping[str, Callable[[str | int, str], str]] = {
    "text": _text,
    "project": _project,
    "user": _user,
    "name": _name,
    "rack": _rack,
    "int": _number,
    "artifact": _artifact,
    "base": _base,
}
"""The kinds of parts, and the function that checks each.

Unchanged text; a project, which may be longer; a web user id, which is escaped in the key; case-folded text; a folded
rack id; a number; `group:name:version`; `group:name`.
"""


class Segment(msgspec.Struct, frozen=True):
    """The place of a part in a template: its name, its kind, and the separators it may not contain."""

    name: str
    kind: str
    barred: str = ""

    def canonical(self, value: str | int) -> str:
        """Return the text in the key. Invalid: `value` is not allowed here."""
        text = KINDS[self.kind](value, self.name)
        for separator in self.barred:
            if separator in text:
                raise Invalid(f"{self.name} {text!r}: must not hold {separator!r}, which ends it in the key")
        return text

    def value(self, text: str) -> str:
        """Return the value that `canonical` made this text from; names stay folded."""
        return lab_user(text) if self.kind == "user" else text

    def matches(self, text: str) -> bool:
        """Return whether `text` is what `canonical` would produce."""
        if self.kind == "text" and not self.barred and _PLAIN.fullmatch(text):
            return True  # fast path for most parts
        try:
            return self.canonical(self.value(text)) == text
        except Invalid:
            return False
