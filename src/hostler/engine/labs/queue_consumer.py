"""Consumes the request queues for as long as the worker's presence key exists in the store.

Each request is one transaction: the change of its user's record, together with the token of the request, so that a
redelivery is recognised. The transaction compares the worker's presence key. Once that key is gone the worker writes
nothing any more, and another worker may release the requests that it held. A request is acknowledged after that
transaction, never before.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeAlias

import msgspec
from msgspec import UNSET

from hostler.engine.labs import state_machine
from hostler.engine.labs.state_machine import LabStart
from hostler.errors import Closed, Damaged, Invalid, Refused, Unavailable, Uncertain
from hostler.keys.lab import LAB, check_user, user_of_request
from hostler.kit.rate_limit import Backoff
from hostler.kit.tasks import run_together
from hostler.model.lab import REDIS_DOOR, LabDecommission, LabRequest
from hostler.ports.inbox import BRACKETS, Taken
from hostler.ports.store import CreateRevision, Get, KeyValue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from hostler.engine.runtime.env import ControllerEnv
    from hostler.keys.cache import Cache
    from hostler.keys.entry import Entry
    from hostler.model.lab import LabCatalogue, LabUser
    from hostler.ports.inbox import Inbox, QueueName

    Change: TypeAlias = Callable[[LabUser | None, float], LabUser]

TAKE_WITHIN = 2.0
FIRST_RETRY, LAST_RETRY = 0.05, 2.0
MOST_WAITING = 32
"""Multiple of its width that a worker holds at most, if most of it waits for a rate limit."""
LOOK_AGAIN = 0.05
"""Seconds between two checks whether a request of the other queue was processed."""
REMEMBERED = 16_384
"""Number of remembered tokens of settled requests: a delayed answer may still deliver them."""


class Lapsed(Exception):
    """Another worker may have the requests that this one held."""


class Unreadable(Exception):
    """The store record of this user cannot be decoded: an operator must repair it."""


class Understood(msgspec.Struct, frozen=True):
    """A decoded request."""

    user: str
    lab_id: int | None
    """For a stop: None means any lab."""
    change: Change
    """How the request changes the user's record."""
    is_for_after: Callable[[LabUser | None], bool]
    """Whether, given the current record, a request of the user in the other queue must be processed first."""


class Rules(msgspec.Struct, frozen=True):
    """How requests are evaluated.

    The two queues have no common order. If both hold a request of one user, the user's current lab decides: a stop of
    the current lab, or of any lab, goes before the start of another lab; a stop of the lab to be started goes after it.
    So a front end that switches labs without waiting ends with the new lab.
    """

    catalogue: Callable[[], LabCatalogue]
    switch: bool = False
    limits: dict[QueueName, float] = {}
    """By queue: minimum seconds between two processed requests of one user. Requests in between wait, and the last
    waiting one supersedes those before it. The limit never drops a request."""

    def left(self, taken: Taken, record: LabUser | None, now: float) -> float:
        """Return the seconds until a request may be processed."""
        limit = self.limits.get(taken.queue, 0.0)
        last = None if record is None else record.worked_at.get(taken.queue)
        return 0.0 if last is None else min(limit, last + limit - now)  # the clocks of workers differ

    def is_superseded(self, taken: Taken, by: bytes) -> bool:
        """Return whether a later request of the user supersedes this one.

        A later start does, unless its lab does not exist. A later stop does only if it ends whatever this one would
        end.
        """
        try:
            earlier, later = self.decode(taken), self.decode(Taken(taken.queue, "", by))
        except Refused:
            return False
        if taken.queue == "provision":
            return later.lab_id is not None and self.catalogue().find(later.lab_id) is not None
        return later.lab_id in (None, earlier.lab_id)

    def judge(self, taken: Taken) -> tuple[Understood | None, str | None]:
        """Return the decoded request, and why it goes to the dead-letter queue (None: it does not).

        If a request cannot be decoded but names a user, the user gets an event.
        """
        try:
            return self.decode(taken), None
        except Refused as error:
            why = str(error)
        user = None if _is_nested(taken) else user_of_request(taken.raw)
        if user is None:
            return None, why
        return Understood(
            user,
            None,
            lambda record, now: state_machine.not_understood(record, user, taken.queue, why, now=now),
            lambda _: False,
        ), why

    def decode(self, taken: Taken) -> Understood:
        """Decode a request. Raise Invalid if that is impossible."""
        if _is_nested(taken):
            raise Invalid(f"request with over {BRACKETS} brackets: it may be nested too deeply")
        if taken.queue == "provision":
            start = LabRequest.decode(taken.raw)
            user, lab_id = check_user(start.webuserid), start.lab_id
            return Understood(
                user,
                lab_id,
                lambda record, now: state_machine.start(
                    record,
                    user,
                    LabStart(lab_id, switch=self.switch, door=REDIS_DOOR),
                    catalogue=self.catalogue(),
                    now=now,
                ),
                lambda record: state_machine.is_for_after_a_stop(
                    record, lab_id, catalogue=self.catalogue(), switch=self.switch
                ),
            )
        stop = LabDecommission.decode(taken.raw)
        user, only = check_user(stop.webuserid), None if stop.lab_id is UNSET else stop.lab_id
        return Understood(
            user,
            only,
            lambda record, now: state_machine.stop(record, user, only, now=now),
            lambda record: state_machine.is_for_after_a_start(record, only),
        )


