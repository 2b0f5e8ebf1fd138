"""`client.nodes`, `client.racks` and `client.inventory`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from hostler.client.resource import Resource
from hostler.model.inventory_api import Drain, InventoryText
from hostler.model.resources.hardware import InventoryApi, NodeApi

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Unpack

    from hostler.client.resource import Keyed, Pages, StalePaging, WriteOptions
    from hostler.model.inventory_api import (
        BladePage,
        BladeView,
        BrakeView,
        CurrentInventory,
        FeedPage,
        FeedView,
        FloorView,
        HardwareSet,
        HardwareView,
        InventoryDocument,
        InventoryLoaded,
        InventoryPlan,
        NodePage,
        NodeView,
        RackDetail,
        RackPage,
        RackView,
        RegionPage,
    )


class Nodes(Resource):
    """Nodes, on which machines run."""

    async def get(self, node: str, *, stale: bool = False) -> NodeView:
        """Return a node with its usage."""
        return await self._wire.call(NodeApi.get, node, stale=stale)

    def list(self, **options: Unpack[StalePaging]) -> Pages[NodePage, NodeView]:
        """List the nodes: `await` a page, or `async for` over all."""
        return self._wire.list(NodeApi.list, **options)

    async def drain(self, node: str, drain: Drain | None = None, **options: Unpack[WriteOptions]) -> NodeView:
        """Empty the node: its machines are moved, or stopped, one by one."""
        return await self._wire.call(NodeApi.drain, node, body=drain or Drain(), **options)

    async def activate(self, node: str, **options: Unpack[WriteOptions]) -> NodeView:
        """Return a drained node to service."""
        return await self._wire.call(NodeApi.activate, node, **options)

    async def confirm_off(self, node: str, **options: Unpack[WriteOptions]) -> NodeView:
        """Confirm that an unreachable node is off: its machines are started elsewhere."""
        return await self._wire.call(NodeApi.confirm_off, node, **options)

    async def brake(self) -> BrakeView:
        """Return whether the brake on mass failure holds."""
        return await self._wire.call(NodeApi.brake)

    async def release_brake(self, **options: Unpack[WriteOptions]) -> BrakeView:
        """Allow fencing of the nodes that hold the brake, one at a time."""
        return await self._wire.call(NodeApi.release_brake, **options)

    async def forget(self, node: str, *, forget_retained: bool = False, **options: Unpack[WriteOptions]) -> None:
        """Remove the record of a node that is decommissioned, or unreachable and empty.

        `forget_retained`: also remove the records of its retained machines. Their disks stay in the node's folder.
        """
        query = {"forget_retained": forget_retained or None}
        await self._wire.send(NodeApi.forget, node, query=query, **options)


class Racks(Resource):
    """Racks, their parts, and the state of their nodes."""

    def list(self, **options: Unpack[StalePaging]) -> Pages[RackPage, RackView]:
        """List the racks: `await` a page, or `async for` over all."""
        return self._wire.list(InventoryApi.racks, **options)

    async def summary(self, racks: Sequence[str] = ()) -> FloorView:
        """Return a summary of all racks, or of these racks: every blade in one word."""
        return await self._wire.call(InventoryApi.floor, query={"racks": "/".join(racks) or None})

    async def floor(self, racks: Sequence[str] = ()) -> FloorView:
        """Return the same as `summary`, of which it is the former name (docs/deprecations.md)."""
        return await self.summary(racks)

    async def get(self, rack: str, *, stale: bool = False) -> RackDetail:
        """Return a rack with its parts."""
        return await self._wire.call(InventoryApi.rack, rack, stale=stale)

    async def pdu(self, rack: str, *, stale: bool = False) -> FeedView:
        """Return the first pdu of the rack."""
        return await self._wire.call(InventoryApi.pdu, rack, stale=stale)

    async def tor(self, rack: str, *, stale: bool = False) -> FeedView:
        """Return the first tor of the rack."""
        return await self._wire.call(InventoryApi.tor, rack, stale=stale)

    async def pdus(self, rack: str, *, stale: bool = False) -> FeedPage:
        """List the pdus of the rack, and what they are wired to."""
        return await self._wire.call(InventoryApi.pdus, rack, stale=stale)

    async def tors(self, rack: str, *, stale: bool = False) -> FeedPage:
        """List the tors of the rack, and what they are wired to."""
        return await self._wire.call(InventoryApi.tors, rack, stale=stale)

    def blades(self, rack: str, **options: Unpack[StalePaging]) -> Pages[BladePage, BladeView]:
        """List the blades of a rack: `await` a page, or `async for` over all."""
        return self._wire.list(InventoryApi.blades, rack, **options)

    async def blade(self, rack: str, blade: str, *, stale: bool = False) -> BladeView:
        """Return a blade with its node."""
        return await self._wire.call(InventoryApi.blade, rack, blade, stale=stale)

    async def set(self, rack: str, change: HardwareSet, **options: Unpack[WriteOptions]) -> HardwareView:
        """Take a rack out of use, or back."""
        return await self._wire.call(InventoryApi.set_rack, rack, body=change, **options)

    async def set_blade(
        self, rack: str, blade: str, change: HardwareSet, **options: Unpack[WriteOptions]
    ) -> HardwareView:
        """Take a blade out of use, or back."""
        return await self._wire.call(InventoryApi.set_blade, rack, blade, body=change, **options)

    async def set_pdu(self, rack: str, pdu: str, change: HardwareSet, **options: Unpack[WriteOptions]) -> HardwareView:
        """Take a pdu out of use, or back."""
        return await self._wire.call(InventoryApi.set_pdu, rack, pdu, body=change, **options)

    async def set_tor(self, rack: str, tor: str, change: HardwareSet, **options: Unpack[WriteOptions]) -> HardwareView:
        """Take a tor out of use, or back."""
        return await self._wire.call(InventoryApi.set_tor, rack, tor, body=change, **options)


class Inventory(Resource):
    """The whole inventory, and the levels above racks."""

    async def get(self, *, stale: bool = False) -> CurrentInventory:
        """Return the current inventory in the form of a file."""
        return await self._wire.call(InventoryApi.show, stale=stale)

    async def read(
        self, text: str, file: str = "inventory", *, format_: Literal["hostler", "cloudchamber"] = "hostler"
    ) -> InventoryDocument:
        """Parse the text of a file; nothing is written. Invalid: the file has mistakes, listed line by line."""
        body = InventoryText(text=text, file=file, format=format_)
        return await self._wire.call(InventoryApi.read, body=body)

    async def plan(self, document: InventoryDocument) -> InventoryPlan:
        """Return what a load would add, change and remove; nothing is written."""
        return await self._wire.call(InventoryApi.plan, body=document)

    async def load(self, document: InventoryDocument, **options: Unpack[Keyed]) -> InventoryLoaded:
        """Replace the inventory. Stale: the plan that was `agreed` is no longer current."""
        return await self._wire.call(InventoryApi.load, body=document, **options)

    async def regions(self, *, stale: bool = False) -> RegionPage:
        """List all regions and their zones."""
        return await self._wire.call(InventoryApi.regions, stale=stale)

    async def set_region(self, region: str, change: HardwareSet, **options: Unpack[WriteOptions]) -> HardwareView:
        """Take a region out of use, or back."""
        return await self._wire.call(InventoryApi.set_region, region, body=change, **options)

    async def set_zone(
        self, region: str, zone: str, change: HardwareSet, **options: Unpack[WriteOptions]
    ) -> HardwareView:
        """Take a zone out of use, or back."""
        return await self._wire.call(InventoryApi.set_zone, region, zone, body=change, **options)
