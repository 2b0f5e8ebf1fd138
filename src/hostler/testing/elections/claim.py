"""Definition of a claim about elections, its environment, and the runner of all claims."""

from __future__ import annotations

import asyncio
import importlib
import json
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from hostler.engine.elections import Elections, fence_key
from hostler.errors import Unavailable, Uncertain
from hostler.kit.clock import SystemClock
from hostler.kit.tasks import run_together
from hostler.testing.claim import TooSlow, check_all, loop_time, on_time, trying, wait_until_connected
from hostler.testing.elections.breakable import BreakableTtlStorage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Sequence

    from hostler.engine.elections import Leadership
    from hostler.kit.clock import Clock
    from hostler.ports.ttl import TtlStorage
    from hostler.testing.claim import OnTime

    Body = Callable[["ElectionTrial"], Awaitable[None]]

WITHIN = 30.0
"""Seconds within which everything that a claim waits for must happen; leaderships have their own limits."""
TTL = 2.0
"""The ttl of a leadership whose end a claim observes."""
LONG = 60.0
CLIENTS = 3
"""Storage clients that the processes of a claim share, in addition to the observing one."""
POLL = 0.02
JUST = 0.05
"""Seconds that a process may need to notice an answer that has arrived."""
AT_ONCE = 4
"""Claims that wait concurrently: each has several clients, and a leadership of two seconds needs quick answers."""
_CHAPTERS = ("basics", "loss")


class ElectionClaim(msgspec.Struct, frozen=True):
    """One property of elections on every storage. `str(claim)` is the claim as text.

    `waits`: the claim mostly sleeps, so it may run concurrently with others that wait.
    """

    name: str
    body: Body
    waits: bool = False

    def __str__(self) -> str:
        return self.name

    async def check(
        self,
        open_storage: Callable[[], TtlStorage],
        *,
        persistent: bool = True,
        clock: Clock | None = None,
        on_time: OnTime = on_time,
    ) -> None:
        """Check the claim. Raise AssertionError, or the storage's exception, with a note that names the claim."""
        async with trying(self.name, within=4 * WITHIN):
            trial = ElectionTrial(open_storage, persistent=persistent, clock=clock, on_time=on_time)
            try:
                await trial.open()
                with suppress(TooSlow):
                    await self.body(trial)
                await trial.finish()
            finally:
                await trial.aclose()


async def renewal_begun(leadership: Leadership, storage: BreakableTtlStorage) -> None:
    """Wait until the next renewal begins, or the leadership is lost and there is no renewal."""
    await run_together("renewal", {"begun": storage.begun(), "lost": leadership.wait_lost()})


