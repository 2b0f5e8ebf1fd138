"""Simulated machines: when they ran, what goes wrong, and that any crash can be gone on from."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from hostler import Invalid, NotFound, Refused, Unavailable, Uncertain
from hostler.drivers.machines.simulated import host as places
from hostler.kit.virtual_loop import VirtualClock, run_virtual
from hostler.model.inventory import Capacity
from hostler.model.vm import MachineState, VmSpec
from hostler.ports.machine_driver import NodeSetup
from hostler.ports.machines import ChannelKind, Label, MachinePlan, Machines
from hostler.testing import FileHost, MachineFaults, MemoryHost, Odds, SimulatedMachines
from hostler.wiring import open_machines

STOPPED, RUNNING = MachineState.STOPPED, MachineState.RUNNING
CREATING, STARTING, STOPPING = MachineState.CREATING, MachineState.STARTING, MachineState.STOPPING


def plan(vm: str = "a", **changes: Any) -> MachinePlan:
    fields = {"label": Label("org", "project", vm, "cluster"), "spec": VmSpec(cpus=1, memory_mib=64)}
    return MachinePlan(**(fields | changes))  # type: ignore[arg-type]


def virtual(main: Callable[[SimulatedMachines], Awaitable[None]], seed: int = 0, **options: Any) -> None:
    """Run a test on machines in virtual time."""

    async def whole() -> None:
        async with SimulatedMachines(MemoryHost(), clock=VirtualClock(), rng=random.Random(seed), **options) as m:
            await main(m)

    run_virtual(whole, seed=seed)


async def running(machines: Machines, vm: str = "a", **changes: Any) -> None:
    await machines.create(plan(vm, **changes))
    await machines.start(vm)


# When they ran


def test_a_machine_writes_down_when_it_ran() -> None:
    async def main(m: SimulatedMachines) -> None:
        await m.create(plan())
        assert m.intervals("a") == []
        await m.clock.sleep(1)
        await m.start("a")
        await m.clock.sleep(2)
        assert m.intervals("a") == [(1, None)]
        await m.stop("a", grace=0)
        await m.clock.sleep(1)
        await m.start("a")
        await m.clock.sleep(1)
        await m.reset("a", 1)
        assert m.intervals("a") == [(1, 3), (4, None)]
        await m.clock.sleep(1)
        await m.delete("a")
        assert m.intervals("a") == [(1, 3), (4, 6)]
        await running(m)
        assert m.intervals("a") == [(1, 3), (4, 6), (6, None)]

    virtual(main)


def test_a_fenced_machine_ends_at_its_deadline_though_nobody_looked() -> None:
    async def main(m: SimulatedMachines) -> None:
        await m.hold(10)
        await running(m, fenced=True)
        await m.clock.sleep(50)
        assert m.intervals("a") == [(0, 10)]
        await m.hold(10)
        assert m.intervals("a") == [(0, 10)]
        machine = await m.inspect("a")
        assert machine is not None
        assert (machine.state, machine.detail) == (STOPPED, places.LAPSED)

    virtual(main)


def test_the_deadline_that_counts_is_the_one_that_was_reached() -> None:
    async def main(m: SimulatedMachines) -> None:
        await m.hold(10)
        await running(m, fenced=True)
        await m.clock.sleep(12)
        await m.hold(100)  # too late: it stopped at 10
        await m.clock.sleep(1)
        assert m.intervals("a") == [(0, 10)]
        await m.start("a")
        await m.hold(5)
        await m.clock.sleep(200)
        assert m.intervals("a") == [(0, 10), (13, 18)]

    virtual(main)


@pytest.mark.parametrize("held", [None, 0.0, 3.0])
def test_a_fenced_machine_that_starts_after_its_deadline_never_runs(held: float | None) -> None:
    async def main(m: SimulatedMachines) -> None:
        if held is not None:
            await m.hold(held)
        await m.create(plan(fenced=True))
        await m.clock.sleep(3)
        with pytest.raises(Unavailable, match="not held"):
            await m.start("a")
        assert m.intervals("a") == []
        machine = await m.inspect("a")
        assert machine is not None
        assert machine.state is STOPPED

    virtual(main)


def test_a_fenced_machine_whose_time_runs_out_while_it_boots_is_off_at_its_deadline() -> None:
    async def main(m: SimulatedMachines) -> None:
        await m.hold(5)
        await m.create(plan(fenced=True))
        with pytest.raises(Unavailable):
            await m.start("a")
        assert m.intervals("a") == [(0, 5)]

    virtual(main, faults=MachineFaults(delays={"start": 9}))


def test_a_hold_counts_from_when_it_was_asked_for_and_not_from_when_it_arrived() -> None:
    async def main(m: SimulatedMachines) -> None:
        await m.hold(100)
        await running(m, fenced=True)
        m.faults.delays["hold"] = 4.0
        await m.hold(10)
        await m.clock.sleep(100)
        assert m.intervals("a") == [(4, 14)]

    virtual(main, faults=MachineFaults(delays={"hold": 4.0}))


def test_a_node_without_power_runs_nothing_and_its_agent_is_dead() -> None:
    async def main() -> None:
        place, clock = MemoryHost(), VirtualClock()
        dead = SimulatedMachines(place, clock=clock)
        await dead.__aenter__()
        await running(dead)
        await clock.sleep(7)
        place.power_off(clock.now())
        assert place.intervals("a", clock.now()) == [(0, 7)]
        with pytest.raises(Refused):
            await dead.start("a")
        async with SimulatedMachines(place, clock=clock) as m:
            machine = await m.inspect("a")
            assert machine is not None
            assert machine.state is STOPPED

    run_virtual(main)


def test_what_a_dead_driver_does_counts_for_nothing() -> None:
    async def main() -> None:
        place, clock = MemoryHost(), VirtualClock()
        dead = SimulatedMachines(place, clock=clock, faults=MachineFaults(delays={"start": 5}))
        await dead.__aenter__()
        await dead.create(plan())
        starting = asyncio.create_task(dead.start("a"))
        await clock.sleep(1)
        place.disown()
        async with SimulatedMachines(place, clock=clock) as m:
            await m.stop("a", grace=0)
            with pytest.raises(Refused):
                await starting
            with pytest.raises(Refused):
                await dead.hold(5)
            await dead.aclose()
            machine = await m.inspect("a")
            assert machine is not None
            assert machine.state is STOPPED
            assert m.intervals("a") == [(0, 1)]

    run_virtual(main)


def test_only_the_newest_intervals_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "RUNS_KEPT", 5)
    monkeypatch.setattr(places, "DELETED_KEPT", 3)

    async def main(m: SimulatedMachines) -> None:
        await m.create(plan())
        for _ in range(40):
            await m.start("a")
            await m.clock.sleep(1)
            await m.stop("a", grace=0)
        assert 5 <= len(m.intervals("a")) <= 10
        assert m.intervals("a")[-1] == (39, 40)
        for number in range(6):
            await running(m, f"gone-{number}")
            await m.delete(f"gone-{number}")
        assert [number for number in range(6) if m.intervals(f"gone-{number}")] == [3, 4, 5]
        assert m.intervals("a")
        await running(m, "gone-5")
        for number in range(5):
            await running(m, f"gone-{number}")
            await m.delete(f"gone-{number}")
        assert len(m.intervals("gone-5")) == 2, "it is here again, so it is not among those that went"

    virtual(main)


def test_a_machine_is_off_at_the_very_instant_of_its_deadline() -> None:
    async def main(m: SimulatedMachines) -> None:
        await m.hold(10)
        await running(m, fenced=True)
        await m.clock.sleep(10)
        assert [machine.state for machine in await m.list()] == [STOPPED]

    virtual(main)


# Crashes


class Killed(BaseException):
    """The process ends here."""


async def _nothing(_: Machines) -> None:
    pass


async def _stopped(m: Machines) -> None:
    await m.create(plan(fenced=True))


async def _running(m: Machines) -> None:
    await running(m, fenced=True)
    await m.snapshot("a", "s")


VERBS: dict[str, tuple[Callable[[Machines], Awaitable[None]], Callable[[Machines], Awaitable[Any]]]] = {
    "create": (_nothing, lambda m: m.create(plan(fenced=True))),
    "reshape": (_stopped, lambda m: m.create(plan(fenced=True, spec=VmSpec(cpus=2, memory_mib=64)))),
    "start": (_stopped, lambda m: m.start("a")),
    "stop": (_running, lambda m: m.stop("a", grace=3)),
    "switch off": (_running, lambda m: m.stop("a", grace=0)),
    "reset": (_running, lambda m: m.reset("a", 2)),
    "snapshot": (_running, lambda m: m.snapshot("a", "t")),
    "restore": (_running, lambda m: m.restore("a", "s", 1)),
    "drop": (_running, lambda m: m.drop_snapshot("a", "s")),
    "delete": (_running, lambda m: m.delete("a")),
    "hold": (_running, lambda m: m.hold(50)),
}


@pytest.mark.parametrize("kind", ["memory", "folder"])
@pytest.mark.parametrize("verb", VERBS)
def test_a_process_that_dies_at_any_step_leaves_what_the_next_one_finishes(
    verb: str, kind: str, tmp_path: Path
) -> None:
    prepare, act = VERBS[verb]
    steps: list[str] = []

    async def crashed_at(number: int) -> tuple[Any, ...]:
        """The machine after the verb was cut at its n-th hook and repeated by another process."""
        place: Any = MemoryHost() if kind == "memory" else FileHost(tmp_path / f"{number}")
        clock, seen = VirtualClock(), 0

        async def step(name: str) -> None:
            nonlocal seen
            seen += 1
            if number < 0:
                steps.append(name)
            if seen == number:
                raise Killed(name)

        async with SimulatedMachines(place, clock=clock) as ready:
            await ready.hold(1000)
            await prepare(ready)
        first = SimulatedMachines(place, clock=clock)
        first.step = step
        await first.__aenter__()
        try:
            await act(first)
        except Killed:
            place.disown()
        else:
            await first.aclose()
        if kind == "folder":
            place = FileHost(tmp_path / f"{number}")
        async with SimulatedMachines(place, clock=clock) as second:
            await act(second)
            found = await second.inspect("a")
            assert len(second.intervals("a")) <= 1
        return () if found is None else (found.state, found.spec, found.resets, found.restored, found.snapshots)

    expected = run_virtual(lambda: crashed_at(-1))
    assert steps, "no step can be seen"
    assert len(steps) % 2 == 0, "before and after each"
    for number in range(1, len(steps) + 1):
        assert run_virtual(lambda number=number: crashed_at(number)) == expected, steps[number - 1]


async def test_what_was_begun_says_so() -> None:
    async with SimulatedMachines(MemoryHost()) as m:
        m.script("create", "half")
        with pytest.raises(Uncertain):
            await m.create(plan())
        begun = await m.inspect("a")
        assert begun is not None
        assert begun.state is CREATING
        with pytest.raises(Refused, match="create it again"):
            await m.start("a")
        await m.create(plan())
        m.script("start", "half")
        with pytest.raises(Uncertain):
            await m.start("a")
        assert [machine.state for machine in await m.list()] == [STARTING]
        assert m.intervals("a")[0][1] is None, "half started is not harmless"
        await m.start("a")
        m.script("stop", "half")
        with pytest.raises(Uncertain):
            await m.stop("a", grace=1)
        assert [machine.state for machine in await m.list()] == [STOPPING]
        await m.start("a")
        assert [machine.state for machine in await m.list()] == [RUNNING]
        m.script("delete", "half")
        with pytest.raises(Uncertain):
            await m.delete("a")
        assert [machine.state for machine in await m.list()] == [CREATING]
        assert m.intervals("a")[-1][1] is not None, "half destroyed does not run"


async def test_a_start_finishes_the_restore_that_was_begun() -> None:
    async with SimulatedMachines(MemoryHost()) as m:
        await running(m)
        await m.snapshot("a", "s")
        m.script("restore", "half")
        with pytest.raises(Uncertain):
            await m.restore("a", "s", 4)
        left = await m.inspect("a")
        assert left is not None
        assert (left.state, left.restored) == (STOPPED, 0)
        assert "restore" in left.detail
        with pytest.raises(Refused):
            await m.drop_snapshot("a", "s")
        with pytest.raises(Refused):
            await m.snapshot("a", "t")
        started = await m.start("a")
        assert (started.state, started.restored, started.detail) == (RUNNING, 4, "")


# Faults


@pytest.mark.parametrize(
    ("kind", "error", "after"),
    [("unavailable", Unavailable, STOPPED), ("never", Uncertain, STOPPED), ("lost", Uncertain, RUNNING),
     ("broken", Uncertain, MachineState.FAILED)],
)  # fmt: skip
async def test_a_scripted_fault_comes_when_it_is_due(kind: Any, error: type[Exception], after: MachineState) -> None:
    async with SimulatedMachines(MemoryHost()) as m:
        await m.create(plan("a"))
        await m.create(plan("b"))
        m.script("start", kind, vm="b", nth=2)
        await m.start("a")
        await m.start("b")
        await m.stop("b", grace=0)
        await m.start("a")
        with pytest.raises(error):
            await m.start("b")
        found = await m.inspect("b")
        assert found is not None
        assert found.state is after
        assert (await m.start("b")).state is RUNNING
        assert (await m.start("b")).detail == ""


async def test_a_fault_that_a_verb_cannot_have_is_refused() -> None:
    m = SimulatedMachines(MemoryHost())
    for verb, kind in (("inspect", "lost"), ("create", "broken"), ("start", "deaf")):
        with pytest.raises(Invalid, match="cannot be"):
            m.script(verb, kind)  # type: ignore[arg-type]
    with pytest.raises(Invalid):
        m.script("start", "lost", nth=0)


def test_a_lookup_that_fails_is_no_absence() -> None:
    async def main(m: SimulatedMachines) -> None:
        await m.create(plan())
        m.faults.verbs["inspect"] = Odds(unavailable=1)
        m.faults.verbs["list"] = Odds(unavailable=1)
        with pytest.raises(Unavailable):
            await m.inspect("a")
        with pytest.raises(Unavailable):
            await m.list()
        m.faults.verbs.clear()
        m.down()
        with pytest.raises(Unavailable):
            await m.inspect("none")
        m.up()
        assert await m.inspect("none") is None

    virtual(main)


def test_what_goes_wrong_follows_from_the_seed() -> None:
    def story(seed: int) -> list[str]:
        told: list[str] = []

        async def main(m: SimulatedMachines) -> None:
            for number in range(60):
                try:
                    await running(m, f"{number % 7}")
                    told.append(f"{m.clock.now():.6f}")
                    await m.delete(f"{number % 7}")
                except (Unavailable, Uncertain) as error:
                    told.append(str(error))

        odds = Odds(unavailable=0.1, never=0.1, half=0.1, lost=0.1, broken=0.05, slow=0.3, slowest=2)
        virtual(main, seed, faults=MachineFaults(every=odds))
        return told

    assert story(1) == story(1)
    assert story(1) != story(2)
    assert any("lost" in line for line in story(1))
    assert any("half" in line for line in story(1))


@pytest.mark.parametrize(("deaf", "grace", "takes"), [(0, 10, 4), (0, 2, 2), (1, 10, 10), (0, 0, 0), (1, 0, 0)])
def test_a_machine_has_its_grace_to_shut_down_and_no_longer(deaf: float, grace: float, takes: float) -> None:
    async def main(m: SimulatedMachines) -> None:
        await running(m)
        assert (await m.stop("a", grace=grace)).state is STOPPED
        assert m.intervals("a") == [(0, takes)]

    faults = MachineFaults(delays={"stop": 4}, verbs={"stop": Odds(deaf=deaf)})
    virtual(main, faults=faults)


async def test_a_machine_that_crashed_is_failed_and_says_how() -> None:
    async with SimulatedMachines(MemoryHost()) as m:
        await running(m)
        m.crash("a", "kernel panic")
        found = await m.inspect("a")
        assert found is not None
        assert (found.state, found.detail) == (MachineState.FAILED, "kernel panic")
        assert m.intervals("a")[0][1] is not None
        assert (await m.stop("a", grace=1)).state is STOPPED


# The console


async def test_a_console_has_a_boot_log_an_echo_and_a_prompt() -> None:
    async with SimulatedMachines(MemoryHost()) as m:
        await running(m)
        async with m.channel("a", ChannelKind.CONSOLE) as console:
            first = await console.read()
            assert first.startswith(b"[    0.000000] simulated machine")
            assert first.endswith(b"# ")
            await console.write(b"hello\n")
            assert await console.read() == b"hello\r\nhello\r\n# "
            await console.write(b"save a text\nshow\n")
            assert (await console.read()).endswith(b"show\r\na text\r\n# ")
            await console.write(b"poweroff\n")
            assert b"off" in await console.read()
            assert await console.read() == b""
            await console.write(b"anybody?\n")
            assert await console.read() == b""
        found = await m.inspect("a")
        assert found is not None
        assert found.state is STOPPED
        with pytest.raises(NotFound):
            async with m.channel("a", ChannelKind.CONSOLE):
                pass


async def test_a_console_takes_any_bytes_and_keeps_few() -> None:
    async with SimulatedMachines(MemoryHost()) as m:
        await running(m)
        async with m.channel("a", ChannelKind.CONSOLE) as console:
            await console.write(bytes(range(256)) * 1000)
            assert 0 < len(await console.read()) <= 64 * 1024
            await console.write(b"\nsave \xff\xfe\x00\nshow\n")
            assert await console.read()


async def test_a_machine_that_was_stopped_and_started_has_another_console() -> None:
    async with SimulatedMachines(MemoryHost()) as m:
        await running(m)
        async with m.channel("a", ChannelKind.CONSOLE) as console:
            await console.read()
            await m.stop("a", grace=0)
            await asyncio.sleep(0.001)
            await m.start("a")
            assert await console.read() == b""


# Odds and ends


def test_an_address_is_the_machines_own_and_stays() -> None:
    async def main(m: SimulatedMachines) -> None:
        a, b = await m.create(plan("a")), await m.create(plan("b"))
        assert a.address != b.address
        assert a.address.startswith("fd")
        await m.delete("a")
        assert (await m.create(plan("a"))).address == a.address

    virtual(main)


@pytest.mark.parametrize("kind", ["memory", "folder"])
async def test_no_id_is_ever_used_again(kind: str, tmp_path: Path) -> None:
    memory, ids = MemoryHost(), []
    for vm in ("a", "b", "c", "b", "d"):
        async with SimulatedMachines(memory if kind == "memory" else FileHost(tmp_path)) as m:
            ids.append((await m.create(plan(vm))).id)
            if vm != "a":
                await m.delete(vm)
        async with SimulatedMachines(memory if kind == "memory" else FileHost(tmp_path)):
            pass  # which writes the journal anew, without those that went
    assert len(set(ids)) == len(ids)


async def test_capacity_is_what_it_was_told() -> None:
    capacity = Capacity(cpus=3, memory_mib=77, disk_gib=5)
    async with SimulatedMachines(MemoryHost(), capacity=capacity) as m:
        assert (await m.offer()).capacity == capacity


def test_machines_of_an_unknown_kind_are_refused(tmp_path: Path) -> None:
    capacity = Capacity(cpus=1, memory_mib=1)
    with pytest.raises(Invalid, match="simulated"):
        open_machines(NodeSetup(kind="vmware", folder=tmp_path, capacity=capacity))
    with pytest.raises(Invalid, match="settings are required"):
        open_machines(NodeSetup(kind="qemu", folder=tmp_path, capacity=capacity))
    for delays in ({"sing": 1.0}, {"start": -1.0}, {"start": float("nan")}):
        with pytest.raises(Invalid, match="delay"):
            open_machines(NodeSetup(kind="simulated", folder=tmp_path, capacity=capacity, delays=delays))


async def test_verbs_leave_no_lock_behind() -> None:
    async with SimulatedMachines(MemoryHost()) as m:
        for number in range(5):
            await running(m, f"{number}")
        waiting = [asyncio.create_task(m.stop("1", grace=0.05)) for _ in range(3)]
        await asyncio.sleep(0.01)
        waiting[1].cancel()
        await asyncio.wait(waiting)
        assert m._locks == {}
