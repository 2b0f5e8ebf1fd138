"""Power: switches that confirm that a node is off, and the watchdog that resets this host."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


class Power(Protocol):
    """The power switch of nodes. Unavailable: it cannot be reached. Uncertain: the node may be off."""

    async def switch_off(self, node: str) -> bool:
        """Cut the node's power and verify it. True: certainly off. False: this switch does not control the node."""


@runtime_checkable
class OneSystem(Protocol):
    """Optional ability of a power switch that controls one system and can read its power state."""

    @property
    def system(self) -> str:
        """The address of the system, without secrets. Two switches with the same one would switch off the same node."""

    async def read_state(self) -> str:
        """Return `off`, or another state in the switch's own words. Unavailable: the switch does not answer."""


class PowerReader(Protocol):
    """The ability to read the power state of nodes without changing it."""

    def reaches(self, node: str) -> bool:
        """Return whether the node has a switch."""

    async def read_state(self, node: str) -> str | None:
        """Return `off`, or another state in the switch's own words. None: the node has no switch that can read it.

        Unavailable: the switch does not answer, or not for this node.
        """


class HostWatchdog(Protocol):
    """A device that resets this host unless it is fed in time. It starts to count when it is opened."""

    timeout: float
    """Seconds."""

    def feed(self) -> None:
        """Restart the countdown. Unavailable: the device rejects it."""

    def disarm(self) -> None:
        """Make it stop counting when it is closed. Unavailable: the device rejects it."""

    def close(self) -> None:
        """Close the device. Without `disarm` the countdown continues."""
