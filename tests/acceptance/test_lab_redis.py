"""The lab door on a Redis that is killed, flushed, suspended, demoted and cut off: nothing lost, nothing doubled."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress

import pytest
from running import ttl_server

from hostler.drivers.inbox.redis.inbox import STEPS
from hostler.errors import Closed, Forbidden, HostlerError, Invalid, Refused, Unavailable, Uncertain
from hostler.keys.lab import LabNames
from hostler.model.lab import LabRequest
from hostler.ports.inbox import QUEUES, Board, Inbox, Taken
from hostler.testing.inbox.doors import RedisLabDoor
from hostler.testing.inbox.records import change, server
from hostler.testing.proxy import FaultyProxy
from hostler.testing.servers import HOST
from hostler.testing.ttl_servers import RedisServer
from hostler.wiring import open_board, open_inbox

SHORT = "0.3"
"""Seconds after which a call gives up, where it is meant to."""


def request(user: str, lab: int) -> bytes:
    return LabRequest(webuserid=user, lab_id=lab).encode()


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    """One for each test: it does not come out as it went in."""
    with RedisServer() as own:
        yield own


@pytest.fixture
async def door(redis: RedisServer) -> AsyncIterator[RedisLabDoor]:
    """What the front end does, past every fault of the wire."""
    async with RedisLabDoor(redis.url) as opened:
        yield opened
        redis.resume()
        await answering(opened)


async def answering(door: RedisLabDoor) -> None:
    """Until the server takes commands again."""
    from redis.exceptions import RedisError

    while True:
        with suppress(RedisError, OSError):
            await door.client.ping()
            return
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
        while True:
            with suppress(Unavailable):
                return list(await self.inbox.held(self.name))
            await asyncio.sleep(0.02)

    def _work(self, one: Taken) -> None:
        if one.token not in self.tokens:  # the store knows the token of the last one that was worked
            self.tokens.add(one.token)
            asked = LabRequest.decode(one.raw)
            self.worked.append((one.queue, asked.webuserid, asked.lab_id))

    def of(self, queue: str, user: str) -> list[int]:
        return [lab for where, who, lab in self.worked if (where, who) == (queue, user)]


USERS, EACH = 5, 40


async def all_worked_through(door: RedisLabDoor, url: str, disturb: Callable[[], Awaitable[None]]) -> Worker:
    """Push, work and disturb at once; in the end each request was worked once, and each user's in order."""
    async with open_inbox(url, names=door.names) as inbox:
        worker = Worker(inbox)
        working = asyncio.create_task(worker.run(lambda: len(worker.worked) >= len(QUEUES) * USERS * EACH))

        async def push() -> None:
            for lab in range(1, EACH + 1):
                for queue in QUEUES:
                    for user in range(USERS):
                        await door.push(queue, request(f"u{user}", lab))
                await asyncio.sleep(0.01)

        async with asyncio.timeout(60):
            await asyncio.gather(push(), disturb(), working)
        for queue in QUEUES:
            for user in range(USERS):
                assert worker.of(queue, f"u{user}") == list(range(1, EACH + 1))
        await inbox.acknowledge(worker.name, await inbox.held(worker.name))
        assert await inbox.take("w2", limit=100, within=0) == []
    return worker


async def test_connections_that_are_cut_lose_and_double_nothing(redis: RedisServer, door: RedisLabDoor) -> None:
    async with FaultyProxy(redis.endpoint) as proxy:

        async def disturb() -> None:
            for after in range(1, 400, 23):
                proxy.cut_after = after  # in the middle of whatever is answered then
                await asyncio.sleep(0.03)
            proxy.heal()

        worker = await all_worked_through(door, redis.url_of(proxy.endpoint), disturb)
    assert any(isinstance(trouble, Uncertain) for trouble in worker.troubles)


