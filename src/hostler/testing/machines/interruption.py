"""Every operation may be cancelled anywhere; repeating it completes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from hostler.model.vm import MachineState
from hostler.ports.machines import Ownership, Resets, Snapshots
from hostler.testing.interruption import cut, points
from hostler.testing.machines.claim import claim, core

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from hostler.ports.machines import Machine, MachinePlan
    from hostler.testing.machines.claim import MachineTrial

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
        beside = core(await t.seen(bystander))
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
            assert core(await t.seen(bystander)) == beside, f"cut at {at}: another machine has changed"
            await t.machines.delete(vm)
            assert await t.machines.inspect(vm) is None

    claim(needs=needs, name=f"{name}_that_is_cut_anywhere_is_finished_by_repeating_it")(body)


def _of_any_name(machine: Machine | None) -> tuple[object, ...] | None:
    found = core(machine)
    return None if machine is None or found is None else (machine.label.org, machine.label.project, *found[1:])


async def _nothing(t: MachineTrial, name: str) -> str:
    return t.vm(name)


async def _stopped(t: MachineTrial, name: str) -> str:
    return await t.made(name)


async def _running(t: MachineTrial, name: str) -> str:
    return await t.running(name, fenced=t.fences)


async def _with_snapshot(t: MachineTrial, name: str) -> str:
    vm = await t.running(name)
    await t.snapshot(vm, "s")
    return vm


def _plan(t: MachineTrial, vm: str, **changes: Any) -> Any:
    return t.plan(vm.rpartition("-")[2], **changes)


def _given(plan: MachinePlan) -> MachinePlan:
    """Return the same machine, of another owner."""
    label = msgspec.structs.replace(plan.label, org="others", project="theirs")
    return msgspec.structs.replace(plan, label=label, tags={"of": "others"})


async def _delete(t: MachineTrial, vm: str) -> None:
    await t.machines.delete(vm)


_cut_anywhere("a_create", _nothing, lambda t, vm: t.machines.create(_plan(t, vm)))
_cut_anywhere("a_new_shape", _stopped, lambda t, vm: t.machines.create(_plan(t, vm, spec=t.setup.other_spec)))
_cut_anywhere("a_start", _stopped, lambda t, vm: t.machines.start(vm))
_cut_anywhere("a_graceful_stop", _running, lambda t, vm: t.machines.stop(vm, grace=t.setup.grace))
_cut_anywhere("a_stop_at_once", _running, lambda t, vm: t.machines.stop(vm, grace=0))
_cut_anywhere("a_reset", _running, lambda t, vm: t.machines.reset(vm, 1), Resets)
_cut_anywhere("a_snapshot", _running, lambda t, vm: t.machines.snapshot(vm, "s"), Snapshots)
_cut_anywhere("a_restore", _with_snapshot, lambda t, vm: t.machines.restore(vm, "s", 1), Snapshots)
_cut_anywhere("a_dropped_snapshot", _with_snapshot, lambda t, vm: t.machines.drop_snapshot(vm, "s"), Snapshots)
_cut_anywhere("a_mark", _running, lambda t, vm: t.machines.mark(_given(_plan(t, vm))), Ownership)
_cut_anywhere("a_delete", _with_snapshot, _delete)


@claim()
async def whatever_was_cut_can_be_destroyed(t: MachineTrial) -> None:
    verbs: list[tuple[Prepare, Verb]] = [
        (_nothing, lambda t, vm: t.machines.create(_plan(t, vm))),
        (_stopped, lambda t, vm: t.machines.start(vm)),
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