class ElectionTrial:
    """The environment of a claim: private keys, and any number of processes that run for election."""

    storage: TtlStorage
    """For observations, and for actions of an operator."""

    def __init__(
        self,
        open_storage: Callable[[], TtlStorage],
        *,
        persistent: bool,
        clock: Clock | None = None,
        on_time: OnTime = on_time,
    ) -> None:
        self._open_storage, self._persistent = open_storage, persistent
        self.clock: Clock = clock or SystemClock()
        self.on_time = on_time
        self._opened: list[TtlStorage] = []
        self._made = 0
        self._elections: list[Elections] = []
        self._storages: list[BreakableTtlStorage] = []
        self._keys: set[str] = set()
        self._left: set[str] = set()
        self._lapsing: dict[str, float] = {}
        """By key: the ttl of a record whose leadership was lost because the machine was too slow."""
        self._prefix = f"check-elections/{secrets.token_hex(6)}/"
        self.key = self.another_key("leader")

    async def open(self) -> None:
        """Open the first client."""
        self.storage = await self._enter()

    def another_key(self, name: str) -> str:
        """Return another key of this trial."""
        return self.own_key(self._prefix + name)

    def own_key(self, key: str) -> str:
        """Register a key as part of the trial."""
        self._keys.add(key)
        return key

    async def elections(self, *, holder: str | None = None) -> tuple[Elections, BreakableTtlStorage]:
        """Return a process that runs for election, and its storage."""
        storage = BreakableTtlStorage(await self._client(), clock=self.clock)
        elections = Elections(storage, clock=self.clock, new_id=None if holder is None else lambda: holder)
        self._elections.append(elections)
        self._storages.append(storage)
        return elections, storage

    async def leader(self, *, ttl: float = LONG) -> tuple[Leadership, Elections, BreakableTtlStorage]:
        """Return a process that leads the trial's key."""
        elections, storage = await self.elections()
        return await acquire(elections, self.key, ttl=ttl), elections, storage

    async def record(self, key: str | None = None) -> dict[str, Any] | None:
        """Return the record at the key."""
        text = await self.storage.get(key or self.key)
        return None if text is None else json.loads(text)

    async def counter(self, key: str | None = None) -> int:
        """Return the highest fence assigned for the key; 0: none."""
        return int(await self.storage.get(fence_key(key or self.key)) or 0)

    def leaves(self, key: str | None = None) -> None:
        """Note that the claim leaves a record that the elections need not remove."""
        self._left.add(key or self.key)

    async def free(self, ttl: float = TTL, key: str | None = None) -> None:
        """Wait until the key is free, which must happen within one ttl."""
        began = loop_time()
        async with asyncio.timeout(WITHIN):
            while await self.storage.get(key or self.key) is not None:  # noqa: ASYNC110 - not every storage can watch
                await asyncio.sleep(POLL)
        limit = ttl + self.storage.lateness(ttl) + 2 * POLL
        self.on_time(loop_time() - began, limit, since=began, what="the end of a record")

    def must_stand(self, leadership: Leadership, storage: BreakableTtlStorage) -> None:
        """Check that the leadership is held, or that no renewal succeeded for a whole ttl.

        The record of its storage decides. In the second case the leadership had to end, because this machine was too
        slow. `on_time` must confirm that, and the claim ends here.
        """
        if leadership.held:
            return
        now = self.clock.now()
        ended_at = now if leadership.lost_at is None else leadership.lost_at
        assert ended_at >= leadership.deadline, f"it was given up before its deadline: {leadership.lost}"
        renewed_at = storage.told_by(ended_at - JUST)
        since = loop_time() - (now - renewed_at)
        early = renewed_at + leadership.ttl - leadership.deadline
        self.on_time(early, JUST, since=since, what="sending a renewal")  # its deadline counts from then on
        self.on_time(ended_at - renewed_at, leadership.ttl / 2, since=since, what="the time between two renewals")
        self._lapsing[leadership.key] = leadership.ttl
        raise TooSlow

    async def renewal(self, leadership: Leadership, storage: BreakableTtlStorage) -> None:
        """Wait until the next renewal begins, and check that the leadership is held, as `must_stand` does."""
        await renewal_begun(leadership, storage)
        try:
            self.must_stand(leadership, storage)
        except TooSlow:
            storage.hear()  # the fault of that renewal would meet the release
            raise

    async def finish(self) -> None:
        """Close everything: no task and no record except the counters may be left."""
        for elections in self._elections:
            await elections.aclose()
            tasks = sorted(task.get_name() for task in elections._tasks)
            assert not tasks, f"tasks left behind: {tasks}"
        for key, ttl in self._lapsing.items():  # a lost record is left to expire
            await self.free(ttl, key)
        for key in self._keys - self._left:
            assert await self.storage.get(key) is None, f"left behind: {key}"
        for key in self._keys:
            await self._remove(key)
            await self._remove(fence_key(key))

    async def aclose(self) -> None:
        """Close everything, also after a claim that failed half way, and the clients."""
        for storage in self._storages:
            storage.hear()
        for elections in self._elections:
            await elections.aclose()
        while self._opened:
            await self._opened.pop().aclose()

    async def _remove(self, key: str) -> None:
        value = await self.storage.get(key)
        if value is not None:
            await self.storage.compare_and_delete(key, value)

    async def _client(self) -> TtlStorage:
        """Return a client for a process, different from that of the previous process."""
        if not self._persistent:
            return self.storage
        if len(self._opened) <= CLIENTS:
            return await self._enter()
        self._made += 1
        return self._opened[1 + self._made % CLIENTS]

    async def _enter(self) -> TtlStorage:
        storage = self._open_storage()
        await storage.__aenter__()
        self._opened.append(storage)
        await wait_until_connected(lambda: storage.get(self._prefix), within=WITHIN)
        return storage


async def acquire(elections: Elections, key: str, *, ttl: float = LONG, value: str = "10.0.0.1") -> Leadership:
    """Acquire a leadership, if necessary after the previous record has expired.

    Unavailable and Uncertain mean that the storage did not answer within a ttl; as in a replica, the next attempt
    counts.
    """
    async with asyncio.timeout(WITHIN):
        while True:
            with suppress(Unavailable, Uncertain):
                leadership = await elections.acquire(key, value, ttl=ttl)
                if leadership is not None:
                    return leadership
            await asyncio.sleep(POLL)


_CLAIMS: list[ElectionClaim] = []


def claim(*, waits: bool = False) -> Callable[[Body], Body]:
    """Register an async function as a claim; its name is the claim as text."""

    def register(body: Body) -> Body:
        _CLAIMS.append(ElectionClaim(getattr(body, "__name__", "?"), body, waits))
        return body

    return register


def election_claims() -> Sequence[ElectionClaim]:
    """Return all claims about elections."""
    for chapter in _CHAPTERS:
        importlib.import_module(f"hostler.testing.elections.{chapter}")
    return tuple(_CLAIMS)


async def check_elections(
    open_storage: Callable[[], TtlStorage],
    *,
    persistent: bool = True,
    only: Collection[str] | None = None,
    clock: Clock | None = None,
    on_time: OnTime = on_time,
) -> None:
    """Check elections on a driver of ttl storages; raise a group with all failures.

    `open_storage()` returns a storage that is not open yet. Each call returns a new client of the same data, and
    several may be open at once. `persistent=False`: the data lives in the object, so all share one. `only` names the
    claims to check (see `election_claims`). A run takes about half a minute, because leaderships end in real time,
    unless `clock` and the event loop are virtual. `on_time` checks durations.
    """
    turns = asyncio.Semaphore(AT_ONCE)

    async def attempt(claim: ElectionClaim) -> None:
        async with turns:
            await claim.check(open_storage, persistent=persistent, clock=clock, on_time=on_time)

    await check_all("elections", election_claims(), attempt, only)
