"""A store on another thread's virtual time is a store like any other."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future

import pytest
from harness.pace import patience

from hostler.drivers.store.memory import MemoryStore
from hostler.errors import Closed, Lagged, Unavailable, Uncertain
from hostler.kit.virtual_loop import VirtualClock
from hostler.model.sim_api import Mode
from hostler.ports.store import Event, Put
from hostler.sim.journal import JournaledStore
from hostler.sim.thread_bridge import AHEAD, BridgedClock, BridgedStore, BridgedWatch, across
from hostler.sim.time_control import PacedLoop, PacedThread
from hostler.testing import Claim, store_claims


class World:
    """A store inside, and the loop it lives on."""

    def __init__(self, **options: int) -> None:
        self.failures: list[str] = []
        self.loop = PacedLoop(1)
        self.store = MemoryStore(clock=VirtualClock(), **options)
        self._entered: Future[None] = Future()
        self.thread = PacedThread(self.loop, self._main, lambda what, why: self.failures.append(f"{what}: {why!r}"))

    async def _main(self) -> None:
        async with self.store:
            self.loop.change(Mode.MEASURED, epoch=0)
            self._entered.set_result(None)
            await asyncio.Event().wait()

    def start(self) -> None:
        self.thread.start()
        self._entered.result(60)

    def open(self) -> BridgedStore:
        return BridgedStore(self.store, self.loop)

    def open_journaled(self) -> BridgedStore:
        """As a simulation gives it to the server beside it."""
        aside = self.store.aside()
        journaled = JournaledStore(aside, lambda act: self.loop.enter(lambda: act.done(aside)))
        return BridgedStore(journaled, self.loop)

    async def inside(self, do: Callable[[], Awaitable[object]]) -> object:
        return await across(self.loop, do)


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    world.start()
    yield world
    assert world.thread.stop(within=60)
    assert world.failures == []


@pytest.fixture(scope="module")
def shared() -> Iterator[World]:
    world = World()
    world.start()
    yield world
    world.thread.stop(within=60)


@pytest.mark.parametrize("claim", [claim for claim in store_claims() if not claim.waits], ids=str)
async def test_claim(claim: Claim, shared: World) -> None:
    await claim.check(shared.open)


@pytest.mark.parametrize("claim", [claim for claim in store_claims() if not claim.waits], ids=str)
async def test_claim_of_the_journaled_store(claim: Claim, shared: World) -> None:
    await claim.check(shared.open_journaled)


async def test_a_lease_ends_by_virtual_time(world: World) -> None:
    async with world.open() as store:
        await world.inside(_changed(world, Mode.MANUAL))
        lease = await store.grant(3600)
        await store.put("/a", b"", lease=lease)
        assert await lease.remaining() == 3600
        await _stepped(world, 3599)
        assert await store.get("/a") is not None
        await lease.keep_alive()
        await _stepped(world, 3599)
        assert await store.get("/a") is not None
        async with store.watch("/") as watch:
            await _stepped(world, 2)
            assert (await anext(watch)).type == "delete"
        assert await lease.remaining() == 0.0


async def test_the_clock_outside_is_the_one_inside(world: World) -> None:
    clock = BridgedClock(world.loop, epoch=1000.0)
    await world.inside(_changed(world, Mode.MANUAL))
    before = clock.now()
    await asyncio.sleep(0.01)
    assert clock.now() == before
    await _stepped(world, 50)
    assert clock.now() == before + 50
    assert clock.wall() == clock.now() + 1000


async def test_who_does_not_read_a_watch_lags_and_whoever_does_gets_all_of_it() -> None:
    world = World(backlog=100)
    world.start()
    try:
        async with world.open() as store, store.watch("/") as idle, store.watch("/") as busy:
            first = (await store.status()).revision + 1
            for number in range(AHEAD + 150):
                await store.put(f"/{number}", b"")
                assert (await asyncio.wait_for(anext(busy), 60)).kv.key == f"/{number}"
            got: list[Event] = []
            with pytest.raises(Lagged) as lagged:
                await asyncio.wait_for(_read(idle, got), 60)
            revisions = [event.kv.mod_revision for event in got]
            assert revisions == list(range(first, lagged.value.revision))
            assert len(got) >= AHEAD
    finally:
        world.thread.stop(within=60)


@pytest.mark.slow
async def test_a_world_that_is_busy_makes_reads_unavailable_and_writes_that_were_begun_uncertain(world: World) -> None:
    patient = world.open()
    async with BridgedStore(world.store, world.loop, timeout=patience(0.15)) as store, patient:
        release, busy = threading.Event(), threading.Event()

        async def hold() -> None:
            busy.set()
            release.wait(60)

        held = world.loop.submit(hold)
        assert await asyncio.to_thread(busy.wait, 60)
        with pytest.raises(Unavailable):
            await store.get("/a")
        with pytest.raises(Unavailable):  # it was not begun, and will not be
            await store.put("/a", b"1")
        release.set()
        await asyncio.wrap_future(held)
        assert await patient.get("/a") is None

        async def never() -> int:
            await asyncio.Event().wait()
            return 0

        world.store.put = lambda *_, **__: never()  # type: ignore[method-assign,assignment]
        with pytest.raises(Uncertain):
            await store.put("/b", b"1")


async def test_when_the_world_ends_nobody_waits_for_ever(world: World) -> None:
    async with world.open() as store:
        async with store.watch("/") as watch:
            reading = asyncio.ensure_future(anext(watch))
            await asyncio.sleep(0)
            assert await asyncio.to_thread(world.thread.stop, within=60)
            with pytest.raises((Closed, Unavailable)):
                await asyncio.wait_for(reading, 60)
        for verb in (store.get("/a"), store.grant(5), store.status()):
            with pytest.raises(Unavailable, match="has ended"):
                await verb
        with pytest.raises(Unavailable):
            await store.watch("/").__aenter__()
        with pytest.raises(Unavailable):
            await across(world.loop, asyncio.Event().wait)


async def test_a_reader_who_is_cancelled_leaves_nothing_inside(world: World) -> None:
    async with world.open() as store:
        before = await world.inside(_tasks)
        for _ in range(3):
            async with store.watch("/"):
                await store.txn([], [Put("/a", b"")])
        waiting = asyncio.ensure_future(across(world.loop, asyncio.Event().wait))
        await store.get("/a")
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        async with asyncio.timeout(30):
            while await world.inside(_tasks) != before:
                await store.get("/a")
    with pytest.raises(Closed):
        await store.get("/a")


async def _read(watch: BridgedWatch, got: list[Event]) -> None:
    while True:
        got.append(await anext(watch))


async def _tasks() -> int:
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return len(asyncio.all_tasks())


def _changed(world: World, mode: Mode) -> Callable[[], Awaitable[object]]:
    async def change() -> object:
        return world.loop.change(mode, epoch=world.loop.pace.epoch)

    return change


async def _stepped(world: World, seconds: float) -> None:
    async def grant() -> Future[float]:
        return world.loop.grant(seconds=seconds).done

    await asyncio.wrap_future(await across(world.loop, grant))
