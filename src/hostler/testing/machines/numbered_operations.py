"""Snapshots, and operations that are executed once for each number."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.errors import NotFound, Refused
from hostler.model.vm import MachineState
from hostler.ports.machines import Resets, Snapshots
from hostler.testing.machines.claim import claim, core, refused

if TYPE_CHECKING:
    from hostler.testing.machines.claim import MachineTrial

STOPPED, RUNNING = MachineState.STOPPED, MachineState.RUNNING


@claim(needs=(Resets,))
async def a_reset_is_done_once_for_each_number(t: MachineTrial) -> None:
    vm = await t.running()
    boots = 0 if t.setup.boots is None else await t.setup.boots(t.machines, vm)
    for number, done in ((1, 1), (1, 1), (3, 2), (2, 2), (3, 2), (4, 3)):
        machine = await t.machines.reset(vm, number)
        assert machine.state is RUNNING
        assert machine.resets == max(number, 3 if done == 2 else 0)
        assert (await t.seen(vm)).resets == machine.resets
        if t.setup.boots is not None:
            assert await t.setup.boots(t.machines, vm) == boots + done


@claim(needs=(Resets,))
async def a_stopped_machine_only_counts_its_resets(t: MachineTrial) -> None:
    vm = await t.made()
    machine = await t.machines.reset(vm, 2)
    assert (machine.state, machine.resets) == (STOPPED, 2)
    assert (await t.machines.reset(vm, 1)).resets == 2
    await t.machines.start(vm)
    assert (await t.seen(vm)).resets == 2


@claim(
    needs=(
        Resets,
        Snapshots,
    )
)
async def numbers_are_kept_over_a_stop_and_a_new_shape(t: MachineTrial) -> None:
    vm = await t.running()
    await t.machines.reset(vm, 5)
    await t.machines.snapshot(vm, "s")
    await t.machines.restore(vm, "s", 7)
    await t.machines.create(t.plan(spec=t.setup.other_spec))
    machine = await t.machines.start(vm)
    assert (machine.resets, machine.restored, machine.snapshots) == (5, 7, ("s",))


@claim(needs=(Snapshots,))
async def a_snapshot_is_there_until_it_is_dropped(t: MachineTrial) -> None:
    vm = await t.running()
    await t.machines.snapshot(vm, "one")
    machine = await t.machines.snapshot(vm, "two")
    assert set(machine.snapshots) == {"one", "two"}
    assert machine.state is RUNNING
    assert set((await t.machines.drop_snapshot(vm, "one")).snapshots) == {"two"}
    assert core(await t.machines.drop_snapshot(vm, "one")) == core(await t.seen(vm)), "no such snapshot is fine"
    assert (await t.seen(vm)).snapshots == ("two",)


@claim(needs=(Snapshots,))
async def a_stopped_machine_has_snapshots_too(t: MachineTrial) -> None:
    vm = await t.made()
    machine = await t.machines.snapshot(vm, "s")
    assert (machine.snapshots, machine.state) == (("s",), STOPPED)


@claim(needs=(Snapshots,))
async def a_restore_leaves_the_machine_stopped(t: MachineTrial) -> None:
    for vm in (await t.made("a"), await t.running("b")):
        await t.machines.snapshot(vm, "s")
        machine = await t.machines.restore(vm, "s", 1)
        assert (machine.state, machine.restored, machine.snapshots) == (STOPPED, 1, ("s",))
        assert core(await t.seen(vm)) == core(machine)
        assert (await t.machines.start(vm)).state is RUNNING


@claim(needs=(Snapshots,))
async def a_restore_is_done_once_for_each_number(t: MachineTrial) -> None:
    vm = await t.made()
    await t.machines.snapshot(vm, "s")
    await t.machines.restore(vm, "s", 2)
    await t.machines.start(vm)
    for number in (2, 1):
        machine = await t.machines.restore(vm, "s", number)
        assert (machine.restored, machine.state) == (2, RUNNING), "done before, so it keeps running"
    machine = await t.machines.restore(vm, "s", 3)
    assert (machine.restored, machine.state) == (3, STOPPED)


@claim(needs=(Snapshots,))
async def a_restore_that_was_done_needs_its_snapshot_no_more(t: MachineTrial) -> None:
    vm = await t.made()
    await t.machines.snapshot(vm, "s")
    await t.machines.restore(vm, "s", 1)
    await t.machines.drop_snapshot(vm, "s")
    assert (await t.machines.restore(vm, "s", 1)).restored == 1


@claim(needs=(Snapshots,))
async def a_snapshot_that_does_not_exist_is_refused_and_the_machine_is_not_called_absent(t: MachineTrial) -> None:
    vm = await t.running()
    with refused(Refused) as refusal:
        await t.machines.restore(vm, "none", 1)
    assert not isinstance(refusal.error, NotFound), "NotFound means that there is no machine"
    machine = await t.seen(vm)
    assert (machine.state, machine.restored) == (RUNNING, 0)


@claim(needs=(Snapshots,))
async def a_restored_disk_is_as_it_was_when_the_snapshot_was_taken(t: MachineTrial) -> None:
    if t.setup.save is None or t.setup.show is None:
        return
    vm = await t.running()
    await t.setup.save(t.machines, vm, "first")
    await t.machines.snapshot(vm, "s")
    await t.setup.save(t.machines, vm, "second")
    await t.machines.snapshot(vm, "s")  # an existing snapshot is not changed
    assert await t.setup.show(t.machines, vm) == "second"
    await t.machines.restore(vm, "s", 1)
    await t.machines.start(vm)
    assert await t.setup.show(t.machines, vm) == "first"


@claim(needs=(Resets,))
async def a_disk_outlives_a_stop_a_reset_and_a_new_shape_but_not_its_machine(t: MachineTrial) -> None:
    if t.setup.save is None or t.setup.show is None:
        return
    vm = await t.running()
    await t.setup.save(t.machines, vm, "kept")
    await t.machines.reset(vm, 1)
    await t.machines.stop(vm, grace=t.setup.grace)
    await t.machines.create(t.plan(spec=t.setup.other_spec))
    await t.machines.start(vm)
    assert await t.setup.show(t.machines, vm) == "kept"
    await t.machines.delete(vm)
    await t.running()
    assert await t.setup.show(t.machines, vm) != "kept"
