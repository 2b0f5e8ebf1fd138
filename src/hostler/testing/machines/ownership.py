"""Machines that change their owner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from hostler.errors import NotFound, Refused
from hostler.model.vm import MachineState
from hostler.ports.machines import Ownership
from hostler.testing.machines.claim import claim, core, refused

if TYPE_CHECKING:
    from hostler.ports.machines import Label, Machine, MachinePlan
    from hostler.testing.machines.claim import MachineTrial

replace = msgspec.structs.replace


def plan_of_other_project(plan: MachinePlan, tags: dict[str, str] | None = None, **changes: str) -> MachinePlan:
    """Return the same machine, of another project."""
    label = replace(plan.label, **({"org": "others", "project": "theirs"} | changes))
    return replace(plan, label=label, tags={"of": "others", "until": ""} if tags is None else tags)


def fields_without_label(machine: Machine) -> tuple[Any, ...]:
    """Return everything that a new label leaves unchanged."""
    return replace(machine, label=None, tags=None), machine.label.vm


async def marks(t: MachineTrial) -> tuple[Label, dict[str, str]]:
    seen = await t.seen(t.vm())
    assert seen == (await t.listed())[t.vm()], "inspect and list differ"
    return seen.label, seen.tags


@claim()
async def a_machine_carries_the_tags_of_its_plan(t: MachineTrial) -> None:
    assert (await t.machines.create(t.plan(tags={"lab": "5"}))).tags == {"lab": "5"}
    assert (await t.machines.create(t.plan(tags={"lab": "6", "a": ""}))).tags == {"lab": "6", "a": ""}
    await t.reopen()
    assert (await t.seen(t.vm())).tags == {"lab": "6", "a": ""}
    assert (await t.machines.create(t.plan())).tags == {}


@claim(needs=(Ownership,))
async def a_marked_machine_has_another_owner_and_is_otherwise_as_it_was(t: MachineTrial) -> None:
    await t.made()
    await t.snapshot(t.vm(), "s")
    before = await t.seen(t.vm())
    wanted = replace(plan_of_other_project(t.plan(spec=t.setup.other_spec)), name="another")
    marked = await t.machines.mark(wanted)
    assert (marked.label, marked.tags) == (wanted.label, wanted.tags) == await marks(t)
    assert fields_without_label(marked) == fields_without_label(before)
    assert core(await t.machines.mark(wanted)) == core(marked), "repeated"
    back = await t.machines.mark(plan_of_other_project(t.plan(), {}, org="check", project="machines"))
    assert (back.label, back.tags) == (t.plan().label, {})


@claim(needs=(Ownership,))
async def a_running_machine_runs_on_when_it_is_marked(t: MachineTrial) -> None:
    vm = await t.running()
    boots = None if t.setup.boots is None else await t.setup.boots(t.machines, vm)
    id_ = (await t.seen(vm)).id
    marked = await t.machines.mark(plan_of_other_project(t.plan()))
    assert (marked.state, marked.id, marked.label) == (MachineState.RUNNING, id_, plan_of_other_project(t.plan()).label)
    if t.setup.boots is not None:
        assert await t.setup.boots(t.machines, vm) == boots, "it was booted again"
    assert (await t.machines.stop(vm, grace=0)).label == marked.label


@claim(needs=(Ownership,))
async def a_mark_outlives_the_driver(t: MachineTrial) -> None:
    await t.running()
    wanted = plan_of_other_project(t.plan())
    await t.machines.mark(wanted)
    await t.reopen()
    assert await marks(t) == (wanted.label, wanted.tags)
    assert (await t.seen(t.vm())).state is MachineState.RUNNING


@claim(needs=(Ownership,))
async def a_marked_machine_is_made_again_by_its_new_owner_alone(t: MachineTrial) -> None:
    await t.made()
    wanted = plan_of_other_project(t.plan())
    await t.machines.mark(wanted)
    with refused(Refused):
        await t.machines.create(t.plan())
    assert (await t.machines.create(wanted)).label == wanted.label


@claim(needs=(Ownership,))
async def what_belongs_to_another_cluster_or_node_is_not_marked(t: MachineTrial) -> None:
    vm = await t.made()
    before = await t.seen(vm)
    for changes in ({"cluster": "another"}, {"node": "another"}):
        with refused(Refused) as refusal:
            await t.machines.mark(plan_of_other_project(t.plan(), None, **changes))
        assert not isinstance(refusal.error, NotFound)
    assert await t.seen(vm) == before


@claim(needs=(Ownership,))
async def a_machine_that_is_not_there_is_not_marked(t: MachineTrial) -> None:
    with refused(NotFound):
        await t.machines.mark(plan_of_other_project(t.plan()))
    assert await t.machines.inspect(t.vm()) is None


@claim(needs=(Ownership,))
async def a_mark_changes_no_other_machine(t: MachineTrial) -> None:
    await t.made()
    other = await t.made("b")
    before = await t.seen(other)
    await t.machines.mark(plan_of_other_project(t.plan()))
    assert await t.seen(other) == before
