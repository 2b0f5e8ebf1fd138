"""Burn-in and retirement in virtual time, with the leader killed at every point of them."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING

import msgspec
import pytest
from dose import every_nth

from hostler.engine.request import HOSTLER
from hostler.entry.cli.rack import flow_words
from hostler.keys.families import BLADE, BLADE_FLOW, COMMAND, MEMBER, RACK, RACK_FLOW, TRACE
from hostler.model.inventory import Blade, Capacity, Condition, FlowStep, Rack
from hostler.model.inventory_api import HardwareSet
from hostler.model.node import Lifecycle
from hostler.model.vm import VmSpec
from hostler.model.vm_api import VmCreate
from hostler.ports.store import MAX_OPERATIONS
from hostler.sim.fault import fault_of
from hostler.sim.world import run_world

from .plane import ORG, PROJECT, Crash, Plane
from .world_scene import plan

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from hostler.engine.control_plane import ControlPlane
    from hostler.engine.service import Service
    from hostler.sim.world import World

    from .plane import Host

PERIOD = 300.0
CONFIG = dataclasses.replace(Plane.config, burn_in=PERIOD)
MOST = 200
POINTS = every_nth(range(1, MOST), 7)


class FlowPlane(Plane):
    """Two blades, `r1/1` and `r1/2`, in an inventory."""

    def more_controllers(self, host: Host, graph: ControlPlane) -> Sequence[Service]:  # noqa: ARG002 - as in Plane
        return (graph.flow_controller(),)

    async def rack(self, condition: Condition) -> None:
        old = await RACK.get(self.store, rack="r1")
        record = Rack(name="r1") if old is None else old.value
        await self.store.txn([], [RACK.put(msgspec.structs.replace(record, condition=condition), rack="r1")])

    async def blade(self, name: str, condition: Condition) -> None:
        record = Blade(name=name, condition=condition, capacity=Capacity(cpus=0, memory_mib=0))
        await self.store.txn([], [BLADE.put(record, rack="r1", blade=name)])

    async def racked(self, rack: Condition, *blades: Condition) -> None:
        await self.rack(rack)
        for number, condition in enumerate(blades, 1):
            await self.blade(str(number), condition)

    async def conditions(self) -> tuple[str, ...]:
        blades = (await BLADE.list(self.store)).entries
        rack = await RACK.get(self.store, rack="r1")
        assert rack is not None
        return (rack.value.condition.value, *(entry.value.condition.value for entry in blades))

    async def flow(self, blade: str = "") -> tuple[FlowStep | None, str]:
        found = await (
            BLADE_FLOW.get(self.store, rack="r1", blade=blade) if blade else RACK_FLOW.get(self.store, rack="r1")
        )
        return (None, "") if found is None else (found.value.step, found.value.reason)

    async def until(self, met: Callable[[], Awaitable[bool]], within: float = 900.0) -> None:
        end = self.clock.now() + within
        while not await met():
            assert self.clock.now() < end, (await self.conditions(), await self.flow(), await self.flow("1"))
            await asyncio.sleep(1.0)

    async def come_to(self, *conditions: str, within: float = 900.0) -> None:
        async def met() -> bool:
            return await self.conditions() == conditions

        await self.until(met, within)


def lived(plane: Plane, node: str) -> Callable[[], Awaitable[bool]]:
    async def met() -> bool:
        found = await MEMBER.get(plane.store, node=node)
        return found is not None and found.value.lifecycle is Lifecycle.ON_DUTY

    return met


async def vm(plane: Plane, name: str = "web") -> None:
    wanted = VmCreate(name=name, spec=VmSpec(cpus=1, memory_mib=256))
    await plane.wish(lambda vms, request: vms.create(request, ORG, PROJECT, wanted))
    await plane.settled()


async def burn_in(plane: FlowPlane) -> None:
    await plane.racked(Condition.OPERATIONAL, Condition.BURN_IN, Condition.OPERATIONAL)
    await plane.come_to("operational", "operational", "operational")
    assert await plane.flow("1") == (None, "")


async def retire(plane: FlowPlane) -> None:
    """A blade with a machine whose disk holds something."""
    await plane.blade("1", Condition.RETIRING)
    await plane.come_to("operational", "retired", "operational")
    step, _ = await plane.flow("1")
    assert step is FlowStep.RETIRED
    assert not (await COMMAND.list(plane.store, node="r1-1")).entries
    (row,) = plane.places["r1-2"].contents.rows.values()
    assert row.disk == "precious"


async def begin_retire(plane: FlowPlane) -> None:
    await plane.racked(Condition.OPERATIONAL, Condition.OPERATIONAL, Condition.OPERATIONAL)
    await plane.until(lived(plane, "r1-1"))
    await plane.blade("2", Condition.OUT_FOR_REPAIR)
    await vm(plane)
    (row,) = plane.places["r1-1"].contents.rows.values()
    plane.places["r1-1"].put([msgspec.structs.replace(row, disk="precious")])
    await plane.blade("2", Condition.OPERATIONAL)


async def begin_nothing(plane: FlowPlane) -> None:
    await plane.until(lived(plane, "r1-1"))


VERBS = {"burn-in": (begin_nothing, burn_in), "retirement": (begin_retire, retire)}


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("verb", VERBS)
def test_i48_with_the_leader_killed_at_any_point_the_flow_comes_to_its_end(verb: str, point: int) -> None:
    begin, do = VERBS[verb]
    crash = Crash(watched="replica", victims=("replica",), at=point)
    plane = FlowPlane(config=CONFIG, seed=point, crash=crash)

    async def scenario(_: Plane) -> None:
        await begin(plane)
        crash.armed = True
        await do(plane)

    plane.run(scenario)


def test_i48_a_blade_that_becomes_unreachable_in_its_burn_in_is_out_for_repair_with_the_reason() -> None:
    plane = FlowPlane(config=CONFIG, seed=1)

    async def scenario(_: Plane) -> None:
        await plane.until(lived(plane, "r1-1"))
        await plane.racked(Condition.OPERATIONAL, Condition.BURN_IN, Condition.OPERATIONAL)
        await asyncio.sleep(PERIOD - 20)
        assert (await plane.flow("1"))[0] is FlowStep.WATCHING
        plane.supervised = False
        plane.kill("r1-1")
        await plane.come_to("operational", "out_for_repair", "operational")
        step, reason = await plane.flow("1")
        assert step is FlowStep.FAILED
        assert reason.startswith("node r1-1 became unreachable, ")
        traces = [entry.value for entry in (await TRACE.list(plane.store)).entries]
        subject = BLADE.fill(rack="r1", blade="1")
        assert [t.what for t in traces if t.subject == subject] == ["watching", "out_for_repair"]
        assert any("its burn-in failed: node r1-1 became unreachable" in t.why for t in traces)
        await plane.blade("1", Condition.OPERATIONAL)  # somebody repaired it, and says so

        async def gone() -> bool:
            return await plane.flow("1") == (None, "")

        await plane.until(gone)

    plane.run(scenario)


def test_i48_an_agent_that_was_restarted_begins_its_burn_in_anew_also_while_nobody_leads() -> None:
    plane = FlowPlane(config=CONFIG, seed=2)

    async def scenario(_: Plane) -> None:
        await plane.until(lived(plane, "r1-1"))
        await plane.racked(Condition.OPERATIONAL, Condition.BURN_IN, Condition.OPERATIONAL)
        await asyncio.sleep(PERIOD - 20)
        plane.supervised = False
        plane.kill("replica-1")
        plane.kill("r1-1")
        plane.spawn("r1-1")
        await asyncio.sleep(60)
        plane.supervised = True
        plane.spawn("replica-1")
        await asyncio.sleep(60)
        assert await plane.conditions() == ("operational", "burn_in", "operational")
        assert "the period starts again" in (await plane.flow("1"))[1]
        await plane.come_to("operational", "operational", "operational")

    plane.run(scenario)


def test_i48_a_rack_is_operational_when_its_blades_have_passed_and_retired_when_they_are() -> None:
    plane = FlowPlane(config=CONFIG, seed=3)

    async def scenario(_: Plane) -> None:
        await plane.until(lived(plane, "r1-1"))
        await plane.racked(Condition.BURN_IN, Condition.BURN_IN, Condition.OPERATIONAL)
        await asyncio.sleep(10)
        step, reason = await plane.flow()
        assert (step, reason.partition(";")[0]) == (FlowStep.WATCHING, "0 of 2 blades have passed")
        await plane.come_to("operational", "operational", "operational")
        assert await plane.flow() == (None, "")
        await plane.rack(Condition.RETIRING)
        await plane.come_to("retired", "retired", "retired")
        assert (await plane.flow())[0] is FlowStep.RETIRED

    plane.run(scenario)


def test_i48_a_rack_of_more_blades_than_a_transaction_compares_is_retired() -> None:
    plane = FlowPlane(config=CONFIG, seed=3)

    async def scenario(_: Plane) -> None:
        await plane.until(lived(plane, "r1-1"))
        await plane.racked(Condition.RETIRING, *[Condition.OPERATIONAL] * (MAX_OPERATIONS + 2))
        await plane.come_to(*["retired"] * (MAX_OPERATIONS + 3))

    plane.run(scenario)


def test_i48_the_step_its_reason_and_since_when_are_shown_and_why_explains_them() -> None:
    async def story(world: World) -> None:
        await world.sleep(30)
        change = HardwareSet(condition=Condition.BURN_IN)
        await world.ask(lambda d: d.inventory.set_part(d.request, "r1", "b1", change))
        await world.ask(lambda d: d.inventory.set_rack(d.request, "r2", change))
        await world.sleep(10)
        shown = await world.ask(lambda d: d.inventory.blade(HOSTLER, "r1", "b1"))
        assert shown.flow is not None
        assert (shown.flow.step, shown.flow.reason) == (FlowStep.WATCHING, "operational after 1.67 min without a fault")
        assert shown.flow.until == shown.flow.step_at + 100.0
        rack = (await world.ask(lambda d: d.inventory.rack(HOSTLER, "r2"))).rack
        assert rack.flow is not None
        assert rack.flow.reason.startswith("0 of 3 blades have passed; b1: operational after")
        assert "burn in: watching since " in flow_words(rack.flow)
        why = await world.ask(lambda d: d.traces.why(HOSTLER, "rack/r1/b1"))
        assert why.state == "is enabled and burn in; burn in: watching, operational after 1.67 min without a fault"
        world.inject(fault_of({"fault": "blade_crash", "on": "r1/b1", "for": 500}))
        await world.sleep(150)
        listed = (await world.ask(lambda d: d.inventory.racks(HOSTLER))).items
        assert [(each.name, each.condition, each.flow) for each in listed][1] == ("R2", Condition.OPERATIONAL, None)
        why = await world.ask(lambda d: d.traces.why(HOSTLER, "rack/r1/b1"))
        assert "is enabled and out for repair; burn in: failed, node r1-b1 became unreachable, " in why.state

    run_world(plan(burn_in=100.0), story, seed=6)


def test_i48_what_cannot_be_handed_over_blocks_a_retirement_and_stays() -> None:
    plane = FlowPlane(config=CONFIG, seed=4, hands_over=False)

    async def scenario(_: Plane) -> None:
        await begin_retire(plane)
        await plane.blade("1", Condition.RETIRING)
        await asyncio.sleep(120)
        step, reason = await plane.flow("1")
        assert step is FlowStep.BLOCKED
        assert reason.startswith(f"node r1-1 cannot hand over 1 machine ({ORG}/{PROJECT}/web), whose disks are local")
        (row,) = plane.places["r1-1"].contents.rows.values()
        assert row.disk == "precious"
        await plane.wish(lambda vms, request: vms.delete(request, ORG, PROJECT, "web"))
        await plane.come_to("operational", "retired", "operational")

    plane.run(scenario)


def test_i48_a_retirement_that_is_called_off_puts_the_node_on_duty_again() -> None:
    plane = FlowPlane(config=CONFIG, seed=5)

    async def scenario(_: Plane) -> None:
        await begin_retire(plane)
        await plane.blade("2", Condition.OUT_FOR_REPAIR)  # so that the machine has nowhere to go
        await plane.blade("1", Condition.RETIRING)

        async def blocked() -> bool:
            return (await plane.flow("1"))[0] is FlowStep.BLOCKED

        await plane.until(blocked)
        assert "node r1-1 is drained, but" in (await plane.flow("1"))[1]
        await plane.blade("1", Condition.OPERATIONAL)
        await plane.until(lived(plane, "r1-1"))
        assert await plane.flow("1") == (None, "")
        assert plane.places["r1-1"].contents.rows

    plane.run(scenario)
