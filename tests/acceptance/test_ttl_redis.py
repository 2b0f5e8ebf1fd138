"""Redis as a ttl storage: what is particular to it."""

from __future__ import annotations

import asyncio
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from harness import pace
from running import ttl_server

import hostler
from hostler.drivers.ttl.redis import POLL, RedisTtlStorage
from hostler.errors import Closed, Forbidden, Invalid, Refused, Unavailable
from hostler.ports.ttl import Watchable
from hostler.testing.proxy import FaultyProxy
from hostler.testing.servers import HOST
from hostler.testing.ttl_servers import PASSWORD, RedisServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from hostler.testing.ttl_servers import TtlServer

LONG = 60.0
MARGIN = 0.5
"""Seconds beyond the next look, at the machine's own pace."""


def say(server: TtlServer, *command: str, password: str = PASSWORD) -> bytes:
    """What the server answers to a command that an operator gives."""
    words = [("AUTH", password), command]
    request = b"".join(
        f"*{len(parts)}\r\n".encode() + b"".join(f"${len(p.encode())}\r\n{p}\r\n".encode() for p in parts)
        for parts in words
    )
    with socket.create_connection((HOST, server.ports[0]), timeout=LONG) as connection:
        connection.sendall(request)
        answer = b""
        while answer.count(b"\r\n") < 2:
            answer += connection.recv(65536)
    return answer.partition(b"\r\n")[2].strip()


@pytest.fixture
def redis() -> TtlServer:
    return ttl_server("redis")


@pytest.fixture
async def storage(redis: TtlServer) -> AsyncIterator[RedisTtlStorage]:
    async with hostler.open_ttl_storage(redis.url) as opened:
        assert isinstance(opened, RedisTtlStorage)
        yield opened


@contextmanager
def own_redis(*arguments: str) -> Iterator[RedisServer]:
    """One that may be harmed, with further arguments."""

    class Configured(RedisServer):
        def command(self) -> list[str]:
            return [*super().command(), *arguments]

    with Configured() as server:
        yield server


async def test_a_record_is_a_plain_string_under_its_own_key(storage: RedisTtlStorage, redis: TtlServer) -> None:
    await storage.insert_if_not_exist("sysvvm/1/1", "readable", ttl=LONG)
    assert say(redis, "GET", "sysvvm/1/1").endswith(b"readable")
    assert 0 < int(say(redis, "PTTL", "sysvvm/1/1")[1:]) <= LONG * 1000 + 1
    await storage.compare_and_swap("sysvvm/1/1", "readable", "kept", ttl=0)
    assert say(redis, "PTTL", "sysvvm/1/1") == b":-1"
    await storage.compare_and_delete("sysvvm/1/1", "kept")


async def test_a_key_that_holds_something_else_is_refused_and_left_alone(
    storage: RedisTtlStorage, redis: TtlServer
) -> None:
    say(redis, "LPUSH", "a-list", "x")
    say(redis, "SET", "no-text", "x")
    assert await storage.insert_if_not_exist("a-list", "value", ttl=LONG) is False
    with pytest.raises(Invalid, match="the key does not hold a record"):
        await storage.compare_and_swap("a-list", "x", "value", ttl=LONG)
    with pytest.raises(Invalid, match="the key does not hold a record"):
        await storage.compare_and_delete("a-list", "x")
    with pytest.raises(Invalid, match="the key does not hold a record"):
        await storage.get("a-list")
    assert say(redis, "LLEN", "a-list") == b":1"
    say(redis, "DEL", "a-list")


async def test_databases_are_apart(redis: TtlServer) -> None:
    async with (
        hostler.open_ttl_storage(redis.url) as zero,
        hostler.open_ttl_storage(redis.url.replace("/0?", "/1?")) as one,
    ):
        assert await zero.insert_if_not_exist("db", "zero", ttl=LONG)
        assert await one.insert_if_not_exist("db", "one", ttl=LONG)
        assert await zero.get("db") == "zero"
        await zero.compare_and_delete("db", "zero")
        await one.compare_and_delete("db", "one")


