"""The power switch of nodes by its settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from hostler.ports.power import HostWatchdog, Power


def open_power(command: Sequence[str], *, timeout: float, tell: Callable[[str], None]) -> Power | None:
    """The switch that runs this command; None: there is none. `tell` hears what it did, and what it said."""
    if not command:
        return None
    from hostler.drivers.power import CommandPower

    return CommandPower(command, timeout=timeout, tell=tell)


def open_watchdog(path: Path, *, timeout: float) -> HostWatchdog:
    """Open and so start this host's watchdog. Unavailable: it cannot be used."""
    from hostler.drivers.watchdog import WatchdogDevice

    return WatchdogDevice(path, timeout=timeout)
