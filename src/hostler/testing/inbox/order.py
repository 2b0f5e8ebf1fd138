"""Claims: the order of a user's requests, also among many concurrent workers of which some die."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from hostler.ports.inbox import BEHIND, QUEUES, Taken
from hostler.testing.inbox.claim import claim, labs
from hostler.testing.inbox.queues import STRANGE

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from hostler.ports.inbox import Inbox, QueueName
    from hostler.testing.inbox.claim import InboxTrial


@claim
async def a_users_next_request_comes_only_after_the_one_before(t: InboxTrial) -> None:
    await t.push("ada", 1, 2)
    await t.push("bob", 7)
    await t.push("ada", 3)
    taken = await t.take()
    assert labs(taken) == [("ada", 1), ("bob", 7)]
    await t.push("ada", 4)
    assert list(await t.other.take("w2", limit=10, within=0)) == []
    for lab in (2, 3, 4):
        taken = list(await t.inbox.acknowledge("w1", taken))
        assert labs(taken) == [("ada", lab)]
        assert await t.take("w2") == []
    assert await t.inbox.acknowledge("w1", taken) == []
    await t.push("ada", 5)
    assert labs(await t.take("w2")) == [("ada", 5)]


@claim
async def the_two_queues_do_not_hold_each_other_up(t: InboxTrial) -> None:
    await t.push("ada", 1, 2)
    await t.push("ada", 1, 2, queue="decommission")
    taken = await t.take()
    assert sorted((one.queue, *labs([one])[0]) for one in taken) == [
        ("decommission", "ada", 1),
        ("provision", "ada", 1),
    ]
    following = await t.inbox.acknowledge("w1", [one for one in taken if one.queue == "decommission"])
    assert [(one.queue, *labs([one])[0]) for one in following] == [("decommission", "ada", 2)]


@claim
async def the_same_request_pushed_often_is_worked_as_often(t: InboxTrial) -> None:
    await t.push("ada", *[5] * 10)
    count, taken = 0, await t.take()
    while taken:
        assert labs(taken) == [("ada", 5)]
        count += 1
        taken = list(await t.inbox.acknowledge("w1", taken))
    assert count == 10


@claim
async def an_acknowledgement_that_is_repeated_does_nothing(t: InboxTrial) -> None:
    await t.push("ada", 5, 5, 5)
    first = await t.take()
    second = list(await t.inbox.acknowledge("w1", first))
    assert await t.inbox.acknowledge("w1", [*first, *first]) == []
    assert list(await t.inbox.held("w1")) == second
    assert await t.take("w2") == []
    assert len(await t.inbox.acknowledge("w1", second)) == 1


@claim
async def nobody_acknowledges_what_another_holds(t: InboxTrial) -> None:
    await t.push("ada", 1, 2)
    taken = await t.take()
    assert await t.other.acknowledge("w2", taken) == []
    assert list(await t.inbox.held("w1")) == taken
    assert await t.take("w2") == []


@claim
async def requests_of_nobody_are_not_held_up(t: InboxTrial) -> None:
    for round_ in range(2):
        await t.front_end.push("provision", *STRANGE)
        assert [one.raw for one in await t.take(f"w{round_}")] == list(STRANGE)


@claim
async def users_with_names_that_look_alike_are_different(t: InboxTrial) -> None:
    users = ["a", "A", "a ", " a", "a.", "ä", "a\u0308", "%61", "{a}", "a,b", 'a"b', "x" * 255]
    users += ["f:b2c:ada", "f:b2c", "a:b", "a/b", "a\\b", "a^b", "a^2Fb", "*", "?", "[a]", ".", "..", "東" * 255]
    for lab in (1, 2):
        for user in users:
            await t.push(user, lab)
    assert labs(taken := await t.take()) == [(user, 1) for user in users]
    assert labs(await t.inbox.acknowledge("w1", taken)) == [(user, 2) for user in users]


@claim
async def a_users_request_can_be_taken_out_of_its_turn(t: InboxTrial) -> None:
    await t.push("bob", 1, 2, queue="decommission")
    await t.push("f:x:ada", 1, 2, queue="decommission")
    assert await t.inbox.take_of("w1", "provision", "f:x:ada") is False
    assert await t.inbox.take_of("w1", "decommission", "f:x") is False
    first = await t.inbox.take_of("w1", "decommission", "f:x:ada")
    assert not isinstance(first, bool)
    assert (first.queue, labs([first])) == ("decommission", [("f:x:ada", 1)])
    assert list(await t.other.held("w1")) == [first]
    assert "w1" in await t.other.workers()
    for worker in ("w1", "w2"):  # the next one comes after it
        assert await t.other.take_of(worker, "decommission", "f:x:ada") is True
    assert labs(others := await t.take("w2")) == [("bob", 1)]
    following = list(await t.inbox.acknowledge("w1", [first]))
    assert labs(following) == [("f:x:ada", 2)]
    assert labs(await t.inbox.acknowledge("w2", others)) == [("bob", 2)]
    assert await t.inbox.release("w1", ()) == 1, "requests taken by take_of are released like all others"
    again = await t.other.take_of("w3", "decommission", "f:x:ada")
    assert not isinstance(again, bool)
    assert labs([again]) == [("f:x:ada", 2)]
    assert await t.other.acknowledge("w3", [again]) == []
    assert await t.other.take_of("w3", "decommission", "f:x:ada") is False


@claim
async def what_waits_behind_a_request_can_be_read_and_stays(t: InboxTrial) -> None:
    await t.push("f:x:ada", 1)
    (first,) = await t.take("w1")
    assert await t.inbox.behind("provision", "f:x:ada") == []
    await t.push("f:x:ada", 2)
    await t.push("f:x", 9)
    assert labs(await t.take("w2")) == [("f:x", 9)]  # now 2 is set aside
    await t.push("f:x:ada", 3, 4)

    async def behind() -> list[int]:
        raws = await t.other.behind("provision", "f:x:ada")
        return [lab for _, lab in labs([Taken("provision", "", raw) for raw in raws])]

    assert await behind() == [2, 3, 4]
    assert await t.other.behind("decommission", "f:x:ada") == []
    assert await t.other.behind("provision", "f:x") == []
    assert labs(await t.inbox.acknowledge("w1", [first])) == [("f:x:ada", 2)], "reading removed something"
    assert await behind() == [3, 4]
    await t.push("f:x:ada", *range(5, 30))
    assert await behind() == list(range(30 - BEHIND, 30))


@claim
async def a_crowd_of_requests_of_one_user_keeps_nobody_waiting(t: InboxTrial) -> None:
    await t.push("ada", *range(1, 5001))
    await t.push("bob", 1)
    taken = await t.take(limit=1)
    assert labs(taken) == [("ada", 1)]
    assert labs(await t.inbox.take("w2", limit=10, within=10)) == [("bob", 1)]
    for lab in range(2, 30):
        taken = list(await t.inbox.acknowledge("w1", taken))
        assert labs(taken) == [("ada", lab)]
    assert await t.inbox.release("w1", ()) == 1
    taken = await t.take("w3")
    assert labs(taken) == [("ada", 29)]
    assert labs(await t.inbox.acknowledge("w3", taken)) == [("ada", 30)]


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
