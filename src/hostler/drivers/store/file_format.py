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

A value stands as `json` if it is JSON written the compact way, as `text` if it is UTF-8, else as `base64`. A line of
the history tells what each change replaced, never what it put: that is in the key's own line, or in the `was` of a
later change. So every value is written once, and no line of the history ever changes.

`saved` counts the saves, also those that change only a lease and so make no revision.
"""

from __future__ import annotations

import base64
import binascii
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import msgspec

from hostler.errors import Damaged, Invalid
from hostler.ports.store import Event, KeyValue, check_key

from .deadline import Deadline

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

FORMAT = "hostler state"
VERSION = 1

_MAX_DEPTH = 32
_MAX_BRACKETS = 5_000
_BRACKET = re.compile(rb"[\[\]{}]")

_Instant = Annotated[datetime, msgspec.Meta(tz=True)]

_encode = msgspec.json.Encoder().encode


class Lease(msgspec.Struct, frozen=True):
    """A lease as it is written down."""

    id: int
    ttl: float
    deadline: Deadline


class Header(msgspec.Struct):
    """What a state file is, before one looks at what it holds."""

    format: str
    version: int


class _Value(msgspec.Struct, forbid_unknown_fields=True):
    create: int
    mod: int
    version: int
    json: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    text: str | msgspec.UnsetType = msgspec.UNSET
    base64: str | msgspec.UnsetType = msgspec.UNSET
    lease: int | None = None


class _Key(_Value, forbid_unknown_fields=True, kw_only=True):
    key: str


class _Lease(msgspec.Struct, forbid_unknown_fields=True):
    lease: int
    ttl: float
    ends: _Instant
    boot: str
    uptime: float


class _Change(msgspec.Struct, forbid_unknown_fields=True):
    put: str | None = None
    delete: str | None = None
    was: _Value | None = None


class _Revision(msgspec.Struct, forbid_unknown_fields=True):
    revision: int
    at: _Instant
    changes: list[_Change]


class _File(msgspec.Struct, forbid_unknown_fields=True):
    format: str
    version: int
    id: str
    saved: int
    revision: int
    compact_revision: int
    keys: list[_Key]
    leases: list[_Lease]
    history: list[_Revision]


# Writing


def key_line(kv: KeyValue) -> bytes:
    """The line of a key."""
    return b'{"key":%b,%b}' % (_encode(kv.key), _fields(kv))


def lease_line(lease: Lease) -> bytes:
    """The line of a lease."""
    deadline = lease.deadline
    return b'{"lease":%d,"ttl":%b,"ends":"%b","boot":%b,"uptime":%b}' % (
        lease.id,
        _encode(lease.ttl),
        timestamp(deadline.wall),
        _encode(deadline.boot),
        _encode(deadline.at),
    )


def history_line(revision: int, at: float, events: Iterable[Event]) -> bytes:
    """The line of a revision."""
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
    """The whole file, from its lines."""
    return b"".join(
        (
            b'{\n"format": %b, "version": %d, "id": %b, "saved": %d,\n'
            % (_encode(FORMAT), VERSION, _encode(store_id), saved),
            b'"revision": %d, "compact_revision": %d,\n"keys": [\n' % (revision, compact_revision),
            b",\n".join(keys),
            b'\n],\n"leases": [\n',
            b",\n".join(leases),
            b'\n],\n"history": [\n',
            b",\n".join(history),
            b"\n]\n}\n",
        )
    )


def timestamp(wall: float) -> bytes:
    """The calendar's instant, for people, to the microsecond."""
    return datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ").encode()


def _change(event: Event) -> bytes:
    if event.previous is None:
        return b'{"%b":%b}' % (event.type.encode(), _encode(event.kv.key))
    return b'{"%b":%b,"was":{%b}}' % (event.type.encode(), _encode(event.kv.key), _fields(event.previous))


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
        return b'"text":%b' % _encode(value.decode())
    except UnicodeDecodeError:
        return b'"base64":"%b"' % base64.b64encode(value)


def _is_plain_json(value: bytes) -> bool:
    """Whether the value is JSON that reads back to the very same bytes."""
    brackets = value.count(b"[") + value.count(b"{")
    if brackets > _MAX_DEPTH and (brackets > _MAX_BRACKETS or _depth(value) > _MAX_DEPTH):
        return False  # readers of JSON give up on what is nested too deep, and would give up on the whole file
    try:
        return _encode(msgspec.json.decode(value)) == value
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return False


def _depth(value: bytes) -> int:
    """How deep brackets nest; those inside of strings count too, which only errs towards deeper."""
    depth = deepest = 0
    for match in _BRACKET.finditer(value):
        if match[0] in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        else:
            depth = max(0, depth - 1)
    return deepest


# Reading


