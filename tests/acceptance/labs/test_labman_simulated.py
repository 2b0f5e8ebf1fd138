"""A front end that knows Redis alone, and `hostler up` behind it: its four scenarios, and all that can come between."""

from __future__ import annotations

import asyncio
import datetime as dt
import ipaddress
import json
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from harness.pace import patience
from labman import DAY, DECOMMISSION, PROVISION, LabMan, Server
from up_process import HostlerProcess, token_told, well

import hostler as library
from hostler.testing.servers import EtcdServer
from hostler.testing.ttl_servers import RedisServer

PATIENCE = patience(30.0)
"""For what a quiet machine does in less than a second."""
TOML = """
[default]
life = "10m"
provider = "simulated"
[labs.3]
[labs.5]
[labs.7]
life = "3s"
grace = "1s"
warn = "2s"
[labs.8]
cpus = 32
"""
WHOLE_NODE = 8
"""A lab that takes a whole node, so that it goes on being provisioned while another one is there."""


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="module")
def _up(redis: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostlerProcess]:
    folder = tmp_path_factory.mktemp("labs")
    (folder / "labs.toml").write_text(TOML)
    up = started(folder, redis)
    try:
        up.wait_for("ready http")
        yield up
        assert "Traceback" not in up.text
    finally:
        up.kill()


@pytest.fixture
async def labman(redis: RedisServer, _up: HostlerProcess) -> AsyncIterator[LabMan]:
    async with LabMan(redis.url, patience=PATIENCE) as labman:
        yield labman


def started(folder: Path, redis: RedisServer, *options: object) -> HostlerProcess:
    arguments = ("up", "--machines", "simulated", "--data", folder / "data", "--listen", "127.0.0.1:0")
    labs = ("--labs", folder / "labs.toml") if (folder / "labs.toml").exists() else ()
    return HostlerProcess(*arguments, *labs, *options, folder=folder, environ={"HOSTLER_REDIS": redis.url})


async def connect(user: str, address: str) -> None:
    """Nobody answers there, but it is where a front end would look."""
    assert user == "student"
    assert ipaddress.ip_address(address).version == 6


async def told(labman: LabMan, user: str) -> list[tuple[str, str, str]]:
    """What happened, the lab, and why, from the stream of a user."""
    found = await labman.redis.xrange(f"vmmanager:events:{user}")
    names = (b"event", b"labId", b"reason")
    return [
        (what.decode(), lab.decode(), why.decode())
        for what, lab, why in ([fields.get(name, b"") for name in names] for _, fields in found)
    ]


async def until_told(labman: LabMan, user: str, event: str) -> tuple[str, str]:
    """The lab and the reason of the last such event, once there is one."""
    end = time.monotonic() + PATIENCE
    while True:
        events = await told(labman, user)
        for what, lab, reason in reversed(events):
            if what == event:
                return lab, reason
        assert time.monotonic() < end, f"{user}: no {event} among {events}"
        await asyncio.sleep(0.02)


async def test_users_go_through_the_four_scenarios_at_once(labman: LabMan) -> None:
    async def play(user: str, lab: int) -> set[str]:
        other = 8 - lab
        first = await labman.first_time(user, lab, connect)
        assert await labman.reconnect(user, lab, connect) == first
        second = await labman.switch(user, lab, other, connect)
        left = dt.datetime.fromisoformat(second["expiresAt"]) - dt.datetime.now(dt.UTC)
        assert 600 - PATIENCE < left.total_seconds() <= 600
        await labman.disconnect_and_time_out(user, other)
        return {first["serverId"], second["serverId"]}

    users = [f"550e8400-e29b-41d4-a716-{number:012}" for number in range(6)]
    made = await asyncio.gather(*(play(user, 3 if number % 2 else 5) for number, user in enumerate(users)))
    assert len(set[str]().union(*made)) == 2 * len(users), "a machine was somebody else's, too"
    life, end = ["requested", "started", "available"], ["stopping", "stopped"]
    for user in users:
        async with asyncio.timeout(PATIENCE):
            while len(events := [event for event, _, _ in await told(labman, user)]) < 14:
                await asyncio.sleep(0.02)
        assert events == [*life, "already", *end, *life, "ignored", *end, "ignored", "ignored"]


async def test_a_lab_ends_by_itself_and_its_user_is_told_before_and_after(labman: LabMan) -> None:
    found = await labman.first_time("late", 7, connect)
    ends = dt.datetime.fromisoformat(found["expiresAt"]).timestamp()
    await labman.gone("late")
    assert time.time() >= ends + 1, "its grace was not kept"
    await until_told(labman, "late", "expired")
    events = await told(labman, "late")
    assert [event for event, _, _ in events[-4:]] == ["available", "expires-soon", "stopping", "expired"]
    assert events[-3] == ("expires-soon", "7", f"it ends at {found['expiresAt']}")
    await labman.first_time("late", 7, connect)
    await labman.ask_to_end("late", 7)
    await labman.gone("late")