async def test_a_server_that_stands_still_loses_and_doubles_nothing(redis: RedisServer, door: RedisLabDoor) -> None:
    async def disturb() -> None:
        for _ in range(4):
            await asyncio.sleep(0.1)
            redis.suspend()
            await asyncio.sleep(2 * float(SHORT))
            redis.resume()

    worker = await all_worked_through(door, redis.url_of(redis.endpoint, timeout=SHORT), disturb)
    assert worker.troubles


@pytest.mark.parametrize("verb", ["take", "acknowledge"])
async def test_what_arrives_late_is_not_done(verb: str, redis: RedisServer, door: RedisLabDoor) -> None:
    """What `held` says after a lost answer is the last word, even if the request is still on its way."""
    late = 2 * float(SHORT)
    async with (
        FaultyProxy(redis.endpoint) as proxy,
        open_inbox(redis.url_of(proxy.endpoint, timeout=SHORT), names=door.names) as inbox,
    ):
        await door.push("provision", request("ada", 1), request("ada", 2))
        await inbox.workers()  # it is connected
        taken = await inbox.take("w1", limit=1, within=0) if verb == "acknowledge" else []
        proxy.delay = late
        lost = inbox.take("w1", limit=1, within=0) if verb == "take" else inbox.acknowledge("w1", taken)
        with pytest.raises(Uncertain, match="no answer within 0.3 s; it may have been done"):
            await lost
        proxy.delay = 0.0
        assert await inbox.held("w1") == taken
        await asyncio.sleep(late)
        assert await inbox.held("w1") == taken


@pytest.mark.parametrize("verb", ["take", "acknowledge", "release"])
async def test_what_a_server_that_stood_still_finds_is_done_before_anything_else(
    verb: str, redis: RedisServer, door: RedisLabDoor
) -> None:
    async with open_inbox(redis.url_of(redis.endpoint, timeout=SHORT), names=door.names) as inbox:
        await door.push("provision", request("ada", 1), request("ada", 2))
        await inbox.workers()  # it is connected
        taken = await inbox.take("w1", limit=1, within=0) if verb != "take" else []
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "take": lambda: inbox.take("w1", limit=1, within=0),
            "acknowledge": lambda: inbox.acknowledge("w1", taken),
            "release": lambda: inbox.release("w1", ()),
        }
        redis.suspend()
        with pytest.raises(Uncertain, match="no answer within 0.3 s; it may have been done"):
            await calls[verb]()
        with pytest.raises(Unavailable):
            await inbox.held("w1")
        redis.resume()
        held = await inbox.held("w1")
        await door.client.ping()
        assert await inbox.held("w1") == held
        await calls[verb]()
        taken = await inbox.held("w1") or await inbox.take("w1", limit=1, within=0)
        labs = [LabRequest.decode(one.raw).lab_id for one in taken]
        assert labs == ([2] if verb == "acknowledge" else [1])


