"""What a claim about lab doors is, what it works with, and how all of them are run."""

from __future__ import annotations

import importlib
import random
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Protocol, Self

import msgspec

from hostler.model.lab import LabRequest
from hostler.testing.claim import check_all, trying

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Sequence
    from types import TracebackType

    from hostler.ports.inbox import Board, Inbox, QueueName, Taken

    Body = Callable[["InboxTrial"], Awaitable[None]]

WITHIN = 30.0
"""Seconds in which whatever a claim waits for must have happened."""
ROUNDS = 5
"""Random schedules that are tried for each race."""
_CHAPTERS = ("queues", "order", "releases", "races", "records")


class LabDoor(Protocol):
    """A door of its own, empty at first, and what the front end and operators do to it."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def inbox(self) -> Inbox:
        """A new client of the queues, not open yet."""

    def board(self) -> Board:
        """A new client of the records, not open yet."""

    async def push(self, queue: QueueName, *requests: bytes) -> None:
        """Requests, in this order."""

    async def dead(self) -> Sequence[tuple[str, str, str, float, str]]:
        """Queue, request, reason, time and worker of each that was buried, in order."""

    async def news(self, user: str) -> Sequence[tuple[int, str]]:
        """Number and event of each, in order."""

    async def waiting(self) -> Sequence[str]:
        """Who waits, in order."""

    async def flush(self) -> None:
        """Forget everything."""


class InboxClaim(msgspec.Struct, frozen=True):
    """One thing that is true of every lab door. `str(claim)` is the claim in words."""

    name: str
    body: Body
    waits: bool = False

    def __str__(self) -> str:
        return self.name

    async def check(self, open_door: Callable[[], LabDoor], *, rounds: int = ROUNDS) -> None:
        """Try the claim; AssertionError or what the driver raised, with a note that names it."""
        async with trying(self.name, within=2 * WITHIN), open_door() as door, AsyncExitStack() as stack:
            inbox, other = [await stack.enter_async_context(door.inbox()) for _ in range(2)]
            board = await stack.enter_async_context(door.board())
            await self.body(InboxTrial(door, inbox, other, board, rounds))


class InboxTrial:
    """What a claim works with: a door, two clients of its queues, one of its records."""

    def __init__(self, door: LabDoor, inbox: Inbox, other: Inbox, board: Board, rounds: int) -> None:
        self.door, self.inbox, self.other, self.board, self.rounds = door, inbox, other, board, rounds

    async def push(self, user: str, *labs: int, queue: QueueName = "provision") -> None:
        """Requests of one user."""
        await self.door.push(queue, *(request(user, lab) for lab in labs))

    async def take(self, worker: str = "w1", *, limit: int = 100) -> list[Taken]:
        """What is there now."""
        return list(await self.inbox.take(worker, limit=limit, within=0))

    def rng(self, seed: int) -> random.Random:
        """Its schedule follows from the seed."""
        return random.Random(seed)


def request(user: str, lab: int) -> bytes:
    """As the front end writes it."""
    return LabRequest(webuserid=user, lab_id=lab).encode()


def labs(taken: Sequence[Taken]) -> list[tuple[str, int]]:
    """User and lab of each."""
    decoded = [LabRequest.decode(one.raw) for one in taken]
    return [(one.webuserid, one.lab_id) for one in decoded]


_CLAIMS: list[InboxClaim] = []


def claim(body: Body) -> Body:
    """Make a claim of an async function: its name is the claim in words."""
    _CLAIMS.append(InboxClaim(getattr(body, "__name__", "?"), body))
    return body


def inbox_claims() -> Sequence[InboxClaim]:
    """Every claim that is made of a lab door."""
    for chapter in _CHAPTERS:
        importlib.import_module(f"hostler.testing.inbox.{chapter}")
    return tuple(_CLAIMS)


async def check_inbox(
    open_door: Callable[[], LabDoor], *, rounds: int = ROUNDS, only: Collection[str] | None = None
) -> None:
    """Check that a driver does what the lab door promises; raises a group with every claim that does not hold.

    `open_door()` is a door of its own each time. `rounds`: how many random schedules are tried for each race. `only`
    names the claims to check (see `inbox_claims`).
    """
    await check_all("lab door", inbox_claims(), lambda claim: claim.check(open_door, rounds=rounds), only)
