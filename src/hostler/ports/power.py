"""Power: who can say for certain that a node is off."""

from __future__ import annotations

from typing import Protocol


class Power(Protocol):
    """The power switch of nodes. Unavailable: it cannot be reached; Uncertain: it may be off."""

    async def switch_off(self, node: str) -> bool:
        """Cut the node's power and see that it is off. True: certainly off. False: this switch does not reach it."""
