"""Adds an image that was made elsewhere, from a file or a web server."""

from __future__ import annotations

import asyncio
import re
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from hostler.drivers.machines.qemu.images.check import check, check_kernel
from hostler.drivers.machines.qemu.images.download import checked_url, download, shown
from hostler.drivers.machines.qemu.images.partial_download import held_part
from hostler.drivers.machines.qemu.images.transfer import copied, open_source, packed_by, unpacked
from hostler.errors import Invalid, Refused
from hostler.model.image import Probe, Seeding

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hostler.drivers.machines.qemu.images.folder import ImageFolder
    from hostler.drivers.machines.qemu.images.layout import Scratch
    from hostler.ports.images import Named, Progress

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


def wanted(options: Mapping[str, str]) -> ImageRequest:
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


def checked_sha256(sha256: str | None) -> str | None:
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
        found = await self._copied(Path(source), self._arrived, subject)
        if sha256 is not None and found != sha256:
            raise Refused(
                f"{subject}: wrong checksum: expected sha256 {sha256}, got {found}; check the checksum that you gave"
            )
        return await self._settled(self._arrived, found, source)

    async def from_url(self, url: str, sha256: str) -> Named:
        """Download a file, unless its content already exists here under another name or with other options."""
        known = await asyncio.to_thread(self._folder.disk_with, sha256)
        if known is not None:
            if await self._copied(known, self._arrived, f"image {known}") == sha256:
                return await self._settled(self._arrived, sha256, shown(url))
            await asyncio.to_thread(self._arrived.unlink)  # the existing one is damaged
        async with AsyncExitStack() as stack:
            holding = held_part(self._folder.place, sha256)
            part = await asyncio.to_thread(holding.__enter__)
            stack.push_async_callback(asyncio.to_thread, holding.__exit__, None, None, None)
            await download(url, part, limit=self._want.max_bytes, progress=self._progress)
            named = await self._settled(part.path, sha256, shown(url))
            await asyncio.to_thread(part.forget)
            return named

    async def _settled(self, arrived: Path, sha256: str, source: str) -> Named:
        """Check the received file and register it as the image. It is not moved before it is known to be good."""
        disk, subject, want = self._scratch.path / "disk", f"image {source}", self._want
        packing = await asyncio.to_thread(packed_by, arrived)
        if packing is not None:
            limit, progress = want.max_bytes, self._progress
            sha256 = await unpacked(arrived, disk, packing, limit=limit, subject=subject, progress=progress)
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
                await self._copied(Path(path), target, subject)
                if file == "kernel":
                    await asyncio.to_thread(check_kernel, target, subject)

    async def _copied(self, source: Path, target: Path, subject: str) -> str:
        with await asyncio.to_thread(open_source, source, subject) as file:
            limit, progress = self._want.max_bytes, self._progress
            return await copied(file, target, limit=limit, subject=subject, progress=progress)


async def add(
    folder: ImageFolder, name: str, source: str, *, sha256: str | None, options: Mapping[str, str], progress: Progress
) -> Named:
    """Add the image at `source` under that name."""
    want, sha256 = wanted(options), checked_sha256(sha256)
    if not source or "\0" in source:
        raise Invalid(f"image source {source!r}: must be a path or a URL")
    is_url = _URL.match(source) is not None
    if is_url and sha256 is None:
        raise Invalid(f"image {shown(checked_url(source))}: a URL needs its checksum; give it with --sha256")
    async with folder.scratch() as scratch:
        addition = Addition(folder, name, want, scratch, progress)
        if is_url and sha256 is not None:
            return await addition.from_url(checked_url(source), sha256)
        return await addition.from_file(source, sha256)
