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
    from hostler.client.transport import HttpTransport
    from hostler.model.inventory_api import HardwareSet


class Racks:
    """Racks, their parts, and the state of their nodes."""

    def __init__(self, wire: HttpTransport) -> None:
        self._wire = wire

    def list(
        self, *, limit: int | None = None, after: str | None = None, stale: bool = False
    ) -> Pages[RackPage, RackView]:
        """List the racks: `await` a page, or `async for` over all."""
        return self._wire.pages(RackPage, "racks", limit=limit, after=after, stale=stale)

    async def floor(self, racks: Sequence[str] = ()) -> FloorView:
        """Return a summary of all racks, or of these racks: every blade in one word."""
        return await self._wire.read(FloorView, "floor", query={"racks": "/".join(racks) or None})

    async def get(self, rack: str, *, stale: bool = False) -> RackDetail:
        """Return a rack with its parts."""
        return await self._wire.read(RackDetail, "racks", rack, stale=stale)

    async def pdu(self, rack: str, *, stale: bool = False) -> FeedView:
        """Return the first pdu of the rack."""
        return await self._wire.read(FeedView, "racks", rack, "pdu", stale=stale)

    async def tor(self, rack: str, *, stale: bool = False) -> FeedView:
        """Return the first tor of the rack."""
        return await self._wire.read(FeedView, "racks", rack, "tor", stale=stale)

    async def pdus(self, rack: str, *, stale: bool = False) -> FeedPage:
        """List the pdus of the rack, and what they are wired to."""
        return await self._wire.read(FeedPage, "racks", rack, "pdus", stale=stale)

    async def tors(self, rack: str, *, stale: bool = False) -> FeedPage:
        """List the tors of the rack, and what they are wired to."""
        return await self._wire.read(FeedPage, "racks", rack, "tors", stale=stale)

    def blades(
        self, rack: str, *, limit: int | None = None, after: str | None = None, stale: bool = False
    ) -> Pages[BladePage, BladeView]:
        """List the blades of a rack: `await` a page, or `async for` over all."""
        return self._wire.pages(BladePage, "racks", rack, "blades", limit=limit, after=after, stale=stale)

    async def blade(self, rack: str, blade: str, *, stale: bool = False) -> BladeView:
        """Return a blade with its node."""
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

    async def _part(  # noqa: PLR0917 - the path, and the options of every write
        self, rack: str, kind: str, name: str, change: HardwareSet, if_match: int | None, key: str | None
    ) -> HardwareView:
        path = ("racks", rack, kind, name)
        return await self._wire.write("PATCH", HardwareView, *path, body=change, if_match=if_match, key=key)


class Inventory:
    """The whole inventory, and the levels above racks."""

    def __init__(self, wire: HttpTransport) -> None:
        self._wire = wire

    async def get(self, *, stale: bool = False) -> InventoryShown:
        """Return the current inventory in the form of a file."""
        return await self._wire.read(InventoryShown, "inventory", stale=stale)

    async def read(
        self, text: str, file: str = "inventory", *, format_: Literal["hostler", "cloudchamber"] = "hostler"
    ) -> InventoryDocument:
        """Parse the text of a file; nothing is written. Invalid: the file has mistakes, listed line by line."""
        body = InventoryText(text=text, file=file, format=format_)
        return await self._wire.write("POST", InventoryDocument, "inventory", "read", body=body, repeat=False)

    async def plan(self, document: InventoryDocument) -> InventoryPlan:
        """Return what a load would add, change and remove; nothing is written."""
        return await self._wire.write("POST", InventoryPlan, "inventory", "plan", body=document, repeat=False)

    async def load(self, document: InventoryDocument, *, key: str | None = None) -> InventoryLoaded:
        """Replace the inventory. Stale: the plan that was `agreed` is no longer current."""
        return await self._wire.write("PUT", InventoryLoaded, "inventory", body=document, key=key)

    async def regions(self, *, stale: bool = False) -> RegionPage:
        """List all regions and their zones."""
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
