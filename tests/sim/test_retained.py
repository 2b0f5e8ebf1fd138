"""Disks of machines whose node was lost, in virtual time: none is destroyed, and each can be had again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from hostler.drivers.machines.simulated.host import MemoryHost
from hostler.engine.idempotent_writer import Writer
from hostler.engine.request import HOSTLER, Request
from hostler.engine.retained import RetainedService
from hostler.errors import Conflict
from hostler.keys.families import AUDIT, COMMAND, HANDLE, MEMBER, RETAINED, RETAINED_REQUEST, VM
from hostler.model.inventory_api import Drain
from hostler.model.vm import MachineState, OnNodeLoss
from hostler.model.vm_api import RetainedRestore, VmPhase

from .plane import ORG, PROJECT, Plane, ReplicaHost
from .test_plane_nodes import created, operator, plane_of, reaches, shown, until

if TYPE_CHECKING:
    from hostler.keys.entry import Entry
    from hostler.model.node import Retained

A, B = "rack1-b1", "rack1-b2"
AT = {"org": ORG, "project": PROJECT}


def write(plane: Plane, node: str, text: str = "precious") -> None:
    """What the guest writes to its disk."""
    (row,) = plane.places[node].contents.rows.values()
    plane.places[node].put([msgspec.structs.replace(row, disk=text)])


def disks(plane: Plane, node: str) -> dict[str, str]:
    """Of the machines in service."""
    return {vm: row.disk for vm, row in plane.places[node].contents.rows.items()}


def kept(plane: Plane, node: str) -> list[str]:
    """The disks that are retained."""
    return [each.row.disk for each in plane.places[node].contents.kept.values()]


async def retained(plane: Plane, node: str = A, count: int = 1) -> list[Entry[Retained]]:
    """Once the store knows of so many."""
    found: list[Entry[Retained]] = []

    async def known() -> bool:
        found[:] = (await RETAINED.list(plane.store, node=node)).entries
        return len(found) == count

    await until(plane, known)
    return found


async def lose(plane: Plane, node: str, *, confirm: bool) -> None:
    plane.supervised = False
    plane.kill(node)
    plane.places[node].power_off(plane.clock.now())
    if confirm:

        async def confirmed() -> bool:
            try:
                await operator(plane).confirm_off(Request(HOSTLER), node)
            except Conflict:
                return False
            return True

        await until(plane, confirmed)


async def lose_records(plane: Plane, vm: str) -> None:
    """As after a restore from a backup that is older than the machine on node A."""
    for key in (VM.fill(vm=vm, **AT), HANDLE.fill(vm=vm, **AT), COMMAND.fill(node=A, vm=vm)):
        await plane.store.delete(key)


def service(plane: Plane) -> RetainedService:
    host = plane.hosts["replica-1"]
    assert isinstance(host, ReplicaHost)
    assert host.vms is not None
    writer = Writer(plane.store, clock=plane.clock, new_id=host.new_id)
    return RetainedService(plane.store, writer, host.vms._view, host.vms, host.env())


@pytest.mark.parametrize("loss", list(OnNodeLoss))
def test_a_vm_that_is_pending_when_its_node_comes_back_has_its_own_disk(loss: OnNodeLoss) -> None:
    async def story(plane: Plane) -> None:
        vm = await created(plane, on_node_loss=loss)
        await reaches(plane, VmPhase.RUNNING, A)
        write(plane, A)
        await plane.wish(lambda vms, request: vms.snapshot(request, ORG, PROJECT, "x", "s"))
        await until(plane, lambda: _has_snapshot(plane))
        await lose(plane, A, confirm=True)
        await reaches(plane, VmPhase.PENDING, None)
        plane.spawn(A)
        await reaches(plane, VmPhase.RUNNING, A)
        assert disks(plane, A) == {vm: "precious"}
        assert kept(plane, A) == []
        await until(plane, lambda: _has_snapshot(plane))
        view = await shown(plane)
        assert (view.disk_since, view.retained) == (0.0, ())
        plane.check_runs()

    plane_of(A).run(story)


def test_a_machine_that_vanished_from_its_node_is_made_anew_and_its_vm_says_so() -> None:
    async def story(plane: Plane) -> None:
        vm = await created(plane)
        await reaches(plane, VmPhase.RUNNING, A)
        assert (await shown(plane)).disk_since == 0.0
        plane.places[A].delete(vm, plane.clock.now())
        at = plane.clock.wall()
        await until(plane, lambda: _says_new_disk(plane))
        await reaches(plane, VmPhase.RUNNING, A)
        assert at <= (await shown(plane)).disk_since <= plane.clock.wall()

    plane_of(A).run(story)


def test_a_node_that_comes_back_without_the_disk_says_so() -> None:
    async def story(plane: Plane) -> None:
        vm = await created(plane)
        await reaches(plane, VmPhase.RUNNING, A)
        await lose(plane, A, confirm=True)
        await reaches(plane, VmPhase.PENDING, None)
        plane.places[A].delete(vm, plane.clock.now())  # as if its disks had been replaced
        plane.spawn(A)
        await reaches(plane, VmPhase.RUNNING, A)
        assert (await shown(plane)).disk_since > 0

    plane_of(A).run(story)


async def _says_new_disk(plane: Plane) -> bool:
    return (await shown(plane)).disk_since > 0


async def _has_snapshot(plane: Plane) -> bool:
    found = (await shown(plane)).snapshots.get("s")
    return found is not None and found.state.value == "ready"


def test_a_vm_that_was_recreated_keeps_its_new_disk_and_the_old_one_can_be_had() -> None:
    async def story(plane: Plane) -> None:
        vm = await created(plane, on_node_loss=OnNodeLoss.RECREATE)
        await until(plane, lambda: _runs(plane))
        old = (await shown(plane)).node
        assert old is not None
        write(plane, old)
        new = B if old == A else A
        await lose(plane, old, confirm=False)
        await reaches(plane, VmPhase.RUNNING, new)
        plane.spawn(old)
        (entry,) = await retained(plane, old)
        assert kept(plane, old) == ["precious"]
        assert (entry.value.vm, entry.value.vm_name) == (vm, "x")
        view = await shown(plane)
        assert view.disk_since > 0
        assert [each.name for each in view.retained] == [entry.value.name]
        why = await plane.wish(lambda vms, _: vms.why(HOSTLER, ORG, PROJECT, "x"))
        (said,) = [reason.why for reason in why.decided if reason.subject == "disk"]
        assert "new disk since" in said
        assert f"retained on node {old}: hostler vm retained restore {old}/{entry.value.name} --as" in said

        restores, name = service(plane), entry.value.name
        with pytest.raises(Conflict, match="newer disk on node"):
            await restores.restore(Request(HOSTLER), old, name, RetainedRestore())
        again = await restores.restore(Request(HOSTLER), old, name, RetainedRestore(name="again"))
        with pytest.raises(Conflict, match="vm again gets its disk from it"):
            await until(plane, lambda: _deletes(restores, old, name))
        await reaches(plane, VmPhase.RUNNING, old, "again")
        assert disks(plane, old) == {again.value.id: "precious"}
        assert list(disks(plane, new)) == [vm]
        await retained(plane, old, 0)
        plane.check_runs()

    plane_of(A, B).run(story)


async def _deletes(restores: RetainedService, node: str, name: str) -> bool:
    await restores.delete(Request(HOSTLER), node, name)
    return False


async def _runs(plane: Plane) -> bool:
    return (await shown(plane)).phase is VmPhase.RUNNING


def test_a_fenced_vm_stays_with_its_node_and_returns_with_its_disk() -> None:
    async def story(plane: Plane) -> None:
        vm = await created(plane, on_node_loss=OnNodeLoss.FENCE)
        await until(plane, lambda: _runs(plane))
        node = (await shown(plane)).node
        assert node is not None
        write(plane, node)
        await lose(plane, node, confirm=False)
        await reaches(plane, VmPhase.SILENT, node)
        await plane.clock.sleep(60.0)
        assert (await shown(plane)).node == node, "it went elsewhere"
        plane.spawn(node)
        await reaches(plane, VmPhase.RUNNING, node)
        assert disks(plane, node) == {vm: "precious"}
        plane.check_runs()

    plane_of(A, B).run(story)


def test_a_fence_of_an_earlier_release_is_recreated_until_it_is_changed() -> None:
    async def story(plane: Plane) -> None:
        vm = await created(plane, on_node_loss=OnNodeLoss.FENCE)
        await until(plane, lambda: _runs(plane))
        entry = await VM.get(plane.store, vm=vm, **AT)
        assert entry is not None
        await VM.replace(plane.store, entry, msgspec.structs.replace(entry.value, returns=False))
        node = (await shown(plane)).node
        assert node is not None
        assert (await shown(plane)).on_node_loss is OnNodeLoss.RECREATE
        await lose(plane, node, confirm=False)
        await reaches(plane, VmPhase.RUNNING, B if node == A else A)

    plane_of(A, B).run(story)


def test_a_vm_that_the_store_does_not_know_is_retained_and_comes_back_as_a_new_one() -> None:
    """As after a restore from a backup that is older than the machine."""

    async def story(plane: Plane) -> None:
        vm = await created(plane)
        await reaches(plane, VmPhase.RUNNING, A)
        write(plane, A)
        await lose_records(plane, vm)
        (entry,) = await retained(plane)
        assert kept(plane, A) == ["precious"]
        await plane.store.delete_prefix("/hostler/v1/names/")
        await service(plane).restore(Request(HOSTLER), A, entry.value.name, RetainedRestore())
        await reaches(plane, VmPhase.RUNNING, A)
        assert list(disks(plane, A).values()) == ["precious"]
        await retained(plane, A, 0)

    plane_of(A).run(story)


def test_what_a_drain_cannot_hand_over_is_retained_there() -> None:
    async def story(plane: Plane) -> None:
        plane.hands_over = False
        vm = await created(plane)
        await until(plane, lambda: _runs(plane))
        node = (await shown(plane)).node
        assert node is not None
        write(plane, node)
        await operator(plane).drain(Request(HOSTLER), node, Drain())
        await reaches(plane, VmPhase.RUNNING, B if node == A else A)
        (entry,) = await retained(plane, node)
        assert entry.value.vm == vm
        assert kept(plane, node) == ["precious"]
        assert (await shown(plane)).disk_since > 0

    plane = plane_of(A, B)
    plane.hands_over = False
    plane.run(story)


def test_an_administrator_deletes_a_retained_machine_for_good() -> None:
    async def story(plane: Plane) -> None:
        vm = await created(plane)
        await reaches(plane, VmPhase.RUNNING, A)
        await lose_records(plane, vm)
        (entry,) = await retained(plane)
        done = await service(plane).delete(Request(HOSTLER), A, entry.value.name)
        assert done.value.deleting
        await retained(plane, A, 0)
        assert kept(plane, A) == []
        await until(plane, lambda: _no_request(plane))
        verbs = [line.value.verb for line in (await AUDIT.list(plane.store)).entries]
        assert "retained.delete" in verbs

    plane_of(A).run(story)


def test_a_node_that_comes_back_at_another_place_keeps_the_records_of_its_disks_and_returns_to_them() -> None:
    async def story(plane: Plane) -> None:
        vm = await created(plane)
        await reaches(plane, VmPhase.RUNNING, A)
        write(plane, A)
        await lose_records(plane, vm)
        await plane.store.delete_prefix("/hostler/v1/names/")
        (entry,) = await retained(plane)
        plane.supervised = False
        plane.kill(A)
        old, plane.places[A] = plane.places[A], MemoryHost("another disk")
        plane.spawn(A)
        at = service(plane)
        await until(plane, lambda: _is_lost(at, entry.value.name))
        await plane.clock.sleep(30.0)  # it has published what it has
        (view,) = (await at.list(HOSTLER)).items
        assert "it is in storage location" in view.lost
        with pytest.raises(Conflict, match="start the agent of node"):
            await at.restore(Request(HOSTLER), A, entry.value.name, RetainedRestore())
        plane.kill(A)
        plane.places[A] = old
        plane.spawn(A)
        await until(plane, lambda: _is_lost(at, entry.value.name, False))
        await at.restore(Request(HOSTLER), A, entry.value.name, RetainedRestore())
        await reaches(plane, VmPhase.RUNNING, A)
        assert list(disks(plane, A).values()) == ["precious"]

    plane_of(A).run(story)


async def _is_lost(at: RetainedService, name: str, lost: bool = True) -> bool:
    return bool((await at.get(HOSTLER, A, name)).lost) is lost


def test_what_a_removed_node_keeps_is_forgotten_if_asked_and_returns_with_the_node() -> None:
    async def story(plane: Plane) -> None:
        vm = await created(plane)
        await reaches(plane, VmPhase.RUNNING, A)
        write(plane, A)
        await lose_records(plane, vm)
        (entry,) = await retained(plane)
        await lose(plane, A, confirm=True)
        nodes = operator(plane)
        with pytest.raises(Conflict, match=f"disks of 1 retained machine: x .{entry.value.name}"):
            await nodes.forget(Request(HOSTLER), A)
        assert (await RETAINED.list(plane.store)).entries, "a refusal changes nothing"
        await nodes.forget(Request(HOSTLER), A, forget_retained=True)
        await retained(plane, A, 0)
        assert kept(plane, A) == ["precious"]
        plane.spawn(A)
        (again,) = await retained(plane)
        assert again.value == entry.value
        assert kept(plane, A) == ["precious"]

    plane_of(A).run(story)


def test_the_record_of_a_disk_whose_node_was_removed_can_be_deleted_and_not_restored() -> None:
    async def story(plane: Plane) -> None:
        vm = await created(plane)
        await reaches(plane, VmPhase.RUNNING, A)
        await lose_records(plane, vm)
        (entry,) = await retained(plane)
        at, name = service(plane), entry.value.name
        await lose(plane, A, confirm=True)
        await plane.store.delete(MEMBER.fill(node=A))  # as an earlier release did
        await until(plane, lambda: _is_lost(at, name))
        with pytest.raises(Conflict, match="was removed"):
            await at.restore(Request(HOSTLER), A, name, RetainedRestore())
        assert "was removed" in (await at.delete(Request(HOSTLER), A, name)).value.lost
        await retained(plane, A, 0)
        assert await _no_request(plane)
        assert kept(plane, A) != []

    plane_of(A).run(story)


async def _no_request(plane: Plane) -> bool:
    return not (await RETAINED_REQUEST.list(plane.store)).entries


def test_a_machine_with_snapshots_is_not_drained_away_unless_they_may_be_lost() -> None:
    async def story(plane: Plane) -> None:
        await created(plane)
        await until(plane, lambda: _runs(plane))
        node = (await shown(plane)).node
        assert node is not None
        await plane.wish(lambda vms, request: vms.snapshot(request, ORG, PROJECT, "x", "s"))
        await until(plane, lambda: _has_snapshot(plane))
        await operator(plane).drain(Request(HOSTLER), node, Drain())
        await plane.clock.sleep(30.0)
        assert (await shown(plane)).node == node
        why = await plane.wish(lambda vms, _: vms.why(HOSTLER, ORG, PROJECT, "x"))
        assert any("--drop-snapshots" in reason.why for reason in why.decided)
        await operator(plane).drain(Request(HOSTLER), node, Drain(drop_snapshots=True))
        await reaches(plane, VmPhase.RUNNING, B if node == A else A)
        handle = (await HANDLE.list(plane.store)).entries[0].value
        assert handle.state is MachineState.RUNNING

    plane_of(A, B).run(story)
