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

The parser reads a file, completely or only what is new since the last time, and validates it.
"""

from __future__ import annotations

import base64
import binascii
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, NoReturn

import msgspec

from hostler.drivers.store.local_store import Deadline
from hostler.errors import Damaged, Invalid
from hostler.ports.store import Event, KeyValue, check_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

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


_Instant = Annotated[datetime, msgspec.Meta(tz=True)]


class Header(msgspec.Struct):
    """Identifies a state file before its content is parsed."""

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


class _Head(msgspec.Struct, forbid_unknown_fields=True):
    format: str
    version: int
    id: str
    saved: int
    revision: int
    compact_revision: int


class _File(_Head, forbid_unknown_fields=True):
    keys: list[_Key]
    leases: list[_Lease]
    history: list[_Revision]


class KnownState(NamedTuple):
    """The state that a reader already has."""

    store_id: str
    saved: int
    revision: int


class Content:
    """A state file that was read, or `partial`: only the changes since the state that the reader has."""

    def __init__(self, path: str, data: bytes, file: _File, *, partial: bool = False) -> None:
        self._path, self._data, self._file, self.partial = path, data, file, partial
        self._log: list[tuple[int, float, tuple[Event, ...]]] | None = None
        self._log_from = 0
        self.id, self.saved = file.id, file.saved
        self.revision, self.compacted = file.revision, file.compact_revision
        self.first_revision = file.revision + 1 - len(file.history)
        self._check_history()
        self.leases = {line.lease: self._lease(line) for line in file.leases}
        if len(self.leases) != len(file.leases):
            self._raise_damaged("a lease occurs twice")
        self._keys = {line.key: line for line in file.keys}
        if len(self._keys) != len(file.keys):
            self._raise_damaged("a key occurs twice")

    def lines(self) -> tuple[dict[str, bytes], list[bytes]] | None:
        """Return the lines of the keys and of the history unchanged; None if the file has another layout."""
        found = _lines(self._data)
        if found is None or (len(found[0]), len(found[1])) != (len(self._file.keys), len(self._file.history)):
            return None
        return {line.key: raw for line, raw in zip(self._file.keys, found[0], strict=True)}, found[1]

    def live(self) -> list[KeyValue]:
        """Return every key."""
        return [self._live(line) for line in self._file.keys]

    def log(self, start_revision: int) -> list[tuple[int, float, tuple[Event, ...]]]:
        """Return each revision from `start_revision` on, its time, and its events."""
        if self._log is not None and self._log_from == start_revision:
            return self._log
        log: list[tuple[int, float, tuple[Event, ...]]] = []
        older: dict[str, KeyValue | None] = {}  # keys as of the revision that is being read
        for line in reversed(self._file.history):
            if line.revision < start_revision:
                break
            events = tuple(self._event(change, line.revision, older) for change in reversed(line.changes))[::-1]
            log.append((line.revision, line.at.timestamp(), events))
        log.reverse()
        self._log, self._log_from = log, start_revision
        return log

    def _event(self, change: _Change, revision: int, older: dict[str, KeyValue | None]) -> Event:
        key = change.put if change.put is not None else change.delete
        if key is None or (change.put is not None and change.delete is not None):
            self._raise_damaged(f"revision {revision} of the history has a change that is neither a put nor a delete")
        if key in older:
            now = older[key]
        else:
            line = self._keys.get(key)
            now = None if line is None else self._live(line)
        was = None if change.was is None else self._kv(key, change.was)
        if was is not None and was.mod_revision >= revision:
            self._raise_damaged(f"revision {revision} of the history replaced a later {key!r}")
        older[key] = was
        if change.put is not None:
            if now is None or now.mod_revision != revision or now.version != (was.version if was else 0) + 1:
                self._raise_damaged(f"revision {revision} of the history put {key!r}, which does not follow from it")
            return Event("put", now, was)
        if now is not None or was is None:
            self._raise_damaged(f"revision {revision} of the history deleted {key!r}, which does not follow from it")
        return Event("delete", KeyValue(key, b"", 0, revision, 0), was)

    def _live(self, line: _Key) -> KeyValue:
        if line.lease is not None and line.lease not in self.leases:
            self._raise_damaged(f"key {line.key!r} belongs to lease {line.lease}, which does not exist")
        return self._kv(line.key, line)

    def _kv(self, key: str, line: _Value) -> KeyValue:
        if not 1 < line.create <= line.mod <= self.revision or line.version < 1:
            self._raise_damaged(f"key {key!r} has invalid revisions")
        try:
            check_key(key)
            value = _decode_value(line)
        except (Invalid, ValueError) as error:
            self._raise_damaged(f"key {key!r}: {error}")
        return KeyValue(key, value, line.create, line.mod, line.version, line.lease)

    def _lease(self, line: _Lease) -> Lease:
        if not 0 < line.lease < 2**63 or line.ttl <= 0:
            self._raise_damaged(f"lease {line.lease} is invalid")
        return Lease(line.lease, line.ttl, Deadline(line.boot, line.uptime, line.ends.timestamp()))

    def _check_history(self) -> None:
        if not 0 <= self.compacted <= self.revision or self.revision < 1 or self.saved < 0:
            self._raise_damaged(f"revision {self.revision} compacted to {self.compacted} is invalid")
        first_allowed = max(self.compacted, 1) + 1
        # The history must reach back to the compaction; the revision it was compacted to may be missing.
        if not self.partial and not max(self.compacted, 2) <= self.first_revision <= first_allowed:
            self._raise_damaged(f"its history begins at revision {self.first_revision}, compacted to {self.compacted}")
        for expected, line in enumerate(self._file.history, self.first_revision):
            if line.revision != expected:
                self._raise_damaged(f"its history has revision {line.revision} instead of {expected}")
            if not line.changes:
                self._raise_damaged(f"revision {line.revision} of the history changed nothing")

    def _raise_damaged(self, why: str) -> NoReturn:
        raise damage_error(self._path, why)


def parse(path: str, data: bytes, known: KnownState | None = None) -> Content:
    """Return the content of the file, or only the changes since the state `known`.

    Damaged, Invalid: not a state file, or not a readable one.
    """
    news = None if known is None else _parse_news(path, data, known)
    return news or _parse_all(path, data)


def _parse_all(path: str, data: bytes) -> Content:
    try:
        header = msgspec.json.decode(data, type=Header)
    except msgspec.ValidationError:
        raise Invalid(f"{path}: JSON, but not a state file of Hostler; name another file") from None
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        what = "it is empty" if not data else f"it is not JSON ({error})"
        raise damage_error(path, what) from None
    if header.format != FORMAT:
        raise Invalid(f"{path}: JSON, but not a state file of Hostler; name another file")
    if header.version != VERSION:
        raise Invalid(
            f"{path}: a state file of version {header.version}, this Hostler reads version {VERSION}; "
            "use the Hostler that wrote it"
        )
    try:
        file = msgspec.json.decode(data, type=_File)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise damage_error(path, str(error)) from None
    return Content(path, data, file)


def _parse_news(path: str, data: bytes, known: KnownState) -> Content | None:
    """Return the newest lines of the history and the keys they name; None if the whole file must be read.

    The reader already has most of a large file. Only a file that a store saved later is read in this way: in a file
    that was edited by hand, every line counts.
    """
    keys_at, leases_at, history_at = data.find(KEYS), data.find(LEASES), data.find(HISTORY)
    if not 0 < keys_at < leases_at < history_at or not data.endswith(END):
        return None
    try:
        head = msgspec.json.decode(data[:keys_at] + b"}", type=_Head)
        if (head.format, head.version, head.id) != (FORMAT, VERSION, known.store_id) or head.saved <= known.saved:
            return None
        leases = msgspec.json.decode(b"[%b]" % data[leases_at + len(LEASES) : history_at], type=list[_Lease])
        history = _newest(data, history_at + len(HISTORY), head.revision - known.revision)
        keys: dict[str, _Key] = {}
        for change in (change for line in history for change in line.changes):
            if change.put is not None and change.put not in keys:
                start = data.find(b'\n{"key":%b,' % encode(change.put), keys_at, leases_at) + 1
                if start > 0:
                    line = data[start : data.index(b"\n", start)].removesuffix(b",")
                    keys[change.put] = msgspec.json.decode(line, type=_Key)
        fields = (head.format, head.version, head.id, head.saved, head.revision, head.compact_revision)
        content = Content(path, data, _File(*fields, list(keys.values()), leases, history), partial=True)
        content.log(known.revision + 1)
        return content
    except (msgspec.MsgspecError, ValueError, RecursionError, Damaged):
        return None  # reading all of it reports what is wrong


def _newest(data: bytes, start: int, count: int) -> list[_Revision]:
    """Return the last `count` lines of the history, which begins at `start`."""
    lines: list[_Revision] = []
    end = len(data) - len(END)
    while len(lines) < count and end > start:
        begin = max(data.rfind(b"\n", start, end) + 1, start)
        lines.append(msgspec.json.decode(data[begin:end].removesuffix(b","), type=_Revision))
        end = begin - 1
    if len(lines) != max(count, 0):
        raise ValueError("the history does not reach back")
    lines.reverse()
    return lines


def _lines(data: bytes) -> tuple[list[bytes], list[bytes]] | None:
    """Return the lines of the keys and of the history unchanged; None if the file has another layout."""
    keys_at, leases_at, history_at = data.find(KEYS), data.find(LEASES), data.find(HISTORY)
    if not 0 < keys_at < leases_at < history_at or not data.endswith(END):
        return None
    keys = data[keys_at + len(KEYS) : leases_at]
    history = data[history_at + len(HISTORY) : -len(END)]
    return keys.split(b",\n") if keys else [], history.split(b",\n") if history else []


def damage_error(path: str, why: str) -> Damaged:
    """Return the error for a file that cannot be trusted."""
    return Damaged(f"{path}: damaged, {why}; nothing was changed, repair it or restore a backup")


def _decode_value(line: _Value) -> bytes:
    forms: list[Any] = [form for form in (line.json, line.text, line.base64) if form is not msgspec.UNSET]
    if len(forms) != 1:
        raise ValueError("its value must be given once, as json, text or base64")
    if isinstance(line.json, msgspec.Raw):
        # Compact again, in case a tool has reformatted the file.
        return encode(msgspec.json.decode(line.json))
    if isinstance(line.text, str):
        return line.text.encode()
    try:
        return base64.b64decode(forms[0], validate=True)
    except binascii.Error as error:
        raise ValueError(f"not base64 ({error})") from None
