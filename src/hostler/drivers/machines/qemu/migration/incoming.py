"""The incoming side of a migration: prepares a machine, opens its channels, and seals it when it is complete.

Nothing is created before the source has announced the machine. Then QEMU waits for memory, and the disk is exported for
the source to write. The machine may run only after it was sealed. The data is then on this disk, and the memory is in
its process as long as that lives.
"""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Self

from hostler.drivers.machines.qemu.command import Boot
from hostler.drivers.machines.qemu.create import keep_identity
from hostler.drivers.machines.qemu.disk import DISK
from hostler.drivers.machines.qemu.migration.outgoing import EXPORT
from hostler.drivers.machines.qemu.migration.protocol import (
    PUMP_BYTES,
    Answer,
    FirstLine,
    Manifest,
    Request,
    Seal,
    objection,
)
from hostler.drivers.machines.qemu.power import spawn
from hostler.drivers.machines.qemu.privileges import own_files
from hostler.drivers.machines.qemu.process import reach
from hostler.errors import HostlerError, NotFound, Refused, Unavailable
from hostler.kit.fsync import sync_file
from hostler.kit.tasks import run_to_end

if TYPE_CHECKING:
    from types import TracebackType

    from hostler.drivers.machines.qemu.machine import QemuMachine
    from hostler.model.image import Image

STATE_GATE, DISK_GATE = "arrival-state.sock", "arrival-disk.sock"
EXPORT_ID = "arrival"
STARTS_WITHIN = 60.0
LOADS_WITHIN = 60.0
CONNECTS_WITHIN = 10.0


class IncomingMigration:
    """One machine that is expected as one move. Its verbs and the requests on its channels are serialized."""

    def __init__(self, machine: QemuMachine) -> None:
        self.machine = machine
        self.attempt = ""
        """The current attempt; a seal of another attempt is too late."""
        self.live = False
        self.taken: dict[str, _IncomingChannel] = {}
        """Channels in use."""

    @property
    def number(self) -> int:
        return self.machine.record.moved

    @property
    def is_of_use(self) -> bool:
        """Whether the expected data can still arrive, or has arrived."""
        return self.machine.record.arrived or not self.attempt or self.machine.alive

    async def asked(self, line: bytes) -> tuple[Answer, bool]:
        """Return the answer to a first line, and whether a stream follows."""
        vm = self.machine.vm
        try:
            request = Request.decode(line)
            async with self.machine.lock:
                if request.manifest is not None:
                    return Answer(attempt=await self._create_empty(request.manifest)), request.manifest.live
                if request.seal is not None:
                    return Answer(attempt=await self._seal(request.seal)), False
            raise Refused(f"machine {vm!r}: the source node sent an unknown request; use one release on both")
        except Refused as error:
            return Answer(refused=str(error)), False
        except (HostlerError, OSError, TimeoutError) as error:
            return Answer(unavailable=f"{error}" or type(error).__name__), False

    async def _create_empty(self, manifest: Manifest) -> str:
        """Create the announced machine, empty, and wait for its content."""
        machine, site = self.machine, self.machine.site
        self._check_expected()
        if machine.record.arrived:
            raise Refused(f"machine {machine.vm!r}: it has already arrived as move {self.number}")
        if why := objection(manifest, machine.vm, self.number, await site.here()):
            raise Refused(why)
        self.attempt = ""
        await machine.off(within=0)
        await site.hook("receive.opened:before")
        image = await run_to_end(_link(machine, manifest.digest))
        machine.change(
            spec=manifest.spec, name=manifest.name, image=image, mac=manifest.mac, disk_bytes=manifest.disk_bytes,
            resets=manifest.resets, restored=manifest.restored, instance=manifest.instance,
            host_key=keep_identity(machine.folder, manifest.host_key), failed=False, detail="",
        )  # fmt: skip
        own_files(machine.rights, machine.folder.path)
        await machine.disk.create(manifest.disk_bytes)
        own_files(machine.rights, machine.folder.path)
        await spawn(machine, Boot(incoming="defer"), within=STARTS_WITHIN)
        await machine.execute("nbd-server-start", {"addr": {"type": "unix", "data": {"path": DISK_GATE}}})
        await machine.execute(
            "block-export-add",
            {"type": "nbd", "id": EXPORT_ID, "node-name": "disk", "name": EXPORT, "writable": True},
        )
        if manifest.live:
            await machine.execute("migrate-incoming", {"uri": f"unix:{STATE_GATE}"})
        self.live = manifest.live
        self.attempt = secrets.token_hex(8)
        await site.hook("receive.opened:after")
        return self.attempt

    async def _seal(self, seal: Seal) -> str:
        """Sync the sent data to disk, and record that the machine is complete."""
        machine, site = self.machine, self.machine.site
        self._check_expected()
        if not self.attempt or (seal.vm, seal.attempt) != (machine.vm, self.attempt):
            raise Refused(f"machine {machine.vm!r}: the sent data is no longer here; send it again")
        if machine.record.arrived:
            return self.attempt
        if not machine.alive:
            raise Refused(f"machine {machine.vm!r}: its process ended while it was sent: {machine.folder.said()}")
        await site.hook("receive.sealed:before")
        if self.live:
            await self._wait_until_loaded()
        # Remaining writers are cut off: everything they were asked to write was acknowledged long ago.
        await machine.execute("block-export-del", {"id": EXPORT_ID, "mode": "hard"})
        await machine.execute("nbd-server-stop")
        if self.live:
            await machine.execute("stop")  # it is already stopped; this flushes QEMU's caches of the disk
        else:
            await machine.off()  # flushes as well; there is no memory to keep
            machine.change(failed=False, detail="")
        await run_to_end(asyncio.to_thread(sync_file, machine.folder.path / DISK, follow=False))
        machine.change(arrived=True)
        await site.hook("receive.sealed:after")
        return self.attempt

    async def _wait_until_loaded(self) -> None:
        async with asyncio.timeout(LOADS_WITHIN):
            while True:
                status = (await self.machine.execute("query-migrate")).get("status")
                if status == "completed" and (await self.machine.execute("query-status"))["status"] != "inmigrate":
                    return
                if status == "failed":
                    raise Refused(f"machine {self.machine.vm!r}: its memory could not be loaded here; send it again")
                await asyncio.sleep(0.005)

    def _check_expected(self) -> None:
        if self.machine.gone or not self.machine.record.arriving:
            raise Refused(f"machine {self.machine.vm!r}: it is no longer expected here; start the move again")

    def check_disk(self) -> None:
        """Check that the disk can be written. Unavailable: not yet, or not any more."""
        if not self.attempt or not self.machine.alive or self.machine.record.arrived:
            raise Unavailable(f"machine {self.machine.vm!r}: its disk is not open; announce the machine first")