async def test_a_server_that_is_killed_comes_back_with_what_it_acknowledged(
    redis: RedisServer, door: RedisLabDoor
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
        async with asyncio.timeout(30):
            await working
        for user in range(USERS):
            assert worker.of("provision", f"u{user}") == list(range(1, 21))
        assert await board.epoch() != epoch
        assert await board.servers() == {"ada": server("ada")}


async def test_a_restart_ends_a_wait_and_the_next_one_is_woken(redis: RedisServer, door: RedisLabDoor) -> None:
    async with open_inbox(redis.url, names=door.names) as inbox:
        waiting = asyncio.create_task(inbox.take("w1", limit=1, within=60))
        await asyncio.sleep(0.1)
        redis.restart()
        with pytest.raises(Unavailable):
            await asyncio.wait_for(waiting, 10)
        waiting = asyncio.create_task(inbox.take("w1", limit=1, within=60))
        await asyncio.sleep(0.1)
        await answering(door)
        await door.push("decommission", request("ada", 1))
        assert len(await asyncio.wait_for(waiting, 10)) == 1


async def test_a_flush_in_the_middle_of_everything_harms_nobody(redis: RedisServer, door: RedisLabDoor) -> None:
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
        assert [one.raw for one in await asyncio.wait_for(waiting, 10)] == [request("ada", 3)]


async def test_a_publish_whose_answer_is_lost_can_be_repeated(redis: RedisServer, door: RedisLabDoor) -> None:
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
    redis: RedisServer, door: RedisLabDoor
) -> None:
    with RedisServer() as second:
        names = door.names
        async with (
            open_inbox(redis.url, names=names) as inbox,
            open_board(redis.url, names=names) as board,
            RedisLabDoor(second.url) as far,
            open_inbox(second.url, names=names) as far_inbox,
            open_board(second.url, names=names) as far_board,
        ):
            far.names = names
            epoch = await board.epoch()
            await door.push("provision", request("ada", 1), request("ada", 2))
            (taken,) = await inbox.take("w1", limit=5, within=0)
            await board.publish([change("ada", 9)])
            await far.client.config_set("masterauth", "let me in")
            await far.client.replicaof(HOST, redis.ports[0])
            async with asyncio.timeout(30):
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
                await asyncio.wait_for(waiting, 10)
            await door.client.replicaof("NO", "ONE")
            assert await board.epoch() != epoch, "it was a replica meanwhile, and may have lost what it had"


async def test_a_server_without_memory_hands_out_nothing_but_lets_work_be_finished(
    redis: RedisServer, door: RedisLabDoor
) -> None:
    async with open_inbox(redis.url, names=door.names) as inbox, open_board(redis.url, names=door.names) as board:
        await door.push("provision", request("ada", 1), request("ada", 2), request("bob", 1))
        ada, bob = await inbox.take("w1", limit=5, within=0)
        await door.push("provision", request("carl", 1))
        await door.client.config_set("maxmemory", 1)
        with pytest.raises(Unavailable, match="out of memory"):
            await inbox.take("w2", limit=5, within=0)
        with pytest.raises(Unavailable, match="out of memory"):
            await board.publish([change("ada", 1)])
        (following,) = await inbox.acknowledge("w1", [ada, bob])
        assert following.raw == request("ada", 2)
        await door.client.config_set("maxmemory", 0)
        assert [one.raw for one in await inbox.take("w2", limit=5, within=0)] == [request("carl", 1)]


@pytest.fixture
async def calm() -> AsyncIterator[RedisLabDoor]:
    """A door on the server that all tests share."""
    async with RedisLabDoor(ttl_server("redis").url) as opened:
        yield opened


async def test_strange_requests_make_no_strange_keys(calm: RedisLabDoor) -> None:
    strange = [b'{"webuserid":"%s","labId":1}' % user for user in (b"a:b", b"*", b"a/b", b"\\u0007", b"[x]", b"..")]
    async with calm.inbox() as inbox:
        await calm.push("provision", *strange, *strange)
        taken = await inbox.take("w1", limit=50, within=0)
        assert [one.raw for one in taken] == [*strange, *strange]
        keys = {key.decode().removeprefix(calm.names.prefix) for key in await calm.client.keys(f"{calm.names.prefix}*")}
        assert keys == {"vmmanager:workers", "vmmanager:processing:provision:w1"}
        await inbox.acknowledge("w1", taken)
        await inbox.release("w1", ())
        assert await calm.client.keys(f"{calm.names.prefix}*") == []


async def test_nothing_is_left_once_all_is_worked(calm: RedisLabDoor) -> None:
    async with calm.inbox() as inbox:
        for lab in (1, 2, 3):
            await calm.push("provision", *(request(f"u{n}", lab) for n in range(20)))
        taken = await inbox.take("w1", limit=100, within=0)
        while taken:
            taken = await inbox.acknowledge("w1", taken)
        assert await calm.client.keys(f"{calm.names.prefix}*") == [calm.names.workers.encode()]


