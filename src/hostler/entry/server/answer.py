"""How a service's answer becomes an HTTP answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from hostler.entry.server.route import Answer

if TYPE_CHECKING:
    from hostler.model.record import Record

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
