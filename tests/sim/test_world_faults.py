"""What each fault does to a world, and that it is over when it is lifted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from hostler.errors import Invalid, NotFound, Unavailable
from hostler.keys.families import ALIVE
from hostler.model.vm import MachineState, OnNodeLoss
from hostler.sim.fault import FAULTS, fault_of
from hostler.sim.faulty_link import Weather
from hostler.sim.hardware import PowerOff, PowerOn, Repair, Replace
from hostler.sim.world import World, run_world
from hostler.sim.world.store_link import DEADLINE

from .world_scene import broken, handles, make, overlaps, plan, running, said, there

if TYPE_CHECKING:
    from hostler.sim.fault import Fault

SIX = ("one", "two", "three", "four", "five", "six")

ANYWHERE: dict[str, dict[str, Any]] = {
    "power": {"on": "r1/pdu1"},
    "network": {"on": "r2/tor1"},
    "cable_stuck": {"on": "r1/tor1:1"},
    "pdu_stuck": {"on": "r1/pdu1"},
    "tor_stuck": {"on": "r2/tor1"},
    "blade_crash": {"on": "r1/b1"},
    "replica_killed": {"on": "replica-1"},
    "clock_rate": {"on": "r1/b1", "rate": 1.2},
    "partition": {"names": ["replica-1", "r1"]},
}


@pytest.mark.parametrize("name", FAULTS)
def test_whatever_breaks_all_is_well_when_it_is_over(name: str) -> None:
    async def story(world: World) -> None:
        await make(world, *SIX[:4])
        await running(world, 4)
        broken(world, name, **{"for": 50, **ANYWHERE.get(name, {})})
        await make(world, *SIX[4:])
        await world.sleep(51)
        assert not world.faults
        await running(world, 6, within=200)
        assert not list(overlaps(world))
        assert not world.failures
        assert said(world, "lifted") or name == "leader_killed"

    run_world(plan(latency=0.01, boot_time=1.0), story, seed=3)


def test_a_power_cut_ends_process_and_machines_at_that_very_instant() -> None:
    async def story(world: World) -> None:
        await make(world, *SIX)
        await running(world, 6)
        await world.sleep(1.2345)
        now = world.clock.now()
        broken(world, "power", "r1/pdu1", **{"for": 20})
        for blade in ("r1-b1", "r1-b2", "r1-b3"):
            host = world.blades[blade]
            assert not host.alive
            assert [row.on for row in host.place.contents.rows.values()] == [None] * len(host.place.contents.rows)
            assert all(host.intervals(vm)[-1][1] == now for vm in host.vms())
        assert all(host.alive for node, host in world.blades.items() if node.startswith("r2"))
        await world.sleep(24.9)
        assert not world.blades["r1-b1"].alive  # it boots for 5 seconds at least
        await world.sleep(3.2)
        assert world.blades["r1-b1"].alive  # and for 8 at most

    run_world(plan(), story)


def test_a_second_feed_keeps_the_blades_up_and_both_are_needed_to_bring_them_down() -> None:
    async def story(world: World) -> None:
        await world.sleep(1)
        first = broken(world, "power", "r2/pdu1")
        assert world.blades["r2-b1"].alive
        broken(world, "power", "r2/pdu2")
        assert not world.blades["r2-b1"].alive
        world.lift(first)
        await world.sleep(9)
        assert world.blades["r2-b1"].alive

    run_world(plan(), story)


def test_two_faults_of_one_line_end_when_both_are_lifted() -> None:
    async def story(world: World) -> None:
        await world.sleep(1)
        one, two = broken(world, "network", "r1/b1"), broken(world, "network", "r1/tor1:1")
        world.lift(one)
        assert not world.blades["r1-b1"].connected
        world.lift(two)
        assert world.blades["r1-b1"].connected
        with pytest.raises(NotFound, match="not active"):
            world.lift(two)

    run_world(plan(), story)


def test_what_was_repaired_by_hand_can_break_again_and_is_whole_when_that_is_over() -> None:
    async def story(world: World) -> None:
        await world.sleep(1)
        blade = world.blades["r1-b1"]
        broken(world, "power", "r1/pdu1")
        world.apply(Repair("r1/pdu1"))
        assert not world.faults
        await world.sleep(20)
        assert blade.alive
        again = broken(world, "power", "r1/pdu1")
        assert not blade.alive
        world.lift(again)
        await world.sleep(20)
        assert blade.alive

    run_world(plan(), story)


def test_a_fault_of_several_lines_is_over_when_each_of_them_was_repaired() -> None:
    async def story(world: World) -> None:
        await world.sleep(1)
        id_ = broken(world, "power", "r2")
        world.apply(Repair("R2/pdu1"))
        assert list(world.faults) == [id_]
        await world.sleep(20)
        broken(world, "pdu_stuck", "r2/pdu1")
        world.apply(Replace("r2/pdu1"))
        world.apply(Repair("r2/pdu2"))
        assert not world.faults
        broken(world, "power", "r2/pdu1")
        broken(world, "power", "r2/pdu2")
        assert not any(host.alive for host in world.blades.values() if host.component.startswith("r2/"))

    run_world(plan(), story)


def test_without_network_machines_run_on_and_nothing_answers() -> None:
    async def story(world: World) -> None:
        await make(world, *SIX, loss=OnNodeLoss.WAIT)
        before = await running(world, 6)
        host = world.blades["r2-b1"]
        assert host.life is not None
        wire, began = host.life.wire, world.clock.now()
        broken(world, "network", "r2/b1", **{"for": 60})
        with pytest.raises(Unavailable, match="no answer"):
            await wire.get("/a")
        assert world.clock.now() == began + DEADLINE
        await world.sleep(30)
        assert await ALIVE.get(world.store, node="r2-b1") is None
        assert there(world) == before
        assert host.lives == 1
        await world.sleep(30)
        assert await running(world, 6) == before
        assert len(host.intervals(next(iter(host.vms())))) == 1

    run_world(plan(), story)


def test_a_request_that_was_given_up_may_be_done_when_the_network_is_back() -> None:
    def late(seed: int) -> bool:
        async def story(world: World) -> bool:
            await world.sleep(1)
            host = world.blades["r2-b1"]
            assert host.life is not None
            id_ = broken(world, "network", "r2/b1")
            with pytest.raises(Exception, match="no answer"):
                await host.life.wire.put("/test", b"1")
            assert await world.store.get("/test") is None
            world.lift(id_)
            await world.sleep(1)
            return await world.store.get("/test") is not None

        return run_world(plan(), story, seed=seed)

    assert len({late(seed) for seed in range(8)}) == 2


def test_fenced_machines_stop_in_time_and_start_elsewhere_though_nobody_can_tell_the_node() -> None:
    async def story(world: World) -> None:
        await make(world, *SIX)
        await running(world, 6)
        broken(world, "network", "r1/tor1")
        await world.sleep(120)
        assert not any(node.startswith("r1") for node in there(world))
        assert len(there(world)) == 6
        assert not list(overlaps(world))

    run_world(plan(), story)


def test_a_crashed_blade_stays_down_until_it_is_repaired_and_a_lasting_crash_comes_back() -> None:
    async def story(world: World) -> None:
        await world.sleep(1)
        once, lasting = broken(world, "blade_crash", "r1/b1"), broken(world, "blade_crash", "r1/b2", lasting=True)
        await world.sleep(30)
        assert not world.blades["r1-b1"].alive
        assert not world.blades["r1-b2"].alive
        world.lift(once)
        world.lift(lasting)
        await world.sleep(9)
        assert world.blades["r1-b1"].alive
        assert world.blades["r1-b2"].alive

    run_world(plan(), story)


@pytest.mark.parametrize("lasting", [True, False])
def test_a_blade_that_crashed_twice_comes_back_when_both_are_over(lasting: bool) -> None:
    async def story(world: World) -> None:
        await world.sleep(1)
        blade = world.blades["r1-b1"]
        first, second = (broken(world, "blade_crash", "r1/b1", lasting=lasting) for _ in range(2))
        world.lift(first)
        await world.sleep(20)
        assert not blade.alive
        world.lift(second)
        await world.sleep(20)
        assert blade.alive

    run_world(plan(), story)


def test_a_crash_that_a_restart_was_enough_for_keeps_the_blade_down_no_more() -> None:
    async def story(world: World) -> None:
        await world.sleep(1)
        blade = world.blades["r1-b1"]
        broken(world, "blade_crash", "r1/b1")
        world.apply(PowerOff("r1/b1"))
        world.apply(PowerOn("r1/b1"))
        await world.sleep(20)
        assert blade.alive
        lasting = broken(world, "blade_crash", "r1/b1", lasting=True)
        assert not blade.alive
        world.lift(lasting)
        await world.sleep(20)
        assert blade.alive

    run_world(plan(), story)


def test_a_slow_disk_makes_machines_slow_and_nothing_else() -> None:
    async def story(world: World) -> float:
        await world.sleep(5)
        slow = broken(world, "slow_disk", delay=7.0)
        began = world.clock.now()
        await make(world, "one")
        await running(world, 1)
        took = world.clock.now() - began
        world.lift(slow)
        began = world.clock.now()
        await make(world, "two")
        await running(world, 2)
        assert world.clock.now() - began < 2
        assert not said(world, "silent")
        return took

    assert 14 <= run_world(plan(), story) < 16


def test_a_store_that_is_away_stops_decisions_and_no_machines() -> None:
    async def story(world: World) -> None:
        await make(world, *SIX, loss=OnNodeLoss.WAIT)
        before = await running(world, 6)
        broken(world, "store_unavailable", **{"for": 300})
        await world.sleep(10)
        with pytest.raises(Unavailable):
            await make(world, "seven", within=20)
        await world.sleep(200)
        assert there(world) == before
        assert all(host.lives == 1 for host in world.blades.values())
        await world.sleep(100)
        await make(world, "seven")
        assert set(await running(world, 7, within=120)) >= set(before)

    run_world(plan(), story)


def test_a_store_can_be_away_for_one_and_there_for_the_others() -> None:
    async def story(world: World) -> None:
        await make(world, "one")
        await running(world, 1)
        broken(world, "store_unavailable", "r1/b1", **{"for": 40})
        broken(world, "store_slow", "r2/b1", chance=0.5, slowest=1.0)
        broken(world, "answer_lost", "replica-2", chance=0.25)
        assert world.blades["r2-b1"].weather == Weather(slow=0.5, slowest=1.0)
        assert world.replicas["replica-2"].weather == Weather(lost=0.25)
        assert world.blades["r2-b2"].weather.fine
        await world.sleep(30)
        assert [entry.component for entry in said(world, "silent")] == ["node r1-b1"]

    run_world(plan(), story)


def test_the_worst_of_two_faults_counts_and_what_is_left_of_them_stays() -> None:
    async def story(world: World) -> None:
        await world.sleep(1)
        light = broken(world, "store_slow", "r1", chance=0.1, slowest=0.5)
        heavy = broken(world, "store_slow", chance=0.9, slowest=3.0)
        assert world.blades["r1-b1"].weather.slow == 0.9
        world.lift(heavy)
        assert world.blades["r1-b1"].weather.slow == 0.1
        assert world.blades["r2-b1"].weather.fine
        world.lift(light)
        assert world.blades["r1-b1"].weather.fine

    run_world(plan(), story)


def test_a_partition_keeps_its_members_from_the_store_and_from_everybody_else() -> None:
    async def story(world: World) -> None:
        await world.sleep(1)
        b1, b2, other = (world.blades[node] for node in ("r1-b1", "r1-b2", "r2-b1"))
        id_ = broken(world, "partition", names=["r1/b1", "r1/b2", "replica-1"])
        assert world.reach(b1, b2)
        assert not world.reach(b1, other)
        assert world.replicas["replica-1"].silent
        assert not world.replicas["replica-2"].silent
        broken(world, "partition", "r1/b2")
        assert not world.reach(b1, b2)
        world.lift(id_)
        assert world.reach(b1, other)

    run_world(plan(), story)


def test_a_leader_that_is_paused_loses_its_key_and_writes_nothing_when_it_wakes() -> None:
    async def story(world: World) -> None:
        await make(world, "one")
        leader = world.leader()
        assert leader is not None
        broken(world, "leader_paused", **{"for": 40})
        assert leader.paused
        await make(world, "two")
        await running(world, 2)
        other = world.leader()
        await world.sleep(41)
        assert not leader.paused
        assert leader.lives == 2
        assert other is not leader
        assert [entry.component for entry in said(world, "woken")] == [leader.name]

    run_world(plan(leadership_ttl=10.0), story)


def test_what_is_killed_for_a_while_stays_dead_that_long() -> None:
    async def story(world: World) -> None:
        await world.sleep(1)
        broken(world, "replica_killed", "replica-1", **{"for": 30})
        broken(world, "agent_killed", "r1/b1", **{"for": 30})
        broken(world, "agent_killed", "r1/b2")
        assert len(world.faults) == 2
        await world.sleep(10)
        assert not world.replicas["replica-1"].alive
        assert not world.blades["r1-b1"].alive
        assert world.blades["r1-b2"].alive
        await world.sleep(20.1)
        assert world.replicas["replica-1"].alive
        assert world.blades["r1-b1"].alive

    run_world(plan(), story)


def test_an_agent_that_is_killed_leaves_its_machines_running() -> None:
    async def story(world: World) -> None:
        await make(world, *SIX)
        before = await running(world, 6)
        broken(world, "agent_killed", "r1")
        await world.sleep(10)
        assert await running(world, 6) == before
        assert all(len(host.intervals(vm)) == 1 for host in world.blades.values() for vm in host.vms())

    run_world(plan(), story)


def test_a_clock_that_runs_fast_stops_fenced_machines_early_on_the_worlds_clock() -> None:
    async def story(world: World) -> float:
        await make(world, *SIX)
        await running(world, 6)
        host = world.blades["r1-b1"]
        broken(world, "clock_rate", "r1/b1", rate=2.0)
        await world.sleep(60)
        broken(world, "network", "r1/b1")
        cut = world.clock.now()
        await world.sleep(100)
        ended = [host.intervals(vm)[-1][1] for vm in host.vms()]
        assert ended
        assert all(end is not None for end in ended)
        return max(end - cut for end in ended if end is not None)

    assert 13 <= run_world(plan(), story) <= 15.1  # 30 of its own seconds after its last heartbeat


def test_a_provider_that_errs_is_asked_again() -> None:
    async def story(world: World) -> None:
        broken(world, "provider_errors", chance=0.4, **{"for": 120})
        await make(world, *SIX)
        await running(world, 6, within=300)
        assert not list(overlaps(world))

    run_world(plan(), story, seed=5)


def test_a_slow_agent_tells_late_and_keeps_its_heartbeat() -> None:
    async def story(world: World) -> float:
        await world.sleep(5)
        broken(world, "agent_slow", delay=20.0, **{"for": 100})
        began = world.clock.now()
        await make(world, "one")
        await running(world, 1, within=120)
        took = world.clock.now() - began
        await world.sleep(120)
        assert not said(world, "silent")
        return took

    assert run_world(plan(), story) >= 20


def test_a_fault_of_nobody_is_refused() -> None:
    async def story(world: World) -> None:
        await world.sleep(1)
        for fields, error in (
            ({"fault": "power", "on": "r1/pdu7"}, NotFound),
            ({"fault": "power", "on": "r9"}, NotFound),
            ({"fault": "power", "on": "r1/tor1:1"}, Invalid),
            ({"fault": "power"}, Invalid),
            ({"fault": "network", "on": "replica-1"}, NotFound),
            ({"fault": "pdu_stuck", "on": "r1/tor1"}, Invalid),
            ({"fault": "clock_rate"}, Invalid),
            ({"fault": "partition"}, Invalid),
            ({"fault": "partition", "names": ["replica-1", "replica-7"]}, NotFound),
            ({"fault": "replica_killed", "on": "r1/b1"}, NotFound),
            ({"fault": "slow_disk", "on": "replica-1"}, NotFound),
        ):
            fault: Fault = fault_of(fields)
            with pytest.raises(error):
                world.inject(fault)
        assert not world.faults
        assert not said(world, "fault")

    run_world(plan(), story)


def test_a_fault_of_the_leader_happens_to_nobody_while_nobody_leads() -> None:
    async def story(world: World) -> None:
        assert world.leader() is None
        broken(world, "leader_killed")
        await world.sleep(10)
        assert all(host.lives == 1 for host in world.replicas.values())

    run_world(plan(), story)


def test_a_node_in_trouble_is_told_what_it_was_and_nothing_is_left_over() -> None:
    async def story(world: World) -> None:
        await make(world, *SIX)
        await running(world, 6)
        broken(world, "network", "r1/b1", **{"for": 30})
        await world.sleep(100)
        (silent,) = said(world, "silent", "node r1-b1")
        assert silent.cause == "r1/b1"
        assert said(world, "returned", "node r1-b1")
        assert all(handle.state is MachineState.RUNNING for handle in await handles(world))

    run_world(plan(), story)
