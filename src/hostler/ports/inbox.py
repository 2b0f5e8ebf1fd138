"""The lab door: requests come in through queues, records go out. Redis in production; nothing here is the truth.

    Unavailable  it is out of reach; nothing changed
    Uncertain    the answer was lost: what was asked for may have happened. `held` tells what a worker holds

Order: of one queue, a user's next request is handed out only once the earlier one is acknowledged or buried, whichever
worker holds it. Between the two queues there is none; a worker that wants one takes the user's request of the other
queue out of its turn (`take_of`). Each delivery has a token that no other has.
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
"""Bytes of a request that is handed out."""
KEPT = 1_000
"""Bytes of a longer one that the dead keep."""
AHEAD = 1_000
"""Requests of a queue that are searched for one of a user."""
BEHIND = 16
"""Requests behind the one in work that are shown."""
BRACKETS = 1_000
"""Of these, how many may open something: what is nested deeper is not looked into."""


class Taken(msgspec.Struct, frozen=True):
    """A request that a worker holds."""

    queue: QueueName
    token: str
    """Of this delivery."""
    raw: bytes
    """As it was pushed."""


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """What shall be seen of a user."""

    user: str
    revision: int
    """Of the store; what was made of a lower one changes nothing."""
    server: LabServer | None
    """None: there is no lab, and the record goes."""
    waits_since: float | None = None
    """When it was asked for, while it waits for its turn."""
    news: Sequence[LabNews] = ()
    """The last of them; those that the stream has are left out."""


class Shown(msgspec.Struct, frozen=True):
    """How far a user's record is."""

    revision: int
    """The highest under which something was published or withdrawn."""
    news: int
    """The number of the last that was told; 0: none."""


class Inbox(Protocol):
    """The queues. An async context manager; one per worker process."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    async def take(self, worker: str, *, limit: int, within: float) -> Sequence[Taken]:
        """Up to `limit` requests, which `worker` then holds; waits up to `within` seconds for the first.

        What belongs to a user who has one in work is set aside, and comes out of that one's `acknowledge`. What is
        longer than `LONGEST` is handed to nobody: its beginning goes to the dead.
        """

    async def take_of(self, worker: str, queue: QueueName, user: str) -> Taken | bool:
        """The user's first request of a queue, out of its turn: `worker` holds it then.

        True: there is one in work, so the next has to wait. False: there is none among the first `AHEAD` of the queue.
        """

    async def behind(self, queue: QueueName, user: str) -> Sequence[bytes]:
        """The last of a user's requests that wait in a queue, at most `BEHIND`, in order. Nothing changes.

        Those that were set aside, and those among the first `AHEAD` of the queue.
        """

    async def held(self, worker: str) -> Sequence[Taken]:
        """All that a worker holds, each queue in the order in which it was taken."""

    async def acknowledge(self, worker: str, done: Sequence[Taken]) -> Sequence[Taken]:
        """They are worked. The next requests of their users, which `worker` holds now; what it held no more is fine."""

    async def bury(self, worker: str, taken: Taken, reason: str, at: float) -> Sequence[Taken]:
        """It cannot be understood: it goes to the dead, with the reason and the time. As `acknowledge`."""

    async def workers(self) -> frozenset[str]:
        """All who may hold something."""

    async def release(self, worker: str, done: Sequence[Taken]) -> int:
        """Take everything from a worker that is dead: `done` is acknowledged, all else goes back to the front of its
        queue, in order. How many went back. Repeating it is fine.
        """


class Board(Protocol):
    """The records. An async context manager; whoever leads writes them."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    async def epoch(self) -> str:
        """A word that changes when what was published may be lost: it was flushed, restarted, or failed over."""

    async def publish(self, changes: Sequence[Published]) -> int:
        """Let them be seen, each as one step; how many changed something. Repeating it changes nothing."""

    async def refresh(self, users: Sequence[str]) -> Sequence[str]:
        """Renew the life of their records; those of them that have no record."""

    async def servers(self) -> dict[str, LabServer | None]:
        """All records that are there, by user; None: it cannot be read."""

    async def withdraw(self, user: str, revision: int) -> bool:
        """Remove a record of which the store knew nothing at `revision`, unless a newer one was published."""

    async def shown(self) -> dict[str, Shown]:
        """How far it is, for each user of whom something was published or withdrawn."""

    async def forget(self, user: str, revision: int) -> bool:
        """Remove all that is seen of a user, and that it was under `revision`, if it was: of another store's time."""
