"""Group commit: many writers, one fsync.

Requests that arrive while a batch is being made durable form the next batch. A thread does the blocking work, one batch
at a time; the event loop passes it the requests that arrived together, and wakes the writers when their batch is done.

The deadline of a request decides its outcome: if it still waits for its turn, it is withdrawn and nothing was written
(`Unavailable`); if it is already part of a batch, the outcome is not known (`Uncertain`).
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from contextlib import nullcontext
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from hostler.errors import Closed, HostlerError, Unavailable, Uncertain

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

W = TypeVar("W")
"""The work of a writer."""
B = TypeVar("B")
"""The outcome of a batch as a whole."""

_WAITING, _RUNNING, _DONE = range(3)


class Request(Generic[W]):
    """One writer's work and its outcome: `run` sets `result`, or `error` if only this one failed."""

    __slots__ = ("deadline", "error", "future", "result", "state", "work")

    def __init__(self, work: W, future: asyncio.Future[Any], deadline: float) -> None:
        self.work = work
        self.future = future
        self.deadline = deadline
        self.state = _WAITING
        self.result: Any = None
        self.error: BaseException | None = None


class Committer(Generic[W, B]):
    """Runs batches of requests in a separate thread.

    The thread enters `turn()` before it assembles a batch: other writers to the same place are kept out until it is
    left. It may block for any length of time; requests whose deadline passes in the meantime are withdrawn.
    `run(requests)` does the work of a batch, makes it durable, and sets each request's outcome; an exception is the
    outcome of all of them. `committed(outcome)` is then called on the event loop with the result of `run`, before any
    writer is woken, so that a writer that returns finds its own change delivered.
    """

    def __init__(
        self,
        name: str,
        run: Callable[[Sequence[Request[W]]], B],
        committed: Callable[[B], None],
        *,
        turn: Callable[[], AbstractContextManager[object]] = nullcontext,
        timeout: float,
    ) -> None:
        self._name, self._run, self._committed, self._turn, self._timeout = name, run, committed, turn, timeout
        self._gathered: list[Request[W]] = []
        self._handed_over: SimpleQueue[list[Request[W]] | None] = SimpleQueue()
        self._claim = threading.Lock()  # between a deadline and the batch that takes the request
        self._open: deque[Request[W]] = deque()  # in the order of their deadlines
        self._timer: asyncio.TimerHandle | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped: asyncio.Future[None] | None = None
        self._closed = False
        self.stopped = True
        """Whether the thread has ended, or never ran; a thread that hangs in the kernel does not end."""

    def start(self) -> None:
        """Start the thread, on the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._stopped = self._loop.create_future()
        self.stopped = False
        self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
        self._thread.start()

    def submit(self, work: W) -> asyncio.Future[Any]:
        """Do `work` in the next batch and return its result. Cancelling it while it waits for its turn withdraws it."""
        loop = self._loop
        if self._closed or loop is None:
            raise Closed(f"{self._name}: not open")
        future: asyncio.Future[Any] = loop.create_future()
        request = Request(work, future, loop.time() + self._timeout)
        if not self._gathered:
            loop.call_soon(self._hand_over)
        self._gathered.append(request)
        self._open.append(request)
        if self._timer is None:
            self._timer = loop.call_at(request.deadline, self._expire)
        return future

    @property
    def committing(self) -> bool:
        """Whether a submitted request has no outcome yet."""
        return bool(self._open)

    async def aclose(self) -> None:
        """Finish the submitted requests, then stop the thread."""
        if self._closed:
            return
        self._closed = True
        self._hand_over()
        self._handed_over.put(None)
        if self._thread is not None and self._stopped is not None:
            # A thread that hangs in the kernel (a frozen disk, a lock held by a suspended process) cannot be ended: it
            # is a daemon, and its writers get their outcome from their deadlines.
            await asyncio.wait((self._stopped,), timeout=self._timeout)
            if self._stopped.done():
                self._thread.join()
                self.stopped = True
        for request in self._open:
            self._give_up(request)
        self._open.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _hand_over(self) -> None:
        if self._gathered:
            self._handed_over.put(self._gathered)
            self._gathered = []

    def _expire(self) -> None:
        assert self._loop is not None  # noqa: S101 - only a started committer has a timer
        now = self._loop.time()
        self._timer = None
        while self._open:
            request = self._open[0]
            if not request.future.done():
                if request.deadline > now:
                    self._timer = self._loop.call_at(request.deadline, self._expire)
                    return
                self._give_up(request)
            self._open.popleft()

    def _give_up(self, request: Request[W]) -> None:
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
            if request.state == _WAITING:
                request.state = _DONE
                return True
            return False

    # In the thread

    def _work(self) -> None:
        stopping = False
        while not stopping:
            arrived, stopping = self._receive()
            if not arrived:
                continue
            try:
                with self._turn():
                    late, stopped = self._receive(wait=False)
                    stopping = stopping or stopped
                    batch = self._claim_batch(arrived + late)
                    self._run_batch(batch)
            except BaseException as error:  # noqa: BLE001 - every writer must get the error
                self._finish_later(self._claim_batch(arrived), None, error)
        self._on_loop(self._stop)

    def _receive(self, *, wait: bool = True) -> tuple[list[Request[W]], bool]:
        arrived: list[Request[W]] = []
        while wait or not self._handed_over.empty():
            handed = self._handed_over.get()
            if handed is None:
                return arrived, True
            arrived += handed
            wait = False
        return arrived, False

    def _claim_batch(self, arrived: list[Request[W]]) -> list[Request[W]]:
        with self._claim:
            batch = [request for request in arrived if request.state == _WAITING and not request.future.cancelled()]
            for request in batch:
                request.state = _RUNNING
        return batch

    def _run_batch(self, batch: list[Request[W]]) -> None:
        if not batch:
            return
        try:
            outcome = self._run(batch)
        except BaseException as error:  # noqa: BLE001 - every writer must get the error
            self._finish_later(batch, None, error)
        else:
            self._finish_later(batch, outcome, None)

    def _finish_later(self, batch: list[Request[W]], outcome: B | None, error: BaseException | None) -> None:
        self._on_loop(self._finish, batch, outcome, error)

    def _on_loop(self, call: Callable[..., None], *args: object) -> None:
        assert self._loop is not None  # noqa: S101 - start() set it before this thread ran
        try:
            self._loop.call_soon_threadsafe(call, *args)
        except RuntimeError:
            return  # the event loop is gone, and every writer with it

    # On the event loop

    def _stop(self) -> None:
        if self._stopped is not None and not self._stopped.done():
            self._stopped.set_result(None)

    def _finish(self, batch: list[Request[W]], outcome: B | None, error: BaseException | None) -> None:
        if outcome is not None:
            self._committed(outcome)
        for request in batch:
            request.state = _DONE
            if request.future.done():
                continue
            failure = error or request.error
            if failure is not None:
                request.future.set_exception(failure)
            else:
                request.future.set_result(request.result)
        while self._open and self._open[0].future.done():
            self._open.popleft()
