"""Claims: running instances outlive the driver, and an operation that was cancelled can be repeated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hostler.model.deployment import SliceSettings
from hostler.ports.slices import Life
from hostler.testing.claim import cut, points
from hostler.testing.slices.claim import claim

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from hostler.ports.slices import Run
    from hostler.testing.slices.claim import SliceTrial


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
