"""Labs through Redis with real processes: `up` with simulated machines, workers alone, a Redis that is not there."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from redis.asyncio import Redis
from up_process import HostlerProcess, hostler

import hostler as library
from hostler.keys.lab import LAB
from hostler.model.lab import LabEvent
from hostler.testing.servers import EtcdServer
from hostler.testing.ttl_servers import PASSWORD, RedisServer

FIELDS = ["user", "address", "status", "available", "cloudStatus", "serverId", "expiresAt", "webUserId", "labId"]
TOML = """
[default]
life = "10m"
[labs.5]
title = "Files"
at_once = 1
[labs.6]
user = "root"
"""


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
async def redis(server: RedisServer) -> AsyncIterator[Any]:
    async with Redis(host="127.0.0.1", port=server.ports[0], password=PASSWORD, decode_responses=True) as redis:
        await redis.flushall()
        yield redis


async def found(look: Callable[[], Awaitable[Any]], what: str, within: float = 90.0) -> Any:
    """What it finds, once it does."""
    async with asyncio.timeout(within):
        while not (value := await look()):
            await asyncio.sleep(0.02)
    assert value, what
    return value


def request(user: str, lab_id: int | None = None) -> str:
    return json.dumps({"webuserid": user} | ({} if lab_id is None else {"labId": lab_id}))


async def record(redis: Any, user: str) -> dict[str, Any] | None:
    text = await redis.get(f"vmmanager:servers:{user}")
    return None if text is None else json.loads(text)


async def available(redis: Any, user: str) -> dict[str, Any] | None:
    seen = await record(redis, user)
    return seen if seen is not None and seen["available"] else None


async def heard(redis: Any, user: str, event: str, reason: str) -> bool:
    told = [fields for _, fields in await redis.xrange(f"vmmanager:events:{user}")]
    return any((fields["event"], fields.get("reason")) == (event, reason) for fields in told)


async def has_heard(redis: Any, user: str, events: set[str]) -> bool:
    return events <= {fields["event"] for _, fields in await redis.xrange(f"vmmanager:events:{user}")}


class Up:
    """One `hostler up`, and the command line beside it."""

    def __init__(self, folder: Path, redis: str, *arguments: object, **environ: str) -> None:
        self.data = folder / "data"
        self.process = HostlerProcess(
            *("up", "--data", self.data, "--listen", "127.0.0.1:0"),
            *arguments,
            folder=folder,
            environ={"HOSTLER_REDIS": redis, **environ},
        )

    async def run(self, *arguments: object) -> Any:
        """What a command shows."""
        done = await hostler(*arguments, "-o", "json", "--data", self.data)
        assert done.code == 0, done
        return done.json

    async def end(self) -> None:
        self.process.signal(signal.SIGTERM)
        assert await self.process.ends() == 0, self.process.tail()


async def test_up_takes_labs_from_redis_and_shows_them_there(tmp_path: Path, server: RedisServer, redis: Any) -> None:
    (tmp_path / "labs.toml").write_text(TOML)
    up = Up(tmp_path, server.url, "--labs", tmp_path / "labs.toml")
    try:
        await up.process.url()
        assert "labs from redis" in up.process.text
        assert PASSWORD not in up.process.text
        await redis.rpush("vmmanager:provision", request("ada", 5), "no json", request("ada", 9), request("bob", 5))
        ada = await found(lambda: available(redis, "ada"), "ada's lab")
        assert list(ada) == FIELDS
        assert (ada["status"], ada["labId"], ada["webUserId"], ada["user"]) == ("running", 5, "ada", "student")
        await found(lambda: redis.zscore("vmmanager:waiting", "bob"), "bob waits")
        assert await redis.zrank("vmmanager:waiting", "bob") == 0
        dead = json.loads(await found(lambda: redis.lindex("vmmanager:dead", 0), "what is no request"))
        assert dead["request"] == "no json"
        await found(lambda: has_heard(redis, "ada", {"requested", "refused", "available"}), "what ada was told")

        shown = {view["user"]: view for view in await up.run("lab", "list")}
        assert (shown["ada"]["title"], shown["ada"]["available"]) == ("Files", True)
        assert (shown["bob"]["phase"], shown["bob"]["position"]) == ("waiting", 1)
        offers = {offer["labId"]: offer for offer in (await up.run("lab", "catalogue"))["items"]}
        assert (offers[5]["running"], offers[5]["waiting"], offers[6]["running"]) == (1, 1, 0)
        before = shown["ada"]["expires_at"]
        extended = await up.run("lab", "extend", "ada", "1h")
        assert extended["lab"]["expires_at"] == pytest.approx(before + 3600)
        assert (await up.run("lab", "message", "ada", "Save it"))["news"]["reason"] == "Save it"
        await found(lambda: heard(redis, "ada", "message", "Save it"), "what ada is told")
        refused = await hostler("lab", "start", "ada", 6, "--data", up.data)
        assert refused.code == 4
        assert refused.err.splitlines() == ["hostler: lab of ada: lab 5 is active", "  next: stop it first"]

        await redis.rpush("vmmanager:decommission", request("ada", 5))
        await found(lambda: available(redis, "bob"), "bob's turn")
        assert await record(redis, "ada") is None
        started = await up.run("lab", "start", "ada", 6, "--wait")
        assert (started["lab"]["available"], started["lab"]["ssh_user"]) == (True, "root")
        assert (await up.run("lab", "show", "ada"))["vm"] == (
            await up.run("vm", "list", "--org", "labs", "--project", "ada")
        )[0]["id"]
        assert (await up.run("lab", "stop", "ada", "--wait"))["lab"] is None
        assert [news["event"] for news in await up.run("lab", "events", "ada", "--count", 2)] == ["stopping", "stopped"]
        assert await up.run("vm", "list", "--org", "labs", "--project", "ada") == []
        await redis.flushall()
        await found(lambda: available(redis, "bob"), "bob's record again")
        await up.end()
    finally:
        up.process.kill()


async def test_a_test_namespace_leaves_the_real_names_alone_and_an_open_terminal_holds_up_no_end(
    tmp_path: Path, server: RedisServer, redis: Any
) -> None:
    await redis.rpush("vmmanager:provision", request("real", 5))
    up = Up(tmp_path, server.url, HOSTLER_USE_TEST_NAMESPACE="true", HOSTLER_USE_UNIQUE_INSTANCE="true")
    try:
        url = await up.process.url()
        (epoch,) = [key async for key in redis.scan_iter("Test:*:vmmanager:epoch")]
        prefix = epoch.removesuffix("vmmanager:epoch")
        await redis.rpush(f"{prefix}vmmanager:provision", request("ada", 5))
        await found(lambda: redis.get(f"{prefix}vmmanager:servers:ada"), "ada's record")
        names = {key async for key in redis.scan_iter()}
        assert {name for name in names if not name.startswith(prefix)} == {"vmmanager:provision"}
        assert await redis.lrange("vmmanager:provision", 0, -1) == [request("real", 5)]

        token = (up.data / "admin.token").read_text().strip()
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}) as http:
            terminal = await http.ws_connect(f"{url.replace('http', 'ws', 1)}/v1/labs/ada/terminal")
            await terminal.receive()
            up.process.signal(signal.SIGTERM)
            async with asyncio.timeout(60):
                while (await terminal.receive()).type is aiohttp.WSMsgType.TEXT:
                    pass
            assert terminal.close_code == 1012
            assert await up.process.ends() == 0, up.process.tail()
    finally:
        up.process.kill()


async def test_a_redis_that_is_not_there_is_told_of_and_waited_for(tmp_path: Path) -> None:
    with RedisServer() as server:
        url, port = server.url, server.ports[0]
        wrong = await hostler(
            *("up", "--data", tmp_path / "wrong", "--listen", "127.0.0.1:0"),
            HOSTLER_REDIS=url.replace("password=", "password=not-"),
        )
        assert wrong.code == 9, wrong
        assert "wrong user or password" in wrong.err
        assert "let" not in wrong.err
        server.kill()
        up = Up(tmp_path, url)
        try:
            await up.process.url()
            assert f"redis redis://127.0.0.1:{port}/0?password=***: cannot be reached" in up.process.text
            server.restart()
            async with Redis(host="127.0.0.1", port=port, password=PASSWORD, decode_responses=True) as redis:
                await redis.rpush("vmmanager:provision", request("ada", 1))
                await found(lambda: available(redis, "ada"), "ada's lab")
            await up.end()
        finally:
            up.process.kill()


async def test_what_a_killed_worker_held_is_worked_by_another_once(
    tmp_path: Path, server: RedisServer, redis: Any
) -> None:
    users = ["ada", "bob", "eve"]
    with EtcdServer() as etcd:
        arguments = ("lab", "worker", "--store", etcd.url, "--data", tmp_path)
        environ = {"HOSTLER_REDIS": server.url}
        first = HostlerProcess(*arguments, folder=tmp_path, environ=environ)
        second: HostlerProcess | None = None
        try:
            await first.says("\nready\n")
            (dead,) = await found(lambda: redis.smembers("vmmanager:workers"), "its name")
            held = f"vmmanager:processing:provision:{dead}"
            # Its name shows before it has a lease: a worker that has worked a request takes more without the store.
            await redis.rpush("vmmanager:provision", request("zoe", 5))
            await found(lambda: _is(redis.llen("vmmanager:provision"), 0), "the first request is taken")
            await found(lambda: _is(redis.llen(held), 0), "the first request is worked")
            etcd.suspend()
            await redis.rpush("vmmanager:provision", *(request(user, 5) for user in users), request("ada", 5))
            await found(lambda: _is(redis.llen(held), 3), "what it holds")
            first.kill()
            etcd.resume()
            etcd.wait_healthy()
            second = HostlerProcess(*arguments, folder=tmp_path, environ=environ)
            await second.says("\nready\n")

            async with library.open_store(etcd.url) as store:

                async def worked() -> bool:
                    records = [await LAB.get(store, user=user) for user in users]
                    news = [0 if entry is None else len(entry.value.news) for entry in records]
                    return sum(news) >= 4 and await redis.llen(held) == 0

                await found(worked, "the dead one's requests")
                await found(lambda: _is(redis.llen("vmmanager:provision"), 0), "an empty queue")
                told = {}
                for user in users:
                    entry = await LAB.get(store, user=user)
                    assert entry is not None
                    told[user] = [news.event for news in entry.value.news]
            assert told["bob"] == told["eve"] == [LabEvent.REQUESTED]
            assert told["ada"] == [LabEvent.REQUESTED, LabEvent.ALREADY]
            second.signal(signal.SIGTERM)
            assert await second.ends() == 0
            assert await redis.smembers("vmmanager:workers") == set()
        finally:
            for process in (first, second):
                if process is not None:
                    process.kill()


async def _is(asked: Awaitable[int], number: int) -> bool:
    return await asked == number


async def test_a_worker_needs_a_redis(tmp_path: Path) -> None:
    done = await hostler("lab", "worker", "--data", tmp_path)
    assert done.code == 2
    assert "--redis" in done.err
