"""One long-lived stream to the cluster, reopened at another member when it breaks."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import grpc
from grpc.aio import EOF  # type: ignore[attr-defined]  # missing in the stubs

from hostler.drivers.store.etcd.errors import Fate, fate
from hostler.errors import HostlerError
from hostler.kit.rate_limit import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

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
