"""One node carries out its commands, whatever fails on the way, and tells what there is."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from agent_stage import SPEC, Stage, stage

from hostler.drivers.machines.simulated import MachineFaults, MemoryHost, Odds
from hostler.engine.calendar import READ_EVERY
from hostler.keys.families import ALIVE, CLOCK, CLUSTER, COMMAND, HANDLE, RETAINED
from hostler.kit.virtual_loop import run_virtual
from hostler.model.vm import MachineState, Power, Restore, Snapshot, SnapshotState, VmHandle, VmSpec
from hostler.model.vm import Step as ReadinessStep
from hostler.ports.machines import Label, MachinePlan

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from agent_stage import Running

RUNNING, STOPPED, FAILED, GONE = MachineState.RUNNING, MachineState.STOPPED, MachineState.FAILED, MachineState.GONE


def staged(play: Callable[[Stage], Awaitable[None]], seed: int = 0, **memory: Any) -> None:
    async def main() -> None:
        async with stage(seed, **memory) as it:
            await play(it)

    run_virtual(main, seed=seed)


def test_a_command_becomes_a_running_machine_with_three_reports() -> None:
    async def play(it: Stage) -> None:
        a = await it.agent(faults=MachineFaults(delays={"create": 2.0, "start": 3.0}))
        await it.command(generation=4, resets=3)
        states = []
        async with HANDLE.watch(it.bare) as watch:
            while not states or states[-1].state is not RUNNING:
                change = await anext(watch)
                assert change.current is not None
                states.append(change.current.value)  # type: ignore[union-attr]
        assert [handle.state for handle in states] == [MachineState.CREATING, MachineState.STARTING, RUNNING]
        handle = states[-1]
        machine = await a.machine()
        assert machine is not None
        assert (handle.node, handle.driver, handle.machine, handle.generation) == ("a", "simulated", machine.id, 4)
        assert (handle.address, handle.resets, handle.failures) == (machine.address, 3, 0)
        assert machine.label == Label("o", "p", "v", a.agent.session.cluster, "a")

    staged(play)


def test_nothing_but_the_time_is_written_while_nothing_changes() -> None:
    async def play(it: Stage) -> None:
        await it.agent()
        await it.command()
        await it.reaches("v", RUNNING)
        revision = it.bare.current_revision()
        await asyncio.sleep(3.5 * READ_EVERY)
        assert it.bare.current_revision() == revision + 3
        [reading] = (await CLOCK.list(it.store)).entries
        assert reading.mod_revision == revision + 3

    staged(play)


def test_an_agent_that_comes_back_writes_nothing_about_what_is_as_it_was() -> None:
    async def play(it: Stage) -> None:
        a = await it.agent()
        await it.command(snapshots=("s",))
        await it.reaches("v", RUNNING)
        await it.until(lambda: a.agent.state().working == 0)
        before = await it.handle_entry()
        await a.crash()
        b = await it.agent(place=a.place)
        await it.until(lambda: b.agent.state().registered and not b.agent.state().working)
        await asyncio.sleep(60.0)
        assert await it.handle_entry() == before

    staged(play)


def test_power_resets_snapshots_restores_and_shapes_follow_the_command() -> None:
    async def play(it: Stage) -> None:
        a = await it.agent()
        await it.command()
        await it.reaches("v", RUNNING)
        await it.change(snapshots=("s",))
        handle = await it.reaches("v", RUNNING, generation=2)
        await it.until(lambda: a.agent.state().working == 0)
        handle = await it.handle()
        assert handle.snapshots["s"].state is SnapshotState.READY
        await it.change(resets=1, spec=msgspec.structs.replace(SPEC, cpus=2))
        handle = await it.reaches("v", RUNNING, generation=3, resets=1)
        assert handle.at_next_boot == ("cpus",)
        await it.change(restore=Restore(snapshot="s", number=1))
        handle = await it.reaches("v", RUNNING, generation=4, restored=1, at_next_boot=())
        machine = await a.machine()
        assert machine is not None
        assert machine.spec.cpus == 2
        await it.change(power=Power.OFF, snapshots=())
        handle = await it.reaches("v", STOPPED, generation=5)
        assert handle.snapshots == {}
        await it.change(power=Power.ON)
        await it.reaches("v", RUNNING, generation=6)
        await it.change(deleting=True)
        await it.reaches("v", GONE, generation=7)
        assert await a.machine() is None
        await it.bare.txn([], [COMMAND.delete(node="a", vm="v"), HANDLE.delete(org="o", project="p", vm="v")])
        await asyncio.sleep(30.0)
        assert await it.handle_entry() is None
        assert a.agent.state().retained == 0

    staged(play)


def test_a_command_that_changes_during_a_step_is_followed_once_the_step_is_done() -> None:
    async def play(it: Stage) -> None:
        a = await it.agent(faults=MachineFaults(delays={"start": 20.0}))
        await it.command()
        await it.reaches("v", MachineState.STARTING)
        await it.change(power=Power.OFF)
        await asyncio.sleep(5.0)
        machine = await a.machine()
        assert machine is not None
        assert machine.state is MachineState.STARTING
        await it.reaches("v", STOPPED)
        assert len(a.machines.intervals("v")) == 1

    staged(play)


@pytest.mark.parametrize("seed", range(10))
def test_a_command_that_changes_while_a_step_is_announced_is_followed_before_it_is_done(seed: int) -> None:
    async def play(it: Stage) -> None:
        a = await it.agent()
        await it.command(power=Power.OFF)
        await it.reaches("v", STOPPED)
        it.store.script("txn", "slow", prefix=HANDLE.prefix())  # the report that it is starting
        it.store.faults.slowest = 4.0
        await it.change(power=Power.ON)
        await asyncio.sleep(0.0001)
        await it.change(power=Power.OFF)
        await it.reaches("v", STOPPED, generation=3)
        assert len(a.machines.intervals("v")) == 0

    staged(play, seed)


def test_boots_are_few_at_once_and_stops_do_not_wait_for_them() -> None:
    async def play(it: Stage) -> None:
        booting, most = set(), 0

        async def step(name: str) -> None:
            nonlocal most
            if name == "start.begun:after":
                booting.add(asyncio.current_task())
            elif name == "start.done:after":
                booting.discard(asyncio.current_task())
            most = max(most, len(booting))

        await it.agent(boots=3, workers=5, step=step, faults=MachineFaults(delays={"start": 10.0}))
        await it.command("first")
        await it.reaches("first", RUNNING)
        for number in range(30):
            await it.command(f"v{number}")
        await asyncio.sleep(1.0)
        started = it.clock.now()
        await it.change("first", power=Power.OFF)
        await it.reaches("first", STOPPED)
        assert it.clock.now() - started < 2.0
        for number in range(30):
            await it.reaches(f"v{number}", RUNNING, within=200.0)
        assert most == 3
        assert it.clock.now() - started < 110.0

    staged(play)


def test_machines_at_rest_cost_no_task() -> None:
    async def play(it: Stage) -> None:
        a = await it.agent(boots=100, workers=100)
        for number in range(300):
            await it.command(f"v{number}")
        for number in range(300):
            await it.reaches(f"v{number}", RUNNING)
        await asyncio.sleep(30.0)
        assert len(asyncio.all_tasks()) < 25
        assert a.agent.state().working == a.agent.state().waiting == 0

    staged(play)


def test_a_machine_that_stops_by_itself_is_started_again() -> None:
    async def play(it: Stage) -> None:
        a = await it.agent()
        await it.command()
        await it.reaches("v", RUNNING)
        await asyncio.sleep(100.0)
        await a.machines.stop("v", grace=0.0)
        await it.until(lambda: len(a.machines.intervals("v")) == 2, within=10.1)
        await it.reaches("v", RUNNING)

    staged(play)


def test_a_machine_that_breaks_again_and_again_is_started_ever_later() -> None:
    async def play(it: Stage) -> None:
        a = await it.agent(look_every=1.0)
        await it.command()
        await it.reaches("v", RUNNING)
        for _ in range(300):
            await asyncio.sleep(1.0)
            a.machines.crash("v", "kernel panic")
        starts = [interval[0] for interval in a.machines.intervals("v")]
        gaps = [later - earlier for earlier, later in itertools.pairwise(starts)]
        assert gaps[0] < 4.0
        assert max(gaps) > 25.0
        assert len(starts) < 20
        handle = await it.reaches("v", FAILED, within=100.0)
        assert "kernel panic" in handle.detail
        assert handle.failures > 3
        await it.reaches("v", RUNNING, within=100.0, failures=0, detail="")

    staged(play)


def test_what_is_refused_is_told_as_failed_tried_again_later_and_at_once_when_the_wish_changes() -> None:
    async def play(it: Stage) -> None:
        from hostler.drivers.machines.simulated import SimulatedMachines

        a = await it.agent()
        assert isinstance(a.machines, SimulatedMachines)
        a.machines._images = {"good"}
        await it.command(spec=msgspec.structs.replace(SPEC, image="bad"))
        handle = await it.reaches("v", FAILED, failures=1)
        assert "bad" in handle.detail
        await it.reaches("v", FAILED, failures=4, within=20.0)
        await asyncio.sleep(600.0)
        assert 10 < (await it.handle()).failures < 25
        await it.change(spec=msgspec.structs.replace(SPEC, image="good"))
        assert (await it.reaches("v", RUNNING, within=1.0)).failures == 0

    staged(play)


def test_a_driver_that_is_out_of_reach_is_asked_again_and_nothing_is_taken_for_gone() -> None:
    async def play(it: Stage) -> None:
        a = await it.agent()
        await it.command()
        await it.reaches("v", RUNNING)
        a.machines.down()
        await it.change(power=Power.OFF)
        await asyncio.sleep(120.0)
        assert (await it.handle()).state is RUNNING
        a.machines.up()
        await it.reaches("v", STOPPED, within=65.0)

    staged(play)


def test_a_refused_snapshot_is_told_as_such_and_stops_nothing_else() -> None:
    async def play(it: Stage) -> None:
        a = await it.agent()

        async def refuses(vm: str, name: str) -> Any:
            from hostler.errors import Refused

            raise Refused("no room for snapshots")

        a.machines.snapshot = refuses  # type: ignore[method-assign]
        await it.command(snapshots=("s",))
        handle = await it.reaches("v", RUNNING)
        assert handle.snapshots["s"].state is SnapshotState.FAILED
        assert "no room" in handle.snapshots["s"].detail
        await it.change(power=Power.OFF)
        await it.reaches("v", STOPPED)

    staged(play)


def test_lost_snapshots_are_neither_taken_nor_restored() -> None:
    async def play(it: Stage) -> None:
        a = await it.agent()
        await it.command(snapshots=("s", "t"), lost=("s",), restore=Restore(snapshot="s", number=2))
        handle = await it.reaches("v", RUNNING, restored=2)
        assert {name: snapshot.state for name, snapshot in handle.snapshots.items()} == {
            "s": SnapshotState.FAILED,
            "t": SnapshotState.READY,
        }
        machine = await a.machine()
        assert machine is not None
        assert (machine.snapshots, machine.restored) == (("t",), 0)
        # Wished for anew, it is taken; the old restore is not done with it.
        await it.change(snapshots=("t",), lost=())
        await it.reaches("v", RUNNING, generation=2)
        await it.change(snapshots=("t", "s"))
        handle = await it.reaches("v", RUNNING, generation=3)
        await it.until(lambda: a.agent.state().working == 0)
        assert (await it.handle()).snapshots["s"].state is SnapshotState.READY
        assert len(a.machines.intervals("v")) == 1

    staged(play)


def test_a_machine_forgotten_by_an_earlier_command_is_not_taken_for_the_new_one() -> None:
    async def play(it: Stage) -> None:
        place = MemoryHost("here")
        a = await it.agent(place=place)
        await it.command(snapshots=("old",))
        await it.reaches("v", RUNNING)
        old = await a.machine()
        await a.crash()
        await it.remove()
        await it.command()
        b = await it.agent(place=place)
        await it.reaches("v", RUNNING)
        new = await b.machine()
        assert old is not None
        assert new is not None
        assert new.id != old.id
        assert new.snapshots == ()

    staged(play)


@pytest.mark.parametrize("kind", ["lost", "never", "unavailable"])
@pytest.mark.parametrize("nth", range(1, 5))
def test_a_lost_answer_to_any_report_changes_nothing_in_the_end(kind: Any, nth: int) -> None:
    async def play(it: Stage) -> None:
        a = await it.agent()
        await it.until(lambda: a.agent.state().registered)
        it.store.script("txn", kind, prefix=HANDLE.prefix(), nth=nth, times=2)
        await it.command()
        await it.reaches("v", RUNNING)
        await it.change(power=Power.OFF)
        await it.reaches("v", STOPPED, generation=2)
        await it.until(lambda: a.agent.state().waiting == 0)
        assert len(a.machines.intervals("v")) == 1

    staged(play)


def test_a_report_thought_lost_cannot_overwrite_a_later_one() -> None:
    async def play(it: Stage) -> None:
        a = await it.agent()
        await it.until(lambda: a.agent.state().registered)
        late: list[Any] = []
        txn = it.bare.txn

        async def swallow(when: Any, then: Any, otherwise: Any = ()) -> Any:
            if not late and any(part.key.startswith(HANDLE.prefix()) and b'"running"' in part.value for part in then):
                late.append((when, then, otherwise))
                from hostler.errors import Uncertain

                raise Uncertain("the answer was lost")
            return await txn(when, then, otherwise)

        it.bare.txn = swallow  # type: ignore[method-assign]
        await it.command()
        await it.reaches("v", RUNNING)
        await a.machines.stop("v", grace=0.0)
        a.machines.script("start", "unavailable", times=3)
        await it.until(lambda: a.agent.state().failing == 1)
        await it.reaches("v", STOPPED)
        assert not (await txn(*late[0])).succeeded
        assert (await it.handle()).state is STOPPED

    staged(play)


def test_a_machine_is_not_made_before_the_store_knows_that_it_is_begun() -> None:
    async def play(it: Stage) -> None:
        a = await it.agent()
        await it.until(lambda: a.agent.state().registered)
        it.store.script("txn", "never", prefix=HANDLE.prefix(), times=5)
        await it.command()
        for _ in range(20):
            if (await it.handle()).state is MachineState.PLACED:
                assert await a.machine() is None
            await asyncio.sleep(0.5)
        await it.reaches("v", RUNNING, within=60.0)

    staged(play)


def test_a_damaged_handle_is_written_over() -> None:
    async def play(it: Stage) -> None:
        await it.command()
        await it.bare.put(HANDLE.fill(org="o", project="p", vm="v"), b"{")
        await it.agent()
        key = HANDLE.fill(org="o", project="p", vm="v")

        async def good() -> bool:
            kv = await it.bare.get(key)
            return kv is not None and b'"running"' in kv.value

        await it.until(good)

    staged(play)


# Orphans


async def _stray(it: Stage, place: MemoryHost, cluster: str, vm: str = "stray", node: str = "a") -> None:
    from hostler.drivers.machines.simulated import SimulatedMachines

    async with SimulatedMachines(place, clock=it.clock, rng=it.rng) as machines:
        await machines.create(MachinePlan(label=Label("o", "p", vm, cluster, node), spec=SPEC))
        await machines.start(vm)


async def _cluster(it: Stage) -> str:
    from hostler.engine.cluster_id import cluster_id

    return await cluster_id(it.bare, it.clock, lambda: "ours")


def test_machines_without_a_command_are_retained_but_only_our_own() -> None:
    async def play(it: Stage) -> None:
        place = MemoryHost()
        await _stray(it, place, await _cluster(it))
        await _stray(it, place, "theirs", "foreign")
        await _stray(it, place, "", "nobodys")
        await _stray(it, place, await _cluster(it), "elsewhere", node="b")
        await it.command("wanted")
        a = await it.agent(place=place)
        await it.until(lambda: a.agent.state().retained == 1)
        await it.reaches("wanted", RUNNING)
        await asyncio.sleep(700.0)
        assert {machine.label.vm for machine in await a.machines.list()} == {
            "wanted",
            "foreign",
            "nobodys",
            "elsewhere",
        }
        assert a.agent.state().foreign == 3

    staged(play)


def test_a_machine_whose_command_goes_away_is_retained_at_once() -> None:
    async def play(it: Stage) -> None:
        a = await it.agent()
        await it.command()
        await it.reaches("v", RUNNING)
        await it.remove()
        await it.until(lambda: a.agent.state().retained == 1, within=1.0)
        assert await a.machine() is None

    staged(play)


def test_a_retained_machine_is_published_though_the_driver_lost_its_answer() -> None:
    async def play(it: Stage) -> None:
        a = await it.agent(faults=MachineFaults(verbs={"retain": Odds(lost=1.0)}))
        await it.command()
        await it.reaches("v", RUNNING)
        await it.remove()
        await it.until(lambda: bool(a.place.contents.kept), within=1.0)
        await asyncio.sleep(5.0)
        assert [entry.value.vm for entry in (await RETAINED.list(it.bare)).entries] == ["v"]

    staged(play)


def test_a_command_that_is_not_confirmed_creates_nothing_and_leaves_what_is_there() -> None:
    async def play(it: Stage) -> None:
        a = await it.agent()
        await it.command(unconfirmed=True)
        await it.reaches("v", MachineState.CREATING)
        await asyncio.sleep(60.0)
        assert await a.machine() is None
        handle = await it.reaches("v", MachineState.CREATING)
        assert "restored from a backup" in handle.detail
        await it.change(unconfirmed=False)
        await it.reaches("v", RUNNING)
        await it.change(unconfirmed=True)
        await asyncio.sleep(5.0)
        assert (await a.machine()) is not None

    staged(play)


def test_nothing_is_destroyed_while_the_store_does_not_say_for_certain_that_nobody_wants_it() -> None:
    async def play(it: Stage) -> None:
        a = await it.agent()
        await it.command()
        await it.reaches("v", RUNNING)
        entry = a.agent.commands.entries.pop(COMMAND.fill(node="a", vm="v"))  # it has lost sight of it
        await a.agent._sweep()
        await asyncio.sleep(60.0)
        assert await a.machine() is not None
        it.store.down()
        a.agent._queue.add("v")
        await asyncio.sleep(10.0)
        assert await a.machine() is not None
        a.agent.commands.entries[entry.key] = entry
        it.store.up()
        await asyncio.sleep(60.0)
        assert len(a.machines.intervals("v")) == 1

    staged(play)


def test_a_command_that_cannot_be_read_protects_its_machine() -> None:
    async def play(it: Stage) -> None:
        place = MemoryHost()
        await _stray(it, place, await _cluster(it), "v")
        key = COMMAND.fill(node="a", vm="v")
        await it.bare.put(key, b"{")
        a = await it.agent(place=place)
        await asyncio.sleep(400.0)
        assert await a.machine() is not None
        assert a.agent.state().unreadable == (key,)

    staged(play)


def test_a_snapshot_keeps_its_instant_over_a_restart_of_the_agent() -> None:
    async def play(it: Stage) -> None:
        a = await it.agent()
        await it.command(snapshots=("s",))
        await it.reaches("v", RUNNING)
        await it.until(lambda: a.agent.state().working == 0)
        taken: Snapshot = (await it.handle()).snapshots["s"]
        await asyncio.sleep(50.0)
        await a.crash()
        await it.agent(place=a.place)
        await it.change(power=Power.OFF)
        assert (await it.reaches("v", STOPPED)).snapshots["s"] == taken
        assert await ALIVE.get(it.bare, node="a") is not None

    staged(play)


# Machines of others, and those that were moved here


@pytest.mark.parametrize("label", [("theirs", "a"), ("ours", "b"), ("", "a")])
def test_a_machine_of_somebody_else_stands_in_the_way_and_is_never_told_as_gone(label: tuple[str, str]) -> None:
    async def play(it: Stage) -> None:
        place = MemoryHost()
        await _cluster(it)
        await _stray(it, place, label[0], "v", node=label[1])
        await it.command()
        a = await it.agent(place=place)
        told = await it.reaches("v", MachineState.FAILED)
        assert "belongs to another control plane or node" in told.detail
        await it.change(deleting=True)
        await it.reaches("v", MachineState.FAILED, generation=2)
        await asyncio.sleep(200.0)
        assert (await it.handle()).state is MachineState.FAILED
        seen = await a.machine()
        assert seen is not None
        assert seen.state is RUNNING
        await a.machines.delete("v")  # somebody has looked
        await it.reaches("v", MachineState.GONE, within=120.0)

    staged(play)


def test_machines_of_a_state_file_that_was_moved_here_are_ours_and_keep_their_label() -> None:
    async def play(it: Stage) -> None:
        place = MemoryHost()
        for vm in ("v", "orphan"):
            await _stray(it, place, "file", vm)
        await it.command()
        await it.bare.put(HANDLE.fill(org="o", project="p", vm="v"), (await _ran(it)).encode())
        await _cluster(it)
        a = await it.agent(place=place)
        await it.reaches("v", MachineState.FAILED)
        entry = await CLUSTER.get(it.bare)
        assert entry is not None
        await CLUSTER.replace(it.bare, entry, msgspec.structs.replace(entry.value, aliases=("file",)))
        await it.reaches("v", RUNNING, within=120.0)
        await it.until(lambda: a.agent.state().retained == 1, within=400.0)
        assert len(place.intervals("v", it.clock.now())) == 1, "it ran on"
        more = msgspec.structs.replace(SPEC, cpus=2)
        await it.change(power=Power.OFF, spec=more)
        await it.reaches("v", STOPPED, generation=2)
        await it.until(lambda: _has(a, more), within=60.0)
        seen = await a.machine()
        assert seen is not None
        assert seen.label.cluster == "file"

    staged(play)


async def _ran(it: Stage) -> VmHandle:
    return msgspec.structs.replace(await it.handle(), state=RUNNING)


async def _has(running: Running, spec: VmSpec) -> bool:
    seen = await running.machine()
    return seen is not None and seen.spec == spec


def test_how_far_a_machine_is_and_what_it_does_by_itself_is_told_at_once() -> None:
    async def play(it: Stage) -> None:
        a = await it.agent(look_every=1000.0)
        await it.command()
        handle = await it.reaches("v", RUNNING)
        assert handle.readiness is not None
        assert handle.readiness.step is ReadinessStep.AVAILABLE
        a.machines.crash("v", "a cosmic ray")
        told = await it.reaches("v", FAILED, within=5.0)
        assert told.readiness is None
        assert "cosmic ray" in told.detail

    staged(play)
