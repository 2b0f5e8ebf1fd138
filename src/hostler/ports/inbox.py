"""Lab queues: requests come in through queues, records go out. Redis in production, never the source of truth.

    Unavailable  the backend cannot be reached; nothing changed
    Uncertain    the answer was lost: the change may have happened. `held` returns what a worker holds

Order: within one queue, a user's next request is delivered only after the earlier one is acknowledged or buried,
whichever worker holds it. There is no order between the two queues; a worker that needs one takes the user's request of
the other queue out of turn (`take_of`). Each delivery has a unique token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol, Self, TypeAlias

import msgspec

from hostler.model.lab import LabNews, LabServer  # noqa: TC001 - msgspec reads annotations at run time

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

QueueName: TypeAlias = Literal["provision", "decommission"]
QUEUES: tuple[QueueName, ...] = ("provision", "decommission")
LONGEST = 65_536
"""Maximum size in bytes of a request that is delivered."""
KEPT = 1_000
"""Bytes of a longer request that the dead-letter queue keeps."""
AHEAD = 1_000
"""Number of requests of a queue that are searched for one of a user."""
BEHIND = 16
"""Maximum number of requests that are returned by `behind`."""
BRACKETS = 1_000
"""Maximum number of opening brackets in a request: a request with more is not parsed."""


class Taken(msgspec.Struct, frozen=True):
    """A request that a worker holds."""

    queue: QueueName
    token: str
    """Token of this delivery."""
    raw: bytes
    """The request as it was pushed."""


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """The record to publish for a user."""

    user: str
    revision: int
    """Revision of the store. A record made from a lower revision than the published one changes nothing."""
    server: LabServer | None
    """The lab's record. None: there is no lab; the record is removed."""
    waits_since: float | None = None
    """When the lab was requested, while it is on the waiting list."""
    news: Sequence[LabNews] = ()
    """The latest news; items that the stream already has are left out."""


class Shown(msgspec.Struct, frozen=True):
    """What is published for a user."""

    revision: int
    """The highest revision at which something was published or withdrawn."""
    news: int
    """The number of the last published news item; 0: none."""


class Inbox(Protocol):
    """The request queues. An async context manager; one per worker process."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    async def take(self, worker: str, *, limit: int, within: float) -> Sequence[Taken]:
        """Return up to `limit` requests, which `worker` then holds; wait up to `within` seconds for the first one.

        A request of a user who already has one in work is set aside, and is returned by the `acknowledge` of that one.
        A request longer than `LONGEST` is not delivered: its beginning goes to the dead-letter queue.
        """

    async def take_of(self, worker: str, queue: QueueName, user: str) -> Taken | bool:
        """Take the user's first request of a queue out of turn: `worker` then holds it.

        True: a request of the user is in work, so the next one has to wait. False: none among the first `AHEAD`
        requests of the queue.
        """

    async def behind(self, queue: QueueName, user: str) -> Sequence[bytes]:
        """Return the last `BEHIND` of a user's requests that wait in a queue, in order. Changes nothing.

        Includes requests that were set aside, and requests among the first `AHEAD` of the queue.
        """

    async def held(self, worker: str) -> Sequence[Taken]:
        """Return all requests that a worker holds, each queue in the order in which they were taken."""

    async def acknowledge(self, worker: str, done: Sequence[Taken]) -> Sequence[Taken]:
        """Remove finished requests and return the next requests of their users, which `worker` holds now.

        Requests that the worker no longer holds are ignored.
        """

    async def bury(self, worker: str, taken: Taken, reason: str, at: float) -> Sequence[Taken]:
        """Move a request that cannot be parsed to the dead-letter queue, with reason and time.

        Returns the same as `acknowledge`.
        """

    async def workers(self) -> frozenset[str]:
        """Return all workers that may hold requests."""

    async def release(self, worker: str, done: Sequence[Taken]) -> int:
        """Take all requests away from a dead worker and return how many went back to their queues.

        `done` is acknowledged; all others go back to the front of their queue, in order. May be repeated.
        """


class LabRecords(Protocol):
    """The published lab records. An async context manager; the leader writes them."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    async def epoch(self) -> str:
        """Return a text that changes when published records may be lost: after a flush, restart or failover."""

    async def publish(self, changes: Sequence[Published]) -> int:
        """Publish records, each atomically, and return how many changed something. Repeating it changes nothing."""

    async def refresh(self, users: Sequence[str]) -> Sequence[str]:
        """Renew the TTL of these users' records and return the users that have no record."""

    async def servers(self) -> dict[str, LabServer | None]:
        """Return all records by user; None: the record cannot be read."""

    async def withdraw(self, user: str, revision: int) -> bool:
        """Remove a record that the store did not have at `revision`, unless a newer one was published."""

    async def shown(self) -> dict[str, Shown]:
        """Return the published state of each user for whom something was published or withdrawn."""

    async def forget(self, user: str, revision: int) -> bool:
        """Remove everything published for a user, including the revision marker, if the marker is still `revision`.

        Used for records that were published from another store.
        """
