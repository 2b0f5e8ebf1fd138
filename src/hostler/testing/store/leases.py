"""Claims: leases end on time, never early, and take their keys with them."""

from __future__ import annotations

import asyncio
import time

from hostler.errors import LeaseGone
from hostler.ports.store import Delete, Get, Lease, Put, Version

from .claim import TTL, Trial, claim, refused, take, take_until


async def _gone(t: Trial, lease: Lease) -> None:
    """Wait until the lease has ended."""
    key = t.key(f"of-lease-{lease.id}")
    async with t.store.watch(key) as watch:
        await t.store.put(key, b"", lease=lease)
        await take(watch, 2)


@claim()
async def a_lease_reports_what_was_granted(t: Trial) -> None:
    leases = [await t.store.grant(ttl) for ttl in (0.2, 1, 1.5, 60, 100_000)]
    for lease, asked in zip(leases, (0.2, 1, 1.5, 60, 100_000), strict=True):
        assert lease.ttl >= asked
        assert 0 < lease.id < 2**63
        assert t.store.lease_lateness(lease.ttl) > 0
        assert 0 <= await lease.remaining() <= lease.ttl
    assert len({lease.id for lease in leases}) == 5
    for lease in leases:
        await lease.revoke()


@claim(waits=True)
async def expiry_deletes_the_keys_on_time_in_one_transaction(t: Trial) -> None:
    async with t.store.watch(t.prefix) as watch:
        asked_at = time.monotonic()
        lease = await t.store.grant(TTL)
        granted_at = time.monotonic()
        for name in ("c", "a", "b"):
            await t.store.put(t.key(name), name.encode(), lease=lease)
        await t.store.put(t.key("free"), b"")
        before = {kv.key: kv for kv in (await t.all()).items}
        await take(watch, 4)
        events = await take(watch, 3)
        seen_at = time.monotonic()
    assert seen_at >= asked_at + lease.ttl, "early"
    assert seen_at <= granted_at + lease.ttl + t.store.lease_lateness(lease.ttl), "late"
    assert [event.type for event in events] == ["delete"] * 3
    assert [event.kv.key for event in events] == [t.key(name) for name in "abc"]
    assert [event.previous for event in events] == [before[t.key(name)] for name in "abc"]
    assert len({event.kv.mod_revision for event in events}) == 1
    assert list(await t.state()) == [t.key("free")]


@claim(waits=True)
async def a_key_stands_until_its_lease_ends_and_no_longer(t: Trial) -> None:
    asked_at = time.monotonic()
    lease = await t.store.grant(TTL)
    granted_at = time.monotonic()
    revision = await t.store.put(t.key("a"), b"", lease=lease)
    latest = granted_at + lease.ttl + t.store.lease_lateness(lease.ttl)
    await asyncio.sleep(max(0.0, asked_at + lease.ttl - 0.3 - time.monotonic()))
    kv = await t.store.get(t.key("a"))
    assert kv is not None or time.monotonic() >= asked_at + lease.ttl, "early"
    await asyncio.sleep(max(0.0, latest - time.monotonic()))
    assert await t.store.get(t.key("a")) is None
    async with t.store.watch(t.prefix, start_revision=revision + 1) as watch:
        (event,) = await take(watch, 1)
    assert event.type == "delete"


@claim(waits=True)
async def many_leases_each_end_at_their_own_time(t: Trial) -> None:
    spans: dict[str, tuple[float, float]] = {}
    async with t.store.watch(t.prefix) as watch:
        for number, ttl in enumerate((2.6, TTL, 2.2, 1.4, TTL, 1.8)):
            asked_at = time.monotonic()
            lease = await t.store.grant(ttl)
            end = time.monotonic() + lease.ttl
            spans[t.key(f"{number}")] = (asked_at + lease.ttl, end + t.store.lease_lateness(lease.ttl))
            await t.store.put(t.key(f"{number}"), b"", lease=lease)
        await take(watch, 6)
        for _ in range(6):
            (event,) = await take(watch, 1)
            earliest, latest = spans.pop(event.kv.key)
            assert event.type == "delete"
            assert earliest <= time.monotonic() <= latest


