"""Claims: transactions compare and write atomically, and refuse what etcd refuses."""

from __future__ import annotations

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

from .claim import Trial, claim, refused


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
