"""The node record: what the agent writes into it, and whether the machines of a node may be in other storage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec

from hostler.errors import Damaged
from hostler.keys.families import COMMAND, HANDLE
from hostler.model.name import fold
from hostler.model.node import Lifecycle, NodeRecord
from hostler.ports.machines import fencing_of

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

    from hostler.engine.agent.config import AgentConfig
    from hostler.ports.machines import Machines
    from hostler.ports.store import KeyValue, Store

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
