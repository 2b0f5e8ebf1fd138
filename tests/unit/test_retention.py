"""Garbage collection of retained machines: what may go, and when."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from controller_world import World, ids, play

from hostler.engine.controllers.retention import RETENTION
from hostler.entry.doctor_retained import retained as doctor
from hostler.keys.access import AUDIT
from hostler.keys.inventory import WORKLOAD
from hostler.keys.node import MEMBER, RETAINED, RETAINED_REQUEST
from hostler.keys.vm import VM
from hostler.model.inventory import Capacity
from hostler.model.node import Lifecycle, NodeRecord
from hostler.model.retained import Retained
from hostler.model.vm import MachineState, OnNodeLoss, Reinstatement, VmSpec
from hostler.model.workload import Workload
from hostler.settings import load

if TYPE_CHECKING:
    from pathlib import Path

DAY = 86400.0


async def registered(world: World, **fields: Any) -> None:
    """The node n1, which is unreachable."""
    known = {"node": "n1", "lifecycle": Lifecycle.ON_DUTY, "capacity": Capacity(cpus=1, memory_mib=1)}
    record = NodeRecord(**(known | {"registered_at": 0.0} | fields))
    await world.raw.put(MEMBER.fill(node="n1"), MEMBER.encode(record))


async def keep(world: World, name: str, age: float, **changes: Any) -> None:
    """A record as an agent writes it."""
    whose = ids("a") | {"place": ""} | changes
    record = Retained(
        name=name,
        org=whose["org"],
        project=whose["project"],
        vm=whose["vm"],
        vm_name="web",
        spec=VmSpec(cpus=1, memory_mib=64),
        retained_at=world.clock.wall() - age,
        place=whose["place"],
    )
    await world.raw.put(RETAINED.fill(node="n1", name=name), RETAINED.encode(record))


async def asked(world: World) -> list[str]:
    """What the agents are asked to delete."""
    return [entry.parts["name"] for entry in (await RETAINED_REQUEST.list(world.raw)).entries]


def test_a_retained_machine_is_deleted_when_its_retention_is_over_and_the_audit_says_so() -> None:
    async def story(world: World) -> None:
        await registered(world)
        await keep(world, "young", RETENTION - DAY, vm="gone")
        await keep(world, "old", RETENTION + DAY, vm="gone")
        await world.leader()
        await world.clock.sleep(130.0)
        assert await asked(world) == ["old"]
        lines = [line.value for line in (await AUDIT.list(world.raw)).entries if line.value.verb == "retained.expire"]
        assert [(line.who, line.name) for line in lines] == [("hostler", "web")]
        assert lines[0].subject == RETAINED.fill(node="n1", name="old")

    play(story)


@pytest.mark.parametrize("place", ["", "new"])
def test_of_a_disk_that_no_node_has_any_more_the_record_goes_when_its_retention_is_over(place: str) -> None:
    async def story(world: World) -> None:
        if place:
            await registered(world, place=place)
        await keep(world, "young", RETENTION - DAY, vm="gone", place="old")
        await keep(world, "old", RETENTION + DAY, vm="gone", place="old")
        await keep(world, "needed", RETENTION + DAY, place="old")
        await world.create("a")
        await world.leader()
        await world.clock.sleep(130.0)
        assert await asked(world) == [], "no agent could answer it"
        assert {entry.parts["name"] for entry in (await RETAINED.list(world.raw)).entries} == {"young", "needed"}
        assert [line.value.verb for line in (await AUDIT.list(world.raw)).entries].count("retained.expire") == 1

    play(story)


def test_the_only_disk_of_a_vm_is_kept_however_old_it_is() -> None:
    async def story(world: World) -> None:
        await world.create("a")
        await keep(world, "old", 100 * DAY)
        await world.leader()
        await world.until_state("a", MachineState.PENDING)
        await world.clock.sleep(130.0)
        assert await asked(world) == []
        await world.node("n1")  # then it gets another one
        await world.until_state("a", MachineState.RUNNING)
        await world.clock.sleep(130.0)
        assert await asked(world) == ["old"]

    play(story)


def test_a_disk_that_a_vm_waits_for_is_kept() -> None:
    async def story(world: World) -> None:
        await world.create("b", reinstate=Reinstatement(node="n1", name="old"))
        await keep(world, "old", 100 * DAY, vm="gone")
        await world.leader()
        await world.until_state("b", MachineState.PENDING)
        await world.clock.sleep(130.0)
        assert await asked(world) == []

    play(story)


def test_the_doctor_names_what_is_retained_and_fences_of_an_earlier_release(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        settings = load({"data": tmp_path}, environ={}, cwd=tmp_path)
        assert await doctor(world.raw, settings) == []
        await keep(world, "old", 0.0, place="there")
        _, lost = await doctor(world.raw, settings)
        assert "no node has the disks of web of n1" in lost.what
        await registered(world, place="there")
        await world.create("a", on_node_loss=OnNodeLoss.FENCE)
        kept, fence = await doctor(world.raw, settings)
        assert "web on n1 until" in kept.what
        assert "earlier release" in fence.what
        entry = await VM.get(world.raw, **ids("a"))
        assert entry is not None
        await VM.replace(world.raw, entry, msgspec.structs.replace(entry.value, returns=True))
        assert len(await doctor(world.raw, settings)) == 1
        old = Workload(name="shop", instances=1, spec=VmSpec(cpus=1, memory_mib=64))
        await WORKLOAD.create(world.raw, old, workload="shop")
        _, fence = await doctor(world.raw, settings)
        assert "workload shop get new disks" in fence.what
        assert "hostler vm update" not in fence.next
        found = await WORKLOAD.get(world.raw, workload="shop")
        assert found is not None
        await WORKLOAD.replace(world.raw, found, msgspec.structs.replace(old, returns=True))
        assert len(await doctor(world.raw, settings)) == 1

    play(story)
