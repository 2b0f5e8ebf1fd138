"""How a service's answer becomes an HTTP answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from hostler.entry.server import body as incoming
from hostler.entry.server.problem import MEDIA
from hostler.entry.server.protocol import send_whole
from hostler.entry.server.route import Answer

if TYPE_CHECKING:
    from hostler.entry.server.problem import Told
    from hostler.entry.server.route import Raw
    from hostler.model.record import Record

COMMON = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
)
"""Headers of every answer."""
_MARK = b'"hostler:unknown"'
_encode = msgspec.json.Encoder().encode


def written(done: Any, *, location: str | None = None) -> Answer:
    """The answer to a write: a `Written`."""
    headers: list[tuple[bytes, bytes]] = []
    if done.replayed:
        headers.append((b"idempotency-replayed", b"true"))
    if location is not None:
        headers.append((b"location", quote(location).encode()))
    return Answer(done.value, tuple(headers), status=done.status)


def body_of(value: Record) -> bytes:
    """Its JSON. Fields that another program added to a stored record inside it are given as they were."""
    data = _encode(value)
    return value.encode() if _MARK in data else data


async def refuse(raw: Raw, told: Told, *, unread: bool) -> None:
    """Answer with a problem. A body that nobody read is told by `unread`."""
    headers = [*COMMON, (b"x-request-id", raw.id.encode()), *told.headers, (b"content-type", MEDIA)]
    await send(raw, told.problem.status, headers, told.body, unread=unread)


async def send(raw: Raw, status: int, headers: list[tuple[bytes, bytes]], data: bytes, *, unread: bool) -> None:
    """The whole answer. A body that nobody read ends the connection, after a moment in which the answer is read."""
    kind = "websocket.http.response" if raw.scope["type"] == "websocket" else "http.response"
    if status != 204:
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
