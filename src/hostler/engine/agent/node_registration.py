"""The record of a node: what its agent writes there, and whether another place may have its machines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec

from hostler.errors import Damaged
from hostler.keys.node import COMMAND
from hostler.keys.vm import HANDLE
from hostler.model.name import fold
from hostler.model.node import Lifecycle, NodeRecord

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

    from hostler.engine.agent.config import AgentPlan
    from hostler.ports.machines import Machines
    from hostler.ports.store import KeyValue, Store

T = TypeVar("T")
_KEPT = (Lifecycle.DRAINING, Lifecycle.DECOMMISSIONED)
"""An operator's word: neither coming nor going takes it back."""
_PAGE = 500


class Within(Protocol):
    """Waits for one question to the store, but not for long."""

    def __call__(self, work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]: ...


async def has_machines(store: Store, node: str, within: Within) -> bool:
    """Whether any machine may be on the node, wherever that is. The node is silent while this is asked.

    What is false now stays false until its record changes, which registering compares: only a node that lives gets
    machines, and who moves some there from a state file writes its record anew.
    """
    told = await within(store.range(COMMAND.prefix(node=node), limit=1, keys_only=True))
    if told.items:
        return True
    after: str | None = None
    while True:  # it may have been told once; what the leader finds in a handle, it tells the node again
        page = await within(store.range(HANDLE.prefix(), after=after, limit=_PAGE))
        if any(_names(kv, node) for kv in page.items):
            return True
        if not page.more:
            return False
        after = page.items[-1].key


def outlives_agent(lifecycle: Lifecycle) -> bool:
    """Whether an operator said so; an unknown one may be such."""
    return lifecycle in _KEPT or not lifecycle.is_known


def record_of(
    plan: AgentPlan, machines: Machines, known: NodeRecord | None, *, at: float, **offer: object
) -> NodeRecord:
    """The record of a node that registers; `known` is the one that stands."""
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
        "fences": machines.fences,
        # A longer hold may stand from before, until the first of this session.
        "fencing_time": max(plan.fencing_time, 0.0 if known is None else known.fencing_time),
        "off": None,
        # Until it has taken out of service what the store does not know of (`Offering.renew`).
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
        return False  # nothing is decided from it
