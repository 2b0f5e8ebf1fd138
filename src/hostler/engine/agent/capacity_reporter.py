"""Capacity and images of the node: checked periodically, and written to the node record when they change."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import msgspec

from hostler.errors import HostlerError
from hostler.keys.families import MEMBER
from hostler.kit.tasks import within

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.ports.machines import Machines, Offer
    from hostler.ports.store import Comparison, Store

PATIENCE = 5.0
"""Timeout for driver and store together, in seconds."""
_log = logging.getLogger("hostler.agent")


def told_of(offer: Offer, *, moves: bool) -> dict[str, Any]:
    """Return the fields of the node record that come from the driver's offer."""
    return {
        "capacity": offer.capacity,
        "images": offer.images,
        "image_needs": offer.image_needs,
        "facts": offer.facts,
        "refuses": offer.refuses,
        "moves": moves,
    }


class CapacityReporter:
    """Keeps the node record current during a session."""

    def __init__(
        self, store: Store, machines: Machines, node: str, guard: Callable[[], Comparison], *, moves: bool
    ) -> None:
        """`moves`: its machines can be migrated to other nodes."""
        self._moves = moves
        self._store, self._machines, self._node, self._guard = store, machines, node, guard
        self._told: dict[str, Any] | None = None
        self.awaited = False
        """As in the record: the node may have machines that a restored or copied store does not know."""

    async def look(self) -> dict[str, Any]:
        """Return the fields to write to the record."""
        self._told = None  # until it is known that the record has them
        return told_of(await self._machines.offer(), moves=self._moves)

    async def renew(self, *, is_swept: bool) -> None:
        """Write the record if its content has changed. A failure is retried at the next check.

        `is_swept`: every machine on the node is known to the store, so the node is no longer awaited.
        """
        try:
            await within(PATIENCE, self._renewed(is_swept=is_swept))
        except (HostlerError, TimeoutError) as error:
            _log.warning("node %s: its capacity could not be reported: %s", self._node, error)

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
