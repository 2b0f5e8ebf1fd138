"""Long-lived streams to the cluster, each reopened at another member when it breaks. Leases are kept alive on one."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import grpc
from grpc.aio import EOF  # type: ignore[attr-defined]  # missing in the stubs

from hostler.drivers.store.etcd import rpc_pb2 as pb
from hostler.drivers.store.etcd.codec import KEEP_ALIVE, REVOKE, TIME_TO_LIVE
from hostler.drivers.store.etcd.errors import Fate, fate
from hostler.errors import Closed, HostlerError, LeaseGone, Unavailable, Uncertain
from hostler.kit.rate_limit import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from grpc.aio import Metadata

    from hostler.drivers.store.etcd.cluster import Cluster, Endpoint
    from hostler.drivers.store.etcd.codec import Method

Q = TypeVar("Q")
R = TypeVar("R")


class Stream(Generic[Q, R]):
    """Sends requests in order and passes on the responses.

    `greet` returns the first requests of every new connection; `receive` takes each response. The first `send` opens
    the stream; from then on it stays open or reconnects.

    `give_up` is called with an unexpected error. Retrying may fail for ever, so it must end all waiting callers; the
    stream continues for later ones.
    """

    def __init__(
        self,
        cluster: Cluster,
        method: Method[Q, R],
        *,
        greet: Callable[[], Iterable[Q]],
        receive: Callable[[R], None],
        give_up: Callable[[Exception], None],
    ) -> None:
        self._cluster, self._method, self._greet, self._receive = cluster, method, greet, receive
        self._give_up = give_up
        self._outbox: asyncio.Queue[Q] | None = None
        self._task: asyncio.Task[None] | None = None
        self._call: Any = None
        self._heard = False
        self._renew = False
        self.endpoint: Endpoint | None = None
        cluster.on_mistrust.append(self._restart_if_on)

    def send(self, request: Q) -> bool:
        """Send a request and return True if connected; otherwise return False, and `greet` has to send it."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"{self._cluster.name}: {self._method.verb}")
        if self._outbox is None:
            return False
        self._outbox.put_nowait(request)
        return True

    def restart(self, *, renew: bool = False) -> None:
        """Break the connection, so that the stream starts over; with a new token if `renew`."""
        if self._call is not None:
            self._renew = renew
            self._call.cancel()

    async def aclose(self) -> None:
        """End the stream."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _restart_if_on(self, endpoint: Endpoint) -> None:
        if endpoint is self.endpoint:
            self.restart()

    async def _run(self) -> None:
        try:
            await self._converse_for_ever()
        except asyncio.CancelledError:
            return  # a task that ends with an error keeps its last frames, and those keep the connection

    async def _converse_for_ever(self) -> None:
        backoff = Backoff(0.02, 1.0)
        loop = asyncio.get_running_loop()
        while True:
            try:
                deadline = loop.time() + self._cluster.timeout
                self.endpoint = await self._cluster.connect(deadline)
                metadata = await self._cluster.metadata(deadline)
                self._heard = False
                await self._converse(self.endpoint, metadata)
                if self._renew:
                    self._renew = False
                    await self._cluster.renew_token(metadata, loop.time() + self._cluster.timeout)
            except HostlerError:
                pass  # callers that wait for an answer have their own deadline
            except Exception as error:  # noqa: BLE001 - ends waiting callers instead of ending this task silently
                self._give_up(error)
            if self._heard:
                backoff.reset()
            self.endpoint = None
            await asyncio.sleep(backoff.next())

    async def _converse(self, endpoint: Endpoint, metadata: Metadata) -> None:
        self._call = call = endpoint.stubs[self._method.index](metadata=metadata)
        outbox: asyncio.Queue[Q] = asyncio.Queue()
        self._outbox = outbox
        for request in self._greet():
            outbox.put_nowait(request)
        writer = asyncio.create_task(_write(call, outbox), name=f"{self._cluster.name}: {self._method.verb} requests")
        try:
            while (message := await call.read()) is not EOF:
                self._heard = True
                self._receive(message)
        except grpc.aio.AioRpcError as error:
            await self._learn(error, endpoint, metadata)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
        finally:
            self._outbox = self._call = None
            call.cancel()
            writer.cancel()
            [ended] = await asyncio.gather(writer, return_exceptions=True)
        if isinstance(ended, Exception):
            raise ended

    async def _learn(self, error: grpc.aio.AioRpcError, endpoint: Endpoint, metadata: Metadata) -> None:
        if fate(error) is Fate.TOKEN:
            await self._cluster.renew_token(metadata, asyncio.get_running_loop().time() + self._cluster.timeout)
        else:
            self.endpoint = None  # so that mistrusting it does not restart a stream that has ended
            self._cluster.mistrust(endpoint)


async def _write(call: Any, outbox: asyncio.Queue[Any]) -> None:
    """Write the queued requests until the call ends; the reader handles its end."""
    try:
        while True:
            await call.write(await outbox.get())
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError, asyncio.CancelledError):
        return
    finally:
        call.cancel()


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
