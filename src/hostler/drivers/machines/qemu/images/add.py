"""Adds an image that was made elsewhere, from a file or a web server. The file is not trusted.

First its bytes are examined here. An unknown format, or one that refers to other files, is refused. Only then
`qemu-img` may read it: with the format given instead of guessed, as an unprivileged user where possible, with limited
memory and time, and through a descriptor, so that it needs no access to the folder.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from contextlib import AsyncExitStack
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import msgspec

from hostler.drivers.machines.qemu.images import formats
from hostler.drivers.machines.qemu.images.download import check_url, download, lock_part, redact_url
from hostler.drivers.machines.qemu.images.transfer import compression_of, copy_file, open_source, unpack_file
from hostler.errors import Invalid, Refused, Unavailable
from hostler.kit.processes import end_process, environment
from hostler.model.image import Probe, Seeding

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hostler.drivers.machines.qemu.images.folder import ImageFolder
    from hostler.drivers.machines.qemu.images.layout import Scratch
    from hostler.ports.machine_driver import Named, Progress

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
        if _at(file, 0, 4) == formats.MAGIC:
            return Disk("qcow2", formats.virtual_bytes(file, subject))
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


MAX_BYTES = 64 * 2**30
DEFAULT_APPEND = "root=/dev/vda1 rw console=ttyS0"
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}")


class ImageRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Properties of an image that is added. The defaults suit a cloud image."""

    user: str = "hostler"
    probe: Probe = Probe.SSH
    seeding: Seeding = Seeding.CLOUD_INIT
    memory_mib: int = 512
    boot_seconds: float = 240.0
    kernel: str = ""
    initrd: str = ""
    append: str = ""
    max_bytes: int = MAX_BYTES

    def fields(self) -> dict[str, Any]:
        """Return the fields of `Image`."""
        names = ("user", "probe", "seeding", "memory_mib", "boot_seconds")
        append = self.append or (DEFAULT_APPEND if self.kernel else "")
        return {name: getattr(self, name) for name in names} | {"append": append}


def parse_request(options: Mapping[str, str]) -> ImageRequest:
    """Parse the options. Invalid: an unknown option, or a value that is not allowed."""
    for name in options:
        if name not in ImageRequest.__struct_fields__:
            raise Invalid(f"option {name!r}: unknown; known are {', '.join(ImageRequest.__struct_fields__)}")
    try:
        found = msgspec.convert(dict(options), ImageRequest, strict=False)
    except msgspec.ValidationError as error:
        raise Invalid(f"options of the image: {error}; correct it") from None
    if not _USER.fullmatch(found.user):
        raise Invalid(f"user {found.user!r}: must be 1 to 32 of a-z, 0-9, '_' and '-'; choose another one")
    if not 16 <= found.memory_mib <= 2**20:
        raise Invalid(f"memory {found.memory_mib} MiB: must be between 16 MiB and 1 TiB; choose another one")
    if not 0 < found.boot_seconds <= 86400:
        raise Invalid(f"boot seconds {found.boot_seconds:g}: must be above 0 and at most a day; choose another one")
    if found.max_bytes <= 0:
        raise Invalid(f"size limit {found.max_bytes}: must be above 0; choose another one")
    if not found.append.isascii() or not found.append.isprintable() or len(found.append) > 1024:
        raise Invalid("append: must be one line of at most 1024 printable ASCII characters; correct it")
    if (found.initrd or found.append) and not found.kernel:
        raise Invalid("initrd and append: they need a kernel; give one too, or none of them")
    return found


def check_sha256(sha256: str | None) -> str | None:
    """Return the checksum in lower case. Invalid: it is not a sha256."""
    if sha256 is None:
        return None
    found = sha256.strip().lower().removeprefix("sha256:")
    if not _SHA256.fullmatch(found):
        raise Invalid(f"checksum {sha256!r}: must be a sha256, 64 digits of 0-9 and a-f; copy all of it")
    return found


