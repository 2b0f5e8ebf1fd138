"""The file store: readers on the event loop, one thread that writes."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import random
import threading
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from hostler.drivers.store.committer import Committer
from hostler.drivers.store.file.disk import Version, load, save, size, write_lock
from hostler.drivers.store.file.format import parse
from hostler.drivers.store.file.state import Advance, Bounds, Copy, Draft, check_later
from hostler.drivers.store.local_store import HostTime, StateStore
from hostler.drivers.store.watch_hub import BACKLOG, LocalWatch, WatchHub
from hostler.errors import Compacted, HostlerError, Invalid, Unavailable
from hostler.kit.clock import SystemClock
from hostler.kit.tasks import Fairness
from hostler.ports.store import (
    Status,
    TxnResult,
    check_revision,
    check_ttl,
    check_txn,
    keys_read,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hostler.drivers.store.committer import Request
    from hostler.drivers.store.file.format import Content, KnownState
    from hostler.drivers.store.mvcc import Mvcc
    from hostler.kit.clock import Clock
    from hostler.ports.store import Comparison, Event, Operation

    Work: TypeAlias = Callable[[Draft], Any]

_WATCHED_EVERY = 0.015
"""Seconds between checks of the file while it is watched."""
_IDLE_EVERY = 0.25
"""Seconds between checks otherwise, to learn of other processes' leases."""


class _Step:
    """A state that the writing thread loaded or saved: from which version of the file to which."""

    __slots__ = ("advance", "after", "before")

    def __init__(self, before: Version | None, advance: Advance, after: Version) -> None:
        self.before, self.advance, self.after = before, advance, after


