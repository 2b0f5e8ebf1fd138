"""Who watches the store while labs come and go: every change of every lab and of every machine, in order.

What must never be is noted at once, and is `Unsafe` at the next check; what must be in the end is looked for by
`missing`: what Redis shows, what the store says and which machines there are is the same, and nobody's request is left.
"""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from harness.artefacts import safe
from labman import check

from hostler.drivers.machines.simulated import read_intervals
from hostler.drivers.machines.simulated.journal import _read_journal
from hostler.errors import Unavailable, Uncertain
from hostler.keys.families import HANDLE, VM
from hostler.keys.lab import LAB
from hostler.kit.clock import SystemClock
from hostler.model.lab import ORG, POOL_ORG, LabPhase

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable
    from pathlib import Path

    from hostler.keys.key import Key
    from hostler.model.lab import LabNews, LabServer, LabUser
    from hostler.model.vm import VirtualMachine
    from hostler.ports.store import Store

SERVERS = "vmmanager:servers:"
LISTS = ("vmmanager:provision", "vmmanager:decommission")
ASIDE = ("vmmanager:processing:*", "vmmanager:next:*", "vmmanager:busy:*")


class Answer(NamedTuple):
    """To one request: the news of the very write in which it was worked, and what was there before it."""

    news: LabNews
    before: LabUser | None


