"""Claims: transactions compare and write atomically, also among concurrent clients, and refuse what etcd refuses."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from hostler.errors import Invalid, TooLarge
from hostler.ports.store import (
    MAX_OPERATIONS,
    Comparison,
    CreateRevision,
    Delete,
    DeletePrefix,
    Get,
    KeyValue,
    ModRevision,
    Operation,
    Put,
    Value,
    Version,
)
from hostler.testing.store.claim import Trial, claim, refused

if TYPE_CHECKING:
    from hostler.ports.store import Store


@claim()
async def a_transaction_does_then_if_every_comparison_holds_and_otherwise_if_not(t: Trial) -> None:
    a, b, mark = t.key("a"), t.key("b"), t.key("mark")
    await t.store.put(a, b"1")
    yes, no = Version(a) == 1, Version(b) > 0
    for when, expected in (([], True), ([yes], True), ([no], False), ([yes, no], False), ([no, yes], False)):
        result = await t.store.txn(when, [Put(mark, b"then")], [Put(mark, b"otherwise")])
        assert result.succeeded is expected
        assert (await t.got(mark)).value == (b"then" if expected else b"otherwise")


@claim()
async def every_comparison_holds_exactly_when_it_is_true(t: Trial) -> None:
    key = t.key("a")
    created = await t.store.put(key, b"k")
    await t.store.put(t.key("other"), b"")
    changed = await t.store.put(key, b"m")
    for actual, make in ((2, Version), (created, CreateRevision), (changed, ModRevision)):
        for operand in (actual - 1, actual, actual + 1, 0, -1, 2**63 - 1, -(2**63)):
            side = make(key)
            await _holds(t, side == operand, actual == operand)
            await _holds(t, side != operand, actual != operand)
            await _holds(t, side < operand, actual < operand)
            await _holds(t, side > operand, actual > operand)
    for value in (b"", b"l", b"m", b"m\0", b"n", b"\xff", b"M"):
        side_value = Value(key)
        await _holds(t, side_value == value, value == b"m")
        await _holds(t, side_value != value, value != b"m")
        await _holds(t, side_value < value, value > b"m")
        await _holds(t, side_value > value, value < b"m")


@claim()
async def an_absent_key_has_version_and_revisions_zero_and_no_value(t: Trial) -> None:
    deleted = t.key("deleted")
    await t.store.put(deleted, b"1")
    await t.store.delete(deleted)
    for key in (t.key("never"), deleted):
        for make in (Version, CreateRevision, ModRevision):
            for operand in (-1, 0, 1):
                side = make(key)
                await _holds(t, side == operand, operand == 0)
                await _holds(t, side != operand, operand != 0)
                await _holds(t, side < operand, operand > 0)
                await _holds(t, side > operand, operand < 0)
        for value in (b"", b"1", b"\xff"):
            for comparison in (Value(key) == value, Value(key) != value, Value(key) < value, Value(key) > value):
                await _holds(t, comparison, expected=False)


async def _holds(t: Trial, comparison: Comparison, expected: bool) -> None:
    result = await t.store.txn([comparison], [])
    assert result.succeeded is expected, f"{comparison} should be {expected}"


@claim()
async def each_operation_has_its_response(t: Trial) -> None:
    a, gone = t.key("a"), t.key("gone")
    await t.store.put(gone, b"")
    for name in ("p/1", "p/2", "p/3"):
        await t.store.put(t.key(name), b"")
    then: list[Operation] = [
        Put(a, b"1"),
        Delete(gone),
        Delete(t.key("never")),
        DeletePrefix(t.key("p/")),
        DeletePrefix(t.key("q/")),
    ]
    result = await t.store.txn([], [*then, Get(t.key("never"))])
    assert result.responses == (None, True, False, 3, 0, None)
    assert [type(response) for response in result.responses[1:5]] == [bool, bool, int, int]
    failed = await t.store.txn([Version(a) == 0], then, [Get(a)])
    assert failed.responses == (KeyValue(a, b"1", result.revision, result.revision, 1),)
    assert (await t.store.txn([Version(a) == 0], then)).responses == ()


@claim()
async def a_get_sees_what_earlier_operations_of_its_transaction_did(t: Trial) -> None:
    a, b = t.key("a"), t.key("b")
    created = await t.store.put(a, b"old")
    await t.store.put(b, b"old")
    result = await t.store.txn([], [Get(a), Put(a, b"new"), Get(a), Delete(b), Get(b)])
    assert result.responses == (
        KeyValue(a, b"old", created, created, 1),
        None,
        KeyValue(a, b"new", created, result.revision, 2),
        True,
        None,
    )


@claim()
async def comparisons_see_the_state_before_the_transaction(t: Trial) -> None:
    key = t.key("a")
    result = await t.store.txn([Version(key) == 0, Version(key) < 1], [Put(key, b"1")])
    assert result.succeeded
    assert not (await t.store.txn([Version(key) == 0], [Put(key, b"2")])).succeeded
    assert (await t.got(key)).value == b"1"


@claim()
async def a_key_written_twice_in_one_transaction_is_refused(t: Trial) -> None:
    a, b = t.key("a"), t.key("b")
    await t.store.put(a, b"1")
    before = await t.all()
    twice: list[list[Operation]] = [
        [Put(a, b"2"), Put(a, b"3")],
        [Put(a, b"2"), Put(b, b""), Put(a, b"2")],
        [Put(a, b"2"), Delete(a)],
        [Delete(a), Put(a, b"2")],
        [Put(a, b"2"), DeletePrefix(t.prefix)],
        [DeletePrefix(a), Put(a, b"2")],
    ]
    for operations in twice:
        with refused(Invalid):
            await t.store.txn([], [Put(t.key("c"), b""), *operations])
        with refused(Invalid):
            await t.store.txn([Version(a) == 0], [], [Put(t.key("c"), b""), *operations])
    assert await t.all() == before


@claim()
async def the_two_branches_may_write_the_same_key(t: Trial) -> None:
    key = t.key("a")
    await t.store.txn([Version(key) == 0], [Put(key, b"1")], [Put(key, b"2")])
    await t.store.txn([Version(key) == 0], [Put(key, b"1")], [Delete(key)])
    assert await t.store.get(key) is None


@claim()
async def a_key_may_be_deleted_twice_in_one_transaction(t: Trial) -> None:
    key = t.key("a")
    before = await t.store.put(key, b"")
    result = await t.store.txn([], [Delete(key), Delete(key), DeletePrefix(t.prefix)])
    assert result.responses == (True, False, 0)
    assert result.revision == before + 1


@claim()
async def a_transaction_holds_128_entries_a_part_and_no_more(t: Trial) -> None:
    keys = [t.key(f"{number:03}") for number in range(MAX_OPERATIONS + 1)]
    when = [Version(key) == 0 for key in keys]
    puts = [Put(key, b"x") for key in keys]
    gets = [Get(key) for key in keys]
    before = await t.revision()
    for parts in ((when, puts[:1], ()), ((), puts, ()), ((), puts[:1], gets)):
        with refused(TooLarge):
            await t.store.txn(*parts)
    assert await t.revision() == before
    result = await t.store.txn(when[:-1], puts[:-1], gets[:-1])
    assert result.succeeded
    assert len((await t.all()).items) == MAX_OPERATIONS
    result = await t.store.txn(when[:-1], puts[:-1], gets[:-1])
    assert [kv.key for kv in result.responses if isinstance(kv, KeyValue)] == keys[:-1]


ROUNDS = 200


@claim()
async def of_two_clients_that_race_for_a_key_one_wins(t: Trial) -> None:
    rival = await t.second()

    async def run(store: Store, name: bytes, key: str) -> bytes | None:
        return name if (await store.txn([Version(key) == 0], [Put(key, name)])).succeeded else None

    for number in range(ROUNDS):
        key = t.key(f"{number}")
        racers = [run(t.store, b"first", key), run(rival, b"second", key)]
        random.shuffle(racers)
        (winner,) = [name for name in await asyncio.gather(*racers) if name]
        kv = await t.got(key)
        assert (kv.value, kv.version) == (winner, 1)


@claim()
async def concurrent_increments_are_all_counted(t: Trial) -> None:
    counters = [t.key(f"counter/{number}") for number in range(3)]
    for key in counters:
        await t.store.put(key, b"0")
    clients = [t.store, await t.second()] * 3

    async def increment(store: Store, rng: random.Random) -> None:
        for _ in range(15):
            key = rng.choice(counters)
            while True:
                kv = await store.get(key)
                assert kv is not None
                then = [Put(key, b"%d" % (int(kv.value) + 1))]
                if (await store.txn([ModRevision(key) == kv.mod_revision], then)).succeeded:
                    break

    await asyncio.gather(*(increment(store, random.Random(seed)) for seed, store in enumerate(clients)))
    page = await t.all()
    assert sum(int(kv.value) for kv in page.items) == 15 * len(clients)
    assert all(kv.version == int(kv.value) + 1 for kv in page.items)


@claim()
async def nobody_sees_half_a_transaction(t: Trial) -> None:
    keys = [t.key(f"pair/{name}") for name in "abcdef"]
    reader = await t.second()
    done = asyncio.Event()

    async def write() -> None:
        for number in range(60):
            await t.store.txn([], [Put(key, b"%d" % number) for key in keys])
        done.set()

    async def read() -> None:
        while not done.is_set():
            seen = {kv.value for kv in (await t.all(reader, under="pair/")).items}
            assert len(seen) <= 1, f"a range saw {seen}"
            got = (await reader.txn([], [Get(key) for key in keys])).responses
            seen = {kv.value for kv in got if isinstance(kv, KeyValue)}
            assert len(seen) <= 1, f"a transaction saw {seen}"

    await asyncio.gather(write(), read(), read())


@claim()
async def a_write_that_has_returned_is_seen_by_every_client_at_once(t: Trial) -> None:
    other = await t.second()
    key = t.key("a")
    for number in range(50):
        writer, reader = (t.store, other) if number % 2 else (other, t.store)
        revision = await writer.put(key, b"%d" % number)
        kv = await reader.get(key)
        assert kv is not None
        assert (kv.value, kv.mod_revision) == (b"%d" % number, revision)
        page = await t.all(reader)
        assert page.items == (kv,)
        assert page.revision == revision


@claim()
async def concurrent_writers_each_get_their_own_revision(t: Trial) -> None:
    other = await t.second()
    before = await t.revision()
    writes = [(t.store if number % 2 else other).put(t.key(f"{number:03}"), b"") for number in range(100)]
    revisions = await asyncio.gather(*writes)
    assert sorted(revisions) == list(range(before + 1, before + 101))
    assert [kv.mod_revision for kv in (await t.all()).items] == list(revisions)


@claim()
async def a_cancelled_put_happened_or_not_and_the_store_works_on(t: Trial) -> None:
    rng = random.Random(1)
    for number in range(40):
        key = t.key(f"{number}")
        task = asyncio.ensure_future(t.store.put(key, b"cancelled"))
        for _ in range(rng.randrange(4)):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await t.store.put(key, b"mark")
        kv = await t.got(key)
        # A request in flight when its caller was cancelled may arrive before, after, or never.
        assert (kv.value, kv.version) in ((b"mark", 1), (b"mark", 2), (b"cancelled", 2))


@claim()
async def mixed_load_ends_in_a_consistent_store(t: Trial) -> None:
    clients = [t.store, await t.second()]

    async def work(store: Store, seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(30):
            key = t.key(f"{rng.randrange(10)}")
            verb = rng.randrange(5)
            if verb == 0:
                await store.put(key, b"%d" % seed)
            elif verb == 1:
                await store.delete(key)
            elif verb == 2:
                await store.txn([Version(key) > 1], [Put(key, b"t")], [Put(key, b"e"), Put(key + "/x", b"")])
            elif verb == 3:
                await store.delete_prefix(key)
            else:
                await t.all(store)

    await asyncio.gather(*(work(clients[seed % 2], seed) for seed in range(8)))
    first, second = await t.all(clients[0]), await t.all(clients[1])
    assert first == second
    for kv in first.items:
        assert await t.store.get(kv.key) == kv
        assert await t.store.get(kv.key, revision=first.revision) == kv
        assert 1 <= kv.create_revision <= kv.mod_revision <= first.revision
        assert 1 <= kv.version <= kv.mod_revision - kv.create_revision + 1
