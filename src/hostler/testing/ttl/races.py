"""Two concurrent clients: every operation is atomic."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hostler.errors import Unavailable, Uncertain
from hostler.testing.ttl.claim import LONG, claim

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hostler.ports.ttl import TtlStorage
    from hostler.testing.ttl.claim import TtlTrial

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
