"""Workers at a real Redis, of a front end that pushes a stop and a start at once and waits for nothing."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from contextlib import AsyncExitStack

from environment import env_on
from harness import pace
from running import ttl_server

from hostler.drivers.store.memory import MemoryStore
from hostler.engine.labs.queue_consumer import Rules
from hostler.engine.labs.worker import LabWorker
from hostler.keys.cache import Cache
from hostler.keys.lab import LAB
from hostler.kit.clock import SystemClock
from hostler.model.lab import LabCatalogue
from hostler.testing.inbox.drivers import RedisLabFrontEnd

USERS = [f"f:b2c:user-{number}" for number in range(20)]


def asked(user: str, **more: int) -> bytes:
    return json.dumps({"webuserid": user, **more}).encode()


async def test_l25_users_who_switch_labs_in_one_transaction_of_redis_have_the_new_lab() -> None:
    """L25, M2: three workers; half of the stops name the lab, and other requests are before them in the queue."""
    clock, ids = SystemClock(), itertools.count(1)
    async with AsyncExitStack() as stack:
        door = await stack.enter_async_context(RedisLabFrontEnd(ttl_server("redis").url))
        store = await stack.enter_async_context(MemoryStore(clock=clock, rng=random.Random(0)))
        labs = Cache(store, LAB, clock=clock, rng=random.Random(1))
        tasks = [asyncio.create_task(labs.run())]
        for number in range(3):
            worker = LabWorker(
                store,
                await stack.enter_async_context(door.inbox()),
                labs,
                env_on(clock, random.Random(number), new_id=lambda: f"w{next(ids)}"),
                Rules(LabCatalogue),
                width=8,
            )
            tasks.append(asyncio.create_task(worker.run()))

        async def until(lab_id: int) -> None:
            async with asyncio.timeout(pace.patience(10.0)):
                while True:
                    found = {entry.value.user: entry.value.lab for entry in (await LAB.list(store)).entries}
                    there = [lab for user in USERS if (lab := found.get(user)) is not None]
                    if [lab.lab_id for lab in there] == [lab_id] * len(USERS):
                        return
                    await asyncio.sleep(0.01)

        try:
            await door.push("provision", *(asked(user, labId=5) for user in USERS))
            await until(5)
            async with door.client.pipeline(transaction=True) as pipe:
                for number in range(100):
                    pipe.rpush(door.names.decommission, asked(f"other-{number}", labId=9))
                for number, user in enumerate(USERS):
                    pipe.rpush(door.names.decommission, asked(user, **({"labId": 5} if number % 2 else {})))
                    pipe.rpush(door.names.provision, asked(user, labId=7))
                await pipe.execute()
            await until(7)
            for entry in (await LAB.list(store)).entries:
                if entry.value.user in USERS:
                    assert [news.event.value for news in entry.value.news] == ["requested", "stopped", "requested"]
            assert await door.dead() == []
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