@claim(waits=True)
async def keep_alive_lets_a_lease_live_another_ttl_from_then(t: Trial) -> None:
    lease = await t.store.grant(TTL)
    await t.store.put(t.key("a"), b"", lease=lease)
    async with t.store.watch(t.prefix) as watch:
        for _ in range(3):
            await asyncio.sleep(lease.ttl * 0.6)
            asked_at = time.monotonic()
            await lease.keep_alive()
        kept_at = time.monotonic()
        (event,) = await take(watch, 1)
        seen_at = time.monotonic()
    assert event.type == "delete"
    assert asked_at + lease.ttl <= seen_at <= kept_at + lease.ttl + t.store.lease_lateness(lease.ttl)


@claim(waits=True)
async def remaining_falls_and_rises_with_keep_alive_and_ends_at_zero(t: Trial) -> None:
    lease = await t.store.grant(3)
    first = await lease.remaining()
    assert lease.ttl - 1.2 <= first <= lease.ttl
    await asyncio.sleep(1.3)
    second = await lease.remaining()
    assert second < first
    assert abs(second - (lease.ttl - 1.3)) <= 1.2
    await lease.keep_alive()
    third = await lease.remaining()
    assert second < third <= lease.ttl
    await _gone(t, lease)
    assert await lease.remaining() == 0.0


@claim(waits=True)
async def a_lease_that_ended_cannot_be_kept_alive(t: Trial) -> None:
    lease = await t.store.grant(TTL)
    await _gone(t, lease)
    with refused(LeaseGone):
        await lease.keep_alive()
    await lease.revoke()
    with refused(LeaseGone):
        await t.store.put(t.key("a"), b"", lease=lease)
    assert await t.store.get(t.key("a")) is None


@claim(waits=True)
async def a_key_moved_to_another_lease_ends_with_that_one(t: Trial) -> None:
    short, long = await t.store.grant(TTL), await t.store.grant(TTL + 2)
    for name in ("moved", "freed", "stays-short"):
        await t.store.put(t.key(name), b"1", lease=short)
    await t.store.put(t.key("moved"), b"2", lease=long)
    await t.store.put(t.key("freed"), b"2")
    async with t.store.watch(t.prefix) as watch:
        first, second = await take(watch, 2)
    assert first.kv.key == t.key("stays-short")
    assert second.kv.key == t.key("moved")
    assert list(await t.state()) == [t.key("freed")]


@claim()
async def revoke_deletes_what_is_attached_in_one_transaction(t: Trial) -> None:
    lease = await t.store.grant(60)
    for name in ("b", "a"):
        await t.store.put(t.key(name), b"1", lease=lease)
    before = await t.all()
    async with t.store.watch(t.prefix) as watch:
        await lease.revoke()
        events = await take(watch, 2)
    assert [(event.type, event.kv.key) for event in events] == [("delete", t.key("a")), ("delete", t.key("b"))]
    assert [event.previous for event in events] == list(before.items)
    assert {event.kv.mod_revision for event in events} == {before.revision + 1}
    assert await t.revision() == before.revision + 1


@claim()
async def revoking_twice_is_fine_and_the_lease_stays_gone(t: Trial) -> None:
    lease = await t.store.grant(60)
    await lease.revoke()
    await lease.revoke()
    assert await lease.remaining() == 0.0
    with refused(LeaseGone):
        await lease.keep_alive()


@claim()
async def a_put_with_a_lease_that_is_gone_writes_nothing(t: Trial) -> None:
    lease = await t.store.grant(60)
    await t.store.put(t.key("a"), b"1")
    await lease.revoke()
    before = await t.all()
    for dead in (lease, lease.id, 12_345_678):
        with refused(LeaseGone):
            await t.store.put(t.key("a"), b"2", lease=dead)
        with refused(LeaseGone):
            await t.store.txn([], [Put(t.key("b"), b""), Delete(t.key("a")), Put(t.key("c"), b"", dead)])
        with refused(LeaseGone):
            await t.store.txn([Version(t.key("a")) == 0], [], [Put(t.key("b"), b""), Put(t.key("c"), b"", dead)])
    assert await t.all() == before


@claim()
async def a_lease_that_is_gone_does_not_matter_in_the_branch_not_taken(t: Trial) -> None:
    lease = await t.store.grant(60)
    await lease.revoke()
    result = await t.store.txn([Version(t.key("a")) > 0], [Put(t.key("a"), b"", lease)], [Put(t.key("b"), b"")])
    assert not result.succeeded
    assert list(await t.state()) == [t.key("b")]


