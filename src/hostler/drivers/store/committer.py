"""Many writers, one fsync.

Requests that arrive while a batch is being made durable form the next batch. A thread does the blocking work, one batch
at a time; the event loop hands over what came together and wakes the writers when their batch is done.

The deadline of a request decides what its writer is told: still waiting for its turn → it is taken back, nothing was
written (`Unavailable`); already part of a batch → nobody knows (`Uncertain`).
"""

from __future__ import annotations

import asyncio
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from hostler.errors import Closed, HostlerError, Unavailable, Uncertain

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

W = TypeVar("W")

WAITING, RUNNING, DONE = "waiting", "running", "done"


class Request(Generic[W]):
    """One writer's work and its outcome: the batch sets `result` or `error`."""

    __slots__ = ("error", "future", "result", "state", "work")

    def __init__(self, work: W, future: asyncio.Future[Any]) -> None:
        self.work = work
        self.future = future
        self.state = WAITING
        self.result: Any = None
        self.error: BaseException | None = None


class Committer(Generic[W]):
    """Runs batches of requests in a thread of its own.

    `run(requests)` does the work of a batch, makes it durable, and sets each request's outcome; what it raises is the
    outcome of every request that has none. `committed(requests)` is then called on the event loop, before any writer is
    woken, so that a writer who returns finds its own change delivered.
    """

    def __init__(
        self,
        name: str,
        run: Callable[[Sequence[Request[W]]], None],
        committed: Callable[[Sequence[Request[W]]], None],
        *,
        timeout: float,
    ) -> None:
        self._name, self._run, self._committed, self._timeout = name, run, committed, timeout
        self._gathered: list[Request[W]] = []
        self._handed_over: SimpleQueue[list[Request[W]] | None] = SimpleQueue()
        self._claim = threading.Lock()  # between a deadline and the batch that takes the request
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    def start(self) -> None:
        """Start the thread, on the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
        self._thread.start()

    async def submit(self, work: W) -> Any:
        """Do `work` as part of the next batch; its result."""
        loop = self._loop
        if self._closed or loop is None:
            raise Closed(f"{self._name}: it is not open")
        future: asyncio.Future[Any] = loop.create_future()
        request = Request(work, future)
        if not self._gathered:
            loop.call_soon(self._hand_over)
        self._gathered.append(request)
        timer = loop.call_later(self._timeout, self._expire, request)
        try:
            return await future
        except asyncio.CancelledError:
            self._take_back(request)
            raise
        finally:
            timer.cancel()

    async def aclose(self) -> None:
        """Finish what was handed over, then stop the thread."""
        if self._closed:
            return
        self._closed = True
        self._hand_over()
        self._handed_over.put(None)
        thread = self._thread
        if thread is not None and self._loop is not None:
            # A thread that hangs in the kernel (a frozen disk, a lock held by a suspended process) cannot be ended:
            # it is a daemon, and its writers have been told by their deadlines.
            await self._loop.run_in_executor(None, thread.join, self._timeout)

    def _hand_over(self) -> None:
        if self._gathered:
            self._handed_over.put(self._gathered)
            self._gathered = []

    def _expire(self, request: Request[W]) -> None:
        if request.future.done():
            return
        if self._take_back(request):
            error: HostlerError = Unavailable(
                f"{self._name}: no turn to write within {self._timeout:g} s; nothing was written, try again"
            )
        else:
            error = Uncertain(
                f"{self._name}: no answer within {self._timeout:g} s; it may have been written, read before you act"
            )
        request.future.set_exception(error)

    def _take_back(self, request: Request[W]) -> bool:
        with self._claim:
            if request.state is WAITING:
                request.state = DONE
                return True
            return False

    def _work(self) -> None:
        loop = self._loop
        assert loop is not None  # noqa: S101 - start() set it before this thread ran
        stopping = False
        while not stopping:
            handed = self._handed_over.get()
            arrived: list[Request[W]] = []
            while handed is not None:
                arrived += handed
                if self._handed_over.empty():
                    break
                handed = self._handed_over.get()
            stopping = handed is None
            with self._claim:
                batch = [request for request in arrived if request.state is WAITING]
                for request in batch:
                    request.state = RUNNING
            if not batch:
                continue
            try:
                self._run(batch)
            except BaseException as error:  # noqa: BLE001 - every writer must be told, whatever it was
                for request in batch:
                    if request.error is None and request.result is None:
                        request.error = error
            try:
                loop.call_soon_threadsafe(self._finish, batch)
            except RuntimeError:
                return  # the event loop is gone, and every writer with it

    def _finish(self, batch: Sequence[Request[W]]) -> None:
        self._committed(batch)
        for request in batch:
            request.state = DONE
            if request.future.done():
                continue
            if request.error is not None:
                request.future.set_exception(request.error)
            else:
                request.future.set_result(request.result)
