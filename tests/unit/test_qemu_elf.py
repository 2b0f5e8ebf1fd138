"""ELF files that we read, and the programs of a few instructions that we write."""

from __future__ import annotations

import gzip
import lzma
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostler.drivers.machines.qemu.images import elf, kernel
from hostler.drivers.machines.qemu.images.guest import guest_binaries
from hostler.errors import Refused


def ran(path: Path, code: bytes, *arguments: str, given: bytes = b"", user: int | None = None) -> tuple[int, str]:
    path.write_bytes(code)
    path.chmod(0o755)
    done = subprocess.run([path, *arguments], input=given, capture_output=True, check=False, user=user, timeout=60)
    return done.returncode, done.stderr.decode()


def test_a_program_of_ours_runs(tmp_path: Path) -> None:
    answer = guest_binaries.assembled("""
        6a 2a 5f    ; mov edi, 42
        6a 3c 58    ; mov eax, 60   exit
        0f 05       ; syscall
    """)
    assert ran(tmp_path / "answer", answer) == (42, "")


def test_the_loader_of_modules_counts_those_that_it_could_not_load(tmp_path: Path) -> None:
    assert ran(tmp_path / "load", guest_binaries.LOAD)[0] == 0
    (tmp_path / "none.ko").write_bytes(b"no module")
    files = [str(tmp_path / name) for name in ("absent.ko", "none.ko", "absent.ko")]
    assert ran(tmp_path / "load", guest_binaries.LOAD, *files)[0] == 3


def test_programs_that_cannot_do_it_say_so(tmp_path: Path) -> None:
    assert ran(tmp_path / "reseed", guest_binaries.RESEED)[0] == 1, "nothing was given"
    assert ran(tmp_path / "grow", guest_binaries.GROW, "/nonexistent", str(tmp_path))[0] == 1
    plain = tmp_path / "plain"
    plain.write_bytes(b"")
    assert ran(tmp_path / "grow", guest_binaries.GROW, str(plain), str(tmp_path))[0] == 1, "a file is no device"


def test_who_may_not_become_root_does_not() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)  # another user must find it there
        path = Path(folder) / "sudo"
        root = os.getuid() == 0
        if root:  # it becomes root and runs its script, which only the guest has
            assert "/lib/hostler/sudo" in ran(path, guest_binaries.SUDO, "id")[1]
        assert ran(path, guest_binaries.SUDO, "id", user=65534 if root else None) == (1, "")


def test_libraries_and_loader_of_a_program_are_found() -> None:
    path = shutil.which("ls") or "/bin/ls"
    with open(path, "rb") as file:
        data = file.read()
    assert "libc.so.6" in elf.needed(data)
    assert (elf.interpreter(data) or "").startswith("/lib")
    assert elf.needed(guest_binaries.LOAD) == []
    assert elf.interpreter(guest_binaries.LOAD) is None


@given(st.binary(max_size=300), st.sampled_from([b"", b"\x7fELF\x02\x01\x01"]))
def test_what_is_no_elf_is_told_as_such(rest: bytes, head: bytes) -> None:
    for ask in (elf.needed, elf.interpreter, elf.module_facts, elf.boots_directly):
        try:
            ask(head + rest)
        except elf.NotElf:
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
    order = kernel.in_order(modules, ["kernel/net/ipv6/ipv6.ko"], ["virtio_net", "virtio"])
    assert [name for name, _ in order] == ["failover", "virtio", "virtio_net"]
    assert dict(order)["virtio"] == module(depends="")
    with pytest.raises(Refused, match="module absent, which the guest needs, is missing"):
        kernel.in_order(modules, [], ["absent"])


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
    assert kernel.unpacked(big_image(packed + b"\x10\0\0\0")) == bootable()


@pytest.mark.parametrize(
    "payload",
    [b"who knows", gzip.compress(b"no ELF", mtime=0), gzip.compress(guest_binaries.LOAD, mtime=0), b"\x1f\x8b cut"],
)
def test_a_kernel_that_cannot_be_unpacked_boots_as_it_is(payload: bytes) -> None:
    assert kernel.unpacked(big_image(payload)) == big_image(payload)


def test_what_is_no_kernel_is_refused() -> None:
    for data in (b"", b"MZ", sys.executable.encode() * 100):
        with pytest.raises(Refused, match="not a Linux kernel"):
            kernel.unpacked(data)
