"""The store port on one SQLite file: deadlines, group commit, watches, leases, maintenance.

Three connections: the writer's, in the committer's thread; a reader's on the event loop, because reading a key costs
less than passing the request to a thread; and one in a separate thread for long ranges.
"""

from __future__ import annotations

import asyncio
import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import apsw

from hostler.drivers.store.committer import Committer
from hostler.drivers.store.local_store import LocalStore
from hostler.drivers.store.sqlite.opening import OpenFiles, open_in_thread
from hostler.drivers.store.sqlite.writer import (
    Committed,
    Compact,
    Expire,
    Grant,
    KeepAlive,
    Purge,
    Raise,
    Revoke,
    Shrink,
    Transaction,
    Work,
)
from hostler.drivers.store.watch_hub import BACKLOG, WatchHub
from hostler.errors import Closed, Compacted, HostlerError, Invalid, Unavailable
from hostler.kit.clock import SystemClock
from hostler.kit.tasks import Fairness
from hostler.ports.store import (
    Event,
    KeyValue,
    Put,
    Status,
    TxnResult,
    check_key,
    check_put,
    check_range,
    check_revision,
    check_ttl,
    check_txn,
    keys_read,
    lease_id,
)

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

    from hostler.drivers.store.sqlite.writer import Change
    from hostler.drivers.store.watch_hub import LocalWatch
    from hostler.kit.clock import Clock
    from hostler.ports.store import Comparison, Lease, Operation, Page

T = TypeVar("T")

HISTORY_AGE = 3_600.0
HISTORY_MIB = 256.0
_POLL_WATCHED = 0.02
"""Seconds between checks for other processes' commits while there are watches (a check costs microseconds)."""
_POLL_IDLE = 0.25
_UPKEEP_EVERY = 10.0
_AT_ONCE = 500
"""Revisions of other processes that are published before other tasks may run."""
_LOOK_AT = 50_000
"""Log rows that a purge examines before it deletes what it found."""
_FORGET_AT_ONCE = 500
"""Log rows, or keys, deleted in one batch."""
_SHRINK_AT_ONCE = 32
"""Pages released to the file system in one batch."""
_SHORT_RANGE = 200
"""Maximum number of keys of a range that is read on the event loop."""


