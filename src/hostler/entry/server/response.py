"""Conversion of a service's result into an HTTP answer."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from hostler.entry.server import body as incoming
from hostler.entry.server.problem import MEDIA
from hostler.entry.server.protocol import send_whole

if TYPE_CHECKING:
    from hostler.entry.server.problem import ProblemResponse
    from hostler.entry.server.route import Raw
    from hostler.model.record import Record

COMMON = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
"""Headers of every answer. Pages of other servers may read no answer, because browsers may be signed in."""
_MARK = b'"hostler:unknown"'
_Q = re.compile(rb"q\s*=\s*(0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?)")
_encode = msgspec.json.Encoder().encode


def body_of(value: Record) -> bytes:
    """Return the JSON of a value. Fields that another program added to a stored record are kept."""
    data = _encode(value)
    return value.encode() if _MARK in data else data


def likes_of(accepted: bytes) -> dict[bytes, float]:
    """Return the quality of each encoding in an Accept-Encoding header; 0: it is not accepted."""
    found: dict[bytes, float] = {}
    for piece in accepted.lower().split(b","):
        name, _, more = piece.partition(b";")
        quality = _Q.fullmatch(more.strip())
        if name.strip() and (quality or not more.strip()):
            found[name.strip()] = float(quality[1]) if quality else 1.0
    return found


async def refuse(raw: Raw, told: ProblemResponse, *, unread: bool) -> None:
    """Answer with a problem document. `unread`: the body of the request was not read."""
    headers = [*COMMON, (b"x-request-id", raw.id.encode()), *told.headers, (b"content-type", MEDIA)]
    await send(raw, told.problem.status, headers, told.body, unread=unread)


async def send(raw: Raw, status: int, headers: list[tuple[bytes, bytes]], data: bytes, *, unread: bool) -> None:
    """Send a whole answer.

    An unread request body ends the connection, after a moment for the client to read the answer.
    """
    kind = "websocket.http.response" if raw.scope["type"] == "websocket" else "http.response"
    if status not in (204, 304):
        headers.append((b"content-length", b"%d" % len(data)))
    if unread:
        headers.append((b"connection", b"close"))
    elif await send_whole(raw.send, status, headers, data):
        return
    await raw.send({"type": f"{kind}.start", "status": status, "headers": headers})
    if unread:
        await raw.send({"type": f"{kind}.body", "body": data, "more_body": True})
        await incoming.linger(raw)
        data = b""
    await raw.send({"type": f"{kind}.body", "body": data})
