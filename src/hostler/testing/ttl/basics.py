"""Claims: every operation is atomic, for one client and for two, and works only while the storage is open."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from hostler.errors import Closed, HostlerError, Invalid, Unavailable, Uncertain
from hostler.ports.ttl import MAX_VALUE_BYTES
from hostler.testing.claim import refused
from hostler.testing.ttl.claim import LONG, WITHIN, claim

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hostler.ports.ttl import TtlStorage
    from hostler.testing.ttl.claim import TtlTrial


@claim()
async def a_key_that_was_never_written_has_no_record(t: TtlTrial) -> None:
    key = t.key()
    assert await t.storage.get(key) is None
    assert await t.storage.compare_and_swap(key, "old", "new", ttl=LONG) is False
    assert await t.storage.compare_and_delete(key, "old") is False
    assert await t.storage.get(key) is None


@claim()
async def an_inserted_record_is_there_for_everybody(t: TtlTrial) -> None:
    key = t.key()
    assert await t.storage.insert_if_not_exist(key, "mine", ttl=LONG) is True
    assert await t.storage.get(key) == "mine"
    assert await t.other.get(key) == "mine"


@claim()
async def a_live_record_is_not_inserted_over(t: TtlTrial) -> None:
    key = t.key()
    assert await t.storage.insert_if_not_exist(key, "mine", ttl=LONG)
    assert await t.other.insert_if_not_exist(key, "theirs", ttl=LONG) is False
    assert await t.other.insert_if_not_exist(key, "mine", ttl=LONG) is False
    assert await t.storage.get(key) == "mine"


@claim()
async def a_swap_replaces_the_value_it_names_and_no_other(t: TtlTrial) -> None:
    key = t.key()
    assert await t.storage.insert_if_not_exist(key, "one", ttl=LONG)
    assert await t.other.compare_and_swap(key, "One", "two", ttl=LONG) is False
    assert await t.other.compare_and_swap(key, "on", "two", ttl=LONG) is False
    assert await t.storage.get(key) == "one"
    assert await t.other.compare_and_swap(key, "one", "two", ttl=LONG) is True
    assert await t.storage.get(key) == "two"
    assert await t.storage.compare_and_swap(key, "one", "three", ttl=LONG) is False
    assert await t.storage.compare_and_swap(key, "two", "two", ttl=LONG) is True
    assert await t.other.get(key) == "two"


@claim()
async def a_delete_removes_the_value_it_names_and_no_other(t: TtlTrial) -> None:
    key = t.key()
    assert await t.storage.insert_if_not_exist(key, "one", ttl=LONG)
    assert await t.other.compare_and_delete(key, "two") is False
    assert await t.storage.get(key) == "one"
    assert await t.other.compare_and_delete(key, "one") is True
    assert await t.storage.get(key) is None
    assert await t.storage.compare_and_delete(key, "one") is False


@claim()
async def a_deleted_key_is_free_at_once(t: TtlTrial) -> None:
    key = t.key()
    for round_ in range(20):
        assert await t.storage.insert_if_not_exist(key, f"{round_}", ttl=LONG), f"round {round_}"
        assert await t.other.compare_and_delete(key, f"{round_}"), f"round {round_}"
        assert await t.storage.get(key) is None, f"round {round_}"


@claim()
async def records_under_keys_that_look_alike_are_different(t: TtlTrial) -> None:
    keys = [t.key(name) for name in ("1", "10", "1/", "a", "A", "ä", "a\u0308", "*", "1%", "%s")]
    for number, key in enumerate(keys):
        assert await t.storage.insert_if_not_exist(key, f"value {number}", ttl=LONG), key
    assert [await t.other.get(key) for key in keys] == [f"value {number}" for number in range(len(keys))]
    assert await t.storage.compare_and_delete(keys[0], "value 0")
    assert [await t.other.get(key) for key in keys[:2]] == [None, "value 1"]


@claim()
async def every_text_comes_back_as_it_was(t: TtlTrial) -> None:
    texts = [
        '{"address":"10.0.0.1","holder":"ab","fence":7}',
        'it\'s "quoted" -- ; DROP TABLE x; %s {} \\ \\n',
        "Größe 大きさ 🐎 \u202e",
        "line\nline\r\n\ttab \x00 \x7f",
        " ",
        "0",
        "x" * MAX_VALUE_BYTES,
    ]
    for number, text in enumerate(texts):
        key = t.key(f"{number} {text[:40]}")
        assert await t.storage.insert_if_not_exist(key, text, ttl=LONG), number
        assert await t.other.get(key) == text, number
        assert await t.other.compare_and_swap(key, text, text[::-1], ttl=LONG), number
        assert await t.storage.compare_and_delete(key, text[::-1]), number


@claim()
async def what_cannot_be_a_record_is_refused(t: TtlTrial) -> None:
    key, storage = t.key(), t.storage
    values: list[Any] = ["", b"bytes", None, 7, "\ud800", "x" * (MAX_VALUE_BYTES + 1)]
    for value in values:
        with refused(Invalid):
            await storage.insert_if_not_exist(key, value, ttl=LONG)
        with refused(Invalid):
            await storage.compare_and_swap(key, value, "new", ttl=LONG)
        with refused(Invalid):
            await storage.compare_and_swap(key, "old", value, ttl=LONG)
        with refused(Invalid):
            await storage.compare_and_delete(key, value)
    bad_keys: list[Any] = ["", b"bytes", None, "\ud800"]
    for bad_key in bad_keys:
        with refused(Invalid):
            await storage.insert_if_not_exist(bad_key, "value", ttl=LONG)
        with refused(Invalid):
            await storage.get(bad_key)
    ttls: list[Any] = [-1, -0.001, float("nan"), float("inf"), True, False, "5", None, 1e30]
    for ttl in ttls:
        with refused(Invalid):
            await storage.insert_if_not_exist(key, "value", ttl=ttl)
        with refused(Invalid):
            await storage.compare_and_swap(key, "old", "new", ttl=ttl)
    assert await storage.get(key) is None


if TYPE_CHECKING:
    Verb = Callable[[TtlStorage, str, str], Awaitable[bool]]

GIVE_UPS = 20
"""How often a storage may give up on a client that counts."""
AT_ONCE = 8
"""Number of concurrent races."""


@claim()
async def of_two_clients_that_insert_at_once_one_wins(t: TtlTrial) -> None:
    await _race(t, lambda storage, key, me: storage.insert_if_not_exist(key, me, ttl=LONG), before=None)


@claim()
async def of_two_clients_that_swap_at_once_one_wins(t: TtlTrial) -> None:
    await _race(t, lambda storage, key, me: storage.compare_and_swap(key, "before", me, ttl=LONG), before="before")


@claim()
async def of_two_clients_that_delete_at_once_one_wins(t: TtlTrial) -> None:
    await _race(t, lambda storage, key, _: storage.compare_and_delete(key, "before"), before="before")


@claim()
async def of_a_swap_and_a_delete_at_once_one_wins(t: TtlTrial) -> None:
    async def verb(storage: TtlStorage, key: str, me: str) -> bool:
        if me == "a":
            return await storage.compare_and_swap(key, "before", me, ttl=LONG)
        return await storage.compare_and_delete(key, "before")

    await _race(t, verb, before="before")


@claim()
async def many_who_count_by_swapping_lose_no_count(t: TtlTrial) -> None:
    key, counters, each = t.key(), 6, max(5, t.rounds // 50)
    assert await t.storage.insert_if_not_exist(key, "0", ttl=0)

    async def count(storage: TtlStorage) -> int:
        done = given_up = 0
        while done < each and given_up < GIVE_UPS:
            try:
                now = await storage.get(key)
                assert now is not None, "the record is gone"
                done += await storage.compare_and_swap(key, now, str(int(now) + 1), ttl=0)
            except Unavailable:  # a busy storage may give up; nothing was written
                given_up += 1
            except Uncertain:
                return done
        return done

    clients = [t.storage, t.other] * (counters // 2)
    counted = sum(await asyncio.gather(*(count(client) for client in clients)))
    total = int(await t.storage.get(key) or "0")
    unclear = counters * each - counted
    assert counted, "no swap succeeded"
    assert counted <= total, f"{counted} counted, {total} stored: some were lost"
    assert total <= counted + unclear, f"{counted} counted, {total} stored: some were done twice"


async def _race(t: TtlTrial, verb: Verb, *, before: str | None) -> None:
    """Run `verb` on both clients at once, repeatedly, each time on a key with the record `before`: exactly one wins."""
    unclear = 0

    async def once(round_: int) -> None:
        nonlocal unclear
        key = t.key(f"race-{round_}")
        if before is not None:
            assert await t.storage.insert_if_not_exist(key, before, ttl=LONG)
        outcomes = await asyncio.gather(verb(t.storage, key, "a"), verb(t.other, key, "b"), return_exceptions=True)
        left = await t.storage.get(key)
        if any(isinstance(outcome, Uncertain | Unavailable) for outcome in outcomes):
            unclear += 1  # a busy storage may give up; that proves nothing
            assert outcomes.count(True) <= 1, f"round {round_}: {outcomes}"
        else:
            assert sorted(map(str, outcomes)) == ["False", "True"], f"round {round_}: {outcomes}"
            winner = "a" if outcomes[0] is True else "b"
            assert left in (winner, None), f"round {round_}: {outcomes}, but {left!r} is stored"
        if left is not None:
            assert await t.other.compare_and_delete(key, left)
        t.forget(key)

    for first in range(0, t.rounds, AT_ONCE):
        await asyncio.gather(*(once(round_) for round_ in range(first, min(first + AT_ONCE, t.rounds))))
    assert unclear <= t.rounds // 10, f"{unclear} of {t.rounds} races had no clear outcome"


async def _unusable(storage: TtlStorage, key: str) -> None:
    with refused(Closed):
        await storage.get(key)
    with refused(Closed):
        await storage.insert_if_not_exist(key, "value", ttl=LONG)
    with refused(Closed):
        await storage.compare_and_swap(key, "old", "new", ttl=LONG)
    with refused(Closed):
        await storage.compare_and_delete(key, "old")


@claim(opens=True)
async def a_storage_that_is_not_open_does_nothing(t: TtlTrial) -> None:
    key = t.key()
    storage = t.fresh()
    await _unusable(storage, key)
    async with storage:
        await storage.get(key)
    await _unusable(storage, key)
    await storage.aclose()
    assert await t.storage.get(key) is None


@claim(opens=True)
async def closing_ends_the_calls_that_run(t: TtlTrial) -> None:
    storage = t.fresh()
    await storage.__aenter__()
    keys = [t.key(f"{number}") for number in range(20)]
    running = [asyncio.create_task(storage.insert_if_not_exist(key, "value", ttl=LONG)) for key in keys]
    await asyncio.sleep(0.01)
    async with asyncio.timeout(WITHIN):
        await storage.aclose()
        outcomes = await asyncio.gather(*running, return_exceptions=True)
    for key, outcome in zip(keys, outcomes, strict=True):
        assert outcome is True or isinstance(outcome, HostlerError), f"{outcome!r}"
        if outcome is True:
            assert await t.storage.get(key) in ("value", None if not t.persistent else "value")
        elif isinstance(outcome, Closed):
            assert not t.persistent or await t.storage.get(key) is None, "refused, yet done"


@claim(opens=True)
async def a_call_that_is_cancelled_leaves_the_storage_usable(t: TtlTrial) -> None:
    for number in range(20):
        key = t.key(f"{number}")
        running = asyncio.create_task(t.storage.insert_if_not_exist(key, "value", ttl=LONG))
        await asyncio.sleep(0.0005 * number)
        running.cancel()
        await asyncio.wait([running])
        assert await t.storage.get(key) in ("value", None)
    assert await t.storage.insert_if_not_exist(t.key("last"), "value", ttl=LONG)
    assert await t.storage.get(t.key("last")) == "value"
