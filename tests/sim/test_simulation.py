"""A world beside a server: what can be asked of it, and what it takes not to fall over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from hostler.engine.inventory.inventory_file import read_inventory
from hostler.errors import Conflict, Invalid, NotFound, Unavailable
from hostler.model.sim_api import (
    FaultInject,
    HardwareCommand,
    HardwareCommandView,
    HardwareVerb,
    Mode,
    ModeSet,
    RepairMode,
    StepGrant,
    StepView,
)
from hostler.sim import simulation as module
from hostler.sim.fault import FAULTS
from hostler.sim.simulation import Simulation, Story
from hostler.sim.world import World, WorldConfig

RACKS = """
racks:
  - name: r1
    pdus: [{name: pdu1, ports: {1: b1, 2: b2, 9: tor1}}, {name: pdu2, ports: {1: b3, 2: b4, 9: tor1}}]
    tors: [{name: tor1, ports: 8}]
    blades: {count: 4, prefix: b, cpus: 8, memory: 16GiB}
"""
Play = Callable[[World, Callable[[int], None]], Awaitable[None]]


@asynccontextmanager
async def simulated(
    play: Play | None = None, *, mode: Mode = Mode.MANUAL, rate: float | None = None
) -> AsyncIterator[tuple[Simulation, list[str]]]:
    told: list[str] = []
    plan = WorldConfig(inventory=read_inventory(RACKS, "racks.yaml"))
    simulation = Simulation(Story(name="test", seed=3, plan=plan, play=play), told=told.append)
    await simulation.start()
    try:
        assert await simulation.boot(within=60)
        await simulation.play(mode, rate=rate)
        yield simulation, told
    finally:
        await simulation.stop(within=10)


async def step(simulation: Simulation, seconds: float) -> StepView:
    return await simulation.step(StepGrant(seconds=seconds), within=30)


async def test_it_boots_and_then_time_stands_still() -> None:
    async with simulated() as (simulation, told):
        view = await simulation.view()
        assert (view.name, view.mode, view.faults, view.failures) == ("test", Mode.MANUAL, (), ())
        assert [(rack.name, rack.blades, rack.working, rack.amiss) for rack in view.racks] == [("r1", 4, 4, ())]
        assert [replica.leads for replica in view.replicas].count(True) == 1
        await asyncio.sleep(0.02)
        assert (await simulation.view()).now == view.now == simulation.clock().now()
        assert (await simulation.view()).wall == simulation.clock().wall()
        done = await step(simulation, 12.5)
        assert (done.done, done.now, done.asked_at) == (True, view.now + 12.5, view.now)
        assert told == []


async def test_what_is_broken_is_seen_proposed_repaired_and_then_the_fault_is_over() -> None:
    async with simulated() as (simulation, told):
        fault = await simulation.inject(FaultInject(fault="power", on="R1/pdu1"))
        await step(simulation, 1)
        view = await simulation.view()
        [rack] = view.racks
        assert (rack.working, [each.component for each in rack.amiss]) == (2, ["r1/b1", "r1/b2", "r1/pdu1"])
        assert [each.id for each in view.faults] == [fault.id]
        [proposal] = (await simulation.proposals()).items
        assert proposal.component == "r1/pdu1"
        assert "ask a human" in proposal.text
        assert (await simulation.repair(proposal.id)).id == proposal.id
        with pytest.raises(NotFound, match="not proposed; the proposals are"):
            await simulation.repair(proposal.id)
        await step(simulation, 20)
        view = await simulation.view()
        assert (view.faults, view.proposals, view.racks[0].working) == ((), (), 4)
        kinds = {entry.what for entry in (await simulation.log(after=0, limit=1000, last=False)).items}
        assert {"fault", "lifted", "repair", "hardware"} <= kinds
        assert told == []


async def test_a_fault_that_names_a_rack_is_over_when_what_it_broke_there_is_repaired() -> None:
    async with simulated() as (simulation, _):
        for _ in range(2):  # it can happen again
            await simulation.inject(FaultInject(fault="power", on="r1"))
            await step(simulation, 1)
            assert (await simulation.view()).racks[0].working == 0
            while proposals := (await simulation.proposals()).items:
                for proposal in proposals:
                    await simulation.repair(proposal.id)
            await step(simulation, 20)
            view = await simulation.view()
            assert (view.faults, view.racks[0].working) == ((), 4)


async def test_repairs_happen_by_themselves_only_if_they_are_asked_to_and_only_where_commands_are_enough() -> None:
    async with simulated() as (simulation, _):
        await simulation.inject(FaultInject(fault="blade_crash", on="r1/b3"))
        await simulation.inject(FaultInject(fault="power", on="r1/pdu1"))
        await step(simulation, 30)
        assert len((await simulation.proposals()).items) == 2
        for _ in range(2):
            assert (await simulation.auto_repair(RepairMode(automatic=True))).automatic
        await step(simulation, 30)
        page = await simulation.proposals()
        assert [each.component for each in page.items] == ["r1/pdu1"]
        assert not (await simulation.auto_repair(RepairMode(automatic=False))).automatic
        await simulation.inject(FaultInject(fault="blade_crash", on="r1/b4"))
        await step(simulation, 30)
        assert len((await simulation.proposals()).items) == 2


async def test_faults_that_cannot_be_are_refused_with_what_was_meant() -> None:
    async with simulated() as (simulation, _):
        cases: tuple[tuple[FaultInject, type[Exception], str], ...] = (
            (FaultInject(fault="power", on="r1/pdu9"), NotFound, "did you mean r1/pdu"),
            (FaultInject(fault="power", on="rr1"), NotFound, "did you mean r1"),
            (FaultInject(fault="replica_killed", on="replica-7"), NotFound, "did you mean replica-"),
            (FaultInject(fault="pwer", on="r1"), Invalid, "no such fault; the faults are power"),
            (FaultInject(fault="power"), Invalid, "no component given"),
            (FaultInject(fault="leader_killed", on="replica-1"), Invalid, "omit `on`"),
            (FaultInject(fault="replica_killed", on="r1/b1"), NotFound, "no such replica$"),
            (FaultInject(fault="power", on="r1", delay=5.0), Invalid, "delay"),
            (FaultInject(fault="tor_stuck", on="r1/b1"), Invalid, "not a tor"),
        )
        for wanted, error, text in cases:
            with pytest.raises(error, match=text):
                await simulation.inject(wanted)
        with pytest.raises(NotFound, match="not active"):
            await simulation.lift("fault-9")
        assert (await simulation.view()).faults == ()


def test_every_number_of_every_fault_can_be_given() -> None:
    fields = set(FaultInject.__struct_encode_fields__)
    for kind in FAULTS.values():
        assert set(kind.__struct_encode_fields__) <= fields, kind


async def test_a_step_that_takes_long_is_answered_before_it_is_done_and_a_change_of_mode_drops_it() -> None:
    async with simulated() as (simulation, _):
        long = StepGrant(seconds=7 * 86400.0)
        first = await simulation.step(long, within=0.0)
        assert not first.done
        waiting = asyncio.create_task(simulation.step(long, within=30))
        while len((await simulation.view()).steps) < 2:
            await asyncio.sleep(0.001)
        view = await simulation.view()
        with pytest.raises(Conflict):
            await simulation.change(ModeSet(mode=Mode.NO_WAIT, epoch=view.epoch - 1))
        await simulation.change(ModeSet(mode=Mode.MANUAL, epoch=view.epoch))
        with pytest.raises(Conflict, match="dropped: the mode was changed to manual"):
            await waiting
        after = await simulation.view()
        assert (after.steps, after.epoch) == ((), view.epoch + 1)
        with pytest.raises(Conflict):
            await simulation.step(StepGrant(seconds=1, epoch=view.epoch), within=5)
        assert (await step(simulation, 1)).done


async def test_it_says_how_fast_time_goes_by_itself() -> None:
    async with simulated() as (simulation, _):
        assert simulation.rate() == 0.0
        for mode, rate, expected in ((Mode.MEASURED, 0.5, 0.5), (Mode.NO_WAIT, 60.0, 0.0), (Mode.MEASURED, None, 1.0)):
            epoch = (await simulation.view()).epoch
            await simulation.change(ModeSet(mode=mode, rate=rate, epoch=epoch))
            assert simulation.rate() == expected


async def test_what_goes_wrong_inside_is_told_and_the_rest_goes_on() -> None:
    async def play(world: World, to_come: Callable[[int], None]) -> None:
        to_come(2)
        await world.sleep(5)
        to_come(1)
        raise ZeroDivisionError("in the timeline")

    async with simulated(play) as (simulation, told):
        await step(simulation, 1)
        assert (await simulation.view()).timeline == 2
        await step(simulation, 10)
        view = await simulation.view()
        assert len(told) == len(view.failures) == 1
        assert "the timeline ended: ZeroDivisionError: in the timeline (play, test_simulation.py" in told[0]
        assert view.timeline == 1
        async with simulation.store() as store:
            assert (await store.range("/", limit=1)).items
        await step(simulation, 10)


async def test_a_world_that_cannot_begin_says_why() -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise Invalid("world: it cannot be")

    plan = WorldConfig(inventory=read_inventory(RACKS, "racks.yaml"))
    simulation = Simulation(Story(name="test", plan=plan), told=lambda _: None)
    before, module.World = module.World, broken  # type: ignore[misc,assignment]
    try:
        with pytest.raises(Invalid, match="it cannot be"):
            await simulation.start()
    finally:
        module.World = before  # type: ignore[misc]
        await simulation.stop(within=10)


async def test_the_log_is_read_page_by_page_and_does_not_grow_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT", 50)
    async with simulated(mode=Mode.MANUAL) as (simulation, _):
        for _ in range(40):
            fault = await simulation.inject(FaultInject(fault="network", on="r1/b1"))
            await simulation.lift(fault.id)
        newest = await simulation.log(after=0, limit=5, last=True)
        assert [entry.number for entry in newest.items] == list(range(newest.total - 4, newest.total + 1))
        assert newest.after is None
        numbers: list[int] = []
        after: int | None = 0
        while after is not None:
            page = await simulation.log(after=after, limit=7, last=False)
            numbers += [entry.number for entry in page.items]
            after = None if page.after is None else int(page.after)
        assert numbers == list(range(numbers[0], newest.total + 1))
        assert 50 <= len(numbers) <= 101 < newest.total


async def test_when_it_has_ended_it_says_so() -> None:
    async with simulated() as (simulation, _):
        await simulation.stop(within=10)
        with pytest.raises(Unavailable, match="has ended"):
            await simulation.view()


def test_views_are_records_that_read_back() -> None:
    body = FaultInject(fault="power", on="r1", for_=3.0)
    assert msgspec.json.decode(body.encode()) == {"fault": "power", "on": "r1", "for": 3.0}


async def test_i46_an_operator_switches_blades_ports_and_cables_off_and_on() -> None:
    async with simulated() as (simulation, told):

        async def give(verb: HardwareVerb, on: str) -> HardwareCommandView:
            now = (await simulation.view()).now
            return await simulation.command(HardwareCommand(command=verb, on=on, guard=now))

        off = await give(HardwareVerb.POWER_OFF, "R1/b1")
        assert (off.on, off.followed) == ("r1/b1", True)
        assert any(line.startswith("r1/b1: working → off") for line in off.changes)
        assert (await give(HardwareVerb.POWER_OFF, "r1/b1")).changes == ()
        await give(HardwareVerb.DISCONNECT, "r1/tor1:2")
        await give(HardwareVerb.STOP, "r1/b3")
        await step(simulation, 5)
        amiss = {each.component: each.state for each in (await simulation.view()).racks[0].amiss}
        assert (amiss["r1/b1"], amiss["r1/b2"], amiss["r1/b3"]) == ("off", "isolated", "powered")
        for verb, on in (
            (HardwareVerb.POWER_ON, "r1/b1"),
            (HardwareVerb.CONNECT, "r1/b2"),
            (HardwareVerb.START, "r1/b3"),
        ):
            assert (await give(verb, on)).followed
        await step(simulation, 10)
        assert (await simulation.view()).racks[0].amiss == ()
        log = (await simulation.log(after=0, limit=1000, last=False)).items
        assert [entry.component for entry in log if entry.what == "command"][:2] == ["r1/b1", "r1/b1"]
        assert off.id in {entry.cause for entry in log if entry.what == "hardware"}
        assert told == []


async def test_i46_a_command_whose_guard_tick_is_older_than_the_component_s_state_changes_nothing() -> None:
    async with simulated() as (simulation, _):
        seen = (await simulation.view()).now
        await step(simulation, 5)
        await simulation.command(HardwareCommand(command=HardwareVerb.POWER_OFF, on="r1/b1", guard=seen + 5))
        with pytest.raises(Conflict, match="r1/b1.* changed at"):
            await simulation.command(HardwareCommand(command=HardwareVerb.POWER_ON, on="r1/b1", guard=seen))
        assert "r1/b1" in {each.component for each in (await simulation.view()).racks[0].amiss}
        await simulation.command(HardwareCommand(command=HardwareVerb.POWER_OFF, on="r1/b2", guard=seen))  # it has not
        with pytest.raises(Invalid, match="is in the future"):
            await simulation.command(HardwareCommand(command=HardwareVerb.POWER_ON, on="r1/b1", guard=seen + 50))
        with pytest.raises(NotFound, match="no such component"):
            await simulation.command(HardwareCommand(command=HardwareVerb.POWER_ON, on="r1/b99", guard=seen))
        with pytest.raises(Invalid, match="does not apply"):
            await simulation.command(HardwareCommand(command=HardwareVerb.STOP, on="r1/pdu1", guard=seen))


async def test_i46_what_is_stuck_does_not_follow_and_says_so() -> None:
    async with simulated() as (simulation, _):
        await simulation.inject(FaultInject(fault="pdu_stuck", on="r1/pdu1"))
        now = (await simulation.view()).now
        done = await simulation.command(HardwareCommand(command=HardwareVerb.POWER_OFF, on="r1/pdu1", guard=now))
        assert not done.followed
        assert "without effect: it is stuck" in done.changes[0]
