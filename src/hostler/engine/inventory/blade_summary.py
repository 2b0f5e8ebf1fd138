"""Summary of all blades: the state of each in one word, from the caches of this process.

All callers get the same summary. A rack is built once, and again after a change in it; concurrent callers share the
result.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from hostler.engine.inventory.export import natural
from hostler.errors import Invalid
from hostler.keys.families import ALIVE, BLADE, COMMAND, IN_RACKS, MEMBER, MORE_PDUS, MORE_TORS, PDU, RACK, TOR
from hostler.kit.tasks import Fairness
from hostler.model.inventory import Condition
from hostler.model.inventory_api import FloorFeed, FloorRack, FloorView, Standing
from hostler.model.name import fold
from hostler.model.node import Lifecycle

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hostler.engine.view import View
    from hostler.keys.cache import Cache
    from hostler.keys.entry import Entry
    from hostler.keys.key import Key
    from hostler.model.inventory import Blade, Pdu, Rack, Tor

AT_ONCE = 200
"""Largest number of racks that one request may name."""
_BY_LIFECYCLE = {
    Lifecycle.JOINING: Standing.JOINING,
    Lifecycle.DRAINING: Standing.DRAINING,
    Lifecycle.DECOMMISSIONED: Standing.DRAINED,
    Lifecycle.SHUTTING_DOWN: Standing.LEFT,
}


class BladeSummaries:
    """Builds the summary. One per process."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._making = asyncio.Lock()
        self._listening = False
        self._racks: dict[str, FloorRack] = {}  # valid as long as nothing in them has changed
        self._whole: FloorView | None = None
        self._made_of: tuple[int, ...] = ()
        self._begun = self._made = 0  # number of builds started, and the number of the current one
        self._fairness = Fairness()

    async def whole(self) -> FloorView:
        """Return everything, as it is now or was at some instant after the call."""
        self._listen()
        before = self._begun
        if self._whole is None or self._made_of != self._known():
            async with self._making:
                # A waiting caller accepts a build that began after its call, because the state may change all the time.
                if self._whole is None or (self._made <= before and self._made_of != self._known()):
                    self._begun += 1
                    number, known = self._begun, self._known()
                    self._whole = await self._make()
                    self._made, self._made_of = number, known
        return self._whole

    async def some(self, names: Iterable[str]) -> FloorView:
        """Return these racks, as far as they exist, and no other nodes. Invalid: too many."""
        self._listen()
        wanted = tuple({fold(name): None for name in names})
        if len(wanted) > AT_ONCE:
            raise Invalid(f"query racks: {len(wanted)} racks, at most {AT_ONCE} at once; request fewer, or all")
        async with self._making:
            return self._view_of(await self._each([RACK.fill(rack=name) for name in wanted]))

    # Internal

    async def _make(self) -> FloorView:
        view = self._view
        racks = await self._each(tuple(view.inventory.racks.entries))
        nodes: list[tuple[tuple[Any, ...], str]] = []
        for member in tuple(view.members.entries.values()):
            node = member.parts["node"]
            if view.inventory.blade(node) is None:
                nodes.append((natural(node), node))
            await self._fairness.share()
        states: list[Standing] = []
        names = [node for _, node in sorted(nodes)]
        for node in names:
            states.append(standing(view, node))
            await self._fairness.share()
        return self._view_of(racks, names, states)

    async def _each(self, keys: Sequence[str]) -> list[FloorRack]:
        found: list[tuple[tuple[Any, ...], FloorRack]] = []
        for key in keys:
            entry = self._view.inventory.racks.entries.get(key)
            if entry is not None:
                name = entry.parts["rack"]
                made = self._racks.get(name)
                if made is None:
                    made = self._racks[name] = floor_rack(self._view, entry)
                found.append((place(entry), made))
            await self._fairness.share()
        found.sort(key=lambda one: one[0])
        return [rack for _, rack in found]

    def _view_of(
        self, racks: Sequence[FloorRack], nodes: Sequence[str] = (), states: Sequence[Standing] = ()
    ) -> FloorView:
        return FloorView(
            racks=tuple(racks),
            nodes=tuple(nodes),
            states=tuple(states),
            vms=tuple(map(self._view.count_on, nodes)),
            revision=min(mirror.revision for mirror in self._view.inventory.mirrors.values()),
        )

    def _known(self) -> tuple[int, ...]:
        view = self._view
        of: tuple[Cache[Any], ...] = (view.members, view.alive, view.commands, *view.inventory.mirrors.values())
        return tuple(mirror.revision for mirror in of)

    # Changes

    def _listen(self) -> None:
        """Start following changes, at the first request."""
        if self._listening:
            return
        self._listening = True
        view, seen = self._view, self._view.inventory
        view.members.listen(lambda key: self._node_changed(MEMBER.parse(key)["node"]))
        view.alive.listen(lambda key: self._node_changed(ALIVE.parse(key)["node"]))
        view.commands.listen(lambda key: self._node_changed(COMMAND.parse(key)["node"]))
        seen.parts.listen(lambda key: self._forget((IN_RACKS.match(key) or {}).get("rack", "")))
        seen.racks.listen(lambda key: self._forget(RACK.parse(key)["rack"]))
        seen.regions.listen(lambda _: self._racks.clear())
        seen.zones.listen(lambda _: self._racks.clear())

    def _node_changed(self, node: str) -> None:
        self._forget(node.partition("-")[0])

    def _forget(self, rack: str) -> None:
        self._racks.pop(rack, None)


