"""Score of a suitable node: 0 to 100.

Room is the smallest share of cpus, memory and disk that stays free. Spread is 1 if no machine of the project shares
anything with the node, 0 if all share everything. Preferred rules, if there are any, count as much as both together.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, TypeAlias
from zlib import crc32

from hostler.engine.placement.node_state import WEIGHTS
from hostler.model.vm import Level

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hostler.engine.placement.constraints import Demand
    from hostler.engine.placement.node_state import NodeSlot

ROOM = 60.0
WEIGHT_OF_NODE = WEIGHTS[Level.NODE]
SPREAD = 40.0

Scored: TypeAlias = "tuple[float, float, float, NodeSlot]"
"""Score, room, spread, node."""


def rank(demand: Demand, slots: Iterable[NodeSlot]) -> list[Scored]:
    """Return suitable nodes, best first.

    If several are equally good, the machine's id shuffles them, so that many machines spread over them.
    """
    scored = _score(demand, slots)
    scored.sort(key=_points, reverse=True)
    if len(scored) > 1 and scored[0][0] == scored[1][0]:
        best = scored[0][0]
        begun = crc32(f"{demand.wanted.vm} ".encode())
        equals = [one for one in scored if one[0] == best]
        equals.sort(key=lambda one: (crc32(one[3].salt, begun), one[3].node))
        scored[: len(equals)] = equals
    return scored


def _score(demand: Demand, slots: Iterable[NodeSlot]) -> list[Scored]:
    """Score nodes. This is the inner loop of placement, written for speed."""
    shape, preferred = demand.shape, demand.preferred
    others = len(demand.neighbours.vms)
    count = demand.neighbours.counts.get
    scored = []
    spread = 1.0
    for slot in slots:
        asked, room = slot.fit
        if asked is not shape:  # many machines have the same shape, and most nodes are scored several times
            room = _room(slot, demand)
            slot.fit = (shape, room)
        if others:
            together = WEIGHT_OF_NODE * count(slot.own, 0)
            for domain, weight in slot.site.counted:
                together += weight * count(domain, 0)
            spread = 1.0 - together / others
        points = ROOM * room + SPREAD * spread
        if preferred:
            kept = sum(rule.broken_by(slot) is None for rule in preferred)
            points = (points + 100.0 * kept / len(preferred)) / 2
        scored.append((points, room, spread, slot))
    return scored


def _room(slot: NodeSlot, demand: Demand) -> float:
    all_cpus, all_memory, all_disk = slot.capacity
    room = (slot.cpus - demand.cpus) / all_cpus
    free = (slot.memory - demand.memory) / all_memory
    if free < room:  # noqa: PLR1730 - min() takes twice as long
        room = free
    if all_disk:
        free = (slot.disk - demand.disk) / all_disk
        if free < room:  # noqa: PLR1730
            room = free
    return room


_points = itemgetter(0)
