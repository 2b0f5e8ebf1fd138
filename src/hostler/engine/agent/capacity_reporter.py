"""What the node has to offer, as its record tells it: looked at now and then, and written when it has changed."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import msgspec

from hostler.errors import HostlerError
from hostler.keys.node import MEMBER
from hostler.kit.timeouts import within

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.ports.machines import Machines, Offer
    from hostler.ports.store import Comparison, Store

PATIENCE = 5.0
"""Seconds that driver and store may take."""
_log = logging.getLogger("hostler.agent")


def told_of(offer: Offer, *, moves: bool) -> dict[str, Any]:
    """The fields of a node's record that come from an offer."""
    return {
        "capacity": offer.capacity,
        "images": offer.images,
        "image_needs": offer.image_needs,
        "facts": offer.facts,
        "refuses": offer.refuses,
        "moves": moves,
    }


class Offering:
    """Keeps the record of one node up to date while its session lasts."""

    def __init__(
        self, store: Store, machines: Machines, node: str, guard: Callable[[], Comparison], *, moves: bool
    ) -> None:
        """`moves`: its machines can be handed to other nodes."""
        self._moves = moves
        self._store, self._machines, self._node, self._guard = store, machines, node, guard
        self._told: dict[str, Any] | None = None
        self.awaited = False
        """As the record says: machines may be here that a restored or copied store does not know of."""

    async def look(self) -> dict[str, Any]:
        """What the record shall say."""
        self._told = None  # until it is known that it does
        return told_of(await self._machines.offer(), moves=self._moves)

    async def renew(self, *, is_swept: bool) -> None:
        """Write the record if what it says has changed. What fails is tried again at the next look.

        `is_swept`: no machine is here but those that the store knows of, so the node is no longer awaited.
        """
        try:
            await within(PATIENCE, self._renewed(is_swept=is_swept))
        except (HostlerError, TimeoutError) as error:
            _log.warning("node %s: what it has to offer could not be told: %s", self._node, error)

    async def _renewed(self, *, is_swept: bool) -> None:
        offer = told_of(await self._machines.offer(), moves=self._moves)
        ends = self.awaited and is_swept
        if (ends or offer != self._told) and await self._written(offer | ({"awaited": False} if ends else {})):
            self._told = offer
            self.awaited = self.awaited and not ends

    async def _written(self, offer: dict[str, Any]) -> bool:
        member = await MEMBER.get(self._store, node=self._node)
        if member is None:
            return False
        record = msgspec.structs.replace(member.value, **offer)
        if record == member.value:
            return True
        when = [self._guard(), MEMBER.unchanged(member)]
        return (await self._store.txn(when, [MEMBER.put(record, node=self._node)])).succeeded
