"""A flood: many users ask for much at once, through many connections, and three processes work it.

`make test` takes a part of the users, `make soak` all of them.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from pathlib import Path

from dose import dose
from harness.pace import patience
from lab_company import Asked, Company, check_order, push, wishes
from redis.asyncio import Redis

USERS = dose(test=40, full=500)
EACH = 10
PUSHERS = 20
SEED = 20260731
PAUSE = 1.0
"""Seconds at most between what a pusher pushes, so that requests come while machines are made and ended."""
PER_NODE = 32
SOME = 20.0 + USERS / 4
"""Seconds, at most, for what a quiet machine does in a fraction of that."""
SWEEPS = dose(test=1, full=2)


async def test_a_flood_is_worked_in_order_and_nobody_ever_has_two_machines(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    crowd = [wishes(f"user-{number:04}", EACH, rng) for number in range(USERS)]
    async with Company(tmp_path, nodes=1 + USERS // PER_NODE) as company:
        witness, client = company.witness, company.client
        up = company.start("up")
        await up.url()
        others = [company.start("replica"), company.start("worker")]
        await others[0].says("serving http")
        await others[1].says("\nready\n")

        begun = time.monotonic()
        await flood(company, crowd)
        pushed = time.monotonic()
        await company.until(lambda: unanswered(company, crowd), patience(SOME))
        answered = time.monotonic()
        await company.until(witness.missing, patience(SOME))
        over = time.monotonic()
        company.check_alive()
        check_order(witness, crowd)
        witness.check()
        buried = [json.loads(each)["request"] for each in await client.lrange("vmmanager:dead", 0, -1)]
        assert sorted(buried) == sorted(asked.raw for each in crowd for asked in each if not asked.sound)
        made = {user: len(witness.machines_of(user)) for each in crowd for user in (each[0].user,)}
        print(f"\n{USERS * EACH} requests of {USERS} users, {len(buried)} dead: pushed in {pushed - begun:.1f} s,")
        print(f"answered after {answered - begun:.1f} s, settled after {over - begun:.1f} s;", end=" ")
        print(
            f"{witness.writes} writes of labs, {sum(made.values())} machines, {max(made.values())} of one user at most"
        )

        for _ in range(SWEEPS):
            await sweep(company)
        witness.check()


async def flood(company: Company, crowd: list[list[Asked]]) -> None:
    """Through as many connections."""
    clients = [Redis.from_url(company.redis.url) for _ in range(PUSHERS)]
    try:
        async with asyncio.TaskGroup() as group:
            for number, client in enumerate(clients):
                group.create_task(push(client, crowd[number::PUSHERS], random.Random(SEED + number), pause=PAUSE))
    finally:
        for client in clients:
            await client.aclose()


async def unanswered(company: Company, crowd: list[list[Asked]]) -> str | None:
    found = sum(map(len, company.witness.answers.values())) + await company.client.llen("vmmanager:dead")
    asked = sum(map(len, crowd))
    return None if found >= asked else f"{asked - found} requests without an answer"


async def sweep(company: Company) -> None:
    """Let records be wrong, each in its way, and the leader die: whoever leads next sweeps when it begins."""
    client, leader = company.client, await company.leader()
    assert leader is not None, company.last_words()
    shown = sorted([key async for key in client.scan_iter("vmmanager:servers:*", count=1000)])
    await client.delete(shown[0])
    await client.set(shown[1], "garbage")
    await client.copy(shown[2], "vmmanager:servers:nobody")
    company.processes[leader].kill()
    company.start(leader)
    await company.until(company.witness.missing, patience(SOME))
