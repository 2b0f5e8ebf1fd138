"""The place outlives the driver, and one driver at a time has it open."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from hostler.errors import Closed, HostlerError, Unavailable
from hostler.model.vm import MachineState
from hostler.ports.machines import Fencing, Resets, Snapshots
from hostler.testing.machines.claim import claim, core, refused

if TYPE_CHECKING:
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
