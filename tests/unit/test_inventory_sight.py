"""What the inventory says of a node: kept up, told to whom it concerns, and obeyed by placement."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from controller_world import World
from controller_world import play as play_world
from inventory_files import SMALL, rack
from service_scene import Scene, play

from hostler.engine.controllers.allocations import Allocations
from hostler.engine.inventory.inventory_file import inventory_in, read_inventory
from hostler.engine.inventory.topology_cache import UNLISTED, Wiring
from hostler.engine.placement import node_state
from hostler.errors import Invalid
from hostler.keys.families import BLADE, IN_RACKS, PDU, RACK, REGION, TOR, ZONE
from hostler.model.inventory import Capacity, Condition, Hardware
from hostler.model.node import Lifecycle, NodeRecord
from hostler.model.vm import MachineState
from hostler.ports.store import Store

LEVELS = {
    "region": REGION.fill(region="eu"),
    "zone": ZONE.fill(region="eu", zone="eu-1"),
    "rack": RACK.fill(rack="r1"),
    "blade": BLADE.fill(rack="r1", blade="b1"),
    "pdu": PDU.fill(rack="r1"),
    "tor": TOR.fill(rack="r1"),
}
ONE_RACK: dict[str, Any] = {"regions": [{"name": "EU", "zones": [{"name": "eu-1", "racks": [rack()]}]}]}


async def load(store: Store, records: dict[str, Hardware]) -> None:
    for key, record in records.items():
        await store.put(key, record.encode())


async def change(store: Store, key: str, **changes: Any) -> None:
    found = await store.get(key)
    assert found is not None
    kind = {REGION: "region", ZONE: "zone", RACK: "rack"}
    family = next((each for each in (*kind, *IN_RACKS.keys) if each.match(key) is not None), None)
    assert family is not None
    await store.put(key, msgspec.structs.replace(family.decode(found.value), **changes).encode())


def test_a_node_is_as_good_as_all_that_stands_above_it() -> None:
    async def story(scene: Scene) -> None:
        inventory = scene.view.inventory
        assert inventory.objection("r1-b1") == ""
        await load(scene.raw, read_inventory(SMALL).records())
        await scene.settle()
        assert {node: inventory.objection(node) for node in ("r1-b1", "r2-a", "r2-big", "lone-1", "else-1", "odd")} == {
            "r1-b1": "",
            "r2-a": "blade R2/a: burn_in",
            "r2-big": "blade R2/big: not enabled",
            "lone-1": "",
            "else-1": "",
            "odd": "",
        }
        assert inventory.objection("r1-b9") == UNLISTED
        assert inventory.wiring("r1-b2") == Wiring("r1", ("r1/pdu1", "r1/pdu2"), ("r1/tor1",))
        assert inventory.wiring("else-1") is None
        assert inventory.capacity("r1-b2") == Capacity(cpus=16, memory_mib=65536, disk_gib=500)
        told = {
            "region": "region EU: not enabled",
            "zone": "zone EU/eu-1: not enabled",
            "rack": "rack r1: not enabled",
            "blade": "blade r1/b1: not enabled",
            "pdu": "",
            "tor": "no tor of blade r1/b1 is on duty (tor1: not enabled)",
        }
        for level, key in LEVELS.items():
            await change(scene.raw, key, enabled=False)
            await scene.settle()
            assert inventory.objection("r1-b1") == told[level]
            await change(scene.raw, key, enabled=True)
            await scene.settle()
            assert inventory.objection("r1-b1") == ""
        await change(scene.raw, LEVELS["pdu"], condition=Condition.OUT_FOR_REPAIR)
        await change(scene.raw, LEVELS["pdu"] + "s/2", enabled=False)
        await scene.settle()
        why = "no pdu of blade r1/b1 is on duty (pdu1: out_for_repair, pdu2: not enabled)"
        assert inventory.objection("r1-b1") == why

    play(story)


def test_a_blade_that_hangs_on_nothing_is_not_used_unless_nothing_hangs_on_anything() -> None:
    async def story(scene: Scene) -> None:
        wired = rack(pdus=[{"name": "pdu1", "ports": {"1": "b1", "4": None}}])
        await load(scene.raw, inventory_in({"racks": [wired]}).records())
        await scene.settle()
        inventory = scene.view.inventory
        assert (inventory.objection("r1-b1"), inventory.objection("r1-b2")) == ("", "blade r1/b2: wired to no pdu")
        assert inventory.wiring("r1-b2") == Wiring("r1", (), ("r1/tor1",))
        for key in (LEVELS["pdu"], LEVELS["tor"]):
            await scene.raw.delete(key)
        await scene.settle()
        assert (inventory.objection("r1-b2"), inventory.wiring("r1-b2")) == ("", Wiring("r1"))

    play(story)


def test_what_cannot_be_read_is_not_used() -> None:
    async def story(scene: Scene) -> None:
        await load(scene.raw, inventory_in(ONE_RACK).records())
        for key, why in (
            (LEVELS["blade"], "blade r1/b1: its record cannot be read"),
            (LEVELS["rack"], "rack r1: its record cannot be read"),
        ):
            await scene.raw.put(key, b"{")
            await scene.settle()
            assert scene.view.inventory.objection("r1-b1") == why

    play(story)


def test_a_change_is_told_to_the_nodes_that_it_touches_and_to_no_other() -> None:
    async def story(scene: Scene) -> None:
        nodes = ("r1-b1", "r1-b2", "r1-b7", "r2-a", "lone-1", "else-1")
        for node in nodes:
            await scene.node(node)
        told: list[str] = []
        end = scene.view.inventory.listen(told.append)

        async def after(key: str, **changes: Any) -> list[str]:
            told.clear()
            await change(scene.raw, key, **changes)
            await scene.settle()
            return sorted(told)

        await load(scene.raw, read_inventory(SMALL).records())
        await scene.settle()
        assert set(told) == {"r1-b1", "r1-b2", "r1-b7", "r2-a", "lone-1"}
        assert await after(LEVELS["blade"], enabled=False) == ["r1-b1"]
        assert await after(BLADE.fill(rack="r1", blade="b3"), enabled=False) == []
        for level in ("rack", "pdu", "tor"):
            assert await after(LEVELS[level], enabled=False) == ["r1-b1", "r1-b2", "r1-b7"]
        for level in ("zone", "region"):
            assert await after(LEVELS[level], enabled=False) == ["r1-b1", "r1-b2", "r1-b7", "r2-a"]
        assert sorted(scene.view.inventory.unlisted()) == ["r1-b7"]
        await after(LEVELS["rack"], region="", zone="")
        assert await after(LEVELS["region"], enabled=True) == ["r2-a"]
        end()
        assert await after(LEVELS["rack"], enabled=True) == []

    play(story)


@pytest.mark.parametrize("seed", range(4))
def test_what_is_kept_up_is_what_would_be_made_anew(seed: int) -> None:
    async def story(scene: Scene) -> None:
        rng = random.Random(seed)
        everything = list(read_inventory(SMALL).records().items())
        books = Allocations(scene.view, lambda: None)
        await books.load()
        scene.view.inventory.listen(books.sync_node)
        for name in ("r1-b1", "r1-b2", "r2-a", "lone-1", "lone-7"):
            await scene.node(name)
            books.sync_node(name)
        for _ in range(60):
            key, record = rng.choice(everything)
            verb = rng.choice(("put", "put", "off", "delete", "break"))
            if verb == "delete":
                await scene.raw.delete(key)
            elif verb == "break":
                await scene.raw.put(key, b"[]")
            else:
                await scene.raw.put(key, msgspec.structs.replace(record, enabled=verb == "put").encode())
            await scene.settle()
            anew = Allocations(scene.view, lambda: None)
            await anew.load()
            assert {node: slot.state for node, slot in books.cluster.slots.items()} == {
                node: slot.state for node, slot in anew.cluster.slots.items()
            }

    play(story, seed=seed)


def test_what_both_the_agent_and_the_inventory_say_is_there_counts() -> None:
    record = NodeRecord(
        node="r1-b1",
        lifecycle=Lifecycle.ON_DUTY,
        capacity=Capacity(cpus=8, memory_mib=1000, disk_gib=50, network_mbps=0),
        labels={"disk": "hdd", "arch": "x86"},
        rack="other",
        registered_at=0.0,
    )
    listed = Capacity(cpus=4, memory_mib=2000, disk_gib=0, network_mbps=100)
    state = node_state(record, True, wiring=Wiring("r1", ("r1/p",), ("r1/t",)), capacity=listed, labels={"disk": "ssd"})
    assert state.capacity == Capacity(cpus=4, memory_mib=1000, disk_gib=50, network_mbps=0)
    assert state.labels == {"disk": "ssd", "arch": "x86"}
    assert (state.rack, state.pdus, state.tors, state.on_duty) == ("r1", ("r1/p",), ("r1/t",), True)
    barred = node_state(record, True, objection="rack r1: not enabled")
    assert (barred.on_duty, barred.why_not, barred.rack) == (False, "rack r1: not enabled", "other")
    assert node_state(record, False, objection="rack r1: not enabled").why_not == "unreachable"


@pytest.mark.parametrize("level", [*LEVELS, "unlisted"])
def test_what_is_off_duty_takes_no_new_machine_and_keeps_what_it_has_until_it_is_on_duty_again(level: str) -> None:
    async def story(world: World) -> None:
        records = inventory_in(ONE_RACK).records()
        await load(world.raw, records)
        await world.leader()
        await world.node("r1-b1")
        await world.create("old")
        await world.until_state("old", MachineState.RUNNING)
        key = LEVELS["blade" if level == "unlisted" else level]
        if level == "unlisted":
            await world.raw.delete(key)
        else:
            await change(world.raw, key, enabled=False)
        await world.create("new")
        await world.until_state("new", MachineState.PENDING)
        handle = await world.handle("new")
        assert handle is not None
        objection = UNLISTED if level == "unlisted" else "not enabled"
        assert any(objection in reason.why for reason in handle.reasons), handle.reasons
        for _ in range(3):
            await world.clock.sleep(30.0)
            assert (await world.state("old"), await world.state("new")) == (MachineState.RUNNING, MachineState.PENDING)
        assert await world.command("r1-b1", "old") is not None
        await world.raw.put(key, records[key].encode())
        assert await world.until_state("new", MachineState.RUNNING) < 2.0

    play_world(story)


def test_a_machine_goes_where_the_inventory_leaves_room() -> None:
    async def story(world: World) -> None:
        small = rack(blades=[{"name": "b1", "cpus": 1, "memory": "1GiB"}, {"name": "b2", "cpus": 8, "memory": "8GiB"}])
        await load(world.raw, inventory_in({"racks": [small]}).records())
        await world.leader()
        await world.node("r1-b1")
        await world.create("a")
        await world.until_state("a", MachineState.RUNNING)
        await world.create("b")
        await world.until_state("b", MachineState.PENDING)
        await world.node("r1-b2")
        await world.until_state("b", MachineState.RUNNING)
        assert await world.command("r1-b2", "b") is not None

    play_world(story)


def test_several_families_are_read_as_one() -> None:
    key = BLADE.fill(rack="r1", blade="b1")
    assert (IN_RACKS.of(key), IN_RACKS.match(key)) == (BLADE, {"rack": "r1", "blade": "b1"})
    assert IN_RACKS.match("/CloudChamber/V0.1/rack/r1/fans/1") is None
    assert IN_RACKS.prefix() == "/CloudChamber/V0.1/rack/"
    for wrong in (lambda: IN_RACKS.prefix(rack="r1"), lambda: IN_RACKS.fill(rack="r1")):
        with pytest.raises(Invalid, match="several families"):
            wrong()
