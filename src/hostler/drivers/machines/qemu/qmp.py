"""QMP: QEMU's control socket.

This is an own client over one socket, without tasks. The standard client (qemu.qmp) keeps every event it received,
and a guest can cause events without end. It waits without limit when it closes a connection that QEMU does not read,
and it needs three tasks for each machine.

A command without an answer may have been executed: Uncertain, or Unavailable if it only queries. Errors never contain
arguments.

`Link` holds all connections to a machine's process: QMP, console and guest channel.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
import socket
from typing import TYPE_CHECKING, Any

import msgspec

from hostler.drivers.machines.qemu.folder import QMP_SOCKET
from hostler.drivers.machines.qemu.process import Throttle, reach
from hostler.drivers.machines.qemu.serial import GuestChannel, Serial
from hostler.errors import HostlerError, NotFound, Refused, Unavailable, Uncertain

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hostler.drivers.machines.qemu.folder import MachineFolder
    from hostler.ports.machines import Channel

ANSWERS_WITHIN = 30.0
MESSAGE_BYTES = 8 * 2**20
"""Maximum size of one answer."""
READ_RATE = 4 * 2**20
"""Bytes per second: a compromised QEMU cannot keep the agent from its other machines."""
WAITING_BYTES = 2**20
"""Maximum of data that QEMU has not read yet."""
JOBS = "hostler-"
"""Prefix of the names of Hostler's jobs."""
_LOOK_EVERY = 1.0
_log = logging.getLogger("hostler.qemu")
_encoder, _decoder = msgspec.json.Encoder(), msgspec.json.Decoder(dict[str, Any])