class WorkerPresence(msgspec.Struct, frozen=True):
    """The record of a worker. Its key must still have the create revision `since` for every write."""

    worker: str
    key: str
    since: int


class QueueConsumer:
    """A consumer, which writes only while its presence is unchanged."""

    def __init__(
        self,
        env: ControllerEnv,
        inbox: Inbox,
        labs: Cache[LabUser],
        rules: Rules,
        presence: WorkerPresence,
        *,
        counters: dict[str, int],
        width: int,
    ) -> None:
        self._store, self._inbox, self._labs, self._rules = env.store, inbox, labs, rules
        self._worker, self._presence, self._since = presence.worker, presence.key, presence.since
        self._clock, self._rng, self._tell, self._counters, self._width = env.clock, env.rng, env.tell, counters, width
        self._waiting = 0  # held requests that wait for a rate limit
        self._least = max(1, width // 4)  # minimum room before taking more: each take is a round trip
        self._held: dict[str, Taken] = {}  # by token: in progress, or waiting to be settled
        self._done: dict[str, str | None] = {}  # by token: why it is dead-lettered; None: it is processed
        self._settled: dict[str, None] = {}
        self._works: dict[asyncio.Task[None], None] = {}  # in starting order
        self._finished, self._room, self._fatal = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._stored = asyncio.Event()
        """Cleared while the store is unreachable: then other workers, which may reach it, should get the requests."""
        self._stored.set()
        self._error: BaseException | None = None
        self._refusal = ""  # the last reported refusal of the store
        self.took = False
        """Whether it has ever taken from the queues successfully."""

    @property
    def held(self) -> int:
        """Number of requests that it holds."""
        return len(self._held)

    async def run(self) -> None:
        """Run until cancelled. Raise Lapsed if its presence key is gone, Closed if store or inbox were closed."""
        try:
            await run_together(
                f"lab worker {self._worker}",
                {"takes": self._taking(), "settles": self._settling(), "fails": self._failing()},
            )
        finally:
            works = list(self._works)
            for work in works:
                work.cancel()
            await asyncio.gather(*works, return_exceptions=True)

    async def look(self) -> None:
        """Read what the worker holds and continue with it: after lost answers, and periodically."""
        before = list(self._done)  # requests taken and processed from now on may be missing in the answer
        held = {taken.token: taken for taken in await self._inbox.held(self._worker)}
        for token in before:
            if token not in held:
                self._settle(token)
        for token, taken in held.items():
            if token in self._settled:  # it is back, for example after a restart that lost recent data
                self._held[token], self._done[token] = taken, None
                self._finished.set()
        self._accept(held.values())

    # Take

    async def _taking(self) -> None:
        backoff = self._backoff()
        while True:
            while self._free() < self._least:
                self._room.clear()
                await self._room.wait()
            await self._stored.wait()
            try:
                taken = await self._inbox.take(self._worker, limit=self._free(), within=TAKE_WITHIN)
            except (Unavailable, Uncertain):
                await self._out_of_reach(backoff)
            else:
                backoff.reset()
                self.took = True
                self._accept(taken)

    def _free(self) -> int:
        """Return how many more requests it may take."""
        return min(self._width - len(self._held) + self._waiting, MOST_WAITING * self._width - len(self._held))

    def _accept(self, taken: Iterable[Taken]) -> None:
        for one in taken:
            if one.token in self._held or one.token in self._settled:
                continue
            self._held[one.token] = one
            self._counters["taken"] += 1
            work = asyncio.create_task(self._work(one), name=f"lab request {one.token}")
            self._works[work] = None
            work.add_done_callback(lambda done: self._works.pop(done, None))

    # Process

    async def _work(self, taken: Taken) -> None:
        """Process a request until it is written or cannot be."""
        request, reason = self._rules.judge(taken)
        if request is not None:
            try:
                await self._write(
                    taken, request, is_limited=reason is None and self._rules.limits.get(taken.queue, 0) > 0
                )
            except (Lapsed, Closed) as error:
                self._fail(error)
                return
            except Unreadable as error:
                reason = reason or str(error)
        self._done[taken.token] = reason
        self._finished.set()

    async def _write(self, taken: Taken, request: Understood, *, is_limited: bool) -> None:
        backoff: Backoff | None = None
        user = request.user
        base, known = self._labs.get(user=user), True
        while True:
            try:
                if not known:
                    base, known = record_of(await self._store.get(LAB.fill(user=user))), True
                while not self._was_worked(taken, base):
                    turn = await self._turn(taken, request, base, is_limited=is_limited)
                    if turn is None:
                        self._counters["coalesced"] += 1
                        return
                    if not turn:
                        base = record_of(await self._store.get(LAB.fill(user=user)))
                        continue
                    written, base = await self._attempt(taken, user, request.change, base, is_limited=is_limited)
                    if written:
                        break
                self._on_store_answer()
                return
            except (Lapsed, Unreadable):
                self._on_store_answer()
                raise
            except Closed:
                raise
            except (Unavailable, Uncertain):
                self._stored.clear()
            except Refused as error:  # the store refuses our writes; the request itself is valid
                self._stored.clear()
                self._tell_once(str(error))
            except Exception as error:  # noqa: BLE001 - reported and retried: no taken request is dropped
                self._tell(f"lab request of {user}: {type(error).__name__}: {error}; it will be tried again")
            known = False
            backoff = backoff or self._backoff()
            await self._clock.sleep(backoff.next())

    async def _turn(
        self, taken: Taken, request: Understood, base: Entry[LabUser] | None, *, is_limited: bool
    ) -> bool | None:
        """Return whether to process it now. False: it waited, so read the record again. None: it is superseded."""
        record = None if base is None else base.value
        if is_limited:
            left = self._rules.left(taken, record, self._clock.wall())
            if left > 0:
                await self._hold(left)
                return False
            if await self._is_superseded(taken, request.user):
                return None
        return not (request.is_for_after(record) and await self._put_off(taken, request.user))

    async def _hold(self, seconds: float) -> None:
        """Wait without using up room for other requests."""
        self._waiting += 1
        self._room.set()
        try:
            await self._clock.sleep(seconds)
        finally:
            self._waiting -= 1

    async def _is_superseded(self, taken: Taken, user: str) -> bool:
        """Return whether a later request of the user in the queue supersedes it, so that nothing is lost."""
        while True:
            try:
                later = await self._inbox.behind(taken.queue, user)
            except (Unavailable, Uncertain):
                self._counters["outages"] += 1
                await self._clock.sleep(LAST_RETRY)
            else:
                return any(self._rules.is_superseded(taken, raw) for raw in later)

    async def _put_off(self, taken: Taken, user: str) -> bool:
        """Let the user's request in the other queue be processed first. Return False if there is none."""
        other: QueueName = "decommission" if taken.queue == "provision" else "provision"
        try:
            found = await self._inbox.take_of(self._worker, other, user)
        except (Unavailable, Uncertain):  # `look` finds a request that was taken nevertheless
            self._counters["outages"] += 1
            await self._clock.sleep(LAST_RETRY)
            return True
        if found is False:
            return False
        if isinstance(found, Taken):
            self._accept([found])
        await self._clock.sleep(LOOK_AGAIN)
        return True

    async def _attempt(
        self, taken: Taken, user: str, change: Change, base: Entry[LabUser] | None, *, is_limited: bool
    ) -> tuple[bool, Entry[LabUser] | None]:
        """Try to write. Return whether it succeeded; if not, also the current record."""
        now = self._clock.wall()
        record = change(None if base is None else base.value, now)
        put = LAB.put(
            state_machine.mark_processed(record, taken.queue, taken.token, at=now if is_limited else None), user=user
        )
        result = await self._store.txn(
            [
                CreateRevision(self._presence) == self._since,
                LAB.absent(user=user) if base is None else LAB.unchanged(base),
            ],
            [put],
            [Get(self._presence), Get(put.key)],
        )
        if result.succeeded:
            return True, None
        presence, found = result.responses
        if not isinstance(presence, KeyValue) or presence.create_revision != self._since:
            raise Lapsed
        return False, record_of(found if isinstance(found, KeyValue) else None)

    def _on_store_answer(self) -> None:
        """Record that the store answered."""
        self._stored.set()
        self._refusal = ""

    def _tell_once(self, refusal: str) -> None:
        if refusal != self._refusal:
            self._refusal = refusal
            self._tell(f"lab worker {self._worker}: {refusal}; taken requests are kept until the store accepts them")

    def _was_worked(self, taken: Taken, base: Entry[LabUser] | None) -> bool:
        return base is not None and base.value.worked.get(taken.queue) == taken.token

    # Acknowledge

    async def _settling(self) -> None:
        """Acknowledge processed requests in batches. Each acknowledgement returns the next requests of its users."""
        backoff = self._backoff()
        while True:
            await self._finished.wait()
            self._finished.clear()
            try:
                await self._acknowledge()
                backoff.reset()
            except (Unavailable, Uncertain):
                self._finished.set()
                await self._out_of_reach(backoff)

    async def _acknowledge(self) -> None:
        worked = [self._held[token] for token, reason in self._done.items() if reason is None]
        buried = [(self._held[token], reason) for token, reason in self._done.items() if reason is not None]
        if worked:
            following = await self._inbox.acknowledge(self._worker, worked)
            self._settled_all(worked, following)
        for taken, reason in buried:
            following = await self._inbox.bury(self._worker, taken, reason, self._clock.wall())
            self._settled_all([taken], following)

    def _settled_all(self, settled: Sequence[Taken], following: Sequence[Taken]) -> None:
        for taken in settled:
            self._settle(taken.token)
        self._accept(following)

    def _settle(self, token: str) -> None:
        """Record that the inbox no longer has the request."""
        if token not in self._done:
            return
        reason = self._done.pop(token)
        self._held.pop(token, None)
        if token not in self._settled:
            self._counters["worked" if reason is None else "buried"] += 1
        self._settled[token] = None
        if len(self._settled) > REMEMBERED:
            del self._settled[next(iter(self._settled))]
        self._room.set()

    # Failures

    async def _out_of_reach(self, backoff: Backoff) -> None:
        """Wait until the inbox answers again and reports what is held."""
        self._counters["outages"] += 1
        while True:
            await self._clock.sleep(backoff.next())
            try:
                await self.look()
                return
            except (Unavailable, Uncertain):
                continue

    def _fail(self, error: BaseException) -> None:
        self._error = self._error or error
        self._fatal.set()

    async def _failing(self) -> None:
        await self._fatal.wait()
        if self._error is not None:
            raise self._error

    def _backoff(self) -> Backoff:
        return Backoff(FIRST_RETRY, LAST_RETRY, rng=self._rng)


def _is_nested(taken: Taken) -> bool:
    """Return whether the request may be nested too deeply to decode."""
    return taken.raw.count(b"[") + taken.raw.count(b"{") > BRACKETS


def record_of(kv: KeyValue | None) -> Entry[LabUser] | None:
    """Decode a user's record from the store. Raise Unreadable if it is not one; all other errors are the store's."""
    try:
        return None if kv is None else LAB.entry(kv)
    except Damaged as error:
        raise Unreadable(str(error)) from None
