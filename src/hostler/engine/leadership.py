"""One leadership: renewed every quarter of its TTL, and over at its deadline regardless of the storage."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hostler.errors import Closed, HostlerError, Invalid, LeadershipLost
from hostler.kit.rate_limit import Backoff
from hostler.ports.store import KeyValue
from hostler.ports.ttl import StoreBacked

if TYPE_CHECKING:
    from hostler.engine.elections import Elections
    from hostler.ports.store import Comparison

RENEWALS = 4
"""Renewals per TTL of a record when none fails."""
PATIENCE = 1.0
"""Seconds that tidying may take; after that the record is left to expire."""
TAKEN = "its record was taken or removed; stop acting as leader"


class Leadership:
    """One term of leadership, until it is lost or released. Made by `Elections.acquire`."""

    def __init__(self, elections: Elections, key: str, record: str, *, fence: int, ttl: float, deadline: float) -> None:
        self.key, self.fence, self.ttl = key, fence, ttl
        self.lost: HostlerError | None = None
        """Why it ended; None while it is held."""
        self.lost_at: float | None = None
        """When it ended, on the clock of the elections."""
        self.released = False
        """Whether it ended by a release."""
        self.deadline = deadline
        """When it ends unless it is renewed, on the clock of the elections."""
        self._elections = elections
        self._store = elections.storage if isinstance(elections.storage, StoreBacked) else None
        self._record = record
        self._trouble = ""  # why the last renewal failed
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
        """Return whether it is held now. True is no promise for the next instant: writes need the fence."""
        return self.lost is None and self._elections.clock.now() < self.deadline

    @property
    def record(self) -> str:
        """Return the record as it is in the storage."""
        return self._record

    async def wait_lost(self) -> None:
        """Wait until it has ended, for any reason (see `lost`)."""
        await self._ended.wait()

    def guard(self) -> Comparison:
        """Return a comparison for transactions of the store behind the elections. It holds while this term lasts.

        Invalid: the storage is not a store; compare the fence with the one you kept instead.
        """
        if self._store is None:
            raise Invalid(
                f"leadership {self.key}: its storage is not a store, so there is nothing to compare; use the fence"
            )
        return self._store.guard(self.key, self._record)

    def check(self) -> None:
        """Raise LeadershipLost if it has ended."""
        if not self.held:
            raise self.lost or LeadershipLost(f"leadership {self.key}: its TTL expired; stop acting as leader")

    async def release(self) -> None:
        """Give it up, after the work done under it has stopped: others may take it at once.

        A caller that is cancelled while waiting leaves no record behind: the release continues, and `Elections.aclose`
        waits for it.
        """
        if self._end(LeadershipLost(f"leadership {self.key}: released"), released=self.held):
            self._giving_up = self._elections.spawn(self._give_up(), f"leadership {self.key}: giving up")
        if self._giving_up is not None:
            await asyncio.shield(self._giving_up)

    # Internal

    def _end(self, reason: HostlerError, *, released: bool = False) -> bool:
        if self.lost is not None:
            return False
        self.lost, self.lost_at, self.released = reason, self._elections.clock.now(), released
        self._elections.forget(self)
        self._ended.set()
        return True

    def _lose(self, why: str) -> None:
        """End the leadership. The record is left to expire: others must have time to see that this process stopped."""
        if self._end(LeadershipLost(f"leadership {self.key}: {why}")):
            for task in self._tasks:
                if task is not asyncio.current_task():
                    task.cancel()

    def _lose_in_time(self) -> None:
        why = f" ({self._trouble})" if self._trouble else ""
        self._lose(f"not renewed within {self.ttl:g} s{why}; stop acting as leader")

    async def _give_up(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks, timeout=PATIENCE)  # a storage that hangs may also hang on cancellation
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
                self._lose_in_time()  # it ended while this task slept: a renewal must not restore it
                return
            try:
                renewed = await self._renewed()
            except Exception as error:  # noqa: BLE001 - permanent: a process that cannot renew must not lead
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
        """Try to renew once; None: the attempt failed or its outcome is unknown, so it may be repeated.

        One missing answer costs one attempt. If the storage never answers, or keeps refusing, the deadline ends the
        leadership. Closed, Invalid: a later attempt cannot succeed.
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
    """Raise LeadershipLost if `found`, the record at the key of the guard, shows that this process no longer leads."""
    if not guard.holds(found if isinstance(found, KeyValue) else None):
        raise LeadershipLost(f"leadership {guard.key}: {TAKEN}")
