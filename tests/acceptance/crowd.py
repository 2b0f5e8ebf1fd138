"""Clients that do what they like to the same few machines, through the HTTP API, and note what they were told."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from vm_history import COUNTER, Request, Told, wish_of

from hostler.client import Client
from hostler.errors import Conflict, NotFound, Unavailable, Uncertain
from hostler.model.vm import VmSpec
from hostler.model.vm_api import VmCreate, VmUpdate

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from vm_history import Verb

    from hostler.model.vm_api import VmView

ORG, PROJECT = "acme", "crowd"
NAMES = ("ape", "bee", "cat", "dog", "elk")
SNAPSHOTS = ("early", "late")
SIZES = (64, 96, 128)
ODDS: dict[Verb, int] = {
    "get": 14,
    "count": 30,
    "mark": 10,
    "resize": 6,
    "start": 6,
    "stop": 6,
    "reset": 3,
    "snapshot": 6,
    "drop": 3,
    "restore": 6,
    "delete": 4,
    "create": 8,
}
IMPATIENT = 0.05
"""How many requests are given up before the answer; half of them are repeated with the same key."""


class Member:
    """One of the clients."""

    def __init__(self, number: int, client: Client, history: list[Told]) -> None:
        self._number, self._client, self._history = number, client, history
        self._rng = random.Random(number)
        self._asked = 0

    async def run(self, until: float) -> None:
        """Ask for one thing after the other."""
        rng = self._rng
        while time.monotonic() < until:
            name = rng.choice(NAMES)
            verb: Verb = rng.choices(tuple(ODDS), tuple(ODDS.values()))[0]
            if verb == "get" and rng.random() < 0.2:
                await self._list()
            elif verb == "count":
                await self._count(name)
            else:
                told = await self._ask(self._request(name, verb, self._value(verb)))
                if told.missed and rng.random() < 0.6:
                    await self._ask(self._request(name, "create", self._value("create")))

    def _value(self, verb: Verb) -> int | str:
        if verb in ("create", "mark"):
            return f"{self._number}-{self._asked}"
        if verb == "resize":
            return self._rng.choice(SIZES)
        return self._rng.choice(SNAPSHOTS) if verb in ("snapshot", "drop", "restore") else ""

    def _request(self, name: str, verb: Verb, value: int | str = "", if_match: int | None = None) -> Request:
        self._asked += 1
        return Request(
            client=self._number,
            key=f"client-{self._number}-{self._asked}",
            name=name,
            verb=verb,
            value=value,
            if_match=if_match,
        )

    async def _count(self, name: str) -> None:
        """Read, add one, write if nobody wrote meanwhile."""
        read = await self._ask(self._request(name, "get"))
        if read.wish is not None and not read.wish.deleting:
            await self._ask(self._request(name, "count", read.wish.count + 1, read.revision))

    async def _list(self) -> None:
        called_at = time.monotonic_ns()
        try:
            page = await self._client.vms.list(ORG, PROJECT)
        except Unavailable:  # as for `get`: it was told nothing
            return
        ended_at = time.monotonic_ns()
        found = {view.name: view for view in page.items}
        assert len(found) == len(page.items), f"a name twice in {page}"
        for name in NAMES:
            request, view = self._request(name, "get"), found.get(name)
            told = Told(request=request, called_at=called_at, ended_at=ended_at, missed=view is None)
            if view is not None:
                told.wish, told.revision = wish_of(view), view.revision
            self._history.append(told)

    async def _ask(self, request: Request) -> Told:
        """Ask, and note what came of it."""
        rng = self._rng
        told = Told(request=request, called_at=time.monotonic_ns(), ended_at=0)
        if request.verb != "get" and rng.random() < IMPATIENT:
            told.gave_up = True
            try:
                async with asyncio.timeout(rng.choice((0.002, 0.01, 0.05))):
                    await self._told(told)
            except TimeoutError:
                if rng.random() < 0.5:
                    await self._told(told)
        else:
            await self._told(told)
        told.ended_at = time.monotonic_ns()
        self._history.append(told)
        return told

    async def _told(self, told: Told) -> None:
        try:
            view = await _send(self._client, told.request)
        except NotFound as error:
            if "snapshot" in str(error):
                told.refusal = str(error)
            else:
                told.missed = True
        except (Conflict, Unavailable) as error:
            told.refusal = str(error)
        except Uncertain:
            told.gave_up = True
        else:
            told.wish, told.revision = wish_of(view), view.revision


async def _send(client: Client, request: Request) -> VmView:
    vms, at = client.vms, (ORG, PROJECT, request.name)
    value = request.value
    if request.verb == "get":
        return await vms.get(*at)
    if request.verb == "create":
        spec = VmSpec(cpus=1, memory_mib=64, user_data=str(value))
        return await vms.create(ORG, PROJECT, VmCreate(name=request.name, spec=spec), key=request.key)
    if request.verb in ("snapshot", "restore", "drop"):
        verb: Callable[..., Awaitable[VmView]]
        verb = vms.drop_snapshot if request.verb == "drop" else getattr(vms, request.verb)
        return await verb(*at, str(value), key=request.key)
    if request.verb in ("count", "mark", "resize"):
        changes = {
            "count": lambda: VmUpdate(labels={COUNTER: str(value)}),
            "mark": lambda: VmUpdate(user_data=str(value)),
            "resize": lambda: VmUpdate(memory_mib=int(value)),
        }
        return await vms.update(*at, changes[request.verb](), if_match=request.if_match, key=request.key)
    act: Callable[..., Awaitable[VmView]] = getattr(vms, request.verb)
    return await act(*at, key=request.key)


async def crowd(urls: Sequence[str], token: str, *, size: int, seconds: float) -> list[Told]:
    """So many clients, spread over the servers, for so long; their history."""
    history: list[Told] = []
    until = time.monotonic() + seconds
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
        for number in range(size):
            client = await stack.enter_async_context(Client(urls[number % len(urls)], token))
            tasks.create_task(Member(number, client, history).run(until))
    return history
