"""Saved states: the memory of a guest that has booted and has no identity yet.

    {image}/warm/{cpus}x{memory}/{key}.state    read-only, complete or missing
    {image}/warm/.making-*                      a template being made, with the lock of its maker

A machine of that image and size can resume from it at any of its starts: the template has read no disk, and everything
it receives after `go` belongs to the machine. The key is a digest of everything that the memory depends on, above all
the template's command line as built by `command`. When that changes, older states are no longer found.

A machine's process reads the file through a read-only descriptor into its own memory. So what a guest does to its
process can never reach another machine.

A template makes them: a guest boots up to the point where it needs its identity, and its memory is saved.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import json
import os
import shutil
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec

from hostler.drivers.machines.qemu import acceleration
from hostler.drivers.machines.qemu.command import Boot, Wiring, command
from hostler.drivers.machines.qemu.disk import Disk
from hostler.drivers.machines.qemu.folder import LOG, MachineFolder
from hostler.drivers.machines.qemu.images.folder import LINKED
from hostler.drivers.machines.qemu.migration.protocol import processor
from hostler.drivers.machines.qemu.node_context import qemu_version
from hostler.drivers.machines.qemu.privileges import own_files
from hostler.drivers.machines.qemu.qmp import Monitor
from hostler.drivers.machines.qemu.serial import GuestChannel, Serial
from hostler.drivers.machines.qemu.state import Life, MachineRecord
from hostler.drivers.privileges import rights_for, users_here
from hostler.errors import Refused, Unavailable
from hostler.kit.fsync import sync_file, sync_folder
from hostler.kit.host import LEAVE_FILE
from hostler.kit.processes import command_ending_with_us, end_process, environment
from hostler.model.vm import VmSpec
from hostler.ports.machines import Label

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from hostler.drivers.machines.qemu.images.folder import Warmer
    from hostler.model.image import Image
    from hostler.ports.machine_driver import Progress

ARGUMENT = "hostler.template"
FOLDER, SUFFIX, MAKING = "warm", ".state", ".making-"
STATES_AT_MOST = 8
BYTES_AT_MOST = 8 * 2**30
"""Limits per image. The least recently used states are deleted first."""
NETDEV = "hubport,id=n0,hubid=0"
"""A template has no network; a machine that resumes from it may have any."""
_MAC = "52:54:00:00:00:01"


class SavedShape(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a saved state depends on."""

    image: Image
    cpus: int
    memory_mib: int
    accelerator: str
    version: str
    """Of QEMU."""
    processor: str
    """The processor as the guest sees it."""

    @property
    def name(self) -> str:
        return f"{self.cpus}x{self.memory_mib}"

    @property
    def key(self) -> str:
        """Digest of everything that the memory depends on."""
        parts = [self.version, self.processor, self.image.digest, *template_command(self)]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]

    def path(self, image: Path) -> Path:
        """Return the path in the folder of the image."""
        return image / FOLDER / self.name / f"{self.key}{SUFFIX}"


def template_command(shape: SavedShape) -> list[str]:
    """Return the command of the guest to save: that of a machine, but without identity and network."""
    record = MachineRecord(
        label=Label(org="", project="", vm="template"),
        spec=VmSpec(cpus=shape.cpus, memory_mib=shape.memory_mib),
        number=1,
        life=Life.WHOLE,
        image=shape.image,
        mac=_MAC,
        host_key="",
    )
    return command(record, Wiring(accelerator=shape.accelerator, netdev=NETDEV), Boot(append=ARGUMENT))


def open_state(image: Path, shape: SavedShape) -> int | None:
    """Open the saved state for QEMU to inherit; the caller closes it. None: it is missing or unreadable."""
    path = shape.path(image)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    with contextlib.suppress(OSError):
        os.utime(path)  # marks it as used
    return descriptor


def keep(image: Path, shape: SavedShape, made: Path) -> None:
    """Store the file as the saved state, durably. States beyond the limits are deleted."""
    path = shape.path(image)
    for folder in (path.parent.parent, path.parent):
        folder.mkdir(mode=0o700, exist_ok=True)
    made.chmod(0o400)
    sync_file(made)
    made.replace(path)
    sync_folder(path.parent)
    _prune(image, path)