async def test_a_lab_that_is_not_in_the_catalogue_is_refused(labman: LabMan) -> None:
    await labman.ask("lost", 9)
    assert await until_told(labman, "lost", "refused") == ("9", "there is no lab 9; there are 3, 5, 7, 8")
    assert await labman.server("lost") is None


async def test_another_lab_is_refused_while_one_runs(labman: LabMan) -> None:
    before = await labman.first_time("many", 5, connect)
    await labman.ask("many", 3)
    assert await until_told(labman, "many", "refused") == ("3", "lab 5 is active; stop it first")
    assert await labman.server("many") == before
    await labman.ask_to_end("many", None)  # whatever runs
    await labman.gone("many")


async def test_a_stop_that_is_out_of_date_stops_nothing(labman: LabMan) -> None:
    await labman.first_time("stale", 3, connect)
    before = await labman.switch("stale", 3, 5, connect)
    await labman.ask_to_end("stale", 3)
    assert await until_told(labman, "stale", "ignored") == ("3", "lab 5 is active")
    assert await labman.server("stale") == before
    await labman.ask_to_end("stale", 5)
    await labman.gone("stale")


async def test_a_lab_for_which_there_is_no_room_yet_can_be_stopped(labman: LabMan) -> None:
    await labman.first_time("early", 5, connect)
    await labman.ask("eager", WHOLE_NODE)
    await until_told(labman, "eager", "started")
    found = await labman.server("eager")
    assert found is not None
    assert (found["status"], found["available"], found["address"], found["labId"]) == ("provisioning", False, "", 8)
    await labman.ask_to_end("eager", WHOLE_NODE)
    await labman.gone("eager")
    assert "available" not in {event for event, _, _ in await told(labman, "eager")}
    await labman.first_time("eager", 5, connect)
    for user in ("eager", "early"):
        await labman.ask_to_end(user, 5)
        await labman.gone(user)


async def test_a_record_lives_for_a_day(labman: LabMan) -> None:
    await labman.first_time("daily", 5, connect)
    assert DAY - 2 * PATIENCE < await labman.redis.ttl("vmmanager:servers:daily") <= DAY
    await labman.ask_to_end("daily", 5)
    await labman.gone("daily")


# While machines take their time


@asynccontextmanager
async def with_an_agent_apart(folder: Path, redis: RedisServer) -> AsyncIterator[tuple[HostlerProcess, dict[str, str]]]:
    """A node whose agent can be suspended, so that nothing is made or ended there; and how to ask the control plane."""
    (folder / "labs.toml").write_text(TOML)
    with EtcdServer() as etcd:
        shared = ("--store", etcd.url, "--node-ttl", 2 * PATIENCE, "--fencing-time", 4 * PATIENCE)
        doors = ("--listen", "127.0.0.1:0", "--labs", folder / "labs.toml", "--data", folder / "replica")
        environ = {"HOSTLER_REDIS": redis.url}
        processes = [HostlerProcess("replica", *shared, *doors, folder=folder, environ=environ)]
        try:
            url = await processes[0].url("serving")
            processes.append(HostlerProcess("agent", "--node", "r1-a", *shared, "--data", folder, folder=folder))
            await processes[1].says("registered\n")
            token = token_told(processes[0].text)
            yield processes[1], {"HOSTLER_SERVER": url, "HOSTLER_TOKEN": token}
        finally:
            for process in processes:
                process.kill()


async def test_stops_while_a_lab_is_made_and_starts_while_it_is_stopped_are_done_in_their_time(
    tmp_path: Path,
) -> None:
    with RedisServer() as redis:
        async with (
            LabMan(redis.url, patience=PATIENCE) as labman,
            with_an_agent_apart(tmp_path, redis) as (agent, admin),
        ):
            before = await labman.first_time("ada", 5, connect)
            agent.suspend()
            await labman.ask_to_end("ada", 5)
            await labman.until("ada", lambda found: found is not None and found["status"] == "stopping")
            await labman.ask("ada", 5)
            await labman.ask("ada", 5)
            assert await until_told(labman, "ada", "already") == ("5", "it is started once lab 5 is gone")
            assert (await told(labman, "ada"))[-2] == ("requested", "5", "once lab 5 is gone")
            assert stands(await labman.server("ada"), "stopping", before["serverId"])
            assert len(await machines(admin)) == 1
            agent.resume()
            after = await labman.available("ada", 5)
            assert after["serverId"] != before["serverId"]
            assert [vm["address"] for vm in await machines(admin)] == [after["address"]]
            await labman.ask_to_end("ada", None)
            await labman.gone("ada")
            assert await machines(admin) == []

            agent.suspend()
            await labman.ask("ada", 5)
            await labman.until("ada", lambda found: found is not None and found["cloudStatus"] == "placed")
            await labman.ask_to_end("ada", 5)
            await labman.until("ada", lambda found: found is not None and found["status"] == "stopping")
            agent.resume()
            await labman.gone("ada")
            assert await machines(admin) == []


