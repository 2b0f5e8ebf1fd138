"""Claims: creating, running and deleting machines; their availability to users, and their serial port."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

from hostler.errors import Invalid, NotFound, Refused
from hostler.model.vm import MachineState, Step
from hostler.ports.machines import ChannelKind, Fencing, Resets, Snapshots
from hostler.testing.machines.claim import claim, core, loop_time, refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.ports.machines import Channel, Machine
    from hostler.testing.machines.claim import MachineTrial

STOPPED, RUNNING = MachineState.STOPPED, MachineState.RUNNING


@claim()
async def a_machine_is_made_stopped_and_as_planned(t: MachineTrial) -> None:
    plan = t.plan()
    made = await t.machines.create(plan)
    assert (made.label, made.state, made.spec, made.fenced) == (plan.label, STOPPED, plan.spec, False)
    assert (made.resets, made.restored, made.snapshots) == (0, 0, ())
    assert made.id
    assert await t.seen(plan.label.vm) == made


@claim()
async def two_machines_have_ids_of_their_own(t: MachineTrial) -> None:
    a, b = await t.made("a"), await t.made("b")
    assert (await t.seen(a)).id != (await t.seen(b)).id


@claim()
async def making_a_machine_again_changes_nothing(t: MachineTrial) -> None:
    first = await t.machines.create(t.plan())
    await t.snapshot(first.label.vm, "s")
    await t.reset(first.label.vm, 3)
    before = await t.seen(first.label.vm)
    assert await t.machines.create(t.plan()) == before
    assert before.id == first.id


@claim()
async def a_stopped_machine_takes_the_shape_of_the_plan(t: MachineTrial) -> None:
    vm = await t.made()
    made = await t.machines.create(t.plan(spec=t.setup.other_spec, fenced=t.fences))
    assert (made.spec, made.fenced, made.state) == (t.setup.other_spec, t.fences, STOPPED)
    assert await t.seen(vm) == made
    back = await t.machines.create(t.plan())
    assert (back.spec, back.fenced) == (t.setup.spec, False)


@claim()
async def a_running_machine_is_left_as_it_is_by_another_plan(t: MachineTrial) -> None:
    vm = await t.running()
    made = await t.machines.create(t.plan(spec=t.setup.other_spec))
    assert (made.state, made.spec) == (RUNNING, t.setup.spec)
    assert core(await t.seen(vm)) == core(made)
    await t.machines.stop(vm, grace=0)
    await t.machines.create(t.plan(spec=t.setup.other_spec))
    assert (await t.machines.start(vm)).spec == t.setup.other_spec


@claim()
async def a_machine_with_another_label_is_not_taken_over(t: MachineTrial) -> None:
    vm = await t.made()
    plan = t.plan()
    for changes in ({"cluster": "another"}, {"org": "another"}):
        label = type(plan.label)(
            **({name: getattr(plan.label, name) for name in plan.label.__struct_fields__} | changes)
        )
        with refused(Refused):
            await t.machines.create(t.plan(label=label, spec=t.setup.other_spec))
    assert (await t.seen(vm)).spec == t.setup.spec
    assert (await t.seen(vm)).label == plan.label


@claim()
async def an_image_that_does_not_exist_is_refused_and_leaves_nothing(t: MachineTrial) -> None:
    if t.setup.unknown_image is None:
        return
    spec = type(t.setup.spec)(cpus=1, memory_mib=t.setup.spec.memory_mib, image=t.setup.unknown_image)
    with refused(Refused) as refusal:
        await t.machines.create(t.plan(spec=spec))
    assert not isinstance(refusal.error, NotFound)
    assert await t.machines.inspect(t.vm()) is None


@claim()
async def a_started_machine_runs(t: MachineTrial) -> None:
    vm = await t.made()
    started = await t.machines.start(vm)
    assert started.state is RUNNING
    assert core(await t.seen(vm)) == core(started)


@claim()
async def a_running_machine_is_not_started_again(t: MachineTrial) -> None:
    vm = await t.running()
    boots = None if t.setup.boots is None else await t.setup.boots(t.machines, vm)
    before = core(await t.seen(vm))
    assert core(await t.machines.start(vm)) == before
    if t.setup.boots is not None:
        assert await t.setup.boots(t.machines, vm) == boots, "it was booted again"


@claim()
async def a_machine_that_is_asked_to_stop_stops(t: MachineTrial) -> None:
    vm = await t.running()
    began = loop_time()
    assert (await t.machines.stop(vm, grace=t.setup.grace)).state is STOPPED
    assert await t.state(vm) is STOPPED
    t.setup.on_time(loop_time() - began, t.setup.grace + t.setup.stops_within, since=began, what="a stop")


@claim()
async def a_machine_that_is_switched_off_is_stopped(t: MachineTrial) -> None:
    vm = await t.running()
    assert (await t.machines.stop(vm, grace=0)).state is STOPPED
    assert await t.state(vm) is STOPPED


@claim()
async def stopping_a_stopped_machine_is_fine(t: MachineTrial) -> None:
    vm = await t.made()
    for grace in (t.setup.grace, 0):
        assert (await t.machines.stop(vm, grace=grace)).state is STOPPED


@claim()
async def a_machine_runs_again_after_a_stop(t: MachineTrial) -> None:
    vm = await t.running()
    for _ in range(2):
        await t.machines.stop(vm, grace=0)
        assert (await t.machines.start(vm)).state is RUNNING


@claim()
async def a_destroyed_machine_is_gone_running_or_not(t: MachineTrial) -> None:
    for vm in (await t.made("a"), await t.running("b")):
        await t.machines.delete(vm)
        assert await t.machines.inspect(vm) is None
        assert vm not in await t.listed()


@claim()
async def a_machine_of_the_same_name_starts_from_nothing(t: MachineTrial) -> None:
    vm = await t.running()
    await t.snapshot(vm, "s")
    await t.reset(vm, 4)
    await t.restore(vm, "s", 2)
    await t.machines.delete(vm)
    made = await t.machines.create(t.plan())
    assert (made.state, made.resets, made.restored, made.snapshots) == (STOPPED, 0, 0, ())


@claim()
async def destroying_what_is_not_there_is_fine(t: MachineTrial) -> None:
    await t.machines.delete(t.vm("none"))
    vm = await t.made()
    await t.machines.delete(vm)
    await t.machines.delete(vm)


@claim()
async def no_such_machine_is_said_so_by_every_verb(t: MachineTrial) -> None:
    vm, machines = t.vm("none"), t.machines
    verbs: list[Any] = [
        lambda: machines.start(vm),
        lambda: machines.stop(vm, grace=0),
        lambda: machines.stop(vm, grace=1),
    ]
    if t.has(Resets):
        verbs.append(lambda: machines.reset(vm, 1))
    if t.has(Snapshots):
        verbs += [
            lambda: machines.snapshot(vm, "s"),
            lambda: machines.restore(vm, "s", 1),
            lambda: machines.drop_snapshot(vm, "s"),
        ]
    for verb in verbs:
        with refused(NotFound):
            await verb()
    assert await machines.inspect(vm) is None, "an operation created it"


@claim()
async def what_cannot_be_is_refused(t: MachineTrial) -> None:
    vm = await t.running()
    before = core(await t.seen(vm))
    for grace in (-1, math.nan, math.inf):
        with refused(Invalid):
            await t.machines.stop(vm, grace=grace)
    for seconds in (math.nan, math.inf, -math.inf) if t.has(Fencing) else ():
        with refused(Invalid):
            await t.machines.hold(seconds)
    if t.has(Snapshots):
        with refused(Invalid):
            await t.machines.snapshot(vm, "")
    assert core(await t.seen(vm)) == before


@claim()
async def everything_is_listed_with_its_label(t: MachineTrial) -> None:
    made = {await t.made("a"), await t.running("b"), await t.made("c")}
    await t.machines.delete(t.vm("c"))
    listed = await t.listed()
    assert set(listed) == made - {t.vm("c")}
    for vm, machine in listed.items():
        assert core(machine) == core(await t.seen(vm))
        assert machine.label == t.plan(vm.rpartition("-")[2]).label


@claim()
async def what_happens_to_one_machine_happens_to_no_other(t: MachineTrial) -> None:
    idle, busy, vm = await t.made("idle"), await t.running("busy"), await t.made("a")
    await t.snapshot(busy, "s")
    before = [core(await t.seen(other)) for other in (idle, busy)]
    await t.machines.start(vm)
    await t.snapshot(vm, "s")
    await t.reset(vm, 1)
    await t.restore(vm, "s", 1)
    await t.drop_snapshot(vm, "s")
    await t.machines.delete(vm)
    assert [core(await t.seen(other)) for other in (idle, busy)] == before


@claim()
async def machines_are_made_and_run_side_by_side(t: MachineTrial) -> None:
    names = ("a", "b", "c", "d")
    vms = await asyncio.gather(*(t.running(name) for name in names))
    assert {vm: m.state for vm, m in (await t.listed()).items()} == dict.fromkeys(vms, RUNNING)
    await asyncio.gather(*(t.machines.delete(vm) for vm in vms))
    assert await t.listed() == {}


@claim()
async def a_node_has_room_for_machines(t: MachineTrial) -> None:
    capacity = (await t.machines.offer()).capacity
    assert capacity.cpus >= 1
    assert capacity.memory_mib >= 1
    await t.running()
    assert (await t.machines.offer()).capacity == capacity, "usage does not reduce the capacity"


LOOKS_EVERY = 0.05


async def _until(t: MachineTrial, vm: str, is_so: Callable[[Machine], bool]) -> Machine:
    async with asyncio.timeout(t.setup.within):
        while True:
            machine = await t.seen(vm)
            if is_so(machine):
                return machine
            await asyncio.sleep(LOOKS_EVERY)


def _is_available(machine: Machine) -> bool:
    return machine.readiness is not None and machine.readiness.step is Step.AVAILABLE


@claim()
async def a_machine_becomes_available_and_its_doors_lead_inside(t: MachineTrial) -> None:
    vm = await t.running()
    machine = await _until(t, vm, _is_available)
    if machine.access is not None:
        async with asyncio.timeout(t.setup.within), t.machines.channel(vm, ChannelKind.SSH) as kind:
            assert (await kind.read()).startswith(b"SSH-"), "the server inside greets"
    await t.reopen()
    machine = await _until(t, vm, _is_available)
    await t.machines.stop(vm, grace=0)
    stopped = await t.seen(vm)
    assert stopped.readiness is None, "a machine that is off has no readiness"
    if machine.access is not None:
        with refused(NotFound):
            async with t.machines.channel(vm, ChannelKind.SSH):
                pass


@claim()
async def a_machine_that_switches_itself_off_is_stopped_and_told_of(t: MachineTrial) -> None:
    if t.setup.power_off is None:
        return
    vm, other = await t.running(), await t.running("b")
    await _until(t, vm, _is_available)
    told = asyncio.Event()
    t.machines.listen(lambda changed: told.set() if changed == vm else None)
    await t.setup.power_off(t.machines, vm)
    machine = await _until(t, vm, lambda machine: machine.state is not MachineState.RUNNING)
    assert machine.state is MachineState.STOPPED, f"{machine.state}: {machine.detail}"
    async with asyncio.timeout(t.setup.within):
        await told.wait()
    assert await t.state(other) is MachineState.RUNNING
    assert (await t.machines.start(vm)).state is MachineState.RUNNING


async def _has_none(t: MachineTrial) -> bool:
    """Return whether machines have no serial port here; if so, check that opening it is refused."""
    if not t.setup.console:
        vm = await t.running()
        with refused(Refused) as refusal:
            async with t.machines.channel(vm, ChannelKind.CONSOLE):
                pass
        assert not isinstance(refusal.error, NotFound), "NotFound means that there is no machine"
    return not t.setup.console


@claim()
async def a_console_tells_something_when_typed_at(t: MachineTrial) -> None:
    if await _has_none(t):
        return
    vm = await t.running()
    async with asyncio.timeout(t.setup.within), t.machines.channel(vm, ChannelKind.CONSOLE) as console:
        await console.write(b"\r\n")
        assert await console.read()
        async with t.machines.channel(vm, ChannelKind.LOG) as log:
            assert await log.read(), "its log does not contain its output"
            assert await log.read() == b"", "its log does not end"
    assert await t.state(vm) is MachineState.RUNNING, "closing the console stopped it"


async def _to_the_end(console: Channel) -> None:
    while await console.read():
        pass


@claim()
async def a_console_ends_when_its_machine_goes_off(t: MachineTrial) -> None:
    if not t.setup.console:
        return
    vm = await t.made()
    for destroys in (False, True):
        await t.machines.start(vm)
        async with asyncio.timeout(2 * t.setup.within), t.machines.channel(vm, ChannelKind.CONSOLE) as console:
            reading = asyncio.create_task(_to_the_end(console))
            await asyncio.sleep(0.05)
            assert not reading.done(), "it ended while the machine ran"
            await (t.machines.delete(vm) if destroys else t.machines.stop(vm, grace=0))
            await reading
            assert await console.read() == b""
        if not destroys:
            async with asyncio.timeout(t.setup.within), t.machines.channel(vm, ChannelKind.LOG) as log:
                await _to_the_end(log)


@claim(fences=True)
async def a_console_ends_when_its_machine_is_not_held(t: MachineTrial) -> None:
    await t.machines.hold(600)
    vm = await t.running(fenced=True)
    patience = t.setup.hold + t.setup.late + t.setup.within
    async with asyncio.timeout(patience), t.machines.channel(vm, ChannelKind.CONSOLE) as console:
        await t.machines.hold(t.setup.hold)
        await _to_the_end(console)


@claim()
async def a_machine_that_is_off_or_absent_has_no_console(t: MachineTrial) -> None:
    vm = await t.made()
    for name in (vm, t.vm("none")):
        with refused(NotFound):
            async with t.machines.channel(name, ChannelKind.CONSOLE):
                pass


@claim()
async def a_console_is_opened_again_and_again(t: MachineTrial) -> None:
    if not t.setup.console:
        return
    vm = await t.running()
    for _ in range(3):
        async with asyncio.timeout(t.setup.within), t.machines.channel(vm, ChannelKind.CONSOLE) as console:
            await console.write(b"\r\n")
            assert await console.read()
