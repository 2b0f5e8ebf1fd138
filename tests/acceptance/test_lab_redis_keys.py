"""The lab door on Redis: its keys, its rights, and what is not quite a Redis."""

from __future__ import annotations

import asyncio
import json
import random
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress

import pytest
from harness import pace
from running import ttl_server

from hostler.drivers.inbox.memory import ordered_user
from hostler.drivers.inbox.redis.inbox import STEPS
from hostler.drivers.inbox.redis.scripts import WHOSE
from hostler.errors import Closed, Forbidden, Invalid, Refused, Unavailable
from hostler.keys.lab import LAB, LabNames
from hostler.testing.inbox.claim import request
from hostler.testing.inbox.drivers import RedisLabFrontEnd
from hostler.testing.inbox.queues import STRANGE
from hostler.testing.inbox.records import change, server
from hostler.testing.servers import HOST
from hostler.wiring import open_board, open_inbox


@pytest.fixture
async def calm() -> AsyncIterator[RedisLabFrontEnd]:
    """A door on the server that all tests share."""
    async with RedisLabFrontEnd(ttl_server("redis").url) as opened:
        yield opened


async def test_strange_requests_make_no_strange_keys(calm: RedisLabFrontEnd) -> None:
    strange = [b'{"webuserid":"%s","labId":1}' % user for user in (b"", b"\\u0007", b"\\u2028", b"x" * 256)]
    async with calm.inbox() as inbox:
        await calm.push("provision", *strange, *strange)
        taken = await inbox.take("w1", limit=50, within=0)
        assert [one.raw for one in taken] == [*strange, *strange]
        keys = {key.decode().removeprefix(calm.names.prefix) for key in await calm.client.keys(f"{calm.names.prefix}*")}
        assert keys == {"vmmanager:workers", "vmmanager:processing:provision:w1"}
        await inbox.acknowledge("w1", taken)
        await inbox.release("w1", ())
        assert await calm.client.keys(f"{calm.names.prefix}*") == []


ODD = (
    "a",
    "Z",
    "0",
    " ",
    ".",
    ":",
    "*",
    "/",
    "\\",
    "^",
    "[",
    "]",
    "?",
    "\0",
    "\x1f",
    "\x7f",
    "\x80",
    "\x9f",
    "\xa0",
    "ä",
)
ODDER = ("\u2027", "\u2028", "\u2029", "\u202a", "\ud7ff", "\ue000", "\uffff", "東", "😀", '"', "{", "%", "x" * 100)


def odd_requests(rng: random.Random) -> Iterator[bytes]:
    for _ in range(3000):
        user = "".join(rng.choices(ODD + ODDER, k=rng.randint(0, 4)))
        fields: list[tuple[str, object]] = [("webuserid", user), ("labId", rng.choice((1, 2.5, None, 1e300, "1")))]
        fields += [
            (rng.choice(("more", "webuserid", "WebUserId")), rng.choice((user + "b", 1, None, [1, {"webuserid": "x"}])))
        ]
        rng.shuffle(fields)
        pairs = (f"{json.dumps(name)}:{json.dumps(value, ensure_ascii=rng.random() < 0.5)}" for name, value in fields)
        raw = ("{" + rng.choice((",", " ,\n")).join(pairs) + "}").encode()
        if rng.random() < 0.2:
            at = rng.randrange(len(raw))
            raw = raw[:at] + bytes([rng.randrange(256)]) + raw[at + rng.randint(0, 1) :]
        yield raw


async def test_the_server_sees_the_users_that_the_worker_sees(calm: RedisLabFrontEnd) -> None:
    """Else a request would be worked out of its turn."""
    requests = [*odd_requests(random.Random(7)), *STRANGE]
    script = WHOSE + "local out = {} for at = 1, #ARGV do out[at] = user_of(ARGV[at]) or '' end return out"
    seen = await calm.client.eval(script, 0, *requests)
    users = 0
    for raw, user in zip(requests, seen, strict=True):
        expected = ordered_user(raw)
        if expected is not None:
            users += 1
            assert user == expected.encode(), raw
        elif user:  # what only the server can read is ordered, too, and buried in its turn
            assert LAB.fill(user=user.decode(errors="replace")), raw
    assert 300 < users < len(requests) - 300


async def test_nothing_is_left_once_all_is_worked(calm: RedisLabFrontEnd) -> None:
    async with calm.inbox() as inbox:
        for lab in (1, 2, 3):
            await calm.push("provision", *(request(f"u{n}", lab) for n in range(20)))
        taken = await inbox.take("w1", limit=100, within=0)
        while taken:
            taken = await inbox.acknowledge("w1", taken)
        assert await calm.client.keys(f"{calm.names.prefix}*") == [calm.names.workers.encode()]


async def test_the_server_looks_at_a_bounded_number_of_requests_in_one_go(calm: RedisLabFrontEnd) -> None:
    async with calm.inbox() as inbox:
        await calm.push("provision", *(request("ada", lab) for lab in range(1, 5001)))
        assert len(await inbox.take("w1", limit=10, within=0)) == 1
        assert await calm.client.llen(calm.names.provision) == 5000 - 10 - STEPS


