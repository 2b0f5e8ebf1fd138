"""A world: the control plane as processes over simulated hardware."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING, Any

import pytest

from hostler.engine.inventory.inventory_file import read_inventory
from hostler.engine.vm_queries import VmQuery
from hostler.engine.workloads.service import WorkloadService
from hostler.errors import Conflict, Invalid, NotFound, Unavailable
from hostler.keys.families import BLADE, MEMBER, PDU
from hostler.keys.lab import LAB
from hostler.model.inventory import Capacity
from hostler.model.lab import LabPhase, LabRequest
from hostler.model.vm import OnNodeLoss, VmSpec
from hostler.model.workload_api import WorkloadApply
from hostler.sim.hardware import PowerOn, Replace, Stop
from hostler.sim.world import BladeConfig, Factories, World, WorldConfig, run_world

from .world_scene import TWO_RACKS, broken, handles, make, overlaps, plan, running, said

if TYPE_CHECKING:
    from hostler.sim.world import ReplicaServices


def test_a_wish_becomes_a_machine_on_a_blade() -> None:
    async def story(world: World) -> None:
        await make(world, "web")
        (node,) = await running(world, 1)
        rows = list(world.blades[node].place.contents.rows.values())
        assert [row.label.org for row in rows] == ["acme"]

    run_world(plan(), story)


def test_the_inventory_stands_in_the_store_and_blades_say_how_they_are_wired() -> None:
    async def story(world: World) -> None:
        await world.sleep(5)
        assert (await PDU.get(world.store, rack="r2")) is not None
        blade = await BLADE.get(world.store, rack="r1", blade="b2")
        assert blade is not None
        member = await MEMBER.get(world.store, node="r2-b3")
        assert member is not None
        assert (member.value.rack, member.value.pdus, member.value.tors) == (
            "r2",
            ("r2/pdu1", "r2/pdu2"),
            ("r2/tor1",),
        )
        assert member.value.capacity == Capacity(cpus=16, memory_mib=65536, disk_gib=500, network_mbps=10_000)

    run_world(plan(), story)


def test_a_blade_of_no_known_rack_has_power_and_network_and_can_crash() -> None:
    async def story(world: World) -> None:
        await make(world, "web")
        await running(world, 1)
        with pytest.raises(Invalid, match="no power that could be cut"):
            broken(world, "power", "x1/b1")
        broken(world, "blade_crash", "x1/b1")
        assert not world.blades["x1-b1"].alive

    run_world(WorldConfig(blades=(BladeConfig(node="x1-b1"),)), story)
    with pytest.raises(Invalid, match="its rack is in the inventory"):
        plan(blades=(BladeConfig(node="r1-b9"),))


def test_a_client_asks_until_it_is_answered_and_its_wish_is_done_once() -> None:
    async def story(world: World) -> None:
        await world.sleep(5)
        broken(world, "answer_lost", chance=0.5, **{"for": 60})
        for number in range(6):
            leader = world.leader()
            if leader is not None:
                world.loop.call_later(0.005, world.kill, leader.name)
            await make(world, f"web-{number}")
        await running(world, 6, within=300)

    run_world(plan(latency=0.02, replicas=3), story)


def test_what_a_replica_refuses_is_raised_and_what_nobody_answers_is_unavailable() -> None:
    async def story(world: World) -> None:
        await make(world, "web")
        with pytest.raises(NotFound):
            await world.ask(lambda doors: doors.vms.get(doors.request.caller, "acme", "shop", "nothing"))
        with pytest.raises(Conflict):
            await make(world, "web", within=2)
        for name in world.replicas:
            broken(world, "replica_killed", name, **{"for": 100})
        began = world.clock.now()
        with pytest.raises(Unavailable):
            await world.ask(lambda doors: doors.vms.list(doors.request.caller, VmQuery()), within=10)
        assert 10 <= world.clock.now() - began < 11

    run_world(plan(), story)


def test_a_client_does_not_wait_for_ever_for_a_replica_that_sleeps() -> None:
    async def story(world: World) -> None:
        await world.sleep(5)
        broken(world, "leader_paused", **{"for": 200})
        for _ in range(2):  # with most seeds one of them comes to the one that sleeps, some come again and again
            await world.ask(lambda doors: doors.vms.list(doors.request.caller, VmQuery()))
        assert world.clock.now() < 190

    for seed in (1, 2, 3):
        run_world(plan(), story, seed=seed)


def test_a_leader_that_lost_its_key_ends_and_is_started_again() -> None:
    async def story(world: World) -> None:
        await world.sleep(5)
        leader = world.leader()
        assert leader is not None
        broken(world, "partition", leader.name, **{"for": 60})
        await world.sleep(50)
        assert leader.lives > 1
        other = world.leader()
        assert other is not None
        assert other is not leader
        assert said(world, "leader", leader.name, "no longer leads")
        assert not world.failures

    run_world(plan(), story)


def test_labs_come_through_the_door_and_are_shown_there() -> None:
    async def story(world: World) -> None:
        world.lab_redis.push("provision", LabRequest(webuserid="ada", lab_id=5).encode())

        async def shown() -> bool:
            record = world.lab_redis.records.get("ada")
            return record is not None and record.available

        assert await world.until(shown, within=60)
        lab = await LAB.get(world.store, user="ada")
        assert lab is not None
        assert lab.value.lab is not None
        assert lab.value.lab.phase is LabPhase.RUNNING
        assert [entry.text for entry in said(world, "lab", "lab of ada")][-1] == "available"

    run_world(plan(labs=True), story)


def test_workloads_are_looked_after() -> None:
    async def story(world: World) -> None:
        wanted = WorkloadApply(name="shop", instances=4, spec=VmSpec(cpus=1, memory_mib=256))
        await world.ask(lambda doors: _applied(doors.workloads, doors, wanted))
        await running(world, 4)
        assert len(said(world, "workload")) >= 4

    async def _applied(workloads: WorkloadService, doors: ReplicaServices, wanted: WorkloadApply) -> Any:
        return await workloads.apply(doors.request, wanted)

    run_world(plan(), story)


def test_a_blade_that_is_replaced_has_forgotten_all_and_somebody_must_say_so() -> None:
    async def story(world: World) -> None:
        await make(world, "one", "two", "three", "four", "five", "six", loss=OnNodeLoss.WAIT)
        nodes = await running(world, 6)
        node = nodes[0]
        blade = world.blades[node]
        world.apply(Replace(blade.component))
        await world.sleep(60)
        assert blade.alive
        assert blade.place.id.endswith("-2")
        assert not blade.place.contents.rows
        assert node in {handle.node for handle in await handles(world)}
        await world.ask(lambda doors: doors.nodes.confirm_off(doors.request, node))
        await running(world, 6)
        assert not list(overlaps(world))

    run_world(plan(), story)


def test_other_racks_can_stand_there_later() -> None:
    async def story(world: World) -> None:
        await make(world, "one", "two", "three", "four", "five", "six")
        assert "r1-b1" in await running(world, 6)
        text = """
            racks:
              - name: r2
                pdus: [{name: pdu1, ports: 8}, {name: pdu2, ports: 8}]
                tors: [{name: tor1, ports: 8}]
                blades: {count: 3, prefix: b, cpus: 16, memory: 64GiB, disk: 500GiB}
              - name: r3
                pdus: [{name: pdu1, ports: 8}]
                tors: [{name: tor1, ports: 8}]
                blades: {count: 1, prefix: b, cpus: 16, memory: 64GiB, disk: 500GiB}
        """
        world.revise(read_inventory(text))
        assert not world.blades["r1-b1"].alive
        assert not world.blades["r3-b1"].alive
        await world.sleep(10)
        assert world.blades["r3-b1"].alive
        nodes = await running(world, 6, within=120)
        assert not any(node.startswith("r1-") for node in nodes)
        assert world.blades["r2-b1"].lives == 1

    run_world(plan(), story)


def test_a_blade_that_is_stopped_takes_its_machines_along() -> None:
    async def story(world: World) -> None:
        await make(world, "one", "two", "three", "four", "five", "six")
        await running(world, 6)
        world.apply(Stop("r1"))
        assert not any(row.on for row in world.blades["r1-b1"].place.contents.rows.values())
        await world.sleep(5)
        assert world.racks.blade("r1/b1").word == "powered"

    run_world(plan(), story)


# Power


def test_a_silent_node_is_switched_off_at_its_pdu_and_its_machines_start_elsewhere() -> None:
    async def story(world: World) -> None:
        await make(world, "one", "two", "three", "four", "five", "six", loss=OnNodeLoss.WAIT)
        assert "r1-b2" in await running(world, 6)
        broken(world, "network", "r1/b2")
        nodes = await running_on_living(world, 6)
        assert "r1-b2" not in nodes
        assert world.racks.blade("r1/b2").word == "off"
        assert [entry.cause for entry in said(world, "hardware", "r1/pdu1:2")] == ["fencing"]
        assert not list(overlaps(world))
        world.apply(PowerOn("r1/b2"))
        await world.sleep(10)
        assert world.blades["r1-b2"].alive

    run_world(plan(power=True, power_grace=20.0), story)


def test_a_switch_that_is_stuck_says_that_it_is_uncertain_and_nothing_is_started_twice() -> None:
    async def story(world: World) -> None:
        await make(world, "one", "two", "three", "four", "five", "six", loss=OnNodeLoss.WAIT)
        assert "r1-b2" in await running(world, 6)
        broken(world, "cable_stuck", "r1/pdu1:2")
        id_ = broken(world, "network", "r1/b2")
        await world.sleep(200)
        assert world.racks.blade("r1/b2").word == "isolated"
        assert "r1-b2" in {handle.node for handle in await handles(world)}
        assert said(world, "hardware", "r1/pdu1:2", "without effect")
        world.lift(id_)
        await running(world, 6)
        assert not list(overlaps(world))

    run_world(plan(power=True, power_grace=20.0), story)


def test_a_blade_without_power_is_certainly_off() -> None:
    async def story(world: World) -> None:
        await make(world, "one", "two", "three", "four", "five", "six", loss=OnNodeLoss.WAIT)
        await running(world, 6)
        broken(world, "power", "r1")
        nodes = await running_on_living(world, 6)
        assert not any(node.startswith("r1-") for node in nodes)

    run_world(plan(power=True, power_grace=20.0), story)


def test_when_all_agents_are_cut_off_no_node_is_switched_off_and_every_machine_keeps_its_disk() -> None:
    def disks(world: World) -> dict[str, tuple[str, str]]:
        places = ((node, host.place.contents.rows) for node, host in world.blades.items())
        return {vm: (node, row.disk_id) for node, rows in places for vm, row in rows.items()}

    async def story(world: World) -> None:
        await make(world, "one", "two", "three", "four", "five", "six", loss=OnNodeLoss.WAIT)
        await running(world, 6)
        before = disks(world)
        broken(world, "partition", names=[host.component for host in world.blades.values()], **{"for": 22})
        await world.sleep(120)
        assert disks(world) == before
        await running(world, 6)
        assert not [entry for entry in said(world, "hardware") if entry.cause == "fencing"]
        (told,) = [entry.text for entry in said(world, "decision", text="brake: brake:")]
        assert "6 of 6 nodes became unreachable together" in told
        assert "all of them agents of store endpoint sim://store" in told

    run_world(plan(power=True, power_grace=5.0, node_ttl=4.0, fencing_time=8.0, brake_share=1 / 3), story)


async def running_on_living(world: World, count: int) -> list[str]:
    """Until so many run on blades that can be reached."""

    async def met() -> bool:
        found = [handle for handle in await handles(world) if handle.state == "running"]
        return len(found) == count and all(world.racks.blade(world.blades[h.node].component).working for h in found)

    assert await world.until(met, within=200)
    return [handle.node for handle in await handles(world)]


# What the world tells


def test_every_step_from_the_pdu_to_the_machine_says_what_led_to_it() -> None:
    async def story(world: World) -> None:
        await make(world, "one", "two", "three", "four", "five", "six")
        await running(world, 6)
        broken(world, "power", "r1/pdu1")
        await world.sleep(80)
        (fault,) = said(world, "fault")
        assert fault.id == "fault-1"
        assert [entry.cause for entry in said(world, "hardware", "r1/pdu1")] == ["fault-1"]
        assert [entry.cause for entry in said(world, "hardware", "r1/b1")] == ["r1/pdu1"]
        assert [entry.cause for entry in said(world, "killed", "r1/b1")] == ["r1/b1"]
        assert [entry.cause for entry in said(world, "silent", "node r1-b1")] == ["r1/b1"]
        decisions = {entry.id: entry for entry in said(world, "decision")}
        taken = said(world, "taken")
        assert taken
        for entry in taken:
            take = decisions[entry.cause]
            assert "machines: take" in take.text
            assert "nodes: silent" in decisions[take.cause].text
        lines = world.log.lines().decode().splitlines()
        assert len(lines) == len(world.log)

    run_world(plan(), story)


def test_whoever_listens_hears_every_event_of_the_store_once_and_in_order() -> None:
    async def story(world: World) -> list[int]:
        heard: list[int] = []
        end = world.chronicle.listen(lambda event: heard.append(event.kv.mod_revision))
        await make(world, "one", "two")
        await running(world, 2)
        end()
        length = len(heard)
        await make(world, "three")
        assert len(heard) == length
        assert heard == sorted(heard)
        assert set(heard) == set(range(heard[0], heard[-1] + 1))
        return heard

    assert run_world(plan(), story)


def test_what_breaks_inside_a_process_is_kept_and_the_process_started_again() -> None:
    class Broken:
        name = "broken"

        async def start(self, standing: object) -> None: ...

        async def run(self) -> None:
            await asyncio.sleep(1)
            raise RuntimeError("a defect")

        async def stop(self) -> None: ...

    async def story(world: World) -> None:
        await world.sleep(10)
        assert world.failures or any(host.lives > 1 for host in world.replicas.values())

    run_world(plan(), story, parts=Factories(more=(lambda _: Broken(),)))


def test_names_of_the_inventory_are_matched_without_regard_to_case() -> None:
    async def story(world: World) -> None:
        assert TWO_RACKS.racks[1].rack.name == "R2"
        await world.sleep(1)
        broken(world, "network", "R2/Tor1")
        assert not world.blades["r2-b1"].connected
        assert world.host("R2/B1") is world.blades["r2-b1"]
        assert [host.name for host in world.hosts_named("R1")] == ["r1-b1", "r1-b2", "r1-b3"]

    run_world(plan(), story)


def test_large_records_of_a_plan_are_put_in_pieces() -> None:
    async def story(world: World) -> None:
        found = (await world.store.range("/other/")).items
        assert [(kv.key, len(kv.value)) for kv in found] == [(f"/other/{n:02}", 100_000) for n in range(40)]
        assert 1 < len({kv.mod_revision for kv in found}) < 10

    run_world(plan(records={f"/other/{n:02}": b"x" * 100_000 for n in range(40)}), story)


def test_who_asked_and_was_cancelled_leaves_no_error_that_nobody_looked_at() -> None:
    async def failing() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            raise Unavailable("it ends like this, too")

    async def story(world: World) -> None:
        told: list[object] = []
        world.loop.set_exception_handler(lambda _, context: told.append(context))
        life = world.blades["r1-b1"].life
        assert life is not None
        asking = asyncio.create_task(life.call(failing))
        await world.sleep(1)
        asking.cancel()
        await asyncio.wait([asking])
        with pytest.raises(Unavailable, match="no answer within 1 s"):
            await life.call(failing, within=1)
        with pytest.raises(Unavailable, match="ends like this"):
            await life.call(failing)
        await world.sleep(1)
        del asking
        gc.collect()
        assert told == []

    run_world(plan(), story)
