"""Definition of a claim about ttl storages, its environment, and the runner of all claims."""

from __future__ import annotations

import asyncio
import importlib
import secrets
from typing import TYPE_CHECKING

import msgspec

from hostler.errors import Unavailable
from hostler.kit.lazy_import import old_method
from hostler.ports.ttl import Watchable
from hostler.testing.claim import TooSlow, check_all, loop_time, on_time, trying, wait_until_connected

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Sequence

    from hostler.ports.ttl import TtlStorage
    from hostler.testing.claim import OnTime

    Body = Callable[["TtlTrial"], Awaitable[None]]

WITHIN = 30.0
"""Seconds within which everything that a claim waits for must happen; ttls have their own limits."""
TTL = 1.0
"""The ttl of a record whose expiry a claim observes."""
LONG = 60.0
POLL = 0.02
ROUNDS = 1000
"""How often two clients race for each operation."""
_CHAPTERS = ("basics", "expiry")


class TtlClaim(msgspec.Struct, frozen=True):
    """One property of every ttl storage. `str(claim)` is the claim as text.

    `waits`: the claim mostly sleeps, so it may run concurrently with others that wait. `watches`: only for storages
    that can watch. `opens`: it is about opening and closing, so the storage cannot be a client that others share.
    """

    name: str
    body: Body
    waits: bool = False
    watches: bool = False
    opens: bool = False

    def __str__(self) -> str:
        return self.name

    async def check(
        self,
        open_storage: Callable[[], TtlStorage],
        *,
        persistent: bool = True,
        rounds: int = ROUNDS,
        on_time: OnTime = on_time,
    ) -> None:
        """Check the claim. Raise AssertionError, or the storage's exception, with a note that names the claim."""
        async with trying(self.name, within=8 * WITHIN):
            trial = TtlTrial(open_storage, persistent=persistent, rounds=rounds, on_time=on_time)
            try:
                await trial.open()
                if not self.watches or isinstance(trial.storage, Watchable):
                    await self.body(trial)
                await trial.tidy()
            finally:
                await trial.aclose()


class TtlTrial:
    """The environment of a claim: an open storage, another client of it, and private keys."""

    storage: TtlStorage
    other: TtlStorage
    """The same object as `storage` if the data lives in the object."""

    def __init__(
        self, open_storage: Callable[[], TtlStorage], *, persistent: bool, rounds: int, on_time: OnTime = on_time
    ) -> None:
        self._open_storage, self.persistent, self.rounds, self.on_time = open_storage, persistent, rounds, on_time
        self._opened: list[TtlStorage] = []
        self._keys: set[str] = set()
        self._prefix = f"check-ttl/{secrets.token_hex(6)}/"

    def fresh(self) -> TtlStorage:
        """Return a storage that is not open yet."""
        return self._open_storage()

    async def open(self) -> None:
        """Open both clients."""
        self.storage = await self._enter()
        self.other = await self._enter() if self.persistent else self.storage

    def key(self, name: str = "record") -> str:
        """Return a key of this trial; its record is removed at the end."""
        key = self._prefix + name
        self._keys.add(key)
        return key

    def forget(self, key: str) -> None:
        """Note that the key has no record any more."""
        self._keys.discard(key)

    async def tidy(self) -> None:
        """Remove the records that the trial left."""
        for key in self._keys:
            value = await self.storage.get(key)
            if value is not None:
                await self.storage.compare_and_delete(key, value)

    async def aclose(self) -> None:
        """Close both clients."""
        while self._opened:
            await self._opened.pop().aclose()

    async def insert(self, key: str, value: str, *, ttl: float) -> None:
        """Insert a record under a free key. Unavailable: its ttl was over before it could be written."""
        began = loop_time()
        try:
            assert await self.storage.insert_if_not_exist(key, value, ttl=ttl)
        except Unavailable:
            took = loop_time() - began
            if took < ttl:
                raise
            self.on_time(took, ttl / 2, since=began, what="an insertion")
            raise TooSlow from None

    if not TYPE_CHECKING:  # the checker accepts the new name only
        lapsed = old_method("lapsed", "wait_until_lapsed")

    async def wait_until_lapsed(self, key: str, ttl: float, began: float) -> None:
        """Wait until the record is gone.

        It must not be gone before its ttl, counted from `began`, and not later than the driver declares.
        """
        written, latest = loop_time(), ttl + self.storage.lateness(ttl)
        while True:
            asked = loop_time()
            value = await self.other.get(key)
            if value is None:
                early = began + ttl - loop_time()
                assert early <= 0, f"gone {early:.3f} s too early"
                return
            self.on_time(asked - written, latest, since=written, what="the end of a record")
            await asyncio.sleep(POLL)

    async def _enter(self) -> TtlStorage:
        storage = self._open_storage()
        await storage.__aenter__()
        self._opened.append(storage)
        await wait_until_connected(lambda: storage.get(self._prefix), within=WITHIN)
        return storage


_CLAIMS: list[TtlClaim] = []


def claim(*, waits: bool = False, watches: bool = False, opens: bool = False) -> Callable[[Body], Body]:
    """Register an async function as a claim; its name is the claim as text."""

    def register(body: Body) -> Body:
        _CLAIMS.append(TtlClaim(getattr(body, "__name__", "?"), body, waits, watches, opens))
        return body

    return register


def ttl_storage_claims() -> Sequence[TtlClaim]:
    """Return all claims about ttl storages."""
    for chapter in _CHAPTERS:
        importlib.import_module(f"hostler.testing.ttl.{chapter}")
    return tuple(_CLAIMS)


async def check_ttl_storage(
    open_storage: Callable[[], TtlStorage],
    *,
    persistent: bool = True,
    rounds: int = ROUNDS,
    only: Collection[str] | None = None,
    on_time: OnTime = on_time,
) -> None:
    """Check that a driver implements the ttl storage port; raise a group with all failures.

    `open_storage()` returns a storage that is not open yet. Each call returns a new client of the same data, and
    several may be open at once. `persistent=False`: the data lives in the object, so the same client is used twice.
    `rounds`: how often two clients race for each operation. `only` names the claims to check (see
    `ttl_storage_claims`). `on_time` checks durations.
    """
    await check_all(
        "ttl storage",
        ttl_storage_claims(),
        lambda claim: claim.check(open_storage, persistent=persistent, rounds=rounds, on_time=on_time),
        only,
    )
