"""The connections to a machine's process: QMP, console and guest channel."""

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

    def _lost(self) -> None:
        self.monitor = None
        self._closed()
