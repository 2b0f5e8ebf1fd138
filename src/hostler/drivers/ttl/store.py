"""Any store as a TTL storage: a record is a key attached to a lease.

Renewing an unchanged record keeps its lease alive and then checks, in one transaction, that the record is still the
same and still on that lease: no write, so a thousand leaderships cost a thousand keep-alives. Any other swap moves the
record to a new lease in the transaction that compares it.

A new lease is granted before that transaction, so a transaction that arrives late brings a lease that is already old. A
renewal therefore also compares the revision that it read: after any other write, a late renewal changes nothing.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from hostler.errors import Damaged, HostlerError, LeaseGone, Missed, Unavailable, Uncertain
from hostler.kit.tasks import Closing
from hostler.ports.store import Delete, Get, KeyValue, ModRevision, Put, TellsLeases, Value, Version, watching
from hostler.ports.ttl import check_life, check_record, check_swap

if TYPE_CHECKING:
    from hostler.ports.store import Comparison, Lease, Operation, Store


class StoreTtlStorage(Closing):
    """Owns the store: opens it on entering, closes it on leaving."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._leases: dict[str, Lease] = {}  # of the records that this object wrote last

    async def __aenter__(self) -> Self:
        await self._store.__aenter__()
        return self

    async def aclose(self) -> None:
        self._leases.clear()  # the leases themselves belong to the records
        await self._store.aclose()

    async def insert_if_not_exist(self, key: str, value: str, *, ttl: float) -> bool:
        check_record(key, value)
        ttl = check_life(ttl)
        if await self._store.get(key) is not None:
            return False  # saves a lease; the transaction decides
        return await self._write(key, Version(key) == 0, value, ttl)

    async def compare_and_swap(self, key: str, old: str, new: str, *, ttl: float) -> bool:
        check_swap(key, old, new)
        ttl = check_life(ttl)
        if old == new:
            return await self._renew(key, old, ttl)
        return await self._write(key, Value(key) == old.encode(), new, ttl)

    async def compare_and_delete(self, key: str, old: str) -> bool:
        check_record(key, old)
        lease = self._leases.get(key)
        result = await self._store.txn([Value(key) == old.encode()], [Delete(key)])
        if result.succeeded:
            await self._replace(key, lease, None)
        return result.succeeded

    async def get(self, key: str) -> str | None:
        check_record(key, "-")
        return _text(await self._store.get(key))

    def lateness(self, ttl: float) -> float:
        return self._store.lease_lateness(ttl)

    async def wait_change(self, key: str, seen: str | None, *, within: float) -> str | None:
        check_record(key, "-")
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                return await self._wait_for_change(key, seen)
        return await self.get(key)

    @property
    def store(self) -> Store:
        """The store, for guarded transactions."""
        return self._store

    async def time_left(self, key: str) -> float | None:
        check_record(key, "-")
        kv = await self._store.get(key)
        if kv is None or kv.lease is None or not isinstance(self._store, TellsLeases):
            return None
        return await self._store.time_left(kv.lease)

    def guard(self, key: str, value: str) -> Comparison:
        """Return a comparison that holds while the record is unchanged."""
        return Value(key) == value.encode()

    # Internal

    async def _write(self, key: str, condition: Comparison, value: str, ttl: float) -> bool:
        before = self._leases.get(key)
        lease = await self._grant(ttl) if ttl else None
        operation: Operation = Put(key, value.encode(), lease.id if lease else None)
        try:
            result = await self._store.txn([condition], [operation])
        except Uncertain:
            raise  # the lease, and the record if it was written, expire by themselves
        except LeaseGone:
            raise Unavailable(
                f"record {key!r}: the store took longer than its ttl of {ttl:g} s; nothing was written, try again"
            ) from None
        except HostlerError:
            await _revoke(lease)
            raise
        if not result.succeeded:
            await _revoke(lease)
            return False
        await self._replace(key, before, lease)
        return True

    async def _renew(self, key: str, value: str, ttl: float) -> bool:
        kept = await self._renew_lease(key, ttl)
        while True:
            result = await self._store.txn([Value(key) == value.encode()], [Get(key)])
            if not result.succeeded:
                return False
            kv = result.responses[0]
            if not isinstance(kv, KeyValue):
                raise Damaged(f"record {key!r}: the store found it but did not return it; report this as a defect")
            if kept is not None and kv.lease == kept.id:
                return True
            if await self._write(key, ModRevision(key) == kv.mod_revision, value, ttl):
                return True  # else another write came in between, perhaps an equal one: check again

    async def _renew_lease(self, key: str, ttl: float) -> Lease | None:
        """Return the known lease of the record, if it could be renewed for another `ttl`."""
        lease = self._leases.get(key)
        if lease is None or not lease.ttl >= ttl > 0:
            return None
        try:
            await lease.keep_alive()
        except LeaseGone:
            if self._leases.get(key) is lease:
                del self._leases[key]
            return None
        return lease

    async def _grant(self, ttl: float) -> Lease:
        try:
            return await self._store.grant(ttl)
        except Uncertain as error:  # a lease without keys has no effect
            raise Unavailable(f"{error}; no record was written") from error

    async def _replace(self, key: str, before: Lease | None, after: Lease | None) -> None:
        """Record that the key moved from the lease known before the transaction to `after`, and end the old lease.

        Only the lease known before may be ended: answers arrive in any order, and a record that was written through
        this object in the meantime has its own lease.
        """
        if self._leases.get(key) is before:
            if after is None:
                self._leases.pop(key, None)
            else:
                self._leases[key] = after
        await _revoke(before)

    async def _wait_for_change(self, key: str, seen: str | None) -> str | None:
        while True:
            page = await self._store.range(key, limit=1)
            now = _text(next((kv for kv in page.items if kv.key == key), None))
            if now != seen:
                return now
            with suppress(Missed):
                async with watching(self._store, key, start_revision=page.revision + 1, previous=False) as watch:
                    async for event in watch:
                        if event.kv.key == key and _text(event.kv) != seen:
                            return _text(event.kv)


async def _revoke(lease: Lease | None) -> None:
    """End a lease without keys; if that fails, it expires by itself."""
    if lease is not None:
        with suppress(HostlerError):
            await lease.revoke()


def _text(kv: KeyValue | None) -> str | None:
    return kv.value.decode(errors="surrogateescape") if kv is not None and kv.version else None
