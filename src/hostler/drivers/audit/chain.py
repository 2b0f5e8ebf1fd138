"""The format of audit log files, and the check for later changes.

    {"day":"2026-11-15","place":"5f3a…","after":"2026-11-14","chain":"9f86…"}
    {"key":"/hostler/v1/audit/2026-11-15/10:15:30.123456-5f3a","revision":77,"value":{…},"chain":"60303a…"}

The first line names the folder, the day of the previous file, and the hash that the chain continues from. The hash of
each further line is the SHA-256 of the previous hash and of the line up to its own hash. So a line that is changed,
removed, added or moved breaks the chain from there on, in that file and in all later ones.
"""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING

import msgspec

from hostler.kit.plural import counted
from hostler.ports.store import KeyValue

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from hostler.ports.audit_files import DayFile

_CHAIN = b',"chain":"'
_END = b'"}\n'
_HASH = 64


class Header(msgspec.Struct, frozen=True):
    """The first line of a file."""

    day: str
    place: str
    after: str
    """The day of the previous file; empty: this is the first one."""
    chain: str
    """The hash of the last line of the previous file."""


class _Line(msgspec.Struct, frozen=True):
    key: str
    revision: int
    value: msgspec.Raw = msgspec.Raw()
    base64: str | None = None
    """Replaces `value` if that is not JSON in one line."""


class DayCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The result of checking the file of one day."""

    day: str
    lines: int
    chain: str
    problems: tuple[str, ...] = ()


def header_line(header: Header) -> bytes:
    """Return the first line of a file."""
    return msgspec.json.encode(header) + b"\n"


def line_of(kv: KeyValue, chain: str) -> tuple[bytes, str]:
    """Return the line of a write that follows the hash `chain`, and its own hash."""
    fields: dict[str, object] = {"key": kv.key, "revision": kv.create_revision}
    if _is_one_line(kv.value):
        fields["value"] = msgspec.Raw(kv.value)
    else:
        fields["base64"] = base64.b64encode(kv.value).decode()
    body = msgspec.json.encode(fields)[:-1]
    own = _hash(chain, body)
    return body + _CHAIN + own.encode() + _END, own


def read_line(line: bytes) -> KeyValue:
    """Return the write of a line. ValueError: not a valid line."""
    try:
        read = msgspec.json.decode(line, type=_Line)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from None
    value = bytes(read.value) if read.base64 is None else base64.b64decode(read.base64)
    return KeyValue(read.key, value, read.revision, read.revision, 1)


def read_header(line: bytes) -> Header:
    """Return the first line of a file. ValueError: not a valid header."""
    try:
        return msgspec.json.decode(line, type=Header)
    except msgspec.MsgspecError as error:
        raise ValueError(f"its first line cannot be read: {error}") from None


def chain_of(line: bytes) -> str:
    """Return the hash that a line carries; empty: it has none."""
    found = line[-len(_END) - _HASH : -len(_END)]
    return found.decode("ascii", "replace") if line.endswith(_END) and _CHAIN in line else ""


def check(files: Iterable[Path], expected: Mapping[str, DayFile]) -> list[DayCheck]:
    """Check the files of a folder, oldest first. `expected`: the end of each file as the store recorded it."""
    found: list[DayCheck] = []
    for path in files:
        found.append(_check_file(path, found[-1] if found else None, expected.get(path.stem)))
    known = {one.day for one in found}
    for day, record in expected.items():
        if day not in known:
            gone = f"the file is missing; the store recorded {record.lines:,} lines in it"
            found.append(DayCheck(day=day, lines=0, chain="", problems=(gone,)))
    return sorted(found, key=lambda one: one.day)


def _check_file(path: Path, before: DayCheck | None, record: DayFile | None) -> DayCheck:
    problems: list[str] = []
    lines, chain = 0, ""
    recorded = None if record is None else record.lines == 0
    with path.open("rb") as file:
        try:
            header = read_header(file.readline())
            chain = header.chain
            if header.day != path.stem:
                problems.append(f"it says that it is the file of {header.day}")
            if before is not None and (header.after, header.chain) != (before.day, before.chain):
                problems.append(f"it does not follow the end of {before.day}: lines are missing or were changed")
        except ValueError as error:
            problems.append(str(error))
        for line in file:
            if not line.endswith(b"\n"):
                break  # the end of an interrupted write; its lines are still in the store
            lines += 1
            body, mark, _ = line.rpartition(_CHAIN)
            wanted = _hash(chain, body) if mark else ""
            chain = chain_of(line)
            if not chain or chain != wanted:
                problems.append(f"line {lines + 1}: changed, or lines before it are missing")
                chain = chain or wanted
            if record is not None and lines == record.lines:
                recorded = chain == record.chain
    if record is not None and lines < record.lines:
        missing = counted(record.lines - lines, "line is", "lines are")
        problems.append(f"{missing} missing at its end; the store recorded {record.lines:,}")
    elif recorded is False:
        problems.append("its lines are not those that the store recorded")
    return DayCheck(day=path.stem, lines=lines, chain=chain, problems=tuple(problems))


def _hash(chain: str, body: bytes) -> str:
    return hashlib.sha256(chain.encode() + body).hexdigest()


def _is_one_line(value: bytes) -> bool:
    if b"\n" in value or not value:
        return False
    try:
        msgspec.json.decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return False
    return True
