"""Reads and writes the node's slice keys: the status of instances, and their endpoints.

Changes to several instances of one key are written in one transaction. Every write compares the revision of the key and
that the node belongs to this session. Endpoints are written under both comparisons and attached to the session's lease.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from typing import TYPE_CHECKING

import msgspec

from hostler.engine.deployments.state_machine import changed_record
from hostler.engine.runtime.guarded_writer import Expectation
from hostler.engine.slices.decide import Show
from hostler.errors import Conflict, Damaged, HostlerError, LeaseGone, Unavailable, Uncertain
from hostler.keys.entry import Unreadable
from hostler.keys.families import ALIVE, ENDPOINT, SLICE
from hostler.model.deployment import Endpoint, SliceState, may_move
from hostler.ports.store import Delete, Get, KeyValue, ModRevision, Put

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from hostler.engine.agent.session import Session
    from hostler.keys.cache import Cache
    from hostler.keys.entry import Entry
    from hostler.kit.clock import Clock
    from hostler.model.deployment import SliceInstance, SliceRecord
    from hostler.ports.slices import Running
    from hostler.ports.store import Comparison, Operation, Store, TxnResult

PATIENCE = 5.0
"""Seconds that one request to the store may take."""
PACE = 0.05
"""Seconds between two transactions on one key, so that frequent changes are batched."""
MOST = 120
"""Operations in one transaction."""
_log = logging.getLogger("hostler.agent")


class Outcome(enum.StrEnum):
    """Result of a write."""

    WRITTEN = "written"
    STALE = "stale"
    """The key has changed since it was read, or the change is not allowed; the current value is known now."""
    AWAY = "away"
    """The store does not answer, or the session has ended."""


class Change:
    """A change to one instance that waits to be written."""

    __slots__ = ("done", "new", "number", "running", "seen", "session", "show")

    def __init__(
        self,
        number: int,
        seen: SliceInstance,
        new: SliceInstance | None,
        *,
        show: Show = Show.KEEP,
        running: Running | None = None,
    ) -> None:
        self.number, self.seen, self.new = number, seen, new
        self.show, self.running = show, running
        self.session = 0
        """Number of the session under which the change was written."""
        self.done: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    def settle(self, outcome: Outcome) -> None:
        if not self.done.done():
            self.done.set_result(outcome)


class StatusWriter:
    """Reads and writes slice records. Reads include its own writes before the mirror has received them."""

    def __init__(
        self,
        store: Store,
        session: Session,
        mirror: Cache[SliceRecord],
        *,
        node: str,
        clock: Clock,
        learned: Callable[[str], None],
        wrote: Callable[[str, SliceRecord | None], None],
    ) -> None:
        """`learned(key)` is called when a read was newer than the mirror, `wrote` after a write of this object."""
        self._store, self._session, self._mirror = store, session, mirror
        self._learned, self._wrote = learned, wrote
        self._node, self._clock = node, clock
        self._own: dict[str, tuple[Expectation, Entry[SliceRecord] | Unreadable | None]] = {}
        self._pages: dict[str, _Page] = {}
        self.transactions = 0
        """Number of transactions that succeeded."""

    def key(self, artifact: str) -> str:
        return SLICE.fill(node=self._node, artifact=artifact)

    def look(self, key: str) -> Entry[SliceRecord] | Unreadable | None:
        """Return the record of a key, as far as this node knows it."""
        own = self._own.get(key)
        if own is not None:
            if not own[0].is_met():
                return own[1]
            del self._own[key]
        return self._mirror.entries.get(key) or self._mirror.unreadable.get(key)

    async def write(self, key: str, change: Change) -> Outcome:
        """Write a change, batched with other changes to the same key."""
        page = self._pages.get(key)
        if page is None:
            page = self._pages[key] = _Page()
        page.waiting.append(change)
        if page.task is None:
            page.task = asyncio.create_task(self._flush(key, page), name=f"slice key {key}")
        return await change.done

    async def withdraw(self, artifact: str, instance: int, methods: Iterable[str]) -> None:
        """Delete the endpoints of an instance without a key, if they belong to this node.

        The number may now belong to an instance on another node. HostlerError: some endpoints may remain.
        """
        number = self._session.number
        keys = [ENDPOINT.fill(artifact=artifact, method=name, instance=instance) for name in methods]
        for first in range(0, len(keys), MOST // 2):
            piece = keys[first : first + MOST // 2]
            found = (await self._ask([], [Get(key) for key in piece])).responses
            own = [kv for kv in found if isinstance(kv, KeyValue) and self._is_own(kv)]
            if not own:
                continue
            when = [self._session.guard(), *(ModRevision(kv.key) == kv.mod_revision for kv in own)]
            result = await self._ask(when, [Delete(kv.key) for kv in own], [ALIVE.get_op(node=self._node)])
            if not result.succeeded:
                if not self._session.is_own(result.responses[0]):  # type: ignore[arg-type]
                    self._session.record_end(number)
                raise Conflict(f"endpoints of {artifact}#{instance}: changed concurrently; they are read again")

    async def aclose(self) -> None:
        """Cancel all pending writes."""
        tasks = [page.task for page in self._pages.values() if page.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # Internal

    def _is_own(self, kv: KeyValue) -> bool:
        try:
            return ENDPOINT.entry(kv).value.node_id == self._node
        except Damaged:
            return False

    async def _ask(
        self, when: list[Comparison], then: list[Operation], otherwise: Sequence[Operation] = ()
    ) -> TxnResult:
        if not self._session.open:
            raise Unavailable(f"node {self._node}: the agent has no session; retried after it registers again")
        try:
            async with asyncio.timeout(PATIENCE):
                return await self._store.txn(when, then, otherwise)
        except TimeoutError:
            raise Unavailable(f"the store did not answer within {PATIENCE:g} s") from None

    async def _flush(self, key: str, page: _Page) -> None:
        try:
            while page.waiting:
                pause = page.next_at - self._clock.now()
                if pause > 0:
                    await self._clock.sleep(pause)
                page.next_at = self._clock.now() + PACE
                changes, page.waiting = page.waiting, []
                page.busy = changes
                while changes:
                    changes = await self._write_page(key, changes)
                page.busy = []
        except HostlerError as error:  # raised by a write only if there is a bug
            _log.error("%s: write failed", key, exc_info=error)
        finally:
            page.task = None
            for change in (*page.busy, *page.waiting):
                change.settle(Outcome.AWAY)
            page.busy, page.waiting = [], []
            if key not in self._mirror.entries and not page.waiting:
                self._pages.pop(key, None)

    async def _write_page(self, key: str, changes: list[Change]) -> list[Change]:
        """Write changes in one transaction; return those that did not fit."""
        entry = self.look(key)
        if entry is None or isinstance(entry, Unreadable):
            return _settled(changes, Outcome.STALE)
        each = entry.value.each()
        if not self._session.open:
            return _settled(changes, Outcome.AWAY)
        lease, number, guard = self._session.lease, self._session.number, self._session.guard()
        now: list[Change] = []
        rest: list[Change] = []
        operations: list[Operation] = []
        for change in changes:
            if not _fits(each.get(change.number), change):
                change.settle(Outcome.STALE)
                continue
            shown = self._shown(entry, change, lease)
            if now and len(operations) + len(shown) >= MOST:
                rest.append(change)
                continue
            now.append(change)
            operations += shown
        if not now:
            return rest
        record = self._record(entry.value, now)
        if len(operations) >= MOST:  # one instance with that many methods: write its endpoints first
            entry = await self._piecemeal(entry, record, operations)
            if entry is None:
                _settled(now, Outcome.STALE)
                return rest
            operations = []
        if record != entry.value:
            head = Delete(entry.key) if record is None else Put(entry.key, SLICE.encode(record))
            operations = [head, *operations]
        outcome = await self._txn(entry, record, operations, [guard], number) if operations else Outcome.WRITTEN
        for change in now:
            change.session = number
            change.settle(outcome)
        return rest

    def _record(self, record: SliceRecord, changes: list[Change]) -> SliceRecord | None:
        names = dict.fromkeys(record.methods)
        for change in changes:
            if change.show is Show.PUT and change.running is not None:
                names.update((method.name, None) for method in change.running.methods)
        methods = record.methods if len(names) == len(record.methods) else tuple(names)
        new = {change.number: change.new for change in changes if change.new != change.seen}
        if not new and methods == record.methods:
            return record
        return changed_record(record, new, at=self._clock.wall(), methods=methods)

    def _shown(self, entry: Entry[SliceRecord], change: Change, lease: int | None) -> list[Operation]:
        artifact, running = entry.parts["artifact"], change.running
        if change.show is Show.DROP:
            # Usually the same methods; but another program may have rewritten the record without them.
            known = () if running is None else tuple(method.name for method in running.methods)
            return [
                ENDPOINT.delete(artifact=artifact, method=name, instance=change.number)
                for name in dict.fromkeys((*entry.value.methods, *known))
            ]
        if change.show is Show.KEEP or running is None:
            return []
        return [
            ENDPOINT.put(
                Endpoint(
                    node_id=self._node,
                    instance=change.number,
                    state=SliceState.ACTIVE,
                    address=running.address,
                    idempotent=method.idempotent,
                    streams=method.streams,
                ),
                lease=lease,
                artifact=artifact,
                method=method.name,
                instance=change.number,
            )
            for method in running.methods
        ]

    async def _piecemeal(
        self, entry: Entry[SliceRecord], record: SliceRecord | None, operations: list[Operation]
    ) -> Entry[SliceRecord] | None:
        """Write endpoints before the state that they belong to; None: not all of them were written.

        The method names are in the record before the first endpoint exists, so that they can always be deleted.
        """
        number = self._session.number
        named = entry.value
        if record is not None and record.methods != named.methods:
            named = msgspec.structs.replace(named, methods=record.methods)
        for first in range(0, len(operations), MOST - 1):
            piece = operations[first : first + MOST - 1]
            if named is not entry.value and named != entry.value:
                piece = [Put(entry.key, SLICE.encode(named)), *piece]
            if not self._session.open:
                return None
            if await self._txn(entry, named, piece, [self._session.guard()], number) is not Outcome.WRITTEN:
                return None
            found = self.look(entry.key)
            if found is None or isinstance(found, Unreadable) or found.value != named:
                return None
            entry = found
        return entry

    async def _txn(
        self,
        entry: Entry[SliceRecord],
        record: SliceRecord | None,
        operations: list[Operation],
        when: list[Comparison],
        number: int,
    ) -> Outcome:
        key = entry.key
        otherwise = [Get(key), ALIVE.get_op(node=self._node)]
        try:
            async with asyncio.timeout(PATIENCE):
                result = await self._store.txn([*when, SLICE.unchanged(entry)], operations, otherwise)
        except LeaseGone:
            self._session.record_end(number)
            return Outcome.AWAY
        except (Uncertain, TimeoutError):
            return await self._read(key)
        except HostlerError as error:
            _log.info("%s: write failed: %s", key, error)
            return Outcome.AWAY
        if not result.succeeded:
            self._learn(key, result.responses[0], result.revision)  # type: ignore[arg-type]
            if not self._session.is_own(result.responses[1]):  # type: ignore[arg-type]
                self._session.record_end(number)
                return Outcome.AWAY
            return Outcome.STALE
        self.transactions += 1
        self._wrote(key, record)
        if record is None:
            self._expect(key, result.revision, None)
        elif record != entry.value:
            written = msgspec.structs.replace(
                entry, value=record, mod_revision=result.revision, version=entry.version + 1
            )
            self._expect(key, result.revision, written)
        return Outcome.WRITTEN

    async def _read(self, key: str) -> Outcome:
        """Read the key after a write whose response was lost."""
        try:
            async with asyncio.timeout(PATIENCE):
                result = await self._store.txn([], [Get(key)])  # a transaction also gives the revision of an absent key
        except (HostlerError, TimeoutError):
            return Outcome.AWAY
        self._learn(key, result.responses[0], result.revision)  # type: ignore[arg-type]
        return Outcome.STALE

    def _learn(self, key: str, kv: KeyValue | None, revision: int) -> None:
        if kv is None:
            self._expect(key, revision, None)
        else:
            try:
                self._expect(key, kv.mod_revision, SLICE.entry(kv))
            except Damaged as error:
                self._expect(key, kv.mod_revision, Unreadable(error, SLICE.parse(key), kv))
        self._learned(key)

    def _expect(self, key: str, revision: int, found: Entry[SliceRecord] | Unreadable | None) -> None:
        self._own[key] = Expectation(self._mirror, key, revision, there=found is not None), found


class _Page:
    """Pending changes to one key."""

    __slots__ = ("busy", "next_at", "task", "waiting")

    def __init__(self) -> None:
        self.waiting: list[Change] = []
        self.busy: list[Change] = []
        self.next_at = 0.0
        self.task: asyncio.Task[None] | None = None


def _fits(instance: SliceInstance | None, change: Change) -> bool:
    """Return whether the instance is still as it was when the change was decided, and may enter the new state."""
    seen, new = change.seen, change.new
    if instance is None or (instance.state, instance.template) != (seen.state, seen.template):
        return False
    if (instance.ready, instance.restarts) != (seen.ready, seen.restarts):
        return False
    state = None if new is None else new.state
    return state is seen.state or may_move(seen.state, state)


def _settled(changes: list[Change], outcome: Outcome) -> list[Change]:
    for change in changes:
        change.settle(outcome)
    return []