async def test_the_server_looks_at_a_bounded_number_of_requests_in_one_go(calm: RedisLabDoor) -> None:
    async with calm.inbox() as inbox:
        await calm.push("provision", *(request("ada", lab) for lab in range(1, 5001)))
        assert len(await inbox.take("w1", limit=10, within=0)) == 1
        assert await calm.client.llen(calm.names.provision) == 5000 - 10 - STEPS


async def test_a_list_that_somebody_removed_holds_no_user_up_for_ever(calm: RedisLabDoor) -> None:
    async with calm.inbox() as inbox:
        await calm.push("provision", request("ada", 1), request("ada", 2))
        await inbox.take("w1", limit=5, within=0)
        await calm.client.delete(calm.names.processing("provision", "w1"))
        await calm.push("provision", request("ada", 3))
        taken = await inbox.take("w2", limit=5, within=0)
        assert [one.raw for one in taken] == [request("ada", 2)]
        assert [one.raw for one in await inbox.acknowledge("w2", taken)] == [request("ada", 3)]


async def test_keys_that_hold_something_else_lose_no_request(calm: RedisLabDoor) -> None:
    names = calm.names
    async with calm.inbox() as inbox:
        await calm.push("provision", request("ada", 1), request("ada", 2))
        for key in (names.workers, names.busy("provision"), names.processing("provision", "w1"), names.decommission):
            await calm.client.set(key, "something else")
            with pytest.raises(Invalid, match="a key that begins with vmmanager: holds something else than it should"):
                await inbox.take("w1", limit=5, within=0)
            await calm.client.delete(key)
            assert await calm.client.llen(names.provision) == 2, key
        await inbox.take("w1", limit=1, within=0)
        await calm.client.set(names.next("provision") + "ada", "something else")
        assert await inbox.take("w1", limit=5, within=0) == []
        assert await calm.client.lrange(names.next("provision") + "ada", 0, -1) == [request("ada", 2)]


async def test_records_are_as_the_contract_says_and_live_for_a_day(calm: RedisLabDoor) -> None:
    names = calm.names
    async with calm.board() as board:
        await board.publish([change("ada", 9, 5, 1, since=12.5)])
        assert await calm.client.get(names.server("ada")) == (
            b'{"user":"student","address":"fd00::1","status":"running","available":true,"cloudStatus":"running",'
            b'"serverId":"machine-1","expiresAt":"2026-01-02T03:04:05Z","webUserId":"ada","labId":5}'
        )
        assert await calm.client.xrange(names.events("ada")) == [
            (b"1-0", {b"event": b"started", b"at": b"2017-07-14T02:40:01Z", b"labId": b"5", b"reason": b"a b"})
        ]
        day = 24 * 3600
        for key, life in (
            (names.server("ada"), day),
            (names.events("ada"), day),
            (names.generation("ada"), day + 3600),
            (names.waiting, day + 3600),
        ):
            assert life - 60 < await calm.client.ttl(key) <= life, key
            await calm.client.expire(key, 100)
        assert await board.publish([change("ada", 9, 5, 1, since=12.5)]) == 0
        assert await calm.client.ttl(names.server("ada")) <= 100, "repeating it wrote something"
        assert await board.refresh(["ada"]) == []
        assert await calm.client.ttl(names.server("ada")) > day - 60
        await calm.client.expire(names.server("ada"), 100)
        assert await board.publish([change("ada", 10, 5, 1, since=12.5)]) == 0
        assert await calm.client.ttl(names.server("ada")) > day - 60


async def test_what_is_in_the_way_of_a_record_is_removed_and_what_cannot_be_read_is_told(calm: RedisLabDoor) -> None:
    names = calm.names
    async with calm.board() as board:
        for key in (names.server("ada"), names.generation("ada"), names.events("ada"), names.waiting, names.epoch):
            await calm.client.lpush(key, "something else")
        assert await board.servers() == {"ada": None}
        await board.epoch()
        assert await board.publish([change("ada", 9, 5, 1, since=1.0)]) == 1
        assert await board.servers() == {"ada": server("ada")}
        await calm.client.delete(names.server("ada"))
        assert await board.publish([change("ada", 9, 5, 1, since=1.0)]) == 1, "what was evicted is not restored"
        await calm.client.set(names.server("bob"), "rubbish")
        await calm.client.set(f"{names.prefix}vmmanager:servers:a:b", "of nobody")
        assert await board.servers() == {"ada": server("ada"), "bob": None}
        assert await board.withdraw("bob", 3) is True


