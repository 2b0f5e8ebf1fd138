"""What all suites share: runner of claims, expectations, cancellation of an operation at each suspension."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from hostler.errors import HostlerError, Unavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Generator, Iterator, Sequence

E = TypeVar("E", bound=HostlerError)


class Named(Protocol):
    """Common attributes of all claims.

    `waits`: the claim mostly sleeps, so it may run concurrently with others that wait.
    """

    @property
    def name(self) -> str: ...

    @property
    def waits(self) -> bool: ...


C = TypeVar("C", bound=Named)


class OnTime(Protocol):
    """Checks how long something took; raises AssertionError if it took too long.

    `since` is the loop's time at the start, so that an implementation can take the speed of the machine since then into
    account. Claims about safety (never early, never twice) do not use it: they hold on a machine of any speed.
    """

    def __call__(self, took: float, limit: float, *, since: float, what: str) -> None: ...


def on_time(took: float, limit: float, *, since: float, what: str) -> None:  # noqa: ARG001 - any speed
    """Check against the limit without tolerance, for a machine without other load."""
    assert took <= limit, f"{what} took {took:.3f} s, but at most {limit:g} s are allowed"


class TooSlow(Exception):
    """What a claim checks ended correctly before this slow machine could observe it, so nothing more can be checked.

    Raised after the timestamps of this process have proven that it did not end early.
    """


def loop_time() -> float:
    """Return the event loop's time, which is virtual if the test is."""
    return asyncio.get_running_loop().time()


@asynccontextmanager
async def trying(name: str, *, within: float) -> AsyncIterator[None]:
    """Run a claim: exceptions get a note with the claim as text."""
    try:
        async with asyncio.timeout(within):
            yield
    except TooSlow:
        return
    except Exception as error:
        error.add_note(f"claim: {name.replace('_', ' ')}")
        raise


async def side_by_side(*parts: Coroutine[Any, Any, None]) -> None:
    """Run the parts of a claim concurrently; when one fails, cancel the others."""
    tasks = [asyncio.create_task(part) for part in parts]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def wait_until_connected(ask: Callable[[], Awaitable[object]], *, within: float) -> None:
    """Wait until the storage answers: the time to connect is not part of any claim."""
    end = loop_time() + within
    while True:
        try:
            await ask()
        except Unavailable:
            if loop_time() > end:
                raise
        else:
            return


async def check_all(
    subject: str, claims: Sequence[C], attempt: Callable[[C], Awaitable[None]], only: Collection[str] | None = None
) -> None:
    """Check the claims, or `only` the named ones; raise a group with all failures."""
    if not __debug__:
        raise RuntimeError(f"check {subject}: python -O removes the assertions; run it without -O")
    unknown = set(only or ()) - {claim.name for claim in claims}
    if unknown:
        raise ValueError(f"check {subject}: no such claim: {', '.join(sorted(unknown))}")
    chosen = [claim for claim in claims if only is None or claim.name in only]
    failures: list[Exception] = []

    async def collect(claim: C) -> None:
        try:
            await attempt(claim)
        except Exception as error:  # noqa: BLE001 - all failures are reported together
            failures.append(error)

    await asyncio.gather(*(collect(claim) for claim in chosen if claim.waits))
    for claim in chosen:
        if not claim.waits:
            await collect(claim)
    if failures:
        raise ExceptionGroup(f"{subject}: {len(failures)} of {len(chosen)} claims do not hold", failures)


class Refusal(Generic[E]):
    """The exception that `refused` caught."""

    error: E


@contextmanager
def refused(kind: type[E]) -> Iterator[Refusal[E]]:
    """Assert that the block raises `kind` with a message."""
    refusal: Refusal[E] = Refusal()
    try:
        yield refusal
    except kind as error:
        if not str(error):
            raise AssertionError(f"{kind.__name__} has no message") from error
        refusal.error = error
        return
    raise AssertionError(f"{kind.__name__} was not raised")


class Cut:
    """Runs a coroutine and cancels it at its `at`-th suspension; 0: never. `waits` counts the suspensions."""

    def __init__(self, verb: Coroutine[Any, Any, Any], at: int) -> None:
        self._verb, self._at, self.waits = verb, at, 0

    def __await__(self) -> Generator[Any, Any, Any]:
        inner = self._verb.__await__()
        error: BaseException | None = None
        while True:
            try:
                waited_for = inner.send(None) if error is None else inner.throw(error)
            except StopIteration as stop:
                return stop.value
            self.waits += 1
            if self.waits == self._at:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            try:
                yield waited_for
            except BaseException as thrown:  # noqa: BLE001 - thrown into the coroutine
                error = thrown
            else:
                error = None


async def cut(verb: Coroutine[Any, Any, Any], at: int) -> int:
    """Run an operation that is cancelled at its `at`-th suspension; return how often it was suspended."""
    runner = Cut(verb, at)

    async def run() -> None:
        await runner

    task = asyncio.create_task(run())
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()
    return runner.waits


def points(waits: int, most: int, turn: int = 0) -> Sequence[int]:
    """Return where to cancel an operation with so many suspensions: everywhere, or at `most` points spread evenly.

    `turn` shifts the points: those of all turns together cover every suspension.
    """
    if waits <= most:
        return range(1, waits + 1)
    return sorted({1 + (turn + index * waits // most) % waits for index in range(most)})
