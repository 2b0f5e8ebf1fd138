"""Checks whether an untrusted file is a disk image that a machine may use.

First its bytes are examined here. An unknown format, or one that refers to other files, is refused. Only then
`qemu-img` may read it: with the format given instead of guessed, as an unprivileged user where possible, with limited
memory and time, and through a descriptor, so that it needs no access to the folder.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from typing import IO, TYPE_CHECKING

import msgspec

from hostler.drivers.machines.qemu.images import qcow2
from hostler.errors import Refused, Unavailable
from hostler.kit.processes import end_process, environment

if TYPE_CHECKING:
    from pathlib import Path

SECTOR = 512
NOBODY = 65534
CHECK_WITHIN = 300.0
LIMITS = ("--as=4294967296", "--cpu=300", "--fsize=0", "--core=0", "--nofile=64")
"""Limits of qemu-img: it maps its libraries, and keeps a few bytes for each cluster."""

_CONVERT = "convert it: qemu-img convert -f {} -O qcow2 IMAGE DISK, and add that"
_FOREIGN: tuple[tuple[int, bytes, str, str], ...] = (
    (0, b"KDMV", "a VMDK image", _CONVERT.format("vmdk")),
    (0, b"COWD", "a VMDK image", _CONVERT.format("vmdk")),
    (0, b"# Disk Descriptor", "the descriptor of a VMDK image", _CONVERT.format("vmdk")),
    (64, b"\x7f\x10\xda\xbe", "a VDI image", _CONVERT.format("vdi")),
    (0, b"vhdxfile", "a VHDX image", _CONVERT.format("vhdx")),
    (0, b"conectix", "a VHD image", _CONVERT.format("vpc")),
    (-512, b"conectix", "a VHD image", _CONVERT.format("vpc")),
    (0, b"QED\0", "a QED image", _CONVERT.format("qed")),
    (0, b"WithoutFreeSpace", "a Parallels image", _CONVERT.format("parallels")),
    (0, b"WithouFreSpacExt", "a Parallels image", _CONVERT.format("parallels")),
    (-512, b"koly", "a DMG image", _CONVERT.format("dmg")),
    (0, b"LUKS\xba\xbe", "encrypted (LUKS)", "decrypt it first"),
    (32769, b"CD001", "a CD or DVD (ISO 9660), which installs a system", "add an image of a disk with a system on it"),
    (0, b"PK\x03\x04", "a ZIP archive", "unpack it first: unzip"),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive", "unpack it first: 7z x"),
    (257, b"ustar", "a tar archive", "unpack it first: tar xf"),
    (0, b"\x28\xb5\x2f\xfd", "compressed by zstd", "unpack it first: zstd -d"),
    (0, b"\x04\x22\x4d\x18", "compressed by lz4", "unpack it first: lz4 -d"),
)
"""Offset (negative: from the end), magic bytes, name, advice."""
_FILE_SYSTEMS: tuple[tuple[int, bytes], ...] = (
    (1080, b"\x53\xef"),  # ext2, ext3, ext4
    (0, b"XFSB"),
    (0x10040, b"_BHRfS_M"),
    (0, b"hsqs"),
    (1024, b"\xe2\xe1\xf5\xe0"),  # erofs
    (1024, b"\x10\x20\xf5\xf2"),  # f2fs
)


class Disk(msgspec.Struct, frozen=True):
    """The format and size of a disk image."""

    format: str
    """qcow2 or raw."""
    size: int
    """Bytes that the guest sees."""


def recognise(path: Path, subject: str) -> Disk:
    """Identify a file by its bytes alone. Refused: not a disk, an unsupported format, or one that names other files."""
    with path.open("rb") as file:
        length = file.seek(0, 2)
        if length == 0:
            raise Refused(f"{subject}: the file is empty; get it again")
        if _at(file, 0, 4) == qcow2.MAGIC:
            return Disk("qcow2", qcow2.virtual_bytes(file, subject))
        for at, magic, what, advice in _FOREIGN:
            if _at(file, at, len(magic)) == magic:
                raise Refused(f"{subject}: it is {what}; {advice}")
        if length % SECTOR == 0 and (_has_partitions(file) or _has_file_system(file)):
            return Disk("raw", length)
    raise Refused(
        f"{subject}: not a disk image: neither qcow2 nor raw with a partition table or a file system;"
        " add a cloud image (qcow2), such as a distribution offers for OpenStack"
    )


async def check(path: Path, subject: str) -> Disk:
    """Identify a file and check it with qemu-img. Refused: see `recognise`, or it is damaged."""
    disk = await asyncio.to_thread(recognise, path, subject)
    info = await _qemu_img("info", path, disk.format, subject)
    if info.code:
        raise Refused(f"{subject}: qemu-img cannot read it: {info.complaint}; get the file again")
    told = msgspec.json.decode(info.output, type=_Info)
    if told.format != disk.format or told.backing_filename or told.virtual_size != disk.size:
        raise Refused(f"{subject}: qemu-img reports another image than its header shows; get it from another source")
    if disk.format == "qcow2":
        checked = await _qemu_img("check", path, disk.format, subject)
        if checked.code not in (0, 3):  # 3: leaked clusters
            raise Refused(f"{subject}: it is damaged: {checked.complaint}; get the file again")
    return disk


def check_kernel(path: Path, subject: str) -> None:
    """Check that QEMU can start the file as a kernel. Refused: it cannot."""
    with path.open("rb") as file:
        if _at(file, 0x202, 4) != b"HdrS" and _at(file, 0, 4) != b"\x7fELF":
            raise Refused(f"{subject}: not a Linux kernel for x86 (neither a bzImage nor an ELF file); give another")


class _Info(msgspec.Struct):
    format: str = ""
    virtual_size: int = msgspec.field(default=0, name="virtual-size")
    backing_filename: str = msgspec.field(default="", name="backing-filename")


class _Ended(msgspec.Struct, frozen=True):
    code: int
    output: bytes
    errors: bytes

    @property
    def complaint(self) -> str:
        text = (self.errors or self.output).decode(errors="replace").strip()
        return (text.splitlines() or [f"it ended with code {self.code}"])[-1][:200].removeprefix("qemu-img: ")


async def _qemu_img(verb: str, path: Path, format: str, subject: str) -> _Ended:  # noqa: A002 - QEMU's word for it
    if shutil.which("qemu-img") is None:
        raise Unavailable(f"{subject}: qemu-img is needed to check it; install the package qemu-utils")
    as_nobody = ["--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups", "--bounding-set=-all"]
    with path.open("rb") as file:
        if os.geteuid() == 0:
            os.fchmod(file.fileno(), 0o444)  # the unprivileged user opens it again; only the agent can enter its folder
        argv = [
            *("prlimit", *LIMITS, "--", "setpriv", "--no-new-privs", *(as_nobody if os.geteuid() == 0 else [])),
            *("qemu-img", verb, "--output=json", "-f", format, f"/proc/self/fd/{file.fileno()}"),
        ]
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            pass_fds=(file.fileno(),),
            env=environment(),
        )
        try:
            async with asyncio.timeout(CHECK_WITHIN):
                output, errors = await process.communicate()
        except TimeoutError:
            raise Refused(
                f"{subject}: qemu-img {verb} did not end within {CHECK_WITHIN:.0f} s; get it from another source"
            ) from None
        finally:
            await end_process(process)
    return _Ended(process.returncode or 0, output, errors)


def _at(file: IO[bytes], at: int, count: int) -> bytes:
    length = file.seek(0, 2)
    start = at if at >= 0 else length + at
    if start < 0:
        return b""
    file.seek(start)
    return file.read(count)


def _has_partitions(file: IO[bytes]) -> bool:
    if any(_at(file, sector, 8) == b"EFI PART" for sector in (512, 4096)):
        return True
    head = _at(file, 0, 512)
    if head[510:] != b"\x55\xaa":
        return False
    entries = [head[446 + 16 * i : 462 + 16 * i] for i in range(4)]
    return any(entry[0] in (0, 0x80) and entry[4] and any(entry[12:16]) for entry in entries)


def _has_file_system(file: IO[bytes]) -> bool:
    return any(_at(file, at, len(magic)) == magic for at, magic in _FILE_SYSTEMS)
