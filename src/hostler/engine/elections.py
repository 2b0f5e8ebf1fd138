"""Leadership: at most one process holds the record, and its writes carry a number that proves when.

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

from hostler.engine.leadership import PATIENCE, Leadership
from hostler.errors import Closed, Damaged, HostlerError, Invalid, Refused, Unavailable, Uncertain
from hostler.keys.replica import FENCE, LEADER
from hostler.kit.backoff import Backoff
from hostler.kit.clock import SystemClock
from hostler.model.replica import LeaderRecord
from hostler.ports.store import check_key, check_ttl

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from hostler.kit.clock import Clock
    from hostler.ports.ttl import TtlStorage

T = TypeVar("T")

__all__ = ["PATIENCE", "Elections", "Leadership", "fence_key"]


def fence_key(key: str) -> str:
    """Where the fence counter of an election key is kept: beside it."""
    parts = LEADER.match(key)
    return f"{key}.fence" if parts is None else FENCE.fill(**parts)


class Elections:
    """Acquires, renews and releases leaderships on one storage. The storage is the caller's to open and close."""

    def __init__(
        self,
        storage: TtlStorage,
        *,
        clock: Clock | None = None,
        new_id: Callable[[], str] | None = None,
        rng: random.Random | None = None,
        least_fence: Callable[[], int] = lambda: 0,
    ) -> None:
        """`least_fence`: every fence of election key 1 is above it, however little the storage remembers."""
        self.storage = storage
        self._least_fence = least_fence
        self._highest: dict[str, int] = {}  # by key: the highest fence that this process has seen
        self.clock: Clock = clock or SystemClock()
        self.rng = rng or random.Random()  # noqa: S311 - spreads retries; guards nothing
        self.holder = (new_id or (lambda: uuid.uuid4().hex))()
        """Tells this process from every other."""
        self._held: dict[str, Leadership] = {}
        self._acquiring: dict[str, asyncio.Future[None]] = {}  # by key; done when it must end because of a close
        self._tasks: set[asyncio.Task[Any]] = set()
        self._idle = asyncio.Event()
        self._tries = 0
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
        tidying = self._tidied(key, [record for record in records if record])
        with suppress(HostlerError):
            await asyncio.shield(self.spawn(tidying, f"elections: tidying {key}"))

    # Inside

    async def _acquire(self, key: str, value: str, ttl: float) -> Leadership | None:
        self._tries += 1
        # Each try has a claim of its own: what an earlier one sent may arrive late, and must not find this one's.
        claim, record = self._record(value, f"{self.holder}#{self._tries}", 0), ""
        closing = self._acquiring[key]
        held = await self._within(ttl, self.storage.get(key), unless=closing)
        if held is not None:
            self._note(key, _fence_of(held))
            return None
        ends_at = self.clock.now() + ttl
        try:
            inserting = self.storage.insert_if_not_exist(key, claim, ttl=ttl)
            if not await self._within(ttl, inserting, unless=closing):
                return None
            drawing = self._next_fence(key, ttl, ends_at)
            fence = await self._within(ends_at - self.clock.now(), drawing, unless=closing)
            self._note(key, fence)
            record = self._record(value, self.holder, fence)
            started = self.clock.now()
            confirming = self._confirmed(key, claim, record, ttl, ends_at)
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

    async def _tidied(self, key: str, records: list[str]) -> None:
        await self._within(PATIENCE, self._removed(key, records, self.clock.now() + PATIENCE))

    # Steps. Each ends by itself, for a storage may swallow the cancellation that should end it.

    def _goes_on(self, until: float) -> bool:
        task = asyncio.current_task()
        return self.clock.now() < until and not (task is not None and task.cancelling())

    async def _removed(self, key: str, records: list[str], until: float) -> None:
        backoff = Backoff(rng=self.rng)
        for record in records:
            while self._goes_on(until):
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
            if alarm.done():
                raise Uncertain(f"storage: no answer within {seconds:g} s")
            raise _closed()
        finally:
            try:
                if not running.done():
                    await _ended(running, alarm)
            finally:
                alarm.cancel()

    async def _confirmed(self, key: str, claim: str, record: str, ttl: float, until: float) -> bool:
        """Put the fence into the record; False if the claim is gone."""
        backoff = Backoff(ttl / 1000, ttl / 10, rng=self.rng)
        while self._goes_on(until):
            try:
                if await self.storage.compare_and_swap(key, claim, record, ttl=ttl):
                    return True
                return await self.storage.get(key) == record  # an earlier try may have come through meanwhile
            except Uncertain:
                now = await self.storage.get(key)
                if now != claim:
                    return now == record
            await self.clock.sleep(backoff.next())
        return False

    def _note(self, key: str, fence: int) -> None:
        self._highest[key] = max(fence, self._highest.get(key, 0))

    async def _next_fence(self, election: str, ttl: float, until: float) -> int:
        """A number higher than every one before it. Refused: the storage has forgotten some of them."""
        backoff = Backoff(ttl / 1000, ttl / 10, rng=self.rng)
        key, least = fence_key(election), self._highest.get(election, 0)
        if election == LEADER.fill(n=1):
            least = max(least, self._least_fence())
        while self._goes_on(until):
            kept = await self.storage.get(key)
            fence = 1 + (_number(key, kept) if kept is not None else 0)
            if fence <= least:
                raise Refused(
                    f"fence {key}: the storage says {fence - 1}, but fence {least} was given out before: it was"
                    " emptied, restored or exchanged; name the store in service, or make this one the newest:"
                    " hostler store activate"
                )
            with suppress(Uncertain):  # then the next round reads what is there; a number may be left out
                if kept is None:
                    drawn = await self.storage.insert_if_not_exist(key, str(fence), ttl=0)
                else:
                    drawn = await self.storage.compare_and_swap(key, kept, str(fence), ttl=0)
                if drawn:
                    return fence
            await self.clock.sleep(backoff.next())
        raise Unavailable(f"fence {key}: not drawn before the claim ran out; try again")

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waited for it has it; of one that was given up nobody wants to hear

    def _record(self, address: str, holder: str, fence: int) -> str:
        return json.dumps({"address": address, "holder": holder, "fence": fence}, separators=(",", ":"))


async def _ended(step: asyncio.Task[Any], alarm: asyncio.Task[None]) -> None:
    """Until a step that nobody wants any more has ended, or PATIENCE is over.

    It may end by itself while it has time: what was sent and is then cancelled may arrive after the tidying up. A
    storage that hangs may hang when it is cancelled, too.
    """
    try:
        await asyncio.wait((step, alarm), timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
    finally:
        step.cancel()
    await asyncio.wait((step,), timeout=PATIENCE)


def _closed() -> Closed:
    return Closed("elections: closed; make new ones to stand again")


def _fence_of(record: str) -> int:
    """The fence in the record of a leader; 0: it has none, or the record is not ours."""
    try:
        return LeaderRecord.decode(record.encode()).fence
    except Invalid:
        return 0


def _number(key: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise Damaged(f"fence {key}: {text!r} is no number; set it to one that is higher than every fence before")
    return int(text)
