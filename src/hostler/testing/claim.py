"""What the conformance suites share. A claim is an async function: its name says what must be true of every driver."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from hostler.errors import HostlerError, Unavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterator, Sequence

E = TypeVar("E", bound=HostlerError)


class Named(Protocol):
    """What is known of every claim. `waits`: it mostly sleeps, so it may be tried beside others that wait."""

    @property
    def name(self) -> str: ...

    @property
    def waits(self) -> bool: ...


C = TypeVar("C", bound=Named)


class OnTime(Protocol):
    """Judges how long something took; raises AssertionError if that is too long.

    `since` is the loop's time when it began, so that a judge can know how fast the machine was meanwhile. Claims about
    safety (never early, never twice) are not judged by it: they hold on a machine of any speed.
    """

    def __call__(self, took: float, limit: float, *, since: float, what: str) -> None: ...


def on_time(took: float, limit: float, *, since: float, what: str) -> None:  # noqa: ARG001 - at any speed the same
    """The judge of a machine that has nothing else to do: no longer than the limit."""
    assert took <= limit, f"{what} took {took:.3f} s, and {limit:g} s are allowed"


class TooSlow(Exception):
    """What a claim looks at ended in its time, before this machine could look: there is nothing more to see.

    Raised after it was proven by the instants of this process that it was not early.
    """


def loop_time() -> float:
    """The event loop's time, which is virtual where the test is."""
    return asyncio.get_running_loop().time()


@asynccontextmanager
async def trying(name: str, *, within: float) -> AsyncIterator[None]:
    """Around the trial of a claim: what goes wrong is noted with the claim in words."""
    try:
        async with asyncio.timeout(within):
            yield
    except TooSlow:
        return
    except Exception as error:
        error.add_note(f"claim: {name.replace('_', ' ')}")
        raise


async def side_by_side(*parts: Coroutine[Any, Any, None]) -> None:
    """Do the parts of a claim at once; when one fails, the others end."""
    tasks = [asyncio.create_task(part) for part in parts]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def connected(ask: Callable[[], Awaitable[object]], *, within: float) -> None:
    """Until the storage answers: how long it takes to connect is no part of any claim."""
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
    """Try the claims, or `only` those named; raises a group with every one that does not hold."""
    if not __debug__:
        raise RuntimeError(f"check {subject}: python -O takes the assertions out; run it without")
    unknown = set(only or ()) - {claim.name for claim in claims}
    if unknown:
        raise ValueError(f"check {subject}: no such claim: {', '.join(sorted(unknown))}")
    chosen = [claim for claim in claims if only is None or claim.name in only]
    failures: list[Exception] = []

    async def collect(claim: C) -> None:
        try:
            await attempt(claim)
        except Exception as error:  # noqa: BLE001 - all of them are reported, together
            failures.append(error)

    await asyncio.gather(*(collect(claim) for claim in chosen if claim.waits))
    for claim in chosen:
        if not claim.waits:
            await collect(claim)
    if failures:
        raise ExceptionGroup(f"{subject}: {len(failures)} of {len(chosen)} claims do not hold", failures)


class Refusal(Generic[E]):
    """What `refused` caught."""

    error: E


@contextmanager
def refused(kind: type[E]) -> Iterator[Refusal[E]]:
    """What happens inside must raise `kind`."""
    refusal: Refusal[E] = Refusal()
    try:
        yield refusal
    except kind as error:
        if not str(error):
            raise AssertionError(f"{kind.__name__} says nothing") from error
        refusal.error = error
        return
    raise AssertionError(f"{kind.__name__} was not raised")
