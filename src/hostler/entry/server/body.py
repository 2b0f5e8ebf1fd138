"""Reading of request bodies, paths and queries: limited in size and time, and strictly checked."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

from hostler.entry.server.problem import INVALID, MEDIA_TYPE, TIMEOUT, TOO_LARGE, Refusal
from hostler.entry.server.protocol import whole_body
from hostler.errors import Invalid
from hostler.keys.lab import check_user
from hostler.keys.template import MAX_PART, MAX_USER, check_part

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostler.entry.server.route import Raw
    from hostler.entry.server.services import ServerConfig
    from hostler.model.resources.operation import Parameter

MAX_INTEGER = 2**63 - 1
LINGER_BYTES = 8 * 1024 * 1024
LINGER_WITHIN = 1.0


class Disconnected(Exception):
    """The client disconnected before the request was complete, so no answer is sent."""


def announced(headers: dict[bytes, bytes]) -> bool:
    """Return whether the request has a body."""
    return b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"


async def read(raw: Raw, plan: ServerConfig, most: int | None = None) -> bytes:
    """Return the whole body. Refusal: it is too large or too slow."""
    length = raw.headers.get(b"content-length")
    most = most or plan.max_body
    if length is not None and int(length) > most:
        raise _too_large(most)
    there = whole_body(raw.receive)
    if there is not None:
        if len(there) > most:
            raise _too_large(most)
        return there
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(plan.body_within):
            while True:
                message = await raw.receive()
                if message["type"] == "http.disconnect":
                    raise Disconnected
                chunk = message.get("body", b"")
                size += len(chunk)
                if size > most:
                    raise _too_large(most)
                chunks.append(chunk)
                if not message.get("more_body", False):
                    return b"".join(chunks)
    except TimeoutError:
        raise Refusal(
            TIMEOUT, f"body: only {size} bytes arrived within {plan.body_within:g} s; send it again, without pauses"
        ) from None


def _too_large(most: int) -> Refusal:
    return Refusal(TOO_LARGE, f"body: larger than {most} bytes; send less")


async def linger(raw: Raw) -> None:
    """Read some of what the client still sends, so that it reads the answer before the connection is reset."""
    taken = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(LINGER_WITHIN):
            while taken < LINGER_BYTES:
                message = await raw.receive()
                taken += len(message.get("body", b""))
                if message["type"] == "http.disconnect" or not message.get("more_body", False):
                    return


def check_media(headers: dict[bytes, bytes]) -> None:
    """Check the Content-Type. Refusal: it is not JSON."""
    kind = headers.get(b"content-type", b"")
    if kind.partition(b";")[0].strip().lower() != b"application/json":
        said = kind[:80].decode("latin-1") or "nothing"
        raise Refusal(MEDIA_TYPE, f"body: its Content-Type is {said!r}; send Content-Type: application/json")


LABS = "/v1/labs/{user}"


def path_parts(segments: list[str]) -> list[str]:
    """Return the decoded parts of a path. Invalid: one cannot be a part of any key."""
    return [check_part(_decode_segment(segment), "path") for segment in segments]


def named_parts(path: str, names: Sequence[str], segments: list[str]) -> dict[str, str]:
    """Return the decoded parts of a route's path by name. Invalid: a part is not valid, or not a web user id.

    Web user ids may contain characters that other parts may not.
    """
    is_lab = path.startswith(LABS)
    parts: dict[str, str] = {}
    for name, segment in zip(names, segments):
        text = _decode_segment(segment)
        if is_lab and name == "user":
            parts[name] = check_user(text)
        else:
            parts[name] = check_part(text, "path", most=MAX_USER if name == "project" else MAX_PART)
    return parts


def _decode_segment(segment: str) -> str:
    if "%" not in segment:
        return segment
    try:
        return unquote_to_bytes(segment).decode()
    except UnicodeDecodeError:
        raise Invalid(f"path {segment[:80]!r}: not UTF-8; percent-encode the UTF-8 bytes") from None


def query(text: bytes, known: tuple[Parameter, ...]) -> dict[str, Any]:
    """Return the query, typed and with defaults. Invalid: a parameter is unknown, repeated, or has a wrong value."""
    values: dict[str, Any] = {parameter.name: parameter.default for parameter in known}
    if not text:
        return values
    by_name = {parameter.name: parameter for parameter in known}
    for name, value in query_texts(text).items():
        if name not in by_name:
            raise Invalid(f"query {name[:80]!r}: unknown; {_choice(known)}")
        values[name] = _typed_value(by_name[name], value)
    return values


def query_texts(text: bytes) -> dict[str, str]:
    """Return the decoded query without types. Invalid: a name is repeated."""
    found: dict[str, str] = {}
    for pair in text.split(b"&"):
        if not pair:
            continue
        name, _, value = (_query_text(piece) for piece in pair.partition(b"="))
        if name in found:
            raise Invalid(f"query {name[:80]!r}: given twice; give it once")
        found[name] = value
    return found


def _choice(known: tuple[Parameter, ...]) -> str:
    return f"use {', '.join(parameter.name for parameter in known)}" if known else "this path takes none"


def _query_text(piece: bytes) -> str:
    try:
        text = unquote_to_bytes(piece.replace(b"+", b" ")).decode()
    except UnicodeDecodeError:
        raise Refusal(INVALID, "query: not UTF-8; percent-encode the UTF-8 bytes") from None
    if "\x00" in text:
        raise Invalid("query: must not hold NUL")
    return text


def _typed_value(parameter: Parameter, value: str) -> Any:
    name = parameter.name
    if parameter.kind == "boolean":
        if value not in ("true", "false"):
            raise Invalid(f"query {name} = {value[:80]!r}: must be true or false")
        return value == "true"
    if parameter.kind == "integer":
        low, high = parameter.minimum or 0, parameter.maximum or MAX_INTEGER
        if not (value.isascii() and value.isdigit() and len(value) < 20 and low <= int(value) <= high):
            raise Invalid(f"query {name} = {value[:80]!r}: must be a whole number from {low} to {high}")
        return int(value)
    if not value:
        raise Invalid(f"query {name}: must not be empty; leave it out")
    if parameter.pattern is not None and re.search(parameter.pattern, value) is None:
        raise Invalid(f"query {name} = {value[:80]!r}: must look like {parameter.example or parameter.pattern}")
    return value
