"""Key templates: `/plasmavmc/vms/{org}/{project}/{vm}`, filled, parsed and cut to prefixes; and what a part may be.

`fill` and `parse` are exact inverses. A part's kind follows its name, `{n:int}`; without one the text is unchanged, and
a `{project}` is always of the kind `project`. Several parts may share a segment if exactly one character separates each
two of them; none of them may contain that character.

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
from hostler.model.name import fold, shows

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


class Part(msgspec.Struct, frozen=True):
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


RESERVED = frozenset(
    ("self", "store", "value", "entry", "lease", "revision", "start_revision", "previous", "page_size", "strict")
)
"""Parameter names of the verbs of a Key."""
_KNOWN = 20_000
"""Size of the cache of filled keys, for templates with one part."""
_PLACE = re.compile(r"\{([a-z_]+)(?::([a-z]+))?\}")


class _Segment(msgspec.Struct, frozen=True):
    """The text between two slashes: literals and parts in turn, a literal first and last."""

    literals: tuple[str, ...]
    parts: tuple[Part, ...]
    pattern: re.Pattern[str]
    bare: bool
    """The segment is one part and nothing else."""


class _Quick(msgspec.Struct, frozen=True):
    """Fast path for parts that appear in the key unchanged; all others take the full check.

    Every request fills several keys, and a start reads hundreds of thousands.
    """

    form: str
    """The key as a format string."""
    pattern: re.Pattern[str]
    """Matches keys all of whose parts are plain."""


class Template:
    """A key with places for its parts."""

    def __init__(self, template: str) -> None:
        self.text = template
        self._segments = tuple(_segment(template, text) for text in template.split("/"))
        self.parts = tuple(part for segment in self._segments for part in segment.parts)
        self.names = tuple(part.name for part in self.parts)
        self._quick = _quick(self._segments)
        self._known: dict[str, str] = {}
        self._only = self.names[0] if len(self.names) == 1 else None
        self._root = self._cut({}) if self.names else ""
        if len(set(self.names)) < len(self.names) or RESERVED.intersection(self.names):
            raise ValueError(f"template {template}: a name is used twice or is one of {sorted(RESERVED)}")

    def __repr__(self) -> str:
        return f"Template({self.text!r})"

    def fill(self, values: dict[str, str | int]) -> str:
        """Return the key with these parts. Invalid: one is missing, superfluous, or not allowed."""
        if self._only is not None:
            # There are thousands of nodes, workloads and users, and their keys are built again and again.
            text = values.get(self._only)
            key = self._known.get(text) if type(text) is str and len(values) == 1 else None
            return key or self._cached_key(values)
        return self._build_key(values)

    def _cached_key(self, values: dict[str, str | int]) -> str:
        key, text = self._build_key(values), values[self.names[0]]
        if type(text) is str:
            if len(self._known) >= _KNOWN:
                self._known.clear()
            self._known[text] = key
        return key

    def _build_key(self, values: dict[str, str | int]) -> str:
        try:
            texts = tuple([values[name] for name in self.names])
        except KeyError:
            raise self._wrong_parts(values) from None
        if len(values) != len(texts):
            raise self._wrong_parts(values)
        if self._quick is not None:
            for text in texts:  # a plain loop: every request does this often
                if type(text) is not str:
                    break
            else:
                key = self._quick.form % texts
                # no plain part contains a slash: each is one segment
                if self._quick.pattern.fullmatch(key) is not None:
                    return key
        return "/".join(self._segment_text(segment, values) for segment in self._segments)

    def parse(self, key: str) -> dict[str, str] | None:
        """Return the parts of a key; None if the key does not match the template."""
        if self._quick is not None and (quick := self._quick.pattern.fullmatch(key)) is not None:
            return dict(zip(self.names, quick.groups()))
        texts = key.split("/")
        if len(texts) != len(self._segments):
            return None
        found: dict[str, str] = {}
        for segment, text in zip(self._segments, texts):
            if not segment.parts:
                if text != segment.literals[0]:
                    return None
                continue
            values: tuple[str, ...] = (text,)
            if not segment.bare:
                match = segment.pattern.fullmatch(text)
                if match is None:
                    return None
                values = match.groups()
            for part, value in zip(segment.parts, values):
                if not part.matches(value):
                    return None
                found[part.name] = part.value(value)
        return found

    def matches(self, key: str) -> bool:
        """Return whether the key matches the template."""
        if self._quick is not None and self._quick.pattern.fullmatch(key) is not None:
            return True
        return self.parse(key) is not None

    def prefix(self, values: dict[str, str | int]) -> str:
        """Return the common prefix of all keys with these leading parts, including the last slash.

        Invalid: a part is given and one before it, or one of its own segment, is not.
        """
        return self._cut(values) if values or not self._root else self._root  # caches list whole families very often

    def _cut(self, values: dict[str, str | int]) -> str:
        done: list[str] = []
        left = dict(values)
        for segment in self._segments:
            if segment.parts and any(part.name not in left for part in segment.parts):
                break
            done.append(self._segment_text(segment, left))
            for part in segment.parts:
                del left[part.name]
        if left or len(done) == len(self._segments):
            raise Invalid(
                f"prefix of {self.text}: takes the leading parts of {', '.join(self.names) or 'no parts'},"
                f" whole segments, not all; given: {', '.join(values) or 'none'}"
            )
        return "/".join(done) + "/"

    def _segment_text(self, segment: _Segment, values: dict[str, str | int]) -> str:
        if not segment.parts:
            return segment.literals[0]
        pieces = [segment.literals[0]]
        for part, literal in zip(segment.parts, segment.literals[1:]):
            pieces += (part.canonical(values[part.name]), literal)
        return "".join(pieces)

    def _wrong_parts(self, values: dict[str, str | int]) -> Invalid:
        return Invalid(
            f"key {self.text}: needs {', '.join(self.names) or 'no parts'}; given: {', '.join(values) or 'none'}"
        )


def _quick(segments: tuple[_Segment, ...]) -> _Quick | None:
    """Return the fast path of a template whose parts each fill a segment; None: it has none."""
    parts = [part for segment in segments for part in segment.parts]
    if any(segment.parts and not segment.bare for segment in segments) or any(p.kind not in PLAIN for p in parts):
        return None
    form = "/".join("%s" if segment.parts else segment.literals[0].replace("%", "%%") for segment in segments)
    pattern = "/".join(
        f"({PLAIN[segment.parts[0].kind].pattern})" if segment.parts else re.escape(segment.literals[0])
        for segment in segments
    )
    return _Quick(form, re.compile(pattern, re.ASCII))


def _segment(template: str, text: str) -> _Segment:
    pieces = _PLACE.split(text)
    literals, names, kinds = pieces[0::3], pieces[1::3], pieces[2::3]
    between = literals[1:-1]
    if any(kind not in (None, *KINDS) for kind in kinds) or any(
        "{" in literal or "}" in literal for literal in literals
    ):
        raise ValueError(f"template {template}: {text!r} has a place that is not {{name}} or {{name:kind}}")
    if any(len(literal) != 1 for literal in between):
        raise ValueError(f"template {template}: in {text!r} exactly one character must separate two parts")
    barred = "".join(dict.fromkeys(between))
    parts = tuple(
        Part(name, kind or ("project" if name == "project" else "text"), barred) for name, kind in zip(names, kinds)
    )
    place = f"([^{re.escape(barred)}]+)" if barred else "(.+)"
    pattern = re.compile(place.join(map(re.escape, literals)), re.DOTALL)
    return _Segment(tuple(literals), parts, pattern, literals == ["", ""])
