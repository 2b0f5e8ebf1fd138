"""etcd behind a wire that breaks: nothing is lost silently, nothing is done twice, nobody waits for ever."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from dose import dose
from harness import pace

from hostler.drivers.store.etcd import EtcdStore
from hostler.drivers.store.etcd import rpc_pb2 as pb
from hostler.errors import Closed, Compacted, Lagged, LeaseGone, TooLarge, Unavailable, Uncertain
from hostler.ports.store import Delete, Get, Put, Version
from hostler.testing.proxy import FaultyProxy
from hostler.testing.servers import EtcdServer, free_ports
from hostler.wiring import open_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from hostler.errors import HostlerError
    from hostler.ports.store import Event, Store, Watch

WITHIN = 30.0
"""Seconds for what takes a moment, on a machine that is busy."""
HASTY = 1.0
"""The deadline of calls that are to reach it."""


@pytest.fixture(scope="module")
def server() -> Iterator[EtcdServer]:
    with EtcdServer() as started:
        yield started


@pytest.fixture
async def direct(server: EtcdServer) -> AsyncIterator[Store]:
    """The store with nothing in between."""
    async with open_store(server.url) as store:
        await store.txn([], [Delete("nothing")])
        yield store


@pytest.fixture
async def proxy(server: EtcdServer) -> AsyncIterator[FaultyProxy]:
    async with FaultyProxy(server.endpoints[0]) as started:
        yield started


@pytest.fixture
async def store(proxy: FaultyProxy) -> AsyncIterator[EtcdStore]:
    """The store behind the proxy, connected, and patient with a machine that is busy."""
    async with EtcdStore([proxy.endpoint], timeout=WITHIN) as opened:
        await opened.get("connected")
        yield opened


@pytest.fixture
async def hasty(proxy: FaultyProxy) -> AsyncIterator[EtcdStore]:
    """The same with a short deadline, for what lasts until then."""
    async with EtcdStore([proxy.endpoint], timeout=HASTY) as opened:
        while True:
            with suppress(Unavailable):
                await opened.get("connected")
                break
        yield opened


async def _reached(proxy: FaultyProxy, asked: int) -> None:
    """Until so many bytes of requests have come to the proxy."""
    async with asyncio.timeout(WITHIN):
        while proxy.asked < asked:
            await asyncio.sleep(0.01)


# Lost answers


async def test_a_write_whose_answer_was_lost_is_uncertain_and_was_made_once(
    hasty: EtcdStore, proxy: FaultyProxy, direct: Store
) -> None:
    proxy.swallow_answers = True
    writes = [
        hasty.put("lost/put", b"1"),
        hasty.txn([Version("lost/txn") == 0], [Put("lost/txn", b"1")], [Put("lost/txn", b"twice")]),
        hasty.delete("lost/never"),
    ]
    outcomes = await asyncio.gather(*writes, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [Uncertain] * 3
    for key in ("lost/put", "lost/txn"):
        found = await direct.get(key)
        assert found is not None
        assert (found.value, found.version) == (b"1", 1)


async def test_a_write_that_was_cut_off_on_its_way_is_uncertain(
    store: EtcdStore, proxy: FaultyProxy, direct: Store
) -> None:
    proxy.stalled = True
    write = asyncio.create_task(store.put("cut/put", b"1" * 10_000))
    await _reached(proxy, proxy.asked + 10_000)
    proxy.cut()
    with pytest.raises(Uncertain):
        await write
    proxy.heal()
    assert await direct.get("cut/put") is None
    await store.put("cut/put", b"2")


async def test_a_write_is_sent_once_even_when_there_is_time_to_send_it_again(proxy: FaultyProxy, direct: Store) -> None:
    async with EtcdStore([proxy.endpoint, proxy.endpoint], timeout=WITHIN) as store:
        await store.get("connected")
        proxy.swallow_answers = True
        async with direct.watch("once/") as watch:
            writes = [
                asyncio.create_task(store.put("once/put", b"")),
                asyncio.create_task(store.txn([], [Put("once/txn", b"")])),
            ]
            assert {(await anext(watch)).kv.key for _ in writes} == {"once/put", "once/txn"}
            proxy.cut()
            proxy.heal()
            outcomes = await asyncio.gather(*writes, return_exceptions=True)
            assert [type(outcome) for outcome in outcomes] == [Uncertain] * 2
            await store.put("once/next", b"")
            assert (await anext(watch)).kv.key == "once/next"


async def test_a_read_whose_answer_was_lost_is_asked_again(store: EtcdStore, proxy: FaultyProxy, direct: Store) -> None:
    await direct.put("reread", b"here")
    proxy.stalled = True
    reads = [asyncio.create_task(store.get("reread")), asyncio.create_task(store.range("reread"))]
    reading = asyncio.create_task(store.txn([], [Get("reread")]))
    await _reached(proxy, proxy.asked + 1)
    proxy.cut()
    proxy.heal()
    found, page = await asyncio.gather(*reads)
    assert found is not None
    assert page.items == (found,)
    assert (await reading).responses == (found,)


async def test_a_grant_whose_answer_was_lost_is_repeated_and_there_is_one_lease(
    store: EtcdStore, proxy: FaultyProxy, server: EtcdServer
) -> None:
    before = await _leases(server)
    proxy.swallow_answers = True
    granting = asyncio.create_task(store.grant(200))
    while await _leases(server) == before:
        assert not granting.done()
    proxy.cut()
    proxy.heal()
    lease = await granting
    assert lease.ttl == 200
    assert await lease.remaining() > 100
    assert await _leases(server) - before == {f"{lease.id:016x}"}
    await lease.revoke()


async def test_a_revocation_whose_answer_was_lost_is_repeated(store: EtcdStore, proxy: FaultyProxy) -> None:
    lease = await store.grant(200)
    proxy.swallow_answers = True
    revoking = asyncio.create_task(lease.revoke())
    await _reached(proxy, proxy.asked + 1)
    proxy.cut()
    proxy.heal()
    await revoking
    assert await lease.remaining() == 0.0


async def _leases(server: EtcdServer) -> set[str]:
    with ThreadPoolExecutor(1) as pool:
        listed = await asyncio.get_running_loop().run_in_executor(pool, server.ctl, "lease", "list")
    return set(listed.split()[3:])


# Out of reach


@pytest.mark.parametrize("verb", ["get", "range", "put", "txn", "delete", "grant", "watch", "status", "compact"])
async def test_a_store_that_nobody_listens_at_is_unavailable_within_the_deadline(verb: str) -> None:
    [port] = free_ports(1)
    async with EtcdStore([f"127.0.0.1:{port}"], timeout=0.4) as store:
        calls = {
            "get": lambda: store.get("a"),
            "range": lambda: store.range("a"),
            "put": lambda: store.put("a", b""),
            "txn": lambda: store.txn([], [Put("a", b"")]),
            "delete": lambda: store.delete("a"),
            "grant": lambda: store.grant(5),
            "watch": lambda: store.watch("a").__aenter__(),
            "status": store.status,
            "compact": lambda: store.compact(1),
        }
        with pace.within(0.8, "the refusal"), pytest.raises(Unavailable):
            await calls[verb]()


async def test_a_host_that_accepts_and_says_nothing_is_unavailable_and_nothing_is_written(
    proxy: FaultyProxy, direct: Store
) -> None:
    proxy.stalled = True
    async with EtcdStore([proxy.endpoint], timeout=0.4) as store:
        with pytest.raises(Unavailable):
            await store.put("mute", b"1")
    proxy.heal()
    assert await direct.get("mute") is None


async def test_a_mute_host_does_not_eat_the_deadline_while_another_is_alive(
    proxy: FaultyProxy, server: EtcdServer
) -> None:
    proxy.stalled = True
    async with EtcdStore([proxy.endpoint, server.endpoints[0]], timeout=60.0) as store:
        with pace.within(1.0, "a write"):
            await store.put("beside", b"1")


async def test_a_read_that_is_swallowed_is_answered_by_another_endpoint_within_its_deadline(
    proxy: FaultyProxy, server: EtcdServer
) -> None:
    async with EtcdStore([proxy.endpoint, server.endpoints[0]], timeout=6.0) as store:
        await store.put("elsewhere", b"1")
        proxy.stalled = True
        assert await store.get("elsewhere") is not None
        await store.put("elsewhere", b"2")  # Uncertain, if the endpoint that had just failed were asked again


async def test_calls_wait_out_a_short_absence(store: EtcdStore, proxy: FaultyProxy) -> None:
    proxy.refusing = True
    proxy.cut()
    writing = asyncio.create_task(store.put("patient", b"1"))
    await asyncio.sleep(0.3)
    proxy.heal()
    with suppress(Uncertain):  # it was on its way when the wire was cut
        await writing
    await store.put("patient", b"2")


# Watches


async def test_a_cut_while_catching_up_loses_no_event_and_repeats_none(
    store: EtcdStore, proxy: FaultyProxy, direct: Store
) -> None:
    count = dose(test=5_000, full=50_000)
    start = await _fill(direct, "catch/", count)
    proxy.cut_after = 120_000
    seen: list[int] = []
    cuts = 0
    async with store.watch("catch/", start_revision=start) as watch:
        async for event in watch:
            seen.append(int(event.kv.value))
            if proxy.cut_after is None and cuts < 4:
                cuts += 1
                proxy.cut_after = 120_000
            if len(seen) == count:
                break
        assert cuts >= 2
        assert seen == list(range(count))
        await direct.put("catch/last", b"-1")
        assert (await anext(watch)).kv.key == "catch/last"


async def test_a_watch_goes_on_after_its_connection_was_cut_while_others_wrote(
    store: EtcdStore, proxy: FaultyProxy, direct: Store
) -> None:
    async with store.watch("gap/") as watch:
        for number in range(5):
            proxy.refusing = True
            proxy.cut()
            await direct.put("gap/a", str(number).encode())
            await direct.txn([], [Put("gap/b", b""), Put("gap/c", b"")])
            proxy.heal()
            events = [await anext(watch) for _ in range(3)]
            assert [event.kv.key for event in events] == ["gap/a", "gap/b", "gap/c"]
            assert events[0].kv.value == str(number).encode()
            assert events[1].kv.mod_revision == events[2].kv.mod_revision


async def test_a_watch_survives_a_restart_of_the_server() -> None:
    with EtcdServer() as own:
        async with open_store(own.url) as store, store.watch("r/") as watch:
            await store.put("r/a", b"before")
            own.kill()
            own.restart()
            await store.put("r/a", b"after")
            assert [(await anext(watch)).kv.value for _ in range(2)] == [b"before", b"after"]


async def test_a_watch_whose_next_event_was_compacted_while_it_was_away_is_told(
    store: EtcdStore, proxy: FaultyProxy, direct: Store
) -> None:
    async with store.watch("gone/") as watch:
        await direct.put("gone/a", b"seen")
        assert (await anext(watch)).kv.value == b"seen"
        proxy.refusing = True
        proxy.cut()
        for _ in range(5):
            revision = await direct.put("gone/a", b"missed")
        await direct.compact(revision)
        proxy.heal()
        with pytest.raises(Compacted) as caught:
            await asyncio.wait_for(anext(watch), WITHIN)
        assert caught.value.revision == revision


async def test_reading_and_watching_before_a_compaction_names_its_revision(direct: Store) -> None:
    first = await direct.put("c", b"1")
    last = await direct.put("c", b"2")
    await direct.compact(last)
    for attempt in (
        direct.get("c", revision=first),
        direct.range("c", revision=first),
        direct.watch("c", start_revision=first).__aenter__(),
        direct.compact(first),
    ):
        with pytest.raises(Compacted) as caught:
            await attempt
        assert caught.value.revision == last
    assert (await direct.status()).compact_revision == last


def _unforeseen(*_: object) -> None:
    raise ZeroDivisionError("unforeseen")


@pytest.mark.parametrize("place", ["_receive", "_greet", "metadata", "write"])
async def test_an_error_that_nobody_foresaw_ends_the_watch_and_the_stream_goes_on(
    store: EtcdStore, proxy: FaultyProxy, direct: Store, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    stream = store._watches._stream
    async with store.watch("odd/") as watch:
        with monkeypatch.context() as broken:
            owner = {"metadata": stream._cluster, "write": stream._call}.get(place, stream)
            broken.setattr(owner, place, _unforeseen)
            if place == "_receive":
                await direct.put("odd/a", b"1")
            elif place == "write":
                for _ in range(2):  # the writer holds on to the method while it waits for the first
                    stream.send(pb.WatchRequest())
            else:
                proxy.cut()
            with pytest.raises(Unavailable, match="unforeseen"):
                await asyncio.wait_for(anext(watch), WITHIN)
    async with store.watch("odd/") as watch:
        await store.put("odd/a", b"2")
        assert (await asyncio.wait_for(anext(watch), WITHIN)).kv.value == b"2"


async def test_an_error_that_nobody_foresaw_ends_a_keep_alive_and_the_next_one_works(
    store: EtcdStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = await store.grant(30)
    await lease.keep_alive()
    with monkeypatch.context() as broken:
        broken.setattr(store._keep_alives._stream, "_receive", _unforeseen)
        with pytest.raises(Uncertain, match="unforeseen"):
            await lease.keep_alive()
    await lease.keep_alive()
    await lease.revoke()


async def test_a_thousand_watches_share_one_connection(proxy: FaultyProxy, direct: Store) -> None:
    async with EtcdStore([proxy.endpoint], timeout=60) as store:  # patience, for one slow moment would be a reconnect
        watches = [store.watch(f"many/{number}/") for number in range(1_000)]
        await asyncio.gather(*(watch.__aenter__() for watch in watches))
        assert proxy.accepted == 1
        proxy.cut()
        await asyncio.gather(*(direct.put(f"many/{number}/key", b"") for number in range(1_000)))
        events = await asyncio.gather(*(anext(watch) for watch in watches))
        assert [event.kv.key for event in events] == [f"many/{number}/key" for number in range(1_000)]
        await asyncio.gather(*(watch.__aexit__(None, None, None) for watch in watches))
        assert proxy.accepted == 2


async def test_a_slow_reader_catches_up_on_more_than_its_backlog(server: EtcdServer) -> None:
    async with EtcdStore(server.endpoints, backlog=500) as store:
        start = await _fill(store, "slow/", 3_000)
        async with store.watch("slow/", start_revision=start) as watch:
            seen = [int((await anext(watch)).kv.value)]
            await store.get("let the server send all it wants")
            await asyncio.sleep(0.3)
            seen += [int((await anext(watch)).kv.value) for _ in range(2_999)]
        assert seen == list(range(3_000))


async def test_a_reader_that_is_too_slow_for_live_events_is_told_where_it_stood(server: EtcdServer) -> None:
    async with EtcdStore(server.endpoints, backlog=50) as store:
        async with store.watch("lag/") as watch:
            await _fill(store, "lag/", 200)
            seen: list[Event] = []
            with pytest.raises(Lagged) as caught:
                await _collect(watch, seen)
            assert 50 <= len(seen) < 200
        async with store.watch("lag/", start_revision=caught.value.revision) as watch:
            rest = [await anext(watch) for _ in range(200 - len(seen))]
        assert [int(event.kv.value) for event in seen + rest] == list(range(200))


async def test_a_transaction_of_many_large_events_arrives_whole(direct: Store) -> None:
    value = b"x" * 11_000
    async with direct.watch("large/") as watch:
        for _ in range(3):
            await direct.txn([], [Put(f"large/{i:03}", value) for i in range(128)])
        for _ in range(3):
            events = [await anext(watch) for _ in range(128)]
            assert len({event.kv.mod_revision for event in events}) == 1
    start = events[0].kv.mod_revision - 2
    async with direct.watch("large/", start_revision=start) as watch:
        events = [await anext(watch) for _ in range(3 * 128)]
        assert [event.kv.mod_revision for event in events] == sorted(event.kv.mod_revision for event in events)


# Leases


async def test_a_lease_is_kept_alive_over_broken_connections(
    store: EtcdStore, proxy: FaultyProxy, direct: Store
) -> None:
    lease = await store.grant(6)  # a machine that is busy may stand still for a while
    await store.put("kept", b"", lease=lease)
    end = time.monotonic() + 1.5 * lease.ttl
    while time.monotonic() < end:
        await lease.keep_alive()
        proxy.cut()
        await asyncio.gather(lease.keep_alive(), lease.keep_alive())
        await asyncio.sleep(0.2)
    assert await direct.get("kept") is not None
    await lease.revoke()
    assert await direct.get("kept") is None
    with pytest.raises(LeaseGone):
        await lease.keep_alive()


async def test_a_keep_alive_without_an_answer_ends_with_its_deadline(hasty: EtcdStore, proxy: FaultyProxy) -> None:
    lease = await hasty.grant(100)
    await lease.keep_alive()
    proxy.stalled = True
    with pytest.raises(Uncertain):
        await lease.keep_alive()
    with pace.within(HASTY + 0.5, "the end"), pytest.raises((Uncertain, Unavailable)):
        await lease.keep_alive()
    proxy.heal()
    while True:
        with suppress(Uncertain, Unavailable):
            await lease.keep_alive()
            await lease.revoke()
            break


# Closing


async def test_closing_ends_what_runs_and_leaves_no_task(proxy: FaultyProxy) -> None:
    before = asyncio.all_tasks()
    store = await EtcdStore([proxy.endpoint], timeout=WITHIN).__aenter__()
    lease = await store.grant(30)
    await lease.keep_alive()
    watch = await store.watch("w/").__aenter__()
    reading = asyncio.create_task(_next(watch))
    proxy.stalled = True
    running = [
        reading,
        asyncio.create_task(store.put("w/a", b"")),
        asyncio.create_task(store.get("w/a")),
        asyncio.create_task(lease.keep_alive()),
        asyncio.create_task(_enter(store.watch("w/"))),
    ]
    await asyncio.sleep(0.1)
    await store.aclose()
    outcomes = await asyncio.wait_for(asyncio.gather(*running, return_exceptions=True), WITHIN / 2)
    assert [type(outcome) for outcome in outcomes] == [Closed, Uncertain, Closed, Uncertain, Closed]
    with pytest.raises(Closed):
        await store.get("w/a")
    await store.aclose()
    proxy.stalled = False
    own = asyncio.all_tasks() - before
    assert [task for task in own if "etcd" in task.get_name()] == []
    async with asyncio.timeout(WITHIN):
        while proxy.connections:
            await asyncio.sleep(0.01)


async def test_cancelling_a_call_is_a_cancellation_and_the_store_goes_on(store: EtcdStore, proxy: FaultyProxy) -> None:
    proxy.stalled = True
    calls = [asyncio.create_task(store.put("c/a", b"")), asyncio.create_task(store.get("c/a"))]
    await asyncio.sleep(0.05)
    for call in calls:
        call.cancel()
    assert [type(o) for o in await asyncio.gather(*calls, return_exceptions=True)] == [asyncio.CancelledError] * 2
    proxy.stalled = False
    await store.put("c/a", b"")


def test_stores_work_in_one_event_loop_after_another_and_many_at_once(server: EtcdServer) -> None:
    async def use() -> int:
        stores = [open_store(server.url) for _ in range(20)]
        opened = [await store.__aenter__() for store in stores]
        revisions = await asyncio.gather(*(store.put(f"many/{n}", b"") for n, store in enumerate(opened)))
        async with opened[0].watch("many/") as watch:
            await opened[1].put("many/x", b"")
            await anext(watch)
        for store in opened:
            await store.aclose()
        return len(set(revisions))

    assert [asyncio.run(use()) for _ in range(3)] == [20, 20, 20]


async def test_a_key_that_is_not_utf8_can_be_read_and_paged_over(direct: Store, server: EtcdServer) -> None:
    from bench.bare_etcd import BareEtcd

    async with BareEtcd(server.endpoints[0]) as bare, direct.watch("foreign/") as watch:
        await bare.put(b"foreign/\xff", b"1")
        await bare.put(b"foreign/\xff\xfe", b"2")
        page = await direct.range("foreign/", limit=1)
        assert page.more
        rest = await direct.range("foreign/", after=page.items[0].key, revision=page.revision)
        assert [kv.value for kv in (*page.items, *rest.items)] == [b"1", b"2"]
        assert (await anext(watch)).kv.key == page.items[0].key
    assert await direct.delete_prefix("foreign/") == 2


async def _fill(store: Store, prefix: str, count: int) -> int:
    """Put the numbers below `count` in order, a revision each; the first revision."""
    first = await store.put(f"{prefix}{0:06}", b"0")
    for number in range(1, count):
        await store.put(f"{prefix}{number:06}", f"{number:0100}".encode())
    return first


async def _collect(watch: Watch, seen: list[Event]) -> None:
    while True:
        seen.append(await asyncio.wait_for(anext(watch), WITHIN))


async def _next(watch: Watch) -> Event:
    return await anext(watch)


async def _enter(watch: Watch) -> None:
    await watch.__aenter__()


# Limits


async def test_a_full_database_is_told_with_what_to_do_and_loses_nothing() -> None:
    with EtcdServer(arguments=["--quota-backend-bytes", str(2 * 1024 * 1024)]) as own:
        async with open_store(own.url_of(own.endpoints, quota_mib="2")) as store:
            errors: list[HostlerError] = []
            written = 0
            while len(errors) < 3:
                try:
                    await store.put(f"full/{written:04}", b"x" * 100_000)
                    written += 1
                except (Unavailable, Uncertain) as error:
                    errors.append(error)
                    await store.get("a read in between proves nothing")
            # The one that crosses the limit may have been carried out; those after it were not.
            assert [type(error) for error in errors] == [Uncertain, Unavailable, Unavailable]
            assert all("etcd's database is full (" in str(error) and " of 2.0 MiB)" in str(error) for error in errors)
            assert all(str(error).endswith("; run hostler store repair") for error in errors)
            assert isinstance(errors[0], Uncertain)
            assert errors[0].answered
            assert (await store.status()).alarms == ("NOSPACE",)
            page = await store.range("full/", keys_only=True)
            assert written <= len(page.items) <= written + 1
            with pytest.raises(Unavailable, match="hostler store repair"):
                await store.grant(5)
            assert "NOSPACE" in (await store.status()).details["errors"]
            assert await store.delete_prefix("full/") == len(page.items)
            await store.compact(await _revision(store))
            own.ctl("defrag")
            own.ctl("alarm", "disarm")
            await store.put("full/again", b"there is room")


async def test_what_the_server_finds_too_large_is_refused_and_not_written() -> None:
    with EtcdServer(arguments=["--max-request-bytes", "10000", "--max-txn-ops", "4"]) as own:
        async with open_store(own.url) as store:
            with pytest.raises(TooLarge):
                await store.put("big", b"x" * 11_000)
            with pytest.raises(TooLarge):
                await store.put("big", b"x" * 1_500_000)
            with pytest.raises(TooLarge):
                await store.txn([], [Put(f"k{n}", b"") for n in range(5)])
            assert (await store.range("")).items == ()


async def _revision(store: Store) -> int:
    return (await store.range("", limit=1)).revision
