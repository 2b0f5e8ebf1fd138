"""Machines that are taken out of service and retained with their disks."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hostler.errors import NotFound, Refused
from hostler.model.vm import MachineState
from hostler.ports.machines import Retention, Snapshots
from hostler.testing.claim import cut, points
from hostler.testing.machines.claim import claim, refused

if TYPE_CHECKING:
    from hostler.testing.machines.claim import MachineTrial

TEXT = "written-before-it-was-retained"
_MORE = 3


async def with_snapshot(t: MachineTrial, name: str = "a") -> str:
    """Return a machine that is off, with a snapshot."""
    vm = await t.made(name)
    await t.snapshot(vm, "s")
    return vm


@claim(needs=(Retention, Snapshots))
async def a_retained_machine_is_out_of_service_and_is_listed_as_retained(t: MachineTrial) -> None:
    vm = await with_snapshot(t)
    kept = await t.machines.retain(vm, f"{vm}-old")
    assert kept is not None
    assert await t.machines.inspect(vm) is None
    assert await t.listed() == {}
    assert await t.retained() == {f"{vm}-old": kept}
    assert (kept.label, kept.spec) == (t.plan().label, t.setup.spec)
    assert kept.machine_name in ("a", ""), "it may be unknown"
    assert kept.snapshots == ("s",)
    assert kept.retained_at > 1e9
    assert await t.machines.retain(vm, f"{vm}-old") == kept, "repeated"


@claim(needs=(Retention,))
async def a_retained_machine_outlives_the_driver(t: MachineTrial) -> None:
    vm = await t.made()
    kept = await t.machines.retain(vm, f"{vm}-old")
    assert kept is not None
    await t.reopen()
    assert await t.retained() == {kept.name: kept}
    assert await t.machines.inspect(vm) is None


@claim(needs=(Retention, Snapshots))
async def a_reinstated_machine_has_its_snapshots_and_shape(t: MachineTrial) -> None:
    vm = await with_snapshot(t)
    await t.machines.retain(vm, f"{vm}-old")
    back = await t.machines.reinstate(f"{vm}-old", t.plan(tags={"is": "back"}))
    assert (back.label, back.state, back.spec) == (t.plan().label, MachineState.STOPPED, t.setup.spec)
    assert (back.tags, back.snapshots) == ({"is": "back"}, ("s",))
    assert await t.retained() == {}
    assert (await t.machines.reinstate(f"{vm}-old", t.plan(tags={"is": "back"}))).id == back.id, "repeated"


@claim(needs=(Retention,))
async def a_machine_that_ran_has_its_disk_when_it_is_reinstated(t: MachineTrial) -> None:
    vm = await t.running()
    if t.setup.save is not None:
        await t.setup.save(t.machines, vm, TEXT)
    await t.machines.retain(vm, f"{vm}-old")
    await t.made()
    back = t.plan("b")
    assert (await t.machines.reinstate(f"{vm}-old", back)).state is MachineState.STOPPED
    await t.machines.start(back.label.vm)
    if t.setup.show is not None:
        assert await t.setup.show(t.machines, back.label.vm) == TEXT, "it has another disk"


@claim(needs=(Retention, Snapshots))
async def a_new_machine_of_a_retained_one_s_id_starts_from_nothing(t: MachineTrial) -> None:
    vm = await with_snapshot(t)
    await t.machines.retain(vm, f"{vm}-old")
    assert (await t.machines.create(t.plan())).snapshots == ()
    with refused(Refused) as refusal:
        await t.machines.reinstate(f"{vm}-old", t.plan())
    assert not isinstance(refusal.error, NotFound)
    await t.snapshot(vm, "s")
    await t.machines.delete(vm)
    assert [kept.snapshots for kept in (await t.retained()).values()] == [("s",)], "it was deleted with another machine"
    await t.machines.reinstate(f"{vm}-old", t.plan())


@claim(needs=(Retention, Snapshots))
async def a_retained_machine_comes_back_as_another_one(t: MachineTrial) -> None:
    vm = await with_snapshot(t)
    await t.reset(vm, 7)
    await t.machines.retain(vm, f"{vm}-old")
    await t.made()
    plan = t.plan("b")
    back = await t.machines.reinstate(f"{vm}-old", plan)
    assert (back.label, back.resets, back.restored, back.moved) == (plan.label, 0, 0, 0)
    assert set(await t.listed()) == {vm, plan.label.vm}
    await t.restore(plan.label.vm, "s", 1)
    await t.reopen()
    assert (await t.seen(plan.label.vm)).restored == 1


@claim(needs=(Retention,))
async def a_machine_is_retained_again_and_again(t: MachineTrial) -> None:
    vm = await t.made()
    await t.machines.retain(vm, f"{vm}-0")
    await t.made()
    with refused(Refused):
        await t.machines.retain(vm, f"{vm}-0")
    await t.machines.retain(vm, f"{vm}-1")
    assert set(await t.retained()) == {f"{vm}-0", f"{vm}-1"}


@claim(needs=(Retention, Snapshots))
async def what_is_discarded_is_gone_and_nothing_else_is(t: MachineTrial) -> None:
    vm = await t.made()
    await t.snapshot(vm, "s")
    await t.machines.retain(vm, f"{vm}-0")
    await t.made()
    await t.snapshot(vm, "s")
    await t.machines.retain(vm, f"{vm}-1")
    await t.made()
    for _ in range(2):
        await t.machines.discard(f"{vm}-0")
    assert [(kept.name, kept.snapshots) for kept in (await t.retained()).values()] == [(f"{vm}-1", ("s",))]
    assert set(await t.listed()) == {vm}
    await t.machines.delete(vm)
    with refused(NotFound):
        await t.machines.reinstate(f"{vm}-0", t.plan())
    assert await t.machines.inspect(vm) is None


@claim(needs=(Retention,))
async def what_is_not_there_is_not_retained(t: MachineTrial) -> None:
    assert await t.machines.retain(t.vm("none"), f"{t.vm()}-none") is None
    assert await t.retained() == {}


@claim(needs=(Retention,))
async def a_retain_that_is_cut_anywhere_is_finished_and_the_disk_is_there_once(t: MachineTrial) -> None:
    vm = await t.running()
    waits = await cut(t.machines.retain(vm, f"{vm}-0"), 0)
    assert set(await t.retained()) == {f"{vm}-0"}
    for at in points(waits + _MORE if waits < t.setup.points else waits, t.setup.points, t.setup.turn):
        await t.running()
        names = set(await t.retained())
        await cut(t.machines.retain(vm, f"{vm}-{at + 1}"), at)
        if at % 2:
            await t.reopen()
        there = await t.machines.inspect(vm)
        new = set(await t.retained()) - names
        assert (there is not None) + len(new) == 1, f"cut at {at}: {there}, {new}"
        if there is not None:
            kept = await t.machines.retain(vm, f"{vm}-again-{at}")
            assert kept is not None
            new = {kept.name}
            assert set(await t.retained()) - names == new
        for name in new:
            await t.machines.discard(name)


@claim(needs=(Retention, Snapshots))
async def a_reinstate_that_is_cut_anywhere_is_finished_and_the_disk_is_there_once(t: MachineTrial) -> None:
    vm, other = await t.made(), t.plan("b")
    await t.snapshot(vm, "s")
    await t.machines.retain(vm, f"{vm}-0")
    waits = await cut(t.machines.reinstate(f"{vm}-0", other), 0)
    for at in points(waits + _MORE if waits < t.setup.points else waits, t.setup.points, t.setup.turn):
        name = f"{vm}-{at + 1}"
        kept = await t.machines.retain(other.label.vm, name)
        assert kept is not None
        await cut(t.machines.reinstate(name, other), at)
        if at % 2:
            await t.reopen()
        there = await t.machines.inspect(other.label.vm)
        assert (there is not None) + len(await t.retained()) == 1, f"cut at {at}: {there}"
        for _ in range(2):
            back = await t.machines.reinstate(name, other)
            assert (back.label, back.state, back.snapshots) == (other.label, MachineState.STOPPED, ("s",))
        assert await t.retained() == {}


@claim(needs=(Retention,))
async def a_discard_that_is_cut_anywhere_is_finished_by_repeating_it(t: MachineTrial) -> None:
    vm = await t.made()
    await t.machines.retain(vm, f"{vm}-0")
    waits = await cut(t.machines.discard(f"{vm}-0"), 0)
    for at in points(waits + _MORE if waits < t.setup.points else waits, t.setup.points, t.setup.turn):
        await t.made()
        await t.machines.retain(vm, f"{vm}-{at + 1}")
        await cut(t.machines.discard(f"{vm}-{at + 1}"), at)
        if at % 2:
            await t.reopen()
        await t.machines.discard(f"{vm}-{at + 1}")
        assert await t.retained() == {}


@claim(moves=True)
async def what_has_not_arrived_completely_is_not_kept(t: MachineTrial) -> None:
    plan = t.plan()
    await t.there.receive(plan, 1)
    assert await t.there.retain(plan.label.vm, f"{plan.label.vm}-old") is None
    assert await t.there.inspect(plan.label.vm) is None
    assert [kept for kept in await t.there.retained() if kept.label == plan.label] == []


@claim(moves=True, needs=(Retention, Snapshots))
async def what_has_arrived_completely_is_kept_and_so_is_what_departed(t: MachineTrial) -> None:
    vm, plan = await with_snapshot(t), t.plan()
    await t.there.receive(plan, 1)
    await t.machines.send(vm, 1, lambda kind: t.there.channel(vm, kind), live=False)
    for machines in (t.there, t.machines):
        kept = await machines.retain(vm, f"{vm}-old")
        assert kept is not None
        assert kept.label == plan.label
    await t.machines.reinstate(f"{vm}-old", t.plan())
    await t.there.discard(f"{vm}-old")


@claim(needs=(Retention,))
async def verbs_about_one_retained_machine_follow_each_other(t: MachineTrial) -> None:
    vm = await t.made()
    await t.machines.retain(vm, f"{vm}-old")
    back, other = t.plan(), t.plan("b")
    outcomes = await asyncio.gather(
        t.machines.reinstate(f"{vm}-old", back), t.machines.reinstate(f"{vm}-old", other), return_exceptions=True
    )
    assert sum(not isinstance(outcome, BaseException) for outcome in outcomes) == 1, outcomes
    assert len(await t.listed()) == 1
    assert await t.retained() == {}