async def test_a_list_that_somebody_removed_holds_no_user_up_for_ever(calm: RedisLabFrontEnd) -> None:
    async with calm.inbox() as inbox:
        await calm.push("provision", request("ada", 1), request("ada", 2))
        await inbox.take("w1", limit=5, within=0)
        await calm.client.delete(calm.names.processing("provision", "w1"))
        await calm.push("provision", request("ada", 3))
        taken = await inbox.take("w2", limit=5, within=0)
        assert [one.raw for one in taken] == [request("ada", 2)]
        assert [one.raw for one in await inbox.acknowledge("w2", taken)] == [request("ada", 3)]


async def test_keys_that_hold_something_else_lose_no_request(calm: RedisLabFrontEnd) -> None:
    names = calm.names
    async with calm.inbox() as inbox:
        await calm.push("provision", request("ada", 1), request("ada", 2))
        for key in (names.workers, names.busy("provision"), names.processing("provision", "w1"), names.decommission):
            await calm.client.set(key, "something else")
            with pytest.raises(Invalid, match="a key that begins with vmmanager: holds a value of the wrong type"):
                await inbox.take("w1", limit=5, within=0)
            await calm.client.delete(key)
            assert await calm.client.llen(names.provision) == 2, key
        await inbox.take("w1", limit=1, within=0)
        await calm.client.set(names.next("provision") + "ada", "something else")
        assert await inbox.take("w1", limit=5, within=0) == []
        assert await calm.client.lrange(names.next("provision") + "ada", 0, -1) == [request("ada", 2)]


async def test_records_are_as_the_contract_says_and_live_for_a_day(calm: RedisLabFrontEnd) -> None:
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


async def test_what_is_in_the_way_of_a_record_is_removed_and_what_cannot_be_read_is_told(
    calm: RedisLabFrontEnd,
) -> None:
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
        await calm.client.set(f"{names.prefix}vmmanager:servers:a\nb", "of nobody")
        assert await board.servers() == {"ada": server("ada"), "bob": None}
        assert await board.withdraw("bob", 3) is True


async def test_a_stream_that_a_front_end_emptied_or_wrote_into_is_in_nobodys_way(calm: RedisLabFrontEnd) -> None:
    events, client = calm.names.events, calm.client
    users = ("ada", "bob", "cleo", "dan")
    async with calm.board() as board:
        await board.publish([change(user, 9, 5, 1, 2) for user in users])
        await client.xtrim(events("ada"), maxlen=0, approximate=False)
        await client.xdel(events("bob"), "1-0", "2-0")
        await client.xadd(events("cleo"), {"event": "mine"})
        await board.publish([change(user, 10, 7, 1, 2, 3) for user in users])
        assert await board.servers() == {user: server(user, 7) for user in users}
        assert [await calm.news(user) for user in ("ada", "bob")] == [[(3, "started")]] * 2
        assert [event for _, event in await calm.news("cleo")] == ["started", "started", "mine"]
        shown = await board.shown()
        assert (shown["ada"].news, shown["dan"].news) == (3, 3)
        assert shown["cleo"].news > 10**12, "who leads next could not see that it is in the way"


@pytest.mark.parametrize(
    ("change_url", "kind", "says"),
    [
        (lambda url: url.replace("let+me+in", "guessed"), Forbidden, "wrong user or password"),
        (lambda url: url.replace("password=let+me+in", "timeout=5"), Forbidden, "requires a password"),
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
        with pytest.raises(Refused, match="the peer is not a Redis server"):
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


async def test_closing_wakes_who_waits(calm: RedisLabFrontEnd) -> None:
    inbox = calm.inbox()
    await inbox.__aenter__()
    waiting = asyncio.create_task(inbox.take("w1", limit=1, within=60))
    async with asyncio.timeout(pace.patience(15)):  # closed during the script before that, it would be uncertain
        while not (await calm.client.info("clients"))["blocked_clients"]:
            await asyncio.sleep(0.01)
    await inbox.__aexit__(None, None, None)
    with pytest.raises(Closed):
        await asyncio.wait_for(waiting, 30)


async def test_a_user_who_may_not_ask_for_connections_is_served_all_the_same(calm: RedisLabFrontEnd) -> None:
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
        async with open_inbox(url, names=calm.names) as inbox, open_board(url, names=calm.names) as board:
            await calm.push("provision", request("ada", 1))
            assert len(await inbox.take("w1", limit=1, within=30)) == 1
            assert await board.epoch() == await board.epoch()
            await calm.flush()
        async with open_inbox(url, names=LabNames("other:")) as inbox:
            with pytest.raises(Forbidden, match="no permission"):
                await inbox.take("w1", limit=1, within=0)
    finally:
        await calm.client.execute_command("ACL", "DELUSER", "worker")
