"""Claims: opening, closing, and cleanup."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

from hostler.errors import Closed, Unavailable, Uncertain
from hostler.ports.store import Put, Status, Store, Watch
from hostler.testing.claim import loop_time
from hostler.testing.store.claim import WITHIN, Trial, claim, refused, take

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


async def _enter_watch(store: Store, prefix: str) -> None:
    async with store.watch(prefix):
        pass


def _verbs(t: Trial, store: Store) -> list[Callable[[], Awaitable[object]]]:
    key = t.key("a")
    return [
        lambda: store.get(key),
        lambda: store.range(t.prefix),
        lambda: store.put(key, b""),
        lambda: store.delete(key),
        lambda: store.delete_prefix(t.prefix),
        lambda: store.txn([], [Put(key, b"")]),
        lambda: store.grant(10),
        lambda: store.compact(1),
        store.status,
        lambda: _enter_watch(store, t.prefix),
    ]


@claim()
async def a_store_and_its_watches_have_the_shape_of_the_port(t: Trial) -> None:
    assert isinstance(t.store, Store)
    assert isinstance(t.store.watch(t.prefix), Watch)


@claim()
async def a_store_that_was_not_opened_refuses_everything(t: Trial) -> None:
    store = t.fresh()
    for verb in _verbs(t, store):
        with refused(Closed):
            await verb()
    await store.aclose()
    assert await t.state() == {}


@claim()
async def a_store_that_was_closed_refuses_everything(t: Trial) -> None:
    store = t.fresh()
    async with store as entered:
        assert entered is store
        await store.put(t.key("kept"), b"")
        lease = await store.grant(60)
    for verb in (*_verbs(t, store), lease.keep_alive, lease.revoke, lease.remaining):
        with refused(Closed):
            await verb()
    await store.aclose()
    await store.aclose()


@claim()
async def closing_ends_the_watches_with_closed(t: Trial) -> None:
    store = t.fresh()
    async with store:
        waiting, idle = store.watch(t.prefix), store.watch(t.prefix)
        await waiting.__aenter__()
        await idle.__aenter__()
        reader = asyncio.ensure_future(anext(waiting))
        await asyncio.sleep(0)
        await store.put(t.key("a"), b"")
        await asyncio.wait_for(reader, WITHIN)
        reader = asyncio.ensure_future(anext(waiting))
        await asyncio.sleep(0)
        unread = await take(idle, 1)
        assert unread[0].kv.key == t.key("a")
    with refused(Closed):
        await asyncio.wait_for(reader, WITHIN)
    with refused(Closed):
        await take(idle, 1)
    for watch in (waiting, idle):
        await watch.__aexit__(None, None, None)


@claim()
async def a_watch_that_was_left_gives_no_more_events(t: Trial) -> None:
    async with t.store.watch(t.prefix) as watch:
        pass
    await t.store.put(t.key("a"), b"")
    with refused(Closed):
        await take(watch, 1)


@claim()
async def closing_while_verbs_run_ends_each_of_them(t: Trial) -> None:
    store = t.fresh()
    await store.__aenter__()
    writes = [asyncio.ensure_future(store.put(t.key(f"{number}"), b"x")) for number in range(30)]
    await asyncio.sleep(0)
    await asyncio.wait_for(store.aclose(), WITHIN)
    outcomes = await asyncio.wait_for(asyncio.gather(*writes, return_exceptions=True), WITHIN)
    for outcome in outcomes:
        assert isinstance(outcome, int | Closed | Unavailable | Uncertain), repr(outcome)
    if t.persistent:
        state = await t.state()
        for number, outcome in enumerate(outcomes):
            if isinstance(outcome, int):
                assert state.get(t.key(f"{number}")) == b"x"


@claim()
async def the_status_tells_how_the_store_is(t: Trial) -> None:
    await t.store.put(t.key("a"), b"")
    status = await t.store.status()
    assert isinstance(status, Status)
    assert status.engine
    assert status.version
    assert status.revision >= 1
    assert status.compact_revision >= 0
    assert status.size_bytes >= 0


@claim()
async def a_closed_store_leaves_no_task_and_no_thread(t: Trial) -> None:
    await _live_once(t)  # what a library starts once per process is not counted
    tasks, threads = asyncio.all_tasks(), _threads()
    for _ in range(3):
        await _live_once(t)
    end = loop_time() + WITHIN  # cancelled tasks and stopping threads need some time
    while (asyncio.all_tasks() - tasks or _threads() - threads) and loop_time() < end:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert asyncio.all_tasks() <= tasks, f"left: {asyncio.all_tasks() - tasks}"
    assert _threads() <= threads, f"left: {_threads() - threads}"


async def _live_once(t: Trial) -> None:
    async with t.fresh() as store:
        lease = await store.grant(60)
        await store.put(t.key("a"), b"", lease=lease)
        await lease.keep_alive()
        async with store.watch(t.prefix) as watch:
            await store.put(t.key("a"), b"")
            await take(watch, 1)
        async with store.watch(t.prefix):
            await store.get(t.key("a"))
        await lease.revoke()


def _threads() -> set[threading.Thread]:
    """Return the running threads except those of the event loop's own pool, which it reuses."""
    return {thread for thread in threading.enumerate() if not thread.name.startswith("asyncio_")}
