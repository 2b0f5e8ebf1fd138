"""The state of a state file in memory, with its lines ready to be written again."""

from __future__ import annotations

import secrets
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from hostler.drivers.store.file.format import KnownState, Lease, document, history_line, key_line, lease_line
from hostler.drivers.store.mvcc import LeaseState, Mvcc
from hostler.errors import Damaged

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from hostler.drivers.store.file.format import Content
    from hostler.drivers.store.local_store import HostTime
    from hostler.ports.store import Comparison, Event, Operation, TxnResult


class Bounds(NamedTuple):
    """How much history is kept: exceeding any of the bounds discards the oldest."""

    revisions: int = 10_000
    age: float = 86_400.0
    size_bytes: int = 16 * 1024 * 1024


class Commit(NamedTuple):
    """One revision. Without events: revisions continue above it, and history before it is discarded."""

    revision: int
    at: float
    events: tuple[Event, ...]


class Advance(msgspec.Struct):
    """The difference between a saved state and a later one. A copy of the store that applies it reaches that state."""

    store_id: str
    saved: int
    compacted: int = 0
    leases: dict[int, Lease] = msgspec.field(default_factory=dict)
    commits: list[Commit] = msgspec.field(default_factory=list)
    ended: list[int] = msgspec.field(default_factory=list)


def check_later(path: str, known: KnownState | None, content: Content) -> None:
    """Raise Damaged unless the content is a later state of the known store."""
    if known is None:
        return
    older = content.saved < known.saved or content.revision < known.revision
    if older or content.id != known.store_id:
        raise Damaged(
            f"{path}: replaced by another or an older state while the store is open; "
            "restore it, or restart every process that uses it"
        )


class Copy:
    """The store as of one saved state, for reading."""

    def __init__(self, host: HostTime) -> None:
        self._host = host
        self.store_id = ""
        self.saved = 0
        self.mvcc = Mvcc()

    @property
    def known(self) -> KnownState | None:
        """The state that it is a copy of; None: not loaded yet."""
        return KnownState(self.store_id, self.saved, self.mvcc.revision) if self.store_id else None

    def replace(self, content: Content) -> None:
        """Replace everything by the content."""
        self.mvcc = Mvcc.restore(
            content.live(),
            [events for _, _, events in content.log(0)],
            [LeaseState(lease.id, lease.ttl, self._local(lease)) for lease in content.leases.values()],
            revision=content.revision,
            compacted=content.compacted,
        )
        self.store_id, self.saved = content.id, content.saved

    def way_to(self, path: str, content: Content) -> Advance | None:
        """Return the difference to the content; None if only `replace` is possible."""
        check_later(path, self.known, content)
        if content.saved == self.saved or content.first_revision > self.mvcc.revision + 1:
            return None  # edited by hand, or so far ahead that its history does not reach back
        ended = [id_ for id_ in self.mvcc.leases if id_ not in content.leases]
        commits = [Commit(*entry) for entry in content.log(self.mvcc.revision + 1)]
        return Advance(content.id, content.saved, content.compacted, content.leases, commits, ended)

    def take(self, advance: Advance) -> None:
        """Apply the difference to a later state."""
        for lease in advance.leases.values():
            state = self.mvcc.leases.get(lease.id)
            if state is None:
                self.mvcc.grant(lease.id, lease.ttl, self._local(lease))
            else:
                state.deadline = self._local(lease)
        for commit in advance.commits:
            if commit.events:
                self.mvcc.replay(commit.events)
            else:
                self.mvcc.raise_revision(commit.revision)
        for id_ in advance.ended:
            self.mvcc.leases.pop(id_, None)
        if advance.compacted > self.mvcc.compacted:
            self.mvcc.compact(advance.compacted)
        self.store_id, self.saved = advance.store_id, advance.saved

    def _local(self, lease: Lease) -> float:
        return self._host.local(lease.deadline, lease.ttl).at


