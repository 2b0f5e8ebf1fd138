"""What a claim about elections is, what it works with, and how all of them are run."""

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
from hostler.testing.claim import TooSlow, check_all, connected, loop_time, on_time, trying
from hostler.testing.elections.breakable import BreakableTtlStorage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Sequence

    from hostler.engine.elections import Leadership
    from hostler.kit.clock import Clock
    from hostler.ports.ttl import TtlStorage
    from hostler.testing.claim import OnTime

    Body = Callable[["ElectionTrial"], Awaitable[None]]

WITHIN = 30.0
"""Seconds in which whatever a claim waits for must have happened; leaderships are timed by themselves."""
TTL = 2.0
"""The life of a leadership that a claim sees the end of."""
LONG = 60.0
CLIENTS = 3
"""Clients of the storage that the processes of a claim share, beside the one that looks."""
POLL = 0.02
JUST = 0.05
"""Seconds that a process may need to learn of an answer that has come."""
BESIDE = 4
"""Claims that wait at once: each has several clients, and a leadership of two seconds needs quick answers."""
_CHAPTERS = ("basics", "loss", "fences", "closing", "validation")


class ElectionClaim(msgspec.Struct, frozen=True):
    """One thing that is true of elections on every storage. `str(claim)` is the claim in words.

    `waits`: it mostly sleeps, so it may run beside others that wait.
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
        """Try the claim; AssertionError or what the storage raised, with a note that names it."""
        async with trying(self.name, within=4 * WITHIN):
            trial = ElectionTrial(open_storage, persistent=persistent, clock=clock, on_time=on_time)
            try:
                await trial.open()
                with suppress(TooSlow):
                    await self.body(trial)
                await trial.finish()
            finally:
                await trial.aclose()


class ElectionTrial:
    """What a claim works with: keys that nobody else knows, and as many processes that stand for them as it likes."""

    storage: TtlStorage
    """To look, and to do what an operator would."""

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
        """By key: the life of a record whose leadership was lost because the machine was too slow."""
        self._prefix = f"check-elections/{secrets.token_hex(6)}/"
        self.key = self.another_key("leader")

    async def open(self) -> None:
        """Open the first client."""
        self.storage = await self._enter()

    def another_key(self, name: str) -> str:
        """A key of this trial."""
        return self.own_key(self._prefix + name)

    def own_key(self, key: str) -> str:
        """This key belongs to the trial."""
        self._keys.add(key)
        return key

    async def elections(self, *, holder: str | None = None) -> tuple[Elections, BreakableTtlStorage]:
        """A process that stands for election, and the storage as it sees it."""
        storage = BreakableTtlStorage(await self._client(), clock=self.clock)
        elections = Elections(storage, clock=self.clock, new_id=None if holder is None else lambda: holder)
        self._elections.append(elections)
        self._storages.append(storage)
        return elections, storage

    async def leader(self, *, ttl: float = LONG) -> tuple[Leadership, Elections, BreakableTtlStorage]:
        """A process that leads the trial's key."""
        elections, storage = await self.elections()
        return await acquired(elections, self.key, ttl=ttl), elections, storage

    async def record(self, key: str | None = None) -> dict[str, Any] | None:
        """What stands at the key."""
        text = await self.storage.get(key or self.key)
        return None if text is None else json.loads(text)

    async def counter(self, key: str | None = None) -> int:
        """The highest fence that was given out for the key; 0 if none was."""
        return int(await self.storage.get(fence_key(key or self.key)) or 0)

    def leaves(self, key: str | None = None) -> None:
        """The claim leaves a record that is not the elections' to remove."""
        self._left.add(key or self.key)

    async def free(self, ttl: float = TTL, key: str | None = None) -> None:
        """Until the key is free: it must be, one life from now."""
        began = loop_time()
        async with asyncio.timeout(WITHIN):
            while await self.storage.get(key or self.key) is not None:  # noqa: ASYNC110 - not every storage can watch
                await asyncio.sleep(POLL)
        limit = ttl + self.storage.lateness(ttl) + 2 * POLL
        self.on_time(loop_time() - began, limit, since=began, what="the end of a record")

    def must_stand(self, leadership: Leadership, storage: BreakableTtlStorage) -> None:
        """The leadership is held, or no renewal came through for a whole life, by the record of its storage.

        Then it had to end: this machine was too slow for it, which `on_time` must agree with, and the claim ends here.
        """
        if leadership.held:
            return
        now = self.clock.now()
        ended_at = now if leadership.lost_at is None else leadership.lost_at
        assert ended_at >= leadership.deadline, f"it was given up before its deadline: {leadership.lost}"
        renewed_at = storage.told_by(ended_at - JUST)
        since = loop_time() - (now - renewed_at)
        early = renewed_at + leadership.ttl - leadership.deadline
        self.on_time(early, JUST, since=since, what="sending a renewal")  # from when on its deadline counts
        self.on_time(ended_at - renewed_at, leadership.ttl / 2, since=since, what="the time between two renewals")
        self._lapsing[leadership.key] = leadership.ttl
        raise TooSlow

    async def finish(self) -> None:
        """Close everybody: no task and no record may be left, the counters excepted."""
        for elections in self._elections:
            await elections.aclose()
            tasks = sorted(task.get_name() for task in elections._tasks)
            assert not tasks, f"tasks left behind: {tasks}"
        for key, ttl in self._lapsing.items():  # a lost record is left to lapse
            await self.free(ttl, key)
        for key in self._keys - self._left:
            assert await self.storage.get(key) is None, f"left behind: {key}"
        for key in self._keys:
            await self._remove(key)
            await self._remove(fence_key(key))

    async def aclose(self) -> None:
        """Close everybody, also after a claim that failed in the middle, and the clients."""
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
        """One for a process: another than that of the process before it."""
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
        await connected(lambda: storage.get(self._prefix), within=WITHIN)
        return storage


async def acquired(elections: Elections, key: str, *, ttl: float = LONG, value: str = "10.0.0.1") -> Leadership:
    """A leadership that must be had, perhaps after the record before it has ended.

    Unavailable and Uncertain mean that the storage did not answer within a life; as for a replica, the next try counts.
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
    """Make a claim of an async function: its name is the claim in words."""

    def register(body: Body) -> Body:
        _CLAIMS.append(ElectionClaim(getattr(body, "__name__", "?"), body, waits))
        return body

    return register


def election_claims() -> Sequence[ElectionClaim]:
    """Every claim that is made of elections."""
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
    """Check elections on a driver of ttl storages; raises a group with every claim that does not hold.

    `open_storage()` returns a storage that is not open yet; each call gives a new client of the same data, and several
    may be open at once. `persistent=False`: the data lives in the object, so all share one. `only` names the claims to
    check (see `election_claims`). It takes about half a minute: leaderships end in real time, unless `clock` and the
    event loop are virtual. `on_time` judges how long things take.
    """
    beside = asyncio.Semaphore(BESIDE)

    async def attempt(claim: ElectionClaim) -> None:
        async with beside:
            await claim.check(open_storage, persistent=persistent, clock=clock, on_time=on_time)

    await check_all("elections", election_claims(), attempt, only)
