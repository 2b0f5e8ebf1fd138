"""The leader forgets old history of a store that keeps it, and no more than its watches can spare."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from controller_world import World, play

from hostler.engine.controllers.garbage_collection import EVERY, PATIENCE, Compaction

if TYPE_CHECKING:
    from controller_world import Leader

    from hostler.ports.store import Store

AGE = 3600.0


class Watched:
    """What the process's watches need."""

    def __init__(self) -> None:
        self.needed: int | None = None

    def oldest_needed(self) -> int | None:
        return self.needed


async def begun(world: World, leader: Leader, watched: Watched, **options: Any) -> Compaction:
    bounds = {"age": AGE, "revisions": 10**9, **options}
    compaction = Compaction(leader.store, watched, clock=world.clock, **bounds)  # type: ignore[arg-type]
    await compaction.start(leader)
    await compaction.look()
    return compaction


async def write(store: Store, number: int) -> int:
    revision = 0
    for _ in range(number):
        revision = await store.put("/written", b"")
    return revision


async def compacted(world: World) -> int:
    return (await world.raw.status()).compact_revision


def test_history_of_an_hour_stays_and_what_is_older_goes() -> None:
    async def story(world: World) -> None:
        leader = await world.leader("l1")
        compaction = await begun(world, leader, Watched())
        early = await write(world.raw, 1500)
        await world.clock.sleep(EVERY)
        await compaction.look()
        await world.clock.sleep(AGE - 2 * EVERY)
        await write(world.raw, 1500)
        await compaction.look()
        assert await compacted(world) == 0, "all of it is younger"
        await world.clock.sleep(2 * EVERY)
        await compaction.look()
        assert early <= await compacted(world) < early + 1400
        assert compaction.counters == {"compactions": 1}

    play(story)


def test_no_more_revisions_stay_than_the_bound_however_young_and_a_watch_gets_what_it_needs() -> None:
    async def story(world: World) -> None:
        leader = await world.leader("l1")
        watched = Watched()
        compaction = await begun(world, leader, watched, revisions=1000)
        now = await write(world.raw, 3000)
        watched.needed = now - 1500
        await compaction.look()
        assert await compacted(world) == now - 1500, "a watch still needs that"
        now = await write(world.raw, PATIENCE * 1000)
        await compaction.look()
        assert await compacted(world) >= now - PATIENCE * 1000, "a watch that stands still keeps no more than that"
        watched.needed = None
        await compaction.look()
        assert await compacted(world) >= now - 1000

    play(story)


def test_an_operator_who_compacts_further_is_no_trouble_and_little_is_not_worth_it() -> None:
    async def story(world: World) -> None:
        leader = await world.leader("l1")
        compaction = await begun(world, leader, Watched(), revisions=1000)
        now = await write(world.raw, 2500)
        await world.raw.compact(now - 10)
        await compaction.look()
        assert await compacted(world) == now - 10
        await write(world.raw, 1000)
        await compaction.look()
        assert await compacted(world) == now - 10
        await write(world.raw, 1000)
        await compaction.look()
        assert await compacted(world) > now

    play(story)
