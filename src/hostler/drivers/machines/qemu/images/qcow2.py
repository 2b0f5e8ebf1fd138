"""Reads the header of a qcow2 file before any other program may open it.

A header can name other files: a backing file or an external data file. Programs that open the image then open those
files with their own rights. So an image that names one is refused because of its bytes, not because of the output of a
tool that has already followed them.
"""

from __future__ import annotations

import struct
from typing import IO

from hostler.errors import Refused

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
