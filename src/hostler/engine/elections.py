"""Leader election: at most one process holds the record, and its writes carry a fencing token.

The leader is the process that holds the record of a key. The record expires unless it is renewed; the holder renews it
every quarter of its TTL. The holder stops acting as leader at its own deadline: one TTL after the last successful
renewal, counted from *before* that renewal was sent, on a monotonic clock. So the holder stops before the record
expires, regardless of what the storage or the network does.

The deadline alone is not enough: a process can be suspended between checking it and writing. So each leadership gets a
fencing token that is higher than every one before it, from a counter next to the record that is never deleted. The
token is drawn while the process already holds the record (with the fence 0, a claim). So tokens and leaderships have
the same order, even if a process is suspended between the two steps: its claim is then gone, and its last step fails.
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
from hostler.keys.families import FENCE, LEADER
from hostler.kit.clock import SystemClock
from hostler.kit.rate_limit import Backoff
from hostler.model.replica import LeaderRecord
from hostler.ports.store import check_key, check_ttl

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from hostler.kit.clock import Clock
    from hostler.ports.ttl import TtlStorage

T = TypeVar("T")

__all__ = ["PATIENCE", "Elections", "Leadership", "fence_key"]


def fence_key(key: str) -> str:
    """Return the key of the fence counter of an election."""
    parts = LEADER.match(key)
    return f"{key}.fence" if parts is None else FENCE.fill(**parts)


class Elections:
    """Acquires, renews and releases leaderships on one storage. The caller opens and closes the storage."""

    def __init__(
        self,
        storage: TtlStorage,
        *,
        clock: Clock | None = None,
        new_id: Callable[[], str] | None = None,
        rng: random.Random | None = None,
        least_fence: Callable[[], int] = lambda: 0,
    ) -> None:
        """`least_fence`: every fence of election key 1 is above it, even if the storage lost its counter."""
        self.storage = storage
        self._least_fence = least_fence
        self._highest: dict[str, int] = {}  # by key: the highest fence that this process has read
        self.clock: Clock = clock or SystemClock()
        self.rng = rng or random.Random()  # noqa: S311 - for the jitter of retries, not for security
        self.holder = (new_id or (lambda: uuid.uuid4().hex))()
        """Distinguishes this process from all others."""
        self._held: dict[str, Leadership] = {}
        self._acquiring: dict[str, asyncio.Future[None]] = {}  # by key; done when a close must end the attempt
        self._tasks: set[asyncio.Task[Any]] = set()
        self._idle = asyncio.Event()
        self._tries = 0
        self._closed = False

    async def acquire(self, key: str, value: str, *, ttl: float) -> Leadership | None:
        """Try once to lead `key`; None: it is already led, possibly by this object. `value` is the address others see.

        Unavailable, Uncertain: the storage failed; a record that may have been written expires within `ttl`. Closed:
        these elections are closed, or were closed during the attempt.
        """
        check_key(key)
        ttl = check_ttl(ttl)
        if not isinstance(value, str) or not value:
            raise Invalid(f"election {key!r}: the value must be a text that is not empty, for example an address")
        if self._closed:
            raise _closed_error()
        if key in self._held or key in self._acquiring:
            return None
        self._acquiring[key] = asyncio.get_running_loop().create_future()
        try:
            return await self._acquire(key, value, ttl)
        finally:
            del self._acquiring[key]
            self._idle.set()

    async def release(self, key: str) -> None:
        """Give up the leadership of `key`; do nothing if this object does not hold it."""
        leadership = self._held.get(key)
        if leadership is not None:
            await leadership.release()

    async def aclose(self) -> None:
        """Release all leaderships and acquire no more; attempts in progress end with Closed."""
        self._closed = True
        for closing in self._acquiring.values():
            if not closing.done():
                closing.set_result(None)
        await asyncio.gather(*(leadership.release() for leadership in list(self._held.values())))
        while self._acquiring:
            self._idle.clear()
            await self._idle.wait()
        if self._tasks:  # tidying takes PATIENCE at most, and cancelled tasks end unless the storage hangs
            await asyncio.wait(self._tasks, timeout=3 * PATIENCE)

    # For `Leadership`

    def spawn(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Start a task that `aclose` waits for."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def forget(self, leadership: Leadership) -> None:
        """Remove a leadership that has ended."""
        if self._held.get(leadership.key) is leadership:
            del self._held[leadership.key]

    async def tidy(self, key: str, *records: str) -> None:
        """Remove records that only this process can have written, so that others need not wait until they expire.

        If that fails, the records expire.
        """
        tidying = self._tidy(key, [record for record in records if record])
        with suppress(HostlerError):
            await asyncio.shield(self.spawn(tidying, f"elections: tidying {key}"))

    # Internal

    async def _acquire(self, key: str, value: str, ttl: float) -> Leadership | None:
        self._tries += 1
        # Each attempt has its own claim: a delayed write of an earlier attempt must not match the claim of this one.
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
            confirming = self._confirm_fence(key, claim, record, ttl, ends_at)
            confirmed = await self._within(ends_at - self.clock.now(), confirming, unless=closing)
        except BaseException:
            await self.tidy(key, claim, record)
            raise
        if not confirmed or self._closed or self.clock.now() >= started + ttl:
            await self.tidy(key, record)
            if self._closed:
                raise _closed_error()
            return None
        leadership = self._held[key] = Leadership(self, key, record, fence=fence, ttl=ttl, deadline=started + ttl)
        return leadership

    async def _tidy(self, key: str, records: list[str]) -> None:
        await self._within(PATIENCE, self._remove(key, records, self.clock.now() + PATIENCE))

    # Steps. Each ends by itself, because a storage may swallow the cancellation that should end it.

    def _goes_on(self, until: float) -> bool:
        task = asyncio.current_task()
        return self.clock.now() < until and not (task is not None and task.cancelling())

    async def _remove(self, key: str, records: list[str], until: float) -> None:
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
        """Return the outcome of a step.

        Uncertain: no outcome in time, even if the storage hangs. Closed: `unless` is done.
        """
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
            raise _closed_error()
        finally:
            try:
                if not running.done():
                    await _wait_until_ended(running, alarm)
            finally:
                alarm.cancel()

    async def _confirm_fence(self, key: str, claim: str, record: str, ttl: float, until: float) -> bool:
        """Put the fence into the record; False: the claim is gone."""
        backoff = Backoff(ttl / 1000, ttl / 10, rng=self.rng)
        while self._goes_on(until):
            try:
                if await self.storage.compare_and_swap(key, claim, record, ttl=ttl):
                    return True
                return await self.storage.get(key) == record  # an earlier attempt may have succeeded
            except Uncertain:
                now = await self.storage.get(key)
                if now != claim:
                    return now == record
            await self.clock.sleep(backoff.next())
        return False

    def _note(self, key: str, fence: int) -> None:
        self._highest[key] = max(fence, self._highest.get(key, 0))

    async def _next_fence(self, election: str, ttl: float, until: float) -> int:
        """Draw a number higher than every one before it. Refused: the storage has lost some of them."""
        backoff = Backoff(ttl / 1000, ttl / 10, rng=self.rng)
        key, least = fence_key(election), self._highest.get(election, 0)
        if election == LEADER.fill(n=1):
            least = max(least, self._least_fence())
        while self._goes_on(until):
            kept = await self.storage.get(key)
            fence = 1 + (_number(key, kept) if kept is not None else 0)
            if fence <= least:
                raise Refused(
                    f"fence {key}: the storage holds {fence - 1}, but fence {least} is already in use: the storage was"
                    " emptied, restored or replaced; configure the store in service, or make this one the newest:"
                    " hostler store activate"
                )
            with suppress(Uncertain):  # the next iteration reads the current value; a number may be skipped
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
            # retrieve the exception: waiters already have it, and that of an abandoned task is ignored
            task.exception()

    def _record(self, address: str, holder: str, fence: int) -> str:
        return json.dumps({"address": address, "holder": holder, "fence": fence}, separators=(",", ":"))


async def _wait_until_ended(step: asyncio.Task[Any], alarm: asyncio.Task[None]) -> None:
    """Wait until an abandoned step has ended, or PATIENCE is over.

    The step may finish while it has time: a request that is cancelled after it was sent may arrive after the tidying. A
    storage that hangs may also hang on cancellation.
    """
    try:
        await asyncio.wait((step, alarm), timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
    finally:
        step.cancel()
    await asyncio.wait((step,), timeout=PATIENCE)


def _closed_error() -> Closed:
    return Closed("elections: closed; create new ones to run for leadership again")


def _fence_of(record: str) -> int:
    """Return the fence in the record of a leader; 0: it has none, or the record has another format."""
    try:
        return LeaderRecord.decode(record.encode()).fence
    except Invalid:
        return 0


def _number(key: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise Damaged(f"fence {key}: {text!r} is not a number; set it to a number higher than every earlier fence")
    return int(text)
