"""Makes saved states: a guest boots up to the point where it needs its identity, and its memory is saved."""

from __future__ import annotations

import asyncio
import os
import shutil
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from hostler.drivers.machines.qemu import acceleration, saved_state
from hostler.drivers.machines.qemu.disk import Disk
from hostler.drivers.machines.qemu.folder import LOG, MachineFolder
from hostler.drivers.machines.qemu.images.folder import LINKED
from hostler.drivers.machines.qemu.migration.protocol import processor
from hostler.drivers.machines.qemu.node_context import qemu_version
from hostler.drivers.machines.qemu.privileges import own_files
from hostler.drivers.machines.qemu.qmp import Monitor
from hostler.drivers.machines.qemu.serial import GuestChannel, Serial
from hostler.drivers.privileges import rights_for, users_here
from hostler.errors import Refused, Unavailable
from hostler.kit.host import LEAVE_FILE
from hostler.kit.processes import command_ending_with_us, end_process, environment

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from hostler.drivers.machines.qemu.images.folder import Warmer
    from hostler.model.image import Image
    from hostler.ports.machine_driver import Progress

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
        shape = saved_state.SavedShape(
            image=image,
            cpus=cpus,
            memory_mib=memory_mib,
            accelerator=known,
            version=await qemu_version(),
            processor=processor(known),
        )
        await make(files, shape, uids=uids, progress=progress)

    return keep_warm


async def make(image: Path, shape: saved_state.SavedShape, *, uids: str | None = None, progress: Progress) -> None:
    """Make a saved state of that size for the image in that folder. Refused: its guest does not support it.

    Unavailable: not now. If killed, it leaves no process; the next call removes its files.
    """
    subject = f"image {shape.image.digest[:12]}, {shape.name}"
    if shape.memory_mib < shape.image.memory_mib:
        raise Refused(f"{subject}: its guest needs {shape.image.memory_mib} MiB; keep it warm with at least as much")
    room = shutil.disk_usage(image).free // MIB
    if room < 2 * shape.memory_mib:
        raise Unavailable(f"{subject}: {room} MiB are free, and a saved state may take {shape.memory_mib}; free some")
    with saved_state.making(image) as (folder, lock):
        for name, link in LINKED.items():
            if name in shape.image.files:
                (folder / link).hardlink_to(image / name)
        rights = rights_for(folder, image.name, 1, users_here(uids))
        rights = acceleration.with_device(rights, shape.accelerator)
        own_files(rights, folder)
        await Disk(folder, shape.image.disk_format, wrap=rights.wrap).create(shape.image.disk_bytes)
        own_files(rights, folder)
        # It dies with this process: no other process would find it again.
        argv = rights.wrap(command_ending_with_us(saved_state.template_command(shape)), cpus=shape.cpus)
        async with _running(folder, argv, lock, subject) as process:
            await _Template(folder, shape, subject, progress, rights.uid).save_memory(process)
        await asyncio.to_thread(saved_state.keep, image, shape, folder / STATE)


class _Template:
    """The guest that is saved."""

    def __init__(
        self, path: Path, shape: saved_state.SavedShape, subject: str, progress: Progress, group: int | None
    ) -> None:
        self._path, self._shape, self._subject, self._progress, self._group = path, shape, subject, progress, group
        self._folder = folder = MachineFolder(path)
        self._monitor = Monitor(folder, event=lambda *_: None, closed=lambda: None)
        self._serial, self._guest = Serial(folder), GuestChannel(folder)

    async def save_memory(self, process: asyncio.subprocess.Process) -> None:
        """Boot the guest and save its memory to the file."""
        ended, work = asyncio.ensure_future(process.wait()), asyncio.ensure_future(self._booted_and_saved())
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

    async def _booted_and_saved(self) -> None:
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
