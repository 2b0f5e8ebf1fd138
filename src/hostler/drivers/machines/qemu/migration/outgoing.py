"""The outgoing side of a migration: the steps on its QEMU, and how they are undone.

The disk is copied while the guest writes to it, and every further write goes to both disks. Then the memory is sent,
repeatedly for pages that changed. When little is left, QEMU stops the guest and waits. The copy of the disk is ended
where both are equal, the rest of the memory is sent, and the other QEMU confirms that it has read everything. Until
then nothing here has ended, and `undo` lets the guest continue.

An emulated guest is stopped before its memory is sent. QEMU before 9.0 misses some of the writes of such a guest
("physmem: Fix migration dirty bitmap coherency with TCG memory access"), and it would arrive with old pages among the
new: correctness comes before a short downtime.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from hostler.errors import HostlerError, Refused, Unavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

    from hostler.drivers.machines.qemu.machine import QemuMachine

    Look = Callable[[], Awaitable[tuple[bool, object]]]
    """Returns whether the condition holds, and the progress."""

DISK_GATE, STATE_GATE = "departure-disk.sock", "departure-state.sock"
EXPORT = "disk"
JOB, THERE = "departure", "there"
CAPABILITIES = ("return-path", "pause-before-switchover", "auto-converge")
PARAMETERS = {"max-bandwidth": 2**40, "downtime-limit": 300}
STALLED_AFTER = 60.0
"""Seconds without any progress."""
CONVERGES_WITHIN = 900.0
"""Seconds for memory that the guest changes faster than it can be sent; the guest is slowed down increasingly."""
SWITCHES_WITHIN = 60.0
ENDS_WITHIN = 30.0
TOLD_WITHIN = 1.0
"""Seconds to wait for QEMU's own reason when the connection is lost; its end may also be a regular one."""
STOPPED_BY_US = ("postmigrate", "finish-migrate", "paused")
OVER = ("completed", "failed", "cancelled", "none")


class Executor(Protocol):
    """A machine's QEMU."""

    async def execute(self, command: str, arguments: dict[str, Any] | None = None) -> Any: ...


class Way(Protocol):
    """A byte stream to the other side."""

    def check(self) -> None:
        """Raise Unavailable if the stream has ended."""


