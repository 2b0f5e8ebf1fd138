"""Claims: loading, activating, deactivating and unloading, repeated and interrupted; instances outlive the driver."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from hostler.errors import NotFound, Refused
from hostler.model.deployment import SliceSettings
from hostler.ports.slices import MOST_PRINTED, Life
from hostler.testing.claim import cut, points
from hostler.testing.slices.claim import claim, refused

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from hostler.ports.slices import Run
    from hostler.testing.slices.claim import SliceTrial


@claim()
async def what_is_loaded_is_there_and_takes_no_calls(t: SliceTrial) -> None:
    run = t.run()
    running = await t.slices.load(run)
    assert (running.run, running.life, running.address) == (run, Life.LOADED, "")
    assert running.methods
    assert await t.seen(run) == running


@claim()
async def loading_again_changes_nothing(t: SliceTrial) -> None:
    run = t.run()
    first = await t.slices.load(run)
    assert await t.slices.load(run) == first
    _, active = await t.active()
    assert await t.slices.load(run) == active
    assert await t.life(run) is Life.ACTIVE


@claim()
async def what_is_active_has_methods_and_an_address(t: SliceTrial) -> None:
    run = t.run()
    loaded = await t.slices.load(run)
    running = await t.slices.activate(run)
    assert (running.run, running.life, running.methods) == (run, Life.ACTIVE, loaded.methods)
    host, _, port = running.address.rpartition(":")
    assert host
    assert port.isdigit()
    assert await t.seen(run) == running


@claim()
async def activating_loads_what_is_not_loaded(t: SliceTrial) -> None:
    run, running = await t.active()
    assert running.methods
    assert await t.life(run) is Life.ACTIVE


@claim()
async def activating_again_changes_nothing(t: SliceTrial) -> None:
    run, running = await t.active()
    assert await t.slices.activate(run) == running


@claim()
async def what_is_deactivated_stays_loaded_and_can_be_activated_again(t: SliceTrial) -> None:
    run, _ = await t.active()
    for _ in range(2):
        running = await t.slices.deactivate(run, grace=t.setup.grace)
        assert (running.life, running.address) == (Life.LOADED, "")
    assert await t.life(run) is Life.LOADED
    again = await t.slices.activate(run)
    assert again.life is Life.ACTIVE
    assert again.address


@claim()
async def deactivating_what_was_never_active_changes_nothing(t: SliceTrial) -> None:
    run = t.run()
    loaded = await t.slices.load(run)
    assert await t.slices.deactivate(run, grace=0.0) == loaded


@claim()
async def what_is_unloaded_is_gone_whatever_it_was(t: SliceTrial) -> None:
    loaded = t.run(1)
    await t.slices.load(loaded)
    active, _ = await t.active(2)
    for run in (loaded, active, t.run(3)):
        await t.slices.unload(run)
        await t.slices.unload(run)
        assert await t.seen(run) is None
    assert (await t.slices.load(loaded)).life is Life.LOADED


@claim()
async def instances_are_independent(t: SliceTrial) -> None:
    one, first = await t.active(1)
    two, second = await t.active(2)
    other, third = await t.active(1, artifact=t.setup.other)
    assert len({first.address, second.address, third.address}) == 3
    await t.slices.deactivate(two, grace=0.0)
    await t.slices.unload(other)
    assert await t.seen(one) == first
    assert await t.life(two) is Life.LOADED
    assert await t.seen(other) is None


@claim()
async def many_verbs_at_once_do_not_disturb_each_other(t: SliceTrial) -> None:
    runs = [t.run(number) for number in range(1, 5)]
    active = await asyncio.gather(*(t.slices.activate(run) for run in runs))
    assert [one.run for one in active] == runs
    assert len({one.address for one in active}) == len(runs)
    await asyncio.gather(
        t.slices.unload(runs[0]),
        t.slices.deactivate(runs[1], grace=0.0),
        t.slices.load(runs[2]),
        t.slices.activate(runs[3]),
    )
    assert [await t.life(run) for run in runs] == [None, Life.LOADED, Life.ACTIVE, Life.ACTIVE]


@claim()
async def verbs_on_one_instance_follow_each_other(t: SliceTrial) -> None:
    run = t.run()
    first, second = await asyncio.gather(t.slices.activate(run), t.slices.activate(run))
    assert first == second
    await asyncio.gather(t.slices.unload(run), t.slices.unload(run))
    assert await t.seen(run) is None


@claim()
async def what_is_listed_says_what_it_is_run_with(t: SliceTrial) -> None:
    settings = SliceSettings(environment={"GREETING": "hello"}, concurrency=3)
    run = t.run(1, template=4, settings=settings)
    await t.slices.load(run)
    running = await t.seen(run)
    assert running is not None
    assert running.run == run


@claim()
async def what_is_unloaded_and_loaded_with_other_settings_has_those(t: SliceTrial) -> None:
    run, _ = await t.active()
    await t.slices.unload(run)
    other = t.run(1, template=2, settings=SliceSettings(concurrency=1))
    assert (await t.slices.load(other)).run == other


@claim()
async def what_is_there_tells_what_it_printed_and_from_a_place_on_only_what_came_since(t: SliceTrial) -> None:
    run = t.run(3)
    with refused(NotFound):
        await t.slices.printed(run.artifact, run.instance)
    with refused(NotFound):
        await t.slices.printed("org:check:never")
    await t.slices.activate(run)
    found = await t.slices.printed(run.artifact, run.instance)
    assert (found.instance, found.skipped) == (3, 0)
    assert len(found.text) <= MOST_PRINTED
    again = await t.slices.printed(run.artifact, after=found.after)
    assert (again.instance, again.text, again.skipped) == (3, b"", 0)
    unknown = await t.slices.printed(run.artifact, run.instance, after="nowhere")
    assert unknown.text == found.text


@claim()
async def tokens_can_be_admitted_at_any_time(t: SliceTrial) -> None:
    t.slices.admit(frozenset())
    run, running = await t.active()
    t.slices.admit(frozenset({"0" * 64, "f" * 64}))
    t.slices.admit(frozenset({"f" * 64}))
    assert await t.seen(run) == running


@claim(needs="missing")
async def an_artifact_that_is_nowhere_is_not_found(t: SliceTrial) -> None:
    run = t.run(artifact=t.setup.missing)
    for verb in (t.slices.load, t.slices.activate):
        with refused(NotFound):
            await verb(run)
    assert await t.life(run) in (None, Life.ENDED)
    await t.slices.unload(run)
    assert await t.seen(run) is None


@claim(needs="broken")
async def what_cannot_be_imported_is_refused_and_can_be_unloaded(t: SliceTrial) -> None:
    run = t.run(artifact=t.setup.broken)
    for verb in (t.slices.load, t.slices.activate):
        with refused(Refused):
            await verb(run)
    assert await t.life(run) in (None, Life.ENDED)
    await t.slices.unload(run)
    assert await t.seen(run) is None


@claim(needs="failing")
async def what_cannot_be_started_is_refused_and_takes_no_calls(t: SliceTrial) -> None:
    run = t.run(artifact=t.setup.failing)
    await t.slices.load(run)
    with refused(Refused):
        await t.slices.activate(run)
    running = await t.seen(run)
    assert running is None or (running.life is not Life.ACTIVE and running.address == "")
    await t.slices.unload(run)
    assert await t.seen(run) is None


async def _crash(t: SliceTrial, *, active: bool = True) -> Run:
    if active:
        run, _ = await t.active()
    else:
        run = t.run()
        await t.slices.load(run)
    await t.crash(run)
    return run


@claim(needs="crash")
async def what_ends_by_itself_is_told_of_and_listed_with_why(t: SliceTrial) -> None:
    run = await _crash(t)
    running = await t.seen(run)
    assert running is not None
    assert running.run == run
    assert running.address == ""
    assert running.detail


@claim(needs="crash")
async def what_ended_is_loaded_and_activated_anew(t: SliceTrial) -> None:
    run = await _crash(t)
    assert (await t.slices.load(run)).life is Life.LOADED
    assert (await t.slices.activate(run)).life is Life.ACTIVE
    run = await _crash(t)
    assert (await t.slices.activate(run)).life is Life.ACTIVE
    run = await _crash(t, active=False)
    assert (await t.slices.activate(run)).life is Life.ACTIVE


@claim(needs="crash")
async def what_ended_can_be_deactivated_and_unloaded(t: SliceTrial) -> None:
    run = await _crash(t)
    assert (await t.slices.deactivate(run, grace=0.0)).life is not Life.ACTIVE
    await t.slices.unload(run)
    assert await t.seen(run) is None


@claim(needs="crash")
async def one_that_ends_leaves_the_others_alone(t: SliceTrial) -> None:
    other, running = await t.active(2)
    await _crash(t)
    assert await t.seen(other) == running


@claim()
async def what_runs_is_listed_by_the_next_driver_as_it_is(t: SliceTrial) -> None:
    run, running = await t.active(1, template=3, settings=SliceSettings(concurrency=9))
    loaded = await t.slices.load(t.run(2))
    await t.reopen()
    assert await t.seen(run) == running
    assert await t.seen(loaded.run) == loaded


@claim()
async def what_was_adopted_can_be_worked_with(t: SliceTrial) -> None:
    run, running = await t.active()
    await t.reopen()
    assert await t.slices.activate(run) == running
    assert (await t.slices.deactivate(run, grace=t.setup.grace)).life is Life.LOADED
    await t.reopen()
    assert (await t.slices.activate(run)).life is Life.ACTIVE
    await t.reopen()
    await t.slices.unload(run)
    assert await t.seen(run) is None
    await t.reopen()
    assert await t.seen(run) is None


@claim(needs="crash")
async def what_was_adopted_is_told_of_when_it_ends(t: SliceTrial) -> None:
    run, _ = await t.active()
    await t.reopen()
    await t.crash(run)
    assert (await t.slices.activate(run)).life is Life.ACTIVE


if TYPE_CHECKING:
    Verb = Callable[[SliceTrial, Run], Coroutine[Any, Any, Any]]


def _cut_anywhere(name: str, prepare: Verb | None, verb: Verb, life: Life | None) -> None:
    async def prepared(t: SliceTrial, number: int) -> Run:
        run = t.run(number)
        if prepare is not None:
            await prepare(t, run)
        return run

    async def body(t: SliceTrial) -> None:
        run = await prepared(t, 1)
        waits = await cut(verb(t, run), 0)
        assert await t.life(run) is life
        await t.slices.unload(run)
        for at in points(waits, t.setup.points, t.setup.turn):
            run = await prepared(t, 1)
            await cut(verb(t, run), at)
            if at % 2:
                await t.reopen()
            await verb(t, run)
            assert await t.life(run) is life, f"cut at {at} of {waits}, repeated"
            await cut(verb(t, await prepared(t, 2)), at)
            await t.slices.unload(t.run(2))
            assert await t.seen(t.run(2)) is None, f"cut at {at} of {waits}, unloaded"
            await t.slices.unload(run)

    claim(name=name)(body)


async def _unload(t: SliceTrial, run: Run) -> None:
    await t.slices.unload(run)


_cut_anywhere("a_load_may_be_cut_anywhere", None, lambda t, run: t.slices.load(run), Life.LOADED)
_cut_anywhere("an_activation_may_be_cut_anywhere", None, lambda t, run: t.slices.activate(run), Life.ACTIVE)
_cut_anywhere(
    "a_deactivation_may_be_cut_anywhere",
    lambda t, run: t.slices.activate(run),
    lambda t, run: t.slices.deactivate(run, grace=t.setup.grace),
    Life.LOADED,
)
_cut_anywhere("an_unload_may_be_cut_anywhere", lambda t, run: t.slices.activate(run), _unload, None)
