"""Nodes with all kinds of names, places and pasts, and agents that die before they tell, in virtual time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from hostler.drivers.machines.simulated import MemoryHost
from hostler.drivers.store.memory import MemoryStore
from hostler.engine.idempotent_writer import Writer
from hostler.engine.migration import migrate
from hostler.engine.nodes import NodeService
from hostler.engine.request import HOSTLER, Request
from hostler.engine.view import View
from hostler.errors import Conflict
from hostler.keys.families import ALIVE, COMMAND, HANDLE, MEMBER, VM
from hostler.model.inventory_api import Drain
from hostler.model.node import Lifecycle, VmCommand
from hostler.model.vm import MachineState, OnNodeLoss, VirtualMachine, VmHandle, VmSpec
from hostler.model.vm_api import VmCreate, VmPhase

from .plane import ORG, PROJECT, Plane, ReplicaHost

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hostler.model.vm_api import VmView

    from .plane import Host

SPEC = VmSpec(cpus=1, memory_mib=64)


def plane_of(*nodes: str, seed: int = 1) -> Plane:
    plane = Plane(seed=seed, nodes=0)
    plane.places = {node: MemoryHost(f"place of {node}") for node in nodes}
    return plane


def operator(plane: Plane) -> NodeService:
    """Its view is empty, which costs the sizes in its answers."""
    new_id = plane.hosts["replica-1"].new_id
    writer = Writer(plane.store, clock=plane.clock, new_id=new_id)
    return NodeService(plane.store, writer, View(plane.store, clock=plane.clock), clock=plane.clock)


async def created(plane: Plane, name: str = "x", **wish: Any) -> str:
    wanted = VmCreate(name=name, spec=SPEC, **wish)
    return (await plane.wish(lambda vms, request: vms.create(request, ORG, PROJECT, wanted))).value.id


async def shown(plane: Plane, name: str = "x") -> VmView:
    return await plane.wish(lambda vms, _: vms.get(HOSTLER, ORG, PROJECT, name))


async def until(plane: Plane, holds: Callable[[], Awaitable[bool]], within: float = 120.0) -> None:
    end = plane.clock.now() + within
    while not await holds():
        assert plane.clock.now() < end, f"not within {within:g} s: {await plane.unsettled()}"
        await asyncio.sleep(0.25)


async def reaches(plane: Plane, phase: VmPhase, node: str | None, name: str = "x") -> None:
    async def holds() -> bool:
        view = await shown(plane, name)
        return view.phase is phase and view.node == node and (phase is not VmPhase.RUNNING or view.settled)

    await until(plane, holds)


# Names as people type them

TYPED = ("Rack1-B1", "Rack1-Äb2")


@pytest.mark.parametrize("loss", list(OnNodeLoss))
def test_a_node_whose_name_has_capitals_runs_drains_fences_and_can_be_confirmed_off(loss: OnNodeLoss) -> None:
    async def story(plane: Plane) -> None:
        nodes = operator(plane)
        vm = await created(plane, on_node_loss=loss, node_labels={"node": "RACK1-B1"})
        await reaches(plane, VmPhase.RUNNING, "rack1-b1")
        member = await MEMBER.get(plane.store, node="rack1-b1")
        assert member is not None
        assert member.value.node == "Rack1-B1"
        assert member.value.lifecycle is Lifecycle.ON_DUTY
        assert len(plane.places["Rack1-B1"].intervals(vm, plane.clock.now())) == 1, "it was made once"

        free = await created(plane, "free", on_node_loss=loss, node_labels={})
        await until(plane, lambda: _runs(plane, free))
        await nodes.drain(Request(HOSTLER), "RACK1-b1", Drain())
        await reaches(plane, VmPhase.RUNNING, "rack1-äb2", "free")
        await nodes.activate(Request(HOSTLER), "rack1-B1")

        plane.supervised = False
        plane.kill("Rack1-Äb2")
        silent_at = plane.clock.now()
        await until(plane, lambda: _silent(plane, "rack1-äb2"))
        if loss is not OnNodeLoss.RECREATE:
            plane.places["Rack1-Äb2"].power_off(plane.clock.now())
            await nodes.confirm_off(Request(HOSTLER), "Rack1-ÄB2")
        await reaches(plane, VmPhase.RUNNING, "rack1-b1", "free")
        assert loss is not OnNodeLoss.RECREATE or plane.clock.now() - silent_at < 30.0
        plane.check_runs()

    plane_of(*TYPED).run(story)


async def _runs(plane: Plane, vm: str) -> bool:
    return any(place.intervals(vm, plane.clock.now()) for place in plane.places.values())


async def _silent(plane: Plane, node: str) -> bool:
    return await ALIVE.get(plane.store, node=node) is None


# Places


def test_a_machine_comes_up_at_another_place_of_its_node_only_once_the_old_one_is_confirmed_off() -> None:
    async def story(plane: Plane) -> None:
        vm = await created(plane)
        await reaches(plane, VmPhase.RUNNING, "r1-1")
        plane.supervised = False
        plane.kill("r1-1")
        old, new = plane.places["r1-1"], MemoryHost("a new disk")
        plane.places["r1-1"] = new
        plane.spawn("r1-1")
        await asyncio.sleep(600)
        assert new.intervals(vm, plane.clock.now()) == []
        assert old.intervals(vm, plane.clock.now())[-1][1] is None, "it ran on where it was"
        old.power_off(plane.clock.now())
        await operator(plane).confirm_off(Request(HOSTLER), "r1-1")
        await reaches(plane, VmPhase.RUNNING, "r1-1")
        assert [end for _, end in new.intervals(vm, plane.clock.now())] == [None]

    plane_of("r1-1").run(story)


# Moved from a state file


def test_a_machine_whose_node_never_joins_the_cluster_is_freed_by_confirming_that_it_is_off() -> None:
    async def story(plane: Plane) -> None:
        ids: dict[str, Any] = {"org": ORG, "project": PROJECT, "vm": "v"}
        vm = VirtualMachine(id="v", name="v", org=ORG, project=PROJECT, spec=SPEC, created_at=0.0)
        async with MemoryStore(clock=plane.clock) as old:
            await VM.create(old, vm, **ids)
            await HANDLE.create(old, VmHandle(id="v", node="local-1", state=MachineState.RUNNING, seen_at=0.0), **ids)
            await COMMAND.create(old, VmCommand(org=ORG, project=PROJECT, vm="v", spec=SPEC), node="local-1", vm="v")
            await migrate(old, plane.store, source="f", clock=plane.clock, new_id=lambda: "file")
        await reaches(plane, VmPhase.SILENT, "local-1", "v")
        await asyncio.sleep(600)
        assert (await shown(plane, "v")).phase is VmPhase.SILENT
        await operator(plane).confirm_off(Request(HOSTLER), "local-1")
        await reaches(plane, VmPhase.RUNNING, "r1-1", "v")

    plane_of("r1-1").run(story)


# Taken, and not told


class Forgetful(Plane):
    """Its agents die when a snapshot has just been taken, before they say so. Nobody starts them again."""

    def passes(self, host: Host, point: str) -> bool:
        if self.supervised and point.startswith("snapshot.done:after"):
            self.supervised = False
            self.kill(host.name)
            return True
        return super().passes(host, point)


def test_a_snapshot_that_was_taken_and_not_told_of_is_not_taken_for_a_later_one_of_its_name() -> None:
    async def story(plane: Plane) -> None:
        vm = await created(plane)
        await reaches(plane, VmPhase.RUNNING, "r1-1")
        place = plane.places["r1-1"]
        await plane.wish(lambda vms, request: vms.snapshot(request, ORG, PROJECT, "x", "S"))
        await until(plane, lambda: _is_dead(plane, "r1-1"))
        assert "S" in place.contents.rows[vm].snapshots
        await plane.wish(lambda vms, request: vms.drop_snapshot(request, ORG, PROJECT, "x", "S"))
        place.contents.rows[vm] = msgspec.structs.replace(place.contents.rows[vm], disk="later")  # it runs on
        await asyncio.sleep(60)
        replica = plane.hosts["replica-1"]
        assert isinstance(replica, ReplicaHost)
        with pytest.raises(Conflict, match="still being dropped"):
            await replica.ask(lambda vms: vms.snapshot(Request(HOSTLER), ORG, PROJECT, "x", "S"))
        plane.spawn("r1-1")
        await plane.wish(lambda vms, request: vms.snapshot(request, ORG, PROJECT, "x", "S"))
        await plane.settled()
        assert place.contents.rows[vm].snapshots == {"S": "later"}
        wish = await VM.get(plane.store, org=ORG, project=PROJECT, vm=vm)
        assert wish is not None
        assert wish.value.dropped == {}, "what was answered is forgotten"

    plane = Forgetful(seed=1, nodes=1)
    plane.run(story)


async def _is_dead(plane: Plane, name: str) -> bool:
    return plane.hosts[name].dead
