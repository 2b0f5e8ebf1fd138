"""Leadership: at most one process believes that it leads, and its writes carry a number that proves when.

A leader is whoever holds the record of a key. The record expires unless it is renewed, and it is renewed every quarter
of its life. The holder stops believing at a deadline of its own: one life after the last renewal that succeeded,
counted from *before* that renewal was sent, on a monotonic clock. So the belief ends before the record does, whatever
the storage or the network does meanwhile.

The fence is what makes belief safe where belief is not enough: a process can be stopped between believing and writing.
Each leadership gets a number higher than every one before it, from a counter beside the record that is never deleted.
It is drawn while the record is already held (with the fence 0, a claim), so numbers and leaderships come in the same
order, also when a process sleeps between the two steps: the claim it thought it held is gone, and its last step fails.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from hostler.errors import (
    Closed,
    Damaged,
    HostlerError,
    Invalid,
    LeadershipLost,
    Unavailable,
    Uncertain,
)
from hostler.keys.replica import FENCE, LEADER
from hostler.kit.backoff import Backoff
from hostler.kit.clock import SystemClock
from hostler.ports.store import check_key, check_ttl
from hostler.ports.ttl import Guarding

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from hostler.kit.clock import Clock
    from hostler.ports.store import Comparison
    from hostler.ports.ttl import TtlStorage

T = TypeVar("T")

RENEWALS = 4
"""Renewals in the life of a record, if all goes well."""
PATIENCE = 1.0
"""Seconds that tidying up may take before it is left to the end of the record's life."""


def fence_key(key: str) -> str:
    """Where the fence counter of an election key is kept: beside it."""
    parts = LEADER.match(key)
    return f"{key}.fence" if parts is None else FENCE.fill(**parts)


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
        self._record = record
        self._ended = asyncio.Event()
        self._tasks = [
            asyncio.create_task(self._renew(), name=f"leadership {key}: renewal"),
            asyncio.create_task(self._watch_deadline(), name=f"leadership {key}: deadline"),
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
        storage = self._elections.storage
        if not isinstance(storage, Guarding):
            raise Invalid(
                f"leadership {self.key}: its storage is no store, so there is nothing to compare; keep the fence"
            )
        return storage.guard(self.key, self._record)

    def check(self) -> None:
        """LeadershipLost: it has ended."""
        if not self.held:
            raise self.lost or LeadershipLost(f"leadership {self.key}: its time ran out; stop what it was for")

    async def release(self) -> None:
        """Give it up, once the work it was for has stopped: others may take it at once."""
        if not self._end(LeadershipLost(f"leadership {self.key}: it was released"), released=self.held):
            return
        await self._stop_tasks()
        await self._elections.tidy(self.key, self._record)

    # Inside

    def _end(self, reason: HostlerError, *, released: bool = False) -> bool:
        if self.lost is not None:
            return False
        self.lost, self.lost_at, self.released = reason, self._elections.clock.now(), released
        self._elections.forget(self)
        self._ended.set()
        return True

    async def _lose(self, reason: HostlerError) -> None:
        """The record is left to lapse: removing it could remove somebody else's time to stop."""
        if self._end(reason):
            for task in self._tasks:
                if task is not asyncio.current_task():
                    task.cancel()

    async def _stop_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks, timeout=PATIENCE)  # a storage that hangs may hang when it is cancelled, too

    async def _watch_deadline(self) -> None:
        clock = self._elections.clock
        while (left := self.deadline - clock.now()) > 0:
            await clock.sleep(left)
        await self._lose(
            LeadershipLost(f"leadership {self.key}: not renewed within {self.ttl:g} s; stop what it was for")
        )

    async def _renew(self) -> None:
        clock = self._elections.clock
        backoff = Backoff(self.ttl / 100, self.ttl / 10)
        pause = self.ttl / RENEWALS
        while True:
            await clock.sleep(pause)
            started = clock.now()
            try:
                # Swapping a record for itself may be repeated, so an unknown outcome is no reason to stop.
                # A storage that hangs is left to the deadline, which ends this task.
                renewed = await self._elections.storage.compare_and_swap(
                    self.key, self._record, self._record, ttl=self.ttl
                )
            except (Unavailable, Uncertain):
                pause = backoff.next()
                continue
            except HostlerError as error:
                await self._lose(LeadershipLost(f"leadership {self.key}: {error}"))
                return
            if not renewed:
                await self._lose(LeadershipLost(f"leadership {self.key}: somebody took or removed its record"))
                return
            self.deadline = max(self.deadline, started + self.ttl)
            backoff.reset()
            pause = self.ttl / RENEWALS