class Content:
    """A state file that was read and found sound as far as it can be told without its history."""

    def __init__(self, path: str, file: _File) -> None:
        self._path, self._file = path, file
        self.id, self.saved = file.id, file.saved
        self.revision, self.compacted = file.revision, file.compact_revision
        self.first_revision = file.revision + 1 - len(file.history)
        self._check_history()
        self.leases = {line.lease: self._lease(line) for line in file.leases}
        if len(self.leases) != len(file.leases):
            self._damaged("a lease is there twice")
        self._keys = {line.key: line for line in file.keys}
        if len(self._keys) != len(file.keys):
            self._damaged("a key is there twice")

    def live(self) -> list[KeyValue]:
        """Every key."""
        return [self._live(line) for line in self._file.keys]

    def log(self, start_revision: int) -> list[tuple[int, float, tuple[Event, ...]]]:
        """Each revision from `start_revision` on, when it was made, and its events."""
        log: list[tuple[int, float, tuple[Event, ...]]] = []
        older: dict[str, KeyValue | None] = {}  # keys as they stood at the revision that is being read
        for line in reversed(self._file.history):
            if line.revision < start_revision:
                break
            events = tuple(self._event(change, line.revision, older) for change in reversed(line.changes))[::-1]
            log.append((line.revision, line.at.timestamp(), events))
        log.reverse()
        return log

    def _event(self, change: _Change, revision: int, older: dict[str, KeyValue | None]) -> Event:
        key = change.put if change.put is not None else change.delete
        if key is None or (change.put is not None and change.delete is not None):
            self._damaged(f"revision {revision} of the history has a change that is neither a put nor a delete")
        if key in older:
            now = older[key]
        else:
            line = self._keys.get(key)
            now = None if line is None else self._live(line)
        was = None if change.was is None else self._kv(key, change.was)
        if was is not None and was.mod_revision >= revision:
            self._damaged(f"revision {revision} of the history replaced a later {key!r}")
        older[key] = was
        if change.put is not None:
            if now is None or now.mod_revision != revision or now.version != (was.version if was else 0) + 1:
                self._damaged(f"revision {revision} of the history put {key!r}, which does not follow from it")
            return Event("put", now, was)
        if now is not None or was is None:
            self._damaged(f"revision {revision} of the history deleted {key!r}, which does not follow from it")
        return Event("delete", KeyValue(key, b"", 0, revision, 0), was)

    def _live(self, line: _Key) -> KeyValue:
        if line.lease is not None and line.lease not in self.leases:
            self._damaged(f"key {line.key!r} belongs to lease {line.lease}, which is not there")
        return self._kv(line.key, line)

    def _kv(self, key: str, line: _Value) -> KeyValue:
        if not 1 < line.create <= line.mod <= self.revision or line.version < 1:
            self._damaged(f"key {key!r} has revisions that cannot be")
        try:
            check_key(key)
            value = _decode_value(line)
        except (Invalid, ValueError) as error:
            self._damaged(f"key {key!r}: {error}")
        return KeyValue(key, value, line.create, line.mod, line.version, line.lease)

    def _lease(self, line: _Lease) -> Lease:
        if not 0 < line.lease < 2**63 or line.ttl <= 0:
            self._damaged(f"lease {line.lease} cannot be")
        return Lease(line.lease, line.ttl, Deadline(line.boot, line.uptime, line.ends.timestamp()))

    def _check_history(self) -> None:
        if not 0 <= self.compacted <= self.revision or self.revision < 1 or self.saved < 0:
            self._damaged(f"revision {self.revision} compacted to {self.compacted} cannot be")
        # The history must reach back to the compaction; the revision it was compacted to may be missing.
        if self.first_revision > max(self.compacted, 1) + 1 or self.first_revision < max(self.compacted, 2):
            self._damaged(f"its history begins at revision {self.first_revision}, compacted to {self.compacted}")
        for expected, line in enumerate(self._file.history, self.first_revision):
            if line.revision != expected:
                self._damaged(f"its history has revision {line.revision} in the place of {expected}")
            if not line.changes:
                self._damaged(f"revision {line.revision} of the history changed nothing")

    def _damaged(self, why: str) -> NoReturn:
        raise damaged(self._path, why)


def parse(path: str, data: bytes) -> Content:
    """What the file holds. Damaged, Invalid: it is no state file, or not one that can be read."""
    try:
        header = msgspec.json.decode(data, type=Header)
    except msgspec.ValidationError:
        raise Invalid(f"{path}: JSON, but no state file of Hostler; name another file") from None
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        what = "it is empty" if not data else f"it is no JSON ({error})"
        raise damaged(path, what) from None
    if header.format != FORMAT:
        raise Invalid(f"{path}: JSON, but no state file of Hostler; name another file")
    if header.version != VERSION:
        raise Invalid(
            f"{path}: a state file of version {header.version}, this Hostler reads version {VERSION}; "
            "use the Hostler that wrote it"
        )
    try:
        file = msgspec.json.decode(data, type=_File)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise damaged(path, str(error)) from None
    return Content(path, file)


def damaged(path: str, why: str) -> Damaged:
    """The error for a file that cannot be trusted."""
    return Damaged(f"{path}: damaged, {why}; nothing was changed, repair it or put a backup in its place")


def _decode_value(line: _Value) -> bytes:
    forms: list[Any] = [form for form in (line.json, line.text, line.base64) if form is not msgspec.UNSET]
    if len(forms) != 1:
        raise ValueError("its value must be given once, as json, text or base64")
    if isinstance(line.json, msgspec.Raw):
        # Compact again, in case a tool has laid the file out anew.
        return _encode(msgspec.json.decode(line.json))
    if isinstance(line.text, str):
        return line.text.encode()
    try:
        return base64.b64decode(forms[0], validate=True)
    except binascii.Error as error:
        raise ValueError(f"no base64 ({error})") from None