async def test_a_user_without_rights_is_forbidden_and_one_who_may_not_publish_is_served(redis: TtlServer) -> None:
    say(redis, "ACL", "SETUSER", "reader", "on", ">pw", "~*", "+get", "+client")
    say(redis, "ACL", "SETUSER", "quiet", "on", ">pw", "~*", "+@all", "resetchannels")
    try:
        async with hostler.open_ttl_storage(redis.url_of(redis.endpoint, user="reader", password="pw")) as reader:
            assert await reader.get("acl") is None
            with pytest.raises(Forbidden, match="no permission"):
                await reader.insert_if_not_exist("acl", "value", ttl=LONG)
        async with hostler.open_ttl_storage(redis.url_of(redis.endpoint, user="quiet", password="pw")) as quiet:
            assert await quiet.insert_if_not_exist("acl", "value", ttl=LONG)
            assert await quiet.compare_and_swap("acl", "value", "other", ttl=LONG)
            assert isinstance(quiet, Watchable)
            waiting = asyncio.create_task(quiet.wait_change("acl", "other", within=LONG))
            await asyncio.sleep(0.2)
            with pace.within(POLL + MARGIN, "the next look"):
                assert await quiet.compare_and_delete("acl", "other")
                assert await waiting is None
    finally:
        say(redis, "ACL", "DELUSER", "reader", "quiet")


async def test_a_read_only_replica_writes_nothing_and_says_so() -> None:
    with own_redis() as server:
        async with hostler.open_ttl_storage(server.url) as storage:
            assert await storage.insert_if_not_exist("key", "value", ttl=0)
            say(server, "REPLICAOF", HOST, "1")
            with pytest.raises(Unavailable, match="read-only replica"):
                await storage.compare_and_swap("key", "value", "new", ttl=LONG)
            say(server, "REPLICAOF", "NO", "ONE")
            assert await storage.get("key") == "value"


async def test_a_server_without_memory_writes_nothing_and_says_so() -> None:
    with own_redis() as server:
        async with hostler.open_ttl_storage(server.url) as storage:
            assert await storage.insert_if_not_exist("key", "value", ttl=LONG)
            say(server, "CONFIG", "SET", "maxmemory", "1")
            with pytest.raises(Unavailable, match="out of memory"):
                await storage.insert_if_not_exist("other", "value", ttl=LONG)
            with pytest.raises(Unavailable, match="out of memory"):
                await storage.compare_and_swap("key", "value", "new", ttl=LONG)
            assert await storage.get("key") == "value"
            say(server, "CONFIG", "SET", "maxmemory", "0")
            assert await storage.compare_and_swap("key", "value", "new", ttl=LONG)


async def test_a_node_of_a_cluster_that_does_not_hold_the_key_says_so() -> None:
    with own_redis("--cluster-enabled", "yes") as server:
        async with hostler.open_ttl_storage(server.url) as storage:
            with pytest.raises(Unavailable, match="cluster is down"):
                await storage.insert_if_not_exist("key", "value", ttl=LONG)


async def test_a_busy_server_and_too_many_clients_are_unavailable() -> None:
    with own_redis() as server:
        async with hostler.open_ttl_storage(server.url) as storage, hostler.open_ttl_storage(server.url) as late:
            assert await storage.get("key") is None
            say(server, "CONFIG", "SET", "maxclients", "1")
            with pytest.raises(Unavailable, match="no more connections|cannot connect"):
                await late.insert_if_not_exist("key", "value", ttl=LONG)
            assert await storage.get("key") is None


async def test_an_announcement_that_was_lost_is_made_up_for(redis: TtlServer, storage: RedisTtlStorage) -> None:
    async with FaultyProxy(redis.endpoint) as proxy, hostler.open_ttl_storage(redis.url_of(proxy.endpoint)) as far:
        assert isinstance(far, Watchable)
        key = "announced"
        await storage.insert_if_not_exist(key, "one", ttl=LONG)
        waiting = asyncio.create_task(far.wait_change(key, "one", within=LONG))
        await until(lambda: proxy.connections >= 2)  # one hears, one has read
        answered = -1
        while answered != proxy.answered:  # not while one of them begins: that is told to who asked
            answered = proxy.answered
            await asyncio.sleep(0.5)
        proxy.cut()
        with pace.within(POLL + MARGIN, "the next look"):
            assert await storage.compare_and_swap(key, "one", "two", ttl=LONG)
            assert await waiting == "two"
    await storage.compare_and_delete(key, "two")


