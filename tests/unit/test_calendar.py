"""What ends because of its time does not while the leader's calendar is not that of the nodes. In virtual time."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from controller_world import Leader, Skewed, World, ids, play
from controller_world import node as member

from hostler.drivers.store.memory import MemoryStore
from hostler.engine.calendar import BELIEVED_AFTER, READ_EVERY, RECORD_AFTER, RECORD_EVERY, Calendar
from hostler.engine.labs import state_machine
from hostler.engine.labs.decide import Act, LabConditions, decide
from hostler.engine.labs.state_machine import LabStart
from hostler.entry.doctor.examination import _clocks
from hostler.keys.cache import Cache
from hostler.keys.families import (
    ALIVE,
    AUDIT,
    CLOCK,
    CLOCK_DISPUTE,
    LEADER_CLOCK,
    MEMBER,
    RETAINED,
    RETAINED_REQUEST,
    TOKEN,
    VM,
)
from hostler.kit.virtual_loop import VirtualClock, run_virtual
from hostler.model.access import Audit, Token, TokenKind
from hostler.model.lab import LabCatalogue
from hostler.model.node import ClockReading, Heartbeat, Retained
from hostler.model.vm import VmSpec
from hostler.ports.machine_driver import Level

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
        for name in ("n1", "n2", "n3"):
            await read_clock(world, name, ahead=0.0 if name != "n3" else 2 * DAY)  # one of three is wrong, too
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
    mirror = Cache(store, CLOCK, clock=clock)
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
        assert str(apart) == "86400 s ahead of its earlier reading: it was set"
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
    record = state_machine.admit(
        state_machine.start(None, "ada", LabStart(5, switch=False), catalogue=catalogue, now=0.0),
        "v",
        catalogue.default,
        0.0,
    )
    late = DAY * 30
    ended = decide(record, None, None, LabConditions(catalogue=catalogue), now=late)
    assert ended.act is Act.GONE
    deleted = decide(record, None, None, LabConditions(catalogue=catalogue, expires=False), now=late)
    assert deleted.record is not None
    assert deleted.record.news[-1].reason == "its machine was deleted"  # that is certain without a calendar
    gone = state_machine.gone(state_machine.stop(record, "ada", 5, now=1.0), 1.0, catalogue)
    assert decide(gone, None, None, LabConditions(catalogue=catalogue), now=late).act is Act.FORGET
    assert decide(gone, None, None, LabConditions(catalogue=catalogue, expires=False), now=late).act is Act.NOTHING


def test_nodes_that_contradicted_and_fell_silent_are_not_forgotten_at_once() -> None:
    async def story(found: Calendar, clock: Skewed, read: Any, store: Store) -> None:
        await read("n1")
        clock.ahead = DAY
        assert found.apart() is not None
        await store.delete(CLOCK.fill(node="n1"))
        await asyncio.sleep(10)
        apart = found.apart()
        assert apart is not None
        assert str(apart) == "86400 s ahead of its earlier reading: it was set"
        await asyncio.sleep(BELIEVED_AFTER)
        assert found.apart() is None

    on_calendar(story)


async def keep_a_disk(world: World) -> None:
    """A node of this process with a disk that is retained from now on."""
    await world.raw.txn(
        [], [MEMBER.put(member("own"), node="own"), ALIVE.put(Heartbeat(holder="own", started_at=0.0), node="own")]
    )
    retained = Retained(
        name="v-1", org="o", project="p", vm="v", spec=VmSpec(cpus=1, memory_mib=1), retained_at=world.clock.wall()
    )
    await RETAINED.create(world.raw, retained, node="own", name="v-1")


async def is_kept(world: World) -> bool:
    return await RETAINED_REQUEST.get(world.raw, node="own", name="v-1") is None


async def restart(world: World, leader: Leader, *, ahead: float) -> Leader:
    """Stop the only process, and start it with its calendar ahead of the world's."""
    await leader.end()
    return await world.leader(f"l{len(world.leaders) + 1}", ahead=ahead)


@pytest.mark.parametrize("restarts", [1, 3])
def test_a_lone_leader_that_starts_days_ahead_keeps_retained_disks_until_it_is_believed(restarts: int) -> None:
    async def story(world: World) -> None:
        leader = await world.leader()
        await keep_a_disk(world)
        await asyncio.sleep(2 * RECORD_EVERY)
        for _ in range(restarts):  # none of them takes the wrong calendar for that of before
            leader = await restart(world, leader, ahead=8 * DAY)
            await asyncio.sleep(BELIEVED_AFTER - 60)
            assert await is_kept(world)
            assert leader.janitor.counters["clock_in_doubt"] == 1
        dispute = await CLOCK_DISPUTE.get(world.raw, name=LEADER_CLOCK)
        assert dispute is not None
        assert "ahead of the last recorded time: the control plane was off for that long, or the clock is wrong" in (
            dispute.value.why
        )
        [finding] = [each for each in await _clocks(world.raw) if "leader" in each.what]
        assert finding.level is Level.WARN
        [said] = [line for line in leader.told if line.startswith("clock:")]
        assert "disks" in said
        leader.clock.ahead = 0.0  # it was set right
        await asyncio.sleep(BELIEVED_AFTER + 200)
        assert await CLOCK_DISPUTE.get(world.raw, name=LEADER_CLOCK) is None
        assert await is_kept(world)

    play(story)


def test_a_lone_leader_that_was_off_for_days_goes_on_after_an_hour() -> None:
    async def story(world: World) -> None:
        leader = await world.leader()
        await keep_a_disk(world)
        await asyncio.sleep(RECORD_AFTER + 10)
        await leader.end()
        await asyncio.sleep(8 * DAY)
        await world.leader("l2")
        await asyncio.sleep(BELIEVED_AFTER - 60)
        assert await is_kept(world)
        await asyncio.sleep(200)
        assert not await is_kept(world)

    play(story)


@pytest.mark.parametrize("off", [60.0, DAY - 2 * 3600])
def test_a_lone_leader_that_was_off_for_less_than_a_day_is_believed_at_once(off: float) -> None:
    async def story(world: World) -> None:
        leader = await world.leader()
        await fill(world)
        await asyncio.sleep(RECORD_AFTER + 10)
        await leader.end()
        await asyncio.sleep(off)
        again = await world.leader("l2")
        await asyncio.sleep(30)
        assert again.janitor.counters["clock_in_doubt"] == 0
        assert (await left(world))[0] is (off < 3600)

    play(story)


def test_a_lone_leader_that_starts_with_a_clock_behind_records_no_time_for_a_while() -> None:
    """What it lists by such a clock would end at once when the clock is set right."""

    async def story(world: World) -> None:
        leader = await world.leader()
        await asyncio.sleep(RECORD_AFTER + 10)
        leader = await restart(world, leader, ahead=-300 * DAY)
        await keep_a_disk(world)
        await asyncio.sleep(600)
        entry = await RETAINED.get(world.raw, node="own", name="v-1")
        assert entry is not None
        assert entry.value.listed_at == 0.0
        leader.clock.ahead = 0.0
        await asyncio.sleep(2 * BELIEVED_AFTER)
        assert await is_kept(world)

    play(story)
