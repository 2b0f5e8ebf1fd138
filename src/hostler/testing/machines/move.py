"""Migration of machines to another place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from hostler.errors import HostlerError, Refused, Unavailable
from hostler.model.vm import MachineState
from hostler.testing.machines.claim import claim, refused

if TYPE_CHECKING:
    from hostler.ports.machines import Channel, ChannelKind, Machines
    from hostler.testing.machines.claim import MachineTrial

STOPPED, RUNNING = MachineState.STOPPED, MachineState.RUNNING
ARRIVING, DEPARTED = MachineState.ARRIVING, MachineState.DEPARTED
TEXT = "precious"


async def _start_with_data(t: MachineTrial) -> str:
    """Return a running machine with data on its disk."""
    vm = await t.running()
    if t.setup.save is not None:
        await t.setup.save(t.machines, vm, TEXT)
    return vm


async def _send(t: MachineTrial, vm: str, number: int = 1, *, live: bool = True) -> None:
    await t.there.receive(t.plan(), number)
    machine = await t.machines.send(vm, number, lambda kind: t.there.channel(vm, kind), live=live)
    assert (machine.state, machine.moved) == (DEPARTED, number)


async def _has_it(t: MachineTrial, machines: Machines, vm: str, boots: int | None) -> None:
    """Check that the machine runs there, with its disk, and with its memory if `boots` is given."""
    machine = await machines.inspect(vm)
    assert machine is not None
    assert machine.state is RUNNING, f"it is {machine.state}"
    if t.setup.show is not None:
        assert await t.setup.show(machines, vm) == TEXT
    if t.setup.boots is not None and boots is not None:
        assert await t.setup.boots(machines, vm) == boots, "it was booted again"


async def _boots(t: MachineTrial, vm: str) -> int | None:
    return None if t.setup.boots is None else await t.setup.boots(t.machines, vm)


def _cut(kind: ChannelKind) -> Channel:
    raise Unavailable(f"{kind}: not reachable")


@claim(moves=True)
async def a_running_machine_that_is_sent_goes_on_at_the_other_place(t: MachineTrial) -> None:
    vm = await _start_with_data(t)
    boots = await _boots(t, vm)
    expected = await t.there.receive(t.plan(), 1)
    assert (expected.state, expected.moved) == (ARRIVING, 1)
    await _send(t, vm)
    assert await t.state(vm) is DEPARTED
    arrived = await t.there.inspect(vm)
    assert arrived is not None
    assert arrived.state is ARRIVING, "it is running before it was started"
    await t.there.start(vm)
    await _has_it(t, t.there, vm, boots)
    await t.machines.delete(vm)
    await _has_it(t, t.there, vm, boots)


@claim(moves=True)
async def a_machine_that_has_departed_goes_on_where_it_was_if_it_is_started(t: MachineTrial) -> None:
    vm = await _start_with_data(t)
    boots = await _boots(t, vm)
    await _send(t, vm)
    await t.there.delete(vm)
    await t.machines.start(vm)
    await _has_it(t, t.machines, vm, boots)


@claim(moves=True)
async def a_machine_that_is_off_goes_with_its_disk_and_one_that_runs_does_not_go_so(t: MachineTrial) -> None:
    vm = await _start_with_data(t)
    await t.there.receive(t.plan(), 1)
    with refused(Refused):
        await t.machines.send(vm, 1, lambda kind: t.there.channel(vm, kind), live=False)
    assert await t.state(vm) is RUNNING
    await t.machines.stop(vm, grace=t.setup.grace)
    await _send(t, vm, 2, live=False)
    await t.there.start(vm)
    await _has_it(t, t.there, vm, None)


@claim(moves=True)
async def what_has_arrived_stays_though_it_is_received_again(t: MachineTrial) -> None:
    vm = await _start_with_data(t)
    await _send(t, vm)
    again = await t.there.receive(t.plan(), 1)
    assert again.state is ARRIVING
    await t.there.start(vm)
    await _has_it(t, t.there, vm, None)


@claim(moves=True)
async def a_send_that_was_done_is_done_when_it_is_repeated(t: MachineTrial) -> None:
    vm = await _start_with_data(t)
    await _send(t, vm)
    machine = await t.machines.send(vm, 1, lambda kind: t.there.channel(vm, kind))
    assert (machine.state, machine.moved) == (DEPARTED, 1)
    await t.there.start(vm)
    await _has_it(t, t.there, vm, None)


@claim(moves=True)
async def one_that_has_departed_is_not_sent_as_another_move(t: MachineTrial) -> None:
    vm = await t.made()
    await _send(t, vm, 1, live=False)
    with refused(Refused):
        await t.machines.send(vm, 2, lambda kind: t.there.channel(vm, kind), live=False)
    seen = await t.seen(vm)
    assert (seen.state, seen.moved) == (DEPARTED, 1), "it was changed"
    await t.machines.stop(vm, grace=0)
    await t.there.delete(vm)
    await _send(t, vm, 2, live=False)


@claim(moves=True)
async def one_that_was_not_sent_does_not_start(t: MachineTrial) -> None:
    plan = t.plan()
    await t.there.receive(plan, 1)
    with refused(Refused):
        await t.there.start(plan.label.vm)
    await t.there.delete(plan.label.vm)
    assert await t.there.inspect(plan.label.vm) is None


@claim(moves=True)
async def a_machine_whose_other_place_cannot_be_reached_goes_on(t: MachineTrial) -> None:
    vm = await _start_with_data(t)
    boots = await _boots(t, vm)
    with refused(HostlerError):
        await t.machines.send(vm, 1, _cut)
    assert await t.state(vm) in (RUNNING, DEPARTED)
    await t.machines.start(vm)
    await _has_it(t, t.machines, vm, boots)


@claim(moves=True)
async def nothing_arrives_where_a_machine_stands(t: MachineTrial) -> None:
    plan = t.plan()
    await t.there.create(plan)
    with refused(Refused):
        await t.there.receive(plan, 1)
    seen = await t.there.inspect(plan.label.vm)
    assert seen is not None
    assert seen.state is STOPPED


@claim(moves=True)
async def a_machine_that_is_handed_over_is_left_as_it_is_by_create(t: MachineTrial) -> None:
    vm = await _start_with_data(t)
    await _send(t, vm)
    other = msgspec.structs.replace(t.plan(), spec=t.setup.other_spec)
    assert (await t.machines.create(other)).state is DEPARTED
    assert (await t.there.create(other)).state is ARRIVING
