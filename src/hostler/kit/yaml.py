"""YAML for files that people write: a small, safe subset, in which every value has its line number.

Maps, lists and scalars. No tags, no anchors and aliases, no duplicate keys, one document, bounded in size, number of
values and depth: a hostile file costs no more than a benign one of its length. JSON is read as well.

A plain scalar is `null`, `true`, `false`, a whole number, a number, or text: `no`, `on`, `1:30` and `2026-01-01` are
text. Keys are always text, as written.

    doubts = Doubts("racks.yaml")
    top = read(text, doubts)                      # a Piece; None: not YAML, and doubts say where and why
    fields = top.fields("name", "blades")         # unknown fields become doubts
    name = fields["name"].text(most=63) if "name" in fields else top.missing("name")
    for line in doubts.lines(): ...               # "racks.yaml:7: racks[0].blades[3].cpus: must be from 1 to 4096"

Reading continues after an error, with a harmless value in its place, so that all errors are reported at once.
"""

from __future__ import annotations

import difflib
import math
import re
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator

LARGEST = 16 * 1024 * 1024
MOST = 2_000_000
DEEPEST = 32

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x80-\x84\x86-\x9f\ud800-\udfff\ufffe\uffff]")
_WHOLE = re.compile(r"[-+]?[0-9]{1,18}")
_NUMBER = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]{1,3})?")
_WORDS: dict[str, bool | None] = {"": None, "~": None, "null": None, "true": True, "false": False}
_PLAIN_NAME = re.compile(r"[^\s.\[\]:\"']+")

Scalar: TypeAlias = str | int | float | bool | None


class Malformed(ValueError):
    """Not YAML, or not in the supported subset. The message does not include the position.

    `line` and `column` count from 1.
    """

    def __init__(self, what: str, line: int, column: int = 1) -> None:
        super().__init__(what)
        self.what, self.line, self.column = what, line, column


class Node:
    """One value: a dict by key, a list, or a scalar; and its position. Line 0: it does not come from a file."""

    __slots__ = ("column", "key_line", "line", "value", "written")

    def __init__(self, value: dict[str, Node] | list[Node] | Scalar, line: int = 0, column: int = 0) -> None:
        self.value, self.line, self.column = value, line, column
        self.key_line = line
        """The line of its key, if it has one: its value may begin lines later."""
        self.written = ""
        """A number as it was written: `007` may be a name."""

    def __repr__(self) -> str:
        return f"Node({plain(self)!r}, line={self.line})"


def load(
    text: str | bytes, *, largest: int = LARGEST, most: int = MOST, deepest: int = DEEPEST, aliases: bool = False
) -> Node:
    """Return the document in `text`. Malformed: not YAML, or not in the supported subset.

    `aliases`: read anchors and aliases; every use of an anchor counts as if it were written out. `<<` stays a key.
    """
    return _Building(most, deepest, aliases=aliases).build(_clean(text, largest))


def plain(node: Node) -> Any:
    """Return the value as dicts, lists and scalars."""
    if isinstance(node.value, dict):
        return {key: plain(item) for key, item in node.value.items()}
    if isinstance(node.value, list):
        return [plain(item) for item in node.value]
    return node.value


