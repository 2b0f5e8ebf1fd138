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
import random
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
        self._lose(f"not renewed within {self.ttl:g} s; stop what it was for")

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
            except Exception as error:  # noqa: BLE001 - whatever it was: who cannot renew must not go on leading
                self._lose(str(error))
                return
            if self.lost is not None or clock.now() >= self.deadline:
                self._lose_in_time()  # the answer came too late, or the storage swallowed the cancellation
                return
            if renewed is None:
                pause = backoff.next()
            elif renewed:
                self.deadline = max(self.deadline, started + self.ttl)
                backoff.reset()
                pause = self.ttl / RENEWALS
            else:
                self._lose("somebody took or removed its record; stop what it was for")
                return

    async def _renewed(self) -> bool | None:
        """One try; None if its outcome is unknown, which is no reason to stop: it may be repeated.

        One answer that never comes costs one try. A storage that never answers is left to the deadline.
        """
        try:
            async with asyncio.timeout(self.ttl / RENEWALS):
                return await self._elections.storage.compare_and_swap(
                    self.key, self._record, self._record, ttl=self.ttl
                )
        except (Unavailable, Uncertain, TimeoutError):
            return None


class Elections:
    """Acquires, renews and releases leaderships on one storage. The storage is the caller's to open and close."""

    def __init__(
        self,
        storage: TtlStorage,
        *,
        clock: Clock | None = None,
        new_id: Callable[[], str] | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.storage = storage
        self.clock: Clock = clock or SystemClock()
        self.rng = rng or random.Random()  # noqa: S311 - spreads retries; guards nothing
        self.holder = (new_id or (lambda: uuid.uuid4().hex))()
        """Tells this process from every other."""
        self._held: dict[str, Leadership] = {}
        self._acquiring: dict[str, asyncio.Future[None]] = {}  # by key; done when it must end because of a close
        self._tasks: set[asyncio.Task[Any]] = set()
        self._idle = asyncio.Event()
        self._closed = False

    async def acquire(self, key: str, value: str, *, ttl: float) -> Leadership | None:
        """Try once to lead `key`; None if somebody does, this object included. `value` is the address others see.

        Unavailable, Uncertain: the storage failed; what may have been written lapses within `ttl`. Closed: these
        elections are, or were while it tried.
        """
        check_key(key)
        ttl = check_ttl(ttl)
        if not isinstance(value, str) or not value:
            raise Invalid(f"election {key!r}: the value must be a text that is not empty, for example an address")
        if self._closed:
            raise _closed()
        if key in self._held or key in self._acquiring:
            return None
        self._acquiring[key] = asyncio.get_running_loop().create_future()
        try:
            return await self._acquire(key, value, ttl)
        finally:
            del self._acquiring[key]
            self._idle.set()

    async def release(self, key: str) -> None:
        """Give up the leadership of `key`; nothing happens if this object does not hold it."""
        leadership = self._held.get(key)
        if leadership is not None:
            await leadership.release()

    async def aclose(self) -> None:
        """Release everything that is held, and acquire nothing more; what is being acquired ends with Closed."""
        self._closed = True
        for closing in self._acquiring.values():
            if not closing.done():
                closing.set_result(None)
        await asyncio.gather(*(leadership.release() for leadership in list(self._held.values())))
        while self._acquiring:
            self._idle.clear()
            await self._idle.wait()
        if self._tasks:  # tidying up takes PATIENCE at most, and what was cancelled ends unless the storage hangs
            await asyncio.wait(self._tasks, timeout=3 * PATIENCE)

    # For leaderships

    def spawn(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """A task that closing waits for."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def forget(self, leadership: Leadership) -> None:
        """The leadership has ended."""
        if self._held.get(leadership.key) is leadership:
            del self._held[leadership.key]

    async def tidy(self, key: str, *records: str) -> None:
        """Remove what this process alone can have written, so that nobody waits for it to lapse; or let it lapse."""
        removal = self._within(PATIENCE, self._removed(key, [record for record in records if record]))
        with suppress(HostlerError):
            await asyncio.shield(self.spawn(removal, f"elections: tidying {key}"))

    # Inside

    async def _acquire(self, key: str, value: str, ttl: float) -> Leadership | None:
        claim, record = self._record(value, 0), ""
        closing = self._acquiring[key]
        if await self._within(ttl, self.storage.get(key), unless=closing) is not None:
            return None
        ends_at = self.clock.now() + ttl
        try:
            inserting = self.storage.insert_if_not_exist(key, claim, ttl=ttl)
            if not await self._within(ttl, inserting, unless=closing):
                return None
            drawing = self._next_fence(fence_key(key), ttl)
            fence = await self._within(ends_at - self.clock.now(), drawing, unless=closing)
            record = self._record(value, fence)
            started = self.clock.now()
            confirming = self._confirmed(key, claim, record, ttl)
            confirmed = await self._within(ends_at - self.clock.now(), confirming, unless=closing)
        except BaseException:
            await self.tidy(key, claim, record)
            raise
        if not confirmed or self._closed or self.clock.now() >= started + ttl:
            await self.tidy(key, record)
            if self._closed:
                raise _closed()
            return None
        leadership = self._held[key] = Leadership(self, key, record, fence=fence, ttl=ttl, deadline=started + ttl)
        return leadership

    async def _removed(self, key: str, records: list[str]) -> None:
        backoff = Backoff(rng=self.rng)
        for record in records:
            while True:
                try:
                    await self.storage.compare_and_delete(key, record)
                except (Unavailable, Uncertain):
                    await self.clock.sleep(backoff.next())
                else:
                    break

    async def _within(
        self, seconds: float, step: Coroutine[Any, Any, T], *, unless: asyncio.Future[None] | None = None
    ) -> T:
        """The step's outcome; Uncertain if there is none in time, also when the storage hangs; Closed if `unless`."""
        running = self.spawn(step, "elections: step")
        alarm = self.spawn(self.clock.sleep(max(0.0, seconds)), "elections: alarm")
        awaited: list[asyncio.Future[Any]] = [running, alarm]
        if unless is not None:
            awaited.append(unless)
        try:
            await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                return running.result()
            if unless is not None and unless.done():
                raise _closed()
            raise Uncertain(f"storage: no answer within {seconds:g} s")
        finally:
            alarm.cancel()
            if not running.done():
                running.cancel()
                # What follows should find it ended; but a storage that hangs may hang when it is cancelled, too.
                await asyncio.wait((running,), timeout=PATIENCE)

    async def _confirmed(self, key: str, claim: str, record: str, ttl: float) -> bool:
        """Put the fence into the record; False if the claim is gone."""
        backoff = Backoff(ttl / 1000, ttl / 10, rng=self.rng)
        while True:
            try:
                if await self.storage.compare_and_swap(key, claim, record, ttl=ttl):
                    return True
                return await self.storage.get(key) == record  # an earlier try may have come through meanwhile
            except Uncertain:
                now = await self.storage.get(key)
                if now != claim:
                    return now == record
            await self.clock.sleep(backoff.next())

    async def _next_fence(self, key: str, ttl: float) -> int:
        """A number higher than every one before it."""
        backoff = Backoff(ttl / 1000, ttl / 10, rng=self.rng)
        while True:
            kept = await self.storage.get(key)
            fence = 1 + (_number(key, kept) if kept is not None else 0)
            with suppress(Uncertain):  # then the next round reads what is there; a number may be left out
                if kept is None:
                    drawn = await self.storage.insert_if_not_exist(key, str(fence), ttl=0)
                else:
                    drawn = await self.storage.compare_and_swap(key, kept, str(fence), ttl=0)
                if drawn:
                    return fence
            await self.clock.sleep(backoff.next())

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waited for it has it; of one that was given up nobody wants to hear

    def _record(self, address: str, fence: int) -> str:
        return json.dumps({"address": address, "holder": self.holder, "fence": fence}, separators=(",", ":"))


def _closed() -> Closed:
    return Closed("elections: closed; make new ones to stand again")


def _number(key: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise Damaged(f"fence {key}: {text!r} is no number; set it to one that is higher than every fence before")
    return int(text)
