"""Asyncio on virtual time, deterministic for a seed, and simulated processes in it.

Time does not advance while anything can run and jumps to the next timer when nothing can, so an hour of waiting costs
nothing. Callbacks that are ready at the same instant run in an order drawn from the seed: every order that a real event
loop could produce by chance can be produced on purpose, and reproduced. When nothing can run and no timer is set,
nothing ever will: that is a `Deadlock`, whose message names the waiting tasks.

A simulated process can be suspended, as by SIGSTOP, or killed, as by SIGKILL.

No sockets, threads or subprocesses: code that runs here reaches the outside world through ports.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from contextvars import ContextVar, copy_context
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Awaitable, Callable, Coroutine
    from contextvars import Context

T = TypeVar("T")


_NO_THREADS = "virtual time: threads are not supported, because they are not deterministic; use a port instead"


_MANY = 1_000
"""Cancelled timers that may remain in the heap, however few the others are."""


class Deadlock(RuntimeError):
    """Every task waits, and nothing is left that could wake one."""


class Leftover(RuntimeError):
    """Tasks were still running when the program had ended."""


class _Soon(asyncio.Handle):
    """A handle without debugging support."""

    __slots__ = ()
    _callback: Any
    _args: Any
    _cancelled: bool
    _repr = None
    _source_traceback = None

    def __init__(self, callback: Callable[..., Any], args: Any, loop: Any, context: Context | None) -> None:
        self._context = copy_context() if context is None else context
        self._loop, self._callback, self._args = loop, callback, args
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled, self._callback, self._args = True, None, None


class _Timer(asyncio.TimerHandle):
    """A timer handle without debugging support."""

    __slots__ = ()
    _callback: Any
    _args: Any
    _cancelled: bool
    _repr = None
    _source_traceback = None

    def __init__(
        self, when: float, callback: Callable[..., Any], args: Any, loop: Any, context: Context | None
    ) -> None:
        self._context = copy_context() if context is None else context
        self._loop, self._callback, self._args = loop, callback, args
        self._when, self._cancelled, self._scheduled = when, False, True

    def cancel(self) -> None:
        if not self._cancelled:
            self._cancelled, self._callback, self._args = True, None, None
            if self._scheduled:
                self._loop._timer_handle_cancelled(self)


_Due: TypeAlias = "_Timer | asyncio.Future[None]"
_Timed: TypeAlias = tuple[float, int, _Due]
"""The due time, the order of creation, and what is due: a handle to run, or a sleeper to wake."""


def _is_over(due: _Due) -> bool:
    return due._cancelled if isinstance(due, _Timer) else due.done()


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop whose time is a number.

    Operations that happen a hundred million times in a simulated hour are kept lean: handles lack what only debugging
    needs, timers are compared as tuples, and a sleeper is woken without a handle.
    """

    _ready: deque[asyncio.Handle]
    _scheduled: list[_Timed]
    _closed: bool

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.rng = random.Random(seed)  # noqa: S311 - an order, not security
        self.steps = 0
        self._now = 0.0
        self._clock_resolution = 0.0
        self._timers_made = 0
        self._timers_ended = 0  # approximate number of cancelled timers in the heap

    def time(self) -> float:
        return self._now

    def next_at(self) -> float | None:
        """Return the instant of the next timer; None: there is none."""
        self._drop_ended(self._scheduled)
        return self._scheduled[0][0] if self._scheduled else None

    def _run_once(self) -> None:
        """Run one iteration: advance time if necessary, then run what is ready, in an order drawn from the seed."""
        ready, timers = self._ready, self._scheduled
        if not ready:
            self._drop_ended(timers)
            if not timers:
                raise Deadlock(self._who_waits())
            self._now = max(self._now, timers[0][0])
        now = self._now
        while timers and timers[0][0] <= now:
            due = heappop(timers)[2]
            if _is_over(due):
                self._timers_ended -= 1
            elif isinstance(due, _Timer):
                due._scheduled = False
                ready.append(due)
            else:
                due.set_result(None)  # which makes its waiter ready
        handles = self._runnable(list(ready))
        ready.clear()
        if len(handles) > 1:
            self._shuffle(handles)
        for handle in handles:
            if not handle._cancelled:
                self.steps += 1
                handle._run()

    def _runnable(self, handles: list[asyncio.Handle]) -> list[asyncio.Handle]:
        """Return the handles that may run now: all. A loop with suspended processes keeps the others for later."""
        return handles

    def _shuffle(self, handles: list[asyncio.Handle]) -> None:
        """Shuffle like `Random.shuffle`, in a third of its time: the bias of one part in 2^53 is harmless."""
        draw = self.rng.random
        for at in range(len(handles) - 1, 0, -1):
            other = int(draw() * (at + 1))
            handles[at], handles[other] = handles[other], handles[at]

    def _drop_ended(self, timers: list[_Timed]) -> None:
        while timers and _is_over(timers[0][2]):
            heappop(timers)
            self._timers_ended -= 1

    def _who_waits(self) -> str:
        waiting = sorted(task.get_name() for task in asyncio.all_tasks(self) if not task.done())
        return f"at {self._now:g} s every task waits and nothing is left to wake one: {', '.join(waiting)}"

    # Handles and timers

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        if self._closed:
            self._check_closed()  # type: ignore[attr-defined]
        handle = _Soon(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        if self._closed:
            self._check_closed()  # type: ignore[attr-defined]
        timer = _Timer(when, callback, args, self, context)
        self._put_timer(when, timer)
        return timer

    async def sleep(self, seconds: float) -> None:
        """Sleep like `asyncio.sleep`, at lower cost."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        waiter = self.create_future()
        self._put_timer(self._now + seconds, waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            self._timer_ended()
            raise

    def _put_timer(self, when: float, due: _Due) -> None:
        self._timers_made += 1
        heappush(self._scheduled, (when, self._timers_made, due))

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:  # noqa: ARG002 - asyncio's signature
        self._timer_ended()

    def _timer_ended(self) -> None:
        """Count a cancelled timer. It stays in the heap until its time comes, unless most timers are cancelled."""
        self._timers_ended += 1
        if self._timers_ended > _MANY and 2 * self._timers_ended > len(self._scheduled):
            self._scheduled[:] = [timed for timed in self._scheduled if not _is_over(timed[2])]
            heapify(self._scheduled)
            self._timers_ended = 0

    def _process_events(self, event_list: object) -> None:
        raise NotImplementedError

    def run_in_executor(self, *_: Any) -> Any:  # type: ignore[override]
        raise RuntimeError(_NO_THREADS)

    def call_soon_threadsafe(self, *_: Any, context: Any = None) -> Any:  # type: ignore[override] # noqa: ARG002
        raise RuntimeError(_NO_THREADS)

    def _asyncgen_finalizer_hook(self, agen: Any) -> None:
        """Close an abandoned generator at once if possible.

        asyncio would do it later, as if from another thread; and the schedule must not depend on when it is collected.
        """
        self._asyncgens.discard(agen)  # type: ignore[attr-defined]
        if self._closed:
            return
        closing = agen.aclose()
        try:
            waits_for = closing.send(None)
        except (StopIteration, StopAsyncIteration):
            return
        self.create_task(_close_later(closing, waits_for))


class VirtualClock:
    """A loop's time as a Clock. Uses the running loop if none is given; the wall clock starts at a fixed instant."""

    def __init__(self, loop: VirtualLoop | None = None, *, epoch: float = 1_767_225_600.0) -> None:
        self._epoch, self._loop = epoch, loop

    def now(self) -> float:
        if self._loop is not None:
            return self._loop._now  # called more often than anything else
        return asyncio.get_running_loop().time()

    def wall(self) -> float:
        return self._epoch + self.now()

    def sleep(self, seconds: float) -> Coroutine[Any, Any, None]:
        loop = self._loop or asyncio.get_running_loop()
        return loop.sleep(seconds) if isinstance(loop, VirtualLoop) else asyncio.sleep(seconds)


async def _close_later(closing: Any, waits_for: Any) -> None:
    """Continue a generator's `aclose` that has to wait."""
    while True:
        await (asyncio.sleep(0) if waits_for is None else _done(waits_for))
        try:
            waits_for = closing.send(None)
        except (StopIteration, StopAsyncIteration):
            return


async def _done(future: Any) -> None:
    future._asyncio_future_blocking = False
    await asyncio.wait((future,))


def run_virtual(main: Callable[[], Awaitable[T]], *, seed: int = 0, loop: VirtualLoop | None = None) -> T:
    """Run `main()` on virtual time and return its result. Leftover: it returned while its tasks were still running.

    `loop` replaces a new loop with that seed; it cannot be used again.
    """
    loop = loop or VirtualLoop(seed)
    asyncio.set_event_loop(loop)
    try:
        result = loop.run_until_complete(_run_main(main))
        left = [task for task in asyncio.all_tasks(loop) if not task.done()]
        if left:
            raise Leftover(f"still running: {', '.join(sorted(task.get_name() for task in left))}")
        return result
    finally:
        cancel_all(loop)
        asyncio.set_event_loop(None)
        loop.close()


async def _run_main(main: Callable[[], Awaitable[T]]) -> T:
    return await main()


def cancel_all(loop: VirtualLoop) -> None:
    left = [task for task in asyncio.all_tasks(loop) if not task.done()]
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))


