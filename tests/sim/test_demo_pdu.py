"""One system: a pdu fails, and everything that follows from it happens in order and tells why.

Its blades go dark, the leases of their nodes lapse and their endpoints with them, slices are loaded elsewhere, machines
are started elsewhere once the old node is known to be off, and the record that a web front end shows of a lab is
brought up to date.
"""

from __future__ import annotations

from hostler.engine.decision_history import TraceService
from hostler.engine.inventory.inventory_file import read_inventory
from hostler.engine.request import HOSTLER
from hostler.keys.families import ENDPOINT, HANDLE, SLICE, VM
from hostler.model.control_api import WhyView
from hostler.model.deployment import Blueprint, SliceSpec, SliceState
from hostler.model.lab import ORG, LabRequest
from hostler.model.vm import MachineState, OnNodeLoss, VmSpec
from hostler.model.vm_api import VmCreate
from hostler.sim.fault import PowerFault
from hostler.sim.world import World, WorldConfig, run_world
from hostler.sim.world.event_log import LogEntry

RACKS = """
racks:
  - name: r1
    pdus: [{name: pdu1, ports: 6}]
    tors: [{name: tor1, ports: 6}]
    blades: {count: 3, cpus: 8, memory: 16GiB}
  - name: r2
    pdus: [{name: pdu1, ports: 6}]
    tors: [{name: tor1, ports: 6}]
    blades: {count: 3, cpus: 8, memory: 16GiB}
"""
USER = "ada"
CART = "org.shop:cart:1.0.0"
INSTANCES = 6


async def handle_of(world: World, org: str, project: str) -> tuple[str, str, MachineState]:
    """Id, node and state of the one machine of a project."""
    (vm,) = (await VM.list(world.store, org=org, project=project)).entries
    handle = await HANDLE.get(world.store, org=org, project=project, vm=vm.value.id)
    assert handle is not None
    return vm.value.id, handle.value.node, handle.value.state


async def slices_of(world: World) -> dict[int, tuple[str, SliceState]]:
    """Node and state of every instance, by number."""
    found = {}
    for entry in (await SLICE.list(world.store)).entries:
        for number, one in entry.value.each().items():
            assert number not in found
            found[number] = entry.parts["node"], one.state
    return found


async def why(world: World, text: str) -> WhyView:
    return await world.ask(lambda d: TraceService(world.store, d.view, clock=world.clock).why(HOSTLER, text))


def first(log: list[LogEntry], kind: str, component: str, after: int = 0) -> int:
    """Where such an entry stands in the log."""
    for n, entry in enumerate(log[after:], after):
        if entry.kind == kind and component in entry.component:
            return n
    raise AssertionError(f"no {kind} of {component} after entry {after}")


def test_a_pdu_fails_and_every_step_tells_why() -> None:
    spec = VmSpec(cpus=1, memory_mib=256)

    async def story(world: World) -> None:
        await world.sleep(20)
        world.lab_redis.push("provision", LabRequest(webuserid=USER, lab_id=5).encode())
        for name, loss in (("web", OnNodeLoss.RECREATE), ("db", OnNodeLoss.WAIT)):
            wanted = VmCreate(name=name, spec=spec, on_node_loss=loss)
            await world.ask(lambda d, name=name, wanted=wanted: d.vms.create(d.request, "acme", name, wanted))
        shop = Blueprint(slices=(SliceSpec(artifact=CART, instances=INSTANCES),))
        await world.ask(lambda d: d.blueprints.apply(d.request, "shop", shop))
        await world.sleep(30)
        lab, node, state = await handle_of(world, ORG, USER)
        assert state is MachineState.RUNNING
        assert world.lab_redis.records[USER].available
        rack = node.partition("-")[0]
        before = {project: await handle_of(world, "acme", project) for project in ("web", "db")}

        deployed = await slices_of(world)
        assert len(deployed) == INSTANCES
        lost = {number for number, (at, _) in deployed.items() if at.startswith(f"{rack}-")}
        assert len(lost) == INSTANCES // 2, "they are spread over both racks"

        began = world.clock.now()
        world.inject(PowerFault(on=f"{rack}/pdu1"))
        await world.sleep(200)

        same, other, state = await handle_of(world, ORG, USER)
        assert (same, state) == (lab, MachineState.RUNNING)
        assert not other.startswith(f"{rack}-")

        # So did what else was there: what is fenced, and what waits until its node is known to be off.
        for project, (id_, at, _) in before.items():
            now = await handle_of(world, "acme", project)
            assert (now[0], now[2]) == (id_, MachineState.RUNNING)
            assert now[1].startswith(f"{rack}-") is False
            assert at.startswith(f"{rack}-") or now[1] == at, "it was moved without need"

        # In order, each with its cause.
        log = world.log.entries
        fault = first(log, "fault", f"{rack}/pdu1")
        dark = first(log, "hardware", f"{rack}/{node.partition('-')[2]}", fault)
        silent = first(log, "silent", node, dark)
        assert log[dark].cause == f"{rack}/pdu1"
        assert "pdu1" in log[dark].text

        # No two at once, and not before the old one is known to be off.
        old, new = world.blades[node].intervals(lab)[-1], world.blades[other].intervals(lab)[-1]
        assert old[1] == began
        assert new[0] >= log[silent].at
        assert new[1] is None

        # The record that the front end reads.
        assert world.lab_redis.records[USER].available

        # Slices: first nobody is sent to what is gone, then others are loaded elsewhere; the rest was left alone.
        after = await slices_of(world)
        assert len(after) == INSTANCES
        assert all(state is SliceState.ACTIVE and not at.startswith(f"{rack}-") for at, state in after.values())
        assert all(after[number] == deployed[number] for number in deployed if number not in lost)
        shown = {entry.value.instance: entry.value.node_id for entry in (await ENDPOINT.list(world.store)).entries}
        assert shown == {number: at for number, (at, _) in after.items()}
        for number in lost:
            withdrawn = first(log, "endpoint", f"{CART}#{number} ", fault)
            again = next(
                n for n in range(fault, len(log)) if "LOAD on" in log[n].text and f"#{number}" in log[n].component
            )
            assert "withdrawn" in log[withdrawn].text
            assert withdrawn < again
            assert log[withdrawn].at >= log[silent].at - 10.0
            assert log[again].cause, "why it was loaded there is told"

        # Why it is where it is: from the wish over the silence to the new node.
        told = await why(world, f"lab/{USER}")
        story_ = " | ".join(f"{step.actor} {step.what}: {step.why}" for step in told.steps)
        for part in ("place", "take", "silent"):
            assert any(step.what == part for step in told.steps), story_
        silence = next(step for step in told.steps if step.what == "silent")
        assert f"{rack}/pdu1" in silence.why, story_

    racks = read_inventory(RACKS)
    plan = WorldConfig(inventory=racks, labs=True, slices=True, power=True, power_grace=5.0, brake_share=0.5)
    run_world(plan, story, seed=7)