class Monitor:
    """The connection to one machine's QEMU; the only client of that process."""

    def __init__(
        self, folder: MachineFolder, *, event: Callable[[str, dict[str, Any]], None], closed: Callable[[], None]
    ) -> None:
        """Set up the connection.

        `event` is called with QEMU's events; `closed` once, when QEMU closes the connection.
        """
        self._folder, self._event, self._closed = folder, event, closed
        self._wire: _Wire | None = None
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any] | None]] = {}
        """Pending answers by number; None: QEMU closed the connection."""
        self._job_moved = asyncio.Event()

    @property
    def connected(self) -> bool:
        return self._wire is not None

    async def connect(self, within: float = ANSWERS_WITHIN) -> None:
        """Connect. Unavailable: its process has ended, or does not answer in time."""
        if self._wire is not None:
            return
        loop = asyncio.get_running_loop()
        until = loop.time() + within
        connection = await reach(self._folder, QMP_SOCKET, within=within)
        wire = _Wire(self, connection)
        try:
            await loop.create_connection(lambda: wire, sock=connection)
            async with asyncio.timeout_at(until):
                await wire.greeted
            self._wire = wire
            await self.execute("qmp_capabilities", within=max(0.001, until - loop.time()))
        except BaseException as error:
            self._wire = None
            lost = wire.forget_wire
            wire.abort()
            connection.close()
            if lost and isinstance(error, Uncertain | OSError):
                why = self._folder.said() or "no message"
                raise Unavailable(f"{self.subject}: QEMU closed the connection before its greeting: {why}") from None
            if isinstance(error, TimeoutError | Uncertain):
                raise Unavailable(
                    f"{self.subject}: no greeting from QEMU within {within:g} s; it hangs, or another client is"
                    f" connected to its {QMP_SOCKET}"
                ) from None
            if isinstance(error, OSError):
                raise Unavailable(f"{self.subject}: {QMP_SOCKET}: {error.strerror or error}") from None
            raise

    async def execute(
        self,
        command: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        within: float = ANSWERS_WITHIN,
        fds: Sequence[int] = (),
    ) -> Any:
        """Execute a command; return QEMU's result. `fds` are sent along, as `getfd` needs them.

        Refused, NotFound: QEMU's answer. Unavailable: not sent, or only a query. Uncertain: no answer.
        """
        wire = self._wire
        if wire is None:
            raise Unavailable(f"{self.subject}: {command}: QEMU is not connected; inspect it and try again")
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        message = {"execute": command, "id": number} | ({"arguments": arguments} if arguments else {})
        try:
            if not wire.send(_encoder.encode(message) + b"\n", fds):
                raise Unavailable(f"{self.subject}: {command}: QEMU does not read commands; check its process")
            async with asyncio.timeout(within):
                found = await answer
        except TimeoutError:
            raise self._silence(command, f"no answer within {within:g} s") from None
        finally:
            self._waiting.pop(number, None)
        if found is None:
            if command == "quit":
                return {}
            raise self._silence(command, "QEMU closed the connection before it answered")
        if "error" in found:
            raise self._refusal(command, found["error"])
        return found.get("return")

    async def job(self, command: str, arguments: Mapping[str, Any], within: float) -> None:
        """Run a job and wait for it. Refused: it failed, with QEMU's reason.

        Uncertain: it is still running, or may be.
        """
        name = f"{JOBS}{secrets.token_hex(8)}"
        loop = asyncio.get_running_loop()
        until = loop.time() + within
        await self.execute(command, {**arguments, "job-id": name}, within=within)
        try:
            async with asyncio.timeout_at(until):
                error = await self._finish_job(name)
        except TimeoutError:
            raise Uncertain(f"{self.subject}: {command}: not finished within {within:g} s; it may still run") from None
        except Unavailable as lost:  # raised by a query about a job that has begun
            raise Uncertain(str(lost)) from None
        if error:
            raise Refused(f"{self.subject}: {command}: {error}")

    async def settle_jobs(self, *, within: float) -> None:
        """Wait until no job of an interrupted call is left. Unavailable: one is still running."""
        try:
            async with asyncio.timeout(within):
                for found in await self.execute("query-jobs", within=within):
                    if str(found["id"]).startswith(JOBS):
                        await self._finish_job(found["id"])
        except TimeoutError:
            raise Unavailable(f"{self.subject}: a job is still running after {within:g} s; try again later") from None

    async def aclose(self) -> None:
        """Close the connection at once, whether or not QEMU reads. Pending calls fail as unanswered."""
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.abort()
            self._hung_up()
            await asyncio.sleep(0)  # the loop closes the socket in its next iteration

    # Called by the wire

    def handle_message(self, message: dict[str, Any]) -> None:
        if "event" in message:
            name, data = str(message["event"]), message.get("data")
            if name == "JOB_STATUS_CHANGE":
                self._job_moved.set()
            try:
                self._event(name, data if isinstance(data, dict) else {})
            except Exception:  # noqa: BLE001 - no caller could handle it, and the connection stays usable
                _log.exception("%s: cannot process QEMU's event %s", self.subject, name)
            return
        answer = self._waiting.pop(message.get("id", 0), None)
        if answer is not None and not answer.done():  # otherwise the caller has gone
            answer.set_result(message)

    def forget_wire(self, wire: _Wire) -> None:
        if self._wire is wire:
            self._wire = None
            self._hung_up()
            self._closed()

    def _hung_up(self) -> None:
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_result(None)
        self._waiting.clear()
        self._job_moved.set()

    # Inside

    @property
    def subject(self) -> str:
        return f"machine {self._folder.name}"

    def _silence(self, command: str, why: str) -> HostlerError:
        if command.startswith("query-"):
            return Unavailable(f"{self.subject}: {command}: {why}; try again")
        return Uncertain(f"{self.subject}: {command}: {why}; inspect it")

    def _refusal(self, command: str, error: Any) -> Refused:
        known = error if isinstance(error, dict) else {}
        kind = NotFound if known.get("class") == "DeviceNotFound" else Refused
        return kind(f"{self.subject}: {command}: {known.get('desc', 'refused')}")

    async def _finish_job(self, name: str) -> str:
        """Wait for the end of a job and dismiss it; return its error; empty: none."""
        while True:
            self._job_moved.clear()
            job = next((found for found in await self.execute("query-jobs") if found["id"] == name), None)
            if job is None:
                return "it was dismissed by another client"
            if job["status"] == "concluded":
                await self.execute("job-dismiss", {"id": name})
                return str(job.get("error") or "")
            try:
                async with asyncio.timeout(_LOOK_EVERY):
                    await self._job_moved.wait()
            except TimeoutError:
                pass


