"""Places where accounts are tried: a store with one or more replicas' user services on it, in virtual time."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from environment import env_on

from hostler.drivers.store.memory import MemoryStore
from hostler.engine.idempotent_writer import Writer
from hostler.engine.request import HOSTLER, Caller, Request
from hostler.engine.users import UserService
from hostler.engine.view import View
from hostler.kit.virtual_loop import VirtualClock, run_virtual
from hostler.model.access import Role
from hostler.model.access_api import TokenCreate, UserCreate
from hostler.ports.store import Store

ADMIN = Request(HOSTLER)
PASSWORD = "correct horse"


class PlainHasher:
    """Keeps nothing secret, takes no time that counts, and knows how often it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.salts = itertools.count()

    async def hash(self, password: str) -> str:
        await asyncio.sleep(0)
        return f"kept:{next(self.salts)}:{password[::-1]}"

    async def verify(self, kept: str, password: str) -> bool:
        self.asked.append(kept)
        await asyncio.sleep(0.1)
        return bool(kept) and kept.split(":", 2)[2] == password[::-1]

    async def aclose(self) -> None: ...


class Place:
    """A store with one replica's user service on it."""

    def __init__(self, store: Store, prefix: str = "a") -> None:
        self.store, self.clock, self.hasher = store, VirtualClock(), PlainHasher()
        ids = (f"{prefix}{n}" for n in itertools.count())
        secrets = (f"{prefix}-secret-{n}" for n in itertools.count())
        self.view = View(store, clock=self.clock)
        self.writer = Writer(store, clock=self.clock, new_id=ids.__next__)
        env = env_on(self.clock, new_id=ids.__next__, new_secret=secrets.__next__)
        self.users = UserService(store, self.writer, self.view, env, self.hasher)

    async def caller(self, name: str, *, role: Role = Role.MEMBER, memberships: tuple[str, ...] = ()) -> Caller:
        """A new account with that role, as the caller that its new token stands for."""
        await self.users.create(ADMIN, UserCreate(name=name, role=role, memberships=memberships, password=PASSWORD))
        return self.users.authenticate(await self.token(name))

    async def token(self, name: str) -> str:
        return (await self.users.issue(ADMIN, name, TokenCreate())).value.token


@asynccontextmanager
async def replica(store: Store, prefix: str = "a", *, follow: bool = True) -> AsyncIterator[Place]:
    """A replica; not `follow`: its mirrors are read once, and then stand still as if the store were out of reach."""
    place = Place(store, prefix)
    if not follow:
        await place.view.refresh()
        yield place
        return
    running = asyncio.create_task(place.view.run())
    try:
        await place.view.ready()
        yield place
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@asynccontextmanager
async def one_replica(*, follow: bool = True) -> AsyncIterator[Place]:
    async with MemoryStore(clock=VirtualClock()) as store, replica(store, follow=follow) as place:
        yield place


def virtual(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    """Run the test on virtual time."""

    def run() -> None:
        run_virtual(test)

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run