@claim()
async def a_key_tells_its_lease(t: Trial) -> None:
    lease = await t.store.grant(60)
    await t.store.put(t.key("a"), b"", lease=lease)
    await t.store.put(t.key("b"), b"", lease=lease.id)
    await t.store.txn([], [Put(t.key("c"), b"", lease), Put(t.key("d"), b"")])
    assert [kv.lease for kv in (await t.all()).items] == [lease.id, lease.id, lease.id, None]
    (response,) = (await t.store.txn([], [Get(t.key("a"))])).responses
    assert response == await t.store.get(t.key("a"))
    old = await t.revision()
    await t.store.put(t.key("a"), b"")
    assert (await t.got(t.key("a"))).lease is None
    kv = await t.store.get(t.key("a"), revision=old)
    assert kv is not None
    assert kv.lease == lease.id
    await lease.revoke()


@claim()
async def a_key_put_again_belongs_to_the_new_lease_or_to_none(t: Trial) -> None:
    one, two = await t.store.grant(60), await t.store.grant(60)
    for name in ("other", "none", "same", "recreated", "in-txn"):
        await t.store.put(t.key(name), b"1", lease=one)
    await t.store.put(t.key("other"), b"2", lease=two)
    await t.store.put(t.key("none"), b"2")
    await t.store.put(t.key("same"), b"2", lease=one)
    await t.store.delete(t.key("recreated"))
    await t.store.put(t.key("recreated"), b"2")
    await t.store.txn([], [Put(t.key("in-txn"), b"2", two)])
    await one.revoke()
    assert list(await t.state()) == [t.key(name) for name in ("in-txn", "none", "other", "recreated")]
    await two.revoke()
    assert list(await t.state()) == [t.key("none"), t.key("recreated")]


@claim()
async def a_revoked_lease_does_not_touch_a_key_that_was_deleted_before(t: Trial) -> None:
    lease = await t.store.grant(60)
    await t.store.put(t.key("a"), b"", lease=lease)
    await t.store.delete(t.key("a"))
    before = await t.revision()
    await lease.revoke()
    assert await t.revision() == before


@claim()
async def another_client_can_attach_to_a_lease(t: Trial) -> None:
    other = await t.second()
    lease = await t.store.grant(60)
    await other.put(t.key("a"), b"", lease=lease.id)
    kv = await other.get(t.key("a"))
    assert kv is not None
    assert kv.lease == lease.id
    await lease.revoke()
    assert await other.get(t.key("a")) is None
    with refused(LeaseGone):
        await other.put(t.key("a"), b"", lease=lease.id)


@claim(waits=True)
async def every_client_sees_an_expiry(t: Trial) -> None:
    other = await t.second()
    lease = await t.store.grant(TTL)
    await t.store.put(t.key("a"), b"", lease=lease)
    async with other.watch(t.prefix) as watch:
        (event,) = await take(watch, 1)
    assert event.type == "delete"
    assert await other.get(t.key("a")) is None
    assert await t.store.get(t.key("a")) is None


@claim(waits=True, reopens=True)
async def a_lease_keeps_the_time_it_has_left_over_a_restart(t: Trial) -> None:
    asked_at = time.monotonic()
    lease = await t.store.grant(3)
    granted_at = time.monotonic()
    await t.store.put(t.key("a"), b"", lease=lease)
    await asyncio.sleep(0.8)
    store = await t.reopen()
    assert (await t.got(t.key("a"))).lease == lease.id
    async with store.watch(t.prefix) as watch:
        (event,) = await take(watch, 1)
        seen_at = time.monotonic()
    assert event.type == "delete"
    assert asked_at + lease.ttl <= seen_at <= granted_at + lease.ttl + store.lease_lateness(lease.ttl)


@claim(waits=True, reopens=True)
async def a_lease_that_ends_while_the_store_is_closed_is_gone_when_it_opens(t: Trial) -> None:
    lease = await t.store.grant(TTL)
    granted_at = time.monotonic()
    revision = await t.store.put(t.key("a"), b"", lease=lease)
    latest = granted_at + lease.ttl + t.store.lease_lateness(lease.ttl)
    await t.aclose()
    await asyncio.sleep(max(0.0, latest - time.monotonic()))
    store = await t.open()
    assert await store.get(t.key("a")) is None
    async with store.watch(t.prefix, start_revision=revision + 1) as watch:
        await store.put(t.key("mark"), b"")
        (event,) = await take_until(watch, t.key("mark"))
    assert (event.type, event.kv.key) == ("delete", t.key("a"))
    with refused(LeaseGone):
        await store.put(t.key("b"), b"", lease=lease.id)
