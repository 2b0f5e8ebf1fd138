"""What could cost a retained disk, or leave its virtual machine without it unsaid, in virtual time."""

from __future__ import annotations

import dataclasses

import msgspec

from hostler.drivers.machines.simulated import MemoryHost, Odds
from hostler.engine.request import HOSTLER, Request
from hostler.keys.families import COMMAND, HANDLE, RETAINED, VM
from hostler.model.vm import MachineState, OnNodeLoss
from hostler.model.vm_api import MoveRequest, RetainedRestore, VmPhase
from hostler.ports.store import Delete, Put

from .plane import Plane
from .test_plane_nodes import created, plane_of, reaches, shown, until
from .test_retained import AT, A, B, disks, kept, lose, retained, service, write

RETENTION = 100.0


def brief(*nodes: str) -> Plane:
    """Retained machines are kept for `RETENTION`."""
    plane = Plane(seed=1, nodes=0, config=dataclasses.replace(Plane.config, retention=RETENTION))
    plane.places = {node: MemoryHost(f"place of {node}") for node in nodes}
    return plane


async def forget(plane: Plane, vm: str, node: str = A) -> None:
    """As a restore from a backup that is older than the machine does."""
    for key in (VM.fill(vm=vm, **AT), HANDLE.fill(vm=vm, **AT), COMMAND.fill(node=node, vm=vm)):
        await plane.store.delete(key)


def test_a_disk_that_another_control_plane_retained_is_neither_published_nor_collected() -> None:
    async def story(plane: Plane) -> None:
        vm = await created(plane)
        await reaches(plane, VmPhase.RUNNING, A)
        write(plane, A)
        await forget(plane, vm)
        await retained(plane)
        plane.supervised = False
        plane.kill(A)
        (name, one), *_ = plane.places[A].contents.kept.items()
        label = msgspec.structs.replace(one.row.label, cluster="another")
        plane.places[A].contents.kept[name] = msgspec.structs.replace(
            one, row=msgspec.structs.replace(one.row, label=label)
        )
        plane.spawn(A)
        await plane.clock.sleep(RETENTION + 150.0)
        assert kept(plane, A) == ["precious"], "it was deleted by a control plane that does not know its owner"
        assert not (await RETAINED.list(plane.store, node=A)).entries

    brief(A).run(story)


def test_a_vm_whose_disk_is_not_on_the_node_that_came_back_says_that_it_has_a_new_one() -> None:
    """The node was reinstalled."""

    async def story(plane: Plane) -> None:
        await created(plane)
        await reaches(plane, VmPhase.RUNNING, A)
        write(plane, A)
        await lose(plane, A, confirm=True)
        await reaches(plane, VmPhase.PENDING, None)
        plane.places[A] = MemoryHost("a new disk")
        plane.spawn(A)
        await reaches(plane, VmPhase.RUNNING, A)
        assert "precious" not in disks(plane, A).values()
        assert (await shown(plane)).disk_since > 0, "its owner does not learn that its data is gone"

    plane_of(A).run(story)


def test_a_vm_whose_machine_was_removed_from_its_node_says_that_it_has_a_new_disk() -> None:
    async def story(plane: Plane) -> None:
        vm = await created(plane)
        await reaches(plane, VmPhase.RUNNING, A)
        write(plane, A)
        plane.places[A].delete(vm, plane.clock.now())
        await until(plane, lambda: _exists(plane, vm))
        await reaches(plane, VmPhase.RUNNING, A)
        assert (await shown(plane)).disk_since > 0

    plane_of(A).run(story)


async def _exists(plane: Plane, vm: str, node: str = A) -> bool:
    return vm in disks(plane, node)


def test_what_departed_is_kept_when_the_disk_is_lost_where_it_arrived() -> None:
    """Its old node was unreachable from the handover on, and has the last copy of its data."""

    async def story(plane: Plane) -> None:
        vm = await created(plane)
        await until(plane, lambda: _runs_anywhere(plane))
        old = (await shown(plane)).node
        assert old is not None
        new = B if old == A else A
        write(plane, old)
        await plane.wish(lambda vms, request: vms.move(request, *AT.values(), "x", MoveRequest(to=new)))
        await reaches(plane, VmPhase.RUNNING, new)
        await until(plane, lambda: _is_left(plane, vm, old))
        plane.supervised = False
        plane.kill(old)
        arrived = plane.places[new].contents.rows[vm]
        left = msgspec.structs.replace(
            arrived, label=msgspec.structs.replace(arrived.label, node=old), state=MachineState.DEPARTED, on=None
        )
        plane.places[old].put([left])
        plane.places[new].delete(vm, plane.clock.now())
        await until(plane, lambda: _exists(plane, vm, new))
        await reaches(plane, VmPhase.RUNNING, new)
        plane.spawn(old)
        await retained(plane, old)
        assert kept(plane, old) == ["precious"]

    plane_of(A, B).run(story)


