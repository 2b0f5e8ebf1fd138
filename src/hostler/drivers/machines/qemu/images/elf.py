"""Reads ELF files: libraries of a program, properties of a kernel module, entries of a kernel."""

from __future__ import annotations

import struct

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


def needed(data: bytes) -> list[str]:
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
