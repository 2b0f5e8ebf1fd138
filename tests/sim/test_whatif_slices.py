"""What would become of slices: a copy of a living control plane tells which move, and how few serve meanwhile."""

from __future__ import annotations

from collections import Counter

from hostler.engine.inventory.inventory_file import read_inventory
from hostler.keys.families import SLICE
from hostler.model.deployment import Blueprint, SliceSpec
from hostler.sim.fault import PowerFault
from hostler.sim.whatif import Copied, Question, ask, copy_records
from hostler.sim.world import World, WorldConfig, run_world

RACKS = """
racks:
  - name: r1
    pdus: [{name: pdu1, ports: 8}]
    tors: [{name: tor1, ports: 8}]
    blades: {count: 2, cpus: 8, memory: 16GiB, labels: {place: left}}
  - name: r2
    pdus: [{name: pdu1, ports: 8}]
    tors: [{name: tor1, ports: 8}]
    blades: {count: 2, cpus: 8, memory: 16GiB}
"""
CART = "org.shop:cart:1.0.0"


def living(spec: SliceSpec) -> tuple[Copied, Counter[str]]:
    """What a control plane with that slice knows, and how many instances each node has."""

    async def story(world: World) -> tuple[Copied, Counter[str]]:
        await world.sleep(20)
        await world.ask(lambda d: d.blueprints.apply(d.request, "shop", Blueprint(slices=(spec,))))
        await world.sleep(30)
        revision = (await world.store.status()).revision
        copy = await copy_records(world.store)
        assert (await world.store.status()).revision == revision, "copying wrote something"
        entries = (await SLICE.list(world.store)).entries
        return copy, Counter({entry.parts["node"]: len(entry.value.each()) for entry in entries})

    return run_world(WorldConfig(inventory=read_inventory(RACKS), slices=True), story, seed=3)


def test_a_drain_moves_the_slices_of_a_rack_and_all_serve_meanwhile() -> None:
    copy, there = living(SliceSpec(artifact=CART, instances=4))
    assert set(there.values()) == {1}
    answer = ask(copy, Question(drain=("r1",)))
    (fate,) = answer.slices
    assert (fate.slice, fate.instances, fate.ready, fate.least, fate.after) == ("org.shop:cart", 4, 4, 4, 4)
    assert sorted(move.before for move in fate.moves) == ["r1-b1", "r1-b2"]
    assert sorted(move.after for move in fate.moves) == ["r2-b1", "r2-b2"]


def test_a_rack_without_power_takes_half_of_them_until_others_are_loaded() -> None:
    copy, _ = living(SliceSpec(artifact=CART, instances=4))
    answer = ask(copy, Question(faults=(PowerFault(on="r2/pdu1"),)))
    (fate,) = answer.slices
    assert (fate.ready, fate.least, fate.after) == (4, 2, 4)
    assert {move.before for move in fate.moves} == {"r2-b1", "r2-b2"}
    assert {move.after for move in fate.moves} == {"r1-b1", "r1-b2"}


def test_what_has_nowhere_to_go_is_told_with_a_reason() -> None:
    copy, there = living(SliceSpec(artifact=CART, instances=2, node_labels={"place": "left"}))
    assert set(there) == {"r1-b1", "r1-b2"}
    answer = ask(copy, Question(faults=(PowerFault(on="r1/pdu1"),)))
    (fate,) = answer.slices
    assert (fate.ready, fate.least, fate.after) == (2, 0, 0)
    assert [move.after for move in fate.moves] == ["", ""]
    assert all("label" in move.why or "unreachable" in move.why for move in fate.moves), fate.moves


def test_what_nothing_happens_to_is_not_named() -> None:
    copy, _ = living(SliceSpec(artifact=CART, instances=2, node_labels={"place": "left"}))
    assert ask(copy, Question(drain=("r2",))).slices == ()
