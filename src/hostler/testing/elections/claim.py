"""What a claim about elections is, what it works with, and how all of them are run."""

from __future__ import annotations

import asyncio
import importlib
import json
import secrets
from typing import TYPE_CHECKING, Any

import msgspec

from hostler.engine.elections import Elections, fence_key
from hostler.testing.claim import check_all, connected, trying
from hostler.testing.elections.breakable import BreakableTtlStorage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Sequence

    from hostler.engine.elections import Leadership
    from hostler.ports.ttl import TtlStorage

    Body = Callable[["ElectionTrial"], Awaitable[None]]

WITHIN = 30.0
"""Seconds in which whatever a claim waits for must have happened; leaderships are timed by themselves."""
TTL = 2.0
"""The life of a leadership that a claim sees the end of."""
LONG = 60.0
BESIDE = 4
"""Claims that wait at once: each has several clients, and a leadership of two seconds needs quick answers."""
_CHAPTERS = ("use", "loss", "fences", "closing", "doors")


class ElectionClaim(msgspec.Struct, frozen=True):
    """One thing that is true of elections on every storage. `str(claim)` is the claim in words.

    `waits`: it mostly sleeps, so it may run beside others that wait.
    """

    name: str
    body: Body
    waits: bool = False

    def __str__(self) -> str:
        return self.name

    async def check(self, open_storage: Callable[[], TtlStorage], *, persistent: bool = True) -> None:
        """Try the claim; AssertionError or what the storage raised, with a note that names it."""
        async with trying(self.name, within=4 * WITHIN):
            trial = ElectionTrial(open_storage, persistent=persistent)
            try:
                await trial.open()
                await self.body(trial)
                await trial.finish()
            finally:
                await trial.aclose()


class ElectionTrial:
    """What a claim works with: keys that nobody else knows, and as many processes that stand for them as it likes."""

    storage: TtlStorage
    """To look, and to do what an operator would."""

    def __init__(self, open_storage: Callable[[], TtlStorage], *, persistent: bool) -> None:
        self._open_storage, self._persistent = open_storage, persistent
        self._opened: list[TtlStorage] = []
        self._elections: list[Elections] = []
        self._keys: set[str] = set()
        self._left: set[str] = set()
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
        storage = BreakableTtlStorage(await self._enter() if self._persistent else self.storage)
        elections = Elections(storage, new_id=None if holder is None else lambda: holder)
        self._elections.append(elections)
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
        async with asyncio.timeout(ttl + self.storage.lateness(ttl) + 1):
            while await self.storage.get(key or self.key) is not None:  # noqa: ASYNC110 - not every storage can watch
                await asyncio.sleep(0.02)

    async def finish(self) -> None:
        """Close everybody: no task and no record may be left, the counters excepted."""
        for elections in self._elections:
            await elections.aclose()
            tasks = sorted(task.get_name() for task in elections._tasks)
            assert not tasks, f"tasks left behind: {tasks}"
        for key in self._keys - self._left:
            assert await self.storage.get(key) is None, f"left behind: {key}"
        for key in self._keys:
            await self._remove(key)
            await self._remove(fence_key(key))

    async def aclose(self) -> None:
        """Close the clients."""
        while self._opened:
            await self._opened.pop().aclose()

    async def _remove(self, key: str) -> None:
        value = await self.storage.get(key)
        if value is not None:
            await self.storage.compare_and_delete(key, value)

    async def _enter(self) -> TtlStorage:
        storage = self._open_storage()
        await storage.__aenter__()
        self._opened.append(storage)
        await connected(lambda: storage.get(self._prefix), within=WITHIN)
        return storage


async def acquired(elections: Elections, key: str, *, ttl: float = LONG, value: str = "10.0.0.1") -> Leadership:
    """A leadership that must be had, perhaps after the record before it has ended."""
    async with asyncio.timeout(WITHIN):
        while (leadership := await elections.acquire(key, value, ttl=ttl)) is None:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.02)
    return leadership


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
    open_storage: Callable[[], TtlStorage], *, persistent: bool = True, only: Collection[str] | None = None
) -> None:
    """Check elections on a driver of ttl storages; raises a group with every claim that does not hold.

    `open_storage()` returns a storage that is not open yet; each call gives a new client of the same data, and several
    may be open at once. `persistent=False`: the data lives in the object, so all share one. `only` names the claims to
    check (see `election_claims`). It takes about a minute: leaderships end in real time.
    """
    beside = asyncio.Semaphore(BESIDE)

    async def attempt(claim: ElectionClaim) -> None:
        async with beside:
            await claim.check(open_storage, persistent=persistent)

    await check_all("elections", election_claims(), attempt, only)
