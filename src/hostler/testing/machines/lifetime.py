"""Claims: machines outlive the driver; one driver has them open; a cancelled operation can be repeated."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from hostler.errors import Closed, HostlerError, Unavailable
from hostler.model.vm import MachineState
from hostler.ports.machines import Fencing, Ownership, Resets, Snapshots
from hostler.testing.claim import cut, points
from hostler.testing.machines.claim import claim, core, refused

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from hostler.ports.machines import Machine, MachinePlan
    from hostler.testing.machines.claim import AllMachines, MachineTrial


@claim()
async def machines_outlive_the_driver(t: MachineTrial) -> None:
    await t.hold(600)
    vms = [await t.made("a"), await t.running("b"), await t.running("c", fenced=t.fences)]
    await t.snapshot(vms[1], "s")
    await t.reset(vms[1], 2)
    before = [(core(m), m.id, m.address) for m in [await t.seen(vm) for vm in vms]]
    for _ in range(2):
        await t.reopen()
        assert [(core(m), m.id, m.address) for m in [await t.seen(vm) for vm in vms]] == before
        assert set(await t.listed()) == set(vms)


@claim()
async def a_destroyed_machine_does_not_come_back(t: MachineTrial) -> None:
    vm = await t.running()
    await t.machines.delete(vm)
    await t.reopen()
    assert await t.machines.inspect(vm) is None
    assert await t.listed() == {}


@claim()
async def a_place_keeps_its_id(t: MachineTrial) -> None:
    place = t.machines.place
    assert place
    assert t.machines.name
    await t.running()
    await t.reopen()
    assert t.machines.place == place


@claim()
async def a_place_is_open_once(t: MachineTrial) -> None:
    vm = await t.running()
    second = t.fresh()
    for _ in range(2):
        with refused(Unavailable):
            await second.__aenter__()
    assert await t.state(vm) is MachineState.RUNNING
    await t.machines.stop(vm, grace=0)
    await t.close()
    async with second:
        assert await second.inspect(vm) is not None
        with refused(Unavailable):
            await t.open()
    await t.open()


async def _unusable(machines: AllMachines, t: MachineTrial) -> None:
    vm = t.vm()
    verbs: list[Any] = [
        lambda: machines.create(t.plan()),
        lambda: machines.start(vm),
        lambda: machines.stop(vm, grace=0),
        lambda: machines.delete(vm),
        lambda: machines.inspect(vm),
        machines.list,
        machines.offer,
    ]
    if t.has(Resets):
        verbs.append(lambda: machines.reset(vm, 9))
    if t.has(Snapshots):
        verbs += [
            lambda: machines.snapshot(vm, "s"),
            lambda: machines.restore(vm, "s", 1),
            lambda: machines.drop_snapshot(vm, "s"),
        ]
    if t.has(Fencing):
        verbs.append(lambda: machines.hold(1))
    for verb in verbs:
        with refused(Closed):
            await verb()


@claim()
async def a_driver_that_is_not_open_does_nothing(t: MachineTrial) -> None:
    vm = await t.running()
    before = core(await t.seen(vm))
    closed = t.machines
    await _unusable(t.fresh(), t)
    await t.close()
    await _unusable(closed, t)
    await t.open()
    assert core(await t.seen(vm)) == before


@claim()
async def verbs_of_one_machine_at_once_leave_it_whole(t: MachineTrial) -> None:
    for _ in range(min(5, t.setup.points)):
        vm = await t.made()
        verbs: list[Any] = [
            t.machines.start(vm),
            t.machines.stop(vm, grace=0),
            t.machines.create(t.plan(spec=t.setup.other_spec)),
            t.snapshot(vm, "s"),
            t.reset(vm, 1),
            t.machines.start(vm),
            t.machines.delete(vm),
            t.machines.create(t.plan()),
            t.machines.stop(vm, grace=t.setup.grace),
        ]
        for outcome in await asyncio.gather(*verbs, return_exceptions=True):
            assert not isinstance(outcome, BaseException) or isinstance(outcome, HostlerError), repr(outcome)
        await t.machines.stop((await t.machines.create(t.plan())).label.vm, grace=0)
        machine = await t.machines.create(t.plan())
        assert (machine.state, machine.spec) == (MachineState.STOPPED, t.setup.spec)
        assert (await t.machines.start(vm)).state is MachineState.RUNNING
        await t.machines.delete(vm)
        assert await t.listed() == {}


if TYPE_CHECKING:
    Prepare = Callable[[MachineTrial, str], Awaitable[str]]
    Verb = Callable[[MachineTrial, str], Coroutine[Any, Any, Machine | None]]

KNOWN = {
    MachineState.CREATING, MachineState.STOPPED, MachineState.STARTING, MachineState.RUNNING, MachineState.STOPPING,
    MachineState.FAILED,
}  # fmt: skip
"""The states that the port allows."""
_MORE = 5


def _cut_anywhere(name: str, prepare: Prepare, verb: Verb, *needs: type) -> None:
    async def body(t: MachineTrial) -> None:
        await t.hold(600)
        bystander = await t.running("bystander")
        await t.snapshot(bystander, "s")
        before = core(await t.seen(bystander))
        vm = await prepare(t, "whole")
        waits = await cut(verb(t, vm), 0)
        expected = _of_any_name(await t.machines.inspect(vm))
        await t.machines.delete(vm)
        for at in points(waits + _MORE if waits < t.setup.points else waits, t.setup.points, t.setup.turn):
            vm = await prepare(t, "a")
            made = await t.machines.inspect(vm)
            await cut(verb(t, vm), at)
            if at % 2:
                await t.reopen()
            left = await t.machines.inspect(vm)
            assert left is None or left.state in KNOWN, f"cut at {at}: {left}"
            assert (left is not None) or made is None or expected is None, f"cut at {at}: it is gone"
            assert (left is not None) == (vm in await t.listed()), f"cut at {at}: inspect and list differ"
            for _ in range(2):
                await verb(t, vm)
                assert _of_any_name(await t.machines.inspect(vm)) == expected, f"cut at {at}, {left} is not finished"
            assert core(await t.seen(bystander)) == before, f"cut at {at}: another machine has changed"
            await t.machines.delete(vm)
            assert await t.machines.inspect(vm) is None

    claim(needs=needs, name=f"{name}_that_is_cut_anywhere_is_finished_by_repeating_it")(body)


def _of_any_name(machine: Machine | None) -> tuple[object, ...] | None:
    found = core(machine)
    return None if machine is None or found is None else (machine.label.org, machine.label.project, *found[1:])


async def _nothing(t: MachineTrial, name: str) -> str:
    return t.vm(name)


async def _create_stopped(t: MachineTrial, name: str) -> str:
    return await t.made(name)


async def _running(t: MachineTrial, name: str) -> str:
    return await t.running(name, fenced=t.fences)


async def _with_snapshot(t: MachineTrial, name: str) -> str:
    vm = await t.running(name)
    await t.snapshot(vm, "s")
    return vm


def _plan(t: MachineTrial, vm: str, **changes: Any) -> Any:
    return t.plan(vm.rpartition("-")[2], **changes)


def _plan_of_other_owner(plan: MachinePlan) -> MachinePlan:
    """Return the same machine, of another owner."""
    label = msgspec.structs.replace(plan.label, org="others", project="theirs")
    return msgspec.structs.replace(plan, label=label, tags={"of": "others"})


async def _delete(t: MachineTrial, vm: str) -> None:
    await t.machines.delete(vm)


_cut_anywhere("a_create", _nothing, lambda t, vm: t.machines.create(_plan(t, vm)))
_cut_anywhere("a_new_shape", _create_stopped, lambda t, vm: t.machines.create(_plan(t, vm, spec=t.setup.other_spec)))
_cut_anywhere("a_start", _create_stopped, lambda t, vm: t.machines.start(vm))
_cut_anywhere("a_graceful_stop", _running, lambda t, vm: t.machines.stop(vm, grace=t.setup.grace))
_cut_anywhere("a_stop_at_once", _running, lambda t, vm: t.machines.stop(vm, grace=0))
_cut_anywhere("a_reset", _running, lambda t, vm: t.machines.reset(vm, 1), Resets)
_cut_anywhere("a_snapshot", _running, lambda t, vm: t.machines.snapshot(vm, "s"), Snapshots)
_cut_anywhere("a_restore", _with_snapshot, lambda t, vm: t.machines.restore(vm, "s", 1), Snapshots)
_cut_anywhere("a_dropped_snapshot", _with_snapshot, lambda t, vm: t.machines.drop_snapshot(vm, "s"), Snapshots)
_cut_anywhere("a_mark", _running, lambda t, vm: t.machines.mark(_plan_of_other_owner(_plan(t, vm))), Ownership)
_cut_anywhere("a_delete", _with_snapshot, _delete)


@claim()
async def whatever_was_cut_can_be_destroyed(t: MachineTrial) -> None:
    verbs: list[tuple[Prepare, Verb]] = [
        (_nothing, lambda t, vm: t.machines.create(_plan(t, vm))),
        (_create_stopped, lambda t, vm: t.machines.start(vm)),
        (_running, lambda t, vm: t.machines.stop(vm, grace=t.setup.grace)),
    ]
    if t.has(Snapshots):
        verbs.append((_with_snapshot, lambda t, vm: t.machines.restore(vm, "s", 1)))
    await t.hold(600)
    for prepare, verb in verbs:
        for at in points(5, t.setup.points, t.setup.turn):
            vm = await prepare(t, "a")
            await cut(verb(t, vm), at)
            await t.machines.delete(vm)
            assert await t.machines.inspect(vm) is None
    assert await t.listed() == {}


@claim()
async def a_machine_that_was_half_destroyed_is_made_again(t: MachineTrial) -> None:
    for at in points(await _waits_of_delete(t), t.setup.points, t.setup.turn):
        vm = await _with_snapshot(t, "a")
        await cut(_delete(t, vm), at)
        left = await t.machines.inspect(vm)
        machine = await t.machines.create(t.plan())
        if left is None or left.state is MachineState.CREATING:
            assert (machine.state, machine.snapshots) == (MachineState.STOPPED, ())
        assert (await t.machines.start(vm)).state is MachineState.RUNNING
        await t.machines.delete(vm)


async def _waits_of_delete(t: MachineTrial) -> int:
    return await cut(_delete(t, await _with_snapshot(t, "a")), 0)