class _IncomingChannel:
    """Base of both channels: one user at a time, and a socket of QEMU behind it."""

    name = ""

    def __init__(self, arrival: IncomingMigration) -> None:
        self._arrival = arrival
        self._subject = f"machine {arrival.machine.vm!r}"
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def __aenter__(self) -> Self:
        there = self._arrival.taken.get(self.name)
        if there is not None and not there.is_over:
            raise Unavailable(f"{self._subject}: its channel for {self.name} is in use; try again later")
        self._arrival.taken[self.name] = self
        return self

    @property
    def is_over(self) -> bool:
        """Whether QEMU has closed its side: the current user may be slow to leave, but is done."""
        return self._reader is not None and self._reader.at_eof()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._leave()
        if self._writer is not None:
            self._writer.close()

    def _leave(self) -> None:
        if self._arrival.taken.get(self.name) is self:
            del self._arrival.taken[self.name]

    async def _connect(self, gate: str) -> None:
        try:
            connection = await reach(self._arrival.machine.folder, gate, within=CONNECTS_WITHIN)
            try:
                self._reader, self._writer = await asyncio.open_unix_connection(sock=connection)
            except BaseException:
                connection.close()
                raise
        except (OSError, Unavailable) as error:
            raise Unavailable(f"{self._subject}: its process does not accept {self.name}: {error}") from None

    async def _pass_on(self, data: bytes) -> None:
        if self._writer is None:
            raise Unavailable(f"{self._subject}: its channel for {self.name} is not connected")
        try:
            self._writer.write(data)
            await self._writer.drain()
        except OSError as error:
            raise Unavailable(f"{self._subject}: its process does not accept more of {self.name}: {error}") from None

    async def _next(self) -> bytes:
        if self._reader is None:
            return b""
        try:
            return await self._reader.read(PUMP_BYTES)
        except OSError:
            return b""


class IncomingDisk(_IncomingChannel):
    """NBD channel to the new disk, for writing."""

    name = "its disk"

    async def __aenter__(self) -> Self:
        self._arrival.check_disk()
        await super().__aenter__()
        try:
            await self._connect(DISK_GATE)
        except BaseException:
            self._leave()
            raise
        return self

    async def read(self) -> bytes:
        return await self._next()

    async def write(self, data: bytes) -> None:
        await self._pass_on(data)


class IncomingState(_IncomingChannel):
    """A line and its answer, then QEMU's stream."""

    name = "its memory"

    def __init__(self, arrival: IncomingMigration) -> None:
        super().__init__(arrival)
        self._lines: FirstLine | None = FirstLine(self._subject)
        self._answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._said = False

    async def read(self) -> bytes:
        if not self._said:
            answer = await self._answer
            self._said = True
            return answer
        return await self._next()

    async def write(self, data: bytes) -> None:
        if self._lines is None:
            await self._pass_on(data)
            return
        found = self._lines.add(data)
        if found is None:
            return
        self._lines = None
        line, rest = found
        answer, streams = await self._arrival.asked(line)
        if streams:
            try:
                await self._connect(STATE_GATE)
            except Unavailable as error:
                answer = Answer(unavailable=str(error))
        self._answer.set_result(answer.encode() + b"\n")
        if rest and self._writer is not None:
            await self._pass_on(rest)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._answer.done():
            self._answer.set_result(b"")
        await super().__aexit__(kind, error, traceback)


def socket_path(machine: QemuMachine, name: str) -> Path:
    """Return the path of a socket in its folder, short enough for the kernel."""
    return Path(f"/proc/self/fd/{machine.folder.descriptor}/{name}")


async def _link(machine: QemuMachine, digest: str) -> Image:
    """Base the machine on the image with that content, under any name. Refused: it is not on this node."""
    try:
        return await machine.site.images.link_content_into(digest, machine.folder.path)
    except NotFound:
        raise Refused(
            f"machine {machine.vm!r}: its image ({digest[:12]}) is not on this node; add or build the same image here"
        ) from None