async def test_a_change_by_a_stranger_is_noticed_at_the_next_look(redis: TtlServer, storage: RedisTtlStorage) -> None:
    await storage.insert_if_not_exist("stranger", "one", ttl=LONG)
    waiting = asyncio.create_task(storage.wait_change("stranger", "one", within=LONG))
    await asyncio.sleep(0.1)
    say(redis, "DEL", "stranger")
    with pace.within(POLL + MARGIN, "the next look"):
        assert await waiting is None


async def test_all_who_wait_share_one_connection_and_leave_none(redis: TtlServer) -> None:
    before = say(redis, "CLIENT", "LIST").count(b"name=hostler")
    async with hostler.open_ttl_storage(redis.url) as storage:
        assert isinstance(storage, RedisTtlStorage)
        waits = [asyncio.create_task(storage.wait_change(f"many/{n}", None, within=LONG)) for n in range(30)]
        await until(lambda: say(redis, "PUBSUB", "CHANNELS", "hostler:ttl:0:many/*").startswith(b"*30"))
        for n in range(30):
            await storage.insert_if_not_exist(f"many/{n}", "value", ttl=LONG)
        assert await asyncio.gather(*waits) == ["value"] * 30
        await until(lambda: say(redis, "PUBSUB", "CHANNELS", "hostler:ttl:0:many/*").startswith(b"*0"))
        for n in range(30):
            await storage.compare_and_delete(f"many/{n}", "value")
    await until(lambda: say(redis, "CLIENT", "LIST").count(b"name=hostler") <= before)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(pace.patience(10)):
        while not holds():
            await asyncio.sleep(0.02)


async def test_closing_wakes_those_who_wait(redis: TtlServer) -> None:
    storage = hostler.open_ttl_storage(redis.url)
    await storage.__aenter__()
    assert isinstance(storage, Watchable)
    waiting = asyncio.create_task(storage.wait_change("closing", None, within=LONG))
    await asyncio.sleep(0.1)
    with pace.within(0.3, "to wake them"):  # before the next look
        await storage.aclose()
        with pytest.raises(Closed):
            await waiting


async def test_many_calls_at_once_take_turns_on_few_connections(redis: TtlServer) -> None:
    async with hostler.open_ttl_storage(redis.url) as storage:
        answers = await asyncio.gather(*(storage.insert_if_not_exist("crowd", f"{n}", ttl=LONG) for n in range(500)))
        assert answers.count(True) == 1
        assert await storage.compare_and_delete("crowd", f"{answers.index(True)}")
        assert say(redis, "CLIENT", "LIST").count(b"name=hostler") <= 16 + 1


async def test_tls_with_the_right_authority_works_and_with_a_stranger_does_not(tmp_path: object) -> None:
    import trustme

    authority, stranger = trustme.CA(), trustme.CA()
    certificate = authority.issue_cert(HOST)
    folder = str(tmp_path)
    authority.cert_pem.write_to_path(f"{folder}/ca.pem")
    stranger.cert_pem.write_to_path(f"{folder}/stranger.pem")
    certificate.private_key_pem.write_to_path(f"{folder}/key.pem")
    certificate.cert_chain_pems[0].write_to_path(f"{folder}/cert.pem")
    from hostler.testing.servers import free_ports

    port = free_ports(1)[0]
    with own_redis(
        *("--tls-port", str(port), "--tls-cert-file", f"{folder}/cert.pem", "--tls-key-file", f"{folder}/key.pem"),
        *("--tls-ca-cert-file", f"{folder}/ca.pem", "--tls-auth-clients", "no"),
    ):
        secret = PASSWORD.replace(" ", "+")
        async with hostler.open_ttl_storage(
            f"rediss://{HOST}:{port}/0?password={secret}&ca={folder}/ca.pem"
        ) as storage:
            assert await storage.insert_if_not_exist("tls", "value", ttl=LONG)
            assert await storage.get("tls") == "value"
        async with hostler.open_ttl_storage(
            f"rediss://{HOST}:{port}/0?password={secret}&ca={folder}/stranger.pem"
        ) as storage:
            with pytest.raises(Unavailable, match="certificate"):
                await storage.get("tls")


async def test_what_is_not_in_the_table_of_answers_is_refused(redis: TtlServer) -> None:
    async with hostler.open_ttl_storage(redis.url.replace("/0?", "/99?")) as storage:
        with pytest.raises(Refused, match="DB index is out of range"):
            await storage.get("key")
