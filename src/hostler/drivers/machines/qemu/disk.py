"""A machine's disk, while nobody else has it open: what `qemu-img` does to it.

Every call names each layer by itself (`layers`), so that a file name that stands inside an image is never followed.
A call that is cancelled has ended when it raises: no `qemu-img` works on behind the back of who repeats it.
"""

from __future__ import annotations

import asyncio
import json
import os
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from hostler.drivers.machines.qemu.file_handover import take
from hostler.drivers.machines.qemu.images.qcow2 import MAGIC
from hostler.drivers.machines.qemu.privileges import environment
from hostler.drivers.machines.qemu.subprocess import end
from hostler.errors import Refused, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    Wrap = Callable[[Sequence[str]], Sequence[str]]
    """Puts a command under the rights of a machine."""

DISK, BASE, COPY = "disk.qcow2", "base", "copy.qcow2"
GIB = 2**30
WITHIN = 600.0
_SAID = 400


def layers(base_format: str, *, node: bool = False) -> dict[str, Any]:
    """The disk over its base, each file by its name in the machine's folder; with `node`, named for QEMU."""
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
        """An empty one over the base; what was there is replaced."""
        self.remove()
        await self._run("create", "-q", "-f", "qcow2", "-u", "-b", BASE, "-F", self._format, DISK, str(size_bytes))

    async def copy(self, tag: str, into: Path) -> None:
        """Put what the snapshot `tag` holds into another folder, as a disk over the same base. It may be in use.

        The copy is made in this folder, with this machine's rights: those of the other one do not reach in here. Then
        it is taken from this machine, whose process could otherwise write to it for as long as it has it open.
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
        """Make it at least that large; how large it is. It never shrinks."""
        present = self.virtual_bytes()
        if present < size_bytes:
            await self._run("resize", "-q", self._json(), str(size_bytes))
        return max(present, size_bytes)

    async def snapshots(self) -> list[str]:
        """The tags of those inside it."""
        found = (await self._info()).get("snapshots", ())
        return [item["name"] for item in found]

    async def snapshot(self, tag: str) -> None:
        """Take one, without memory. One of that tag must not be there."""
        await self._run("snapshot", "-q", "-c", tag, self._json())

    async def revert(self, tag: str) -> None:
        """Let the disk be as it was."""
        await self._run("snapshot", "-q", "-a", tag, self._json())

    async def drop(self, tag: str) -> None:
        """Delete one; none of that tag is fine."""
        if tag in await self.snapshots():
            await self._run("snapshot", "-q", "-d", tag, self._json())

    def remove(self) -> None:
        (self._folder / DISK).unlink(missing_ok=True)

    def virtual_bytes(self) -> int:
        """How large the guest sees it, by its header: that costs no process. Unavailable: it cannot be read."""
        try:
            descriptor = os.open(self._folder / DISK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                magic, size = struct.unpack(">4s20xQ", os.pread(descriptor, 32, 0))
            finally:
                os.close(descriptor)
        except (OSError, struct.error) as error:
            raise Unavailable(f"{self._folder / DISK}: it cannot be read: {error}; see to it") from None
        if magic != MAGIC:
            raise Unavailable(f"{self._folder / DISK}: it is no disk any more; delete the machine, or put it back")
        return int(size)

    def _json(self) -> str:
        return "json:" + json.dumps(layers(self._format))

    async def _info(self) -> dict[str, Any]:
        alone = {"driver": "qcow2", "file": {"driver": "file", "filename": DISK}}  # it opens no layer below
        found: dict[str, Any] = json.loads(await self._run("info", "-U", "--output=json", "json:" + json.dumps(alone)))
        return found

    async def _run(self, *words: str) -> bytes:
        return await qemu_img(self._folder, words, wrap=self._wrap)


async def qemu_img(
    folder: Path, words: Sequence[str], *, wrap: Wrap = lambda argv: argv, within: float = WITHIN
) -> bytes:
    """What it prints. Unavailable: there is no room, or it took too long. Refused: it says no."""
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
            f"{subject}: {error.filename} is not there; install qemu-utils, and keep the folder"
        ) from None
    except OSError as error:
        raise Unavailable(f"{subject}: it cannot be started: {error.strerror}; try again") from None
    try:
        async with asyncio.timeout(within):
            said, complained = await process.communicate()
    except TimeoutError:
        raise Unavailable(f"{subject}: it was not done within {within:g} s; see what the disk does") from None
    finally:
        await end(process)
    if process.returncode == 0:
        return said
    text = " ".join(complained.decode(errors="replace").split())[-_SAID:]
    if "No space left" in text or "Disk quota exceeded" in text:
        raise Unavailable(f"{subject}: there is no room: {text}; make room and try again")
    raise Refused(f"{subject}: {text or f'it ended with {process.returncode}'}")
