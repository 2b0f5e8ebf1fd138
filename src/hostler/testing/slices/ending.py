"""Artifacts that cannot run, and instances that end by themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.errors import NotFound, Refused
from hostler.ports.slices import Life
from hostler.testing.slices.claim import claim, refused

if TYPE_CHECKING:
    from hostler.ports.slices import Run
    from hostler.testing.slices.claim import SliceTrial


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


async def _crashed(t: SliceTrial, *, active: bool = True) -> Run:
    if active:
        run, _ = await t.active()
    else:
        run = t.run()
        await t.slices.load(run)
    await t.crash(run)
    return run


@claim(needs="crash")
async def what_ends_by_itself_is_told_of_and_listed_with_why(t: SliceTrial) -> None:
    run = await _crashed(t)
    running = await t.seen(run)
    assert running is not None
    assert running.run == run
    assert running.address == ""
    assert running.detail


@claim(needs="crash")
async def what_ended_is_loaded_and_activated_anew(t: SliceTrial) -> None:
    run = await _crashed(t)
    assert (await t.slices.load(run)).life is Life.LOADED
    assert (await t.slices.activate(run)).life is Life.ACTIVE
    run = await _crashed(t)
    assert (await t.slices.activate(run)).life is Life.ACTIVE
    run = await _crashed(t, active=False)
    assert (await t.slices.activate(run)).life is Life.ACTIVE


@claim(needs="crash")
async def what_ended_can_be_deactivated_and_unloaded(t: SliceTrial) -> None:
    run = await _crashed(t)
    assert (await t.slices.deactivate(run, grace=0.0)).life is not Life.ACTIVE
    await t.slices.unload(run)
    assert await t.seen(run) is None


@claim(needs="crash")
async def one_that_ends_leaves_the_others_alone(t: SliceTrial) -> None:
    other, running = await t.active(2)
    await _crashed(t)
    assert await t.seen(other) == running