@pytest.mark.parametrize(
    ("change_url", "kind", "says"),
    [
        (lambda url: url.replace("let+me+in", "guessed"), Forbidden, "wrong user or password"),
        (lambda url: url.replace("password=let+me+in", "timeout=5"), Forbidden, "wants a password"),
        (lambda url: url.replace("/0?", "/99?"), Refused, "DB index is out of range"),
    ],
)
async def test_who_is_not_let_in_is_told_why(
    change_url: Callable[[str], str], kind: type[Exception], says: str
) -> None:
    url = change_url(ttl_server("redis").url)
    async with open_inbox(url, names=LabNames("Test:none:")) as inbox, open_board(url) as board:
        with pytest.raises(kind, match=says) as caught:
            await inbox.take("w1", limit=1, within=5)
        assert "guessed" not in str(caught.value)
        with pytest.raises(kind, match=says):
            await board.servers()


@asynccontextmanager
async def strange_server() -> AsyncIterator[str]:
    """What answers every line as a web server would."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            await reader.read(10)
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            await writer.drain()
        writer.close()

    listening = await asyncio.start_server(serve, HOST, 0)
    async with listening:
        yield f"redis://{HOST}:{listening.sockets[0].getsockname()[1]}/0?timeout=3"


async def test_what_is_no_redis_is_said_to_be_none() -> None:
    async with strange_server() as url, open_inbox(url) as inbox:
        with pytest.raises(Refused, match="what answers there is no Redis server"):
            await inbox.take("w1", limit=1, within=1)


async def test_where_nobody_listens_nothing_is_done() -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        url = f"redis://{HOST}:{taken.getsockname()[1]}"
        async with open_inbox(url) as inbox, open_board(url) as board:
            with pytest.raises(Unavailable, match="cannot connect .*; nothing was written, try later"):
                await inbox.take("w1", limit=1, within=30)
            with pytest.raises(Unavailable, match="cannot connect"):
                await board.epoch()


async def test_closing_wakes_who_waits(calm: RedisLabDoor) -> None:
    inbox = calm.inbox()
    await inbox.__aenter__()
    waiting = asyncio.create_task(inbox.take("w1", limit=1, within=60))
    await asyncio.sleep(0.1)
    await inbox.__aexit__(None, None, None)
    with pytest.raises(Closed):
        await asyncio.wait_for(waiting, 5)


async def test_a_user_who_may_not_ask_for_connections_is_served_all_the_same(calm: RedisLabDoor) -> None:
    url = ttl_server("redis").url_of(ttl_server("redis").endpoint, user="worker", password="pw")
    await calm.client.execute_command(
        *(
            "ACL",
            "SETUSER",
            "worker",
            "on",
            ">pw",
            f"~{calm.names.prefix}vmmanager:*",
            "+@all",
            "-@dangerous",
        )
    )
    try:
        inbox: Inbox
        board: Board
        async with open_inbox(url, names=calm.names) as inbox, open_board(url, names=calm.names) as board:
            await calm.push("provision", request("ada", 1))
            assert len(await inbox.take("w1", limit=1, within=1)) == 1
            assert await board.epoch() == await board.epoch()
            await calm.flush()
        async with open_inbox(url, names=LabNames("other:")) as inbox:
            with pytest.raises(Forbidden, match="no right"):
                await inbox.take("w1", limit=1, within=0)
    finally:
        await calm.client.execute_command("ACL", "DELUSER", "worker")
