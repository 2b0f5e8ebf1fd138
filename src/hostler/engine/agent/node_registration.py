"""The node record: what the agent writes into it, and whether the machines of a node may be in other storage.

Capacity and images are checked periodically, and written when they change.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from hostler.errors import Damaged, HostlerError
from hostler.keys.families import COMMAND, HANDLE, MEMBER
from hostler.kit.tasks import within
from hostler.model.name import fold
from hostler.model.node import Lifecycle, NodeRecord
from hostler.ports.machines import fencing_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from hostler.engine.agent.config import AgentConfig
    from hostler.ports.machines import Machines, Offer
    from hostler.ports.store import Comparison, KeyValue, Store


T = TypeVar("T")
_KEPT = (Lifecycle.DRAINING, Lifecycle.DECOMMISSIONED)
"""Lifecycle states set by an operator. Start and stop of the agent do not change them."""
_PAGE = 500


class Within(Protocol):
    """Runs one store request with a time limit."""

    def __call__(self, work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]: ...


async def has_machines(store: Store, node: str, within: Within) -> bool:
    """Return whether the node may have machines, in any storage. The node is unreachable during this call.

    If the result is False, it stays False until the node record changes, and registration compares that record: only a
    reachable node gets machines, and a migration from a state file rewrites the record.
    """
    told = await within(store.range(COMMAND.prefix(node=node), limit=1, keys_only=True))
    if told.items:
        return True
    after: str | None = None
    while True:  # it may have been assigned earlier; the leader repeats commands for the nodes named in handles
        page = await within(store.range(HANDLE.prefix(), after=after, limit=_PAGE))
        if any(_names(kv, node) for kv in page.items):
            return True
        if not page.more:
            return False
        after = page.items[-1].key


def outlives_agent(lifecycle: Lifecycle) -> bool:
    """Return whether an operator set this lifecycle. An unknown value may be one of these."""
    return lifecycle in _KEPT or not lifecycle.is_known


def record_of(
    plan: AgentConfig, machines: Machines, known: NodeRecord | None, *, at: float, **offer: object
) -> NodeRecord:
    """Return the record of a node that registers; `known` is the current record."""
    told = {
        **offer,
        "lifecycle": known.lifecycle if known is not None and outlives_agent(known.lifecycle) else Lifecycle.JOINING,
        "labels": plan.labels,
        "rack": plan.rack,
        "pdus": plan.pdus,
        "tors": plan.tors,
        "address": plan.address,
        "store": plan.store,
        "driver": machines.name,
        "place": machines.place,
        "fences": fencing_of(machines) is not None,
        # A longer fencing deadline may be in effect until the first extension of this session.
        "fencing_time": max(plan.fencing_time, 0.0 if known is None else known.fencing_time),
        "off": None,
        # Until it has taken machines that the store does not know out of service (`Offering.renew`).
        "awaited": known is not None and known.awaited,
        "registered_at": at,
    }
    if known is None:
        return NodeRecord(node=plan.typed, **told)  # type: ignore[arg-type]
    return msgspec.structs.replace(known, **told)


def _names(kv: KeyValue, node: str) -> bool:
    try:
        return fold(HANDLE.decode(kv.value, where=kv.key).node) == node
    except Damaged:
        return False  # no decision is based on it


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
            await within(PATIENCE, self._renew(is_swept=is_swept))
        except (HostlerError, TimeoutError) as error:
            _log.warning("node %s: its capacity could not be reported: %s", self._node, error)

    async def _renew(self, *, is_swept: bool) -> None:
        offer = told_of(await self._machines.offer(), moves=self._moves)
        ends = self.awaited and is_swept
        if (ends or offer != self._told) and await self._write(offer | ({"awaited": False} if ends else {})):
            self._told = offer
            self.awaited = self.awaited and not ends

    async def _write(self, offer: dict[str, Any]) -> bool:
        member = await MEMBER.get(self._store, node=self._node)
        if member is None:
            return False
        record = msgspec.structs.replace(member.value, **offer)
        if record == member.value:
            return True
        when = [self._guard(), MEMBER.unchanged(member)]
        return (await self._store.txn(when, [MEMBER.put(record, node=self._node)])).succeeded