class _Wire(asyncio.Protocol):
    """Lines of JSON in both directions."""

    def __init__(self, monitor: Monitor, connection: socket.socket) -> None:
        self._monitor, self._connection = monitor, connection
        self._transport: asyncio.Transport | None = None
        self._held = bytearray()
        self.forget_wire = False
        self._throttle = Throttle(READ_RATE, MESSAGE_BYTES)
        self.greeted: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def send(self, line: bytes, fds: Sequence[int]) -> bool:
        """Return whether the line was sent or queued."""
        transport = self._transport
        if transport is None or transport.is_closing() or transport.get_write_buffer_size() > WAITING_BYTES:
            return False
        if not fds:
            transport.write(line)
            return True
        if transport.get_write_buffer_size():
            return False
        try:
            sent = socket.send_fds(self._connection, [line], list(fds))
        except OSError:
            return False
        transport.write(line[sent:])
        return True

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        self.greeted.cancel()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        if self._transport is not None:
            self._throttle.took(self._transport, len(data))
        self._held += data
        *lines, rest = self._held.split(b"\n")
        self._held = rest
        if len(rest) > MESSAGE_BYTES:
            self._close_broken()
            return
        for line in lines:
            if line.strip():
                try:
                    message = _decoder.decode(line)
                except msgspec.MsgspecError:
                    self._close_broken()
                    return
                if "QMP" not in message:
                    self._monitor.handle_message(message)
                elif not self.greeted.done():
                    self.greeted.set_result(None)

    def _close_broken(self) -> None:
        """Close the connection because the peer does not speak QMP."""
        _log.warning("%s: its QEMU sent something other than QMP; connection closed", self._monitor.subject)
        self._held.clear()
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - the protocol's
        self._transport = None
        self.forget_wire = True
        self._throttle.stop()
        if not self.greeted.done():
            self.greeted.set_exception(ConnectionResetError())
        self._monitor.forget_wire(self)


class Link:
    """The connections of one machine to its current process."""

    def __init__(
        self, folder: MachineFolder, *, event: Callable[[str, dict[str, Any]], None], closed: Callable[[], None]
    ) -> None:
        """Set up the connections. `event` and `closed`: see `Monitor`."""
        self._folder, self._event, self._closed = folder, event, closed
        self.monitor: Monitor | None = None
        self.serial: Serial | None = None
        self.guest: GuestChannel | None = None

    async def open(self, within: float) -> Monitor:
        """Open all three connections. Repeatable. Unavailable: QEMU does not answer, or has just ended.

        Connections to an ended process are replaced: its end may not have been noticed yet.
        """
        monitor = self.monitor
        if monitor is None or not monitor.connected:
            monitor = Monitor(self._folder, event=self._event, closed=self._forget_monitor)
            await monitor.connect(within)
            self.monitor = monitor
        if self.serial is None or not self.serial.connected:
            serial = Serial(self._folder)
            await serial.connect()
            self.serial = serial
        if self.guest is None or not self.guest.connected:
            guest = GuestChannel(self._folder)
            await guest.connect()
            self.guest = guest
        return monitor

    def console(self) -> Channel:
        """Return another console at its serial port. Unavailable: the process has just disconnected."""
        if self.serial is None:
            raise Unavailable(f"machine {self._folder.name}: its process has just disconnected; inspect it")
        return self.serial.attach()

    async def aclose(self) -> None:
        """Disconnect; the process does not notice."""
        monitor, serial, guest = self.monitor, self.serial, self.guest
        self.monitor = self.serial = self.guest = None
        for connection in (guest, serial, monitor):
            if connection is not None:
                await connection.aclose()

    def _forget_monitor(self) -> None:
        self.monitor = None
        self._closed()
