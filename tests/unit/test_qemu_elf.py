"""ELF files that we read."""

from __future__ import annotations

import gzip
import lzma
import shutil
import struct
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostler.drivers.machines.qemu.images import formats, initrd
from hostler.errors import Refused


def static() -> bytes:
    """An executable of one segment, without a loader and libraries."""
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01" + bytes(9), 2, 62, 1, 0x400078, 64, 0, 0, 64, 56, 1, 64, 0, 0
    )
    return header + struct.pack("<IIQQQQQQ", 1, 5, 0, 0x400000, 0x400000, 121, 121, 0x1000) + b"\xf4"


def test_libraries_and_loader_of_a_program_are_found() -> None:
    path = shutil.which("ls") or "/bin/ls"
    with open(path, "rb") as file:
        data = file.read()
    assert "libc.so.6" in formats.needed_libraries(data)
    assert (formats.interpreter(data) or "").startswith("/lib")
    assert formats.needed_libraries(static()) == []
    assert formats.interpreter(static()) is None


@given(st.binary(max_size=300), st.sampled_from([b"", b"\x7fELF\x02\x01\x01"]))
def test_what_is_no_elf_is_told_as_such(rest: bytes, head: bytes) -> None:
    for ask in (formats.needed_libraries, formats.interpreter, formats.module_facts, formats.boots_directly):
        try:
            ask(head + rest)
        except formats.NotElf:
            continue
        assert head, f"{ask.__name__} took {rest!r}"


def module(**facts: str) -> bytes:
    """The smallest ELF with a section `.modinfo`."""
    said = b"\0".join(f"{name}={value}".encode() for name, value in facts.items()) + b"\0"
    names = b"\0.modinfo\0.shstrtab\0"
    start = 64 + len(said) + len(names)
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01" + bytes(9), 1, 62, 1, 0, 0, start, 0, 64, 56, 0, 64, 3, 2
    )
    sections = [
        (0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
        (1, 1, 0, 0, 64, len(said), 0, 0, 1, 0),
        (10, 3, 0, 0, 64 + len(said), len(names), 0, 0, 1, 0),
    ]
    return header + said + names + b"".join(struct.pack("<IIQQQQIIQQ", *section) for section in sections)


def test_modules_come_after_what_they_need() -> None:
    modules = {
        "/lib/modules/6/kernel/net/virtio-net.ko": module(depends="failover,virtio"),
        "/lib/modules/6/kernel/virtio/virtio.ko.xz": lzma.compress(module(depends="")),
        "/lib/modules/6/kernel/net/failover.ko": module(depends="ipv6"),
        "/lib/modules/6/kernel/net/other.ko": module(depends=""),
    }
    order = initrd.modules_in_order(modules, ["kernel/net/ipv6/ipv6.ko"], ["virtio_net", "virtio"])
    assert [name for name, _ in order] == ["failover", "virtio", "virtio_net"]
    assert dict(order)["virtio"] == module(depends="")
    with pytest.raises(Refused, match="module absent, which the guest needs, is missing"):
        initrd.modules_in_order(modules, [], ["absent"])


def bootable() -> bytes:
    """An ELF with the note that says where a loader enters it."""
    note = struct.pack("<III", 4, 8, 18) + b"Xen\0" + struct.pack("<Q", 0x1000000)
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01" + bytes(9), 2, 62, 1, 0, 64, 0, 0, 64, 56, 1, 64, 0, 0
    )
    return header + struct.pack("<IIQQQQQQ", 4, 4, 120, 0, 0, len(note), len(note), 4) + note


def big_image(payload: bytes) -> bytes:
    head = bytearray(0x400)
    head[0x1F1] = 1
    head[0x202:0x206] = b"HdrS"
    struct.pack_into("<II", head, 0x248, 16, len(payload))
    return bytes(head) + bytes(16) + payload


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, lambda data: lzma.compress(data, lzma.FORMAT_ALONE)])
def test_the_kernel_inside_is_found(pack: object) -> None:
    packed = pack(bootable())  # type: ignore[operator]
    assert initrd.unpack_kernel(big_image(packed + b"\x10\0\0\0")) == bootable()


@pytest.mark.parametrize(
    "payload",
    [b"who knows", gzip.compress(b"no ELF", mtime=0), gzip.compress(static(), mtime=0), b"\x1f\x8b cut"],
)
def test_a_kernel_that_cannot_be_unpacked_boots_as_it_is(payload: bytes) -> None:
    assert initrd.unpack_kernel(big_image(payload)) == big_image(payload)


def test_what_is_no_kernel_is_refused() -> None:
    for data in (b"", b"MZ", sys.executable.encode() * 100):
        with pytest.raises(Refused, match="not a Linux kernel"):
            initrd.unpack_kernel(data)