def standing(view: View, node: str, blade: Blade | None = None) -> Standing:
    """Return the state of a node, and of its blade, if it is one."""
    if blade is not None and blade.condition is Condition.OUT_FOR_REPAIR:
        return Standing.OUT_FOR_REPAIR
    member = view.members.get(node=node)
    if member is None:
        return Standing.NO_NODE
    record = member.value
    found = _BY_LIFECYCLE.get(record.lifecycle, None if record.lifecycle.is_known else Standing.OUT_OF_USE)
    if view.alive.get(node=node) is None:
        if record.off is not None:
            return Standing.OFF
        return found if found in (Standing.DRAINED, Standing.LEFT) else Standing.SILENT
    if found is not None:
        return found
    return Standing.OUT_OF_USE if record.refuses or view.inventory.objection(node) else Standing.ON_DUTY


def place(entry: Entry[Rack]) -> tuple[Any, ...]:
    """Return the sort key of a rack: region, zone, name."""
    record = entry.value
    return (not record.region, natural(record.region), natural(record.zone), natural(record.name))


def floor_rack(view: View, entry: Entry[Rack]) -> FloorRack:
    record, rack = entry.value, entry.parts["rack"]
    parts = view.inventory.parts.entries
    found = [parts.get(BLADE.fill(rack=rack, blade=name)) for name in view.inventory.blades_of(rack)]
    blades = sorted((blade for blade in found if blade is not None), key=lambda blade: natural(blade.value.name))
    nodes = [f"{rack}-{blade.parts['blade']}" for blade in blades]
    return FloorRack(
        name=record.name,
        region=record.region,
        zone=record.zone,
        location=record.location,
        enabled=record.enabled,
        condition=record.condition,
        objection=view.inventory.above(record),
        pdus=_feeds(view, rack, PDU, MORE_PDUS),
        tors=_feeds(view, rack, TOR, MORE_TORS),
        blades=tuple(blade.value.name for blade in blades),
        states=tuple(standing(view, node, blade.value) for node, blade in zip(nodes, blades, strict=True)),
        vms=tuple(map(view.count_on, nodes)),
    )


def _feeds(view: View, rack: str, first: Key[Pdu] | Key[Tor], more: Key[Pdu] | Key[Tor]) -> tuple[FloorFeed, ...]:
    keys = (first.fill(rack=rack), more.fill(rack=rack, n=2))
    found = (view.inventory.parts.entries.get(key) for key in keys)
    return tuple(
        FloorFeed(name=entry.value.name, enabled=entry.value.enabled, condition=entry.value.condition)
        for entry in found
        if entry is not None
    )
