"""Leases, all kept alive on one stream."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from hostler.drivers.store.etcd import rpc_pb2 as pb
from hostler.drivers.store.etcd.codec import KEEP_ALIVE, REVOKE, TIME_TO_LIVE
from hostler.drivers.store.etcd.stream import Stream
from hostler.errors import Closed, LeaseGone, Unavailable, Uncertain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostler.drivers.store.etcd.cluster import Cluster
    from hostler.errors import HostlerError


class _Waiter:
    """A keep-alive request without an answer."""

    __slots__ = ("answer", "sent")

    def __init__(self) -> None:
        self.answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.sent = False


class KeepAlives:
    """The stream over which leases are kept alive. Requests of a lease are answered in order."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._waiting: dict[int, deque[_Waiter]] = {}
        self._stream = Stream(cluster, KEEP_ALIVE, greet=self._greet, receive=self._receive, give_up=self._give_up)

    async def keep(self, id_: int) -> int:
        """Keep a lease alive and return the seconds it has from now. LeaseGone: it ended before."""
        self._cluster.check_open()
        waiter = _Waiter()
        self._waiting.setdefault(id_, deque()).append(waiter)
        waiter.sent = self._stream.send(pb.LeaseKeepAliveRequest(ID=id_))
        try:
            ttl = await self._wait(waiter)
        finally:
            waiter.answer.cancel()
        if ttl <= 0:
            raise LeaseGone(f"lease {id_:x}: it expired or was revoked; grant a new one")
        return ttl

    async def aclose(self) -> None:
        """End the stream. Waiting requests end with Uncertain if they may have arrived, else with Closed."""
        self._end_all(
            Closed("store: closed before a lease was kept alive"),
            "lease: the store was closed before its keep-alive was answered; it may have been renewed or not",
        )
        await self._stream.aclose()

    def _give_up(self, error: Exception) -> None:
        self._end_all(
            Unavailable(f"lease: not kept alive ({error!r}); try again"),
            f"lease: its keep-alive broke off ({error!r}); keep it alive again, or consider it lost",
        )

    def _end_all(self, unsent: HostlerError, uncertain: str) -> None:
        for queue in self._waiting.values():
            for waiter in queue:
                if not waiter.answer.done():
                    waiter.answer.set_exception(Uncertain(uncertain) if waiter.sent else unsent)
        self._waiting.clear()

    async def _wait(self, waiter: _Waiter) -> int:
        half = self._cluster.timeout / 2
        for patience in (half, half):
            try:
                async with asyncio.timeout(patience):
                    return await asyncio.shield(waiter.answer)
            except TimeoutError:
                if self._stream.endpoint is not None:
                    self._cluster.mistrust(self._stream.endpoint)
        if waiter.sent:
            raise Uncertain("lease: no answer to its keep-alive in time; keep it alive again, or consider it lost")
        raise Unavailable(f"{self._cluster.name}: no member can be reached to keep a lease; try again later")

    def _greet(self) -> Iterator[pb.LeaseKeepAliveRequest]:
        """Repeat all requests that still wait; drop the others, whose answers were lost with the old connection."""
        for id_ in list(self._waiting):
            queue = deque(waiter for waiter in self._waiting[id_] if not waiter.answer.done())
            if not queue:
                del self._waiting[id_]
                continue
            self._waiting[id_] = queue
            for waiter in queue:
                waiter.sent = True
                yield pb.LeaseKeepAliveRequest(ID=id_)

    def _receive(self, response: pb.LeaseKeepAliveResponse) -> None:
        queue = self._waiting.get(response.ID)
        if not queue:
            return
        waiter = queue.popleft()
        if not queue:
            del self._waiting[response.ID]
        if not waiter.answer.done():
            waiter.answer.set_result(response.TTL)


class EtcdLease:
    """A lease of an etcd store."""

    def __init__(self, cluster: Cluster, keep_alives: KeepAlives, id_: int, ttl: float, asked_at: float) -> None:
        self._cluster, self._keep_alives = cluster, keep_alives
        self._id, self._ttl = id_, ttl
        self._kept_at = asked_at

    def __repr__(self) -> str:
        return f"EtcdLease(id={self._id}, ttl={self._ttl:g})"

    @property
    def id(self) -> int:
        return self._id

    @property
    def ttl(self) -> float:
        return self._ttl

    async def keep_alive(self) -> None:
        asked_at = asyncio.get_running_loop().time()
        await self._keep_alives.keep(self._id)
        self._kept_at = max(self._kept_at, asked_at)

    async def revoke(self) -> None:
        try:
            await self._cluster.call(REVOKE, pb.LeaseRevokeRequest(ID=self._id))
        except LeaseGone:
            return

    async def remaining(self) -> float:
        """Return the remaining time.

        The server reports whole seconds; the last keep-alive refines it. Never too much.
        """
        answer = await self._cluster.call(TIME_TO_LIVE, pb.LeaseTimeToLiveRequest(ID=self._id))
        if answer.TTL < 0 or not answer.grantedTTL:
            return 0.0
        known = self._kept_at + self._ttl - asyncio.get_running_loop().time()
        return max(float(answer.TTL), known, 0.001)
