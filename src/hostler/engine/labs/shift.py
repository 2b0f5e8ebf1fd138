"""A worker's time at the queues, from when it is present in the store until it is not.

Each request is one transaction: the change of its user's record, and with it the token of the request, so that one that
is delivered again is known. The transaction compares the worker's presence: once that is gone nothing is written any
more, and whoever finds it gone may give away what was held. A request is acknowledged after that transaction, never
before.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeAlias

import msgspec
from msgspec import UNSET

from hostler.engine.labs import wish
from hostler.errors import Closed, Damaged, Invalid, Refused, Unavailable, Uncertain
from hostler.keys.lab import LAB, check_user
from hostler.kit.backoff import Backoff
from hostler.kit.together import run_together
from hostler.model.lab import REDIS_DOOR, LabDecommission, LabRequest
from hostler.ports.inbox import BRACKETS
from hostler.ports.store import CreateRevision, Get, KeyValue

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable, Sequence

    from hostler.keys.entry import Entry
    from hostler.keys.mirror import Mirror
    from hostler.kit.clock import Clock
    from hostler.model.lab import LabCatalogue, LabUser
    from hostler.ports.inbox import Inbox, Taken
    from hostler.ports.store import Store

    Change: TypeAlias = Callable[[LabUser | None, float], LabUser]

TAKE_WITHIN = 2.0
FIRST_RETRY, LAST_RETRY = 0.05, 2.0
REMEMBERED = 16_384
"""Tokens of requests that were settled: an answer that was on its way for long may still bring them."""


class Lapsed(Exception):
    """Somebody else may have what was held."""


class Unreadable(Exception):
    """What stands in the store of this user cannot be read: somebody must look at it."""


class Rules(msgspec.Struct, frozen=True):
    """What requests are judged by."""

    catalogue: Callable[[], LabCatalogue]
    switch: bool = False

    def understood(self, taken: Taken) -> tuple[str, Change]:
        """Whose request it is, and what it makes of the record. Invalid: it cannot be understood."""
        if taken.raw.count(b"[") + taken.raw.count(b"{") > BRACKETS:
            raise Invalid(f"request with over {BRACKETS} brackets: it may be nested deeper than is looked into")
        if taken.queue == "provision":
            start = LabRequest.decode(taken.raw)
            user, lab_id = check_user(start.webuserid), start.lab_id
            return user, lambda record, now: wish.start(
                record, user, lab_id, catalogue=self.catalogue(), now=now, switch=self.switch, door=REDIS_DOOR
            )
        stop = LabDecommission.decode(taken.raw)
        user, only = check_user(stop.webuserid), None if stop.lab_id is UNSET else stop.lab_id
        return user, lambda record, now: wish.stop(record, user, only, now=now)


class Shift:
    """`presence` is the key that must still be of the revision `since` whenever something is written."""

    def __init__(
        self,
        store: Store,
        inbox: Inbox,
        labs: Mirror[LabUser],
        rules: Rules,
        *,
        worker: str,
        presence: str,
        since: int,
        clock: Clock,
        rng: random.Random,
        tell: Callable[[str], None],
        counters: dict[str, int],
        width: int,
    ) -> None:
        self._store, self._inbox, self._labs, self._rules = store, inbox, labs, rules
        self._worker, self._presence, self._since = worker, presence, since
        self._clock, self._rng, self._tell, self._counters, self._width = clock, rng, tell, counters, width
        self._least = max(1, width // 4)  # room before more is taken: each time is a round trip
        self._held: dict[str, Taken] = {}  # by token: in work, or waiting to be settled
        self._done: dict[str, str | None] = {}  # by token: why it is buried; None: it is worked
        self._settled: dict[str, None] = {}
        self._works: dict[asyncio.Task[None], None] = {}  # in the order they were begun
        self._finished, self._room, self._fatal = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._stored = asyncio.Event()
        """Not set while the store is out of reach: then others, who may reach it, shall have the requests."""
        self._stored.set()
        self._error: BaseException | None = None
        self._refusal = ""  # of the store, as it was told
        self.took = False
        """Whether it was ever let at the queues."""

    @property
    def held(self) -> int:
        """How many requests it holds."""
        return len(self._held)

    async def run(self) -> None:
        """Until cancelled. Lapsed: it is present no more. Closed: store or inbox were closed."""
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
        """See what the worker holds, and go on with it: after answers that were lost, and now and then."""
        before = list(self._done)  # what is taken and worked meanwhile may be missing in the answer
        held = {taken.token: taken for taken in await self._inbox.held(self._worker)}
        for token in before:
            if token not in held:
                self._settle(token)
        for token, taken in held.items():
            if token in self._settled:  # it is back, as after a restart that lost the latest
                self._held[token], self._done[token] = taken, None
                self._finished.set()
        self._accept(held.values())

    # Taking

    async def _taking(self) -> None:
        backoff = self._backoff()
        while True:
            while self._width - len(self._held) < self._least:
                self._room.clear()
                await self._room.wait()
            await self._stored.wait()
            try:
                taken = await self._inbox.take(self._worker, limit=self._width - len(self._held), within=TAKE_WITHIN)
            except (Unavailable, Uncertain):
                await self._out_of_reach(backoff)
            else:
                backoff.reset()
                self.took = True
                self._accept(taken)

    def _accept(self, taken: Iterable[Taken]) -> None:
        for one in taken:
            if one.token in self._held or one.token in self._settled:
                continue
            self._held[one.token] = one
            self._counters["taken"] += 1
            work = asyncio.create_task(self._work(one), name=f"lab request {one.token}")
            self._works[work] = None
            work.add_done_callback(lambda done: self._works.pop(done, None))

    # Working

    async def _work(self, taken: Taken) -> None:
        """Until it is written, or cannot be."""
        reason: str | None = None
        try:
            user, change = self._rules.understood(taken)
        except Refused as error:
            reason = str(error)
        else:
            try:
                await self._written(taken, user, change)
            except (Lapsed, Closed) as error:
                self._fail(error)
                return
            except Unreadable as error:
                reason = str(error)
        self._done[taken.token] = reason
        self._finished.set()

    async def _written(self, taken: Taken, user: str, change: Change) -> None:
        backoff: Backoff | None = None
        base, known = self._labs.get(user=user), True
        while True:
            try:
                if not known:
                    base, known = record_of(await self._store.get(LAB.fill(user=user))), True
                while not self._was_worked(taken, base):
                    written, base = await self._attempt(taken, user, change, base)
                    if written:
                        break
                self._answered()
                return
            except (Lapsed, Unreadable):
                self._answered()
                raise
            except Closed:
                raise
            except (Unavailable, Uncertain):
                self._stored.clear()
            except Refused as error:  # the store takes nothing from us, as without the right to: the request is good
                self._stored.clear()
                self._tell_once(str(error))
            except Exception as error:  # noqa: BLE001 - told, and tried again: nothing that was taken is dropped
                self._tell(f"lab request of {user}: {type(error).__name__}: {error}; it will be tried again")
            known = False
            backoff = backoff or self._backoff()
            await self._clock.sleep(backoff.next())

    async def _attempt(
        self, taken: Taken, user: str, change: Change, base: Entry[LabUser] | None
    ) -> tuple[bool, Entry[LabUser] | None]:
        """Whether it was written; if not, what stands there instead."""
        record = change(None if base is None else base.value, self._clock.wall())
        put = LAB.put(wish.worked(record, taken.queue, taken.token), user=user)
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

    def _answered(self) -> None:
        """The store did."""
        self._stored.set()
        self._refusal = ""

    def _tell_once(self, refusal: str) -> None:
        if refusal != self._refusal:
            self._refusal = refusal
            self._tell(f"lab worker {self._worker}: {refusal}; what was taken is held until the store takes it")

    def _was_worked(self, taken: Taken, base: Entry[LabUser] | None) -> bool:
        return base is not None and base.value.worked.get(taken.queue) == taken.token

    # Settling

    async def _settling(self) -> None:
        """Acknowledge all that is worked at once, again and again; what comes next of the same users is taken on."""
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
        """The inbox has it no more."""
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

    # Failing

    async def _out_of_reach(self, backoff: Backoff) -> None:
        """The inbox did not answer: wait, until it tells what is held."""
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


def record_of(kv: KeyValue | None) -> Entry[LabUser] | None:
    """A user's record as it stands in the store. Unreadable: it holds none; whatever else is wrong is the store's."""
    try:
        return None if kv is None else LAB.entry(kv)
    except Damaged as error:
        raise Unreadable(str(error)) from None
