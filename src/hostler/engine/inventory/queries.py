"""Queries of the inventory: the records, and the state of the nodes of their blades."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hostler.engine.inventory.blade_summary import BladeSummaries
from hostler.engine.inventory.export import natural
from hostler.engine.placement.request import counted_capacity
from hostler.engine.request import check_limit
from hostler.errors import Damaged, Invalid, NotFound
from hostler.keys.families import BLADE, BLADE_FLOW, MORE_PDUS, MORE_TORS, PDU, RACK, RACK_FLOW, REGION, TOR, ZONE
from hostler.kit.tasks import Fairness
from hostler.model.inventory import Capacity
from hostler.model.inventory_api import (
    BladePage,
    BladeView,
    FeedPage,
    FeedView,
    FloorView,
    RackDetail,
    RackPage,
    RackView,
    RegionPage,
    RegionView,
    ZoneView,
)
from hostler.model.name import fold
from hostler.model.node import Lifecycle

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hostler.engine.request import Caller
    from hostler.engine.view import View
    from hostler.keys.entry import Entry
    from hostler.keys.key import Key
    from hostler.model.inventory import Blade, HardwareFlow, Pdu, Rack, Tor
    from hostler.model.node import NodeRecord
    from hostler.model.vm import VmSpec
    from hostler.ports.store import KeyValue, Store

MACHINES = 20
"""Largest number of machine names per blade."""


class InventoryReader:
    """Reads the inventory; allowed for every caller. Node states come from `view`, which may lag slightly.

    `stale`: the records come from the view, too, so that it works while the store is unreachable.
    """

    def __init__(self, store: Store, view: View) -> None:
        self._store, self._view = store, view
        self._fairness = Fairness()
        self._floor = BladeSummaries(view)

    async def regions(self, caller: Caller, *, stale: bool = False) -> RegionPage:  # noqa: ARG002 - allowed for every caller
        """Return all regions and their zones; there are few."""
        seen = self._view.inventory
        if stale:
            regions, zones = tuple(seen.regions.entries.values()), tuple(seen.zones.entries.values())
            revision = seen.regions.revision
        else:
            listed = await REGION.list(self._store, strict=False)
            regions, revision = listed.entries, listed.revision
            zones = (await ZONE.list(self._store, strict=False, revision=revision)).entries
        racks: dict[tuple[str, str], int] = {}
        for entry in seen.racks.entries.values():
            place = (fold(entry.value.region), fold(entry.value.zone))
            racks[place] = racks.get(place, 0) + 1
        below: dict[str, list[ZoneView]] = {}
        for zone in sorted(zones, key=lambda entry: natural(entry.value.name)):
            number = racks.get((zone.parts["region"], zone.parts["zone"]), 0)
            shown = ZoneView(racks=number, **_own(zone))
            below.setdefault(zone.parts["region"], []).append(shown)
        items = tuple(
            RegionView(zones=tuple(below.get(region.parts["region"], ())), **_own(region))
            for region in sorted(regions, key=lambda entry: natural(entry.value.name))
        )
        return RegionPage(items=items, after=None, revision=revision)

    async def racks(
        self,
        caller: Caller,  # noqa: ARG002 - allowed for every caller
        *,
        limit: int = 100,
        after: str | None = None,
        stale: bool = False,
    ) -> RackPage:
        """Return a page of racks, ordered by name."""
        start = None if after is None else RACK.fill(rack=after)
        entries, last, revision = await self._page(RACK, RACK.prefix(), start, limit, stale)
        flows = await self._flows(stale)
        items: list[RackView] = []
        for entry in entries:
            items.append(self._rack(entry, flows))
            await self._fairness.share()
        return RackPage(items=tuple(items), after=last, revision=revision)

    async def rack(self, caller: Caller, rack: str, *, stale: bool = False) -> RackDetail:
        """Return a rack and its contents."""
        entry = await self._one(RACK, f"rack {rack}", stale, rack=rack)
        blades: list[Entry[Blade]] = []
        if stale:
            found = (
                self._view.inventory.parts.entries.get(BLADE.fill(rack=rack, blade=name)) for name in self._names(rack)
            )
            blades = [blade for blade in found if blade is not None]
        else:
            blades = list((await BLADE.list(self._store, strict=False, rack=rack)).entries)
        blades.sort(key=lambda blade: natural(blade.value.name))
        flows = await self._flows(stale, rack)
        return RackDetail(
            rack=self._rack(entry, await self._flows(stale)),
            pdus=tuple([_feed(feed) for feed in await self._feeds(rack, PDU, MORE_PDUS, stale)]),
            tors=tuple([_feed(feed) for feed in await self._feeds(rack, TOR, MORE_TORS, stale)]),
            blades=tuple([self._blade(caller, blade, flows) for blade in blades]),
            unlisted=tuple(sorted(self._view.inventory.unlisted_in(fold(rack)))),
            revision=entry.mod_revision,
        )

    async def floor(self, caller: Caller, *, racks: Sequence[str] = ()) -> FloorView:  # noqa: ARG002 - allowed for every caller
        """Return the summary of all blades, from memory; `racks`: only these, if they exist, and no other nodes."""
        return await self._floor.some(racks) if racks else await self._floor.whole()

    async def pdus(self, caller: Caller, rack: str, *, stale: bool = False) -> FeedPage:  # noqa: ARG002 - allowed for every caller
        """Return the pdus of a rack, and what they are wired to."""
        return await self._feed_page(rack, PDU, MORE_PDUS, stale)

    async def tors(self, caller: Caller, rack: str, *, stale: bool = False) -> FeedPage:  # noqa: ARG002 - allowed for every caller
        """Return the tors of a rack, and what they are wired to."""
        return await self._feed_page(rack, TOR, MORE_TORS, stale)

    async def blades(
        self, caller: Caller, rack: str, *, limit: int = 100, after: str | None = None, stale: bool = False
    ) -> BladePage:
        """Return a page of the blades of a rack, ordered by key."""
        await self._one(RACK, f"rack {rack}", stale, rack=rack)
        start = None if after is None else BLADE.fill(rack=rack, blade=after)
        entries, last, revision = await self._page(BLADE, BLADE.prefix(rack=rack), start, limit, stale)
        flows = await self._flows(stale, rack)
        items = tuple(self._blade(caller, entry, flows) for entry in entries)
        return BladePage(items=items, after=last, revision=revision)

    async def blade(self, caller: Caller, rack: str, blade: str, *, stale: bool = False) -> BladeView:
        """Return one blade, and its node."""
        entry = await self._one(BLADE, f"blade {rack}/{blade}", stale, rack=rack, blade=blade)
        return self._blade(caller, entry, await self._flows(stale, rack))

    # Internal

    async def _flows(self, stale: bool, rack: str = "") -> Mapping[str, HardwareFlow]:
        """Return the flow of each rack, or of each blade of `rack`, by name. There are few.

        They are unknown while the store is unreachable.
        """
        if stale:
            return {}
        if rack:
            found = await BLADE_FLOW.list(self._store, strict=False, rack=rack)
        else:
            found = await RACK_FLOW.list(self._store, strict=False)
        return {entry.key.rpartition("/")[2]: entry.value for entry in found.entries}

    def _names(self, rack: str) -> tuple[str, ...]:
        return self._view.inventory.blades_of(fold(rack))

    async def _one(self, key: Key[Any], what: str, stale: bool, **parts: str) -> Entry[Any]:
        inventory = self._view.inventory
        if stale:
            entry = (inventory.racks if key is RACK else inventory.parts).entries.get(key.fill(**parts))
        else:
            entry = await key.get(self._store, **parts)  # type: ignore[arg-type]
        if entry is None:
            raise missing(what)
        return entry

    async def _page(
        self, key: Key[Any], prefix: str, start: str | None, limit: int, stale: bool
    ) -> tuple[list[Entry[Any]], str | None, int]:
        """Return the entries, the end of the page if there are more, and the revision."""
        check_limit(limit)
        if not stale:
            page = await self._store.range(prefix, after=start, limit=limit)
            entries = [entry for kv in page.items if (entry := _readable(key, kv)) is not None]
            last, revision = page.items[-1].key if page.more else None, page.revision
        else:
            mirror = self._view.inventory.racks if key is RACK else self._view.inventory.parts
            keys = sorted(
                each for each in mirror.entries if each.startswith(prefix) and (start is None or each > start)
            )
            entries = [mirror.entries[each] for each in keys[:limit]]
            last, revision = keys[limit - 1] if len(keys) > limit else None, mirror.revision
        return entries, None if last is None else last.rpartition("/")[2], revision

    async def _feed_page(self, rack: str, first: Key[Any], more: Key[Any], stale: bool) -> FeedPage:
        entry = await self._one(RACK, f"rack {rack}", stale, rack=rack)
        items = tuple([_feed(feed) for feed in await self._feeds(rack, first, more, stale)])
        return FeedPage(items=items, after=None, revision=max([entry.mod_revision, *(item.revision for item in items)]))

    async def _feeds(self, rack: str, first: Key[Any], more: Key[Any], stale: bool) -> list[Entry[Any]]:
        if stale:
            keys = (first.fill(rack=rack), more.fill(rack=rack, n=2))
            found = [self._view.inventory.parts.entries.get(key) for key in keys]
        else:
            found = [await first.get(self._store, rack=rack), await more.get(self._store, rack=rack, n=2)]
        return [entry for entry in found if entry is not None]

    def _rack(self, entry: Entry[Rack], flows: Mapping[str, HardwareFlow]) -> RackView:
        record, rack, view = entry.value, entry.parts["rack"], self._view
        names = view.inventory.blades_of(rack)
        found = ((node := f"{rack}-{name}", view.members.get(node=node)) for name in names)
        nodes = {node: member.value for node, member in found if member is not None}
        return RackView(
            region=record.region,
            zone=record.zone,
            location=record.location,
            objection=view.inventory.above(record),
            pdus=view.inventory.count_feeds(rack, PDU, MORE_PDUS),
            tors=view.inventory.count_feeds(rack, TOR, MORE_TORS),
            blades=len(names),
            nodes=len(nodes),
            on_duty=sum(self._ready(node, record) for node, record in nodes.items()),
            used=_used(command.value.spec for node in nodes for command in view.commands_of(node)),
            capacity=_total(self._capacity(node, record) for node, record in nodes.items()),
            vms=sum(view.count_on(node) for node in nodes),
            flow=flows.get(rack),
            **_own(entry),
        )

    def _capacity(self, node: str, record: NodeRecord) -> Capacity:
        """Return the smaller of its agent's and the inventory's capacity."""
        return counted_capacity(record, self._view.inventory.capacity(node))

    def _ready(self, node: str, record: NodeRecord) -> bool:
        if record.lifecycle is not Lifecycle.ON_DUTY or self._view.alive.get(node=node) is None:
            return False
        return not self._view.inventory.objection(node)

    def _blade(self, caller: Caller, entry: Entry[Blade], flows: Mapping[str, HardwareFlow]) -> BladeView:
        record, view = entry.value, self._view
        rack = entry.parts["rack"]
        node = f"{rack}-{entry.parts['blade']}"
        wiring = view.inventory.wiring(node)
        member = view.members.get(node=node)
        commands = [command.value for command in view.commands_of(node)]
        seen = sorted(
            f"{each.org}/{each.project}/{each.name or each.vm}"
            for each in commands
            if caller.sees(each.org, each.project)
        )
        return BladeView(
            node=node,
            capacity=record.capacity,
            labels=record.labels,
            pdus=() if wiring is None else wiring.pdus,
            tors=() if wiring is None else wiring.tors,
            objection=view.inventory.objection(node),
            lifecycle=None if member is None else member.value.lifecycle,
            alive=view.alive.get(node=node) is not None,
            used=_used(each.spec for each in commands),
            vms=len(commands),
            machines=tuple(seen[:MACHINES]),
            flow=flows.get(entry.parts["blade"]),
            **_own(entry),
        )


def missing(what: str) -> NotFound:
    """Return the error for missing hardware."""
    return NotFound(f"{what}: not in the inventory; look at the list of racks")


def _own(entry: Entry[Any]) -> dict[str, Any]:
    record = entry.value
    own = {"name": record.name, "enabled": record.enabled, "condition": record.condition}
    return {**own, "revision": entry.mod_revision}


def _feed(entry: Entry[Pdu] | Entry[Tor]) -> FeedView:
    return FeedView(ports=entry.value.ports, **_own(entry))


def _used(specs: Iterable[VmSpec]) -> Capacity:
    cpus = memory = disk = 0
    for spec in specs:
        cpus, memory, disk = cpus + spec.cpus, memory + spec.memory_mib, disk + spec.disk_gib
    return Capacity(cpus=cpus, memory_mib=memory, disk_gib=disk)


def _total(capacities: Iterable[Capacity]) -> Capacity:
    found = list(capacities)
    return Capacity(
        cpus=sum(each.cpus for each in found),
        memory_mib=sum(each.memory_mib for each in found),
        disk_gib=sum(each.disk_gib for each in found),
        network_mbps=sum(each.network_mbps for each in found),
    )


def _readable(key: Key[Any], kv: KeyValue) -> Entry[Any] | None:
    try:
        return key.entry(kv)
    except (Damaged, Invalid):
        return None  # the caches count it, and `hostler doctor` reports it
