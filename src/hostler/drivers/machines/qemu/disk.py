"""The disk of a machine: operations of `qemu-img` while no other process has it open, and new disks over a base.

Every call names each layer explicitly (`layers`), so that a file name stored inside an image is never followed. When a
cancelled call raises, its `qemu-img` has ended, so it cannot interfere with a repetition.

Disks of one size are equal, so `qemu-img` makes the first, and the others are copies of it. A file that another user's
process wrote is taken over, so that no other process has it open.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import stat
import struct
import threading
from collections import OrderedDict
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from hostler.drivers.machines.qemu.images.formats import MAGIC
from hostler.errors import Refused, Unavailable
from hostler.kit.processes import end_process, environment
from hostler.kit.tasks import run_to_end

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

CHUNK = 2**26
_NOT_HERE = (errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS)


async def take(made: Path, target: Path) -> None:
    """Move or copy `made` to `target`, durably; `made` may be gone afterwards. Unavailable.

    A file that this user wrote is renamed. Otherwise a process of the file's owner may have it open and could keep
    writing to it after a rename, so it is copied. When a cancelled call raises, the copy has ended.
    """
    over = threading.Event()
    taking = asyncio.ensure_future(asyncio.to_thread(_take, made, target, over))
    try:
        await asyncio.shield(taking)
    finally:
        over.set()
        await run_to_end(_wait_for_end(taking))


async def _wait_for_end(taking: asyncio.Future[None]) -> None:
    with contextlib.suppress(Exception):
        await taking


def _take(made: Path, target: Path, over: threading.Event) -> None:
    try:
        source = os.open(made, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(source)
            if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
                raise Refused(f"{made}: not a regular file with one link; check the processes of user {status.st_uid}")
            if status.st_uid == os.geteuid():
                os.fsync(source)
                made.replace(target)
            else:
                _copy(source, status.st_size, target, over)
        finally:
            os.close(source)
    except OSError as error:
        raise Unavailable(f"{target}: cannot be created: {error.strerror}; fix the cause and try again") from None


def _copy(source: int, size: int, target: Path, over: threading.Event) -> None:
    target.unlink(missing_ok=True)
    fresh = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        at = 0
        while (at := _next_data(source, at, size)) < size:
            end = min(size, os.lseek(source, at, os.SEEK_HOLE), at + CHUNK)
            copied = _copy_range(source, fresh, at, end - at)
            if copied == 0 or over.is_set():
                raise Unavailable(f"{target}: the copy was interrupted; try again")
            at += copied
        os.ftruncate(fresh, size)
        os.fsync(fresh)
    finally:
        os.close(fresh)


def _next_data(source: int, at: int, size: int) -> int:
    """Return the offset of the next data, skipping holes."""
    try:
        return os.lseek(source, at, os.SEEK_DATA)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return size


def _copy_range(source: int, fresh: int, at: int, count: int) -> int:
    """Copy a range; on file systems with copy-on-write the blocks are shared until one file changes."""
    try:
        return os.copy_file_range(source, fresh, count, at, at)
    except OSError as error:
        if error.errno not in _NOT_HERE:
            raise
    os.lseek(fresh, at, os.SEEK_SET)
    return os.sendfile(fresh, source, at, count)


if TYPE_CHECKING:
    Wrap = Callable[[Sequence[str]], Sequence[str]]
    """Runs a command with the rights of a machine."""

DISK, BASE, COPY = "disk.qcow2", "base", "copy.qcow2"
GIB = 2**30
WITHIN = 600.0
_SAID = 400


def layers(base_format: str, *, node: bool = False) -> dict[str, Any]:
    """Describe the disk and its base by their names in the machine's folder; with `node`, with node names for QEMU."""
    below: dict[str, Any] = {"driver": base_format, "file": {"driver": "file", "filename": BASE}, "read-only": True}
    if base_format == "qcow2":
        below["backing"] = None
    above: dict[str, Any] = {"driver": "qcow2", "file": {"driver": "file", "filename": DISK}, "backing": below}
    if node:
        below["node-name"], above["node-name"] = "base", "disk"
        above["discard"] = above["file"]["discard"] = "unmap"
    return above