def wrap(value: Any, *, deepest: int = DEEPEST) -> Node:
    """Return decoded JSON as nodes without lines. Malformed: nested too deeply, or not JSON."""
    if deepest < 0:
        raise Malformed("nested too deeply", 0)
    if isinstance(value, dict):
        return Node({str(key): wrap(item, deepest=deepest - 1) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return Node([wrap(item, deepest=deepest - 1) for item in value])
    if value is None or isinstance(value, str | int | float):
        return Node(value)
    raise Malformed(f"a {type(value).__name__} is not JSON", 0)


class Location(NamedTuple):
    """The position of an error: `racks[0].blades[3].cpus`, and the line; 0: not in a file."""

    path: str = ""
    line: int = 0

    def field(self, name: str, line: int = 0) -> Location:
        """Return the place of a field inside."""
        shown = name if _PLAIN_NAME.fullmatch(name) else repr(name)
        return Location(f"{self.path}.{shown}" if self.path else shown, line or self.line)

    def item(self, number: int, line: int = 0) -> Location:
        """Return the place of an item of the list, counted from 0."""
        return Location(f"{self.path}[{number}]", line or self.line)


class Doubts:
    """All errors of a file, not only the first one."""

    def __init__(self, file: str = "", *, most: int = 1000) -> None:
        self.file = file
        self._most, self._found = most, list[tuple[int, int, str, str]]()
        self._left = 0
        self._doubted: set[str] = set()

    def __contains__(self, path: str) -> bool:
        """Return whether an error was found at exactly this path."""
        return path in self._doubted

    def __len__(self) -> int:
        return len(self._found) + self._left

    def __iter__(self) -> Iterator[tuple[Location, str]]:
        return iter([(Location(path, line), what) for line, _, path, what in sorted(self._found)])

    def add(self, place: Location, what: str) -> None:
        """Record an error."""
        self._doubted.add(place.path)
        if len(self._found) < self._most:
            self._found.append((place.line, len(self._found), place.path, what))
        else:
            self._left += 1

    def lines(self) -> list[str]:
        """Return `FILE:LINE: PATH: what`, by line."""
        lines = []
        for place, what in self:
            where = f"{self.file or 'line '}{':' if self.file else ''}{place.line}" if place.line else self.file
            lines.append(": ".join(part for part in (where, place.path, what) if part))
        if self._left:
            lines.append(f"{self.file + ': ' if self.file else ''}and {self._left} more")
        return lines


def read(text: str | bytes, doubts: Doubts, *, largest: int = LARGEST, aliases: bool = False) -> Piece | None:
    """Return the document as a Piece. None: not YAML, and `doubts` say where and why."""
    try:
        return Piece(load(text, largest=largest, aliases=aliases), Location(), doubts)
    except Malformed as error:
        doubts.add(Location("", error.line), error.what)
        return None


class Piece:
    """A node, its position, and where its errors are recorded. A value that cannot be read gives a harmless default."""

    __slots__ = ("doubts", "node", "place")

    def __init__(self, node: Node, place: Location, doubts: Doubts) -> None:
        self.node, self.doubts = node, doubts
        self.place = place if place.line else place._replace(line=node.line)

    def __repr__(self) -> str:
        return f"Piece({self.place.path}, line={self.place.line})"

    @property
    def value(self) -> Any:
        """The node's value: a dict or list of nodes, or a scalar."""
        return self.node.value

    def plain(self) -> Any:
        """Return the value as dicts, lists and scalars."""
        return plain(self.node)

    def doubt(self, what: str, *, field: str = "") -> None:
        """Record an error here, or in this field of the map."""
        self.doubts.add(self.place.field(field) if field else self.place, what)

    def missing(self, field: str) -> str:
        """Record that a required field is missing. Returns an empty text."""
        self.doubt("is missing", field=field)
        return ""

    # Internal

    def fields(self, *known: str) -> dict[str, Piece]:
        """Return the fields of a map that are not null. With `known`, any other field is an error, and left out."""
        if not isinstance(self.value, dict):
            self._doubt_type("a map")
            return {}
        found = {}
        for name, node in self.value.items():
            place = self.place.field(name, node.key_line)
            if known and name not in known:
                close = difflib.get_close_matches(name, known, 1)
                hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}"
                self.doubts.add(place, f"unknown field; {hint}")
            elif node.value is not None:
                found[name] = Piece(node, place, self.doubts)
        return found

    def items(self) -> list[Piece]:
        """Return the items of a list."""
        if not isinstance(self.value, list):
            self._doubt_type("a list")
            return []
        return [Piece(node, self.place.item(at, node.line), self.doubts) for at, node in enumerate(self.value)]

    # Scalars

    def text(self, *, least: int = 0, most: int = 1000) -> str:
        """Return text; a number is taken as it was written."""
        value = self.value
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            self._doubt_type("text")
            return ""
        text = self.node.written or str(value)
        if _FORBIDDEN.search(text):
            self.doubt("holds a character that is not text")
            return ""
        if not least <= len(text) <= most:
            self.doubt("must not be empty" if not text else f"must have from {least} to {most} characters")
            return ""
        return text

    def whole(self, *, least: int = 0, most: int = 2**53) -> int:
        """Return a whole number."""
        if isinstance(self.value, bool) or not isinstance(self.value, int):
            self._doubt_type("a whole number")
            return least
        if not least <= self.value <= most:
            self.doubt(f"must be from {least} to {most}")
            return least
        return self.value

    def number(self, *, least: float = 0.0, most: float = math.inf) -> float:
        """Return a number."""
        value = self.value
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            self._doubt_type("a number")
            return least
        if not least <= value <= most:
            self.doubt(f"must be at least {least:g}" if most == math.inf else f"must be from {least:g} to {most:g}")
            return least
        return float(value)

    def flag(self) -> bool:
        """Return `true` or `false`."""
        if not isinstance(self.value, bool):
            self._doubt_type("true or false")
            return False
        return self.value

    def choice(self, *options: str) -> str:
        """Return one of the options; the first, if it is none of them."""
        if self.value not in options:
            self.doubt(f"must be {', '.join(options[:-1])}{' or ' if len(options) > 1 else ''}{options[-1]}")
            return options[0]
        return str(self.value)

    def _doubt_type(self, what: str) -> None:
        self.doubt(f"must be {what}, not {_kind(self.value)}")


def _kind(value: object) -> str:
    if isinstance(value, dict | list):
        return "a map" if isinstance(value, dict) else "a list"
    if isinstance(value, str):
        return f"{value if len(value) <= 40 else value[:39] + '…'!r}"
    return "empty" if value is None else "true" if value is True else "false" if value is False else str(value)


# From text to nodes


def _clean(text: str | bytes, largest: int) -> str:
    if len(text) > largest:
        raise Malformed(f"larger than {largest // 1024} KiB", 1)
    if isinstance(text, bytes):
        text = _decode(text)
    text = text.removeprefix("\ufeff")
    found = _FORBIDDEN.search(text)
    if found is not None:
        line = text.count("\n", 0, found.start()) + 1
        raise Malformed(f"holds the character U+{ord(found[0]):04X}, which is not text", line)
    return text


def _decode(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise Malformed("not UTF-8", data.count(b"\n", 0, error.start) + 1) from None


class _Building:
    """Builds nodes from the parser's events, without recursion."""

    def __init__(self, most: int, deepest: int, *, aliases: bool = False) -> None:
        self._left, self._deepest = most, deepest
        self._anchors: dict[str, Node] | None = {} if aliases else None
        self._open: list[Node] = []
        self._keys: list[tuple[str, int] | None] = []  # of each open node: the key that waits for its value
        self._top: Node | None = None

    def build(self, text: str) -> Node:
        loader = _LOADER(text)
        documents = 0
        try:
            while (event := loader.get_event()) is not None:
                if isinstance(event, yaml.DocumentStartEvent):
                    documents += 1
                    if documents > 1:
                        raise self._refusal(event, "a second document; one file holds one")
                elif isinstance(event, yaml.NodeEvent):
                    self._node(event)
                elif isinstance(event, yaml.CollectionEndEvent):
                    self._open.pop()
                    self._keys.pop()
        except yaml.MarkedYAMLError as error:
            raise _syntax(error) from None
        except yaml.YAMLError as error:
            raise Malformed(f"not YAML: {' '.join(str(error).split())}", 1) from None
        finally:
            loader.dispose()
        return self._top if self._top is not None else Node(None, 1, 1)

    def _node(self, event: Any) -> None:
        if self._anchors is None and (isinstance(event, yaml.AliasEvent) or event.anchor is not None):
            raise self._refusal(event, "anchors (&) and aliases (*) are not read here; write it out")
        if isinstance(event, yaml.AliasEvent):
            self._alias(event)
            return
        if event.tag is not None:
            raise self._refusal(event, "tags (!) are not read here; leave it out")
        self._left -= 1
        if self._left < 0:
            raise self._refusal(event, "too many values")
        line, column = event.start_mark.line + 1, event.start_mark.column + 1
        if self._open and isinstance(self._open[-1].value, dict) and self._keys[-1] is None:
            self._key(event, line)
            return
        if isinstance(event, yaml.ScalarEvent):
            value = _scalar(event.value) if event.implicit[0] else event.value
            node = Node(value, line, column)
            if value is not event.value:
                node.written = event.value
            self._attach(node)
            self._anchor(event, node)
            return
        if len(self._open) >= self._deepest:
            raise self._refusal(event, f"nested more than {self._deepest} deep")
        node = Node([] if isinstance(event, yaml.SequenceStartEvent) else {}, line, column)
        self._attach(node)
        self._anchor(event, node)
        self._open.append(node)
        self._keys.append(None)

    def _anchor(self, event: Any, node: Node) -> None:
        if event.anchor is not None and self._anchors is not None:
            self._anchors[event.anchor] = node

    def _alias(self, event: Any) -> None:
        """Attach the anchor's node. Its values are counted again, so that aliases of aliases stay bounded."""
        found = (self._anchors or {}).get(event.anchor)
        if found is None:
            raise self._refusal(event, f"no anchor &{event.anchor} precedes this alias")
        if any(found is node for node in self._open):
            raise self._refusal(event, f"the alias *{event.anchor} is inside its own anchor")
        if self._open and isinstance(self._open[-1].value, dict) and self._keys[-1] is None:
            raise self._refusal(event, "a key must be text")
        nodes = [(found, len(self._open))]
        while nodes:
            node, depth = nodes.pop()
            self._left -= 1
            if self._left < 0:
                raise self._refusal(event, "too many values")
            if depth > self._deepest:
                raise self._refusal(event, f"nested more than {self._deepest} deep")
            inside = node.value
            below = inside.values() if isinstance(inside, dict) else inside if isinstance(inside, list) else ()
            nodes += [(each, depth + 1) for each in below]
        node = Node(found.value, found.line, found.column)
        node.written = found.written
        self._attach(node)

    def _key(self, event: Any, line: int) -> None:
        fields = self._open[-1].value
        if not isinstance(event, yaml.ScalarEvent):
            raise self._refusal(event, "a key must be text")
        if isinstance(fields, dict) and event.value in fields:
            first = fields[event.value].key_line
            raise self._refusal(event, f"the key {_kind(event.value)} is duplicated; first in line {first}")
        self._keys[-1] = (event.value, line)

    def _attach(self, node: Node) -> None:
        if not self._open:
            self._top = node
            return
        into = self._open[-1].value
        key = self._keys[-1]
        if isinstance(into, dict) and key is not None:
            into[key[0]], node.key_line = node, key[1]
            self._keys[-1] = None
        elif isinstance(into, list):
            into.append(node)

    def _refusal(self, event: Any, what: str) -> Malformed:
        return Malformed(what, event.start_mark.line + 1, event.start_mark.column + 1)


def _scalar(text: str) -> Scalar:
    if text in _WORDS:
        return _WORDS[text]
    if _WHOLE.fullmatch(text):
        return int(text)
    return float(text) if _NUMBER.fullmatch(text) else text


def _syntax(error: yaml.MarkedYAMLError) -> Malformed:
    mark = error.problem_mark or error.context_mark
    what = " ".join(str(error.problem or error.context or "not YAML").split())
    if "character" in what and "start any token" in what:
        what = "a character that is not allowed here (a tab? indent with spaces; quote text that begins with % @ or `)"
    if error.context_mark is not None and mark is not None and error.context_mark.line != mark.line:
        what += f", {error.context} that began in line {error.context_mark.line + 1}"
    return Malformed(f"not YAML: {what}", *((mark.line + 1, mark.column + 1) if mark else (1, 1)))