class Witness:
    """`places`: finds the folders of simulated machines, one for each node. Watches while it is entered."""

    def __init__(self, store: Store, redis: Any, places: Callable[[], Iterable[Path]]) -> None:
        self._store, self._redis, self._places = store, redis, places
        self.history: list[str] = []
        """Every change that it saw, in order."""
        self._wrong: list[str] = []
        self.answers: dict[tuple[str, str], list[Answer]] = {}
        """By user and queue, in the order in which they were worked."""
        self.told: dict[str, list[LabNews]] = {}
        """All news of a user."""
        self.writes = 0
        """Of labs."""
        self.machine_writes = 0
        """Of all machines that are wished for."""
        self._labs: dict[str, LabUser] = {}
        self._vms: dict[frozenset[tuple[str, str]], VirtualMachine] = {}
        """By the parts of their keys."""
        self._owners: dict[str, str] = {}
        self._live: dict[str, set[str]] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        since = (await self._store.range("/", limit=1)).revision + 1
        self._vms = await self._listed_vms()
        self._tasks = [asyncio.create_task(self._watch_labs(since)), asyncio.create_task(self._watch_vms(since))]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # While it goes on

    async def _changes(self, key: Key[Any], since: int) -> AsyncIterator[tuple[dict[str, str], Any]]:
        while True:
            try:
                async with key.watch(self._store, start_revision=since) as watch:
                    async for change in watch:
                        since = change.revision + 1
                        yield change.parts, None if change.current is None else change.current.value
            except (Unavailable, Uncertain):
                await asyncio.sleep(0.1)

    async def _watch_labs(self, since: int) -> None:
        async for parts, record in self._changes(LAB, since):
            user = parts["user"]
            before = self._labs.get(user)
            self.writes += 1
            self.history.append(f"lab of {user}: {record}")
            if record is None:
                self._wrong.append(f"the record of {user} was removed though it is new: {before}")
                continue
            self._labs[user] = record
            self._note(user, before, record)

    def _note(self, user: str, before: LabUser | None, record: LabUser) -> None:
        known = self.told.setdefault(user, [])
        new = [news for news in record.news if not known or news.number > known[-1].number]
        for news in new:
            if news.number != (known[-1].number + 1 if known else 1):
                self._wrong.append(f"{user}: news {news} after {known[-1:]}")
            known.append(news)
        if before is not None and record.generation < before.generation:
            self._wrong.append(f"{user}: generation {record.generation} after {before.generation}")
        worked = [
            queue for queue, token in record.worked.items() if before is None or before.worked.get(queue) != token
        ]
        if worked and (len(worked) > 1 or len(new) != 1):
            self._wrong.append(f"{user}: one write worked {worked}, and told {new}")
        if worked and record.news[-1].reason.startswith("the request cannot be understood"):
            return  # it is among the dead letters
        for queue in worked:
            self.answers.setdefault((user, queue), []).append(Answer(record.news[-1], before))

    async def _watch_vms(self, since: int) -> None:
        async for parts, vm in self._changes(VM, since):
            self.machine_writes += 1
            self._vms.pop(frozenset(parts.items()), None)
            if vm is not None:
                self._vms[frozenset(parts.items())] = vm
            self.history.append(f"machine of {parts}: {vm}")
            if parts["org"] != ORG:
                continue
            user, name = parts["project"], parts["vm"]
            if self._owners.setdefault(name, user) != user:
                self._wrong.append(f"{name} is of {user}, and was of {self._owners[name]}")
            live = self._live.setdefault(user, set())
            if vm is None or vm.deleting:
                live.discard(name)
            else:
                live.add(name)
            if len(live) > 1:
                self._wrong.append(f"{user} has machines {sorted(live)}")

    def machines_of(self, user: str) -> list[str]:
        """All that the user ever had."""
        return [vm for vm, owner in self._owners.items() if owner == user]

    def safe(self, holds: object, claim: str) -> None:
        """Fail with all that was seen unless a claim about safety holds."""
        safe(holds, claim, history=self.history)

    def check_so_far(self) -> None:
        """Nothing that must never be has been seen."""
        self.safe(not self._wrong, "; ".join(self._wrong[:10]))

    # In the end

    def check(self) -> None:
        """Nothing that must never be has been; no user's machines ever ran at one instant."""
        self.check_so_far()
        assert not any(task.done() for task in self._tasks), self._tasks
        now = SystemClock().now()
        runs: dict[str, list[tuple[float, float, str]]] = {}
        for place in self._places():
            for vm, intervals in read_intervals(place, now=now).items():
                owner = self._owners.get(vm, f"nobody but {vm}")  # one that was ready ahead, and never taken
                mine = runs.setdefault(owner, [])
                mine.extend((start, now if end is None else end, vm) for start, end in intervals)
        for user, intervals_of in runs.items():
            for (_, end, first), (start, _, second) in pairwise(sorted(intervals_of)):
                self.safe(start >= end, f"{user}: {first} ran until {end:g}, {second} from {start:g}")

    async def missing(self) -> str | None:
        """What is not yet as it must be when nobody asks for anything any more; None: nothing."""
        if (left := await self._left()) is not None:
            return left
        listed = {entry.value.user: entry.value for entry in (await LAB.list(self._store)).entries}
        if listed != {user: self._labs.get(user) for user in listed} or self._vms != await self._listed_vms():
            return "the witness has not seen everything yet"
        labs = {user: record.lab for user, record in listed.items() if record.lab is not None}
        for user, lab in labs.items():
            if lab.phase is not LabPhase.RUNNING or not lab.available:
                return f"{user}: {lab}"
        wanted = sorted(lab.vm for lab in labs.values())
        for key in (VM, HANDLE):
            found = sorted(entry.value.id for entry in (await key.list(self._store, org=ORG)).entries)
            if found != wanted:
                return f"{key.template}: {set(found) ^ set(wanted)}"
        ahead = [entry.value.id for entry in (await VM.list(self._store, org=POOL_ORG)).entries]
        rows = [row for place in self._places() for row in _read_journal(place, whole=True).rows]
        if sorted(rows) != sorted([*wanted, *ahead]):
            return f"machines: {rows}, wanted: {wanted}"
        return await self._unlike({user: lab.server(user) for user, lab in labs.items()})

    async def _listed_vms(self) -> dict[frozenset[tuple[str, str]], VirtualMachine]:
        return {frozenset(entry.parts.items()): entry.value for entry in (await VM.list(self._store)).entries}

    async def _unlike(self, wanted: dict[str, LabServer]) -> str | None:
        shown: dict[str, bytes] = {}
        async for key in self._redis.scan_iter(SERVERS + "*", count=1000):
            shown[key.decode().removeprefix(SERVERS)] = await self._redis.get(key) or b""
        if set(shown) != set(wanted):
            return f"shown and not so, or so and not shown: {set(shown) ^ set(wanted)}"
        for user, text in shown.items():
            if text != wanted[user].encode():
                return f"{user}: {text!r}, not {wanted[user]}"
            check(text, user)
        return None

    async def _left(self) -> str | None:
        for name in LISTS:
            if count := await self._redis.llen(name):
                return f"{count} in {name}"
        for pattern in ASIDE:
            async for key in self._redis.scan_iter(pattern, count=1000):
                return f"{key.decode()} is there"
        return None
