"""A crowd that asks, and everything that it goes through is killed or suspended, one after the other.

Leader, standby, worker, Redis and etcd. Nobody's request is lost or worked twice, the order holds, nobody ever has two
machines, and in the end all is as it was asked for. What a dead worker held waits for the end of its lease: hence the
time that this takes.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from functools import partial
from pathlib import Path

import pytest
from dose import dose, seeds
from harness.pace import patience
from lab_company import Asked, Company, check_order, wishes
from lab_student import connected, insist, push_once

SEEDS = seeds(test=1, pool=6)
USERS = dose(test=24, full=60)
EACH = 10
PUSHERS = 10
BLOWS = dose(test=4, full=12)
PAUSE = dose(test=8, full=4) / 10
"""Seconds at most between what a pusher pushes, so that requests come while all is killed."""
SOME = 30.0
"""Seconds, at most, for what a quiet machine does in some; the lease of a dead worker is ten of them."""


@pytest.mark.parametrize("seed", SEEDS)
async def test_whatever_is_killed_or_suspended_every_request_is_worked_once_and_in_order(
    seed: int, tmp_path: Path
) -> None:
    rng = random.Random(seed)
    crowd = [wishes(f"user-{number:04}", EACH, rng) for number in range(USERS)]
    async with Company(tmp_path, nodes=2) as company:
        for name in ("up", "replica", "worker"):
            company.start(name)
        await company.processes["up"].url()
        await company.processes["replica"].url("serving")
        await company.processes["worker"].says("\nready\n")
        pushing = asyncio.create_task(pushed(company, crowd, seed))
        try:
            blows = [await blow(company, rng) for _ in range(BLOWS)]
        finally:
            await pushing
        asked = sum(asked.sound for each in crowd for asked in each)

        async def unanswered() -> str | None:
            restart(company)
            found = sum(map(len, company.witness.answers.values()))
            return None if found >= asked else f"{found} answers to {asked} requests; after {blows}"

        await company.until(unanswered, patience(SOME))
        await company.until(company.witness.missing, patience(SOME))
        check_order(company.witness, crowd)
        company.witness.check()
        for process in company.processes.values():
            assert "Traceback" not in process.text, process.tail(60)
        print(f"\nseed {seed}: {asked} requests, {company.witness.writes} writes of labs; {blows}")


async def pushed(company: Company, crowd: list[list[Asked]], seed: int) -> None:
    """Each user's in order, and each once, though Redis is away now and then."""

    async def push(number: int) -> None:
        rng = random.Random(seed * 1000 + number)
        left = [deque(enumerate(each)) for each in crowd[number::PUSHERS]]
        client = connected(company.redis.url)
        try:
            while left := [each for each in left if each]:
                at, asked = rng.choice(left).popleft()
                push = partial(push_once, client, f"{asked.user}:{at}", asked.queue, asked.raw)
                await insist(push, patience(SOME))
                await asyncio.sleep(rng.random() * PAUSE)
        finally:
            await client.aclose()

    async with asyncio.TaskGroup() as group:
        for number in range(PUSHERS):
            group.create_task(push(number))


async def blow(company: Company, rng: random.Random) -> str:
    """One of them is away for some time."""
    what, how = rng.choice(("up", "replica", "worker", "redis", "etcd")), rng.choice(("killed", "suspended"))
    seconds = rng.choice((0.2, 1.0, 4.0))
    servers = {"redis": company.redis, "etcd": company.etcd}
    await asyncio.sleep(rng.random())
    if what in servers:
        server = servers[what]
        (server.kill if how == "killed" else server.suspend)()
        await asyncio.sleep(seconds)
        (server.restart if how == "killed" else server.resume)()
    elif how == "killed":
        company.processes[what].kill()
        await asyncio.sleep(seconds)
    else:
        company.processes[what].suspend()
        await asyncio.sleep(seconds)
        company.processes[what].resume()
    restart(company)
    return f"{what} {how} for {seconds:g} s"


def restart(company: Company) -> None:
    """As a supervisor does."""
    for name, process in list(company.processes.items()):
        if not process.running:
            company.start(name)