def _prune(image: Path, latest: Path) -> None:
    """Delete states beyond the limits; the latest stays."""
    found = sorted(_states(image), key=lambda path: path.stat().st_mtime, reverse=True)
    found = [latest, *(path for path in found if path != latest)]
    left = BYTES_AT_MOST
    for place, path in enumerate(found):
        left -= path.stat().st_blocks * 512
        if path != latest and (place >= STATES_AT_MOST or left < 0):
            path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # another state of that size exists
                path.parent.rmdir()


def _states(image: Path) -> Iterator[Path]:
    return (image / FOLDER).glob(f"*/*{SUFFIX}")


@contextlib.contextmanager
def making(image: Path) -> Iterator[tuple[Path, int]]:
    """Yield a folder to make a state in and its lock, for processes to inherit. The folder is removed at the end."""
    place = image / FOLDER
    place.mkdir(mode=0o700, exist_ok=True)
    _sweep(place)
    folder = place / f"{MAKING}{os.urandom(6).hex()}"
    lock = os.open(folder.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder.mkdir(mode=0o700)
        yield folder, lock
    finally:
        _discard(folder)
        fcntl.flock(lock, fcntl.LOCK_UN)
        os.close(lock)


def _sweep(place: Path) -> None:
    """Remove folders of killed makers once no process works there."""
    for path in place.glob(f"{MAKING}*.lock"):
        with contextlib.suppress(OSError):
            lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _discard(path.with_suffix(""))
            finally:
                os.close(lock)


def _discard(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    if not folder.exists():
        folder.with_suffix(".lock").unlink(missing_ok=True)


BOOTED = "hostler template"
STATE, GATE = "state", "save.sock"
ANSWERS_WITHIN = 60.0
SAVES_WITHIN = 600.0
CHUNK = 2**20
MIB = 2**20


def warmer(verdict: Path, *, accelerator: str | None = None, uids: str | None = None) -> Warmer:
    """Return the function that keeps images warm. `verdict`: folder of the stored acceleration verdict."""

    async def keep_warm(image: Image, files: Path, cpus: int, memory_mib: int, progress: Progress) -> None:
        known = accelerator or (await acceleration.verdict(verdict, files, uids=users_here(uids))).accelerator
        shape = SavedShape(
            image=image,
            cpus=cpus,
            memory_mib=memory_mib,
            accelerator=known,
            version=await qemu_version(),
            processor=processor(known),
        )
        await make(files, shape, uids=uids, progress=progress)

    return keep_warm


async def make(image: Path, shape: SavedShape, *, uids: str | None = None, progress: Progress) -> None:
    """Make a saved state of that size for the image in that folder. Refused: its guest does not support it.

    Unavailable: not now. If killed, it leaves no process; the next call removes its files.
    """
    subject = f"image {shape.image.digest[:12]}, {shape.name}"
    if shape.memory_mib < shape.image.memory_mib:
        raise Refused(f"{subject}: its guest needs {shape.image.memory_mib} MiB; keep it warm with at least as much")
    room = shutil.disk_usage(image).free // MIB
    if room < 2 * shape.memory_mib:
        raise Unavailable(f"{subject}: {room} MiB are free, and a saved state may take {shape.memory_mib}; free some")
    with making(image) as (folder, lock):
        for name, link in LINKED.items():
            if name in shape.image.files:
                (folder / link).hardlink_to(image / name)
        rights = rights_for(folder, image.name, 1, users_here(uids))
        rights = acceleration.with_device(rights, shape.accelerator)
        own_files(rights, folder)
        await Disk(folder, shape.image.disk_format, wrap=rights.wrap).create(shape.image.disk_bytes)
        own_files(rights, folder)
        # It dies with this process: no other process would find it again.
        argv = rights.wrap(command_ending_with_us(template_command(shape)), cpus=shape.cpus)
        async with _running(folder, argv, lock, subject) as process:
            await _Template(folder, shape, subject, progress, rights.uid).save_memory(process)
        await asyncio.to_thread(keep, image, shape, folder / STATE)


class _Template:
    """The guest that is saved."""

    def __init__(self, path: Path, shape: SavedShape, subject: str, progress: Progress, group: int | None) -> None:
        self._path, self._shape, self._subject, self._progress, self._group = path, shape, subject, progress, group
        self._folder = folder = MachineFolder(path)
        self._monitor = Monitor(folder, event=lambda *_: None, closed=lambda: None)
        self._serial, self._guest = Serial(folder), GuestChannel(folder)

    async def save_memory(self, process: asyncio.subprocess.Process) -> None:
        """Boot the guest and save its memory to the file."""
        ended, work = asyncio.ensure_future(process.wait()), asyncio.ensure_future(self._boot_and_save())
        try:
            await asyncio.wait({ended, work}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                said = " ".join((self._path / LOG).read_text(errors="replace").split())[-300:]
                raise Unavailable(
                    f"{self._subject}: QEMU ended: {said or process.returncode}; check whether this host can run it"
                )
            await work
        finally:
            work.cancel()
            ended.cancel()
            await asyncio.gather(work, ended, return_exceptions=True)
            for connection in (self._guest, self._serial, self._monitor):
                await connection.aclose()
            self._folder.close()

    async def _boot_and_save(self) -> None:
        self._progress("booting", 0, None)
        await self._monitor.connect(ANSWERS_WITHIN)
        await self._serial.connect()
        await self._guest.connect()
        await self._monitor.execute("cont")
        within = self._shape.image.boot_seconds
        try:
            await self._guest.line(BOOTED, within=within)
        except (TimeoutError, Unavailable):
            raise Refused(
                f"{self._subject}: its guest did not send {BOOTED!r} within {within:g} s of its boot; only images whose"
                " guest waits there can be kept warm (docs/images.md)"
            ) from None
        await self._monitor.execute("stop")
        try:
            async with asyncio.timeout(SAVES_WITHIN):
                await self._save()
        except TimeoutError:
            raise Unavailable(f"{self._subject}: its memory was not saved within {SAVES_WITHIN:g} s") from None

    async def _save(self) -> None:
        saver = _Saver(self._path / STATE, self._progress, self._shape.memory_mib * MIB)
        gate = f"/proc/self/fd/{self._folder.descriptor}/{GATE}"  # short enough for a socket
        server = await asyncio.start_unix_server(saver.came, gate, **LEAVE_FILE)
        try:
            if self._group is not None:
                os.chown(self._path / GATE, -1, self._group, follow_symlinks=False)
                (self._path / GATE).chmod(0o660)
            await self._monitor.execute("migrate-set-parameters", {"max-bandwidth": 2**40})
            await self._monitor.execute("migrate", {"uri": f"unix:{GATE}"})
            await saver.done.wait()
            while True:
                status = (await self._monitor.execute("query-migrate"))["status"]
                if status in ("completed", "failed"):
                    break
                await asyncio.sleep(0.01)
        finally:
            server.close()
        if saver.error is not None or status != "completed":
            raise Unavailable(f"{self._subject}: saving its memory failed: {saver.error or status}; try again")


class _Saver:
    """Writes the data that QEMU sends to a file. QEMU has no rights to open one itself."""

    def __init__(self, path: Path, progress: Progress, expected: int) -> None:
        self._path, self._progress, self._expected = path, progress, expected
        self.done = asyncio.Event()
        self.error: OSError | None = None

    async def came(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        written = 0
        try:
            with self._path.open("xb") as file:
                while data := await reader.read(CHUNK):
                    await asyncio.to_thread(file.write, data)
                    written += len(data)
                    self._progress("saving", written, self._expected)
        except OSError as error:
            self.error = error
        finally:
            writer.close()
            self.done.set()


@asynccontextmanager
async def _running(folder: Path, argv: list[str], lock: int, subject: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run the process; it has ended when the context ends."""
    with (folder / LOG).open("wb") as said:
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                cwd=folder,
                env=environment(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=said,
                pass_fds=(lock,),
                start_new_session=True,
            )
        except OSError as error:
            raise Unavailable(f"{subject}: {argv[0]} cannot be run: {error.strerror}; install it") from None
    try:
        yield process
    finally:
        await end_process(process)
