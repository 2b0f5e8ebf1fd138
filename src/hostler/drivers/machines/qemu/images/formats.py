"""Formats of files: archives for the kernel (cpio), programs and kernels (ELF), headers of disks (qcow2).

The kernel unpacks an archive (`newc`) at boot. It is written without root and without tools. Owner, mode and device
numbers are given by the caller: nothing depends on the host or on the time.

The header of a qcow2 file is read before any other program may open the file. It can name other files: a backing file
or an external data file. Programs that open the image then open those files with their own rights. So an image that
names one is refused because of its bytes, not because of the output of a tool that has already followed them.
"""

from __future__ import annotations

import stat
import struct
from pathlib import PurePosixPath
from typing import IO

from hostler.errors import Refused

MODES = 0o7777


class Archive:
    """Files by their path from `/`. Missing parent folders are added with mode 0755, owned by root."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._paths: set[str] = set()
        self._size = 0
        self._number = 0

    def file(self, path: str, content: bytes, mode: int = 0o644, *, uid: int = 0, gid: int = 0) -> None:
        """Add a regular file; `mode` may contain the set-uid bit."""
        self._entry(path, stat.S_IFREG | mode & MODES, content, uid=uid, gid=gid)

    def folder(self, path: str, mode: int = 0o755, *, uid: int = 0, gid: int = 0) -> None:
        """Add an empty folder."""
        self._entry(path, stat.S_IFDIR | mode & MODES, b"", uid=uid, gid=gid)

    def link(self, path: str, target: str) -> None:
        """Add a symbolic link."""
        self._entry(path, stat.S_IFLNK | 0o777, target.encode())

    def device(self, path: str, mode: int, major: int, minor: int) -> None:
        """Add a character device, such as the console that init needs before it has mounted anything."""
        self._entry(path, stat.S_IFCHR | mode & MODES, b"", device=(major, minor))

    def __contains__(self, path: str) -> bool:
        return _relative(path) in self._paths

    def packed(self) -> bytes:
        """Return the complete archive with its trailer; call it once."""
        self._write("TRAILER!!!", 0, b"", uid=0, gid=0, device=(0, 0))
        self._parts.append(b"\0" * (-self._size % 512))
        return b"".join(self._parts)

    def _entry(
        self,
        path: str,
        mode: int,
        content: bytes,
        *,
        uid: int = 0,
        gid: int = 0,
        device: tuple[int, int] = (0, 0),
    ) -> None:
        name = _relative(path)
        if name in self._paths:
            raise ValueError(f"{path}: already in the archive")
        for parent in reversed(PurePosixPath(name).parents):
            if str(parent) != "." and str(parent) not in self._paths:
                self._paths.add(str(parent))
                self._write(str(parent), stat.S_IFDIR | 0o755, b"", uid=0, gid=0, device=(0, 0))
        self._paths.add(name)
        self._write(name, mode, content, uid=uid, gid=gid, device=device)

    def _write(self, name: str, mode: int, content: bytes, *, uid: int, gid: int, device: tuple[int, int]) -> None:
        self._number += 1
        links = 2 if stat.S_ISDIR(mode) else 1
        text = name.encode() + b"\0"
        fields = (self._number, mode, uid, gid, links, 0, len(content), 0, 0, *device, len(text), 0)
        head = b"070701" + b"".join(b"%08X" % field for field in fields) + text
        self._append(head)
        self._append(content)

    def _append(self, data: bytes) -> None:
        padded = data + b"\0" * (-len(data) % 4)
        self._parts.append(padded)
        self._size += len(padded)


def _relative(path: str) -> str:
    name = path.strip("/")
    if not name or any(part in ("", ".", "..") for part in name.split("/")):
        raise ValueError(f"{path!r}: not a plain path")
    return name


_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_PROGRAM = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_DYNAMIC = struct.Struct("<qQ")
_LOAD, _DYNAMIC_SEGMENT, _INTERPRETER = 1, 2, 3
_NEEDED, _STRING_TABLE = 1, 5
_NOTE = 4
_PVH_NOTE = 18
"""Entry of the kernel for a loader that starts it directly (`XEN_ELFNOTE_PHYS32_ENTRY`)."""


class NotElf(ValueError):
    """The bytes are not a 64-bit little-endian ELF file, or it is damaged."""


def needed_libraries(data: bytes) -> list[str]:
    """Return the names of the shared libraries that it needs."""
    try:
        segments = list(_segments(data))
        dynamic = next((part for part in segments if part[0] == _DYNAMIC_SEGMENT), None)
        if dynamic is None:
            return []
        _, _, offset, _, _, size, _, _ = dynamic
        entries = list(_DYNAMIC.iter_unpack(data[offset : offset + size - size % _DYNAMIC.size]))
        table = next(value for tag, value in entries if tag == _STRING_TABLE)
        start = _file_offset(segments, table)
        return [_text(data, start + value) for tag, value in entries if tag == _NEEDED]
    except (struct.error, StopIteration, IndexError, ValueError) as error:
        raise NotElf(f"not a readable ELF file: {error}") from None


def interpreter(data: bytes) -> str | None:
    """Return the path of its loader; None: it is static."""
    for kind, _, offset, _, _, size, _, _ in _segments(data):
        if kind == _INTERPRETER:
            return data[offset : offset + size].rstrip(b"\0").decode()
    return None


def module_facts(data: bytes) -> dict[str, str]:
    """Return the properties of a kernel module (`.modinfo`); of a repeated name, the first value."""
    facts: dict[str, str] = {}
    for item in _section(data, ".modinfo").split(b"\0"):
        name, separator, value = item.partition(b"=")
        if separator:
            facts.setdefault(name.decode(), value.decode(errors="replace"))
    return facts


def boots_directly(data: bytes) -> bool:
    """Return whether this kernel has an entry for a loader that skips the setup code of a bzImage."""
    for kind, _, offset, _, _, size, _, _ in _segments(data):
        if kind != _NOTE:
            continue
        at, end = offset, offset + size
        while at + 12 <= end:
            name_size, content_size, note = struct.unpack_from("<III", data, at)
            name = data[at + 12 : at + 12 + name_size]
            if name.rstrip(b"\0") == b"Xen" and note == _PVH_NOTE:
                return True
            at += 12 + -(-name_size // 4) * 4 + -(-content_size // 4) * 4
    return False


def _segments(data: bytes) -> list[tuple[int, int, int, int, int, int, int, int]]:
    try:
        ident, _, _, _, _, offset, _, _, _, size, count, _, _, _ = _HEADER.unpack_from(data)
        if ident[:6] != b"\x7fELF\x02\x01" or size != _PROGRAM.size:
            raise NotElf("not a 64-bit little-endian ELF file")
        return [_PROGRAM.unpack_from(data, offset + number * size) for number in range(count)]
    except struct.error as error:
        raise NotElf(f"not a readable ELF file: {error}") from None


def _section(data: bytes, wanted: str) -> bytes:
    try:
        ident, _, _, _, _, _, offset, _, _, _, _, size, count, names = _HEADER.unpack_from(data)
        if ident[:6] != b"\x7fELF\x02\x01":
            raise NotElf("not a 64-bit little-endian ELF file")
        sections = [_SECTION.unpack_from(data, offset + number * size) for number in range(count)]
        strings = sections[names][4]
        for name, _, _, _, start, length, _, _, _, _ in sections:
            if _text(data, strings + name) == wanted:
                return data[start : start + length]
    except (struct.error, IndexError) as error:
        raise NotElf(f"not a readable ELF file: {error}") from None
    return b""


def _file_offset(segments: list[tuple[int, int, int, int, int, int, int, int]], address: int) -> int:
    for kind, _, offset, virtual, _, size, _, _ in segments:
        if kind == _LOAD and virtual <= address < virtual + size:
            return address - virtual + offset
    raise NotElf(f"nothing is loaded at {address:#x}")


def _text(data: bytes, start: int) -> str:
    return data[start : data.index(b"\0", start)].decode()


MAGIC = b"QFI\xfb"
HEAD_BYTES = 104
_V2_BYTES = 72
_EXTENSIONS_END = 0
_DATA_FILE_NAME = 0x44415441
_ENCRYPTION_HEADER = 0x0537BE77
_DIRTY, _CORRUPT, _DATA_FILE, _COMPRESSION, _EXTENDED_L2 = (1 << bit for bit in range(5))
_KNOWN_FEATURES = _DIRTY | _CORRUPT | _DATA_FILE | _COMPRESSION | _EXTENDED_L2
_RAW_DATA_FILE = 1 << 1
"""One of the autoclear features: the external data file is a raw image."""
MAX_VIRTUAL_BYTES = 64 * 2**40
_MAX_L1_ENTRIES = 32 * 2**20 // 8
_MAX_SNAPSHOTS = 65_536

FLATTEN = "flatten it where it was made: qemu-img convert -O qcow2 IMAGE FLAT, and add that"


def virtual_bytes(file: IO[bytes], subject: str) -> int:
    """Return the size of the disk that the guest sees. Refused: it refers to other files, or is damaged."""
    file.seek(0, 2)
    length = file.tell()
    file.seek(0)
    head = file.read(HEAD_BYTES)
    if len(head) < _V2_BYTES or not head.startswith(MAGIC):
        raise Refused(f"{subject}: its qcow2 header is cut off; get the file again")
    version, backing_at, backing_size, cluster_bits, size, encryption = struct.unpack(">IQIIQI", head[4:36])
    if version not in (2, 3):
        raise Refused(f"{subject}: qcow2 of version {version}, known are 2 and 3; {FLATTEN}")
    if len(head) < HEAD_BYTES:
        raise Refused(f"{subject}: its qcow2 header is cut off; get the file again")
    if backing_at or backing_size:
        raise Refused(f"{subject}: it has a backing file, which is never followed; {FLATTEN}")
    if encryption:
        raise Refused(f"{subject}: it is encrypted; {FLATTEN}")
    extensions_at = _V2_BYTES if version == 2 else _check_features(head, subject)
    _check_layout(head, length, cluster_bits, size, subject)
    _check_extensions(file, extensions_at, min(length, 1 << cluster_bits), subject)
    return int(size)


def _check_features(head: bytes, subject: str) -> int:
    """Check the feature bits; return where the header extensions begin."""
    incompatible, _, autoclear, refcount_order, header_bytes = struct.unpack(">QQQII", head[72:104])
    if incompatible & _DATA_FILE or autoclear & _RAW_DATA_FILE:
        raise Refused(f"{subject}: its data is in another file, which is never followed; {FLATTEN}")
    if incompatible & _CORRUPT:
        raise Refused(f"{subject}: it is marked as corrupt; get the file again, or repair it: qemu-img check -r all")
    if incompatible & _DIRTY:
        raise Refused(f"{subject}: it was not closed properly; repair it first: qemu-img check -r all")
    if incompatible & ~_KNOWN_FEATURES:
        raise Refused(f"{subject}: it needs features of qcow2 that are not known here; {FLATTEN}")
    if refcount_order > 6 or header_bytes < HEAD_BYTES or header_bytes % 8:
        raise Refused(f"{subject}: its qcow2 header is not sound; get the file again")
    return int(header_bytes)


def _check_layout(head: bytes, length: int, cluster_bits: int, size: int, subject: str) -> None:
    l1_entries, l1_at, refcount_at, refcount_clusters, snapshots, snapshots_at = struct.unpack(">IQQIIQ", head[36:72])
    unsound = Refused(f"{subject}: its qcow2 header is not sound; get the file again")
    if not 9 <= cluster_bits <= 21:
        raise unsound
    cluster = 1 << cluster_bits
    if not 0 < size <= MAX_VIRTUAL_BYTES:
        raise Refused(
            f"{subject}: a disk of {size} bytes; it must have between 1 byte and {MAX_VIRTUAL_BYTES >> 40} TiB"
        )
    entry_bytes = 16 if len(head) >= 80 and head[7] == 3 and struct.unpack(">Q", head[72:80])[0] & _EXTENDED_L2 else 8
    covered_by_entry = cluster * (cluster // entry_bytes)
    if not -(-size // covered_by_entry) <= l1_entries <= _MAX_L1_ENTRIES or snapshots > _MAX_SNAPSHOTS:
        raise unsound
    if any(at % cluster for at in (l1_at, refcount_at, snapshots_at)) or not refcount_clusters:
        raise unsound
    tables = (l1_at + 8 * l1_entries, refcount_at + cluster * refcount_clusters, snapshots_at if snapshots else 0)
    if not l1_at or not refcount_at or any(end > length for end in tables):
        raise Refused(f"{subject}: it ends before its tables do; get the file again")


def _check_extensions(file: IO[bytes], at: int, end: int, subject: str) -> None:
    """Check that no header extension names another file."""
    file.seek(at)
    data = file.read(max(0, end - at))
    position = 0
    while position + 8 <= len(data):
        kind, length = struct.unpack(">II", data[position : position + 8])
        if kind == _EXTENSIONS_END:
            return
        if kind == _DATA_FILE_NAME:
            raise Refused(f"{subject}: its data is in another file, which is never followed; {FLATTEN}")
        if kind == _ENCRYPTION_HEADER:
            raise Refused(f"{subject}: it is encrypted; {FLATTEN}")
        position += 8 + (length + 7) // 8 * 8
        if position > len(data):
            raise Refused(f"{subject}: its qcow2 header is not sound; get the file again")
