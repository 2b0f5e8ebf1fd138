"""Availability of a machine for its user, and reports of unavailability."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hostler.errors import NotFound
from hostler.model.vm import MachineState, Step
from hostler.ports.machines import Door
from hostler.testing.machines.claim import claim, refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.ports.machines import Machine
    from hostler.testing.machines.claim import MachineTrial

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
        async with asyncio.timeout(t.setup.within), t.machines.channel(vm, Door.SSH) as door:
            assert (await door.read()).startswith(b"SSH-"), "the server inside greets"
    await t.reopen()
    machine = await _until(t, vm, _is_available)
    await t.machines.stop(vm, grace=0)
    stopped = await t.seen(vm)
    assert stopped.readiness is None, "a machine that is off has no readiness"
    if machine.access is not None:
        with refused(NotFound):
            async with t.machines.channel(vm, Door.SSH):
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
