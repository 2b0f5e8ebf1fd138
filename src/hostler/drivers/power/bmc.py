"""Power switches that are management boards (BMCs): request power-off, and trust only the state that is read back."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from hostler.errors import Unavailable, Uncertain

if TYPE_CHECKING:
    from collections.abc import Callable

OFF = "off"
"""The only state that counts: a system that is powering off is not off."""
READS = 2
"""Consecutive reads that must say off.

A board that has just restarted may report a system as off that it has not detected yet.
"""
SHOWN = 60
"""Maximum number of characters of a foreign text that are shown."""


class Bmc(Protocol):
    """A management board of one system. Each verb ends within `within` seconds."""

    name: str
    """Its address, without secrets."""

    async def read_state(self, within: float) -> str:
        """Return the power state that the board reports now, `OFF` or another one. Unavailable: it is not known."""

    async def request_off(self, within: float) -> None:
        """Request immediate power-off. Unavailable: it was not done. Uncertain: it may have been done."""


class BmcPower:
    """`ports.power.Power` by one board.

    Read the state, request the power-off, then read until the board reports off. Its answer to the request does not
    count.
    """

    def __init__(
        self,
        board: Bmc,
        *,
        timeout: float = 60.0,
        request_within: float = 10.0,
        every: float = 1.0,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.board = board
        self._timeout, self._request_within, self._every, self._tell = timeout, request_within, every, tell

    @property
    def system(self) -> str:
        """Return the address of the system."""
        return self.board.name.rstrip("/")

    async def read_state(self) -> str:
        """Return the power state; nothing is changed. Unavailable: it is not known."""
        return await self.board.read_state(self._request_within)

    async def switch_off(self, node: str) -> bool:
        """Switch the node off. Unavailable: nothing was requested, or refused. Uncertain: off was not confirmed."""
        try:
            await self._switch_off()
        except (Unavailable, Uncertain) as error:
            what = f"power of node {node}: {error}"
            self._tell(what)
            raise type(error)(what) from None
        self._tell(f"power of node {node}: off, as read back from {self.board.name}")
        return True

    async def _switch_off(self) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout
        await self.board.read_state(min(self._request_within, self._timeout))
        refused: Unavailable | None = None
        seen = f"{self.board.name} accepted the request"
        try:
            await self.board.request_off(min(self._request_within, max(deadline - loop.time(), 0.01)))
        except Unavailable as error:
            refused = error  # some boards refuse it for a system that is already off
        except Uncertain as error:
            seen = str(error)
        reads = 0
        while (left := deadline - loop.time()) > 0:
            try:
                state = await self.board.read_state(min(self._request_within, left))
            except Unavailable as error:
                reads, seen = 0, str(error)
            else:
                reads = reads + 1 if state == OFF else 0
                if reads == READS:
                    return
                seen = f"{self.board.name} says {state}"
                if refused is not None and state != OFF:
                    raise refused
            await asyncio.sleep(max(min(self._every, deadline - loop.time()), 0.0))
        if refused is not None:
            raise refused
        raise Uncertain(f"not read as off within {self._timeout:g} s, last: {seen}; the node may be on or off")


def show(text: str) -> str:
    """Return text from a board in a form that is safe for a log."""
    plain = "".join(each if each.isprintable() else "?" for each in text[: SHOWN + 1])
    return plain if len(plain) <= SHOWN else f"{plain[:SHOWN]}…"