class Elections:
    """Acquires, renews and releases leaderships on one storage. The storage is the caller's to open and close."""

    def __init__(
        self, storage: TtlStorage, *, clock: Clock | None = None, new_id: Callable[[], str] | None = None
    ) -> None:
        self.storage = storage
        self.clock: Clock = clock or SystemClock()
        self.holder = (new_id or (lambda: uuid.uuid4().hex))()
        """Tells this process from every other."""
        self._held: dict[str, Leadership] = {}
        self._busy: set[str] = set()
        self._idle = asyncio.Event()
        self._closed = False

    async def acquire(self, key: str, value: str, *, ttl: float) -> Leadership | None:
        """Try once to lead `key`; None if somebody does, this object included. `value` is the address others see.

        Unavailable, Uncertain: the storage failed; what may have been written lapses within `ttl`.
        """
        check_key(key)
        ttl = check_ttl(ttl)
        if not isinstance(value, str) or not value:
            raise Invalid(f"election {key!r}: the value must be a text that is not empty, for example an address")
        if self._closed:
            raise Closed("elections: closed; make new ones to stand again")
        if key in self._held or key in self._busy:
            return None
        self._busy.add(key)
        try:
            return await self._acquire(key, value, ttl)
        finally:
            self._busy.discard(key)
            self._idle.set()

    async def release(self, key: str) -> None:
        """Give up the leadership of `key`; nothing happens if this object does not hold it."""
        leadership = self._held.get(key)
        if leadership is not None:
            await leadership.release()

    async def aclose(self) -> None:
        """Release everything that is held, and acquire nothing more."""
        self._closed = True
        while self._busy:  # an acquisition that is under way finds out and cleans up after itself
            self._idle.clear()
            await self._idle.wait()
        await asyncio.gather(*(leadership.release() for leadership in list(self._held.values())))

    def forget(self, leadership: Leadership) -> None:
        """The leadership has ended."""
        if self._held.get(leadership.key) is leadership:
            del self._held[leadership.key]

    async def tidy(self, key: str, *records: str) -> None:
        """Remove what this process alone can have written, so that nobody waits for it to lapse; or let it lapse."""
        with suppress(HostlerError):
            for record in records:
                await self._within(PATIENCE, self._removed(key, record))

    # Inside

    async def _acquire(self, key: str, value: str, ttl: float) -> Leadership | None:
        claim, record = self._record(value, 0), ""
        try:
            if await self._within(ttl, self.storage.get(key)) is not None:
                return None
            started = self.clock.now()
            if not await self._within(ttl, self.storage.insert_if_not_exist(key, claim, ttl=ttl)):
                return None
            fence = await self._within(ttl, self._next_fence(fence_key(key), started + ttl))
            record = self._record(value, fence)
            started = self.clock.now()
            if not await self._within(ttl, self._confirm(key, claim, record, ttl)):
                return None
        except BaseException:
            await self.tidy(key, *filter(None, (claim, record)))
            raise
        if self._closed or self.clock.now() >= started + ttl:
            await self.tidy(key, record)
            return None
        leadership = self._held[key] = Leadership(self, key, record, fence=fence, ttl=ttl, deadline=started + ttl)
        return leadership

    async def _removed(self, key: str, record: str) -> None:
        backoff = Backoff()
        while True:
            try:
                await self.storage.compare_and_delete(key, record)
            except (Unavailable, Uncertain):
                await self.clock.sleep(backoff.next())
            else:
                return

    async def _within(self, seconds: float, step: Coroutine[Any, Any, T]) -> T:
        """The step's outcome; Uncertain if there is none in time, also when the storage hangs."""
        running = asyncio.create_task(step, name="elections: step")
        alarm = asyncio.create_task(self.clock.sleep(seconds), name="elections: alarm")
        try:
            await asyncio.wait((running, alarm), return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                return running.result()
            raise Uncertain(f"storage: no answer within {seconds:g} s")
        finally:
            # Not awaited: a storage that hangs may hang when it is cancelled, too.
            running.cancel()
            alarm.cancel()

    async def _confirm(self, key: str, claim: str, record: str, ttl: float) -> bool:
        """Put the fence into the record; False if the claim is gone."""
        try:
            return await self.storage.compare_and_swap(key, claim, record, ttl=ttl)
        except Uncertain:
            now = await self.storage.get(key)
            if now == claim:
                return await self.storage.compare_and_swap(key, claim, record, ttl=ttl)
            return now == record

    async def _next_fence(self, key: str, deadline: float) -> int:
        """A number higher than every one before it."""
        while self.clock.now() < deadline:
            kept = await self.storage.get(key)
            fence = 1 + (_number(key, kept) if kept is not None else 0)
            with suppress(Uncertain):  # then the next round reads what is there; a number may be left out
                if kept is None:
                    drawn = await self.storage.insert_if_not_exist(key, str(fence), ttl=0)
                else:
                    drawn = await self.storage.compare_and_swap(key, kept, str(fence), ttl=0)
                if drawn:
                    return fence
        raise Unavailable(f"fence {key}: not drawn before the claim ran out; try again")

    def _record(self, address: str, fence: int) -> str:
        return json.dumps({"address": address, "holder": self.holder, "fence": fence}, separators=(",", ":"))


def _number(key: str, text: str) -> int:
    if not text.isdecimal():
        raise Damaged(f"fence {key}: {text!r} is no number; set it to one that is higher than every fence before")
    return int(text)
