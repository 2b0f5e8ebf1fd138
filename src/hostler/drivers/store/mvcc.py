"""Keys with their history, in memory: the reference for the semantics of a store.

Pure: no I/O, no clock, no waiting. The deadline of a lease is a number that the caller compares.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from hostler.errors import Compacted, FutureRevision, LeaseGone
from hostler.kit.sorted_sets import SortedSet
from hostler.ports.store import Delete, DeletePrefix, Event, Get, KeyValue, Page, Put, TxnResult, lease_id

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hostler.ports.store import Comparison, Operation, Response

FIRST_REVISION = 1
"""The revision of an empty store, as in etcd."""


class LeaseState:
    """An active lease: when it ends, and the keys attached to it."""

    __slots__ = ("deadline", "id", "keys", "ttl")

    def __init__(self, id_: int, ttl: float, deadline: float) -> None:
        self.id, self.ttl, self.deadline = id_, ttl, deadline
        self.keys: set[str] = set()


class Mvcc:
    """All keys, their older versions since the last compaction, and the log of changes."""

    def __init__(self) -> None:
        self.revision = FIRST_REVISION
        self.compacted = 0
        self.leases: dict[int, LeaseState] = {}
        self._live: dict[str, KeyValue] = {}
        self._past: dict[str, list[KeyValue]] = {}  # superseded versions and tombstones, oldest first
        self._keys = SortedSet()  # of both
        self._log: list[tuple[Event, ...]] = []  # of each revision from _log_start on
        self._log_start = FIRST_REVISION + 1

    @classmethod
    def restore(
        cls,
        live: Iterable[KeyValue],
        log: Sequence[tuple[Event, ...]],
        leases: Iterable[LeaseState],
        *,
        revision: int,
        compacted: int,
    ) -> Mvcc:
        """Restore a saved state: every key, the events of the newest `len(log)` revisions, and every lease."""
        self = cls()
        self.revision, self.compacted = revision, compacted
        self._log = list(log)
        self._log_start = revision + 1 - len(self._log)
        self.leases = {lease.id: lease for lease in leases}
        self._live = {kv.key: kv for kv in live}
        for events in self._log[max(0, compacted + 1 - self._log_start) :]:
            for event in events:
                self._supersede(event)
        self._keys = SortedSet((*self._live, *self._past))
        for kv in self._live.values():
            if kv.lease is not None:
                self.leases[kv.lease].keys.add(kv.key)
        return self

    def __len__(self) -> int:
        return len(self._live)

    # Reading

    def get(self, key: str, revision: int | None = None) -> KeyValue | None:
        """Return the key now or at `revision`."""
        if revision is None:
            return self._live.get(key)
        self.check_readable(revision)
        return self._at(key, revision)

    def range(
        self, prefix: str, *, after: str | None, limit: int | None, revision: int | None, keys_only: bool
    ) -> Page:
        """Return a page of keys, now or at `revision`."""
        if revision is not None:
            self.check_readable(revision)
        items: list[KeyValue] = []
        for key in self._with_prefix(prefix, after):
            kv = self._live.get(key) if revision is None else self._at(key, revision)
            if kv is None:
                continue
            if limit is not None and len(items) == limit:
                return Page(tuple(items), revision or self.revision, more=True)
            items.append(without_value(kv) if keys_only else kv)
        return Page(tuple(items), revision or self.revision, more=False)

    def values(self) -> Iterable[KeyValue]:
        """Return every existing key, unordered."""
        return self._live.values()

    def changes(self, prefix: str, start_revision: int, limit: int) -> tuple[list[Event], int]:
        """Return whole transactions from `start_revision` on, about `limit` events, and the next revision."""
        if start_revision < self.compacted:
            raise Compacted(self.compacted)
        found: list[Event] = []
        revision = max(start_revision, self._log_start)
        while revision <= self.revision and len(found) < limit:
            found.extend(event for event in self._log[revision - self._log_start] if event.kv.key.startswith(prefix))
            revision += 1
        return found, max(revision, start_revision)

    def log(self, start_revision: int) -> Iterator[tuple[int, tuple[Event, ...]]]:
        """Yield each kept revision from `start_revision` on, with its events."""
        for revision in range(max(start_revision, self._log_start), self.revision + 1):
            yield revision, self._log[revision - self._log_start]

    def check_readable(self, revision: int) -> None:
        """Raise FutureRevision or Compacted if `revision` cannot be read."""
        if revision > self.revision:
            raise FutureRevision(f"revision {revision}: the store is at {self.revision}")
        if revision < self.compacted:
            raise Compacted(self.compacted)

    # Writing

    def txn(
        self, when: Sequence[Comparison], then: Sequence[Operation], otherwise: Sequence[Operation]
    ) -> tuple[TxnResult, tuple[Event, ...]]:
        """Run a validated transaction. LeaseGone: nothing was changed."""
        succeeded = all(comparison.holds(self._live.get(comparison.key)) for comparison in when)
        branch = then if succeeded else otherwise
        for operation in branch:
            if isinstance(operation, Put) and operation.lease is not None:
                self.lease(lease_id(operation.lease) or 0)
        events: list[Event] = []
        responses: list[Response] = []
        for operation in branch:
            if isinstance(operation, Put):
                events.append(self._put(operation))
                responses.append(None)
            elif isinstance(operation, Delete):
                deleted = self._delete([operation.key])
                events.extend(deleted)
                responses.append(bool(deleted))
            elif isinstance(operation, DeletePrefix):
                deleted = self._delete(list(self._with_prefix(operation.prefix, None)))
                events.extend(deleted)
                responses.append(len(deleted))
            elif isinstance(operation, Get):
                responses.append(self._live.get(operation.key))
        self._commit(events)
        return TxnResult(succeeded, self.revision, tuple(responses)), tuple(events)

    def replay(self, events: Sequence[Event]) -> None:
        """Repeat what another copy of this store did in its next revision."""
        for event in events:
            previous = self._live.pop(event.kv.key, None)
            if previous is not None:
                self._detach(previous)
            if event.type == "put":
                self._attach(event.kv)
            self._supersede(event)
        self._commit(events)

    def grant(self, id_: int, ttl: float, deadline: float) -> LeaseState:
        """Create a lease."""
        lease = self.leases[id_] = LeaseState(id_, ttl, deadline)
        return lease

    def lease(self, id_: int) -> LeaseState:
        """Return the lease with that id. LeaseGone: there is none."""
        try:
            return self.leases[id_]
        except KeyError:
            raise LeaseGone(f"lease {id_}: it expired or was revoked; grant a new one") from None

    def revoke(self, id_: int) -> tuple[Event, ...]:
        """End a lease, if it exists, and delete the keys attached to it, in one transaction."""
        lease = self.leases.pop(id_, None)
        if lease is None:
            return ()
        events = self._delete(sorted(lease.keys))
        self._commit(events)
        return tuple(events)

    def compact(self, revision: int) -> None:
        """Discard what was superseded at or before `revision`; the log from `revision` on stays."""
        if revision > self.revision:
            raise FutureRevision(f"compaction to revision {revision}: the store is at {self.revision}")
        if revision <= self.compacted:
            raise Compacted(self.compacted)
        for changed_at, events in self.log(self.compacted):
            if changed_at > revision:
                break
            for event in events:
                self._forget(event.kv.key, revision)
        kept = max(0, revision - self._log_start)
        del self._log[:kept]
        self._log_start += kept
        self.compacted = revision

    def raise_revision(self, revision: int) -> None:
        """Continue with revisions above this one, and discard the history before it."""
        if revision <= self.revision:
            return
        self._past.clear()
        self._keys = SortedSet(self._live)
        self._log, self._log_start = [], revision + 1
        self.revision = self.compacted = revision

    # Internal

    def _with_prefix(self, prefix: str, after: str | None) -> Iterator[str]:
        past_start = after is not None and after >= prefix
        for key in self._keys.from_(after if past_start and after is not None else prefix, after=past_start):
            if not key.startswith(prefix):
                return
            yield key

    def _at(self, key: str, revision: int) -> KeyValue | None:
        kv = self._live.get(key)
        if kv is not None and kv.mod_revision <= revision:
            return kv
        past = self._past.get(key, ())
        index = bisect_right(past, revision, key=lambda old: old.mod_revision)
        if index == 0:
            return None
        kv = past[index - 1]
        return kv if kv.version else None

    def _put(self, operation: Put) -> Event:
        revision = self.revision + 1
        previous = self._live.get(operation.key)
        id_ = lease_id(operation.lease)
        if previous is None:
            kv = KeyValue(operation.key, operation.value, revision, revision, 1, id_)
        else:
            kv = KeyValue(operation.key, operation.value, previous.create_revision, revision, previous.version + 1, id_)
            self._detach(previous)
        self._attach(kv)
        event = Event("put", kv, previous)
        self._supersede(event)
        return event

    def _delete(self, keys: Iterable[str]) -> list[Event]:
        revision = self.revision + 1
        events: list[Event] = []
        for key in keys:
            previous = self._live.pop(key, None)
            if previous is None:
                continue
            self._detach(previous)
            event = Event("delete", KeyValue(key, b"", 0, revision, 0), previous)
            self._supersede(event)
            events.append(event)
        return events

    def _supersede(self, event: Event) -> None:
        """Keep the version that the event replaced, and a tombstone if it deleted the key."""
        if event.previous is None:
            return
        past = self._past.setdefault(event.kv.key, [])
        past.append(event.previous)
        if event.type == "delete":
            past.append(event.kv)

    def _attach(self, kv: KeyValue) -> None:
        self._live[kv.key] = kv
        self._keys.add(kv.key)
        # Replayed history may name a lease that has ended since; the deletion follows in that history.
        lease = None if kv.lease is None else self.leases.get(kv.lease)
        if lease is not None:
            lease.keys.add(kv.key)

    def _detach(self, kv: KeyValue) -> None:
        if kv.lease is not None:
            lease = self.leases.get(kv.lease)
            if lease is not None:
                lease.keys.discard(kv.key)

    def _commit(self, events: Sequence[Event]) -> None:
        if events:
            self.revision += 1
            self._log.append(tuple(events))

    def _forget(self, key: str, revision: int) -> None:
        past = self._past.get(key)
        live = self._live.get(key)
        if past is None:
            return
        kept = bisect_right(past, revision, key=lambda old: old.mod_revision)
        superseded = kept < len(past) or live is not None
        # The newest version at `revision` stays readable, unless it is a tombstone.
        if kept and not (live is not None and live.mod_revision <= revision) and past[kept - 1].version:
            kept -= 1
        del past[:kept]
        if not past:
            del self._past[key]
            if not superseded:
                self._keys.discard(key)


def without_value(kv: KeyValue) -> KeyValue:
    """Return a copy without the value."""
    return KeyValue(kv.key, b"", kv.create_revision, kv.mod_revision, kv.version, kv.lease)
