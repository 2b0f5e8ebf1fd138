"""Tasks of asyncio: run them together, limit and interrupt their waiting, yield to others, close what they use."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator, Mapping
    from types import TracebackType

    from hostler.kit.clock import Clock

T = TypeVar("T")


async def run_together(owner: str, works: Mapping[str, Coroutine[Any, Any, Any]]) -> None:
    """Run all until one ends, or this is cancelled; then cancel the others, and raise the error of the one that ended.

    The tasks are called `owner: name`.
    """
    tasks = [asyncio.create_task(work, name=f"{owner}: {name}") for name, work in works.items()]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:  # in order: if several ended at once, the same one is always reported
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def within(seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`. TimeoutError: it took longer.

    Like `asyncio.timeout` around it; but the time starts only when the work first waits for something.
    """
    try:
        waits_for = work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    async with asyncio.timeout(seconds):
        return await _Rest(work, waits_for)


class _Rest(Generic[T]):
    """Awaiting it continues work that was started."""

    __slots__ = ("_waits_for", "_work")

    def __init__(self, work: Coroutine[Any, Any, T], waits_for: Any) -> None:
        self._work, self._waits_for = work, waits_for

    def __await__(self) -> Generator[Any, Any, T]:
        work, waits_for = self._work, self._waits_for
        while True:
            try:
                try:
                    sent = yield waits_for
                except BaseException as error:  # noqa: BLE001 - it belongs to the work
                    waits_for = work.throw(error)
                else:
                    waits_for = work.send(sent)
            except StopIteration as done:
                result: T = done.value
                return result


class Nap:
    """A sleep that another task can end. One task sleeps at a time."""

    __slots__ = ("_clock", "_sleeper", "_woken")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sleeper: asyncio.Task[Any] | None = None
        self._woken = False

    async def sleep(self, seconds: float) -> None:
        """Sleep for `seconds`, or until `wake`."""
        sleeper = self._sleeper = asyncio.current_task()
        if sleeper is None:
            raise RuntimeError("nap: only a task can sleep")
        cancelling = sleeper.cancelling()
        self._woken = False
        try:
            await self._clock.sleep(seconds)
        except asyncio.CancelledError:
            # Like `asyncio.timeout`: was the task cancelled only by `wake`, or also by another caller?
            if not self._woken or sleeper.uncancel() > cancelling:
                raise
        finally:
            self._sleeper = None

    def wake(self) -> None:
        """End the sleep, if one is in progress."""
        if self._sleeper is not None and not self._woken:
            self._woken = True
            self._sleeper.cancel()


class Fairness:
    """Yields to the event loop once `span` seconds have passed since it last did."""

    __slots__ = ("_shared_at", "_span")

    def __init__(self, span: float = 0.001) -> None:
        self._span = span
        self._shared_at = 0.0

    async def share(self) -> None:
        """Let other ready tasks run first, if the last yield is long enough ago."""
        now = asyncio.get_running_loop().time()
        if now - self._shared_at > self._span:
            self._shared_at = now  # before the pause: one caller yields, not all that ask in the same iteration
            await asyncio.sleep(0)


class Closing:
    """Leaving the context closes the object. A subclass that has something to open overrides `__aenter__`."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Release everything. Closing twice is fine."""
        raise NotImplementedError


async def run_to_end(step: Coroutine[Any, Any, T] | asyncio.Task[T]) -> T:
    """Run a short step to its end even if the caller is cancelled; then raise the cancellation.

    For work in a thread, which continues when its caller is cancelled: a repetition of the verb must not run into it.
    """
    task = asyncio.ensure_future(step)
    cut: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if task.cancelled():
                raise
            cut = error
        except BaseException:  # noqa: BLE001, S110 - raised by `result`
            pass
    if cut is not None:
        if not task.cancelled():
            task.exception()
        raise cut
    return task.result()
