"""Running instances outlive the driver: the agent may restart at any time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.model.deployment import SliceSettings
from hostler.ports.slices import Life
from hostler.testing.slices.claim import claim

if TYPE_CHECKING:
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
