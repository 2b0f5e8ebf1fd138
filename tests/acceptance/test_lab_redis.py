"""The lab door on a Redis that is killed, flushed, suspended, demoted and cut off: nothing lost, nothing doubled."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from typing import TypeVar

import pytest
from dose import dose
from harness import pace
from harness.artefacts import safe

from hostler.errors import HostlerError, Unavailable, Uncertain
from hostler.model.lab import LabRequest
from hostler.ports.inbox import KEPT, LONGEST, QUEUES, Inbox, Taken
from hostler.testing.inbox.claim import request
from hostler.testing.inbox.drivers import RedisLabFrontEnd
from hostler.testing.inbox.records import change, server
from hostler.testing.proxy import FaultyProxy
from hostler.testing.servers import HOST
from hostler.testing.ttl_servers import RedisServer
from hostler.wiring import open_board, open_inbox

T = TypeVar("T")
SHORT = "0.8"
"""Seconds after which a call gives up, where it is meant to."""
WITHIN = 15.0
"""Seconds for what takes a moment; waits are longer where the machine is slow."""


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    """One for each test: it does not come out as it went in."""
    with RedisServer() as own:
        yield own


@pytest.fixture
async def door(redis: RedisServer) -> AsyncIterator[RedisLabFrontEnd]:
    """What the front end does, past every fault of the wire."""
    async with RedisLabFrontEnd(redis.url) as opened:
        yield opened
        redis.resume()
        await answering(opened)


async def answering(door: RedisLabFrontEnd) -> None:
    """Until the server takes commands again."""
    from redis.exceptions import RedisError

    while True:
        with suppress(RedisError, OSError):
            await door.client.ping()
            return
        await asyncio.sleep(0.02)


async def waits(door: RedisLabFrontEnd) -> None:
    """Until a client waits on the server: what it asked before that was answered."""
    async with asyncio.timeout(pace.patience(WITHIN)):
        while not (await door.client.info("clients"))["blocked_clients"]:
            await asyncio.sleep(0.01)


async def patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """What it answers once it does."""
    async with asyncio.timeout(pace.patience(WITHIN)):
        while True:
            with suppress(Unavailable):
                return await ask()
            await asyncio.sleep(0.02)


class Worker:
    """As the real one does: works each delivery once by its token, and asks what it holds when an answer was lost."""

    def __init__(self, inbox: Inbox, name: str = "w1") -> None:
        self.inbox, self.name = inbox, name
        self.worked: list[tuple[str, str, int]] = []
        self.tokens: set[str] = set()
        self.troubles: list[HostlerError] = []

    async def run(self, until: Callable[[], bool]) -> None:
        held: list[Taken] = []
        while not until():
            try:
                if not held:
                    held = list(await self.inbox.take(self.name, limit=16, within=0.05))
                for one in held:
                    self._work(one)
                held = list(await self.inbox.acknowledge(self.name, held))
            except (Unavailable, Uncertain) as error:
                self.troubles.append(error)
                held = await self._asked()

    async def _asked(self) -> list[Taken]:
        return list(await patiently(lambda: self.inbox.held(self.name)))

    def _work(self, one: Taken) -> None:
        if one.token not in self.tokens:  # the store knows the token of the last one that was worked
            self.tokens.add(one.token)
            asked = LabRequest.decode(one.raw)
            self.worked.append((one.queue, asked.webuserid, asked.lab_id))

    def of(self, queue: str, user: str) -> list[int]:
        return [lab for where, who, lab in self.worked if (where, who) == (queue, user)]


USERS, EACH = 5, 40


async def all_worked_through(door: RedisLabFrontEnd, url: str, disturb: Callable[[Worker], Awaitable[None]]) -> Worker:
    """Push, work and disturb at once; in the end each request was worked once, and each user's in order.

    The last requests are pushed once all is calm again.
    """
    async with open_inbox(url, names=door.names) as inbox:
        worker = Worker(inbox)
        working = asyncio.create_task(worker.run(lambda: len(worker.worked) >= len(QUEUES) * USERS * EACH))

        disturbing = asyncio.create_task(disturb(worker))

        async def push() -> None:
            for lab in range(1, EACH + 1):
                if lab == EACH:
                    await disturbing
                for queue in QUEUES:
                    for user in range(USERS):
                        await door.push(queue, request(f"u{user}", lab))
                await asyncio.sleep(0.01)

        async with asyncio.timeout(pace.patience(40)):
            await asyncio.gather(push(), disturbing, working)
        for queue in QUEUES:
            for user in range(USERS):
                worked = worker.of(queue, f"u{user}")
                safe(worked == list(range(1, EACH + 1)), f"u{user} in {queue}: {worked}", worked=worker.worked)
    async with door.inbox() as calm:  # with the usual deadline
        await calm.acknowledge(worker.name, await calm.held(worker.name))
        assert await calm.take("w2", limit=100, within=0) == []
    return worker


async def test_connections_that_are_cut_lose_and_double_nothing(redis: RedisServer, door: RedisLabFrontEnd) -> None:
    async with FaultyProxy(redis.endpoint) as proxy:
        rng = random.Random(7)

        async def disturb(worker: Worker) -> None:
            while sum(isinstance(trouble, Uncertain) for trouble in worker.troubles) < 5:
                proxy.cut_after = rng.randrange(1, 6000)  # a new connection alone is answered some 2,000 bytes
                while proxy.cut_after is not None:
                    await asyncio.sleep(0.001)
            proxy.heal()

        for _ in range(dose(test=1, full=6)):
            await all_worked_through(door, redis.url_of(proxy.endpoint), disturb)


async def test_a_server_that_stands_still_loses_and_doubles_nothing(redis: RedisServer, door: RedisLabFrontEnd) -> None:
    async def disturb(worker: Worker) -> None:
        while len(worker.troubles) < dose(test=2, full=6):
            await asyncio.sleep(0.1)
            redis.suspend()
            await asyncio.sleep(2 * float(SHORT))
            redis.resume()

    await all_worked_through(door, redis.url_of(redis.endpoint, timeout=SHORT), disturb)


@pytest.mark.parametrize("verb", ["take", "acknowledge"])
async def test_what_arrives_late_is_not_done(verb: str, redis: RedisServer, door: RedisLabFrontEnd) -> None:
    """What `held` says after a lost answer is the last word, even if the request is still on its way."""
    late = 2 * float(SHORT)
    async with (
        FaultyProxy(redis.endpoint) as proxy,
        open_inbox(redis.url_of(proxy.endpoint, timeout=SHORT), names=door.names) as inbox,
    ):
        await door.push("provision", request("ada", 1), request("ada", 2))
        await patiently(inbox.workers)  # it is connected
        taken = await inbox.take("w1", limit=1, within=0) if verb == "acknowledge" else []
        proxy.delay = late
        lost = inbox.take("w1", limit=1, within=0) if verb == "take" else inbox.acknowledge("w1", taken)
        with pytest.raises(Uncertain, match="no answer within 0.8 s; it may have been done"):
            await lost
        proxy.delay = 0.0
        assert await patiently(lambda: inbox.held("w1")) == taken
        await asyncio.sleep(late)
        assert await patiently(lambda: inbox.held("w1")) == taken


@pytest.mark.parametrize("verb", ["take", "acknowledge", "release"])
async def test_what_a_server_that_stood_still_finds_is_done_before_anything_else(
    verb: str, redis: RedisServer, door: RedisLabFrontEnd
) -> None:
    async with open_inbox(redis.url_of(redis.endpoint, timeout=SHORT), names=door.names) as inbox:
        await door.push("provision", request("ada", 1), request("ada", 2))
        await patiently(inbox.workers)  # it is connected
        taken = await inbox.take("w1", limit=1, within=0) if verb != "take" else []
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "take": lambda: inbox.take("w1", limit=1, within=0),
            "acknowledge": lambda: inbox.acknowledge("w1", taken),
            "release": lambda: inbox.release("w1", ()),
        }
        redis.suspend()
        with pytest.raises(Uncertain, match="no answer within 0.8 s; it may have been done"):
            await calls[verb]()
        with pytest.raises(Unavailable):
            await inbox.held("w1")
        redis.resume()
        held = await patiently(lambda: inbox.held("w1"))
        await door.client.ping()
        assert await patiently(lambda: inbox.held("w1")) == held
        await calls[verb]()
        taken = await inbox.held("w1") or await inbox.take("w1", limit=1, within=0)
        labs = [LabRequest.decode(one.raw).lab_id for one in taken]
        assert labs == ([2] if verb == "acknowledge" else [1])


async def test_a_server_that_is_killed_comes_back_with_what_it_acknowledged(
    redis: RedisServer, door: RedisLabFrontEnd
) -> None:
    async with open_inbox(redis.url, names=door.names) as inbox, open_board(redis.url, names=door.names) as board:
        worker = Worker(inbox)
        epoch = await board.epoch()
        for lab in range(1, 21):
            await door.push("provision", *(request(f"u{user}", lab) for user in range(USERS)))
        await board.publish([change("ada", 7, 5, 1)])
        working = asyncio.create_task(worker.run(lambda: len(worker.worked) >= 20 * USERS))
        await asyncio.sleep(0.02)
        await asyncio.to_thread(redis.kill)
        with pytest.raises(Unavailable, match="cannot connect|the connection broke"):
            await board.servers()
        redis.restart()
        async with asyncio.timeout(pace.patience(WITHIN)):
            await working
        for user in range(USERS):
            assert worker.of("provision", f"u{user}") == list(range(1, 21))
        assert await board.epoch() != epoch
        assert await board.servers() == {"ada": server("ada")}


async def test_a_restart_ends_a_wait_and_the_next_one_is_woken(redis: RedisServer, door: RedisLabFrontEnd) -> None:
    complaints: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, complaint: complaints.append(complaint))
    async with open_inbox(redis.url, names=door.names) as inbox:
        waiting = asyncio.create_task(inbox.take("w1", limit=1, within=60))
        await waits(door)  # a script that is cut off would be uncertain
        redis.restart()
        with pytest.raises(Unavailable):
            await asyncio.wait_for(waiting, pace.patience(WITHIN))
        waiting = asyncio.create_task(inbox.take("w1", limit=1, within=60))
        await answering(door)
        await waits(door)
        await door.push("decommission", request("ada", 1))
        assert len(await asyncio.wait_for(waiting, pace.patience(WITHIN))) == 1
    del waiting
    gc.collect()
    assert complaints == []


async def test_a_flush_in_the_middle_of_everything_harms_nobody(redis: RedisServer, door: RedisLabFrontEnd) -> None:
    async with open_inbox(redis.url, names=door.names) as inbox, open_board(redis.url, names=door.names) as board:
        epoch = await board.epoch()
        await door.push("provision", request("ada", 1), request("ada", 2))
        taken = await inbox.take("w1", limit=5, within=0)
        await board.publish([change("ada", 9, 5, 1, 2)])
        await door.client.flushall()
        await door.client.script_flush()
        assert await inbox.acknowledge("w1", taken) == []
        assert await inbox.release("w1", taken) == 0
        assert await board.epoch() != epoch
        assert await board.publish([change("ada", 9, 5, 1, 2)]) == 1
        assert await board.servers() == {"ada": server("ada")}
        waiting = asyncio.create_task(inbox.take("w1", limit=5, within=30))
        await asyncio.sleep(0.05)
        await door.client.flushall()
        await door.push("provision", request("ada", 3))
        assert [one.raw for one in await asyncio.wait_for(waiting, pace.patience(WITHIN))] == [request("ada", 3)]


async def test_a_publish_whose_answer_is_lost_can_be_repeated(redis: RedisServer, door: RedisLabFrontEnd) -> None:
    async with (
        FaultyProxy(redis.endpoint) as proxy,
        open_board(redis.url_of(proxy.endpoint), names=door.names) as board,
    ):
        changes = [change(f"u{n}", 5, 5, 1, 2, since=float(n)) for n in range(120)]
        await board.epoch()
        proxy.cut_after = 1
        with pytest.raises(Uncertain, match="publish of '50 users': the connection broke"):
            await board.publish(changes)
        assert await board.publish(changes) == 70
        assert await board.publish(changes) == 0
        assert await door.news("u0") == [(1, "started"), (2, "started")]


async def test_a_replica_takes_nothing_and_a_promoted_one_has_another_epoch(
    redis: RedisServer, door: RedisLabFrontEnd
) -> None:
    with RedisServer() as second:
        names = door.names
        async with (
            open_inbox(redis.url, names=names) as inbox,
            open_board(redis.url, names=names) as board,
            RedisLabFrontEnd(second.url) as far,
            open_inbox(second.url, names=names) as far_inbox,
            open_board(second.url, names=names) as far_board,
        ):
            far.names = names
            epoch = await board.epoch()
            await door.push("provision", request("ada", 1), request("ada", 2))
            (taken,) = await inbox.take("w1", limit=5, within=0)
            await board.publish([change("ada", 9)])
            await far.client.config_set("masterauth", "let me in")
            await door.client.config_set("repl-diskless-sync-delay", 0)  # else it waits 5 s for more replicas
            await far.client.replicaof(HOST, redis.ports[0])
            async with asyncio.timeout(pace.patience(WITHIN)):
                while (await far.client.info("replication"))["master_link_status"] != "up":
                    await asyncio.sleep(0.05)
            for call in (
                far_inbox.take("w2", limit=1, within=5),
                far_inbox.release("w1", ()),
                far_board.publish([change("bob", 1)]),
                far_board.epoch(),
            ):
                with pytest.raises(Unavailable, match="the server is a read-only replica; name the primary"):
                    await call
            await door.client.wait(1, 5000)
            await far.client.replicaof("NO", "ONE")
            assert await far_board.epoch() != epoch
            assert await far_inbox.held("w1") == [taken]
            (following,) = await far_inbox.acknowledge("w1", [taken])
            assert following.raw == request("ada", 2)

            waiting = asyncio.create_task(inbox.take("w1", limit=1, within=60))
            await asyncio.sleep(0.05)
            await door.client.replicaof(HOST, 1)
            with pytest.raises(Unavailable):
                await asyncio.wait_for(waiting, pace.patience(WITHIN))
            await door.client.replicaof("NO", "ONE")
            assert await board.epoch() != epoch, "it was a replica meanwhile, and may have lost what it had"


async def test_a_server_without_memory_lets_all_work_be_done(redis: RedisServer, door: RedisLabFrontEnd) -> None:
    """It may be the requests themselves that fill it."""
    async with open_inbox(redis.url, names=door.names) as inbox, open_board(redis.url, names=door.names) as board:
        for lab in (1, 2):
            await door.push("provision", *(request(user, lab) for user in ("ada", "bob", "cleo")), b"rubbish")
        await door.client.config_set("maxmemory", 1)
        with pytest.raises(Unavailable, match="out of memory"):
            await board.publish([change("ada", 1)])
        assert len(await inbox.take("w1", limit=5, within=0)) == 5
        assert await inbox.release("w1", ()) == 5
        *taken, first, second = await inbox.take("w2", limit=5, within=0)
        assert first.raw == second.raw == b"rubbish"
        for rubbish in (first, second):
            assert await inbox.bury("w2", rubbish, "it is no JSON", 1.0) == []
        following = await inbox.acknowledge("w2", taken)
        assert [one.raw for one in following] == [request(user, 2) for user in ("ada", "bob", "cleo")]
        assert await inbox.acknowledge("w2", following) == []
        await door.client.config_set("maxmemory", 0)
        assert await board.publish([change("ada", 1)]) == 1


async def test_a_request_of_many_megabytes_is_put_aside_without_being_sent_to_anybody(
    redis: RedisServer, door: RedisLabFrontEnd
) -> None:
    async with open_inbox(redis.url, names=door.names) as inbox:
        await door.push("provision", b"{" * (size := min(300, dose(test=16, full=300)) << 20), request("ada", 1))
        (taken,) = await inbox.take("w1", limit=5, within=10)
        assert taken.raw == request("ada", 1)
        assert await inbox.held("w1") == [taken]
        assert await door.client.memory_usage(door.names.dead) < LONGEST
        ((_, beginning, reason, _, _),) = await door.dead()
        assert (beginning, reason.split(":")[0]) == ("{" * KEPT, f"request of {size} bytes")