PROCESS: ContextVar[str | None] = ContextVar("PROCESS", default=None)
"""The process whose code runs. Tasks, timers and callbacks inherit it from their creator; None: no process."""


class ProcessLoop(VirtualLoop):
    """Knows which process each callback belongs to, and runs none of a suspended process."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._suspended: dict[str, list[asyncio.Handle]] = {}
        # In order of creation: the order of a set of tasks differs between runs.
        self._tasks: defaultdict[str, dict[asyncio.Task[Any], None]] = defaultdict(dict)
        self.set_task_factory(self._make_task)

    def launch(self, process: str, main: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `main`, and everything it starts, as that process."""
        return self.create_task(main, name=process, context=_as(process))

    def suspend(self, process: str) -> None:
        """Stop running the process."""
        self._suspended.setdefault(process, [])

    def wake(self, process: str) -> None:
        """Resume the process: everything that became due in the meantime is due now."""
        for handle in self._suspended.pop(process, ()):
            self._ready.append(handle)

    def kill(self, process: str) -> None:
        """Cancel all tasks of the process.

        Its connections must be dead before, so that its actions during cancellation have no effect outside.
        """
        self.wake(process)
        for task in list(self._tasks[process]):
            task.cancel()

    def _runnable(self, handles: list[asyncio.Handle]) -> list[asyncio.Handle]:
        if not self._suspended:
            return handles
        admitted: list[asyncio.Handle] = []
        for handle in handles:
            kept = self._suspended.get(handle._context.get(PROCESS) or "")  # type: ignore[attr-defined]
            (admitted if kept is None else kept).append(handle)
        return admitted

    def _make_task(self, loop: Any, work: Any, context: Context | None = None) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, context=context)
        process = context.get(PROCESS) if context is not None else PROCESS.get()
        if process is not None:
            tasks = self._tasks[process]
            tasks[task] = None
            task.add_done_callback(lambda done: tasks.pop(done, None))
        return task


def outside() -> Context:
    """Return a context that belongs to no process: for the network and the storage."""
    return _as(None)


def _as(process: str | None) -> Context:
    context = copy_context()
    context.run(PROCESS.set, process)
    return context
