"""The leader's work on virtual machines, in virtual time, against scripted nodes."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from controller_world import F, Leader, World, ids, node, play, vm

from hostler.engine import vm_changes
from hostler.engine.idempotent_writer import Writer
from hostler.engine.nodes import NodeService
from hostler.engine.request import HOSTLER, Request
from hostler.engine.view import View
from hostler.errors import Conflict, LeadershipLost
from hostler.keys.families import ALIVE, COMMAND, HANDLE, MEMBER, NAME, VM
from hostler.model.inventory import Capacity
from hostler.model.node import DrainMode, Lifecycle, VmCommand
from hostler.model.vm import MachineState, OnNodeLoss, Power, SnapshotState, VmHandle, VmSpec

RUNNING, PENDING, STOPPED = MachineState.RUNNING, MachineState.PENDING, MachineState.STOPPED


# From wish to machine


def test_a_wish_becomes_a_machine_on_one_node_and_the_reasons_are_kept() -> None:
    async def story(world: World) -> None:
        await world.leader()
        await world.node("n1")
        await world.create("a")
        await world.until_state("a", RUNNING)
        command = await world.command("n1", "a")
        assert command is not None
        assert command.reasons
        assert command.fence > 0
        assert command.generation == 1

    play(story)


def test_a_machine_that_fits_nowhere_is_pending_with_reasons_and_comes_up_once_a_node_joins() -> None:
    async def story(world: World) -> None:
        await world.leader()
        await world.create("a")
        await world.until_state("a", PENDING)
        handle = await world.handle("a")
        assert handle is not None
        assert "no node will do" in handle.detail
        await world.node("n1")
        assert await world.until_state("a", RUNNING) < 5

    play(story)


def test_a_pending_handle_is_written_again_only_when_its_summary_changes() -> None:
    async def story(world: World) -> None:
        await world.leader()
        await world.node("n1")
        await world.create("a", spec=VmSpec(cpus=100, memory_mib=1))
        await world.until_state("a", PENDING)
        await asyncio.sleep(2)
        first = await HANDLE.get(world.raw, **ids("a"))
        for number in range(3):
            await world.create(f"b{number}")
            await world.until_state(f"b{number}", RUNNING)
            await world.change(f"b{number}", deleting=True)
            await world.until_state(f"b{number}", None)
        await asyncio.sleep(100)
        again = await HANDLE.get(world.raw, **ids("a"))
        assert first is not None
        assert again is not None
        assert again.mod_revision == first.mod_revision

    play(story)


def test_room_that_is_freed_is_given_to_one_that_waits() -> None:
    async def story(world: World) -> None:
        await world.leader()
        await world.node("n1", capacity=Capacity(cpus=1, memory_mib=65536))
        await world.create("a")
        await world.until_state("a", RUNNING)
        await world.create("b")
        await world.until_state("b", PENDING)
        await world.change("a", deleting=True)
        assert await world.until_state("b", RUNNING) < 5

    play(story)


@pytest.mark.slow
def test_thousands_that_wait_do_not_keep_a_new_one_from_its_node() -> None:
    async def story(world: World) -> None:
        await world.node("n1")
        for number in range(2000):
            await world.create(f"big{number}", spec=VmSpec(cpus=100 + number, memory_mib=1))
        leader = await world.leader()
        await world.until(lambda: _is(leader.machines.state()["pending_now"] == 2000))
        await world.node("n2")
        await world.create("a")
        assert await world.until_state("a", RUNNING) < 2

    play(story)


async def _forgotten(world: World, id_: str) -> bool:
    return await VM.get(world.raw, **ids(id_)) is None


async def _is(value: bool) -> bool:
    return value


@pytest.mark.parametrize("seed", range(5))
def test_many_at_once_never_give_the_same_room_away_twice(seed: int) -> None:
    async def story(world: World) -> None:
        for number in range(4):
            await world.node(f"n{number}", capacity=Capacity(cpus=10, memory_mib=65536))
        for number in range(64):
            await world.create(f"a{number}")
        leader = Leader(world, "l1")
        leader.store.faults.slow, leader.store.faults.slowest = 0.5, 0.3
        leader.store.faults.lost = leader.store.faults.never = leader.store.faults.unavailable = 0.05
        world.leaders.append(leader)
        await leader.lead()
        states = [await world.state(f"a{number}") for number in range(64)]
        ended = world.clock.now() + 120
        while world.clock.now() < ended and (states.count(RUNNING) < 40 or states.count(PENDING) < 24):
            for name in world.nodes:
                assert len((await COMMAND.list(world.raw, node=name)).entries) <= 10
            await asyncio.sleep(0.1)
            states = [await world.state(f"a{number}") for number in range(64)]
        assert states.count(RUNNING) == 40
        assert states.count(PENDING) == 24

    play(story, seed=seed)


def test_room_that_was_taken_without_an_answer_stays_taken_while_the_mirrors_are_late() -> None:
    async def story(world: World) -> None:
        leader = await world.leader()
        await world.node("n1", capacity=Capacity(cpus=1, memory_mib=65536))
        await asyncio.sleep(1)
        leader.store.faults.slowest = 1000.0
        leader.store.script("txn", "lost", prefix=COMMAND.prefix(node="n1"))
        for prefix in (COMMAND.prefix(node="n1"), HANDLE.prefix()):
            leader.store.script("event", "slow", prefix=prefix)
        await world.create("a")
        await asyncio.sleep(5)
        assert await world.command("n1", "a") is not None
        assert leader.view.commands.get(node="n1", vm="a") is None, "the mirrors are late"
        await world.change("a", power=Power.OFF)  # it is looked at again
        await asyncio.sleep(1)
        await world.create("b")
        await asyncio.sleep(5)
        assert leader.view.commands.get(node="n1", vm="a") is None, "the mirrors are late"
        assert await world.command("n1", "b") is None
        assert await world.state("b") is PENDING

    play(story)


def test_each_change_of_the_wish_reaches_the_node() -> None:
    async def story(world: World) -> None:
        await world.leader()
        await world.node("n1")
        await world.create("a")
        await world.until_state("a", RUNNING)
        await world.change("a", power=Power.OFF)
        await world.until_state("a", STOPPED)
        await world.change("a", power=Power.ON, resets=3, snapshots=("s",))
        await world.until_state("a", RUNNING)
        command = await world.command("n1", "a")
        assert command is not None
        assert (command.resets, command.snapshots, command.generation) == (3, ("s",), 3)

    play(story)


# Deleting


@pytest.mark.parametrize("phase", ["at once", "pending", "placed", "running", "stopped"])
def test_a_machine_is_deleted_in_every_phase_and_leaves_nothing(phase: str) -> None:
    async def story(world: World) -> None:
        await world.leader()
        if phase != "pending":
            joined = await world.node("n1")
            joined.stuck = phase == "placed"
        await world.create("a", power=Power.OFF if phase == "stopped" else Power.ON)
        if phase != "at once":
            await world.until_state("a", MachineState(phase))
        await world.change("a", deleting=True)
        if phase == "placed":
            await asyncio.sleep(10)
            assert await world.state("a") is MachineState.PLACED, "its node has not said that it is gone"
            joined.stuck = False
        await world.until(lambda: _forgotten(world, "a"))
        left = [key for key in await world.keys() if ("/a" in key and "alive" not in key) or "name-a" in key]
        assert left == []
        assert world.released == ["a"]

    play(story)


def test_a_machine_on_a_silent_node_is_forgotten_only_when_the_node_is_known_to_be_off() -> None:
    async def story(world: World) -> None:
        await world.leader()
        joined = await world.node("n1")
        await world.create("a")
        await world.until_state("a", RUNNING)
        await joined.fall_silent()
        await asyncio.sleep(20)
        await world.change("a", deleting=True)
        await asyncio.sleep(200)
        assert await world.state("a") is RUNNING
        await world.confirm_off("n1")
        await world.until_state("a", None)

    play(story)


def test_the_name_of_another_machine_is_not_taken_away() -> None:
    async def story(world: World) -> None:
        await world.leader()
        await world.create("a", name="n")
        await world.create("b", name="n")  # the name is b's now
        await world.change("a", deleting=True)
        await world.until(lambda: _forgotten(world, "a"))
        assert any(key.endswith("/n") for key in await world.keys("/hostler/v1/names/"))

    play(story)


# Lost nodes


def test_a_machine_of_a_silent_node_waits_until_the_node_is_known_to_be_off() -> None:
    async def story(world: World) -> None:
        await world.leader()
        joined = await world.node("n1")
        await world.create("a")
        await world.until_state("a", RUNNING)
        await world.node("n2")
        await joined.fall_silent()
        await asyncio.sleep(500)
        handle = await world.handle("a")
        assert handle is not None
        assert (handle.node, handle.state) == ("n1", RUNNING)
        await world.confirm_off("n1")
        await world.until(lambda: _on(world, "a", "n2"))
        assert await world.command("n1", "a") is None

    play(story)


async def _on(world: World, id_: str, name: str) -> bool:
    handle = await world.handle(id_)
    return handle is not None and handle.node == name and handle.state is RUNNING


def test_a_confirmation_counts_only_while_the_node_is_silent() -> None:
    async def story(world: World) -> None:
        await world.leader()
        await world.node("n1")
        await world.create("a")
        await world.until_state("a", RUNNING)
        await world.node("n2")
        await world.member("n1", off=node("x").off or _off())
        await asyncio.sleep(100)
        assert await _on(world, "a", "n1")

    play(story)


def _off() -> object:
    from hostler.model.node import OffConfirmation

    return OffConfirmation(by="op", at=0.0)


def test_a_fenced_machine_is_taken_after_the_fencing_time_of_silence_and_never_before() -> None:
    async def story(world: World) -> None:
        await world.leader()
        joined = await world.node("n1")
        await world.create("a", on_node_loss=OnNodeLoss.FENCE)
        await world.create("w")
        await world.until_state("a", RUNNING)
        await world.until_state("w", RUNNING)
        await world.node("n2")
        await joined.fall_silent()
        await world.until(lambda: _silent(world, "n1"))
        began = world.clock.now()
        world.stopped("n1", "a")  # the fence
        while await world.command("n1", "a") is not None:
            await asyncio.sleep(0.05)
        assert F - 0.1 <= world.clock.now() - began < F + 5  # the silence is looked for every 0.1 s
        await world.until(lambda: _on(world, "a", "n2"))
        assert await world.command("n1", "w") is not None, "it is not fenced"

    play(story)


async def _silent(world: World, name: str) -> bool:
    return await ALIVE.get(world.raw, node=name) is None


@pytest.mark.parametrize("loss", OnNodeLoss)
def test_machines_of_a_node_that_is_awaited_after_a_copy_wait_for_it(loss: OnNodeLoss) -> None:
    async def story(world: World) -> None:
        await world.leader()
        joined = await world.node("n1")
        await world.create("a", on_node_loss=loss)
        await world.until_state("a", RUNNING)
        await world.node("n2")
        await joined.fall_silent()
        await world.member("n1", awaited=True)  # as a copy of the store has it
        await asyncio.sleep(500)
        handle = await world.handle("a")
        assert handle is not None
        assert handle.node == "n1"
        await world.confirm_off("n1")
        await world.until(lambda: _on(world, "a", "n2"))

    play(story)


def test_a_node_that_comes_and_goes_is_counted_anew() -> None:
    async def story(world: World) -> None:
        await world.leader()
        joined = await world.node("n1")
        await world.create("a", on_node_loss=OnNodeLoss.FENCE)
        await world.until_state("a", RUNNING)
        for _ in range(4):
            await joined.fall_silent()
            await world.until(lambda: _silent(world, "n1"))
            await asyncio.sleep(F - 5)
            await joined.join()
            await asyncio.sleep(1)
        assert await _on(world, "a", "n1")
        assert await world.command("n1", "a") is not None

    play(story)


def test_a_new_leader_counts_the_silence_anew() -> None:
    async def story(world: World) -> None:
        first = await world.leader("l1")
        await world.full_node()
        joined = await world.node("n1")
        await world.create("a", on_node_loss=OnNodeLoss.FENCE)
        await world.until_state("a", RUNNING)
        await joined.fall_silent()
        await world.until(lambda: _silent(world, "n1"))
        await asyncio.sleep(F - 5)
        await first.end()
        await world.leader("l2")
        led = world.clock.now()
        world.stopped("n1", "a")
        while await world.command("n1", "a") is not None:
            await asyncio.sleep(0.05)
        assert world.clock.now() - led >= F - 1.0

    play(story)


def test_a_wish_for_fencing_counts_only_after_the_agent_has_answered_it() -> None:
    async def story(world: World) -> None:
        await world.leader()
        joined = await world.node("n1")
        await world.create("a")
        await world.until_state("a", RUNNING)
        joined.stuck = True
        await world.change("a", on_node_loss=OnNodeLoss.FENCE)
        await asyncio.sleep(5)
        command = await world.command("n1", "a")
        assert command is not None
        assert command.fenced
        await joined.fall_silent()
        await asyncio.sleep(200)
        assert await world.command("n1", "a") is not None, "it was never fenced"

    play(story)


def test_snapshots_that_went_with_a_node_are_mourned_and_never_taken_anew() -> None:
    async def story(world: World) -> None:
        await world.leader()
        joined = await world.node("n1")
        await world.create("a", snapshots=("s",))
        await world.until_state("a", RUNNING)
        second = await world.node("n2")
        await joined.fall_silent()
        await world.until(lambda: _silent(world, "n1"))
        await world.confirm_off("n1")
        await world.until(lambda: _on(world, "a", "n2"))
        handle = await world.handle("a")
        assert handle is not None
        assert handle.snapshots["s"].state is SnapshotState.FAILED
        assert second.snapshots["a"] == set()
        await world.change("a", snapshots=())
        await asyncio.sleep(2)
        await world.change("a", snapshots=("s",))
        await world.until(lambda: _is(second.snapshots["a"] == {"s"}))

    play(story)


def test_a_lost_snapshot_of_a_machine_without_a_node_can_be_dropped_and_its_name_used_again() -> None:
    async def story(world: World) -> None:
        await world.leader()
        joined = await world.node("n1")
        await world.create("a", snapshots=("s", "t"))
        await world.until_state("a", RUNNING)
        await joined.fall_silent()
        await world.until(lambda: _silent(world, "n1"))
        await world.confirm_off("n1")
        await world.until_state("a", MachineState.PENDING)
        await asyncio.sleep(100)  # until it says what it will go on saying
        await world.change("a", snapshots=("t",))
        await asyncio.sleep(2)
        handle = await world.handle("a")
        assert handle is not None
        assert handle.snapshots.keys() == {"t"}
        entry = await VM.get(world.raw, **ids("a"))
        assert entry is not None
        assert vm_changes.add_snapshot(entry.value, handle, "s").snapshots == ("t", "s")

    play(story)


# Draining


def test_a_node_that_is_drained_lets_its_machines_go_one_by_one_and_is_decommissioned() -> None:
    async def story(world: World) -> None:
        await world.leader()
        await world.node("n1")
        for name in "abc":
            await world.create(name)
            await world.until_state(name, RUNNING)
        await world.node("n2")
        await world.member("n1", lifecycle=Lifecycle.DRAINING, drain=DrainMode.MOVE)
        most = 0
        while (await _member(world, "n1")).lifecycle is not Lifecycle.DECOMMISSIONED:
            down = [name for name in "abc" if not (await _on(world, name, "n1") or await _on(world, name, "n2"))]
            most = max(most, len(down))
            await asyncio.sleep(0.05)
            assert world.clock.now() < 300
        assert most == 1
        for name in "abc":
            await world.until(lambda name=name: _on(world, name, "n2"))  # type: ignore[misc]

    play(story)


def test_a_machine_that_its_owner_deletes_in_vain_keeps_no_other_on_a_node_that_is_drained() -> None:
    async def story(world: World) -> None:
        await world.leader()
        first = await world.node("n1")
        for name in "abc":
            await world.create(name)
            await world.until_state(name, RUNNING)
        first.stuck_on.add("a")
        await world.change("a", deleting=True)
        await world.node("n2")
        await world.member("n1", lifecycle=Lifecycle.DRAINING, drain=DrainMode.MOVE)
        for name in "bc":
            await world.until(lambda name=name: _on(world, name, "n2"))  # type: ignore[misc]
        assert (await _member(world, "n1")).lifecycle is Lifecycle.DRAINING  # type: ignore[attr-defined]
        assert await world.command("n1", "a") is not None

    play(story)


async def _member(world: World, name: str) -> object:
    entry = await MEMBER.get(world.raw, node=name)
    assert entry is not None
    return entry.value


def test_a_machine_with_nowhere_to_go_runs_on_and_says_why() -> None:
    async def story(world: World) -> None:
        await world.leader()
        await world.node("n1")
        await world.create("a", node_labels={"node": "n1"})
        await world.create("b")
        await world.until_state("a", RUNNING)
        await world.until_state("b", RUNNING)
        await world.node("n2")
        await world.member("n1", lifecycle=Lifecycle.DRAINING)
        await world.until(lambda: _on(world, "b", "n2"))
        await asyncio.sleep(100)
        assert await _on(world, "a", "n1")
        command = await world.command("n1", "a")
        assert command is not None
        assert next(r.why for r in command.reasons if r.subject == "drain").startswith("node n1 is drained")
        await world.member("n1", lifecycle=Lifecycle.ON_DUTY)
        await asyncio.sleep(2)
        command = await world.command("n1", "a")
        assert command is not None
        assert all(reason.subject != "drain" for reason in command.reasons)

    play(story)


def test_a_node_that_is_drained_by_stopping_keeps_its_machines_and_gives_them_power_back() -> None:
    async def story(world: World) -> None:
        await world.leader()
        await world.node("n1")
        for name in "ab":
            await world.create(name)
            await world.until_state(name, RUNNING)
        await world.member("n1", lifecycle=Lifecycle.DRAINING, drain=DrainMode.STOP)
        for name in "ab":
            await world.until_state(name, STOPPED)
        await asyncio.sleep(100)
        assert (await _member(world, "n1")).lifecycle is Lifecycle.DRAINING
        await world.member("n1", lifecycle=Lifecycle.ON_DUTY)
        for name in "ab":
            await world.until_state(name, RUNNING)

    play(story)


# What does not fit together


def test_what_has_no_wish_is_swept_and_reported() -> None:
    async def story(world: World) -> None:
        joined = await world.node("n1")
        joined.stuck = True
        lonely = VmCommand(org="o", project="p", vm="x", spec=VmSpec(cpus=1, memory_mib=1))
        await COMMAND.create(world.raw, lonely, node="n1", vm="x")
        await HANDLE.create(world.raw, VmHandle(id="y", node="n1", state=RUNNING, seen_at=0.0), **ids("y"))
        leader = await world.leader()
        await world.until(lambda: _swept(world))
        assert leader.machines.counters["found_command_without_vm"] == 1
        assert leader.machines.counters["found_handle_without_vm"] == 1
        assert any("without a machine" in line for line in leader.told)

    async def _swept(world: World) -> bool:
        return not await world.keys("/hostler/v1/nodes/") and not await world.keys("/plasmavmc/handles/")

    play(story)


def test_v42_an_orphan_handle_is_reported_before_a_running_leader_deletes_it() -> None:
    async def story(world: World) -> None:
        leader = await world.leader()
        await HANDLE.create(world.raw, VmHandle(id="y", node="", state=RUNNING, seen_at=0.0), **ids("y"))

        async def is_deleted() -> bool:
            return not await world.keys("/plasmavmc/handles/")

        await world.until(is_deleted)
        assert any(line.startswith(HANDLE.fill(**ids("y"))) and "without a VM record" in line for line in leader.told)

    play(story)


def test_a_name_of_no_machine_is_counted_and_told_and_one_that_is_just_made_is_none() -> None:
    async def story(world: World) -> None:
        await world.create("a")
        await NAME.create(world.raw, "gone", org="o", project="p", name="lost")
        await NAME.create(world.raw, "no/id", org="o", project="p", name="odd")
        look = world.raw.range

        async def looks_and_is_slow(prefix: str, **options: Any) -> Any:
            if prefix == NAME.prefix():
                await world.create("young")
            return await look(prefix, **options)

        leader = Leader(world, "l1")
        world.leaders.append(leader)
        leader.store.range = looks_and_is_slow  # type: ignore[assignment]
        await leader.lead()
        await asyncio.sleep(100)
        assert leader.machines.counters["found_name_without_vm"] == 2
        assert len([line for line in leader.told if "reserved for a machine that does not exist" in line]) == 2
        assert any(NAME.fill(org="o", project="p", name="lost") in line for line in leader.told)

    play(story)


def test_a_machine_whose_node_has_no_command_stays_where_it_is_and_its_node_is_told_again() -> None:
    async def story(world: World) -> None:
        await world.leader()
        joined = await world.node("n1")
        await world.create("a")
        await world.until_state("a", RUNNING)
        await world.node("n2")
        joined.stuck = True
        await world.raw.delete(COMMAND.fill(node="n1", vm="a"))
        await world.until(lambda: _told(world))
        assert await world.command("n2", "a") is None
        joined.stuck = False
        await asyncio.sleep(5)
        assert await _on(world, "a", "n1")

    async def _told(world: World) -> bool:
        return await world.command("n1", "a") is not None

    play(story)


def test_a_node_that_is_told_again_cannot_be_forgotten_by_who_found_it_without_commands() -> None:
    async def story(world: World) -> None:
        await world.leader()
        joined = await world.node("n1")
        await world.create("a")
        await world.until_state("a", RUNNING)
        joined.stuck = True
        await world.member("n1", lifecycle=Lifecycle.DECOMMISSIONED)
        view = View(world.raw, clock=world.clock)
        writer = Writer(world.raw, clock=world.clock, new_id=lambda: "w")
        service = NodeService(world.raw, writer, view, clock=world.clock)
        look = world.raw.range

        async def looks_and_is_slow(prefix: str, **options: Any) -> Any:
            found = await look(prefix, **options)
            if prefix == COMMAND.prefix(node="n1") and options.get("keys_only"):
                await asyncio.sleep(5)
            return found

        world.raw.range = looks_and_is_slow  # type: ignore[method-assign]
        await world.raw.delete(COMMAND.fill(node="n1", vm="a"))
        with pytest.raises(Conflict, match="still has machines"):
            await service.forget(Request(HOSTLER), "n1")
        assert await world.command("n1", "a") is not None
        assert await _member(world, "n1") is not None

    play(story)


def test_a_node_that_lives_and_was_forgotten_is_told_nothing() -> None:
    async def story(world: World) -> None:
        await world.leader()
        joined = await world.node("n1")
        await world.create("a")
        await world.until_state("a", RUNNING)
        joined.stuck = True
        await world.raw.txn([], [MEMBER.delete(node="n1"), COMMAND.delete(node="n1", vm="a")])
        await asyncio.sleep(100)
        assert await world.command("n1", "a") is None
        handle = await world.handle("a")
        assert handle is not None
        assert handle.node == "n1", "its machine may still run there"

    play(story)


def test_a_handle_that_was_deleted_is_told_again() -> None:
    async def story(world: World) -> None:
        await world.leader()
        await world.node("n1")
        await world.create("a")
        await world.until_state("a", RUNNING)
        await world.raw.delete(HANDLE.fill(**ids("a")))
        await world.until_state("a", RUNNING)

    play(story)


def test_of_two_nodes_that_were_told_the_handles_keeps_it() -> None:
    async def story(world: World) -> None:
        await world.leader()
        await world.node("n1")
        await world.create("a")
        await world.until_state("a", RUNNING)
        second = await world.node("n2")
        second.stuck = True
        command = await world.command("n1", "a")
        assert command is not None
        await COMMAND.create(world.raw, command, node="n2", vm="a")
        await world.until(lambda: _once(world))
        assert await world.command("n1", "a") is not None

    async def _once(world: World) -> bool:
        return await world.command("n2", "a") is None

    play(story)


def test_about_a_wish_that_cannot_be_read_nothing_is_decided() -> None:
    async def story(world: World) -> None:
        await world.leader()
        await world.node("n1")
        await world.create("a")
        await world.until_state("a", RUNNING)
        await world.raw.put(VM.fill(**ids("a")), b"{")
        await asyncio.sleep(100)
        assert await _on(world, "a", "n1")
        assert await world.command("n1", "a") is not None

    play(story)


# Leaders


def test_a_leader_whose_record_was_taken_writes_nothing_more_and_ends() -> None:
    async def story(world: World) -> None:
        old = await world.leader("old")
        await world.node("n1")
        await world.create("a")
        await world.until_state("a", RUNNING)
        # It does not know that it sleeps: its clock says that it leads.
        await world.raw.put("sysvvm/1/1", b'{"somebody": "else"}')
        before = await world.keys()
        await world.create("b")
        await asyncio.sleep(3)
        assert isinstance(old.failed, LeadershipLost)
        assert await world.state("b") is None
        assert len(await world.keys()) == len(before) + 2
        await world.raw.delete("sysvvm/1/1")

    play(story)


@pytest.mark.parametrize("seed", range(3))
def test_of_two_leaders_at_once_only_the_newer_writes(seed: int) -> None:
    async def story(world: World) -> None:
        old = await world.leader("old")
        await world.node("n1")
        await world.node("n2")
        # The old one is cut off from the store, and its decisions come back to life after another leads.
        old.store.down()
        await world.raw.delete("sysvvm/1/1")
        new = await world.leader("new")
        for number in range(12):
            await world.create(f"a{number}")
        old.store.up()
        for number in range(12):
            await world.until_state(f"a{number}", RUNNING)
        fences = {entry.value.fence for entry in (await COMMAND.list(world.raw)).entries}
        assert fences == {new.leadership.fence}

    play(story, seed=seed)


@pytest.mark.parametrize("seed", range(10))
def test_lost_answers_and_outages_lead_to_the_same_end(seed: int) -> None:
    async def story(world: World) -> None:
        rng = random.Random(seed)
        leader = Leader(world, "l1")
        world.leaders.append(leader)
        await leader.lead()
        faults = leader.store.faults
        faults.lost = faults.never = faults.unavailable = 0.15
        faults.lagged = faults.compacted = faults.slow = 0.1
        for name in ("n1", "n2", "n3"):
            await world.node(name)
        alive = {}
        for number in range(30):
            if rng.random() < 0.6 or not alive:
                alive[f"a{number}"] = Power.ON
                await world.create(f"a{number}")
            else:
                name = rng.choice(sorted(alive))
                if rng.random() < 0.5:
                    del alive[name]
                    await world.change(name, deleting=True)
                else:
                    alive[name] = Power.OFF
                    await world.change(name, power=Power.OFF)
            await asyncio.sleep(rng.random())
            if number == 15:
                leader.store.down()
                await asyncio.sleep(10)
                leader.store.up()
        for name, power in alive.items():
            await world.until_state(name, RUNNING if power is Power.ON else STOPPED, within=300)

        async def settled() -> bool:
            return len(await world.keys("/plasmavmc/vms/")) == len(alive) == len(await world.keys("/hostler/v1/nodes/"))

        await world.until(settled, within=300)
        assert leader.failed is None

    play(story, seed=seed)


def test_a_store_out_of_reach_moves_nothing_and_all_goes_on_afterwards() -> None:
    async def story(world: World) -> None:
        leader = await world.leader()
        await world.node("n1")
        await world.create("a")
        await world.until_state("a", RUNNING)
        leader.store.down()
        await world.create("b")
        await asyncio.sleep(10)
        assert not leader.view.healthy()
        assert leader.view.stale_for() > 5
        assert await world.state("b") is None
        leader.store.up()
        await world.until_state("b", RUNNING)
        assert leader.view.healthy()
        assert len(world.nodes["n1"].seen) <= 3, "nothing was commanded twice"

    play(story)


def test_two_machines_of_the_same_id_in_two_projects_never_share_a_node() -> None:
    async def story(world: World) -> None:
        await world.leader()
        await world.node("n1")
        await world.create("a")
        await world.until_state("a", RUNNING)
        twin = vm("a", org="other")
        await VM.create(world.raw, twin, org="other", project="p", vm="a")
        await asyncio.sleep(5)
        command = await world.command("n1", "a")
        assert command is not None
        assert command.org == "o"

    play(story)
