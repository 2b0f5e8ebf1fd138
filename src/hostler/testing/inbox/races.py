"""Many concurrent workers, some of which die: nothing is lost or doubled, and each user's order holds."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from hostler.ports.inbox import QUEUES
from hostler.testing.inbox.claim import claim, labs

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from hostler.ports.inbox import Inbox, QueueName, Taken
    from hostler.testing.inbox.claim import InboxTrial

WORKERS = 4
USERS = 6
REQUESTS = 160
PATIENCE = 1_000


class _Town:
    """Workers with random pace, replaced from time to time, and their completed requests by queue and user."""

    def __init__(self, t: InboxTrial, rng: random.Random, *, mortal: bool) -> None:
        self.t, self.rng, self.mortal = t, rng, mortal
        self.pushed: defaultdict[tuple[QueueName, str], list[int]] = defaultdict(list)
        self.worked: defaultdict[tuple[QueueName, str], list[int]] = defaultdict(list)
        self.tokens: Counter[str] = Counter()
        self.count = self.born = 0
        self.idle: int | None = None
        """Number of empty takes since everything was pushed."""

    async def push(self) -> None:
        for number in range(1, REQUESTS + 1):
            queue, user = self.rng.choice(QUEUES), f"u{self.rng.randrange(USERS)}"
            self.pushed[queue, user].append(number)
            await self.t.push(user, number, queue=queue)
            if self.rng.random() < 0.3:
                await asyncio.sleep(0)
        self.idle = 0

    async def live(self, inbox: Inbox) -> None:
        while self.count < REQUESTS:
            self.born += 1
            worker, done = f"w{self.born}", []
            while self.count < REQUESTS:
                mine = list(await inbox.take(worker, limit=self.rng.randint(1, 8), within=0.01))
                self._notice(mine)
                while mine:
                    one = mine.pop(self.rng.randrange(len(mine)))
                    self._work(one)
                    done.append(one)
                    if self.mortal and self.rng.random() < 0.1:
                        break  # it dies after the work and before the acknowledgement
                    await asyncio.sleep(0)
                    mine += await inbox.acknowledge(worker, [one])
                else:
                    continue
                break
            # The worker that takes over knows from the store what was completed.
            await inbox.release(worker, done)

    def _notice(self, taken: Sequence[Taken]) -> None:
        if self.idle is not None:
            self.idle = 0 if taken else self.idle + 1
            assert self.idle < PATIENCE, f"{REQUESTS - self.count} requests never arrive"

    def _work(self, one: Taken) -> None:
        ((user, lab),) = labs([one])
        self.worked[one.queue, user].append(lab)
        self.tokens[one.token] += 1
        self.count += 1


async def _run(t: InboxTrial, seed: int, *, mortal: bool) -> None:
    town = _Town(t, t.rng(seed), mortal=mortal)
    clients = [t.inbox, t.other]
    await asyncio.gather(town.push(), *(town.live(clients[n % 2]) for n in range(WORKERS)))
    assert town.worked == town.pushed, f"seed {seed}"
    assert set(town.tokens.values()) == {1}, f"seed {seed}"
    assert await t.take("last") == [], f"seed {seed}"
    await t.inbox.release("last", ())


@claim
async def many_workers_work_each_request_once_and_each_users_in_order(t: InboxTrial) -> None:
    for seed in range(t.rounds):
        await _run(t, seed, mortal=False)


@claim
async def workers_that_die_lose_nothing_and_double_nothing(t: InboxTrial) -> None:
    for seed in range(t.rounds):
        await _run(t, 1000 + seed, mortal=True)