class OutgoingMigration:
    """The migration of one machine away from this node."""

    def __init__(self, qemu: Executor, subject: str, *, disk: Way | None = None, state: Way | None = None) -> None:
        self._qemu, self._subject = qemu, subject
        self._disk, self._state = disk, state

    async def copy_disk(self) -> None:
        """Copy the disk to the export behind the disk's socket, and keep both equal."""
        await self._execute(
            "blockdev-add",
            {"driver": "nbd", "node-name": THERE, "export": EXPORT, "server": {"type": "unix", "path": DISK_GATE}},
        )
        await self._execute(
            "blockdev-mirror",
            # A write of the guest ends when both disks have it, so the copy is behind only by writes in progress.
            {"job-id": JOB, "device": "disk", "target": THERE, "sync": "top", "copy-mode": "write-blocking",
             "auto-dismiss": False},
        )  # fmt: skip
        await self._until(self._disk_is_equal, "its disk", self._disk, self._state, every=0.02)

    async def hold(self) -> None:
        """Stop an emulated guest: QEMU does not reliably see its writes while its memory is sent."""
        if (await self._execute("query-kvm"))["enabled"]:
            return
        await self._execute("stop")
        # A guest that switched itself off, or waits for disk space, was not stopped by this.
        if (status := await self._status()) != "paused":
            raise Unavailable(f"{self._subject}: it is {status}, so it cannot be migrated now; try again")

    async def send_memory(self) -> None:
        """Send the memory through the state's socket until little is left and the guest is stopped.

        Call `hold` before.
        """
        await self._capabilities(on=True)
        await self._execute("migrate-set-parameters", PARAMETERS)
        await self._execute("migrate", {"uri": f"unix:{STATE_GATE}"})
        async with _deadline(CONVERGES_WITHIN, f"{self._subject}: its memory changes faster than it can be sent"):
            await self._until(
                lambda: self._memory_is("pre-switchover"), "its memory", self._disk, self._state, every=0.01
            )

    async def switch(self) -> None:
        """Send the rest while the guest is stopped. The other QEMU has everything when this returns."""
        async with _deadline(SWITCHES_WITHIN, f"{self._subject}: the rest could not be sent"):
            await self._execute("block-job-cancel", {"device": JOB})  # a ready job ends with both disks equal
            await self._until(self._disk_is_done, "its disk", self._disk, every=0.002)
            await self._execute("job-dismiss", {"id": JOB})
            await self._execute("blockdev-del", {"node-name": THERE})
            await self._execute("migrate-continue", {"state": "pre-switchover"})
            await self._until(lambda: self._memory_is("completed"), "its memory", self._state, every=0.002)

    async def undo(self, *, runs: bool) -> bool:
        """Undo all steps so far: end all copies, and let the guest run if `runs`.

        Return whether the guest was stopped for the move: then its clock is behind.
        """
        was_stopped = await self._status() in STOPPED_BY_US
        if not await self._is_over():
            await self._execute("migrate_cancel")
            async with _deadline(ENDS_WITHIN, f"{self._subject}: its migration cannot be ended"):
                await self._come_true(self._is_over)
        await self._end_job()
        await self._capabilities(on=False)
        # A guest that switched itself off, or waits for disk space, was not stopped by the migration.
        if runs and await self._status() in STOPPED_BY_US:
            await self._execute("cont")
        return was_stopped

    # Inside

    async def _end_job(self) -> None:
        job = await self._job()
        if job is not None:
            if job["status"] != "concluded":
                await self._execute("block-job-cancel", {"device": JOB, "force": True})
            async with _deadline(ENDS_WITHIN, f"{self._subject}: the copy of its disk cannot be ended"):
                await self._come_true(self._job_is_concluded)
            await self._execute("job-dismiss", {"id": JOB})
        nodes = await self._execute("query-named-block-nodes", {"flat": True})
        if any(node.get("node-name") == THERE for node in nodes):
            await self._execute("blockdev-del", {"node-name": THERE})

    async def _is_over(self) -> bool:
        return (await self._migration()).get("status", "none") in OVER

    async def _job_is_concluded(self) -> bool:
        job = await self._job()
        return job is None or job["status"] == "concluded"

    @staticmethod
    async def _come_true(look: Callable[[], Awaitable[bool]]) -> None:
        while True:
            if await look():
                return
            await asyncio.sleep(0.01)

    async def _disk_is_equal(self) -> tuple[bool, object]:
        job = await self._job()
        if job is None or job["status"] in ("aborting", "concluded"):
            raise self._lost_error("the copy of its disk", job)
        return job["status"] == "ready", job["current-progress"]

    async def _disk_is_done(self) -> tuple[bool, object]:
        job = await self._job()
        if job is None or (job["status"] == "concluded" and job.get("error")):
            raise self._lost_error("the copy of its disk", job)
        return job["status"] == "concluded", job["status"]

    async def _memory_is(self, wanted: str) -> tuple[bool, object]:
        found = await self._migration()
        status = found.get("status", "none")
        if status in OVER and status != wanted:
            raise self._lost_error("the transfer of its memory", {"error": found.get("error-desc", status)})
        return status == wanted, found.get("ram", {}).get("transferred")

    async def _until(self, look: Look, what: str, *ways: Way | None, every: float) -> None:
        """Poll until the condition holds.

        Unavailable: the other side is lost, or there was no progress for too long.
        """
        clock = asyncio.get_running_loop().time
        seen, since, lost_at = None, clock(), None
        while True:
            done, progress = await look()
            if done:
                return
            if progress != seen:
                seen, since = progress, clock()
            elif clock() - since > STALLED_AFTER:
                raise Unavailable(f"{self._subject}: no progress of {what} for {STALLED_AFTER:g} s; try again")
            try:
                for way in ways:
                    if way is not None:
                        way.check()
            except Unavailable:
                lost_at = clock() if lost_at is None else lost_at
                if clock() - lost_at > TOLD_WITHIN:
                    raise
            await asyncio.sleep(every)

    async def _capabilities(self, *, on: bool) -> None:
        found = [{"capability": name, "state": on} for name in CAPABILITIES]
        await self._execute("migrate-set-capabilities", {"capabilities": found})

    async def _status(self) -> str:
        return str((await self._execute("query-status"))["status"])

    async def _job(self) -> dict[str, Any] | None:
        return next((job for job in await self._execute("query-jobs") if job["id"] == JOB), None)

    async def _migration(self) -> dict[str, Any]:
        found: dict[str, Any] = await self._execute("query-migrate")
        return found

    async def _execute(self, command: str, arguments: dict[str, Any] | None = None) -> Any:
        try:
            return await self._qemu.execute(command, arguments)
        except Refused as error:
            raise Unavailable(f"{self._subject}: {error}") from None

    def _lost_error(self, what: str, job: dict[str, Any] | None) -> HostlerError:
        why = (job or {}).get("error") or "it ended"
        return Unavailable(f"{self._subject}: {what} failed: {why}; the machine stays where it is, try again")


class _deadline:  # noqa: N801 - used like `asyncio.timeout`
    """Timeout that raises Unavailable and names the step that was not finished."""

    def __init__(self, within: float, what: str) -> None:
        self._within, self._what = within, what
        self._timeout = asyncio.timeout(within)

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self._timeout.__aexit__(kind, error, traceback)
        except TimeoutError:
            raise Unavailable(f"{self._what} within {self._within:g} s; the machine stays where it is") from None


# Functions on a machine of the driver


async def undo(machine: QemuMachine) -> None:
    """Let a machine continue whose migration was done or in progress; its process lives."""
    was_stopped = await OutgoingMigration(machine, f"machine {machine.vm!r}").undo(runs=True)
    await announce(machine)  # the target may have announced the address when it had everything
    if was_stopped:
        await tell_time(machine)


def close_gates(machine: QemuMachine) -> None:
    """Remove sockets that a dead agent left in the machine's folder. Call it before `departing` is cleared."""
    for name in (DISK_GATE, STATE_GATE):
        (machine.folder.path / name).unlink(missing_ok=True)


async def announce(machine: QemuMachine) -> None:
    """Announce the machine's address to the network."""
    await machine.execute("announce-self", {"initial": 50, "max": 550, "rounds": 5, "step": 100})


async def tell_time(machine: QemuMachine) -> None:
    """Set the clock of a resumed guest, which is behind."""
    if machine.guest is not None:
        with suppress(HostlerError):
            await machine.guest.send(f"clock {machine.site.clock.wall():.0f}")