class Disk:
    """The disk of one machine, in its folder."""

    def __init__(self, folder: Path, base_format: str, *, wrap: Wrap = lambda argv: argv) -> None:
        self._folder, self._format, self._wrap = folder, base_format, wrap

    async def create(self, size_bytes: int) -> None:
        """Create an empty disk over the base, replacing an existing one."""
        self.remove()
        await self._run("create", "-q", "-f", "qcow2", "-u", "-b", BASE, "-F", self._format, DISK, str(size_bytes))

    async def copy(self, tag: str, into: Path) -> None:
        """Copy the content of the snapshot `tag` to another folder, as a disk over the same base.

        The disk may be in use.

        The copy is made in this folder with this machine's rights, because the other machine's rights do not reach
        here. Then the copy is taken from this machine, whose process could otherwise write to it for as long as it has
        it open.
        """
        draft = self._folder / COPY
        try:
            await self._run(
                "convert", "-q", "-U", "-l", f"snapshot.name={tag}", "-O", "qcow2", "-B", BASE, "-F", self._format,
                self._json(), COPY,
            )  # fmt: skip
            await take(draft, into / DISK)
        finally:
            with suppress(OSError):
                draft.unlink()

    async def grow(self, size_bytes: int) -> int:
        """Grow the disk to at least that size; return its size. It never shrinks."""
        present = self.virtual_bytes()
        if present < size_bytes:
            await self._run("resize", "-q", self._json(), str(size_bytes))
        return max(present, size_bytes)

    async def snapshots(self) -> list[str]:
        """Return the tags of its internal snapshots."""
        found = (await self._info()).get("snapshots", ())
        return [item["name"] for item in found]

    async def snapshot(self, tag: str) -> None:
        """Take a snapshot without memory. The tag must not exist."""
        await self._run("snapshot", "-q", "-c", tag, self._json())

    async def revert(self, tag: str) -> None:
        """Revert the disk to a snapshot."""
        await self._run("snapshot", "-q", "-a", tag, self._json())

    async def drop(self, tag: str) -> None:
        """Delete a snapshot, if it exists."""
        if tag in await self.snapshots():
            await self._run("snapshot", "-q", "-d", tag, self._json())

    def remove(self) -> None:
        (self._folder / DISK).unlink(missing_ok=True)

    def virtual_bytes(self) -> int:
        """Return the size that the guest sees, read from the header without a process.

        Unavailable: it cannot be read.
        """
        try:
            descriptor = os.open(self._folder / DISK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                magic, size = struct.unpack(">4s20xQ", os.pread(descriptor, 32, 0))
            finally:
                os.close(descriptor)
        except (OSError, struct.error) as error:
            raise Unavailable(f"{self._folder / DISK}: cannot be read: {error}; fix the cause") from None
        if magic != MAGIC:
            raise Unavailable(f"{self._folder / DISK}: not a qcow2 disk any more; restore it, or delete the machine")
        return int(size)

    def _json(self) -> str:
        return "json:" + json.dumps(layers(self._format))

    async def _info(self) -> dict[str, Any]:
        alone = {"driver": "qcow2", "file": {"driver": "file", "filename": DISK}}  # opens no layer below
        found: dict[str, Any] = json.loads(await self._run("info", "-U", "--output=json", "json:" + json.dumps(alone)))
        return found

    async def _run(self, *words: str) -> bytes:
        return await qemu_img(self._folder, words, wrap=self._wrap)


async def qemu_img(
    folder: Path, words: Sequence[str], *, wrap: Wrap = lambda argv: argv, within: float = WITHIN
) -> bytes:
    """Run `qemu-img` and return its output. Unavailable: no space, or timeout. Refused: any other failure."""
    subject = f"qemu-img {words[0]} in {folder}"
    try:
        process = await asyncio.create_subprocess_exec(
            *wrap(("qemu-img", *words)),
            cwd=folder,
            env=environment(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except FileNotFoundError as error:
        raise Unavailable(
            f"{subject}: {error.filename} not found; install qemu-utils, and check that the folder exists"
        ) from None
    except OSError as error:
        raise Unavailable(f"{subject}: cannot be started: {error.strerror}; try again") from None
    try:
        async with asyncio.timeout(within):
            said, complained = await process.communicate()
    except TimeoutError:
        raise Unavailable(f"{subject}: not finished within {within:g} s; check the host's storage") from None
    finally:
        await end_process(process)
    if process.returncode == 0:
        return said
    text = " ".join(complained.decode(errors="replace").split())[-_SAID:]
    if "No space left" in text or "Disk quota exceeded" in text:
        raise Unavailable(f"{subject}: no space left: {text}; free some and try again")
    raise Refused(f"{subject}: {text or f'it ended with {process.returncode}'}")


KEPT = 8
KEPT_BYTES = 2**19
"""Maximum size of a kept disk; those of up to some TiB of virtual size are smaller."""
_kept: OrderedDict[tuple[Path, str, int], bytes] = OrderedDict()
"""New disks by folder, base format and size. Their content depends on nothing else: the base is always named `base`."""


async def lay(disk: Disk, folder: Path, base_format: str, size_bytes: int) -> None:
    """Create an empty disk in that folder, durably, replacing an existing one."""
    shape = folder.parent, base_format, size_bytes
    content = _kept.get(shape)
    if content is None:
        await disk.create(size_bytes)
        content = await asyncio.to_thread(_read, folder / DISK)
        if len(content) <= KEPT_BYTES:
            _kept[shape] = content
            if len(_kept) > KEPT:
                _kept.popitem(last=False)
    else:
        _kept.move_to_end(shape)
        disk.remove()
        await run_to_end(asyncio.to_thread(_write, folder / DISK, content))


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(KEPT_BYTES + 1)


def _write(path: Path, content: bytes) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
    except OSError as error:
        raise Unavailable(f"{path}: cannot create the disk: {error.strerror}; fix the cause and try again") from None
