"""Power: what can say for certain that a node is off, and what resets this host."""

from __future__ import annotations

from typing import Protocol


class Power(Protocol):
    """The power switch of nodes. Unavailable: it cannot be reached; Uncertain: it may be off."""

    async def switch_off(self, node: str) -> bool:
        """Cut the node's power and see that it is off. True: certainly off. False: this switch does not reach it."""


class PowerReader(Protocol):
    """The ability to read the power state of nodes without changing it."""

    def reaches(self, node: str) -> bool:
        """Whether the node has a switch."""

    async def read_state(self, node: str) -> str | None:
        """`off`, or another state as the switch says it. None: its switch cannot read, or it has none.

        Unavailable: it does not answer, or not for this node.
        """


class HostWatchdog(Protocol):
    """A device that resets this host unless it is fed in time. It runs from when it is opened."""

    timeout: float
    """Seconds."""

    def feed(self) -> None:
        """Restart its time. Unavailable: it does not take that."""

    def disarm(self) -> None:
        """Let it stop when it is closed. Unavailable, as above."""

    def close(self) -> None:
        """Without `disarm` it runs on."""
