"""What ends because of its time does not while the leader's calendar is not that of the nodes. In virtual time."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from controller_world import Skewed, World, ids, play

from hostler.drivers.store.memory import MemoryStore
from hostler.engine.calendar import BELIEVED_AFTER, READ_EVERY, Calendar
from hostler.engine.labs import wish
from hostler.engine.labs.decide import Act, decide
from hostler.entry.doctor import _clocks
from hostler.entry.finding import Level
from hostler.keys.access import AUDIT, TOKEN
from hostler.keys.mirror import Mirror
from hostler.keys.node import CLOCK, CLOCK_DISPUTE, LEADER_CLOCK
from hostler.keys.vm import VM
from hostler.kit.virtual import VirtualClock, run_virtual
from hostler.model.access import Audit, Token, TokenKind
from hostler.model.lab import LabCatalogue
from hostler.model.node import ClockReading

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from hostler.ports.store import Store

DAY = 86400.0


async def read_clock(world: World, node: str, ahead: float = 0.0) -> None:
    """Write its time, as its agent does."""
    await world.raw.put(CLOCK.fill(node=node), ClockReading(at=world.clock.wall() + ahead).encode())


async def fill(world: World) -> None:
    """Some of everything that expires: a machine in an hour, a token in an hour; audit of 89 days ago."""
    now = world.clock.wall()
    await world.create("a", expires_at=now + 3600)
    token = Token(id="t", user="u", purpose=TokenKind.API, created_at=0.0, expires_at=now + 3600)
    await TOKEN.create(world.raw, token, digest="d")
    await AUDIT.create(world.raw, Audit(who="u", verb="v", subject="s", at=0.0), day="2025-10-04", write="1")


async def left(world: World) -> tuple[bool, int, int]:
    machine = await VM.get(world.raw, **ids("a"))
    tokens = await world.keys("/hostler/v1/tokens/")
    old = await world.keys("/hostler/v1/audit/2025")
    return machine is not None and not machine.value.deleting, len(tokens), len(old)


@pytest.mark.parametrize("live", [False, True], ids=["readings in the store", "readings that come later"])
def test_a_leader_whose_calendar_is_a_day_ahead_ends_nothing_until_it_is_right(live: bool) -> None:
    async def story(world: World) -> None:
        await fill(world)
        for node in ("n1", "n2", "n3"):
            await read_clock(world, node, ahead=0.0 if node != "n3" else 2 * DAY)  # one of three is wrong, too
        await asyncio.sleep(0 if not live else 200)
        leader = await world.leader(ahead=DAY)
        await asyncio.sleep(700)
        for node in ("n1", "n2"):
            await read_clock(world, node)
        await asyncio.sleep(60)
        assert await left(world) == (True, 1, 1)
        dispute = await CLOCK_DISPUTE.get(world.raw, name=LEADER_CLOCK)
        assert dispute is not None
        assert dispute.value.node in {"n1", "n2", "n3"}
        assert " s ahead of the clock of node n" in dispute.value.why
        [said] = [line for line in leader.told if line.startswith("clock:")]
        assert "do not expire" in said
        assert leader.janitor.counters["clock_in_doubt"] == 1
        [finding] = [each for each in await _clocks(world.raw) if "leader" in each.what]
        assert finding.level is Level.FAIL

        leader.clock.ahead = 0.0
        await asyncio.sleep(2900)
        assert await left(world) == (False, 0, 1)
        assert await CLOCK_DISPUTE.get(world.raw, name=LEADER_CLOCK) is None
        assert leader.janitor.counters["clock_in_doubt"] == 0

    play(story)


def test_a_calendar_that_is_a_minute_apart_ends_what_is_over() -> None:
    async def story(world: World) -> None:
        await fill(world)
        await read_clock(world, "n1")
        await world.leader(ahead=50.0)
        await read_clock(world, "n1")
        await asyncio.sleep(3600)
        assert (await left(world))[:2] == (False, 0)

    play(story)


@asynccontextmanager
async def calendar(store: Store, clock: Skewed) -> AsyncIterator[Calendar]:
    mirror = Mirror(store, CLOCK, clock=clock)
    made = Calendar(mirror, clock=clock)
    task = asyncio.create_task(mirror.run())
    await mirror.ready()
    try:
        yield made
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def on_calendar(story: Any, *, before: dict[str, float] | None = None) -> None:
    """Tell `story(calendar, clock, read)`; `before`: what stands in the store, and how old it is."""

    async def main() -> None:
        clock = Skewed(VirtualClock())
        await asyncio.sleep(1000)
        async with MemoryStore(clock=clock) as store:

            async def read(node: str, ahead: float = 0.0) -> None:
                at = clock.wall() - clock.ahead + ahead
                await store.put(CLOCK.fill(node=node), ClockReading(at=at).encode())
                await asyncio.sleep(0.01)

            for node, age in (before or {}).items():
                await read(node, -age)
            async with calendar(store, clock) as made:
                await story(made, clock, read, store)

    run_virtual(main)


def test_a_reading_that_was_found_may_be_as_old_as_readings_get() -> None:
    async def story(found: Calendar, clock: Skewed, *_: Any) -> None:
        assert found.apart() is None
        clock.ahead = 30.0
        assert found.apart() is None
        clock.ahead = 500.0
        apart = found.apart()
        assert apart is not None
        assert apart.of == "n1"
        clock.ahead = -400.0
        behind = found.apart()
        assert behind is not None
        assert str(behind).endswith("behind the clock of node n1")

    on_calendar(story, before={"n1": READ_EVERY})


def test_a_reading_that_was_heard_is_exact_and_does_not_grow_old() -> None:
    async def story(found: Calendar, clock: Skewed, read: Any, store: Store) -> None:
        await read("n1")
        await asyncio.sleep(DAY)
        assert found.apart() is None
        for ahead in (70.0, -70.0):
            clock.ahead = ahead
            apart = found.apart()
            assert apart is not None
            assert apart.seconds == pytest.approx(ahead, abs=1.0)
        clock.ahead = 50.0
        assert found.apart() is None
        await store.delete(CLOCK.fill(node="n1"))

    on_calendar(story)


def test_nodes_of_this_process_say_nothing_and_one_wrong_clock_among_many_neither() -> None:
    async def story(found: Calendar, clock: Skewed, read: Any, _: Any) -> None:
        found.own = ("own",)
        await read("own", DAY)
        assert found.apart() is None
        for node in ("n1", "n2"):
            await read(node)
        await read("n3", DAY)
        assert found.apart() is None
        clock.ahead = DAY
        assert found.apart() is not None

    on_calendar(story)


def test_alone_a_jump_of_the_calendar_is_believed_after_an_hour() -> None:
    async def story(found: Calendar, clock: Skewed, *_: Any) -> None:
        assert found.apart() is None
        clock.ahead = DAY
        apart = found.apart()
        assert apart is not None
        assert str(apart) == "86400 s ahead of before: it was set"
        clock.ahead = 0.0
        assert found.apart() is None
        clock.ahead = DAY
        assert found.apart() is not None
        await asyncio.sleep(BELIEVED_AFTER - 10)
        assert found.apart() is not None
        await asyncio.sleep(20)
        assert found.apart() is None

    on_calendar(story)


def test_a_lab_does_not_end_by_a_calendar_that_is_in_doubt() -> None:
    catalogue = LabCatalogue()
    record = wish.admitted(
        wish.start(None, "ada", 5, catalogue=catalogue, now=0.0, switch=False), "v", catalogue.default, 0.0
    )
    late = DAY * 30
    ended = decide(record, None, None, catalogue=catalogue, now=late)
    assert ended.act is Act.GONE
    deleted = decide(record, None, None, catalogue=catalogue, now=late, expires=False)
    assert deleted.record is not None
    assert deleted.record.news[-1].reason == "its machine was deleted"  # that is certain without a calendar
    gone = wish.gone(wish.stop(record, "ada", 5, now=1.0), 1.0, catalogue)
    assert decide(gone, None, None, catalogue=catalogue, now=late).act is Act.FORGET
    assert decide(gone, None, None, catalogue=catalogue, now=late, expires=False).act is Act.NOTHING
