"""The floor from afar: every blade in one word, in the order in which people walk past."""

from __future__ import annotations

import asyncio
import threading
import time

import msgspec
import pytest
from inventory_files import SMALL, rack
from service_scene import ADMIN, MEMBER_OF_ACME, VIEWER, Scene, asked, play

from hostler.drivers.store.memory import MemoryStore
from hostler.engine.inventory import blade_summary as floor_module
from hostler.engine.inventory import export as form_module
from hostler.engine.inventory.blade_summary import BladeSummaries, floor_rack
from hostler.engine.inventory.export import read_document
from hostler.engine.inventory.inventory_file import inventory_in, read_inventory
from hostler.engine.inventory.service import InventoryService
from hostler.engine.view import View
from hostler.errors import Forbidden, Invalid, TooLarge
from hostler.keys.entry import Entry
from hostler.keys.families import ALIVE, MEMBER
from hostler.kit.tasks import Fairness
from hostler.model.inventory import Capacity, Condition, Rack
from hostler.model.inventory_api import FloorRack, FloorView, HardwareSet, InventoryDocument, Standing
from hostler.model.node import Heartbeat, Lifecycle, NodeRecord, OffConfirmation

ROOM = Capacity(cpus=8, memory_mib=16384)


async def _node(scene: Scene, node: str, *, alive: bool = True, **more: object) -> None:
    fields: dict[str, object] = {"node": node, "lifecycle": Lifecycle.ON_DUTY, "capacity": ROOM, "registered_at": 0.0}
    await scene.raw.txn([], [MEMBER.put(NodeRecord(**{**fields, **more}), node=node)])  # type: ignore[arg-type]
    if alive:
        await scene.raw.txn([], [ALIVE.put(Heartbeat(holder="h", started_at=0.0), node=node)])
    await scene.settle()


def test_a_blade_is_told_in_one_word() -> None:
    async def story(scene: Scene) -> None:
        service = InventoryService(scene.store, scene.writer, scene.view)
        racks = {
            "racks": [
                rack("r1", blades={"count": 10}, pdus=[{"name": "P", "ports": 12}], tors=[{"name": "t", "ports": 12}])
            ]
        }
        await service.load(asked(ADMIN), inventory_in(racks))
        off = OffConfirmation(by="ada", at=0.0)
        await _node(scene, "r1-b1")
        await _node(scene, "r1-b2", lifecycle=Lifecycle.DRAINING)
        await _node(scene, "r1-b3", lifecycle=Lifecycle.JOINING)
        await _node(scene, "r1-b4", alive=False)
        await _node(scene, "r1-b5", alive=False, off=off)
        await _node(scene, "r1-b6", lifecycle=Lifecycle.DECOMMISSIONED, alive=False)
        await _node(scene, "r1-b7", refuses="its disk is full")
        await _node(scene, "r1-b8")
        await _node(scene, "r1-b9")
        await service.set_part(asked(ADMIN), "r1", "b8", HardwareSet(enabled=False))
        await service.set_part(asked(ADMIN), "r1", "b9", HardwareSet(condition=Condition.OUT_FOR_REPAIR))
        await _node(scene, "stray")
        floor = await service.floor(VIEWER)
        one = floor.racks[0]
        assert one.blades == tuple(f"b{n}" for n in range(1, 11))
        assert dict(zip(one.blades, one.states, strict=True)) == {
            "b1": Standing.ON_DUTY,
            "b2": Standing.DRAINING,
            "b3": Standing.JOINING,
            "b4": Standing.SILENT,
            "b5": Standing.OFF,
            "b6": Standing.DRAINED,
            "b7": Standing.OUT_OF_USE,
            "b8": Standing.OUT_OF_USE,
            "b9": Standing.OUT_FOR_REPAIR,
            "b10": Standing.NO_NODE,
        }
        assert [(feed.name, feed.enabled) for feed in (*one.pdus, *one.tors)] == [("P", True), ("t", True)]
        assert (floor.nodes, floor.states, floor.vms) == (("stray",), (Standing.ON_DUTY,), (0,))
        await service.set_rack(asked(ADMIN), "r1", HardwareSet(enabled=False))
        await scene.settle()
        floor = await service.floor(VIEWER)
        assert floor.racks[0].states[0] is Standing.OUT_OF_USE
        assert floor.racks[0].objection == "rack r1: not enabled"

    play(story)


def test_racks_come_by_region_zone_and_name_and_only_those_that_are_asked_for() -> None:
    async def story(scene: Scene) -> None:
        service = InventoryService(scene.store, scene.writer, scene.view)
        await service.load(asked(ADMIN), read_inventory(SMALL))
        await scene.settle()
        floor = await service.floor(MEMBER_OF_ACME)
        assert [(each.region, each.zone, each.name) for each in floor.racks] == [
            ("EU", "eu-1", "r1"),
            ("EU", "eu-1", "R2"),
            ("", "", "lone"),
        ]
        some = await service.floor(MEMBER_OF_ACME, racks=("r2", "nothing"))
        assert [each.name for each in some.racks] == ["R2"]

    play(story)


