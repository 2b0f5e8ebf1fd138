"""Claims: leases expire on time, never early, and delete their keys."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hostler.errors import LeaseGone
from hostler.ports.store import Delete, Get, Lease, Put, Version
from hostler.testing.claim import TooSlow, loop_time
from hostler.testing.store.claim import TTL, WITHIN, Trial, claim, refused, take, take_until

if TYPE_CHECKING:
    from hostler.ports.store import Store


ROUGHLY = 1.2
"""Seconds by which a store may be wrong about the remaining time of a lease."""


class _Grant:
    """A lease whose end a claim observes: never early, by the timestamps of this process, and not late."""

    def __init__(self, t: Trial, lease: Lease, asked_at: float) -> None:
        self._t, self.lease, self.asked_at, self.granted_at = t, lease, asked_at, loop_time()

    @classmethod
    async def new(cls, t: Trial, ttl: float) -> _Grant:
        asked_at = loop_time()
        return cls(t, await t.store.grant(ttl), asked_at)

    async def put(self, key: str, value: bytes = b"") -> int:
        try:
            return await self._t.store.put(key, value, lease=self.lease)
        except LeaseGone:
            raise self.too_slow() from None

    async def keep_alive(self) -> None:
        asked_at = loop_time()
        try:
            await self.lease.keep_alive()
        except LeaseGone:
            raise self.too_slow() from None
        self.asked_at, self.granted_at = asked_at, loop_time()

    def too_slow(self) -> TooSlow:
        """Return TooSlow for a lease that expired unobserved, after checking that it did not expire early."""
        self.must_have_stood()
        took = loop_time() - self.granted_at
        self._t.on_time(took, self.lease.ttl * 0.9, since=self.granted_at, what="the time before the end of a lease")
        return TooSlow()

    def must_have_stood(self) -> None:
        """Check that the lease did not expire early, now that its keys are gone."""
        early = self.asked_at + self.lease.ttl - loop_time()
        assert early <= 0, f"it ended {early:.3f} s too early"

    def may_still_stand(self, at: float) -> None:
        """Check that the lease could still exist at an instant, or had just expired."""
        latest = self.lease.ttl + self._t.store.lease_lateness(self.lease.ttl)
        self._t.on_time(at - self.granted_at, latest, since=self.granted_at, what="the end of a lease")

    async def remaining(self) -> float:
        """Return the reported remaining time, after checking it to a second by the timestamps of this process."""
        before = loop_time()
        seconds = await self.lease.remaining()
        least, most = self.asked_at + self.lease.ttl - loop_time(), self.granted_at + self.lease.ttl - before
        assert least - ROUGHLY <= seconds <= min(most + ROUGHLY, self.lease.ttl), f"{seconds}: {least} to {most}"
        return seconds

    def ends_now(self) -> None:
        """Check the expiry that was just observed."""
        self.must_have_stood()
        self.may_still_stand(loop_time())

    async def gone(self, store: Store, key: str) -> None:
        """Wait until a key of the lease is gone."""
        async with asyncio.timeout(4 * WITHIN):
            while True:
                asked = loop_time()
                if await store.get(key) is None:
                    break
                self.may_still_stand(asked)
                await asyncio.sleep(0.02)
        self.must_have_stood()


async def _wait_until_expired(t: Trial, grant: _Grant) -> None:
    """Wait until the lease has expired."""
    key = t.key(f"of-lease-{grant.lease.id}")
    async with t.store.watch(key) as watch:
        await grant.put(key)
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
        grant = await _Grant.new(t, TTL)
        for name in ("c", "a", "b"):
            await grant.put(t.key(name), name.encode())
        await t.store.put(t.key("free"), b"")
        before = {kv.key: kv for kv in (await t.all()).items}
        if len(before) < 4:
            raise grant.too_slow()
        await take(watch, 4)
        events = await take(watch, 3)
        grant.ends_now()
    assert [event.type for event in events] == ["delete"] * 3
    assert [event.kv.key for event in events] == [t.key(name) for name in "abc"]
    assert [event.previous for event in events] == [before[t.key(name)] for name in "abc"]
    assert len({event.kv.mod_revision for event in events}) == 1
    assert list(await t.state()) == [t.key("free")]


@claim(waits=True)
async def a_key_stands_until_its_lease_ends_and_no_longer(t: Trial) -> None:
    grant = await _Grant.new(t, TTL)
    revision = await grant.put(t.key("a"))
    await grant.gone(t.store, t.key("a"))
    async with t.store.watch(t.prefix, start_revision=revision + 1) as watch:
        (event,) = await take(watch, 1)
    assert event.type == "delete"


@claim(waits=True)
async def many_leases_each_end_at_their_own_time(t: Trial) -> None:
    grants: dict[str, _Grant] = {}
    async with t.store.watch(t.prefix) as watch:
        for number, ttl in enumerate((2.6, TTL, 2.2, 1.4, TTL, 1.8)):
            grant = grants[t.key(f"{number}")] = await _Grant.new(t, ttl)
            await grant.put(t.key(f"{number}"))
        for _ in range(12):
            (event,) = await take(watch, 1)
            if event.type == "delete":
                grants.pop(event.kv.key).ends_now()
    assert not grants


@claim(waits=True)
async def keep_alive_lets_a_lease_live_another_ttl_from_then(t: Trial) -> None:
    grant = await _Grant.new(t, TTL)
    await grant.put(t.key("a"))
    async with t.store.watch(t.prefix) as watch:
        for _ in range(3):
            await asyncio.sleep(grant.lease.ttl * 0.4)
            await grant.keep_alive()
        (event,) = await take(watch, 1)
        grant.ends_now()
    assert event.type == "delete"


@claim(waits=True)
async def remaining_falls_and_rises_with_keep_alive_and_ends_at_zero(t: Trial) -> None:
    grant = await _Grant.new(t, 2 * TTL)
    first = await grant.remaining()
    await asyncio.sleep(1.3 * TTL)
    second = await grant.remaining()
    assert second < first
    await grant.keep_alive()
    assert await grant.remaining() > second
    await _wait_until_expired(t, grant)
    assert await grant.lease.remaining() == 0.0


@claim(waits=True)
async def a_lease_that_ended_cannot_be_kept_alive(t: Trial) -> None:
    grant = await _Grant.new(t, TTL)
    await _wait_until_expired(t, grant)
    lease = grant.lease
    with refused(LeaseGone):
        await lease.keep_alive()
    await lease.revoke()
    with refused(LeaseGone):
        await t.store.put(t.key("a"), b"", lease=lease)
    assert await t.store.get(t.key("a")) is None


@claim(waits=True)
async def a_key_moved_to_another_lease_ends_with_that_one(t: Trial) -> None:
    # etcd does not distinguish shorter ones
    short, long = await _Grant.new(t, 2 * TTL), await _Grant.new(t, 2 * TTL + 2)
    async with t.store.watch(t.prefix) as watch:
        for name in ("moved", "freed", "stays-short"):
            await short.put(t.key(name), b"1")
        await long.put(t.key("moved"), b"2")
        await t.store.put(t.key("freed"), b"2")
        ended = [event.kv.key for event in await take(watch, 7) if event.type == "delete"]
        if t.key("stays-short") != ended[0]:
            raise short.too_slow()
    assert ended == [t.key("stays-short"), t.key("moved")]
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
    grant = await _Grant.new(t, TTL)
    async with other.watch(t.prefix) as watch:
        await grant.put(t.key("a"))
        _, event = await take(watch, 2)
    assert event.type == "delete"
    assert await other.get(t.key("a")) is None
    assert await t.store.get(t.key("a")) is None


@claim(waits=True, reopens=True)
async def a_lease_keeps_the_time_it_has_left_over_a_restart(t: Trial) -> None:
    grant = await _Grant.new(t, 2 * TTL)
    await grant.put(t.key("a"))
    await asyncio.sleep(0.8 * TTL)
    store = await t.reopen()
    kv = await store.get(t.key("a"))
    if kv is None:
        raise grant.too_slow()
    assert kv.lease == grant.lease.id
    await grant.gone(store, t.key("a"))


@claim(waits=True, reopens=True)
async def a_lease_that_ends_while_the_store_is_closed_is_gone_when_it_opens(t: Trial) -> None:
    grant = await _Grant.new(t, TTL)
    revision = await grant.put(t.key("a"))
    await t.aclose()
    await asyncio.sleep(1.5 * grant.lease.ttl)
    store = await t.open()
    await grant.gone(store, t.key("a"))  # a lease that restarted its ttl at the opening would live for too long
    async with store.watch(t.prefix, start_revision=revision + 1) as watch:
        await store.put(t.key("mark"), b"")
        (event,) = await take_until(watch, t.key("mark"))
    assert (event.type, event.kv.key) == ("delete", t.key("a"))
    with refused(LeaseGone):
        await store.put(t.key("b"), b"", lease=grant.lease.id)
