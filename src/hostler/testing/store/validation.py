"""Claims: which arguments are refused, and which are accepted."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

from hostler.errors import Invalid, TooLarge
from hostler.ports.store import (
    MAX_REQUEST_BYTES,
    OPERATION_OVERHEAD,
    Delete,
    DeletePrefix,
    Get,
    Put,
    Value,
    Version,
)
from hostler.testing.store.claim import Trial, claim, refused, take

if TYPE_CHECKING:
    from collections.abc import Coroutine

LONE_SURROGATE = "\ud800"
NOT_TEXT: tuple[Any, ...] = (b"key", None, 1, ["key"], 1.5)


async def _all_refused(t: Trial, *calls: Coroutine[Any, Any, object]) -> None:
    before = await t.all()
    outcomes = [await asyncio.gather(call, return_exceptions=True) for call in calls]
    for number, (outcome,) in enumerate(outcomes):
        assert isinstance(outcome, Invalid), f"call number {number}: {outcome!r}"
    assert await t.all() == before


async def _enter_watch(t: Trial, prefix: Any, start_revision: Any = None) -> None:
    async with t.store.watch(prefix, start_revision=start_revision):
        pass


@claim()
async def a_key_is_text_and_not_empty(t: Trial) -> None:
    store, good = t.store, t.key("a")
    await store.put(good, b"1")
    for bad in (*NOT_TEXT, "", LONE_SURROGATE, good + LONE_SURROGATE, t.key("\udfff/x")):
        await _all_refused(
            t,
            store.get(bad),
            store.put(bad, b""),
            store.delete(bad),
            store.txn([], [Put(good, b"2"), Put(bad, b"")]),
            store.txn([], [Put(good, b"2"), Delete(bad)]),
            store.txn([], [Put(good, b"2"), Get(bad)]),
            store.txn([Version(bad) == 0], [Put(good, b"2")]),
            store.txn([], [Put(good, b"2")], [Delete(bad)]),
        )


@claim()
async def a_prefix_is_text(t: Trial) -> None:
    store, good = t.store, t.key("a")
    await store.put(good, b"1")
    for bad in (*NOT_TEXT, LONE_SURROGATE, good + LONE_SURROGATE):
        await _all_refused(
            t,
            store.range(bad),
            store.delete_prefix(bad),
            store.txn([], [Put(t.key("b"), b""), DeletePrefix(bad)]),
            _enter_watch(t, bad),
        )
    positions: tuple[Any, ...] = (b"key", 1, LONE_SURROGATE)
    for bad in positions:
        await _all_refused(t, store.range(t.prefix, after=bad))


@claim()
async def deleting_by_an_empty_prefix_is_refused(t: Trial) -> None:
    await t.store.put(t.key("a"), b"")
    await _all_refused(
        t,
        t.store.delete_prefix(""),
        t.store.txn([], [DeletePrefix("")]),
        t.store.txn([Version(t.key("a")) > 0], [], [DeletePrefix("")]),
    )


@claim()
async def a_value_is_bytes(t: Trial) -> None:
    store, good = t.store, t.key("a")
    bads: tuple[Any, ...] = ("text", None, 1, bytearray(b"x"), memoryview(b"x"), [1])
    for bad in bads:
        await _all_refused(
            t,
            store.put(good, bad),
            store.txn([], [Put(t.key("b"), b""), Put(good, bad)]),
            store.txn([Value(good) == bad], [Put(good, b"")]),
        )


@claim()
async def numbers_are_whole_and_positive(t: Trial) -> None:
    store, good = t.store, t.key("a")
    await store.put(good, b"")
    bads: tuple[Any, ...] = (0, -1, 1.0, "1", True, b"1", math.nan)
    for bad in bads:
        await _all_refused(
            t,
            store.get(good, revision=bad),
            store.range(t.prefix, revision=bad),
            store.range(t.prefix, limit=bad),
            _enter_watch(t, t.prefix, bad),
            store.compact(bad),
        )
    operands: tuple[Any, ...] = (1.0, "1", None, True, b"1", 2**63, -(2**63) - 1)
    for operand in operands:
        await _all_refused(t, store.txn([Version(good) == operand], [Put(good, b"2")]))
    none: Any = None
    await _all_refused(t, store.compact(none))


@claim()
async def a_ttl_is_a_finite_number_above_zero(t: Trial) -> None:
    bads: tuple[Any, ...] = (0, 0.0, -1, -0.001, math.inf, -math.inf, math.nan, "1", None, True, b"1", 1e30)
    await _all_refused(t, *(t.store.grant(bad) for bad in bads))


@claim()
async def a_lease_is_a_lease_or_its_number(t: Trial) -> None:
    bads: tuple[Any, ...] = (0, -1, "1", 1.5, True, b"", object(), 2**63)
    for bad in bads:
        await _all_refused(
            t,
            t.store.put(t.key("a"), b"", lease=bad),
            t.store.txn([], [Put(t.key("b"), b""), Put(t.key("a"), b"", bad)]),
        )


@claim()
async def a_transaction_is_made_of_comparisons_and_operations(t: Trial) -> None:
    good = Put(t.key("a"), b"")
    bads: tuple[Any, ...] = (None, "x", True, ("put", "a", b""), Version(t.key("a")))
    for bad in bads:
        await _all_refused(
            t,
            t.store.txn([bad], [good]),
            t.store.txn([], [good, bad]),
            t.store.txn([], [good], [bad]),
        )
    comparison: Any = Version(t.key("a")) == 0
    await _all_refused(t, t.store.txn([], [good, comparison]))


@claim()
async def values_are_kept_to_the_byte(t: Trial) -> None:
    cases = [b"", b"\0", bytes(range(256)), b"\r\n\t\"\\'", "äöü😀".encode(), b"\xff\xfe\xed\xa0\x80", b"x" * 2**20]
    async with t.store.watch(t.prefix) as watch:
        for number, value in enumerate(cases):
            key = t.key(f"{number}")
            await t.store.put(key, value)
            assert (await t.got(key)).value == value
            assert (await t.store.txn([Value(key) == value], [])).succeeded
        assert [event.kv.value for event in await take(watch, len(cases))] == cases
    assert list((await t.state()).values()) == cases


@claim()
async def keys_are_kept_to_the_character(t: Trial) -> None:
    names = [
        " ",
        "  a  ",
        "\0",
        "a\0b",
        "\n",
        "a\nb\r\n",
        "\t",
        "%2F",
        "a%",
        "'",
        '"',
        "\\",
        "*?[",
        "_%",
        "😀",
        "e\u0301",
        "\u00e9",
    ]
    names += [
        "\ufeff",
        "\u200b",
        "\x7f",
        "../..",
        "//",
        ".",
        "#",
        "?a=b",
        "{}",
        "\U0010ffff",
        "x" * 2_000,
        "NULL",
        "null",
        "K",
        "k",
    ]
    async with t.store.watch(t.prefix) as watch:
        for name in names:
            await t.store.put(t.key(name), name.encode())
        assert [event.kv.key for event in await take(watch, len(names))] == [t.key(name) for name in names]
    assert await t.state() == {t.key(name): name.encode() for name in names}
    for name in names:
        assert (await t.got(t.key(name))).value == name.encode()
        assert await t.store.delete(t.key(name)) is True
    assert await t.state() == {}


@claim()
async def a_request_of_the_greatest_size_is_taken_and_one_byte_more_is_not(t: Trial) -> None:
    key = t.key("ä")
    room = MAX_REQUEST_BYTES - OPERATION_OVERHEAD - len(key.encode())
    with refused(TooLarge):
        await t.store.put(key, b"x" * (room + 1))
    assert await t.store.get(key) is None
    await t.store.put(key, b"x" * room)
    assert (await t.got(key)).value == b"x" * room
    room = MAX_REQUEST_BYTES - 2 * OPERATION_OVERHEAD - 2 * len(key.encode())
    with refused(TooLarge):
        await t.store.txn([], [Put(key, b"y" * (room // 2 + 1)), Put(key[:-1] + "ö", b"y" * (room - room // 2))])
    assert (await t.got(key)).value[:1] == b"x"
    await t.store.txn([], [Put(key, b"y" * (room // 2)), Put(key[:-1] + "ö", b"y" * (room - room // 2))])
    assert len(await t.state()) == 2
    with refused(TooLarge):
        await t.store.put(key, b"z" * (3 * MAX_REQUEST_BYTES))
    with refused(TooLarge):
        await t.store.put(t.key("k" * MAX_REQUEST_BYTES), b"")
