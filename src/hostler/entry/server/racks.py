"""Routes of the inventory: regions, racks and their parts, and the whole inventory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from hostler.engine.inventory.streaming_json import decode_document
from hostler.entry.server.response import written
from hostler.entry.server.route import AFTER, LIMIT, STALE, Access, Answer, Asked, Parameter, Route
from hostler.errors import NotFound
from hostler.model.inventory_api import (
    BladePage,
    BladeView,
    FeedPage,
    FeedView,
    FloorView,
    HardwareSet,
    HardwareView,
    InventoryDocument,
    InventoryLoaded,
    InventoryPlan,
    InventoryShown,
    InventoryText,
    RackDetail,
    RackPage,
    RegionPage,
)

if TYPE_CHECKING:
    from hostler.engine.inventory.service import InventoryService
    from hostler.entry.server.route import Handler
    from hostler.model.record import Record

INVENTORY = "/v1/inventory"
FLOOR = "/v1/floor"
REGIONS = "/v1/regions"
RACKS = "/v1/racks"
ONE = RACKS + "/{rack}"
LARGEST = 16 * 1024 * 1024
"""Largest size of an inventory in bytes."""
LARGEST_TEXT = 6 * 1024 * 1024
"""Largest size in bytes of a file that is only parsed: the limit of the parser, plus the overhead of JSON."""


def _service(asked: Asked) -> InventoryService:
    return asked.services.inventory


async def racks_listed(asked: Asked) -> Answer:
    page = await _service(asked).racks(asked.caller, limit=asked.limit, after=asked.after, stale=asked.stale)
    return Answer(page)


async def rack_shown(asked: Asked) -> Answer:
    return Answer(await _service(asked).rack(asked.caller, asked.parts["rack"], stale=asked.stale))


async def pdus_listed(asked: Asked) -> Answer:
    return Answer(await _service(asked).pdus(asked.caller, asked.parts["rack"], stale=asked.stale))


async def tors_listed(asked: Asked) -> Answer:
    return Answer(await _service(asked).tors(asked.caller, asked.parts["rack"], stale=asked.stale))


async def pdu_shown(asked: Asked) -> Answer:
    return _first(await _service(asked).pdus(asked.caller, asked.parts["rack"], stale=asked.stale), asked, "pdu")


async def tor_shown(asked: Asked) -> Answer:
    return _first(await _service(asked).tors(asked.caller, asked.parts["rack"], stale=asked.stale), asked, "tor")


def _first(page: FeedPage, asked: Asked, what: str) -> Answer:
    if not page.items:
        raise NotFound(f"rack {asked.parts['rack']}: no {what}; load an inventory that has one")
    return Answer(page.items[0])


async def blades_listed(asked: Asked) -> Answer:
    page = await _service(asked).blades(
        asked.caller, asked.parts["rack"], limit=asked.limit, after=asked.after, stale=asked.stale
    )
    return Answer(page)


async def blade_shown(asked: Asked) -> Answer:
    parts = asked.parts
    return Answer(await _service(asked).blade(asked.caller, parts["rack"], parts["blade"], stale=asked.stale))


async def regions_listed(asked: Asked) -> Answer:
    return Answer(await _service(asked).regions(asked.caller, stale=asked.stale))


async def region_set(asked: Asked) -> Answer:
    return written(await _service(asked).set_region(asked.request, asked.parts["region"], asked.body))


async def zone_set(asked: Asked) -> Answer:
    parts = asked.parts
    return written(await _service(asked).set_zone(asked.request, parts["region"], parts["zone"], asked.body))


async def rack_set(asked: Asked) -> Answer:
    return written(await _service(asked).set_rack(asked.request, asked.parts["rack"], asked.body))


async def part_set(asked: Asked) -> Answer:
    """Enable or disable a blade, pdu or tor; the last part of the path says which."""
    level, name = next(part for part in asked.parts.items() if part[0] != "rack")
    done = await _service(asked).set_part(asked.request, asked.parts["rack"], name, asked.body, level=level)
    return written(done)


async def floor_shown(asked: Asked) -> Answer:
    """Return one word for every blade."""
    racks = [name for name in (asked.query["racks"] or "").split("/") if name]
    view = await _service(asked).floor(asked.caller, racks=racks)
    return Answer(msgspec.structs.replace(view, simulation=asked.services.sim is not None))


async def read(asked: Asked) -> Answer:
    body: InventoryText = asked.body
    return Answer(await _service(asked).read(asked.caller, body.text, body.file, body.format))


async def shown(asked: Asked) -> Answer:
    return Answer(await _service(asked).show(asked.caller, stale=asked.stale))


async def planned(asked: Asked) -> Answer:
    service = _service(asked)
    return Answer(await service.plan(asked.caller, await service.taken(asked.caller, asked.body)))


async def loaded(asked: Asked) -> Answer:
    body: InventoryDocument = asked.body
    service = _service(asked)
    inventory = await service.taken(asked.caller, body)
    return written(await service.load(asked.request, inventory, agreed=body.agreed))


def _look(path: str, name: str, summary: str, handler: Handler, answer: type[Record], *query: Parameter) -> Route:
    return Route(
        method="GET",
        path=path,
        name=name,
        summary=summary,
        handler=handler,
        access=Access.LOGGED_IN,
        answer=answer,
        query=(*query, STALE),
    )


def _change(path: str, what: str, handler: Handler) -> Route:
    return Route(
        method="PATCH",
        path=path,
        name=f"{what}.set",
        summary=f"Enable or disable a {what}, and set its condition",
        handler=handler,
        access="modify_inventory",
        body=HardwareSet,
        answer=HardwareView,
        conditional=True,
        about="Nodes below it get new machines only while it is enabled and operational; running machines stay.",
    )


ROUTES: tuple[Route, ...] = (
    _look(RACKS, "rack.list", "All racks", racks_listed, RackPage, LIMIT, AFTER),
    _look(ONE, "rack.get", "A rack with its parts and the state of its nodes", rack_shown, RackDetail),
    _look(f"{ONE}/pdu", "rack.pdu", "The first pdu of a rack", pdu_shown, FeedView),
    _look(f"{ONE}/pdus", "rack.pdus", "The pdus of a rack and their wiring", pdus_listed, FeedPage),
    _look(f"{ONE}/tor", "rack.tor", "The first tor of a rack", tor_shown, FeedView),
    _look(f"{ONE}/tors", "rack.tors", "The tors of a rack and their wiring", tors_listed, FeedPage),
    _look(f"{ONE}/blades", "rack.blades", "The blades of a rack", blades_listed, BladePage, LIMIT, AFTER),
    _look(f"{ONE}/blades/{{blade}}", "blade.get", "A blade and its node", blade_shown, BladeView),
    _look(REGIONS, "region.list", "All regions and their zones", regions_listed, RegionPage),
    _change(f"{REGIONS}/{{region}}", "region", region_set),
    _change(f"{REGIONS}/{{region}}/zones/{{zone}}", "zone", zone_set),
    _change(ONE, "rack", rack_set),
    _change(f"{ONE}/pdus/{{pdu}}", "pdu", part_set),
    _change(f"{ONE}/tors/{{tor}}", "tor", part_set),
    _change(f"{ONE}/blades/{{blade}}", "blade", part_set),
    _look(INVENTORY, "inventory.get", "The whole inventory, as in an inventory file", shown, InventoryShown),
    Route(
        method="GET",
        path=FLOOR,
        name="floor.get",
        summary="Summary of all racks: one word for every blade",
        handler=floor_shown,
        access=Access.LOGGED_IN,
        answer=FloorView,
        query=(Parameter("racks", "Only these, at most 200, separated by `/`.", example="r1/r2"),),
        about="Answered from memory, which lags slightly behind the store.",
    ),
    Route(
        method="POST",
        path=f"{INVENTORY}/read",
        name="inventory.read",
        summary="Parse the text of an inventory file",
        handler=read,
        access="modify_inventory",
        body=InventoryText,
        answer=InventoryDocument,
        idempotent=False,
        max_body=LARGEST_TEXT,
        about="Nothing is written. YAML or JSON, as in docs/inventory.md; every mistake is reported with its line."
        " `format`: `cloudchamber` imports a file of CloudChamber; `notes` say what the import left out.",
    ),
    Route(
        method="POST",
        path=f"{INVENTORY}/plan",
        name="inventory.plan",
        summary="Plan a load: what it would add, change and remove",
        handler=planned,
        access="modify_inventory",
        body=InventoryDocument,
        answer=InventoryPlan,
        idempotent=False,
        max_body=LARGEST,
        aside=decode_document,
        about="Nothing is written. The document is that of docs/inventory.md, in JSON.",
    ),
    Route(
        method="PUT",
        path=INVENTORY,
        name="inventory.load",
        summary="Replace the inventory with a document",
        handler=loaded,
        access="modify_inventory",
        body=InventoryDocument,
        answer=InventoryLoaded,
        errors=(412,),
        max_body=LARGEST,
        aside=decode_document,
        about="What it does not contain is removed, unless the node has machines. Loading it again writes nothing.",
    ),
)