class SqliteStore(LocalStore):
    """A store in one file. Several processes of one host may have it open."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        timeout: float = 5.0,
        history_age: float = HISTORY_AGE,
        history_mib: float = HISTORY_MIB,
        backlog: int = BACKLOG,
        clock: Clock | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._path = Path(path)
        if not self._path.is_absolute():
            raise Invalid(f"sqlite store {str(path)!r}: must be an absolute path")
        self._timeout, self._history_age, self._history_bytes = timeout, history_age, int(history_mib * 2**20)
        self._clock = clock or SystemClock()
        self._rng = rng or random.SystemRandom()
        self._hub = WatchHub(self, backlog=backlog, entered=self._look)
        self._fairness = Fairness()
        self._published = 0
        self._wake = asyncio.Event()
        self._purge = False
        self._poller: asyncio.Task[None] | None = None
        self._forgetting: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None

    # Opening and closing

    async def __aenter__(self) -> Self:
        if self._poller is not None:
            raise Closed(f"{self._path}: this store is already open; make another with open_store")
        self._files = files = await self._open_files()
        self._reader, self._far_reader = files.reader, files.far_reader
        self._far = ThreadPoolExecutor(1, thread_name_prefix=f"{self._path}: ranges")
        self._committer: Committer[Work, Committed] = Committer(
            str(self._path), files.writer.run, self._record_commit, turn=files.turn, timeout=self._timeout
        )
        self._committer.start()
        self._hub.open()
        self._closing = None
        self._poller = asyncio.create_task(self._keep_up(), name=f"{self._path}: upkeep")
        try:
            self._published = self._reader.meta()[0]
            lease_end = self._reader.next_lease_end()
            if lease_end is not None and lease_end <= self._clock.now():
                # No process could end it while the store was not open. A full disk must not keep readers out.
                with suppress(HostlerError):
                    await self._committer.submit(Expire())
        except BaseException:
            await self.aclose()
            raise
        return self

    async def _open_files(self) -> OpenFiles:
        opening = open_in_thread(lambda: OpenFiles(self._path, self._timeout, self._clock), asyncio.get_running_loop())
        try:
            async with asyncio.timeout(self._timeout):
                return await opening
        except TimeoutError:
            raise Unavailable(f"{self._path}: another process holds its lock; not opened, try again") from None

    async def aclose(self) -> None:
        if self._poller is None and self._closing is None:
            return
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name=f"{self._path}: closing")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._hub.close()
        tasks = [task for task in (self._poller, self._forgetting) if task is not None]
        self._poller = self._forgetting = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._committer.aclose()
        self._far_reader.interrupt()
        closing = self._far.submit(self._files.close, writer=self._committer.stopped)
        await asyncio.wrap_future(closing)
        self._far.shutdown()

    # Reading

    async def get(self, key: str, *, revision: int | None = None) -> KeyValue | None:
        check_key(key)
        check_revision(revision)
        self._hub.check_open()
        await self._fairness.share()
        return self._reader.get(key, revision)

    async def range(
        self,
        prefix: str,
        *,
        after: str | None = None,
        limit: int | None = None,
        revision: int | None = None,
        keys_only: bool = False,
    ) -> Page:
        check_range(prefix, after, limit, revision)
        self._hub.check_open()
        if limit is not None and limit <= _SHORT_RANGE:
            await self._fairness.share()
            return self._reader.range(prefix, after, limit, revision, keys_only=keys_only)
        return await self._far_away(lambda: self._far_reader.range(prefix, after, limit, revision, keys_only=keys_only))

    def watch(
        self,
        prefix: str,
        *,
        start_revision: int | None = None,
        previous: bool = True,  # noqa: ARG002 - always included, at no cost
    ) -> LocalWatch:
        return self._hub.watch(prefix, start_revision)

    async def status(self) -> Status:
        self._hub.check_open()
        revision, compacted = self._reader.meta()
        sizes = self._reader.sizes()
        size = sizes["bytes"] + self._log_size()
        details = {"path": str(self._path), "leases": str(sizes["leases"]), "watches": str(len(self._hub))}
        return Status("sqlite", apsw.sqlite_lib_version(), revision, compacted, size, details)

    async def check(self) -> list[str]:
        """Read the whole file and return what is wrong with it; empty if nothing is."""
        self._hub.check_open()
        return await self._queue_read(self._far_reader.integrity)

    def _log_size(self) -> int:
        log = Path(f"{self._path}-wal")
        return log.stat().st_size if log.exists() else 0

    def lease_lateness(self, ttl: float) -> float:  # noqa: ARG002 - the same for every ttl
        return 1.0

    async def _far_away(self, read: Callable[[], T]) -> T:
        reading = self._queue_read(read)
        reading.add_done_callback(_drop_error)  # also when its caller was cancelled in the meantime
        try:
            async with asyncio.timeout(self._timeout):
                return await asyncio.shield(reading)
        except TimeoutError:
            raise Unavailable(
                f"{self._path}: not read within {self._timeout:g} s; try again, or a smaller page"
            ) from None

    def _queue_read(self, read: Callable[[], T]) -> asyncio.Future[T]:
        """Read on the other thread when its turn comes; raises Closed if the store was closed before."""

        def turn() -> T:
            self._hub.check_open()
            return read()

        return asyncio.get_running_loop().run_in_executor(self._far, turn)

    # Writing

    async def put(self, key: str, value: bytes, *, lease: int | Lease | None = None) -> int:
        check_put(key, value)
        revision: int = await self._write(Put(key, value, None if lease is None else lease_id(lease)))
        return revision

    async def txn(
        self, when: Sequence[Comparison], then: Sequence[Operation], otherwise: Sequence[Operation] = ()
    ) -> TxnResult:
        check_txn(when, then, otherwise)
        if not when and (keys := keys_read(then)):
            self._hub.check_open()
            await self._fairness.share()
            found = self._reader.several(keys)  # no writer has to be waited for
            if found is not None:
                return TxnResult(True, found[1], tuple(found[0].get(key) for key in keys))
        return await self._commit(when, then, otherwise)

    async def _commit(
        self, when: Sequence[Comparison], then: Sequence[Operation], otherwise: Sequence[Operation]
    ) -> TxnResult:
        result: TxnResult = await self._write(Transaction(tuple(when), tuple(then), tuple(otherwise)))
        return result

    async def grant(self, ttl: float) -> SqliteLease:
        ttl = check_ttl(ttl)
        id_ = self._rng.randrange(1, 2**63)
        while not await self._write(Grant(id_, ttl)):
            id_ = self._rng.randrange(1, 2**63)
        return SqliteLease(self, id_, ttl)

    async def compact(self, revision: int) -> None:
        check_revision(revision, optional=False)
        await self._write(Compact(revision))
        self._purge = True
        self._look()

    async def raise_revision(self, revision: int) -> None:
        """See `RaisesRevision`."""
        check_revision(revision, optional=False)
        await self._write(Raise(revision))
        self._purge = True
        self._look()

    async def keep_alive(self, id_: int) -> None:
        await self._write(KeepAlive(id_))

    async def revoke(self, id_: int) -> None:
        await self._write(Revoke(id_))

    def remaining(self, id_: int) -> float:
        self._hub.check_open()
        end = self._reader.lease_end(id_)
        return 0.0 if end is None else max(0.0, end - self._clock.now())

    async def time_left(self, lease: int) -> float:
        return self.remaining(lease)

    def _write(self, work: Work) -> asyncio.Future[Any]:
        self._hub.check_open()
        return self._committer.submit(work)

    # For watches

    def current_revision(self) -> int:
        return self._reader.meta()[0]

    def compact_revision(self) -> int:
        return self._reader.meta()[1]

    def changes(self, prefix: str, start_revision: int, limit: int) -> tuple[list[Event], int]:  # noqa: ARG002
        return self._reader.changes(prefix, start_revision)

    def _record_commit(self, outcome: Committed) -> None:
        if not outcome.revisions:
            return
        if not self._hub.listening:
            self._published = max(self._published, outcome.revisions[-1][0])
            return
        if outcome.revisions[0][0] > self._published + 1:
            self._publish_log(outcome.revisions[0][0] - 1)  # another process wrote in between
        for revision, changes in outcome.revisions:
            if revision > self._published:
                self._publish(revision, changes)

    def _publish(self, revision: int, changes: list[Change]) -> None:
        def event(change: Change) -> Event:
            key, value, created, version, lease, before = change
            kv = KeyValue(key, value, created, revision, version, lease)
            return Event("put" if version else "delete", kv, self._reader.previous(before))

        self._hub.publish(revision, changes, key=_key_of, event=event)
        self._published = revision

    # Maintenance

    def _look(self) -> None:
        """Run maintenance now, without waiting for its next turn."""
        self._wake.set()

    async def _keep_up(self) -> None:
        """Deliver other processes' writes, end leases on time, delete old history."""
        seen, lease_end, next_upkeep = -1, None, 0.0
        while True:
            try:
                woken = self._wake.is_set()
                self._wake.clear()
                version = self._reader.data_version()
                if version != seen or woken:
                    seen = version
                    await self._deliver()
                    lease_end = self._reader.next_lease_end()
                now = self._clock.now()
                if lease_end is not None and lease_end <= now:
                    await self._committer.submit(Expire())
                    lease_end = self._reader.next_lease_end()
                if (now >= next_upkeep or self._purge) and (self._forgetting is None or self._forgetting.done()):
                    self._purge = False
                    self._forgetting = asyncio.create_task(self._forget(), name=f"{self._path}: forgetting")
                    next_upkeep = now + _UPKEEP_EVERY
            except HostlerError:
                seen = -1  # a full disk, a held lock: try again soon
                await asyncio.sleep(_POLL_IDLE)
            await self._pause(_POLL_WATCHED if len(self._hub) else _POLL_IDLE, lease_end)

    async def _pause(self, seconds: float, lease_end: float | None) -> None:
        if lease_end is not None:
            seconds = max(0.001, min(seconds, lease_end - self._clock.now()))
        try:
            # Not wait_for: on 3.11 it swallows a cancellation that comes as the event is set, and closing hangs.
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _deliver(self) -> None:
        """Publish other processes' writes."""
        if self._committer.committing and self._hub.listening:
            return  # the batch in progress publishes earlier revisions, and then itself
        newest = self._reader.meta()[0]
        while self._published < newest:
            self._publish_log(min(newest, self._published + _AT_ONCE))
            await asyncio.sleep(0)

    def _publish_log(self, until: int) -> None:
        """Publish revisions up to `until` from the log."""
        while self._published < until and self._hub.listening:
            try:
                events, resume = self._reader.changes("", self._published + 1)
            except Compacted as error:
                self._hub.fail(error)
                break
            by_revision: dict[int, list[Event]] = {}
            for event in events:
                by_revision.setdefault(event.kv.mod_revision, []).append(event)
            for revision, together in by_revision.items():
                self._hub.publish(revision, together, key=lambda e: e.kv.key, event=lambda e: e)
            self._published = resume - 1
        self._published = max(self._published, until)

    async def _forget(self) -> None:
        """Compact by age and size, and purge what is compacted, in small steps so that writers do not wait long."""
        with suppress(HostlerError):  # a full disk, a held lock: the next round continues where this one stopped
            before = int((self._clock.wall() - self._history_age) * 1000)
            revision = self._reader.compactable(before, self._history_bytes)
            if revision > self._reader.meta()[1]:
                await self._committer.submit(Compact(revision))
            while self._reader.purge_pending():
                rows, deleted, purged = await self._far_away(lambda: self._far_reader.unreachable(_LOOK_AT))
                for at in range(0, len(rows), _FORGET_AT_ONCE):
                    await self._step(Purge(rows[at : at + _FORGET_AT_ONCE]))
                for at in range(0, len(deleted), _FORGET_AT_ONCE):
                    await self._step(Purge(deleted=deleted[at : at + _FORGET_AT_ONCE]))
                await self._step(Purge(purged=purged))
            while self._reader.free_pages():
                await self._step(Shrink(_SHRINK_AT_ONCE))

    async def _step(self, work: Work) -> None:
        """Run a step of maintenance, then pause for at least as long to let other writers run."""
        began = self._clock.now()
        await self._committer.submit(work)
        await asyncio.sleep(min(0.05, max(0.001, self._clock.now() - began)))


def _drop_error(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()


def _key_of(change: Change) -> str:
    return change.key


class SqliteLease:
    """A lease of a SqliteStore."""

    def __init__(self, store: SqliteStore, id_: int, ttl: float) -> None:
        self._store, self.id, self.ttl = store, id_, ttl

    async def keep_alive(self) -> None:
        await self._store.keep_alive(self.id)

    async def revoke(self) -> None:
        await self._store.revoke(self.id)

    async def remaining(self) -> float:
        return self._store.remaining(self.id)
