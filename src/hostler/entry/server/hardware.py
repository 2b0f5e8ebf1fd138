"""Routes of nodes and of the inventory: regions, racks and their parts, and the whole inventory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from hostler.engine.inventory.streaming_json import decode_document
from hostler.entry.server.route import Answer, Asked, routes_of, write_answer
from hostler.errors import NotFound
from hostler.model.resources.hardware import InventoryApi, NodeApi

if TYPE_CHECKING:
    from hostler.engine.inventory.service import InventoryService
    from hostler.model.inventory_api import FeedPage, InventoryDocument, InventoryText


def _service(asked: Asked) -> InventoryService:
    return asked.services.inventory


async def first_pdu(asked: Asked) -> Answer:
    return _first(await _service(asked).pdus(asked.caller, asked.parts["rack"], stale=asked.stale), asked, "pdu")


async def first_tor(asked: Asked) -> Answer:
    return _first(await _service(asked).tors(asked.caller, asked.parts["rack"], stale=asked.stale), asked, "tor")


def _first(page: FeedPage, asked: Asked, what: str) -> Answer:
    if not page.items:
        raise NotFound(f"rack {asked.parts['rack']}: no {what}; load an inventory that has one")
    return Answer(page.items[0])


async def set_part(asked: Asked) -> Answer:
    """Enable or disable a blade, pdu or tor; the last part of the path says which."""
    level, name = next(part for part in asked.parts.items() if part[0] != "rack")
    done = await _service(asked).set_part(asked.request, asked.parts["rack"], name, asked.body, level=level)
    return write_answer(done)


async def summary(asked: Asked) -> Answer:
    """Return one word for every blade."""
    racks = [name for name in (asked.query["racks"] or "").split("/") if name]
    view = await _service(asked).floor(asked.caller, racks=racks)
    return Answer(msgspec.structs.replace(view, simulation=asked.services.sim is not None))


async def read_file(asked: Asked) -> Answer:
    body: InventoryText = asked.body
    return Answer(await _service(asked).read(asked.caller, body.text, body.file, body.format))


async def plan(asked: Asked) -> Answer:
    service = _service(asked)
    return Answer(await service.plan(asked.caller, await service.taken(asked.caller, asked.body)))


async def load(asked: Asked) -> Answer:
    body: InventoryDocument = asked.body
    service = _service(asked)
    inventory = await service.taken(asked.caller, body)
    return write_answer(await service.load(asked.request, inventory, agreed=body.agreed))


NODE_ROUTES = routes_of(NodeApi, "nodes")
INVENTORY_ROUTES = routes_of(
    InventoryApi,
    "inventory",
    {"plan": {"aside": decode_document}, "load": {"aside": decode_document}},
    pdu=first_pdu,
    tor=first_tor,
    set_pdu=set_part,
    set_tor=set_part,
    set_blade=set_part,
    floor=summary,
    read=read_file,
    plan=plan,
    load=load,
)
