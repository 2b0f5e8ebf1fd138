"""What the conformance suites share. A claim is an async function: its name says what must be true of every driver."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from hostler.errors import HostlerError, Unavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence

E = TypeVar("E", bound=HostlerError)


class Named(Protocol):
    """What is known of every claim. `waits`: it mostly sleeps, so it may be tried beside others that wait."""

    @property
    def name(self) -> str: ...

    @property
    def waits(self) -> bool: ...


C = TypeVar("C", bound=Named)


@asynccontextmanager
async def trying(name: str, *, within: float) -> AsyncIterator[None]:
    """Around the trial of a claim: what goes wrong is noted with the claim in words."""
    try:
        async with asyncio.timeout(within):
            yield
    except Exception as error:
        error.add_note(f"claim: {name.replace('_', ' ')}")
        raise


async def connected(ask: Callable[[], Awaitable[object]], *, within: float) -> None:
    """Until the storage answers: how long it takes to connect is no part of any claim."""
    end = asyncio.get_running_loop().time() + within
    while True:
        try:
            await ask()
        except Unavailable:
            if asyncio.get_running_loop().time() > end:
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
