"""The store that breaks on purpose: what each fault does, and that a seed repeats it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from hostler.drivers.store.faulty import Faults, FaultyStore
from hostler.drivers.store.memory import MemoryStore
from hostler.errors import Compacted, HostlerError, Invalid, Lagged, Unavailable, Uncertain
from hostler.ports.store import DeletePrefix, Put, Store
from hostler.testing import VirtualClock, check_store, run_virtual


class Sleepy:
    """A clock on which sleeping takes no time and is written down."""

    def __init__(self) -> None:
        self.slept: list[float] = []
        self._now = 0.0

    def now(self) -> float:
        return self._now

    def wall(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self._now += seconds
        await asyncio.sleep(0)


def faulty(seed: int = 1, **knobs: float) -> FaultyStore:
    return FaultyStore(MemoryStore(), random.Random(seed), clock=Sleepy(), faults=Faults(**knobs))


@pytest.mark.slow
def test_without_faults_it_is_a_store_like_any_other() -> None:
    def without_faults() -> FaultyStore:
        return FaultyStore(MemoryStore(clock=VirtualClock()), random.Random(1), clock=VirtualClock())

    assert isinstance(without_faults(), Store)
    run_virtual(lambda: check_store(without_faults, persistent=False))


async def test_unavailable_does_nothing() -> None:
    async with faulty(unavailable=1.0) as store:
        with pytest.raises(Unavailable):
            await store.put("a", b"")
        with pytest.raises(Unavailable):
            await store.get("a")
        store.faults.unavailable = 0.0
        assert await store.get("a") is None


async def test_a_lost_answer_was_done_and_one_that_never_was_is_told_in_the_same_words() -> None:
    async with faulty(lost=1.0) as store:
        with pytest.raises(Uncertain) as lost:
            await store.put("done", b"")
        store.faults = Faults(never=1.0)
        with pytest.raises(Uncertain) as never:
            await store.put("not done", b"")
        assert str(lost.value) == str(never.value)
        store.faults = Faults()
        assert [kv.key for kv in (await store.range("")).items] == ["done"]


async def test_reads_are_never_uncertain() -> None:
    async with faulty(lost=1.0, never=1.0) as store:
        assert await store.get("a") is None
        assert (await store.range("")).items == ()
        await store.status()


async def test_leases_break_too() -> None:
    async with faulty() as store:
        lease = await store.grant(60)
        await store.put("a", b"", lease=lease)
        store.script("keep_alive", "unavailable")
        with pytest.raises(Unavailable):
            await lease.keep_alive()
        await lease.keep_alive()
        store.script("revoke", "lost")
        with pytest.raises(Uncertain):
            await lease.revoke()
        assert (await store.get("a"), await lease.remaining()) == (None, 0.0)


async def test_the_third_put_under_a_prefix_fails_when_told_so() -> None:
    async with faulty() as store:
        store.script("put", "unavailable", prefix="/x/", nth=3, times=2)
        outcomes: list[str] = []
        for key in ("/x/1", "/y/1", "/x/2", "/x/3", "/y/2", "/x/4", "/x/5"):
            try:
                await store.put(key, b"")
                outcomes.append("ok")
            except Unavailable:
                outcomes.append("failed")
        assert outcomes == ["ok", "ok", "ok", "failed", "ok", "failed", "ok"]


async def test_a_script_finds_a_transaction_by_any_of_its_operations() -> None:
    async with faulty() as store:
        store.script("txn", "never", prefix="/x/")
        await store.txn([], [Put("/y/", b"")])
        with pytest.raises(Uncertain):
            await store.txn([], [Put("/y/", b"")], [DeletePrefix("/x/1")])


@pytest.mark.parametrize(
    ("script"),
    [
        lambda store: store.script("get", "lost"),
        lambda store: store.script("put", "lagged"),
        lambda store: store.script("event", "unavailable"),
        lambda store: store.script("put", "lost", nth=0),
        lambda store: store.script("put", "lost", times=0),
    ],
)
def test_a_script_that_cannot_be_is_refused(script: Callable[[FaultyStore], None]) -> None:
    with pytest.raises(Invalid):
        script(faulty())


async def test_a_store_that_is_down_answers_nothing_until_it_is_up_and_its_watches_go_on() -> None:
    inner = MemoryStore()
    async with FaultyStore(inner, random.Random(1)) as store, store.watch("") as watch:
        store.down()
        with pytest.raises(Unavailable):
            await store.put("a", b"")
        await inner.put("b", b"")
        reader = asyncio.ensure_future(anext(watch))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(reader), 0.02)
        store.up()
        assert (await reader).kv.key == "b"
        await store.put("a", b"")


async def test_slow_takes_time_on_the_clock_before_or_after_it_is_done() -> None:
    clock = Sleepy()
    store = FaultyStore(MemoryStore(), random.Random(1), clock=clock, faults=Faults(slow=1.0, slowest=30.0))
    async with store:
        for number in range(20):
            await store.put(f"{number}", b"")
        assert len(clock.slept) == 20
        assert 0 < min(clock.slept) < max(clock.slept) < 30


@pytest.mark.parametrize(("kind", "error"), [("lagged", Lagged), ("compacted", Compacted)])
async def test_a_watch_that_breaks_does_so_between_transactions_and_can_be_taken_up_again(
    kind: str, error: type[Lagged | Compacted]
) -> None:
    async with faulty() as store, store.watch("") as watch:
        store.script("event", kind, prefix="c")  # type: ignore[arg-type]
        await store.txn([], [Put("a", b""), Put("b", b"")])
        await store.txn([], [Put("c", b""), Put("d", b"")])
        assert [(await anext(watch)).kv.key for _ in range(2)] == ["a", "b"]
        with pytest.raises(error) as raised:
            await anext(watch)
        with pytest.raises(error):
            await anext(watch)
        async with store.watch("", start_revision=raised.value.revision) as again:
            assert [(await anext(again)).kv.key for _ in range(2)] == ["c", "d"]


async def test_a_watch_never_breaks_inside_of_a_transaction() -> None:
    async with faulty() as store, store.watch("") as watch:
        await store.txn([], [Put("a", b""), Put("b", b"")])
        await store.put("c", b"")
        assert (await anext(watch)).kv.key == "a"
        store.faults.lagged = 1.0
        assert (await anext(watch)).kv.key == "b"
        with pytest.raises(Lagged) as raised:
            await anext(watch)
        assert raised.value.revision == 3


async def test_a_reader_cancelled_while_its_event_is_late_finds_it_next_time() -> None:
    inner = MemoryStore()
    late = FaultyStore(inner, random.Random(1), faults=Faults(slow=1.0, slowest=600.0))
    async with late as store, store.watch("") as watch:
        await inner.put("a", b"")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(watch), 0.02)
        store.faults.slow = 0.0
        assert (await asyncio.wait_for(anext(watch), 30)).kv.key == "a"


async def _story(seed: int) -> list[str]:
    store = faulty(seed, unavailable=0.2, lost=0.2, never=0.2, slow=0.2)
    told: list[str] = []
    async with store:
        for number in range(200):
            try:
                told.append(f"{await store.put(f'{number % 7}', b'')}")
            except HostlerError as error:
                told.append(type(error).__name__)
    return told


async def test_a_seed_repeats_its_story_and_another_seed_tells_another() -> None:
    first = await _story(7)
    assert first == await _story(7)
    assert first != await _story(8)
    assert {"Unavailable", "Uncertain"} < set(first)


async def test_turning_one_knob_does_not_move_the_faults_of_the_others() -> None:
    async def failures(**more: float) -> list[int]:
        store, found = faulty(3, unavailable=0.3, **more), []
        async with store:
            for number in range(100):
                try:
                    await store.put("a", b"")
                except Unavailable:
                    found.append(number)
                except Uncertain:
                    pass
        return found

    assert await failures() == await failures(slow=0.2, lost=0.3)
