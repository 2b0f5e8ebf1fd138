"""One machine of the driver: its record, and the connections to its process while it lives.

The state of a machine follows from the record, from whether the process lives, and from QEMU's messages. All of it is
in memory and is updated by events of QEMU and the end of the process, so that reading it costs nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from hostler.drivers.machines.qemu import process, state
from hostler.drivers.machines.qemu.disk import Disk
from hostler.drivers.machines.qemu.qmp import Link
from hostler.drivers.machines.qemu.serial import LOG_BYTES, Serial
from hostler.drivers.machines.qemu.state import Begun, MachineRecord, access_of, detail_off, state_of, why_off
from hostler.drivers.machines.readiness import Ascent
from hostler.errors import HostlerError, NotFound, Unavailable
from hostler.model.vm import MachineState, Readiness, Step
from hostler.ports.machines import Machine

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from hostler.drivers.machines.qemu.folder import MachineFolder
    from hostler.drivers.machines.qemu.node_context import NodeContext
    from hostler.drivers.machines.qemu.pid_lookup import Run
    from hostler.drivers.machines.qemu.qmp import Monitor
    from hostler.drivers.machines.qemu.serial import GuestChannel
    from hostler.drivers.privileges import Privileges
    from hostler.model.vm import Access
    from hostler.ports.machines import Channel

SHUT_DOWN = "shutdown"
"""QEMU's status of a guest that switched itself off."""
ATTACH_WITHIN = 30.0
QUIT_WITHIN = 5.0
KILL_WITHIN = 30.0
RESTARTS_KEPT, RESTARTS_SPAN = 3, 600.0
"""A guest that restarted itself this often within this many seconds is reported."""
RETRY_EVERY = 1.0
_log = logging.getLogger("hostler.qemu")


