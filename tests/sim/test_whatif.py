"""What would happen: a living control plane is copied, the copy is broken, and the original does not notice."""

from __future__ import annotations

import asyncio

import pytest

from hostler.drivers.store.memory import MemoryStore
from hostler.engine.inventory.inventory_file import read_inventory
from hostler.errors import NotFound
from hostler.keys.families import COMMAND
from hostler.model.vm import Affinity, Level, OnNodeLoss, Power, VmSpec
from hostler.model.vm_api import VmCreate
from hostler.ports.store import Put
from hostler.sim.fault import PowerFault
from hostler.sim.whatif import Answer, Copied, Fate, Question, ask, copy_records
from hostler.sim.world import World, WorldConfig, run_world

TWO_RACKS = """
racks:
  - name: r1
    pdus: [{name: pdu1, ports: 8}]
    tors: [{name: tor1, ports: 8}]
    blades: {count: 3, cpus: 8, memory: 16GiB}
  - name: r2
    pdus: [{name: pdu1, ports: 8}]
    tors: [{name: tor1, ports: 8}]
    blades: {count: 3, cpus: 8, memory: 16GiB}
"""


def made(name: str, cpus: int = 2, loss: OnNodeLoss = OnNodeLoss.RECREATE, **more: object) -> VmCreate:
    spec = VmSpec(cpus=cpus, memory_mib=1024)
    return VmCreate(name=name, spec=spec, on_node_loss=loss, **more)  # type: ignore[arg-type]


def living(*wanted: VmCreate, inventory: str = TWO_RACKS) -> tuple[Copied, dict[str, bytes]]:
    """What a control plane with these machines knows; and everything in its store, before and after it was copied."""

    async def story(world: World) -> tuple[Copied, dict[str, bytes]]:
        await world.sleep(20)
        for each in wanted:
            await world.ask(lambda d, each=each: d.vms.create(d.request, "acme", "shop", each))
        await world.sleep(60)
        before = await everything(world.store)
        revision = (await world.store.status()).revision
        copy = await copy_records(world.store)
        assert (await world.store.status()).revision == revision, "copying wrote something"
        assert await everything(world.store) == before
        return copy, before

    return run_world(WorldConfig(inventory=read_inventory(inventory)), story, seed=3)


async def everything(store: MemoryStore) -> dict[str, bytes]:
    return {kv.key: kv.value for kv in (await store.range("")).items}


def fates(answer: Answer) -> dict[str, Fate]:
    return {machine.name: machine.fate for machine in answer.affected}


def test_a_drained_rack_moves_what_runs_there_and_nothing_else() -> None:
    copy, _ = living(*(made(f"web-{n}") for n in range(6)))
    here = {vm.name: copy.handles[name].node for name, vm in copy.vms.items()}
    on_r2 = {name for name, node in here.items() if node.startswith("r2-")}
    assert 0 < len(on_r2) < 6
    answer = ask(copy, Question(drain=("r2",)))
    assert fates(answer) == dict.fromkeys(on_r2, Fate.MOVED)
    assert all(machine.after.startswith("r1-") and machine.away == 0 for machine in answer.affected)
    assert answer.unaffected == 6 - len(on_r2)
    assert answer.settled


def test_what_finds_no_room_says_why() -> None:
    copy, _ = living(*(made(f"big-{n}", cpus=6) for n in range(6)))
    answer = ask(copy, Question(drain=("r2",)))
    assert set(fates(answer).values()) == {Fate.STUCK}
    assert len(answer.affected) == 3
    assert all("cpus" in machine.why for machine in answer.affected), [machine.why for machine in answer.affected]


def test_a_lost_pdu_restarts_what_is_fenced_and_leaves_what_waits() -> None:
    copy, _ = living(
        *(made(f"fenced-{n}") for n in range(4)), *(made(f"waits-{n}", loss=OnNodeLoss.WAIT) for n in range(4))
    )
    here = {vm.name: copy.handles[name].node for name, vm in copy.vms.items()}
    lost = {name for name, node in here.items() if node.startswith("r1-")}
    answer = ask(copy, Question(faults=(PowerFault(on="r1/pdu1"),), boot_time=5.0, brake_share=0.5))
    assert fates(answer) == {name: Fate.RESTARTED if name.startswith("fenced") else Fate.STAYS_OFF for name in lost}
    for machine in answer.affected:
        if machine.fate is Fate.RESTARTED:
            assert machine.after.startswith("r2-")
            assert machine.away >= 30.0, "before its node is known to be dead nobody may start it"
        else:
            assert "confirm" in machine.why


