"""Definition of a claim about lab queues and records, its environment, and the runner of all claims."""

from __future__ import annotations

import importlib
import random
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Protocol, Self

import msgspec

from hostler.kit.lazy_import import old_attribute, old_parameter
from hostler.model.lab import LabRequest
from hostler.testing.claim import check_all, trying

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Sequence
    from types import TracebackType

    from hostler.ports.inbox import Inbox, LabRecords, QueueName, Taken

    Body = Callable[["InboxTrial"], Awaitable[None]]

WITHIN = 30.0
"""Seconds within which everything that a claim waits for must happen."""
ROUNDS = 5
"""Number of random schedules for each race."""
_CHAPTERS = ("queues", "order", "records")


class LabFrontEnd(Protocol):
    """Private lab queues and records, initially empty, and the actions of the front end and of operators."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def inbox(self) -> Inbox:
        """Return a new client of the queues, not open yet."""

    def board(self) -> LabRecords:
        """Return a new client of the records, not open yet."""

    async def push(self, queue: QueueName, *requests: bytes) -> None:
        """Push requests, in this order."""

    async def dead(self) -> Sequence[tuple[str, str, str, float, str]]:
        """Return queue, request, reason, time and worker of each dead-letter entry, in order."""

    async def news(self, user: str) -> Sequence[tuple[int, str]]:
        """Return number and event of each, in order."""

    async def waiting(self) -> Sequence[str]:
        """Return the waiting users, in order."""

    async def flush(self) -> None:
        """Delete everything."""


class InboxClaim(msgspec.Struct, frozen=True):
    """One property of every driver of lab queues and records. `str(claim)` is the claim as text."""

    name: str
    body: Body
    waits: bool = False

    def __str__(self) -> str:
        return self.name

    @old_parameter("open_door", "open_front_end")
    async def check(self, open_front_end: Callable[[], LabFrontEnd], *, rounds: int = ROUNDS) -> None:
        """Check the claim. Raise AssertionError, or the driver's exception, with a note that names the claim."""
        async with trying(self.name, within=2 * WITHIN), open_front_end() as front_end, AsyncExitStack() as stack:
            inbox, other = [await stack.enter_async_context(front_end.inbox()) for _ in range(2)]
            board = await stack.enter_async_context(front_end.board())
            await self.body(InboxTrial(front_end, inbox, other, board, rounds))


class InboxTrial:
    """The environment of a claim: a `LabFrontEnd`, two clients of its queues, one of its records."""

    @old_parameter("door", "front_end")
    def __init__(self, front_end: LabFrontEnd, inbox: Inbox, other: Inbox, board: LabRecords, rounds: int) -> None:
        self.front_end, self.inbox, self.other, self.board, self.rounds = front_end, inbox, other, board, rounds

    if not TYPE_CHECKING:  # the checker accepts the new name only
        door = old_attribute("door", "front_end")

    async def push(self, user: str, *labs: int, queue: QueueName = "provision") -> None:
        """Push requests of one user."""
        await self.front_end.push(queue, *(request(user, lab) for lab in labs))

    async def take(self, worker: str = "w1", *, limit: int = 100) -> list[Taken]:
        """Take what is there now, without waiting."""
        return list(await self.inbox.take(worker, limit=limit, within=0))

    def rng(self, seed: int) -> random.Random:
        """Return a random source; the seed determines the schedule."""
        return random.Random(seed)


def request(user: str, lab: int) -> bytes:
    """Return a request as the front end writes it."""
    return LabRequest(webuserid=user, lab_id=lab).encode()


def labs(taken: Sequence[Taken]) -> list[tuple[str, int]]:
    """Return user and lab of each."""
    decoded = [LabRequest.decode(one.raw) for one in taken]
    return [(one.webuserid, one.lab_id) for one in decoded]


_CLAIMS: list[InboxClaim] = []


def claim(body: Body) -> Body:
    """Register an async function as a claim; its name is the claim as text."""
    _CLAIMS.append(InboxClaim(getattr(body, "__name__", "?"), body))
    return body


def inbox_claims() -> Sequence[InboxClaim]:
    """Return all claims about lab queues and records."""
    for chapter in _CHAPTERS:
        importlib.import_module(f"hostler.testing.inbox.{chapter}")
    return tuple(_CLAIMS)


@old_parameter("open_door", "open_front_end")
async def check_inbox(
    open_front_end: Callable[[], LabFrontEnd], *, rounds: int = ROUNDS, only: Collection[str] | None = None
) -> None:
    """Check that a driver implements the lab queues and records; raise a group with all failures.

    `open_front_end()` returns a new, independent `LabFrontEnd` each time. `rounds`: how many random schedules are tried
    for each race. `only` names the claims to check (see `inbox_claims`).
    """
    await check_all("lab front end", inbox_claims(), lambda claim: claim.check(open_front_end, rounds=rounds), only)
