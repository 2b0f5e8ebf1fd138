"""HTTP routes of slices: parsing `GET /orders/{id:int}?page:int` and matching requests. No I/O."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

import msgspec

from hostler.errors import Invalid
from hostler.kit.lazy_import import old_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from hostler.model.deployment import SliceSpec

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
RESERVED = "within"
"""The query parameter that sets the deadline of a call. A route cannot use this name."""
MOST_SEGMENTS = 32
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_PARAMETER = re.compile(rf"({_NAME})(?::([A-Za-z]+))?")
_LITERAL = re.compile(r"[A-Za-z0-9._~!$'()*+,;=@-]+")
_KINDS = {
    **dict.fromkeys(("text", "string", "uuid"), "text"),
    **dict.fromkeys(("int", "integer", "long"), "int"),
    **dict.fromkeys(("float", "double"), "float"),
    **dict.fromkeys(("bool", "boolean"), "bool"),
}
_SLASHES = re.compile(r"[/\\]")
_INT = re.compile(r"-?[0-9]{1,18}")
_FLOAT = re.compile(r"-?[0-9]{1,18}(\.[0-9]{1,18})?([eE][+-]?[0-9]{1,3})?")


class Parameter(msgspec.Struct, frozen=True):
    """A path segment or query parameter that becomes an argument."""

    name: str
    kind: str

    def value(self, text: str) -> Any:
        """Convert the text to the argument. Raise Invalid if it is not of this kind."""
        if self.kind == "int" and _INT.fullmatch(text):
            return int(text)
        if self.kind == "float" and _FLOAT.fullmatch(text) and math.isfinite(float(text)):
            return float(text)
        if self.kind == "bool" and text in ("true", "false"):
            return text == "true"
        if self.kind == "text":
            return text
        wanted = {"int": "a whole number", "float": "a number", "bool": "true or false"}[self.kind]
        raise Invalid(f"argument {self.name} = {text[:80]!r}: must be {wanted}")


class RoutePattern(msgspec.Struct, frozen=True):
    """One route of a blueprint."""

    verb: str
    segments: tuple[str | Parameter, ...]
    """Literal text, or a parameter that matches one segment."""
    query: dict[str, Parameter]

    @property
    def shape(self) -> tuple[str | None, ...]:
        """Return the path with parameter names removed. Two routes with the same verb and shape are the same."""
        return tuple(None if isinstance(one, Parameter) else one for one in self.segments)


def parse_route(text: str) -> RoutePattern:
    """Parse `VERB /path/{name:kind}?name:kind&…`. Raise Invalid if the text is not a route."""
    verb, _, rest = text.partition(" ")
    if verb not in METHODS:
        raise Invalid(f"must begin with {', '.join(METHODS[:-1])} or {METHODS[-1]} and a blank, not {verb[:20]!r}")
    path, asks, asked = rest.strip().partition("?")
    if not path.startswith("/"):
        raise Invalid(f"its path must begin with /, not {path[:40]!r}")
    pieces = [] if path == "/" else path[1:].split("/")
    if len(pieces) > MOST_SEGMENTS:
        raise Invalid(f"its path has {len(pieces)} segments, at most {MOST_SEGMENTS}")
    segments = tuple(map(_segment, pieces))
    names = [one.name for one in segments if isinstance(one, Parameter)]
    found = [_parameter(piece) for piece in asked.split("&")] if asks else []
    names += [one.name for one in found]
    if twice := next((name for name in names if names.count(name) > 1), ""):
        raise Invalid(f"parameter {twice} is named twice; name it once")
    if RESERVED in names:
        raise Invalid(f"parameter {RESERVED}: the caller sets the time of the call with it; use another name")
    return RoutePattern(verb, segments, {one.name: one for one in found})


def _segment(piece: str) -> str | Parameter:
    if piece.startswith("{") and piece.endswith("}"):
        return _parameter(piece[1:-1])
    if _LITERAL.fullmatch(piece) is None or piece in (".", ".."):
        raise Invalid(
            f"segment {piece[:40]!r}: must be letters, digits and . _ ~ - and the like, or one {{parameter}}"
            " that takes the whole segment"
        )
    return piece


def _parameter(piece: str) -> Parameter:
    found = _PARAMETER.fullmatch(piece)
    if found is None:
        raise Invalid(f"parameter {piece[:40]!r}: must be a name, or name:kind")
    kind = _KINDS.get((found[2] or "text").lower())
    if kind is None:
        raise Invalid(f"parameter {piece[:40]!r}: its kind must be text, int, float or bool")
    return Parameter(found[1], kind)


class Target(msgspec.Struct, frozen=True):
    """The method that a route calls."""

    base: str
    method: str
    pattern: RoutePattern


class Match(msgspec.Struct, frozen=True):
    """Result of matching a request."""

    target: Target | None
    """None: the path has routes, but only for other verbs."""
    segments: dict[str, str]
    verbs: tuple[str, ...]
    """Verbs that the path has routes for."""


class _Branch:
    __slots__ = ("any", "named", "targets")

    def __init__(self) -> None:
        self.named: dict[str, _Branch] = {}
        self.any: _Branch | None = None
        self.targets: dict[str, Target] = {}


class RouteTable:
    """The routes of one blueprint. From left to right, a literal segment takes precedence over a parameter."""

    def __init__(self, slices: Iterable[SliceSpec]) -> None:
        """Build the table. A route that cannot be parsed (another program wrote it) is omitted."""
        self._root = _Branch()
        for spec in slices:
            for text, method in spec.routes.items():
                try:
                    self._add(Target(spec.base, method, parse_route(text)))
                except Invalid:
                    continue

    def find(self, verb: str, segments: list[str]) -> Match | None:
        """Return the match, or None if no route has this path. `segments`: decoded, without the leading slash."""
        best: Match | None = None
        for branch, taken in _walk(self._root, segments, 0, ()):
            if not branch.targets:
                continue
            target = branch.targets.get(verb)
            if target is None:
                verbs = {*branch.targets, *(best.verbs if best else ())}
                best = Match(None, {}, tuple(sorted(verbs)))
                continue
            names = [one.name for one in target.pattern.segments if isinstance(one, Parameter)]
            return Match(target, dict(zip(names, taken, strict=True)), tuple(sorted(branch.targets)))
        return best

    def _add(self, target: Target) -> None:
        branch = self._root
        for one in target.pattern.segments:
            if isinstance(one, Parameter):
                branch.any = branch.any or _Branch()
                branch = branch.any
            else:
                branch = branch.named.setdefault(one, _Branch())
        branch.targets.setdefault(target.pattern.verb, target)


def _walk(
    branch: _Branch, segments: list[str], at: int, taken: tuple[str, ...]
) -> Iterator[tuple[_Branch, tuple[str, ...]]]:
    """Yield all leaves that match the segments, more literal ones first."""
    if at == len(segments):
        yield branch, taken
        return
    named = branch.named.get(segments[at])
    if named is not None:
        yield from _walk(named, segments, at + 1, taken)
    if branch.any is not None and _is_value(segments[at]):
        yield from _walk(branch.any, segments, at + 1, (*taken, segments[at]))


def _is_value(segment: str) -> bool:
    """Return whether a parameter accepts the segment: not if it is empty or could escape a folder.

    Clients and proxies resolve `.` and `..` in paths, also when percent-encoded. A segment that still contains one was
    sent deliberately, and a slice may use it as a file name.
    """
    return bool(segment) and not any(piece in {".", ".."} for piece in _SLASHES.split(segment))


def merge_arguments(match: Match, query: Mapping[str, str], body: bytes) -> bytes:
    """Return the JSON arguments of the call, merged from path, query and body. Raise Invalid if they do not fit."""
    target = match.target
    if target is None:
        raise ValueError("the path has no route of this verb")
    found: dict[str, Any] = {}
    for one in target.pattern.segments:
        if isinstance(one, Parameter):
            found[one.name] = one.value(match.segments[one.name])
    for name, text in query.items():
        parameter = target.pattern.query.get(name)
        if parameter is None:
            known = ", ".join([*target.pattern.query, RESERVED])
            raise Invalid(f"query {name[:80]!r}: unknown; this route takes {known}")
        found[name] = parameter.value(text)
    if not found:
        return body or b"{}"
    if not body.strip():
        return msgspec.json.encode(found)
    try:
        more: dict[str, Any] = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Invalid("body: must be a JSON object of arguments, by their names") from None
    if twice := next((name for name in found if name in more), ""):
        raise Invalid(f"body: argument {twice} is in the path or the query already; leave it out of the body")
    return msgspec.json.encode({**more, **found})


def decode_segments(segments: Iterable[str]) -> list[str]:
    """Percent-decode the segments of a path. Raise Invalid if one is not UTF-8."""
    try:
        return [unquote_to_bytes(one).decode() for one in segments]
    except UnicodeDecodeError:
        raise Invalid("path: it is not UTF-8; percent-encode the UTF-8 bytes") from None


if not TYPE_CHECKING:  # the checker accepts the new names only
    __getattr__ = old_names(__name__, {"decoded": "decode_segments"})
