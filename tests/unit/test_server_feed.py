"""Positions of events, and the feed that all streams read from."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

import hostler
from hostler.drivers.store.memory import MemoryStore
from hostler.entry.server.feed import WHOLE, Feed, Numbering, item_of, position_of, spelled, start_of
from hostler.errors import Invalid, Unavailable
from hostler.keys.vm import HANDLE, VM
from hostler.kit.clock import SystemClock
from hostler.kit.virtual import VirtualClock, run_virtual
from hostler.model.vm import MachineState, VirtualMachine, VmHandle, VmSpec
from hostler.ports.store import Delete, Event, KeyValue, Put, Store


def _vm(name: str = "one") -> VirtualMachine:
    return VirtualMachine(id="v1", name=name, org="a", project="b", spec=VmSpec(cpus=1, memory_mib=64), created_at=0.0)


def _event(key: str, revision: int, value: bytes = b"{}", previous: bytes | None = None) -> Event:
    before = None if previous is None else KeyValue(key, previous, 1, 1, 1)
    return Event("put", KeyValue(key, value, revision, revision, 1), before)


@asynccontextmanager
async def _feeding(store: Store, history: int = 100) -> AsyncIterator[Feed]:
    feed = Feed(store, clock=SystemClock(), history=history)
    task = asyncio.create_task(feed.run())
    try:
        yield feed
    finally:
        task.cancel()
        await asyncio.wait((task,))


async def _until(feed: Feed, revision: int) -> None:
    async with asyncio.timeout(5):
        while feed.head[0] < revision:
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("position", [(1, 0), (7, 3), (10**15, WHOLE)])
def test_a_position_is_read_back_as_it_was_spelled(position: tuple[int, int]) -> None:
    assert position_of(spelled(position)) == position


@pytest.mark.parametrize(
    "text", ["", ".", "1.", ".1", "a", "1.b", "-1", "1.2.3", "1 ", "٣", "9" * 30, "1.-1", "1" + "0" * 19]
)
def test_what_is_no_position_is_invalid(text: str) -> None:
    with pytest.raises(Invalid):
        position_of(text)


def test_the_events_of_one_transaction_are_numbered_from_zero() -> None:
    numbering = Numbering()
    positions = [numbering.next(_event("k", revision)) for revision in (3, 3, 3, 5, 6, 6)]
    assert positions == [(3, 0), (3, 1), (3, 2), (5, 0), (6, 0), (6, 1)]


def test_a_resumed_watch_starts_with_the_first_event_of_its_revision() -> None:
    assert start_of((7, 2)) == 7
    assert start_of((7, WHOLE)) == 8
    assert start_of((0, WHOLE)) == 1


def test_keys_of_other_families_are_not_told() -> None:
    assert item_of(_event("/hostler/v1/tokens/abc", 3), (3, 0)) is None
    assert item_of(_event("/CloudChamber/V0.1/users/ann", 3), (3, 0)) is None
    assert item_of(_event("/hostler/v1/audit/d/e", 3), (3, 0)) is None
    assert item_of(_event("/plasmavmc/vms/too/short", 3), (3, 0)) is None
    assert item_of(_event("/plasmavmc/locks/a/b/c", 3), (3, 0)) is None


def test_a_machine_is_told_with_its_tenant() -> None:
    item = item_of(_event(VM.fill(org="a", project="b", vm="c"), 3, _vm().encode()), (3, 1))
    assert item is not None
    assert (item.kind, item.org, item.project) == ("vm", "a", "b")
    assert item.text.startswith(b'id: 3.1\ndata: {"type":"put","kind":"vm","subject":"a/b/c","revision":3,')
    assert item.text.endswith(b"\n\n")


def test_a_renewal_that_changed_nothing_is_not_told() -> None:
    assert item_of(_event("sysvvm/1/1", 9, b'{"a":1}', b'{"a":1}'), (9, 0)) is None
    assert item_of(_event("sysvvm/1/1", 9, b'{"a":2}', b'{"a":1}'), (9, 0)) is not None


@pytest.mark.parametrize("value", [b"", b"\xff", b"[]", b'{"a":\n1}', b"null", b'{"a": "\n"}', b"[" * 5000])
def test_what_somebody_else_wrote_cannot_break_the_stream(value: bytes) -> None:
    item = item_of(_event("sysvvm/1/1", 9, value), (9, 0))
    assert item is not None
    assert item.text.count(b"\n") == 3


async def test_a_feed_tells_what_happened_after_a_position() -> None:
    async with hostler.open_store("memory://") as store, _feeding(store) as feed:
        await _until(feed, 1)
        start = feed.head
        ids = {"org": "a", "project": "b", "vm": "c"}
        handle = VmHandle(id="c", state=MachineState.PENDING, seen_at=0.0)
        revision = (
            await store.txn([], [Put("/other", b"x"), VM.put(_vm(), **ids), HANDLE.put(handle, **ids)])
        ).revision
        await _until(feed, revision)
        items, position = feed.since(start, 100)
        assert [(item.kind, item.position) for item in items] == [("vm", (revision, 1)), ("handle", (revision, 2))]
        assert position == (revision, 2)
        assert [item.kind for item in feed.since((revision, 1), 100)[0]] == ["handle"]
        assert feed.since(position, 100) == ([], position)
        assert len(feed.since(start, 1)[0]) == 1
        assert feed.since(start, 1)[1] == (revision, 1)


async def test_memory_is_bounded_and_what_was_dropped_is_not_claimed() -> None:
    async with hostler.open_store("memory://") as store, _feeding(store, history=10) as feed:
        await _until(feed, 1)
        start = feed.head
        for number in range(50):
            revision = await store.put(VM.fill(org="a", project="b", vm="c"), _vm(str(number)).encode())
            await _until(feed, revision)
        assert not feed.covers(start)
        assert feed.floor is not None
        kept, _ = feed.since(feed.floor, 1000)
        assert 10 <= len(kept) <= 20
        assert kept[-1].position == feed.head
        assert kept[0].position[0] == feed.floor[0] + 1


async def test_history_gives_the_same_numbers_as_the_live_feed() -> None:
    """A position means the same to a reader of the past and to one of the present."""
    async with hostler.open_store("memory://") as store, _feeding(store) as feed:
        await _until(feed, 1)
        begin = feed.head
        ids = {"org": "a", "project": "b", "vm": "c"}
        for number in range(5):
            handle = VmHandle(id="c", state=MachineState.PENDING, detail=str(number), seen_at=0.0)
            await store.txn([], [HANDLE.put(handle, **ids), Put("/x", b""), VM.put(_vm(str(number)), **ids)])
            revision = (
                await store.txn([], [Delete(VM.fill(**ids)), Delete("/x"), Delete(HANDLE.fill(**ids))])
            ).revision
        await _until(feed, revision)
        live = [(item.position, item.kind) for item in feed.since(begin, 1000)[0]]
        numbering, past = Numbering(), []
        async with store.watch("", start_revision=start_of(begin)) as watch:
            async for event in watch:
                position = numbering.next(event)
                item = item_of(event, position)
                if item is not None:
                    past.append((item.position, item.kind))
                if position == feed.head:
                    break
        assert past == live
        assert len(live) == 20


async def test_a_feed_outlives_an_outage_at_its_beginning() -> None:
    class Late:
        """A store that is out of reach at first."""

        def __init__(self, store: Store) -> None:
            self._store, self.fails = store, 3

        def __getattr__(self, name: str) -> object:
            return getattr(self._store, name)

        async def range(self, *args: object, **options: object) -> object:
            self.fails -= 1
            if self.fails >= 0:
                raise Unavailable("store: out of reach")
            return await self._store.range(*args, **options)  # type: ignore[arg-type]

    async with hostler.open_store("memory://") as store, _feeding(Late(store)) as feed:  # type: ignore[arg-type]
        assert feed.floor is None
        revision = await store.put("/x", b"")
        await _until(feed, revision)
        assert feed.floor is not None


class Exchanged:
    """Two stores, one at a time. `cut`: the exchange breaks watches off; otherwise they resume, and hear nothing."""

    def __init__(self, *stores: Store, cut: bool) -> None:
        self._stores, self._cut, self.now = stores, cut, 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._stores[self.now], name)

    @asynccontextmanager
    async def watch(self, prefix: str, *, start_revision: int | None = None) -> AsyncIterator[AsyncIterator[Event]]:
        began = self.now
        async with self._stores[began].watch(prefix, start_revision=start_revision) as watch:

            async def events() -> AsyncIterator[Event]:
                while True:
                    following = asyncio.ensure_future(anext(watch))
                    while not following.done():
                        await asyncio.wait((following,), timeout=0.1)
                        if self._cut and self.now != began:
                            following.cancel()
                            raise Unavailable("watch: it broke off")
                    yield following.result()

            yield events()


@pytest.mark.parametrize("cut", [True, False])
def test_a_feed_begins_anew_where_the_store_was_put_back_to_an_older_state(cut: bool) -> None:
    async def main() -> None:
        clock = VirtualClock()
        async with MemoryStore(clock=clock) as first, MemoryStore(clock=clock) as backup:
            store = Exchanged(first, backup, cut=cut)
            feed = Feed(store, clock=clock, history=100)  # type: ignore[arg-type]
            task = asyncio.create_task(feed.run())
            for number in range(50):
                await first.put(VM.fill(org="a", project="b", vm=f"v{number}"), _vm().encode())
            await asyncio.sleep(1)
            head = feed.head
            store.now = 1
            await asyncio.sleep(20)
            assert feed.head < head
            assert feed.turned_back == 1
            place = feed.head
            await backup.put(VM.fill(org="a", project="b", vm="new"), _vm().encode())
            await asyncio.sleep(20)
            found, _ = feed.since(place, 100)
            assert [item.position for item in found] == [(place[0] + 1, 0)]
            assert feed.turned_back == 1
            task.cancel()
            await asyncio.wait((task,))

    run_virtual(main)


async def test_a_closed_store_ends_the_streams() -> None:
    store = hostler.open_store("memory://")
    async with store, _feeding(store) as feed:
        await _until(feed, 1)
        await store.aclose()
        async with asyncio.timeout(5):
            while not feed.closing:
                await asyncio.sleep(0.001)
