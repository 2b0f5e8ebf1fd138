"""Wishes to move a machine, and to clone one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from service_scene import ORG, PROJECT, SMALL, STRANGER, VIEWER, Scene, asked, play

from hostler.errors import Conflict, HostlerError, Invalid, NotFound
from hostler.keys.families import VM
from hostler.model.node import Lifecycle
from hostler.model.vm import Move, Origin, Snapshot, SnapshotState, VmSpec
from hostler.model.vm_api import MoveRequest, VmCreate

if TYPE_CHECKING:
    from hostler.model.vm_api import VmView

AT = (ORG, PROJECT)
READY = Snapshot(state=SnapshotState.READY, taken_at=1.0)


async def on_a_node(scene: Scene, **more: Any) -> VmView:
    await scene.node("local-1", moves=True, driver="simulated")
    await scene.node("local-2", **{"moves": True, "driver": "simulated", **more})
    vm = await scene.made()
    await scene.seen(vm)
    return vm


def test_a_move_is_a_wish_with_a_number_that_grows() -> None:
    async def story(scene: Scene) -> None:
        vm = await on_a_node(scene)
        first = (await scene.vms.move(asked(), *AT, "a", MoveRequest(to="LOCAL-2"))).value
        assert first.move == Move(to="local-2", number=1)
        assert not first.settled
        second = (await scene.vms.move(asked(), *AT, vm.id, MoveRequest(to="local-2", stop=True))).value
        assert second.move == Move(to="local-2", number=2, stop=True)
        assert second.generation == vm.generation + 2
        stored = await VM.get(scene.raw, org=ORG, project=PROJECT, vm=vm.id)
        assert stored is not None
        assert stored.value.move == second.move

    play(story)


def test_a_move_that_is_asked_for_twice_under_one_key_is_one() -> None:
    async def story(scene: Scene) -> None:
        await on_a_node(scene)
        request = asked(key="k", fingerprint="f")
        first = (await scene.vms.move(request, *AT, "a", MoveRequest(to="local-2"))).value
        again = (await scene.vms.move(request, *AT, "a", MoveRequest(to="local-2"))).value
        assert first.move == again.move == Move(to="local-2", number=1)

    play(story)


@pytest.mark.parametrize(
    ("node", "to", "error", "says"),
    [
        ({}, "nowhere", NotFound, "nowhere: not found"),
        ({}, "Local-1", Conflict, "is on node local-1 already"),
        ({"moves": False}, "local-2", Conflict, "node local-2: .* cannot be handed"),
        ({"driver": "qemu"}, "local-2", Conflict, "those of node local-1 are simulated"),
        ({"lifecycle": Lifecycle.DRAINING}, "local-2", Conflict, "local-2: it is DRAINING"),
        ({}, "a/b", Invalid, "node"),
    ],
)
def test_a_node_that_will_not_do_is_refused(
    node: dict[str, Any], to: str, error: type[HostlerError], says: str
) -> None:
    async def story(scene: Scene) -> None:
        await on_a_node(scene, **node)
        with pytest.raises(error, match=says):
            await scene.vms.move(asked(), *AT, "a", MoveRequest(to=to))

    play(story)


def test_what_is_on_no_node_or_goes_is_not_moved() -> None:
    async def story(scene: Scene) -> None:
        await on_a_node(scene)
        await scene.made("b")
        with pytest.raises(Conflict, match="on no node yet"):
            await scene.vms.move(asked(), *AT, "b", MoveRequest(to="local-2"))
        await scene.vms.delete(asked(), *AT, "a")
        with pytest.raises(Conflict, match="being deleted"):
            await scene.vms.move(asked(), *AT, "a", MoveRequest(to="local-2"))

    play(story)


def test_a_move_needs_the_right_to_change_machines() -> None:
    async def story(scene: Scene) -> None:
        await on_a_node(scene)
        for caller in (VIEWER, STRANGER):
            with pytest.raises(HostlerError):
                await scene.vms.move(asked(caller), *AT, "a", MoveRequest(to="local-2"))

    play(story)


def test_a_move_that_was_given_up_is_settled_and_says_why() -> None:
    async def story(scene: Scene) -> None:
        await on_a_node(scene)
        vm = (await scene.vms.move(asked(), *AT, "a", MoveRequest(to="local-2"))).value
        await scene.seen(vm, moved=1, attempt=1, unmoved="move to local-2: it is full")
        view = await scene.vms.get(asked().caller, *AT, "a")
        assert (view.settled, view.moved, view.detail) == (True, 1, "move to local-2: it is full")
        vm = (await scene.vms.move(asked(), *AT, "a", MoveRequest(to="local-2"))).value
        view = await scene.vms.get(asked().caller, *AT, "a")
        assert (view.settled, view.detail) == (False, "")

    play(story)


# Clones


def clone_of(vm: str, snapshot: str = "s", **shape: Any) -> VmCreate:
    fields = {"cpus": 1, "memory_mib": 512, **shape}
    return VmCreate(name="copy", spec=VmSpec(**fields, origin=Origin(vm=vm, snapshot=snapshot)))


async def with_snapshot(scene: Scene, state: SnapshotState | None = SnapshotState.READY) -> VmView:
    vm = await scene.made(spec=msgspec.structs.replace(SMALL, image="debian", user="student"))
    await scene.vms.snapshot(asked(), *AT, vm.id, "s")
    taken = {} if state is None else {"s": msgspec.structs.replace(READY, state=state, detail="why")}
    await scene.seen(vm, snapshots=taken)
    return vm


def test_a_clone_names_its_origin_by_id_and_takes_what_was_left_open_from_it() -> None:
    async def story(scene: Scene) -> None:
        vm = await with_snapshot(scene)
        copy = (await scene.vms.create(asked(), *AT, clone_of("a"))).value
        assert copy.spec.origin == Origin(vm=vm.id, snapshot="s")
        assert (copy.spec.image, copy.spec.user, copy.spec.disk_gib) == ("debian", "student", SMALL.disk_gib)

    play(story)


def test_a_clone_that_is_asked_for_twice_under_one_key_is_one() -> None:
    async def story(scene: Scene) -> None:
        await with_snapshot(scene)
        request = asked(key="k", fingerprint="f")
        first = (await scene.vms.create(request, *AT, clone_of("a"))).value
        assert (await scene.vms.create(request, *AT, clone_of("a"))).value.id == first.id

    play(story)


@pytest.mark.parametrize(
    ("state", "wanted", "error", "says"),
    [
        (SnapshotState.READY, clone_of("b"), NotFound, "b: not found"),
        (SnapshotState.READY, clone_of("a", "other"), NotFound, "no snapshot 'other'"),
        (None, clone_of("a"), Conflict, "not taken yet"),
        (SnapshotState.FAILED, clone_of("a"), Conflict, r"has failed \(why\)"),
        (SnapshotState.READY, clone_of("a", image="tiny"), Invalid, "image of its origin a, 'debian'"),
        (SnapshotState.READY, clone_of("a", disk_gib=1), Invalid, "may only grow"),
        (SnapshotState.READY, clone_of("a", user="teacher"), Invalid, r"user of its origin a \(student\)"),
    ],
)
def test_a_clone_that_cannot_be_is_refused(
    state: SnapshotState | None, wanted: VmCreate, error: type[HostlerError], says: str
) -> None:
    async def story(scene: Scene) -> None:
        await with_snapshot(scene, state)
        with pytest.raises(error, match=says):
            await scene.vms.create(asked(), *AT, wanted)
        assert (await scene.counts())["vms"] == 1

    play(story)


def test_a_machine_of_another_project_is_no_origin() -> None:
    async def story(scene: Scene) -> None:
        vm = await with_snapshot(scene)
        with pytest.raises(HostlerError):
            await scene.vms.create(asked(), ORG, "other", clone_of(vm.id))

    play(story)