async def _is_left(plane: Plane, vm: str, node: str) -> bool:
    return vm not in disks(plane, node)


def test_a_first_disk_is_not_called_a_new_one() -> None:
    async def story(plane: Plane) -> None:
        await created(plane)
        await reaches(plane, VmPhase.RUNNING, A)
        assert (await shown(plane)).disk_since == 0
        await plane.wish(lambda vms, request: vms.stop(request, *AT.values(), "x"))
        await reaches(plane, VmPhase.STOPPED, A)
        assert (await shown(plane)).disk_since == 0

    plane_of(A).run(story)


def test_a_restore_comes_before_a_machine_that_is_only_being_created_elsewhere() -> None:
    async def story(plane: Plane) -> None:
        vm = await created(plane, on_node_loss=OnNodeLoss.RECREATE, node_labels={})
        await until(plane, lambda: _runs_anywhere(plane))
        old = (await shown(plane)).node
        assert old is not None
        new = B if old == A else A
        write(plane, old)
        plane.faults.delays["create"] = 40.0
        await lose(plane, old, confirm=False)
        await until(plane, lambda: _creating(plane, new))
        plane.spawn(old)
        (entry,) = await retained(plane, old)
        await service(plane).restore(Request(HOSTLER), old, entry.value.name, RetainedRestore())
        plane.faults.delays.clear()
        await reaches(plane, VmPhase.RUNNING, old)
        assert disks(plane, old) == {vm: "precious"}
        assert vm not in disks(plane, new)
        assert (await shown(plane)).disk_since == 0
        plane.check_runs()

    plane_of(A, B).run(story)


async def _runs_anywhere(plane: Plane) -> bool:
    return (await shown(plane)).phase is VmPhase.RUNNING


async def _creating(plane: Plane, node: str) -> bool:
    handles = [entry.value for entry in (await HANDLE.list(plane.store)).entries]
    return [(handle.node, handle.state) for handle in handles] == [(node, MachineState.CREATING)]


def test_a_disk_whose_retain_was_not_answered_is_published_and_comes_back() -> None:
    async def story(plane: Plane) -> None:
        vm = await created(plane)
        await reaches(plane, VmPhase.RUNNING, A)
        write(plane, A)
        plane.faults.verbs["retain"] = Odds(lost=1.0)
        plane.faults.verbs["reinstate"] = Odds(lost=1.0)
        await forget(plane, vm)
        (entry,) = await retained(plane)
        await plane.store.delete_prefix("/hostler/v1/names/")
        await service(plane).restore(Request(HOSTLER), A, entry.value.name, RetainedRestore())
        await reaches(plane, VmPhase.RUNNING, A)
        assert list(disks(plane, A).values()) == ["precious"]
        await retained(plane, A, 0)

    plane_of(A).run(story)


def test_a_vm_that_a_restored_backup_places_where_it_was_before_its_move_says_so() -> None:
    async def story(plane: Plane) -> None:
        vm = await created(plane)
        await until(plane, lambda: _runs_anywhere(plane))
        old = (await shown(plane)).node
        assert old is not None
        new = B if old == A else A
        write(plane, old)
        keys = (VM.fill(vm=vm, **AT), HANDLE.fill(vm=vm, **AT), COMMAND.fill(node=old, vm=vm))
        backup = {key: (await plane.store.get(key)) for key in keys}
        await plane.wish(lambda vms, request: vms.move(request, *AT.values(), "x", MoveRequest(to=new)))
        await reaches(plane, VmPhase.RUNNING, new)
        await until(plane, lambda: _is_left(plane, vm, old))
        then = [Put(key, kv.value) for key, kv in backup.items() if kv is not None]
        await plane.store.txn([], [*then, Delete(COMMAND.fill(node=new, vm=vm))])
        (entry,) = await retained(plane, new)
        await reaches(plane, VmPhase.RUNNING, old)
        view = await shown(plane)
        assert view.disk_since > 0
        assert [(each.node, each.name) for each in view.retained] == [(new, entry.value.name)]
        assert kept(plane, new) == ["precious"]

    plane_of(A, B).run(story)


def test_a_restore_that_is_repeated_after_its_answer_was_lost_is_answered_as_the_first() -> None:
    async def story(plane: Plane) -> None:
        vm = await created(plane)
        await reaches(plane, VmPhase.RUNNING, A)
        await forget(plane, vm)
        (entry,) = await retained(plane)
        await plane.store.delete_prefix("/hostler/v1/names/")
        request = Request(HOSTLER, key="once", fingerprint="restore")
        first = await service(plane).restore(request, A, entry.value.name, RetainedRestore())
        await reaches(plane, VmPhase.RUNNING, A)
        await retained(plane, A, 0)
        again = await service(plane).restore(request, A, entry.value.name, RetainedRestore())
        assert again.value.id == first.value.id
        assert list(disks(plane, A)) == [first.value.id]

    plane_of(A).run(story)
