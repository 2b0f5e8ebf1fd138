"""One leadership: renewed every quarter of its life, and over at its deadline whatever the storage does."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hostler.errors import Closed, HostlerError, Invalid, LeadershipLost
from hostler.kit.backoff import Backoff
from hostler.ports.store import KeyValue
from hostler.ports.ttl import StoreBacked

if TYPE_CHECKING:
    from hostler.engine.elections import Elections
    from hostler.ports.store import Comparison

RENEWALS = 4
"""Renewals in the life of a record, if all goes well."""
PATIENCE = 1.0
"""Seconds that tidying up may take before it is left to the end of the record's life."""
TAKEN = "somebody took or removed its record; stop what it was for"


class Leadership:
    """One term of leading, until it is lost or released. Made by `Elections.acquire`."""

    def __init__(self, elections: Elections, key: str, record: str, *, fence: int, ttl: float, deadline: float) -> None:
        self.key, self.fence, self.ttl = key, fence, ttl
        self.lost: HostlerError | None = None
        """Why it ended; None while it stands."""
        self.lost_at: float | None = None
        """When it ended, on the clock of the elections."""
        self.released = False
        """Whether it ended because it was given up."""
        self.deadline = deadline
        """On the clock of the elections: when it ends unless it is renewed."""
        self._elections = elections
        self._store = elections.storage if isinstance(elections.storage, StoreBacked) else None
        self._record = record
        self._trouble = ""  # why the last try to renew it failed
        self._ended = asyncio.Event()
        self._giving_up: asyncio.Task[None] | None = None
        self._tasks = [
            elections.spawn(self._renew(), f"leadership {key}: renewal"),
            elections.spawn(self._watch_deadline(), f"leadership {key}: deadline"),
        ]

    def __repr__(self) -> str:
        return f"<Leadership {self.key} fence={self.fence} {'held' if self.held else 'lost'}>"

    @property
    def held(self) -> bool:
        """Whether it stands now. True is no promise for the next instant: writes need the fence."""
        return self.lost is None and self._elections.clock.now() < self.deadline

    @property
    def record(self) -> str:
        """The record as it stands in the storage."""
        return self._record

    async def wait_lost(self) -> None:
        """Until it has ended, for whatever reason (`lost` tells)."""
        await self._ended.wait()

    def guard(self) -> Comparison:
        """A comparison for transactions of the store behind the elections: it holds while this leadership stands.

        Invalid: the storage is not a store; compare the fence with what you kept instead.
        """
        if self._store is None:
            raise Invalid(
                f"leadership {self.key}: its storage is no store, so there is nothing to compare; keep the fence"
            )
        return self._store.guard(self.key, self._record)

    def check(self) -> None:
        """LeadershipLost: it has ended."""
        if not self.held:
            raise self.lost or LeadershipLost(f"leadership {self.key}: its time ran out; stop what it was for")

    async def release(self) -> None:
        """Give it up, once the work it was for has stopped: others may take it at once.

        Who is cancelled while waiting leaves no record behind: giving up goes on, and `Elections.aclose` waits for it.
        """
        if self._end(LeadershipLost(f"leadership {self.key}: it was released"), released=self.held):
            self._giving_up = self._elections.spawn(self._give_up(), f"leadership {self.key}: giving up")
        if self._giving_up is not None:
            await asyncio.shield(self._giving_up)

    # Inside

    def _end(self, reason: HostlerError, *, released: bool = False) -> bool:
        if self.lost is not None:
            return False
        self.lost, self.lost_at, self.released = reason, self._elections.clock.now(), released
        self._elections.forget(self)
        self._ended.set()
        return True

    def _lose(self, why: str) -> None:
        """The record is left to lapse: removing it would take from others the time to see that this one stopped."""
        if self._end(LeadershipLost(f"leadership {self.key}: {why}")):
            for task in self._tasks:
                if task is not asyncio.current_task():
                    task.cancel()

    def _lose_in_time(self) -> None:
        why = f" ({self._trouble})" if self._trouble else ""
        self._lose(f"not renewed within {self.ttl:g} s{why}; stop what it was for")

    async def _give_up(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks, timeout=PATIENCE)  # a storage that hangs may hang when it is cancelled, too
        await self._elections.tidy(self.key, self._record)

    async def _watch_deadline(self) -> None:
        clock = self._elections.clock
        while (left := self.deadline - clock.now()) > 0:
            await clock.sleep(left)
        self._lose_in_time()

    async def _renew(self) -> None:
        clock = self._elections.clock
        backoff = Backoff(self.ttl / 100, self.ttl / 10, rng=self._elections.rng)
        pause = self.ttl / RENEWALS
        while True:
            await clock.sleep(pause)
            started = clock.now()
            if started >= self.deadline:
                self._lose_in_time()  # it ended while this task slept: a renewal must not bring it back
                return
            try:
                renewed = await self._renewed()
            except Exception as error:  # noqa: BLE001 - it will not get better: who cannot renew must not go on leading
                self._lose(str(error))
                return
            if self.lost is not None or clock.now() >= self.deadline:
                self._lose_in_time()  # the answer came too late, or the storage swallowed the cancellation
                return
            if renewed is None:
                pause = backoff.next()
            elif renewed:
                self.deadline = max(self.deadline, started + self.ttl)
                self._trouble = ""
                backoff.reset()
                pause = self.ttl / RENEWALS
            else:
                self._lose(TAKEN)
                return

    async def _renewed(self) -> bool | None:
        """One try; None if it failed or its outcome is unknown, which is no reason to stop: it may be repeated.

        One answer that never comes costs one try. A storage that never answers, or that goes on refusing, is left to
        the deadline. Closed, Invalid: no later try can do better.
        """
        patience = self.ttl / RENEWALS
        try:
            async with asyncio.timeout(patience):
                return await self._elections.storage.compare_and_swap(
                    self.key, self._record, self._record, ttl=self.ttl
                )
        except TimeoutError:
            self._trouble = f"no answer within {patience:g} s"
        except (Closed, Invalid):
            raise
        except HostlerError as error:
            self._trouble = str(error)
        return None


def check_guard(guard: Comparison, found: object) -> None:
    """`found` is what stands under the guard's key. LeadershipLost: somebody else leads, or nobody."""
    if not guard.holds(found if isinstance(found, KeyValue) else None):
        raise LeadershipLost(f"leadership {guard.key}: {TAKEN}")