class QemuMachine:
    """One machine. Verbs hold `lock`; events of QEMU are processed without it."""

    def __init__(self, site: NodeContext, folder: MachineFolder, record: MachineRecord, lock: asyncio.Lock) -> None:
        self.site, self.folder, self.record, self.lock = site, folder, record, lock
        self.gone = False
        """It was destroyed and no longer belongs to this node."""
        self.alive = False
        self.status = ""
        """Status of QEMU: `running`, `paused`, `io-error`, …"""
        self._link = Link(folder, event=self._event, closed=self._hung_up)
        self.readiness: Readiness | None = None
        self.stopped = asyncio.Event()
        """Set when the guest switched itself off or the process ended."""
        self._loose: Run | None = None
        """A run that seems to have ended by itself; some of its processes may still exist."""
        self._lives_since = 0.0
        self._attaching = asyncio.Lock()
        self._trouble = self._unheard = ""
        self._restarts: deque[float] = deque(maxlen=RESTARTS_KEPT)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._let_go = False
        self._seen: Machine | None = None

    @property
    def vm(self) -> str:
        return self.record.vm

    @property
    def disk(self) -> Disk:
        """The disk; for use while the machine is off."""
        return Disk(self.folder.path, self.record.image.disk_format, wrap=self.rights.wrap)

    @property
    def guest(self) -> GuestChannel | None:
        return self._link.guest

    @cached_property
    def rights(self) -> Privileges:
        """The rights of its processes."""
        return self.site.rights(self.folder.path, self.record.number)

    # Status

    @property
    def state(self) -> MachineState:
        return state_of(self.record, alive=self.alive)

    @property
    def access(self) -> Access | None:
        return access_of(self.record)

    def seen(self) -> Machine:
        """Return the machine as defined by the port; built once for each change."""
        if self._seen is None:
            record, state_now = self.record, self.state
            runs = state_now is MachineState.RUNNING
            booting = Readiness(step=Step.BOOTING, since=self._lives_since)  # nothing else is known yet
            self._seen = Machine(
                label=record.label,
                id=f"qemu-{self.site.place[:8]}-{record.number}",
                state=state_now,
                spec=record.spec,
                fenced=record.fenced,
                tags=record.marks,
                address=record.host,
                detail=self._detail(),
                resets=record.resets,
                restored=record.restored,
                moved=record.moved,
                snapshots=tuple(record.snapshots),
                readiness=(self.readiness or booting) if runs else None,
                access=self.access,
                paused=runs and bool(self._trouble),
            )
        return self._seen

    def _detail(self) -> str:
        if not self.alive or self.state is MachineState.CREATING:
            return detail_off(self.record)
        if self._unheard or self._trouble:
            return self._unheard or self._trouble
        now = self.site.clock.now()
        restarts = [at for at in self._restarts if now - at < RESTARTS_SPAN]
        if len(restarts) < RESTARTS_KEPT:
            return ""
        return f"the guest has restarted itself {RESTARTS_KEPT} times in {now - restarts[0]:.0f} s"

    def change(self, **fields: Any) -> None:
        """Write changed fields of the record. Unavailable: writing failed, and nothing changed."""
        record = msgspec.structs.replace(self.record, **fields)
        self.site.check_open()
        if record != self.record:
            state.write(self.folder.path, record)
            self.record = record
        self.touch()

    def note(self, **fields: Any) -> None:
        """Change the record in memory even if writing fails, as on a full disk: for facts that hold anyway."""
        try:
            self.change(**fields)
        except Unavailable as error:
            _log.warning("%s", error)
            self.record = msgspec.structs.replace(self.record, **fields)
            self.touch()

    def touch(self) -> None:
        self._seen = None

    # Connections

    async def attach(self, *, within: float = ATTACH_WITHIN) -> Monitor:
        """Connect to the living process. Repeatable. Unavailable: it does not answer.

        From here on its end and its events are observed.
        """
        self.lives()
        async with self._attaching:  # QEMU accepts one client at a time
            monitor = await self._link.open(within)
            self._is(str((await monitor.execute("query-status"))["status"]))
            if self.record.run is None and (found := process.find(self.folder)) is not None:
                with found:  # the agent was killed before it recorded the start
                    self.note(run=found.run(), ran=True)
        return monitor

    def lives(self) -> None:
        """Record that its process lives, and watch for its end. Repeatable."""
        if not self.alive:
            self.alive, self._lives_since = True, self.site.clock.wall()
            self.touch()
        watch = self._tasks.get("watch")
        if watch is None or watch.done():
            self.later("watch", self._watch())

    def look(self) -> None:
        """Take over a process that the record does not mention: the agent was interrupted while it started it."""
        if not self.alive and process.alive(self.folder):
            if self.record.begun is Begun.NOTHING:
                self.note(begun=Begun.STARTING)  # how far that came is not known, so `start` repeats it
            self.lives()

    async def detach(self) -> None:
        """Disconnect from the process and leave it running."""
        self._let_go = True  # also if QEMU hangs up now: another process may take over, or none
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._tasks.clear()
        await self._link.aclose()
        self.folder.close()

    async def execute(self, command: str, arguments: dict[str, Any] | None = None, **options: Any) -> Any:
        """Run a QMP command."""
        return await (await self._require_monitor()).execute(command, arguments, **options)

    async def job(self, command: str, arguments: dict[str, Any], *, within: float) -> None:
        """Run a QMP job, which takes time."""
        await (await self._require_monitor()).job(command, arguments, within=within)

    async def _require_monitor(self) -> Monitor:
        if (monitor := self._link.monitor) is None:
            if not self.alive:
                raise NotFound(f"machine {self.vm!r}: it is off; start it first")
            monitor = await self.attach()
        return monitor

    async def settle_jobs(self, *, within: float) -> None:
        """Wait for jobs of an interrupted call: QEMU's jobs do not end with their caller."""
        await (await self._require_monitor()).settle_jobs(within=within)

    def said(self) -> bytes:
        """Return the last output of its serial port; of a machine that is off, that of its last run."""
        return (self._link.serial or Serial(self.folder)).tail(LOG_BYTES)

    async def console(self) -> Channel:
        """Open another console at its serial port."""
        if self._link.serial is None:
            await self.attach()
        return self._link.console()

    def unheard(self, why: str) -> None:
        """Report that its process lives and does not answer, and keep trying to connect."""
        if self.alive and not self.site.closed:
            self._unheard = f"its process does not answer: {why}"
            self.touch()
            self.later("reach", self._reach())

    async def _reach(self) -> None:
        while self.alive:
            await self.site.clock.sleep(RETRY_EVERY)
            with suppress(HostlerError, TimeoutError):
                await self.attach()
                self._unheard = ""
                self.touch()
                if self.readiness is None and self.state is MachineState.RUNNING:
                    self.climb(asks=True)
                self.site.tell(self.vm)
                return

    async def off(self, *, within: float = QUIT_WITHIN) -> None:
        """End the process: ask it if `within` is above 0, then kill it. Returns when it has ended.

        If asked, QEMU writes back its own disk caches. If killed, nothing is lost that the guest has flushed, either.
        """
        if within > 0 and (monitor := self._link.monitor) is not None:
            with suppress(HostlerError, TimeoutError):
                await monitor.execute("quit", within=within)
                async with asyncio.timeout(within):
                    await process.wait_until_ended(self.folder, self.record.run)
        await self._kill()
        self.later("watch", None)  # it may not have run yet, and must not mistake the next process for this one
        self.ended()
        await self._link.aclose()
        await self.site.release(self.record.number)

    async def leave_none(self) -> None:
        """Kill what is left of the run before: a compromised QEMU can release the lock that shows that it lives."""
        if self._loose is not None:
            await self._kill()

    async def _kill(self) -> None:
        await process.kill(self.folder, self.record.run or self._loose, uid=self.rights.uid, within=KILL_WITHIN)
        self._loose = None

    def record_unexpected_end(self) -> None:
        """Record the end of a process that this driver did not kill (see `ended`). Repeatable."""
        self._loose = self.record.run or self._loose
        self.ended()

    def ended(self) -> None:
        """Record that its process has ended, and why. Repeatable."""
        self.alive = False
        self.readiness = None
        self.stopped.set()
        for name in ("ascent", "retry", "reach"):
            self.later(name, None)
        record = self.record
        if record.run is not None or record.begun is not Begun.NOTHING:
            failed, detail = why_off(
                record, shut_down=self.status == SHUT_DOWN, held=self.site.held(), said=self.folder.said()
            )
            self.note(run=None, begun=Begun.NOTHING, available_at=None, failed=failed, detail=detail)
        self.status = self._trouble = self._unheard = ""
        self._restarts.clear()
        self.touch()

    async def _watch(self) -> None:
        await process.wait_until_ended(self.folder, self.record.run)
        self.record_unexpected_end()
        self.site.tell(self.vm)
        async with self.lock:
            if not self.alive:
                with suppress(Unavailable):  # the next start tries again, and reports it
                    await self.leave_none()
                await self._link.aclose()

    def later(self, name: str, work: Coroutine[Any, Any, None] | None) -> None:
        """Run a background task until the driver closes. A task of the same name is cancelled; None: only cancel it."""
        old = self._tasks.pop(name, None)
        if old is not None:
            old.cancel()
        if work is not None and self._let_go:
            work.close()
        elif work is not None:
            self._tasks[name] = asyncio.create_task(work, name=f"machine {self.vm}: {name}")

    # Events of QEMU

    def _event(self, name: str, data: dict[str, Any]) -> None:
        if name == "SHUTDOWN":
            if data.get("guest"):  # otherwise it ends on request, or was killed
                self._is(SHUT_DOWN)
        elif name == "RESET":
            if data.get("guest"):
                self._restarts.append(self.site.clock.now())
                self.touch()
            if self.readiness is not None:
                self.climb(asks=False)
        elif name == "RESUME":
            self._is("running")
        elif name == "STOP" and self.status == "running":
            self._is("paused")
        elif name == "BLOCK_IO_ERROR":
            why = "no space left on its node" if data.get("nospace") else str(data.get("reason", "an error"))
            self._record_pause(f"the guest is paused because its disk cannot be written: {why}; it resumes once it can")

    def _is(self, status: str) -> None:
        if status == self.status:
            return
        self.status = status
        if status == SHUT_DOWN:
            self.stopped.set()
            self.later("reap", self._reap())
        elif status == "io-error" and not self._trouble:
            self._record_pause("the guest is paused because its disk cannot be written; it resumes once it can")
        elif status == "running" and self._trouble:
            self._trouble = ""
            self.later("retry", None)
            self.site.tell(self.vm)
        self.touch()

    def _record_pause(self, trouble: str) -> None:
        if self._trouble == trouble:
            return
        self._trouble = trouble
        self.touch()
        self.site.tell(self.vm)
        self.later("retry", self._retry())

    async def _retry(self) -> None:
        """Let the guest repeat its write whenever there is free space."""
        while self.alive:
            await self.site.clock.sleep(RETRY_EVERY)
            if self.site.has_some_room():
                with suppress(HostlerError):
                    if str((await self.execute("query-status"))["status"]) != "io-error":
                        return
                    if not (self.record.departing or self.record.departed):  # otherwise it might run on both nodes
                        await self.execute("cont")

    async def _reap(self) -> None:
        """End the process of a guest that switched itself off, unless a verb is about to."""
        async with self.lock:
            if self.alive and self.status == SHUT_DOWN:
                await self.off()
                self.site.tell(self.vm)

    def _hung_up(self) -> None:
        """Handle a connection that QEMU closed: most likely QEMU ends. If not, connect again."""
        self.later("reach", self._reach())

    # Readiness

    def climb(self, *, asks: bool) -> None:
        """Watch until the machine is available. `asks`: see `Ascent.climb`."""
        record = self.record
        if record.available_at is not None and asks:
            self.readiness = Readiness(step=Step.AVAILABLE, since=record.available_at)
            self.touch()
        elif self.guest is not None and (access := self.access) is not None:
            self.note(available_at=None)
            ascent = Ascent(record.image, access, self.guest, clock=self.site.clock, told=self._record_readiness)
            self._record_readiness(ascent.now)
            self.later("ascent", ascent.climb(asks=asks))

    def calm(self) -> None:
        """Stop watching for its availability."""
        self.later("ascent", None)
        self.readiness = None
        self.touch()

    def _record_readiness(self, readiness: Readiness) -> None:
        before, self.readiness = self.readiness, readiness
        if readiness == before:
            return
        self.touch()
        if readiness.step is Step.AVAILABLE:
            self.note(available_at=readiness.since)
        if before is not None:
            self.site.tell(self.vm)
