"""Garbage collection of retained machines: what may go, and when."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from controller_world import Leader, World, ids, play
from environment import env_on

from hostler.engine.controllers.janitor import WHO
from hostler.engine.controllers.retention import LISTS_WITHIN, RETENTION
from hostler.engine.idempotent_writer import Writer
from hostler.engine.request import HOSTLER, Request
from hostler.engine.retained import RetainedService
from hostler.engine.vms import VmService
from hostler.entry.doctor.records import retained_machines as doctor
from hostler.keys.families import AUDIT, HANDLE, MEMBER, RETAINED, RETAINED_REQUEST, VM, WORKLOAD
from hostler.model.inventory import Capacity
from hostler.model.node import Lifecycle, NodeRecord, Retained, RetainedRequest
from hostler.model.vm import MachineState, OnNodeLoss, Reinstatement, VmSpec
from hostler.model.vm_api import RetainedRestore
from hostler.model.workload import Workload
from hostler.ports.store import Put
from hostler.settings import load

if TYPE_CHECKING:
    from pathlib import Path

DAY = 86400.0


async def registered(world: World, **fields: Any) -> None:
    """The node n1, which is unreachable."""
    known = {"node": "n1", "lifecycle": Lifecycle.ON_DUTY, "capacity": Capacity(cpus=1, memory_mib=1)}
    record = NodeRecord(**(known | {"registered_at": 0.0} | fields))
    await world.raw.put(MEMBER.fill(node="n1"), MEMBER.encode(record))


async def keep(world: World, name: str, age: float, *, listed_ago: float | None = 0.0, **changes: Any) -> None:
    """A record as an agent writes it. `listed_ago`: that much later the leader saw it first; None: it has not."""
    whose = ids("a") | {"place": ""} | changes
    record = Retained(
        name=name,
        org=whose["org"],
        project=whose["project"],
        vm=whose["vm"],
        vm_name="web",
        spec=VmSpec(cpus=1, memory_mib=64),
        retained_at=world.clock.wall() - age,
        listed_at=0.0 if listed_ago is None else world.clock.wall() - age + listed_ago,
        place=whose["place"],
    )
    await world.raw.put(RETAINED.fill(node="n1", name=name), RETAINED.encode(record))


async def keeper(world: World) -> None:
    """The node that has what is retained; it takes no machine."""
    await world.node("n1", capacity=Capacity(cpus=0, memory_mib=0))


async def asked(world: World) -> list[str]:
    """What the agents are asked to delete."""
    return [entry.parts["name"] for entry in (await RETAINED_REQUEST.list(world.raw)).entries]


def test_a_retained_machine_is_deleted_when_its_retention_is_over_and_the_audit_says_so() -> None:
    async def story(world: World) -> None:
        await keeper(world)
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
        await keeper(world)
        await world.create("a")
        await keep(world, "old", 100 * DAY)
        await world.leader()
        await world.until_state("a", MachineState.PENDING)
        await world.clock.sleep(130.0)
        assert await asked(world) == []
        await world.node("n2")  # then it gets another one
        await world.until_state("a", MachineState.RUNNING)
        await world.clock.sleep(130.0)
        assert await asked(world) == ["old"]

    play(story)


@pytest.mark.parametrize("has_it", [True, False])
def test_a_pending_vm_waits_for_what_its_node_lists_when_that_is_back(has_it: bool) -> None:
    async def story(world: World) -> None:
        n1 = await world.node("n1")
        await world.leader()
        await world.create("a")
        await world.until_state("a", MachineState.RUNNING)
        await n1.fall_silent()
        await world.clock.sleep(20.0)  # its lease ends
        await world.confirm_off("n1")
        await world.until_state("a", MachineState.PENDING)
        await keeper(world)  # n1 is back, takes no machine, and has not listed anything yet
        await world.node("n2")
        await world.clock.sleep(20.0)
        if has_it:
            await keep(world, "old", 0.0)
        await world.clock.sleep(LISTS_WITHIN - 30.0)
        handle = await world.handle("a")
        assert handle is not None
        assert (handle.state, handle.node) == (MachineState.PENDING, ""), "it would get a new disk on n2"
        await world.clock.sleep(60.0)
        handle = await world.handle("a")
        assert handle is not None
        assert handle.node == ("" if has_it else "n2")
        if has_it:
            assert "its disk is retained on node n1" in str(handle.reasons)

    play(story)


def test_a_disk_that_a_vm_waits_for_is_kept() -> None:
    async def story(world: World) -> None:
        await keeper(world)
        await world.create("b", reinstate=Reinstatement(node="n1", name="old"))
        await keep(world, "old", 100 * DAY, vm="gone")
        await world.leader()
        await world.until_state("b", MachineState.PENDING)
        await world.clock.sleep(130.0)
        assert await asked(world) == []

    play(story)


def test_the_only_disk_of_a_vm_whose_new_one_could_not_be_made_is_kept() -> None:
    """Its node refused to make it: what is FAILED there never had a disk."""

    async def story(world: World) -> None:
        await keeper(world)
        await world.create("a")
        await keep(world, "old", 100 * DAY)
        (await world.node("n2")).stuck = True
        await world.leader()
        await world.until_state("a", MachineState.PLACED)
        entry = await HANDLE.get(world.raw, **ids("a"))
        assert entry is not None
        failed = msgspec.structs.replace(entry.value, state=MachineState.FAILED, detail="create: no such image")
        await HANDLE.replace(world.raw, entry, failed)
        await world.clock.sleep(130.0)
        assert await asked(world) == []

    play(story)


def test_the_only_disk_of_a_vm_that_changed_hands_is_kept() -> None:
    """Its node was lost before the machine was marked with its new project."""

    async def story(world: World) -> None:
        await keeper(world)
        await world.create("a")
        await keep(world, "old", 100 * DAY, project="pool")
        await world.leader()
        await world.until_state("a", MachineState.PENDING)
        await world.clock.sleep(130.0)
        assert await asked(world) == []

    play(story)


def test_a_disk_that_a_node_with_a_wrong_clock_retained_just_now_is_kept() -> None:
    async def story(world: World) -> None:
        await keeper(world)
        await world.leader()
        await keep(world, "new", 1000 * DAY, listed_ago=None, vm="gone")
        await world.clock.sleep(130.0)
        assert await asked(world) == []
        found = await RETAINED.get(world.raw, node="n1", name="new")
        assert found is not None
        assert 0 <= world.clock.wall() - found.value.listed_at < 140.0

    play(story)


def test_a_disk_that_is_restored_while_it_is_collected_is_kept() -> None:
    """The restore is written after the leader looked, and before it writes."""

    async def story(world: World) -> None:
        await keeper(world)
        await keep(world, "old", 100 * DAY, vm="gone")
        leader = Leader(world, "l1")
        world.leaders.append(leader)
        real = leader.store.txn
        restored: list[str] = []

        async def txn(when: Any, then: Any, otherwise: Any = ()) -> Any:
            collects = any(isinstance(each, Put) and RETAINED_REQUEST.match(each.key) for each in then)
            if collects and not restored:
                done = await restores.restore(Request(HOSTLER), "n1", "old", RetainedRestore(name="again"))
                restored.append(done.value.id)
            return await real(when, then, otherwise)

        leader.store.txn = txn  # type: ignore[method-assign]
        writer = Writer(world.raw, clock=world.clock, new_id=lambda: "w")
        env = env_on(world.clock, new_id=lambda: "again")
        vms = VmService(world.raw, writer, leader.view, env)
        restores = RetainedService(world.raw, writer, leader.view, vms, env)
        await leader.lead()
        await world.clock.sleep(130.0)
        assert restored == ["again"]
        assert await asked(world) == [], "the disk that was just restored is deleted"

    play(story)


def test_an_unreachable_node_is_not_asked_to_delete_what_may_be_needed_when_it_is_back() -> None:
    async def story(world: World) -> None:
        await registered(world)
        await keep(world, "old", 100 * DAY, vm="gone")
        await world.leader()
        await world.clock.sleep(130.0)
        assert await asked(world) == []
        await keeper(world)
        await world.clock.sleep(70.0)
        assert await asked(world) == ["old"]

    play(story)


def test_a_deletion_for_age_is_withdrawn_when_the_vm_lost_its_newer_disk() -> None:
    async def story(world: World) -> None:
        await keeper(world)
        await world.create("a")
        await keep(world, "old", 100 * DAY)
        await keep(world, "asked", 100 * DAY)
        by_ada = RETAINED_REQUEST.put(RetainedRequest(by="ada", at=0.0), node="n1", name="asked")
        await world.raw.txn([], [by_ada])
        await world.leader()
        await world.until_state("a", MachineState.PENDING)
        by_age = RETAINED_REQUEST.put(RetainedRequest(by=WHO, at=0.0), node="n1", name="old")
        await world.raw.txn([], [by_age])
        await world.clock.sleep(70.0)
        assert await asked(world) == ["asked"]

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