class Addition:
    """One image that is being added."""

    def __init__(
        self, folder: ImageFolder, name: str, want: ImageRequest, scratch: Scratch, progress: Progress
    ) -> None:
        self._folder, self._name, self._want, self._progress = folder, name, want, progress
        self._scratch = scratch
        self._arrived = scratch.path / "arrived"

    async def from_file(self, source: str, sha256: str | None) -> Named:
        """Add a copy of a file; the file may change or be deleted afterwards."""
        subject = f"image {source}"
        found = await self._copy_from(Path(source), self._arrived, subject)
        if sha256 is not None and found != sha256:
            raise Refused(
                f"{subject}: wrong checksum: expected sha256 {sha256}, got {found}; check the checksum that you gave"
            )
        return await self._check_and_register(self._arrived, found, source)

    async def from_url(self, url: str, sha256: str) -> Named:
        """Download a file, unless its content already exists here under another name or with other options."""
        known = await asyncio.to_thread(self._folder.disk_with, sha256)
        if known is not None:
            if await self._copy_from(known, self._arrived, f"image {known}") == sha256:
                return await self._check_and_register(self._arrived, sha256, redact_url(url))
            await asyncio.to_thread(self._arrived.unlink)  # the existing one is damaged
        async with AsyncExitStack() as stack:
            holding = lock_part(self._folder.place, sha256)
            part = await asyncio.to_thread(holding.__enter__)
            stack.push_async_callback(asyncio.to_thread, holding.__exit__, None, None, None)
            await download(url, part, limit=self._want.max_bytes, progress=self._progress)
            named = await self._check_and_register(part.path, sha256, redact_url(url))
            await asyncio.to_thread(part.forget)
            return named

    async def _check_and_register(self, arrived: Path, sha256: str, source: str) -> Named:
        """Check the received file and register it as the image. It is not moved before it is known to be good."""
        disk, subject, want = self._scratch.path / "disk", f"image {source}", self._want
        packing = await asyncio.to_thread(compression_of, arrived)
        if packing is not None:
            limit, progress = want.max_bytes, self._progress
            sha256 = await unpack_file(arrived, disk, packing, limit=limit, subject=subject, progress=progress)
        self._progress("checking", 0, None)
        found = await check(disk if packing else arrived, subject)
        await self._take_boot_files()
        if packing is None:
            await asyncio.to_thread(arrived.rename, disk)
        fields = want.fields() | {"disk_format": found.format, "disk_bytes": found.size, "source": source}
        return await self._folder.register(self._name, self._scratch, fields, digests={"disk": sha256})

    async def _take_boot_files(self) -> None:
        for file, path in (("kernel", self._want.kernel), ("initrd", self._want.initrd)):
            if path:
                target, subject = self._scratch.path / file, f"{file} {path}"
                await self._copy_from(Path(path), target, subject)
                if file == "kernel":
                    await asyncio.to_thread(check_kernel, target, subject)

    async def _copy_from(self, source: Path, target: Path, subject: str) -> str:
        with await asyncio.to_thread(open_source, source, subject) as file:
            limit, progress = self._want.max_bytes, self._progress
            return await copy_file(file, target, limit=limit, subject=subject, progress=progress)


async def add(
    folder: ImageFolder, name: str, source: str, *, sha256: str | None, options: Mapping[str, str], progress: Progress
) -> Named:
    """Add the image at `source` under that name."""
    want, sha256 = parse_request(options), check_sha256(sha256)
    if not source or "\0" in source:
        raise Invalid(f"image source {source!r}: must be a path or a URL")
    is_url = _URL.match(source) is not None
    if is_url and sha256 is None:
        raise Invalid(f"image {redact_url(check_url(source))}: a URL needs its checksum; give it with --sha256")
    async with folder.scratch() as scratch:
        addition = Addition(folder, name, want, scratch, progress)
        if is_url and sha256 is not None:
            return await addition.from_url(check_url(source), sha256)
        return await addition.from_file(source, sha256)