class FileStore(StateStore):
    """A store in the JSON file at `path`, shared with other processes of this host."""

    def __init__(
        self,
        path: str,
        *,
        timeout: float = 5.0,
        bounds: Bounds | None = None,
        backlog: int = BACKLOG,
        clock: Clock | None = None,
        boot: str | None = None,
    ) -> None:
        if not os.path.isabs(path) or path.endswith("/"):
            raise Invalid(f"state file {path!r}: must be an absolute path of a file")
        self._path = os.path.realpath(path)
        self._timeout = timeout
        self._bounds = bounds or Bounds()
        self._clock = clock or SystemClock()
        self._host = HostTime(self._clock, boot)
        self._hub = WatchHub(self, backlog=backlog)
        # On the event loop: the state that readers see.
        self._visible = Copy(self._host)
        self._version: Version | None = None
        self._refreshing: asyncio.Task[None] | None = None
        self._fairness = Fairness()
        self._poller: asyncio.Task[None] | None = None
        self._pause: asyncio.Future[None] | None = None
        self._expiring: asyncio.Task[None] | None = None
        self._next_end: tuple[Version | None, float] | None = None
        self._known: KnownState | None = (
            None  # a state that this store has read or written, which both sides check against
        )
        # In the writing thread: the state to be saved next.
        self._draft: Draft | None = None
        self._drafted: Version | None = None
        self._committer: Committer[Work, list[_Step]] | None = None

    async def __aenter__(self) -> Self:
        self._forget()
        self._committer = Committer(
            f"file store {self._path}",
            self._run,
            self._record_commit,
            turn=lambda: write_lock(self._path),
            timeout=self._timeout,
        )
        self._committer.start()
        self._hub.open()
        try:
            await self._load_first()
        except BaseException:
            await self.aclose()
            raise
        self._poller = asyncio.create_task(self._poll(), name="file store: poll")
        return self

    def _forget(self) -> None:
        """Release the state and the file."""
        self._visible, self._version, self._next_end = Copy(self._host), None, None
        self._draft, self._drafted, self._known = None, None, None

    async def _load_first(self) -> None:
        try:
            content, self._version = await asyncio.wait_for(self._read(), self._timeout)
        except TimeoutError:
            raise Unavailable(f"{self._path}: could not be read within {self._timeout:g} s; try again") from None
        if content is None:
            return
        self._visible.replace(content)
        self._known = self._visible.known
        of_earlier_boot = any(lease.deadline.boot != self._host.boot for lease in content.leases.values())
        if of_earlier_boot or self._end_of_first_lease() <= self._host.now():
            with contextlib.suppress(HostlerError):  # a store that cannot be written can still be read
                await self._submit(_nothing)

    async def aclose(self) -> None:
        self._hub.close()
        tasks = [task for task in (self._poller, self._expiring) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._poller = self._expiring = None
        if self._refreshing is not None:
            await asyncio.wait((self._refreshing,), timeout=self._timeout)
        if self._committer is not None:
            await self._committer.aclose()
        self._forget()

    # Reading

    async def _current(self) -> Mvcc:
        await self.fresh()
        return self._visible.mvcc

    def watch(
        self,
        prefix: str,
        *,
        start_revision: int | None = None,
        previous: bool = True,  # noqa: ARG002 - always included, at no cost
    ) -> FileWatch:
        return FileWatch(self, self._hub, prefix, start_revision)

    async def status(self) -> Status:
        await self.fresh()
        mvcc = self._visible.mvcc
        details = {"path": self._path, "keys": str(len(mvcc)), "leases": str(len(mvcc.leases))}
        return Status("file", "1", mvcc.revision, mvcc.compacted, size(self._path), details)

    def lease_lateness(self, ttl: float) -> float:  # noqa: ARG002 - the same for every ttl
        return 1.0

    async def remaining(self, id_: int) -> float:
        """Return the seconds until a lease ends."""
        await self.fresh()
        lease = self._visible.mvcc.leases.get(id_)
        return 0.0 if lease is None else min(lease.ttl, max(0.0, lease.deadline - self._host.now()))

    async def time_left(self, lease: int) -> float:
        return await self.remaining(lease)

    # Writing

    async def txn(
        self, when: Sequence[Comparison], then: Sequence[Operation], otherwise: Sequence[Operation] = ()
    ) -> TxnResult:
        check_txn(when, then, otherwise)
        if not when and (keys := keys_read(then)):
            await self.fresh()
            mvcc = self._visible.mvcc
            return TxnResult(True, mvcc.revision, tuple(mvcc.get(key, None) for key in keys))
        return await self._commit(tuple(when), tuple(then), tuple(otherwise))

    async def compact(self, revision: int) -> None:
        check_revision(revision, optional=False)
        await self._submit(lambda draft: draft.compact(revision))

    async def raise_revision(self, revision: int) -> None:
        """See `RaisesRevision`."""
        check_revision(revision, optional=False)
        await self._submit(lambda draft: draft.raise_revision(revision))

    async def grant(self, ttl: float) -> FileLease:
        ttl = check_ttl(ttl)
        return FileLease(self, await self._submit(lambda draft: draft.grant(ttl)), ttl)

    async def keep_alive(self, id_: int) -> None:
        """Renew a lease."""
        await self._submit(lambda draft: draft.keep_alive(id_))

    async def revoke(self, id_: int) -> None:
        """End a lease."""
        await self._submit(lambda draft: draft.revoke(id_))

    async def _commit(
        self, when: Sequence[Comparison], then: Sequence[Operation], otherwise: Sequence[Operation]
    ) -> TxnResult:
        result: TxnResult = await self._submit(lambda draft: draft.txn(when, then, otherwise))
        return result

    async def _submit(self, work: Work) -> Any:
        self._hub.check_open()
        assert self._committer is not None  # noqa: S101 - it is open
        return await self._committer.submit(work)

    # In the writing thread, which holds the lock

    def _run(self, batch: Sequence[Request[Work]]) -> list[_Step]:
        draft, self._draft = self._draft or Draft(self._host, self._bounds, random.SystemRandom()), None
        steps = self._catch_up(draft)
        draft.begin()
        for request in batch:
            try:
                request.result = request.work(draft)
            except HostlerError as error:
                request.error = error
        finished = draft.finish()
        if finished is not None:
            data, advance = finished
            after = save(self._path, data)
            steps.append(_Step(self._drafted, advance, after))
            self._drafted, self._known = after, draft.known
        self._draft = draft  # only now: a draft whose save failed differs from the file
        return steps

    def _catch_up(self, draft: Draft) -> list[_Step]:
        """Update the draft to what other processes saved."""
        if draft.store_id and self._drafted is not None and self._drafted.is_at(self._path):
            return []
        content, version = self._load(draft.known)
        if content is not None:
            check_later(self._path, self._known, content)  # a new draft knows no state, but readers may
        before, self._drafted = self._drafted, version
        if content is None or version is None:
            return []
        advance = draft.way_to(self._path, content) if draft.store_id else None
        if advance is None:
            draft.replace(content)
            return []
        draft.take(advance)
        return [_Step(before, advance, version)]

    def _load(self, known: KnownState | None) -> tuple[Content | None, Version | None]:
        found = load(self._path)
        if found is None:
            if self._known is not None:
                raise Unavailable(
                    f"{self._path}: deleted or moved while the store is open; restore it, or restart every process "
                    "that uses it to start with an empty store"
                )
            return None, None
        data, version = found
        return parse(self._path, data, known), version

    # On the event loop: what readers see

    def _record_commit(self, steps: list[_Step]) -> None:
        for step in steps:
            if self._version == step.before:
                self._take(step.advance, step.after)
        # If a step does not fit, another process saved in between: the next read or poll loads the file.

    def _take(self, advance: Advance, version: Version) -> None:
        self._visible.take(advance)
        self._version, self._known = version, self._visible.known
        for commit in advance.commits:
            self._hub.publish(commit.revision, commit.events, key=lambda e: e.kv.key, event=lambda e: e)

    def _is_fresh(self) -> bool:
        return not os.path.lexists(self._path) if self._version is None else self._version.is_at(self._path)

    async def fresh(self) -> None:
        """Wait until readers see everything that was saved before this call."""
        await self._fairness.share()
        self._hub.check_open()
        self._expire_what_is_due()
        for _ in range(2):
            if self._is_fresh():
                return
            # A refresh in progress may have started too early for this reader; the next one has not.
            if self._refreshing is None:
                self._refreshing = asyncio.create_task(self._refresh(), name="file store: refresh")
            refreshing = self._refreshing
            done, _ = await asyncio.wait((refreshing,), timeout=self._timeout)
            if not done:
                raise Unavailable(f"{self._path}: could not be read within {self._timeout:g} s; try again")
            self._hub.check_open()
            refreshing.result()

    async def _refresh(self) -> None:
        try:
            began = self._version
            content, version = await self._read()
            if content is None or version is None or version == self._version:
                return
            if began is not self._version and content.saved < self._visible.saved:
                return  # a save of this process was applied during the read
            advance = self._visible.way_to(self._path, content)
            if advance is not None:
                self._take(advance, version)
                return
            if content.partial:
                return  # edited by hand during the read: the next check reads all of it
            missed = content.revision > self._visible.mvcc.revision
            self._visible.replace(content)
            self._version, self._known = version, self._visible.known
            if missed:
                self._hub.fail(Compacted(content.compacted))
        finally:
            self._refreshing = None

    async def _read(self) -> tuple[Content | None, Version | None]:
        """Load in a daemon thread, so that a hanging disk does not block the process."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[tuple[Content | None, Version | None]] = loop.create_future()
        known = self._visible.known

        def read() -> None:
            try:
                found, error = self._load(known), None
            except BaseException as raised:  # noqa: BLE001 - the reader must get the error
                found, error = (None, None), raised
            with contextlib.suppress(RuntimeError):  # the event loop is gone, and the reader with it
                loop.call_soon_threadsafe(_settle, answer, found, error)

        thread = threading.Thread(target=read, name="file store: reader", daemon=True)
        thread.start()
        found = await answer
        thread.join()
        return found

    # On the event loop: background work

    def wake(self) -> None:
        """Check the file more often, because a watch was entered."""
        if self._pause is not None:
            self._pause.cancel()

    async def _poll(self) -> None:
        while True:
            every = _WATCHED_EVERY if len(self._hub) else _IDLE_EVERY
            until_end = self._end_of_first_lease() - self._host.now() if self._expiring is None else every
            self._pause = asyncio.ensure_future(self._clock.sleep(max(0.0, min(every, until_end))))
            try:
                await asyncio.wait((self._pause,))
            finally:
                if self._pause.cancel():
                    await asyncio.gather(self._pause, return_exceptions=True)
            # Errors of the file are raised in verbs; watches wait until they are over.
            with contextlib.suppress(HostlerError):
                await self.fresh()
            self._expire_what_is_due()

    def _expire_what_is_due(self) -> None:
        if self._expiring is None and self._end_of_first_lease() <= self._host.now():
            self._expiring = asyncio.create_task(self._expire(), name="file store: expiry")

    async def _expire(self) -> None:
        try:
            await self._submit(_nothing)  # every batch first ends expired leases
        except HostlerError:
            await self._clock.sleep(_IDLE_EVERY)
        finally:
            self._expiring = None

    def _end_of_first_lease(self) -> float:
        if self._next_end is None or self._next_end[0] is not self._version:
            first = min((lease.deadline for lease in self._visible.mvcc.leases.values()), default=math.inf)
            self._next_end = (self._version, first)
        return self._next_end[1]

    # For watches

    def current_revision(self) -> int:
        return self._visible.mvcc.revision

    def compact_revision(self) -> int:
        return self._visible.mvcc.compacted

    def changes(self, prefix: str, start_revision: int, limit: int) -> tuple[list[Event], int]:
        return self._visible.mvcc.changes(prefix, start_revision, limit)


def _settle(answer: asyncio.Future[Any], found: object, error: BaseException | None) -> None:
    if answer.done():
        return
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(found)


def _nothing(draft: Draft) -> None:
    """Do nothing: for a batch that only does what every batch does."""


class FileWatch(LocalWatch):
    """A watch on a FileStore. It does not deliver what other processes saved before it was entered."""

    def __init__(self, store: FileStore, hub: WatchHub, prefix: str, start_revision: int | None) -> None:
        super().__init__(hub, prefix, start_revision)
        self._store = store

    async def __aenter__(self) -> Self:
        await self._store.fresh()
        await super().__aenter__()
        self._store.wake()
        return self


class FileLease:
    """A lease of a FileStore."""

    def __init__(self, store: FileStore, id_: int, ttl: float) -> None:
        self._store, self.id, self.ttl = store, id_, ttl

    async def keep_alive(self) -> None:
        await self._store.keep_alive(self.id)

    async def revoke(self) -> None:
        await self._store.revoke(self.id)

    async def remaining(self) -> float:
        return await self._store.remaining(self.id)
