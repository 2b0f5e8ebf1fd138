"""Labs as they are in production: processes of the command line on etcd and Redis, and a crowd that asks."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from redis.asyncio import Redis
from up_process import HostlerProcess
from witness import Witness

import hostler
from hostler.keys.families import LEADER
from hostler.model.lab import LabEvent
from hostler.testing.servers import EtcdServer
from hostler.testing.ttl_servers import RedisServer

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from witness import Answer

PROVISION, DECOMMISSION = "vmmanager:provision", "vmmanager:decommission"
LOOK = 0.05
LEADERSHIP_TTL = 6.0
"""Seconds; a busy machine keeps a leader from renewing for two of them."""


class Company:
    """etcd, Redis, a witness, and whoever is started by name. Left: everybody is dead."""

    def __init__(self, folder: Path, *, nodes: int) -> None:
        self._folder, self._nodes = folder, nodes
        self.etcd, self.redis = EtcdServer(), RedisServer()
        self.processes: dict[str, HostlerProcess] = {}

    async def __aenter__(self) -> Self:
        self.etcd.__enter__()
        self.redis.__enter__()
        self.store = hostler.open_store(self.etcd.url)
        await self.store.__aenter__()
        self.client: Any = Redis.from_url(self.redis.url)
        self.witness = Witness(self.store, self.client, lambda: self._folder.glob("*/machines/*"))
        await self.witness.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        for process in self.processes.values():
            process.kill()
        await self.witness.__aexit__()
        await self.client.aclose()
        await self.store.aclose()
        self.redis.stop()
        self.etcd.stop()

    def start(self, name: str) -> HostlerProcess:
        """`up…`: with the nodes; `replica…`, `worker…`: without."""
        ttl = ("--leadership-ttl", LEADERSHIP_TTL)
        options: dict[str, tuple[object, ...]] = {
            "up": ("up", "--nodes", self._nodes, "--rack", name.replace("-", ""), "--listen", "127.0.0.1:0", *ttl),
            "replica": ("replica", "--listen", "127.0.0.1:0", *ttl),
            "worker": ("lab", "worker"),
        }
        arguments = (*options[name.partition("-")[0]], "--store", self.etcd.url, "--data", self._folder / name)
        environ = {"HOSTLER_REDIS": self.redis.url}
        process = HostlerProcess(*arguments, folder=self._folder, environ=environ)
        self.processes[name] = process
        return process

    async def leader(self) -> str | None:
        """Who leads of those that run, by its record."""
        entry = await LEADER.get(self.store, n=1)
        running = ((name, process) for name, process in self.processes.items() if process.running)
        return next((name for name, process in running if entry and _address(process) == entry.value.address), None)

    async def until(self, missing: Callable[[], Awaitable[str | None]], within: float) -> None:
        """Until it finds nothing missing; meanwhile nothing is ever wrong."""
        end = time.monotonic() + within
        while (what := await missing()) is not None:
            self.witness.check_so_far()
            assert time.monotonic() < end, f"not within {within:g} s: {what}\n{self.last_words()}"
            await asyncio.sleep(LOOK)

    def last_words(self) -> str:
        return "\n".join(f"{name}: {process.tail(8)}" for name, process in self.processes.items())

    def check_alive(self) -> None:
        for name, process in self.processes.items():
            assert process.running, f"{name} ended with {process.code}: {process.tail()}"
            assert "Traceback" not in process.text, process.tail(60)


def _address(process: HostlerProcess) -> str | None:
    found = re.search(r"(?:ready|serving) http://(\S+)", process.text)
    return None if found is None else found[1]


# The crowd


class Asked(NamedTuple):
    """One request. `lab` is of this one alone among the requests of its user and queue."""

    user: str
    queue: str
    lab: int | None
    raw: str
    sound: bool = True
    """Whether it can be understood."""


def wishes(user: str, count: int, rng: random.Random) -> list[Asked]:
    """What a restless user asks for, one after the other: each lab is asked for once, and stopped at most once."""
    asked: list[Asked] = []
    stopped: set[int] = set()
    for lab in range(1, count + 1):
        dice, other = rng.random(), rng.randint(1, lab)
        if dice < 0.04:
            queue = rng.choice((PROVISION, DECOMMISSION))
            asked.append(Asked(user, queue, None, json.dumps({"webuserid": user, "labId": f"lab {lab}"}), sound=False))
        elif dice < 0.55:
            asked.append(Asked(user, PROVISION, lab, json.dumps({"webuserid": user, "labId": lab})))
        elif dice < 0.8 and other not in stopped:
            stopped.add(other)
            asked.append(Asked(user, DECOMMISSION, other, json.dumps({"webuserid": user, "labId": other})))
        else:
            asked.append(Asked(user, DECOMMISSION, None, json.dumps({"webuserid": user})))
    return asked


async def push(client: Any, crowd: list[list[Asked]], rng: random.Random, *, pause: float) -> None:
    """All that these users ask for: each user's in order, theirs among one another in any. `pause`: at most."""
    left = [deque(each) for each in crowd]
    while left:
        pipeline = client.pipeline(transaction=False)
        for _ in range(rng.randint(1, 8)):
            if not left:
                break
            at = rng.randrange(len(left))
            asked = left[at].popleft()
            pipeline.rpush(asked.queue, asked.raw)
            if not left[at]:
                left[at] = left[-1]
                left.pop()
        await pipeline.execute()
        await asyncio.sleep(pause * rng.random())


def misfit(asked: Asked, answer: Answer) -> str | None:
    """Why this cannot be the answer to that."""
    news = answer.news
    if asked.queue == PROVISION:
        fits = news.event in (LabEvent.REQUESTED, LabEvent.ALREADY, LabEvent.REFUSED) and news.lab_id == asked.lab
    elif news.event is LabEvent.IGNORED:
        fits = news.lab_id == asked.lab
    else:
        fits = news.event in (LabEvent.STOPPING, LabEvent.STOPPED, LabEvent.ALREADY) and (
            asked.lab in (None, news.lab_id) or news.reason == f"lab {asked.lab} does not follow"
        )
    return None if fits else f"{asked} was answered by {news}"


def check_order(witness: Witness, crowd: list[list[Asked]]) -> None:
    """Every request was answered, once, in the order in which its user's requests of that queue were pushed."""
    for each in crowd:
        for queue in (PROVISION, DECOMMISSION):
            mine = [asked for asked in each if asked.queue == queue and asked.sound]
            user, found = each[0].user, witness.answers.get((each[0].user, queue.removeprefix("vmmanager:")), [])
            witness.safe(len(found) == len(mine), f"{user}: {len(mine)} in {queue}, {len(found)} answers: {found}")
            for asked, answer in zip(mine, found):
                why = misfit(asked, answer)
                witness.safe(why is None, f"out of order: {why}; {mine}; {[each.news for each in found]}")
