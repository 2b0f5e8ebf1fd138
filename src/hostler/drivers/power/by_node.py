"""The power switch of each node by its name."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from hostler.ports.power import OneSystem

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hostler.ports.power import Power


class PowerByNode:
    """`ports.power.Power` and `ports.power.PowerReader` of many switches.

    An exact name precedes patterns, patterns apply in the order in which they are written, and `otherwise` takes the
    rest.
    """

    def __init__(
        self,
        openers: Mapping[str, Callable[[str], Power | None]],
        *,
        otherwise: Power | None = None,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._openers, self._otherwise, self._tell = openers, otherwise, tell

    async def switch_off(self, node: str) -> bool:
        """Switch the node off with its own switch."""
        power = self.power_of(node)
        if power is None:
            self._tell(f"power of node {node}: no entry of the setting power reaches it")
            return False
        return await power.switch_off(node)

    async def read_state(self, node: str) -> str | None:
        """Return the power state. None: the switch is a command, or the node has none."""
        power = self.power_of(node)
        return await power.read_state() if isinstance(power, OneSystem) else None

    def reaches(self, node: str) -> bool:
        """Return whether the node has a switch."""
        return self.power_of(node) is not None

    def power_of(self, node: str) -> Power | None:
        """Return the switch of this node."""
        if node in self._openers:
            return self._openers[node](node)
        for pattern, opener in self._openers.items():
            if fnmatchcase(node, pattern):
                return opener(node)
        return self._otherwise