def test_with_a_power_switch_those_that_wait_come_back_too() -> None:
    copy, _ = living(*(made(f"waits-{n}", loss=OnNodeLoss.WAIT) for n in range(4)))
    answer = ask(copy, Question(faults=(PowerFault(on="r1/pdu1"),), power=True, brake_share=0.5))
    assert answer.affected
    assert set(fates(answer).values()) == {Fate.RESTARTED}


def test_rules_are_kept_and_told() -> None:
    apart = Affinity(together=False, level=Level.RACK, labels={"app": "db"})
    copy, _ = living(*(made(f"db-{n}", labels={"app": "db"}, affinity=(apart,)) for n in range(2)))
    answer = ask(copy, Question(faults=(PowerFault(on="r1/pdu1"),), brake_share=0.5))
    assert list(fates(answer).values()) == [Fate.NO_ROOM]
    assert "db" in answer.affected[0].why or "rack" in answer.affected[0].why, answer.affected[0]


def test_a_node_that_is_silent_already_takes_nothing() -> None:
    async def story(world: World) -> Copied:
        await world.sleep(20)
        for n in range(4):
            await world.ask(lambda d, n=n: d.vms.create(d.request, "acme", "shop", made(f"web-{n}", cpus=1)))
        world.inject(PowerFault(on="r1/b1"))
        await world.sleep(120)
        return await copy_records(world.store)

    copy = run_world(WorldConfig(inventory=read_inventory(TWO_RACKS)), story, seed=5)
    answer = ask(copy, Question(drain=("r2",)))
    assert answer.silent == ("r1-b1",)
    assert all(machine.after in ("r1-b2", "r1-b3") for machine in answer.affected)


def test_machines_that_are_off_keep_a_node_from_emptying_too() -> None:
    off = [made(f"off-{n}", cpus=6, power=Power.OFF) for n in range(6)]
    answer = ask(living(*off)[0], Question(drain=("r2",)))
    assert set(fates(answer).values()) == {Fate.STUCK}
    assert len(answer.affected) == answer.unaffected == 3
    few = [made(f"off-{n}", power=Power.OFF) for n in range(4)]
    answer = ask(living(*few)[0], Question(drain=("r2",)))
    assert set(fates(answer).values()) == {Fate.MOVED}
    assert {machine.why for machine in answer.affected} == {"it is off"}


def test_without_an_inventory_the_nodes_themselves_are_its_racks() -> None:
    copy, _ = living(*(made(f"web-{n}") for n in range(4)))
    bare = Copied(
        **{**{name: getattr(copy, name) for name in copy.__struct_fields__}, "inventory": read_inventory("racks: []")}
    )
    answer = ask(bare, Question(drain=("r2",)))
    assert set(fates(answer).values()) == {Fate.MOVED}


def test_the_same_question_has_the_same_answer() -> None:
    copy, _ = living(*(made(f"web-{n}") for n in range(5)))
    question = Question(faults=(PowerFault(on="r2/pdu1", for_=100.0),), seed=9)
    assert ask(copy, question) == ask(copy, question)


def test_what_is_not_there_cannot_be_drained() -> None:
    copy, _ = living(made("web"))
    with pytest.raises(NotFound, match="drain r7: no node, rack, zone or region"):
        ask(copy, Question(drain=("r7",)))


def test_a_copy_is_of_one_revision_and_survives_what_cannot_be_read() -> None:
    async def main() -> Copied:
        async with MemoryStore() as store:
            await store.txn([], [Put(COMMAND.fill(node="r1-b1", vm="x"), b"not a record")])
            return await copy_records(store)

    copy = asyncio.run(main())
    assert copy.unreadable == (COMMAND.fill(node="r1-b1", vm="x"),)
