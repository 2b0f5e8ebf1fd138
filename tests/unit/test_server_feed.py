"""Positions of events, and the feed that all streams read from."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

import hostler
from hostler.drivers.store.memory import MemoryStore
from hostler.entry.server.feed import WHOLE, Feed, Numbering, event_id, item_of, position_of, revision_now, start_of
from hostler.errors import Invalid, Unavailable
from hostler.keys.cache import Cache
from hostler.keys.families import ALIVE, HANDLE, VM
from hostler.keys.lab import LAB
from hostler.kit.clock import SystemClock
from hostler.kit.virtual_loop import VirtualClock, run_virtual
from hostler.model.lab import LabEvent, LabNews, LabUser
from hostler.model.vm import MachineState, VirtualMachine, VmHandle, VmSpec
from hostler.ports.store import Delete, Event, KeyValue, Put, Store


def _vm(name: str = "one") -> VirtualMachine:
    return VirtualMachine(id="v1", name=name, org="a", project="b", spec=VmSpec(cpus=1, memory_mib=64), created_at=0.0)


def _event(key: str, revision: int, value: bytes = b"{}", previous: bytes | None = None) -> Event:
    before = None if previous is None else KeyValue(key, previous, 1, 1, 1)
    return Event("put", KeyValue(key, value, revision, revision, 1), before)


@asynccontextmanager
async def _feeding(store: Store, history: int = 100, *mirrors: Cache[Any]) -> AsyncIterator[Feed]:
    feed = Feed(store, clock=SystemClock(), history=history, mirrors=mirrors)
    task = asyncio.create_task(feed.run())
    try:
        yield feed
    finally:
        task.cancel()
        await asyncio.wait((task,))


async def _until(feed: Feed, revision: int) -> None:
    async with asyncio.timeout(30):
        while feed.head[0] < revision:
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("position", [(1, 0), (7, 3), (10**15, WHOLE)])
def test_a_position_is_read_back_as_it_was_spelled(position: tuple[int, int]) -> None:
    assert position_of(event_id(position)) == position


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


def test_slices_are_told_in_short_and_what_they_come_of_as_it_stands() -> None:
    value = (
        b'{"state":"ACTIVE","timestamp":5,"instances":{"1":{"state":"ACTIVE"},"3":{"state":"LOAD"}},"methods":["a"]}'
    )
    item = item_of(_event("slices/n1/org:a:1", 3, value), (3, 0))
    assert item is not None
    assert (item.kind, item.org) == ("slice", None)
    told = msgspec.json.decode(item.text.split(b"data: ")[1])
    assert told["subject"] == "n1/org:a:1"
    assert told["record"] == {"state": "ACTIVE", "timestamp": 5, "instances": {"ACTIVE": 1, "LOAD": 1}}
    for value in (b'{"instances":[1]}', b'{"instances":{"1":2}}', b"[]"):
        assert item_of(_event("slices/n1/org:a:1", 3, value), (3, 0)) is not None
    kinds = {
        "blueprints/shop": "blueprint",
        "/hostler/v1/deployments/org:a": "deployment",
        "endpoints/org:a:1/sum:3": "endpoint",
    }
    for key, kind in kinds.items():
        item = item_of(_event(key, 3, b'{"any": 1}'), (3, 0))
        assert item is not None
        assert item.kind == kind
        assert b'"record":{"any":1}' in item.text


ROOT = "/CloudChamber/V0.1"


def test_the_inventory_is_told_to_everybody_by_the_names_that_people_know() -> None:
    told = {
        "/hostler/v1/regions/eu": ("region", "eu"),
        "/hostler/v1/zones/eu/eu-1": ("zone", "eu/eu-1"),
        f"{ROOT}/racks/r1": ("rack", "r1"),
        f"{ROOT}/rack/r1/blades/b3": ("blade", "r1/b3"),
        f"{ROOT}/rack/r1/pdu": ("pdu", "r1/main"),
        f"{ROOT}/rack/r1/pdus/2": ("pdu", "r1/main"),
        f"{ROOT}/rack/r1/tor": ("tor", "r1/main"),
        f"{ROOT}/rack/r1/tors/2": ("tor", "r1/main"),
    }
    for key, expected in told.items():
        item = item_of(_event(key, 3, b'{"name":"Main","enabled":false}'), (3, 0))
        assert item is not None, key
        view = msgspec.json.decode(item.text.split(b"data: ")[1])
        assert (view["kind"], view["subject"], item.org, item.project) == (*expected, None, None)
        assert view["record"]["enabled"] is False
    gone = Event("delete", KeyValue(f"{ROOT}/rack/r1/pdu", b"", 1, 4, 1), KeyValue("", b'{"name":"P1"}', 1, 1, 1))
    item = item_of(gone, (4, 0))
    assert item is not None
    assert b'"subject":"r1/p1"' in item.text
    item = item_of(_event(f"{ROOT}/rack/r1/pdu", 3, b"nonsense"), (3, 0))
    assert item is not None
    assert b'"subject":"r1"' in item.text


def test_a_workload_is_told_to_those_who_see_its_machines() -> None:
    key = f"{ROOT}/workloads/web"
    mine = b'{"name":"web","org":"acme","project":"shop","instances":2,"spec":{"cpus":1,"memory_mib":64}}'
    gone = Event("delete", KeyValue(key, b"", 1, 4, 1), KeyValue(key, mine, 1, 1, 1))
    for event in (_event(key, 3, mine), gone):
        item = item_of(event, (3, 0))
        assert item is not None
        assert (item.kind, item.org, item.project) == ("workload", "acme", "shop")
    item = item_of(_event(key, 3, mine.replace(b'"org":"acme","project":"shop",', b"")), (3, 0))
    assert item is not None
    assert (item.org, item.project) == ("workloads", "web")
    item = item_of(_event(key, 3, b"nonsense"), (3, 0))
    assert item is not None
    assert (item.org, item.project) == ("", "")


def test_a_lab_is_told_with_what_was_said_among_its_news() -> None:
    record = LabUser(
        user="ada",
        news=tuple(LabNews(number=number, at=1.0, event=LabEvent.STARTED) for number in (1, 3)),
        messages=(LabNews(number=2, at=1.0, event=LabEvent.MESSAGE, reason="hi"),),
        changed_at=1.0,
    )
    item = item_of(_event(LAB.fill(user="ada"), 7, LAB.encode(record)), (7, 0))
    assert item is not None
    told = msgspec.json.decode(item.text.split(b"data: ")[1])["record"]
    assert [(one["number"], one["event"]) for one in told["news"]] == [(1, "started"), (2, "message"), (3, "started")]
    assert "messages" not in told
    for odd in (b'{"messages":5}', b'{"news":[1],"messages":[{}]}', b'{"news":null}'):
        item = item_of(_event(LAB.fill(user="ada"), 7, odd), (7, 0))
        assert item is not None
        assert msgspec.json.decode(item.text.split(b"data: ")[1])["record"] == msgspec.json.decode(odd)


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
        with pytest.raises(Unavailable, match="has not been read yet"):
            await feed.wait_until_started(0)
        await feed.wait_until_started(30)
        assert feed.floor is not None
        await _until(feed, await store.put("/x", b""))


async def test_who_waits_for_a_feed_that_closes_is_refused() -> None:
    feed = Feed(MemoryStore(), clock=SystemClock(), history=1)  # it never runs
    waiting = asyncio.create_task(feed.wait_until_started(30))
    await asyncio.sleep(0)
    feed.close()
    with pytest.raises(Unavailable, match="is closing"):
        await waiting


class Exchanged:
    """Two stores, one at a time. `cut`: the exchange breaks watches off; otherwise they resume, and hear nothing."""

    def __init__(self, *stores: Store, cut: bool) -> None:
        self._stores, self._cut, self.now = stores, cut, 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._stores[self.now], name)

    @asynccontextmanager
    async def watch(
        self, prefix: str, *, start_revision: int | None = None, previous: bool = True
    ) -> AsyncIterator[AsyncIterator[Event]]:
        began = self.now
        async with self._stores[began].watch(prefix, start_revision=start_revision, previous=previous) as watch:

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
        async with asyncio.timeout(30):
            while not feed.closing:
                await asyncio.sleep(0.001)


class WithoutBefore(MemoryStore):
    """As an engine that leaves out what stood there before, where it may."""

    def watch(self, prefix: str, *, start_revision: int | None = None, previous: bool = True) -> Any:
        return _Bare(super().watch(prefix, start_revision=start_revision), previous=previous)


class _Bare:
    def __init__(self, watch: Any, *, previous: bool) -> None:
        self._watch, self._previous = watch, previous

    async def __aenter__(self) -> AsyncIterator[Event]:
        inner = await self._watch.__aenter__()

        async def events() -> AsyncIterator[Event]:
            async for event in inner:
                yield event if self._previous else msgspec.structs.replace(event, previous=None)

        return events()

    async def __aexit__(self, *of: object) -> None:
        await self._watch.__aexit__(*of)


async def test_the_feed_remembers_what_an_engine_need_not_tell_it() -> None:
    mine = b'{"name":"web","org":"acme","project":"shop","instances":2,"spec":{"cpus":1,"memory_mib":64}}'
    old, new, pdu, alive = (
        f"{ROOT}/workloads/old",
        f"{ROOT}/workloads/new",
        f"{ROOT}/rack/r1/pdu",
        ALIVE.fill(node="n1"),
    )
    async with WithoutBefore() as store:
        await store.put(old, mine)  # there before the feed is
        await store.put(pdu, b'{"name":"pdu1"}')
        async with _feeding(store) as feed:
            await _until(feed, await revision_now(store))
            place = feed.head
            await store.put(alive, b"{}")
            await store.put(alive, b"{}")  # a renewal
            await store.put(new, mine)
            await store.delete(new)
            await store.delete(old)
            await store.delete(pdu)
            await store.put(alive, b"{}")
            await store.delete(alive)
            await store.put(alive, b"{}")
            await _until(feed, await revision_now(store))
            found, _ = feed.since(place, 100)
    told = [(item.kind, json.loads(item.text.split(b"data: ")[1])["type"], item.org, item.project) for item in found]
    assert told == [
        ("alive", "put", None, None),
        ("workload", "put", "acme", "shop"),
        ("workload", "delete", "acme", "shop"),
        ("workload", "delete", "acme", "shop"),
        ("pdu", "delete", None, None),
        ("alive", "delete", None, None),
        ("alive", "put", None, None),
    ]
    assert json.loads(found[4].text.split(b"data: ")[1])["subject"] == "r1/pdu1"


async def test_a_change_is_published_once_what_requests_are_answered_from_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hostler.entry.server.feed.MIRRORED_WITHIN", 30.0)
    async with MemoryStore() as store:
        mirror = Cache(store, VM, clock=SystemClock())
        await mirror.refresh()
        async with _feeding(store, 100, mirror) as feed:
            await _until(feed, await revision_now(store))
            revision = await store.put(VM.fill(org="a", project="b", vm="v1"), VM.encode(_vm()))
            await asyncio.sleep(0.05)
            assert feed.head[0] < revision, "a client that heard of it would read the state before it"
            await mirror.refresh()
            await _until(feed, revision)
            assert mirror.get(org="a", project="b", vm="v1") is not None


async def test_a_mirror_that_stands_still_holds_changes_back_once_and_not_each() -> None:
    async with MemoryStore() as store:
        mirror = Cache(store, VM, clock=SystemClock())
        await mirror.refresh()
        async with _feeding(store, 100, mirror) as feed:
            await _until(feed, await revision_now(store))
            for name in map(str, range(40)):
                revision = await store.put(VM.fill(org="a", project="b", vm=name), VM.encode(_vm(name)))
            async with asyncio.timeout(20):  # each by itself would be held back for a second
                await _until(feed, revision)
