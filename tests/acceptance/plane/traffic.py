"""Clients of a control plane that fails: one asks every replica all the time, one goes on changing things."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Self

from hostler import Client
from hostler.errors import Conflict, HostlerError, Unavailable, Uncertain
from hostler.model.vm import OnNodeLoss, Power, VmSpec
from hostler.model.vm_api import VmCreate, VmView

ORG, PROJECT = "acme", "web"
SPEC = VmSpec(cpus=1, memory_mib=64)
KINDS = (OnNodeLoss.WAIT, OnNodeLoss.RECREATE)
"""What the machines of the plane ask for: to stay, or to be started elsewhere."""
ASK_EVERY = 0.2
ACT_EVERY = 0.25
PATIENCE = 3.0
"""Seconds that a client waits for one answer."""
MOST = 12
"""Machines that come and go, at a time."""


class Asking:
    """Asks one replica, again and again, and notes when it was answered from the store."""

    def __init__(self, url: str, token: str) -> None:
        self.url, self._token = url, token
        self.answers: list[float] = []
        self.failures: list[tuple[float, str]] = []

    async def run(self) -> None:
        async with Client(self.url, self._token, timeout=PATIENCE, retries=0) as client:
            while True:
                try:
                    await client.vms.list(ORG, PROJECT, limit=100)
                    self.answers.append(time.monotonic())
                except HostlerError as error:
                    self.failures.append((time.monotonic(), str(error)))
                await asyncio.sleep(ASK_EVERY)

    def gap(self, since: float, until: float | None = None) -> float:
        """The longest time between two answers in that span."""
        end = time.monotonic() if until is None else until
        within = [since, *(at for at in self.answers if since < at < end), end]
        return max(second - first for first, second in itertools.pairwise(within))

    def failed(self, since: float) -> list[str]:
        """What went wrong since then."""
        return [f"{at - since:.1f} s: {why}" for at, why in self.failures if at > since]


class Wishes:
    """What was wished for and not taken back, by name: exactly, for every write is repeated until it is answered."""

    def __init__(self, urls: Sequence[str], token: str, seed: int) -> None:
        self._clients = [Client(url, token, timeout=PATIENCE, retries=0) for url in urls]
        self._stack = AsyncExitStack()
        self._rng = random.Random(seed)
        self._numbers = itertools.count(1)
        self.power: dict[str, Power] = {}
        self.passing: list[str] = []
        """Names of machines that come and go."""
        self.done = 0
        self.repeated = 0
        self._ends = False

    async def __aenter__(self) -> Self:
        for client in self._clients:
            await self._stack.enter_async_context(client)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def new(self, prefix: str, kind: OnNodeLoss) -> VmCreate:
        """A wish for a machine with a name of its own; nobody knows of it yet."""
        return VmCreate(name=f"{prefix}-{next(self._numbers)}", spec=SPEC, on_node_loss=kind)

    async def make(self, wish: VmCreate, *, key: str | None = None) -> VmView:
        """Create it; with the `key` of a write that may have been made before."""
        view = await self._surely(lambda client, key: client.vms.create(ORG, PROJECT, wish, key=key), key)
        self.power[wish.name] = Power.ON
        return view

    async def drop(self, name: str) -> None:
        """Delete it."""
        await self._surely(lambda client, key: client.vms.delete(ORG, PROJECT, name, key=key))
        del self.power[name]

    async def run(self) -> None:
        """Create, stop, start and delete machines until `end`."""
        while not self._ends:
            await self._act()
            self.done += 1
            await asyncio.sleep(ACT_EVERY)

    def end(self) -> None:
        self._ends = True

    async def _act(self) -> None:
        if len(self.passing) < MOST // 2 or (len(self.passing) < MOST and self._rng.random() < 0.4):
            view = await self.make(self.new("passing", self._rng.choice(KINDS)))
            self.passing.append(view.name)
            return
        name = self._rng.choice(self.passing)
        if self._rng.random() < 0.4:
            await self.drop(name)
            self.passing.remove(name)
        elif self.power[name] is Power.ON:
            await self._surely(lambda client, key: client.vms.stop(ORG, PROJECT, name, key=key))
            self.power[name] = Power.OFF
        else:
            await self._surely(lambda client, key: client.vms.start(ORG, PROJECT, name, key=key))
            self.power[name] = Power.ON

    async def _surely(self, write: Callable[[Client, str], Awaitable[VmView]], key: str | None = None) -> VmView:
        """Repeat it, with one key and at one replica after the other, until one says what became of it."""
        key = key or uuid.uuid4().hex
        while True:
            try:
                return await write(self._rng.choice(self._clients), key)
            except (Unavailable, Uncertain, Conflict):
                self.repeated += 1
                await asyncio.sleep(ASK_EVERY)