def stands(found: Server | None, status: str, server: str) -> bool:
    return found is not None and (found["status"], found["serverId"]) == (status, server)


async def machines(admin: dict[str, str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (
        await well("vm", "list", "--org", "labs", "--project", "ada", "-o", "json", **admin)
    ).json
    return found


# What cannot be understood


def malformed() -> list[tuple[str, bytes]]:
    """Of every kind, each with its queue. Those for both queues are wrong in both."""
    users: list[Any] = [5, None, True, ["eve"], {}, "", "a\nb", "\0", "x" * 10_000, "\ud800", "\u2028", "\u00e4" * 256]
    labs: list[Any] = ["5", True, False, -1, 0, 1.5, 2**31, 2**63, 10**400, [5], {}, float("nan"), float("inf")]
    both = [
        b"",
        b"no json",
        b"\xff\xfe",
        b"null",
        b"5",
        b'"eve"',
        b"[]",
        b"{}",
        b'{"labId": 5}',
        b'{"webuserid": "eve"',
    ]
    both += [b'{"webuserid": "e\xffve", "labId": 5}', b'{"webuserid": "eve", "labId": 5} {}', b"{'webuserid': 'eve'}"]
    both += [b"[" * 100_000, b'{"webuserid": "eve", "labId": ' + b'{"a":' * 50_000 + b"5" + b"}" * 50_001]
    both += [
        b" " * 2**20,
        b'{"webuserid": "' + b"x" * 2**20 + b'", "labId": 5}',
        b'{"webuserid": "eve", "labId": 1e999}',
    ]
    both += [b'{"webuserid": "eve", "labId": 5, "x": "' + b"x" * 2**20 + b'"}']
    both += [b'{"webuserid": "eve", "labId": 5, "x": ' + b"[" * 1_200 + b"]" * 1_200 + b"}"]
    both += [json.dumps({"webuserid": user, "labId": 5}).encode() for user in users]
    both += [json.dumps({"webuserid": "eve", "labId": lab}).encode() for lab in labs]
    found = [(queue, request) for queue in (PROVISION, DECOMMISSION) for request in both]
    found += [(PROVISION, b'{"webuserid": "eve"}'), (PROVISION, b'{"webuserid": "eve", "labId": null}')]
    return [*found, (DECOMMISSION, b'{"webuserid": ""}')]


async def test_what_cannot_be_understood_is_put_aside_and_nothing_else_comes_of_it(
    tmp_path: Path,
) -> None:
    with RedisServer() as redis:
        up = started(tmp_path, redis)
        try:
            await up.url()
            async with LabMan(redis.url, patience=PATIENCE) as labman:
                sent, begun = malformed(), time.time()
                before = await keys(labman)
                for queue, request in sent:
                    await labman.redis.rpush(queue, request)
                await labman.answered()
                buried = [json.loads(each) for each in await labman.redis.lrange("vmmanager:dead", 0, -1)]
                # L35: of the users whom these name only "eve" can be read; she is told, and nobody else.
                told = {"vmmanager:events:eve", "vmmanager:generation:eve"}
                assert await keys(labman) - before <= {"vmmanager:dead", *told}
                while not await labman.redis.exists("vmmanager:events:eve"):
                    await asyncio.sleep(0.01)
                assert 0 < await labman.redis.ttl("vmmanager:events:eve") <= 86_400
                (_, fields), *_ = await labman.redis.xrange("vmmanager:events:eve", count=1)
                assert b"cannot be understood" in fields[b"reason"]
                kept = [(queue, request if len(request) <= 65_536 else request[:1_000]) for queue, request in sent]
                expected = [(queue, request.decode(errors="backslashreplace")) for queue, request in kept]
                assert sorted((f"vmmanager:{each['queue']}", each["request"]) for each in buried) == sorted(expected)
                for each in buried:
                    assert begun <= each["at"] <= time.time(), each
                    assert 0 < len(each["reason"]) < 500, each
                assert await labman.redis.smembers("vmmanager:workers") == {
                    each["worker"].encode() for each in buried[:1]
                }
                await labman.first_time("eve", 5, connect)  # by the same worker
                await labman.ask_to_end("eve", 5)
                await labman.gone("eve")
                assert {each["worker"] for each in buried} == {buried[0]["worker"]}
            up.signal(signal.SIGTERM)
            assert await up.ends() == 0, up.tail()
            assert "Traceback" not in up.text
        finally:
            up.kill()
    store = f"sqlite://{tmp_path / 'data' / 'hostler.db'}"
    async with library.open_store(store) as opened:
        users = [entry.key for entry in (await opened.range("/hostler/v1/labs/")).items]
    assert users == ["/hostler/v1/labs/eve"]


async def keys(labman: LabMan) -> set[str]:
    return {key.decode(errors="replace") async for key in labman.redis.scan_iter("*")}
