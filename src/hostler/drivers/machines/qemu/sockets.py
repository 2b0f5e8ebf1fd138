"""The connections to a machine's process: QMP, its console, and the guest's channel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hostler.drivers.machines.qemu.qmp import Monitor
from hostler.drivers.machines.qemu.serial import GuestChannel, Serial
from hostler.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.drivers.machines.qemu.folder import MachineFolder
    from hostler.ports.machines import Channel


class Link:
    """Of one machine, from process to process."""

    def __init__(
        self, folder: MachineFolder, *, event: Callable[[str, dict[str, Any]], None], closed: Callable[[], None]
    ) -> None:
        """`event` and `closed`: as of a `Monitor`."""
        self._folder, self._event, self._closed = folder, event, closed
        self.monitor: Monitor | None = None
        self.serial: Serial | None = None
        self.guest: GuestChannel | None = None

    async def open(self, within: float) -> Monitor:
        """Have all three. Repeatable; Unavailable: QEMU does not answer, or ended meanwhile.

        What was connected to a process that is there no more is replaced: its end may not have been seen to yet.
        """
        monitor = self.monitor
        if monitor is None or not monitor.connected:
            monitor = Monitor(self._folder, event=self._event, closed=self._lost)
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
        """Another one at its serial port. Unavailable: it hung up just now."""
        if self.serial is None:
            raise Unavailable(f"machine {self._folder.name}: its process hung up just now; inspect it and try again")
        return self.serial.attach()

    async def aclose(self) -> None:
        """Hang up; the process is not disturbed."""
        monitor, serial, guest = self.monitor, self.serial, self.guest
        self.monitor = self.serial = self.guest = None
        for connection in (guest, serial, monitor):
            if connection is not None:
                await connection.aclose()

    def _lost(self) -> None:
        self.monitor = None
        self._closed()