class Draft(Copy):
    """The store with the changes of one batch, and the bytes to save them.

    Between `begin` and `finish` it is ahead of the file. If saving fails it must be discarded.
    """

    def __init__(self, host: HostTime, bounds: Bounds, rng: random.Random) -> None:
        super().__init__(host)
        self._bounds, self._rng = bounds, rng
        self._lines: dict[str, bytes] = {}
        self._leases: dict[int, Lease] = {}
        self._history: deque[tuple[int, float, bytes]] = deque()
        self._history_bytes = 0
        self._advance = Advance("", 0)
        self._dirty = False

    def replace(self, content: Content) -> None:
        super().replace(content)
        log = content.log(0)
        keys, history = content.lines() or (
            {kv.key: key_line(kv) for kv in self.mvcc.values()},
            [history_line(*entry) for entry in log],
        )
        self._lines = keys
        self._history = deque((entry[0], entry[1], line) for entry, line in zip(log, history, strict=True))
        self._history_bytes = sum(map(len, history))
        self._note_leases(content.leases)

    def take(self, advance: Advance) -> None:
        super().take(advance)
        for commit in advance.commits:
            if commit.events:
                self._write_down(commit)
        self._forget_compacted()
        self._note_leases(advance.leases)

    def begin(self) -> None:
        """Start a batch: end the leases that have expired."""
        self._advance = Advance(self.store_id or secrets.token_hex(8), self.saved + 1)
        now = self._host.now()
        due = sorted((lease.deadline, lease.id) for lease in self.mvcc.leases.values() if lease.deadline <= now)
        for _, id_ in due:
            self.revoke(id_)

    def finish(self) -> tuple[bytes, Advance] | None:
        """End a batch and return the bytes to save and the difference; None if nothing changed."""
        if not self._dirty:
            return None
        self._dirty = False
        self._compact_by_itself()
        advance = self._advance
        advance.compacted = self.mvcc.compacted
        self.store_id, self.saved = advance.store_id, advance.saved
        data = document(
            self.store_id,
            self.saved,
            self.mvcc.revision,
            self.mvcc.compacted,
            keys=[self._lines[key] for key in sorted(self._lines)],
            leases=[lease_line(self._leases[id_]) for id_ in sorted(self._leases)],
            history=[line for _, _, line in self._history],
        )
        return data, advance

    # Operations of a batch

    def txn(self, when: Sequence[Comparison], then: Sequence[Operation], otherwise: Sequence[Operation]) -> TxnResult:
        """Run a transaction."""
        result, events = self.mvcc.txn(when, then, otherwise)
        self._commit(events)
        return result

    def grant(self, ttl: float) -> int:
        """Create a lease and return its id, which every JSON parser can represent exactly."""
        id_ = self._rng.randrange(1, 2**53)
        while id_ in self.mvcc.leases:
            id_ = self._rng.randrange(1, 2**53)
        deadline = self._host.after(ttl)
        self.mvcc.grant(id_, ttl, deadline.at)
        self._set_lease(Lease(id_, ttl, deadline))
        return id_

    def keep_alive(self, id_: int) -> None:
        """Renew a lease for another ttl. LeaseGone: it has ended."""
        lease = self.mvcc.lease(id_)
        deadline = self._host.after(lease.ttl)
        lease.deadline = deadline.at
        self._set_lease(Lease(id_, lease.ttl, deadline))

    def revoke(self, id_: int) -> None:
        """End a lease, if it exists."""
        if self._leases.pop(id_, None) is not None:
            self._dirty = True
            self._advance.ended.append(id_)
            self._commit(self.mvcc.revoke(id_))

    def compact(self, revision: int) -> None:
        """Discard what was superseded at or before `revision`."""
        self.mvcc.compact(revision)
        self._forget_compacted()
        self._dirty = True

    def raise_revision(self, revision: int) -> None:
        """Continue with revisions above this one, and discard the history before it."""
        if revision > self.mvcc.revision:
            self.mvcc.raise_revision(revision)
            self._forget_compacted()
            self._advance.commits.append(Commit(revision, self._host.wall(), ()))
            self._dirty = True

    # Internal

    def _commit(self, events: tuple[Event, ...]) -> None:
        if events:
            commit = Commit(self.mvcc.revision, self._host.wall(), events)
            self._write_down(commit)
            self._advance.commits.append(commit)
            self._dirty = True

    def _set_lease(self, lease: Lease) -> None:
        self._leases[lease.id] = self._advance.leases[lease.id] = lease
        self._dirty = True

    def _note_leases(self, leases: dict[int, Lease]) -> None:
        """Store the leases of the file; those of an earlier boot are converted to this boot's clock."""
        self._leases = {id_: self._on_this_boot(lease) for id_, lease in leases.items()}
        self._dirty = any(self._leases[id_] is not lease for id_, lease in leases.items())

    def _on_this_boot(self, lease: Lease) -> Lease:
        deadline = self._host.local(lease.deadline, lease.ttl)
        return lease if deadline is lease.deadline else Lease(lease.id, lease.ttl, deadline)

    def _write_down(self, commit: Commit) -> None:
        for event in commit.events:
            if event.type == "put":
                self._lines[event.kv.key] = key_line(event.kv)
            else:
                self._lines.pop(event.kv.key, None)
        self._remember(commit)

    def _remember(self, commit: Commit) -> None:
        line = history_line(*commit)
        self._history.append((commit.revision, commit.at, line))
        self._history_bytes += len(line)

    def _forget_compacted(self) -> None:
        while self._history and self._history[0][0] < self.mvcc.compacted:
            self._history_bytes -= len(self._history.popleft()[2])

    def _compact_by_itself(self) -> None:
        """Discard the oldest history, more than one revision at a time if the bound is a number."""
        bounds, excess = self._bounds, 0
        if len(self._history) > bounds.revisions * 1.1:
            excess = len(self._history) - bounds.revisions
        oldest_at = self._host.wall() - bounds.age
        size = self._history_bytes
        target_size = size if size <= bounds.size_bytes else bounds.size_bytes * 0.9
        for index, (revision, at, line) in enumerate(self._history):
            newest = revision == self.mvcc.revision
            if newest or (index >= excess and at >= oldest_at and size <= target_size):
                if index:
                    self.mvcc.compact(revision)
                    self._forget_compacted()
                return
            size -= len(line)
