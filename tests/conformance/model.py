"""What a store means, written as simply as possible: a full copy of everything for each revision.

Written from the semantics, not from the drivers: nothing here is shared with them but the types of the port.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler import Delete, DeletePrefix, Event, Get, KeyValue, Put

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostler import Comparison
    from hostler.ports.store import Operation, Response

Snapshot = dict[str, KeyValue]


class Model:
    """Snapshots and events by revision, from the revision that the store had at the start."""

    def __init__(self, revision: int) -> None:
        self.first = self.revision = revision
        self.compacted = 0
        self.snapshots: dict[int, Snapshot] = {revision: {}}
        self.events: dict[int, list[Event]] = {}
        self.leases: set[int] = set()

    @property
    def now(self) -> Snapshot:
        return self.snapshots[self.revision]

    def range(self, prefix: str, after: str = "", revision: int | None = None) -> list[KeyValue]:
        """Everything under `prefix` that follows `after`, sorted by bytes."""
        snapshot = self.snapshots[revision or self.revision]
        keys = [key for key in snapshot if key.startswith(prefix) and key.encode() > after.encode()]
        return [snapshot[key] for key in sorted(keys, key=str.encode)]

    def holds(self, comparison: Comparison) -> bool:
        kv = self.now.get(comparison.key)
        left: int | bytes
        if comparison.target == "value":
            if kv is None:
                return False
            left = kv.value
        else:
            name = {"version": "version", "create": "create_revision", "mod": "mod_revision"}[comparison.target]
            left = 0 if kv is None else getattr(kv, name)
        right = comparison.operand
        table = {"==": left == right, "!=": left != right, "<": left < right, ">": left > right}  # type: ignore[operator]
        return table[comparison.operator]

    def txn(
        self, when: Sequence[Comparison], then: Sequence[Operation], otherwise: Sequence[Operation]
    ) -> tuple[bool, list[Response]] | None:
        """Which branch ran and its responses; None if a lease that it needs is gone."""
        succeeded = all(self.holds(comparison) for comparison in when)
        branch = then if succeeded else otherwise
        if any(isinstance(op, Put) and op.lease is not None and op.lease not in self.leases for op in branch):
            return None
        draft, events = dict(self.now), list[Event]()
        responses = [self._do(operation, draft, events) for operation in branch]
        self._commit(draft, events)
        return succeeded, responses

    def end_lease(self, lease: int) -> None:
        """Revoked or run out."""
        self.leases.discard(lease)
        draft, events = dict(self.now), list[Event]()
        for key in sorted(self.now, key=str.encode):
            if self.now[key].lease == lease:
                self._delete(key, draft, events)
        self._commit(draft, events)

    def history(self, prefix: str, start: int) -> list[Event]:
        """What a watch from `start` on gets."""
        revisions = range(start, self.revision + 1)
        return [event for r in revisions for event in self.events.get(r, []) if event.kv.key.startswith(prefix)]

    def _do(self, operation: Operation, draft: Snapshot, events: list[Event]) -> Response:
        if isinstance(operation, Get):
            return draft.get(operation.key)
        if isinstance(operation, Delete):
            return self._delete(operation.key, draft, events)
        if isinstance(operation, DeletePrefix):
            keys = sorted((key for key in draft if key.startswith(operation.prefix)), key=str.encode)
            return sum(self._delete(key, draft, events) for key in keys)
        revision, old = self.revision + 1, draft.get(operation.key)
        assert operation.lease is None or isinstance(operation.lease, int)
        draft[operation.key] = KeyValue(
            operation.key,
            operation.value,
            old.create_revision if old else revision,
            revision,
            old.version + 1 if old else 1,
            operation.lease,
        )
        events.append(Event("put", draft[operation.key], old))
        return None

    def _delete(self, key: str, draft: Snapshot, events: list[Event]) -> bool:
        old = draft.pop(key, None)
        if old is not None:
            events.append(Event("delete", KeyValue(key, b"", 0, self.revision + 1, 0), old))
        return old is not None

    def _commit(self, draft: Snapshot, events: list[Event]) -> None:
        if events:
            self.revision += 1
            self.snapshots[self.revision] = draft
            self.events[self.revision] = events
