"""All watches of one store, on one stream.

A watch always knows the revision that it must deliver next: it is created from there on every new connection, so no
event is lost or delivered twice. If a reader is slow while its watch catches up, the watch pauses and later continues
from where it was; if a reader is slow on live events, the watch ends with Lagged.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from typing import TYPE_CHECKING, Self

from hostler.drivers.store.etcd import rpc_pb2 as pb
from hostler.drivers.store.etcd.cluster import CompactedRevision
from hostler.drivers.store.etcd.codec import RANGE, WATCH, key_value, span
from hostler.drivers.store.etcd.stream import Stream
from hostler.drivers.store.watch_hub import BACKLOG, EventQueue
from hostler.errors import Closed, Compacted, Forbidden, FutureRevision, Unavailable
from hostler.ports.store import Event, check_prefix, check_revision

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence
    from types import TracebackType

    from hostler.drivers.store.etcd.cluster import Cluster
    from hostler.errors import HostlerError

_NEVER = 2**63
_DELETE = pb.Event.DELETE


class _Queue(EventQueue):
    @property
    def full(self) -> bool:
        """Whether the next offer would end it."""
        return len(self.events) >= self._backlog


class EtcdWatch:
    """A watch on etcd."""

    def __init__(self, watches: Watches, prefix: str, start_revision: int | None, *, previous: bool = True) -> None:
        check_prefix(prefix)
        check_revision(start_revision)
        self.prefix = prefix
        self.key, self.range_end = span(prefix)
        self.next_revision = start_revision
        self.id = 0
        self.denied = False
        self.previous = previous
        """Whether events include the previous value.

        The server reads it for each event, from a copy of all unsaved data.
        """
        self.paused = False
        self.created: asyncio.Event = asyncio.Event()
        self._watches = watches
        self._queue = _Queue(prefix, watches.backlog)
        self._live_from = _NEVER

    async def __aenter__(self) -> Self:
        await self._watches.enter(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._watches.leave(self)
        self._queue.fail(Closed(f"watch {self.prefix!r}: it has been exited"))

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        while True:
            found = self._queue.take()
            if found is not None:
                return found
            if self.paused:
                self._watches.unpause(self)
            await self._queue.wait()

    def create_request(self) -> pb.WatchRequest:
        """Return the request that makes the server watch from the current position."""
        return pb.WatchRequest(
            create_request=pb.WatchCreateRequest(
                key=self.key,
                range_end=self.range_end,
                start_revision=self.next_revision or 0,
                progress_notify=True,
                prev_kv=self.previous,
                watch_id=self.id,
            )
        )

    def on_created(self, revision: int) -> None:
        """The server watches; its store is at `revision`, and events up to there are history."""
        self._live_from = revision + 1
        self.created.set()

    def on_progress(self, revision: int) -> None:
        """Everything up to `revision` was sent."""
        self.next_revision = max(self.next_revision or 0, revision + 1)

    def deliver(self, events: Sequence[pb.Event]) -> None:
        """Queue events that were not queued before, transaction by transaction."""
        batch: list[Event] = []
        revision = 0
        with_previous = self.previous
        for raw in events:
            kv = raw.kv
            at = kv.mod_revision
            if at < (self.next_revision or 0):
                continue
            if at != revision and batch and not self._take(batch, revision):
                return
            if at != revision:
                batch, revision = [], at
            previous = key_value(raw.prev_kv) if with_previous and raw.HasField("prev_kv") else None
            batch.append(Event("delete" if raw.type == _DELETE else "put", key_value(kv), previous))
        if batch:
            self._take(batch, revision)

    def fail(self, error: HostlerError) -> None:
        """End the watch, and wake a caller that waits for its creation."""
        self._queue.fail(error)
        self.created.set()

    def raise_failure(self) -> None:
        """Raise the error that ended the watch, if it ended before any event arrived."""
        if self._queue.ended:
            self._queue.take()

    async def wait_until_ended(self) -> None:
        """Wait until it has ended or has an event."""
        await self._queue.wait()

    def _take(self, batch: list[Event], revision: int) -> bool:
        position = self.next_revision or 0
        if self._queue.full and position < self._live_from:
            self._watches.pause(self)
            return False
        if not self._queue.offer(batch, position):
            self._watches.leave(self)
            return False
        self.next_revision = revision + 1
        return True


class Watches:
    """The watches of one store."""

    def __init__(self, cluster: Cluster, *, backlog: int = BACKLOG) -> None:
        self.backlog = backlog
        self._cluster = cluster
        self._by_id: dict[int, EtcdWatch] = {}
        self._paused: dict[EtcdWatch, None] = {}
        self._ids = itertools.count(1)
        self._creating: deque[int] = deque()
        self._stream = Stream(cluster, WATCH, greet=self._greet, receive=self._receive, give_up=self._give_up)

    def watch(self, prefix: str, start_revision: int | None, *, previous: bool) -> EtcdWatch:
        """Return a watch, not yet entered."""
        return EtcdWatch(self, prefix, start_revision, previous=previous)

    async def aclose(self) -> None:
        """End every watch and the stream."""
        for watch in [*self._by_id.values(), *self._paused]:
            watch.fail(Closed("watch: the store was closed"))
        self._by_id.clear()
        self._paused.clear()
        await self._stream.aclose()

    async def enter(self, watch: EtcdWatch) -> None:
        """Register the watch and wait until the server has created it. Compacted: its start is gone."""
        self._cluster.check_open()
        await self._find_start(watch)
        self._add(watch)
        try:
            await self._wait_created(watch)
            watch.raise_failure()
        except BaseException:
            self.leave(watch)
            raise

    async def compact_revision(self, key: bytes) -> int:
        """Return the revision before which history is gone. Called only when some is gone: the server then names it."""
        probe = EtcdWatch(self, "", 1, previous=False)
        probe.key, probe.range_end = key, b""
        self._add(probe)
        try:
            async with asyncio.timeout(self._cluster.timeout):
                await probe.wait_until_ended()
            probe.raise_failure()
        except Compacted as compacted:
            return compacted.revision
        except TimeoutError:
            raise Unavailable("etcd: the compacted revision could not be determined in time; try again later") from None
        finally:
            self.leave(probe)
        return 0

    def oldest_needed(self) -> int | None:
        """Return the first revision that a watch would request after reconnecting; None: there is no watch."""
        starts = [watch.next_revision for watch in (*self._by_id.values(), *self._paused)]
        return min((start for start in starts if start), default=None)

    # For the watches

    def leave(self, watch: EtcdWatch) -> None:
        """Cancel a watch."""
        self._paused.pop(watch, None)
        if self._by_id.pop(watch.id, None) is not None:
            self._stream.send(pb.WatchRequest(cancel_request=pb.WatchCancelRequest(watch_id=watch.id)))

    def pause(self, watch: EtcdWatch) -> None:
        """Cancel a watch until its reader has caught up."""
        self.leave(watch)
        watch.paused = True
        self._paused[watch] = None

    def unpause(self, watch: EtcdWatch) -> None:
        """Continue a paused watch from where it was."""
        self._paused.pop(watch, None)
        watch.paused = False
        self._add(watch)

    # Internal

    async def _find_start(self, watch: EtcdWatch) -> None:
        """Fix the first revision with a linearizable read, so that a member that lags does not send earlier events.

        Reads one key, which costs the same however much is under the prefix and needs no more permission than watching.
        """
        start = watch.next_revision
        if start is not None and start >= _NEVER:
            raise FutureRevision(f"watch {watch.prefix!r}: revision {start} does not fit into 64 bits")
        request = pb.RangeRequest(key=watch.key, revision=start or 0, keys_only=True)
        try:
            answer = await self._cluster.call(RANGE, request)
        except CompactedRevision:
            raise Compacted(await self.compact_revision(watch.key)) from None
        except FutureRevision:
            return
        if start is None:
            watch.next_revision = answer.header.revision + 1

    async def _wait_created(self, watch: EtcdWatch) -> None:
        half = self._cluster.timeout / 2
        for patience in (half, half):
            try:
                async with asyncio.timeout(patience):
                    await watch.created.wait()
                    return
            except TimeoutError:
                if self._stream.endpoint is not None:
                    self._cluster.mistrust(self._stream.endpoint)
        raise Unavailable(f"watch {watch.prefix!r}: the server did not accept it in time; try again later")

    def _add(self, watch: EtcdWatch) -> None:
        watch.id = next(self._ids)
        self._by_id[watch.id] = watch
        if self._stream.send(watch.create_request()):
            self._creating.append(watch.id)

    def _greet(self) -> Iterator[pb.WatchRequest]:
        self._creating = deque(self._by_id)
        for watch in self._by_id.values():
            yield watch.create_request()

    def _receive(self, response: pb.WatchResponse) -> None:
        number = response.watch_id
        if response.created:
            # Answered in the order of the requests; 3.4 does not set the id in a denial.
            asked = self._creating.popleft()
            number = asked if number < 0 else number
        watch = self._by_id.get(number)
        if watch is None:
            return
        if response.canceled:
            self._end_watch(watch, response)
        elif response.created:
            watch.on_created(response.header.revision)
        elif response.events:
            watch.deliver(response.events)
        else:
            watch.on_progress(response.header.revision)

    def _give_up(self, error: Exception) -> None:
        ended = list(self._by_id.values())
        self._by_id.clear()
        for watch in ended:
            watch.fail(Unavailable(f"watch {watch.prefix!r}: broke off ({error!r}); watch again from where it was"))

    def _end_watch(self, watch: EtcdWatch, response: pb.WatchResponse) -> None:
        if response.compact_revision:
            del self._by_id[watch.id]
            watch.fail(Compacted(response.compact_revision))
            return
        denied = "permission denied" in response.cancel_reason
        if denied and watch.denied:
            del self._by_id[watch.id]
            watch.fail(Forbidden(f"watch {watch.prefix!r}: the user has no permission for these keys"))
        # After a denial some versions receive nothing more on the stream. The token may just be old: retry with a new
        # one.
        self._stream.restart(renew=denied and not watch.denied)
        watch.denied = denied
