"""The state file: JSON with a line for each key, lease and revision, for a person to read and compare.

    {
    "format": "hostler state", "version": 1, "id": "9f2c…", "saved": 12,
    "revision": 3, "compact_revision": 0,
    "keys": [
    {"key":"/a","json":{"name":"vm1"},"create":2,"mod":3,"version":2,"lease":77}
    ],
    "leases": [
    {"lease":77,"ttl":30.0,"ends":"2026-01-31T12:00:00.250000Z","boot":"…","uptime":5021.7}
    ],
    "history": [
    {"revision":2,"at":"2026-01-31T11:59:30.000000Z","changes":[{"put":"/a"}]},
    {"revision":3,"at":"2026-01-31T11:59:31.000000Z","changes":[{"put":"/a","was":{"text":"hi",…}}]}
    ]
    }

A value is written as `json` if it is JSON in compact form, as `text` if it is UTF-8, else as `base64`. A line of the
history contains what each change replaced, never what it put: that is in the key's own line, or in the `was` of a later
change. So every value is written once, and no line of the history ever changes.

`saved` counts the saves, including those that change only a lease and so make no revision.
"""

from __future__ import annotations

import base64
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from hostler.drivers.store.deadline import Deadline  # noqa: TC001 - msgspec reads the annotation

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hostler.ports.store import Event, KeyValue

FORMAT = "hostler state"
VERSION = 1

# The separators of the sections. None can occur inside a line: JSON writes a line break in a string as \\n.
KEYS, LEASES, HISTORY, END = b',\n"keys": [\n', b'\n],\n"leases": [\n', b'\n],\n"history": [\n', b"\n]\n}\n"

_MAX_DEPTH = 32
_MAX_BRACKETS = 5_000
_BRACKET = re.compile(rb"[\[\]{}]")

encode = msgspec.json.Encoder().encode


class Lease(msgspec.Struct, frozen=True):
    """A lease as stored."""

    id: int
    ttl: float
    deadline: Deadline


def key_line(kv: KeyValue) -> bytes:
    """Return the line of a key."""
    return b'{"key":%b,%b}' % (encode(kv.key), _fields(kv))


def lease_line(lease: Lease) -> bytes:
    """Return the line of a lease."""
    deadline = lease.deadline
    return b'{"lease":%d,"ttl":%b,"ends":"%b","boot":%b,"uptime":%b}' % (
        lease.id,
        encode(lease.ttl),
        timestamp(deadline.wall),
        encode(deadline.boot),
        encode(deadline.at),
    )


def history_line(revision: int, at: float, events: Iterable[Event]) -> bytes:
    """Return the line of a revision."""
    changes = b",".join(_change(event) for event in events)
    return b'{"revision":%d,"at":"%b","changes":[%b]}' % (revision, timestamp(at), changes)


def document(
    store_id: str,
    saved: int,
    revision: int,
    compact_revision: int,
    *,
    keys: Sequence[bytes],
    leases: Sequence[bytes],
    history: Sequence[bytes],
) -> bytes:
    """Return the whole file, from its lines."""
    return b"".join(
        (
            b'{\n"format": %b, "version": %d, "id": %b, "saved": %d,\n'
            % (encode(FORMAT), VERSION, encode(store_id), saved),
            b'"revision": %d, "compact_revision": %d' % (revision, compact_revision),
            KEYS,
            b",\n".join(keys),
            LEASES,
            b",\n".join(leases),
            HISTORY,
            b",\n".join(history),
            END,
        )
    )


def timestamp(wall: float) -> bytes:
    """Return the instant of the wall clock for people, to the microsecond."""
    return datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ").encode()


def _change(event: Event) -> bytes:
    if event.previous is None:
        return b'{"%b":%b}' % (event.type.encode(), encode(event.kv.key))
    return b'{"%b":%b,"was":{%b}}' % (event.type.encode(), encode(event.kv.key), _fields(event.previous))


def _fields(kv: KeyValue) -> bytes:
    lease = b"" if kv.lease is None else b',"lease":%d' % kv.lease
    return b'%b,"create":%d,"mod":%d,"version":%d%b' % (
        _value(kv.value),
        kv.create_revision,
        kv.mod_revision,
        kv.version,
        lease,
    )


def _value(value: bytes) -> bytes:
    if _is_plain_json(value):
        return b'"json":%b' % value
    try:
        return b'"text":%b' % encode(value.decode())
    except UnicodeDecodeError:
        return b'"base64":"%b"' % base64.b64encode(value)


def _is_plain_json(value: bytes) -> bool:
    """Return whether the value is JSON that reads back to the very same bytes."""
    brackets = value.count(b"[") + value.count(b"{")
    if brackets > _MAX_DEPTH and (brackets > _MAX_BRACKETS or _depth(value) > _MAX_DEPTH):
        return False  # JSON parsers reject what is nested too deeply, and would reject the whole file
    try:
        return encode(msgspec.json.decode(value)) == value
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return False


def _depth(value: bytes) -> int:
    """Return how deep brackets nest; those inside strings count too, which only errs towards deeper."""
    depth = deepest = 0
    for match in _BRACKET.finditer(value):
        if match[0] in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        else:
            depth = max(0, depth - 1)
    return deepest