def test_a_rack_is_made_once_for_all_who_ask_and_again_when_it_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def counted(view: View, entry: Entry[Rack]) -> FloorRack:
        made.append(entry.value.name)
        return floor_rack(view, entry)

    monkeypatch.setattr(floor_module, "floor_rack", counted)

    async def story(scene: Scene) -> None:
        service = InventoryService(scene.store, scene.writer, scene.view)
        await service.load(asked(ADMIN), read_inventory(SMALL))
        await scene.settle()
        many = await asyncio.gather(*(service.floor(VIEWER) for _ in range(5)))
        assert sorted(made) == ["R2", "lone", "r1"]
        assert all(one is many[0] for one in many)
        some = await service.floor(VIEWER, racks=("r2", "R2", *["r1"] * 20_000))
        assert [each.name for each in some.racks] == ["r1", "R2"]
        assert len(made) == 3
        with pytest.raises(Invalid, match="201 racks, at most 200 at once"):
            await service.floor(VIEWER, racks=[f"x{n}" for n in range(201)])
        for change, again in (
            (service.set_part(asked(ADMIN), "r1", "b1", HardwareSet(enabled=False)), ["r1"]),
            (_node(scene, "r1-b2"), ["r1"]),
            (_node(scene, "r2-b1", alive=False), ["R2"]),
            (service.set_rack(asked(ADMIN), "lone", HardwareSet(enabled=False)), ["lone"]),
            (service.set_region(asked(ADMIN), "EU", HardwareSet(enabled=False)), ["r1", "R2", "lone"]),
            (_node(scene, "stray"), []),
        ):
            made.clear()
            await change
            await scene.settle()
            floor = await service.floor(VIEWER)
            assert made == again
            expected = InventoryService(scene.store, scene.writer, scene.view)
            assert floor == await expected.floor(VIEWER)

    play(story)


def test_while_the_floor_is_made_others_run_and_who_waits_takes_what_was_begun_after_they_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun = 0
    whole = BladeSummaries._make

    async def counted(floor: BladeSummaries) -> FloorView:
        nonlocal begun
        begun += 1
        return await whole(floor)

    monkeypatch.setattr(BladeSummaries, "_make", counted)

    async def story(scene: Scene) -> None:
        service = InventoryService(scene.store, scene.writer, scene.view)
        await service.load(asked(ADMIN), inventory_in({"racks": [rack(f"r{n}") for n in range(100)]}))
        await scene.settle()
        service._floor._fairness = Fairness(-1.0)  # back after each step
        asking = [asyncio.create_task(service.floor(VIEWER)) for _ in range(3)]
        turns = 0
        while not all(one.done() for one in asking):
            turns += 1
            if turns % 10 == 0:  # it changes all the while
                await scene.raw.txn([], [ALIVE.put(Heartbeat(holder="h", started_at=0.0), node="r1-b1")])
            if turns == 10:
                asking += [asyncio.create_task(service.floor(VIEWER)) for _ in range(20)]
            await asyncio.sleep(0)
        assert turns > 100
        await asyncio.gather(*asking)
        assert begun == 2

    play(story)


async def test_a_text_is_read_as_a_file_is_and_its_mistakes_are_told_by_line() -> None:
    async with MemoryStore() as store:
        service = InventoryService(store, None, None)  # type: ignore[arg-type] # neither writes nor looks
        document = await service.read(ADMIN, SMALL, "dc.yaml")
        read = inventory_in({"regions": list(document.regions), "racks": list(document.racks)})
        assert read.records() == read_inventory(SMALL).records()
        with pytest.raises(Invalid, match=r"dc\.yaml:2: racks\[0\]"):
            await service.read(ADMIN, "racks:\n  - {name: r1}\n", "dc.yaml")
        with pytest.raises(Forbidden):
            await service.read(VIEWER, SMALL, "dc.yaml")


async def test_a_text_beyond_all_bounds_is_sent_to_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    async with MemoryStore() as store:
        service = InventoryService(store, None, None)  # type: ignore[arg-type] # neither writes nor looks
        monkeypatch.setattr(form_module, "MOST_READ", 2)
        few = "racks: [{name: r1, pdus: [{name: p, ports: 3}], tors: [{name: t, ports: 3}], blades: {count: 2}}]"
        assert await service.read(ADMIN, few, "dc.yaml")
        with pytest.raises(Invalid, match="more than 2 blades; for more use: hostler inventory load FILE"):
            await service.read(ADMIN, few.replace("count: 2", "count: 3"), "dc.yaml")
        with pytest.raises(Invalid, match="more than 2 racks; "):
            await service.read(ADMIN, "racks:\n" + "- {name: r1}\n" * 3, "dc.yaml")
        with pytest.raises(TooLarge, match="more than 2048 KiB, .*hostler inventory load"):
            await service.read(ADMIN, few + " " * 2**21, "dc.yaml")


async def test_texts_are_read_one_at_a_time() -> None:
    at_work: list[int] = []
    reading = threading.Lock()

    def slow(text: str, file: str, format_: str) -> InventoryDocument:
        at_work.append(reading.acquire(blocking=False))
        time.sleep(0.002)
        reading.release()
        return read_document(text, file)

    async with MemoryStore() as store:
        service = InventoryService(store, None, None, read=slow)  # type: ignore[arg-type] # neither writes nor looks
        await asyncio.gather(*(service.read(ADMIN, SMALL, "dc.yaml") for _ in range(8)))
    assert at_work == [True] * 8


def test_ten_thousand_blades_are_one_answer_of_moderate_size() -> None:
    async def story(scene: Scene) -> None:
        service = InventoryService(scene.store, scene.writer, scene.view)
        feeds = {"pdus": [{"name": "pdu1", "ports": 41}], "tors": [{"name": "tor1", "ports": 40}]}
        racks = [rack(f"r{n}", blades={"count": 40}, **feeds) for n in range(50)]
        await service.load(asked(ADMIN), inventory_in({"racks": racks}))
        await scene.settle()
        floor = await service.floor(VIEWER)
        assert sum(len(each.blades) for each in floor.racks) == 2_000
        assert len(msgspec.json.encode(floor)) < 500_000 / 5

    play(story)
