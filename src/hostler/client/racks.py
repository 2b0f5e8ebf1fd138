"""`client.racks` and `client.inventory`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from hostler.model.inventory_api import (
    BladePage,
    BladeView,
    FeedPage,
    FeedView,
    FloorView,
    HardwareView,
    InventoryDocument,
    InventoryLoaded,
    InventoryPlan,
    InventoryShown,
    InventoryText,
    RackDetail,
    RackPage,
    RackView,
    RegionPage,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostler.client.pages import Pages
    from hostler.client.transport import Wire
    from hostler.model.inventory_api import HardwareSet


class Racks:
    """What stands in the datacenter, rack by rack, and what its nodes do."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def list(
        self, *, limit: int | None = None, after: str | None = None, stale: bool = False
    ) -> Pages[RackPage, RackView]:
        """`await` a page, or `async for` over every rack."""
        return self._wire.pages(RackPage, "racks", limit=limit, after=after, stale=stale)

    async def floor(self, racks: Sequence[str] = ()) -> FloorView:
        """The whole floor from afar, every blade in one word; or only these racks."""
        return await self._wire.read(FloorView, "floor", query={"racks": "/".join(racks) or None})

    async def get(self, rack: str, *, stale: bool = False) -> RackDetail:
        """A rack and all that is in it."""
        return await self._wire.read(RackDetail, "racks", rack, stale=stale)

    async def pdu(self, rack: str, *, stale: bool = False) -> FeedView:
        """Its first pdu."""
        return await self._wire.read(FeedView, "racks", rack, "pdu", stale=stale)

    async def tor(self, rack: str, *, stale: bool = False) -> FeedView:
        """Its first tor."""
        return await self._wire.read(FeedView, "racks", rack, "tor", stale=stale)

    async def pdus(self, rack: str, *, stale: bool = False) -> FeedPage:
        """Its pdus, and what they are wired to."""
        return await self._wire.read(FeedPage, "racks", rack, "pdus", stale=stale)

    async def tors(self, rack: str, *, stale: bool = False) -> FeedPage:
        """Its tors, and what they are wired to."""
        return await self._wire.read(FeedPage, "racks", rack, "tors", stale=stale)

    def blades(
        self, rack: str, *, limit: int | None = None, after: str | None = None, stale: bool = False
    ) -> Pages[BladePage, BladeView]:
        """`await` a page, or `async for` over every blade of a rack."""
        return self._wire.pages(BladePage, "racks", rack, "blades", limit=limit, after=after, stale=stale)

    async def blade(self, rack: str, blade: str, *, stale: bool = False) -> BladeView:
        """A blade, and the node that it is."""
        return await self._wire.read(BladeView, "racks", rack, "blades", blade, stale=stale)

    async def set(
        self, rack: str, change: HardwareSet, *, if_match: int | None = None, key: str | None = None
    ) -> HardwareView:
        """Take a rack out of use, or back."""
        return await self._wire.write("PATCH", HardwareView, "racks", rack, body=change, if_match=if_match, key=key)

    async def set_blade(
        self, rack: str, blade: str, change: HardwareSet, *, if_match: int | None = None, key: str | None = None
    ) -> HardwareView:
        """Take a blade out of use, or back."""
        return await self._part(rack, "blades", blade, change, if_match, key)

    async def set_pdu(
        self, rack: str, pdu: str, change: HardwareSet, *, if_match: int | None = None, key: str | None = None
    ) -> HardwareView:
        """Take a pdu out of use, or back."""
        return await self._part(rack, "pdus", pdu, change, if_match, key)

    async def set_tor(
        self, rack: str, tor: str, change: HardwareSet, *, if_match: int | None = None, key: str | None = None
    ) -> HardwareView:
        """Take a tor out of use, or back."""
        return await self._part(rack, "tors", tor, change, if_match, key)

    async def _part(  # noqa: PLR0917 - the path, and what every write has
        self, rack: str, kind: str, name: str, change: HardwareSet, if_match: int | None, key: str | None
    ) -> HardwareView:
        path = ("racks", rack, kind, name)
        return await self._wire.write("PATCH", HardwareView, *path, body=change, if_match=if_match, key=key)


class Inventory:
    """All of it, and the levels above racks."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def get(self, *, stale: bool = False) -> InventoryShown:
        """The present inventory, as a file could have it."""
        return await self._wire.read(InventoryShown, "inventory", stale=stale)

    async def read(
        self, text: str, file: str = "inventory", *, format_: Literal["hostler", "cloudchamber"] = "hostler"
    ) -> InventoryDocument:
        """What the text of a file says; nothing is written. Invalid: something is wrong, line by line."""
        body = InventoryText(text=text, file=file, format=format_)
        return await self._wire.write("POST", InventoryDocument, "inventory", "read", body=body, repeat=False)

    async def plan(self, document: InventoryDocument) -> InventoryPlan:
        """What a load would add, change and remove; nothing is written."""
        return await self._wire.write("POST", InventoryPlan, "inventory", "plan", body=document, repeat=False)

    async def load(self, document: InventoryDocument, *, key: str | None = None) -> InventoryLoaded:
        """Make it the inventory. Stale: the plan that was `agreed` would be another one by now."""
        return await self._wire.write("PUT", InventoryLoaded, "inventory", body=document, key=key)

    async def regions(self, *, stale: bool = False) -> RegionPage:
        """All regions and their zones."""
        return await self._wire.read(RegionPage, "regions", stale=stale)

    async def set_region(
        self, region: str, change: HardwareSet, *, if_match: int | None = None, key: str | None = None
    ) -> HardwareView:
        """Take a region out of use, or back."""
        return await self._wire.write("PATCH", HardwareView, "regions", region, body=change, if_match=if_match, key=key)

    async def set_zone(
        self, region: str, zone: str, change: HardwareSet, *, if_match: int | None = None, key: str | None = None
    ) -> HardwareView:
        """Take a zone out of use, or back."""
        path = ("regions", region, "zones", zone)
        return await self._wire.write("PATCH", HardwareView, *path, body=change, if_match=if_match, key=key)
