"""Ttl storages whose server is gone, silent or loses answers: no False that is not true, no wait without end."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import TYPE_CHECKING

import pytest
from harness import pace
from running import ttl_server

import hostler
from hostler.errors import Forbidden, HostlerError, NotFound, Unavailable, Uncertain
from hostler.testing.proxy import FaultyProxy
from hostler.testing.servers import HOST, ServerFailed, ServerMissing
from hostler.testing.ttl_servers import CassandraServer, DynamodbServer, RedisServer, TtlServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from hostler.ports.ttl import TtlStorage

KINDS = {"redis": RedisServer, "dynamodb": DynamodbServer, "cassandra": CassandraServer}
TIMEOUT = 1.0
MARGIN = 0.7
"""Seconds over its deadline that a call may take, at the machine's own pace."""
LONG = 60.0

Verb = tuple[str, "Callable[[TtlStorage, str], Awaitable[object]]"]
WRITES: list[Verb] = [
    ("insert", lambda storage, key: storage.insert_if_not_exist(f"{key}/insert", "new", ttl=LONG)),
    ("swap", lambda storage, key: storage.compare_and_swap(f"{key}/swap", "old", "new", ttl=LONG)),
    ("delete", lambda storage, key: storage.compare_and_delete(f"{key}/delete", "old")),
]
READ: Verb = ("get", lambda storage, key: storage.get(f"{key}/get"))


@pytest.fixture
def server(request: pytest.FixtureRequest) -> TtlServer:
    return ttl_server(request.param)


@pytest.fixture
def own_server(request: pytest.FixtureRequest) -> Iterator[TtlServer]:
    """One that may be harmed."""
    try:
        started = KINDS[request.param]().__enter__()
    except (ServerMissing, ServerFailed) as error:
        pytest.fail(str(error), pytrace=False)
    try:
        yield started
    finally:
        started.stop()


@pytest.fixture
async def proxy(server: TtlServer) -> AsyncIterator[FaultyProxy]:
    async with FaultyProxy(server.endpoint) as started:
        yield started


async def prepared(url: str, key: str, *, ttl: float = LONG) -> None:
    """Records for each verb to find; with a ttl of 0 they stay."""
    async with hostler.open_ttl_storage(url) as storage:
        for name in ("insert", "swap", "delete", "get"):
            value = await storage.get(f"{key}/{name}")
            if value is not None:
                await storage.compare_and_delete(f"{key}/{name}", value)
        for name in ("swap", "delete", "get"):
            assert await storage.insert_if_not_exist(f"{key}/{name}", "old", ttl=ttl)


async def outcome(call: Awaitable[object]) -> object:
    """What a call answers or raises; it must end in time."""
    with pace.within(TIMEOUT + MARGIN, f"a call with a deadline of {TIMEOUT} s"):
        try:
            return await call
        except HostlerError as error:
            return error


def kinds(outcomes: list[object]) -> set[type]:
    return {type(one) for one in outcomes}


@pytest.mark.parametrize("server", KINDS, indirect=True)
async def test_a_server_that_cannot_be_reached_is_unavailable_in_time(server: TtlServer) -> None:
    with socket.socket() as taken:  # nobody listens there, and nobody else can meanwhile
        taken.bind((HOST, 0))
        nobody = f"{HOST}:{taken.getsockname()[1]}"
        async with hostler.open_ttl_storage(server.url_of(nobody, timeout=str(TIMEOUT))) as storage:
            outcomes = [await outcome(verb(storage, "nobody")) for _, verb in (*WRITES, READ)]
    assert kinds(outcomes) == {Unavailable}


@pytest.mark.parametrize("server", KINDS, indirect=True)
async def test_a_write_whose_answer_is_lost_is_uncertain_and_was_done_once(
    server: TtlServer, proxy: FaultyProxy
) -> None:
    await prepared(server.url, "lost")
    async with (
        hostler.open_ttl_storage(server.url) as direct,
        hostler.open_ttl_storage(server.url_of(proxy.endpoint, timeout=str(TIMEOUT))) as storage,
    ):
        connected = [_until_answered(lambda: storage.get("lost/get")) for _ in range(6)]
        assert set(await asyncio.gather(*connected)) == {"old"}
        proxy.swallow_answers = True
        outcomes = await asyncio.gather(*(outcome(verb(storage, "lost")) for _, verb in WRITES))
        assert kinds(outcomes) == {Uncertain}
        for name, value in (("insert", "new"), ("swap", "new"), ("delete", None)):
            await _until_found(direct, f"lost/{name}", value)  # a busy server may be slower than the deadline
        assert isinstance(await outcome(storage.get("lost/get")), Unavailable)


@pytest.mark.parametrize("server", KINDS, indirect=True)
async def test_a_write_whose_connection_breaks_instead_of_the_answer_is_not_made_again(
    server: TtlServer, proxy: FaultyProxy
) -> None:
    """A client that repeats it by itself finds its own first attempt, and answers False."""
    await prepared(server.url, "broken")
    async with (
        hostler.open_ttl_storage(server.url) as direct,
        hostler.open_ttl_storage(server.url_of(proxy.endpoint, timeout=str(TIMEOUT))) as storage,
    ):
        for name, verb in WRITES:
            assert await _until_answered(lambda: storage.get("broken/get")) == "old"
            proxy.cut_after = 1
            assert isinstance(await outcome(verb(storage, "broken")), Uncertain), name
            before, after = (None if name == "insert" else "old"), (None if name == "delete" else "new")
            # Cassandra's client talks to the server by itself, so what was cut may have been another answer.
            allowed = [before, after] if server.name == "cassandra" else [after]
            assert await direct.get(f"broken/{name}") in allowed


@pytest.mark.parametrize("server", KINDS, indirect=True)
async def test_a_write_that_never_reached_the_server_is_not_reported_as_a_condition_that_failed(
    server: TtlServer, proxy: FaultyProxy
) -> None:
    await prepared(server.url, "cut")
    async with (
        hostler.open_ttl_storage(server.url) as direct,
        hostler.open_ttl_storage(server.url_of(proxy.endpoint, timeout=str(TIMEOUT))) as storage,
    ):
        assert await _until_answered(lambda: storage.get("cut/get")) == "old"
        proxy.swallow_requests = True
        calls = [asyncio.create_task(outcome(verb(storage, "cut"))) for _, verb in WRITES]
        await asyncio.sleep(0.3)
        proxy.cut()
        assert kinds(await asyncio.gather(*calls)) <= {Uncertain, Unavailable}
        assert [await direct.get(f"cut/{name}") for name, _ in WRITES] == [None, "old", "old"]


@pytest.mark.parametrize("server", KINDS, indirect=True)
async def test_after_a_cut_connection_the_storage_works_again_by_itself(server: TtlServer, proxy: FaultyProxy) -> None:
    await prepared(server.url, "heal")
    async with hostler.open_ttl_storage(server.url_of(proxy.endpoint, timeout=str(TIMEOUT))) as storage:
        for _ in range(3):
            assert await _until_answered(lambda: storage.get("heal/get")) == "old"
            proxy.refusing = True
            proxy.cut()
            while proxy.connections:
                await asyncio.sleep(0.01)
            assert isinstance(await outcome(storage.get("heal/get")), Unavailable)
            refused = await outcome(WRITES[0][1](storage, "heal"))
            assert isinstance(refused, Unavailable | Uncertain)
            proxy.refusing = False
        await _until_swapped(storage, "heal/swap")


@pytest.mark.parametrize("own_server", KINDS, indirect=True)
async def test_a_suspended_server_and_one_that_is_killed_and_restarted(own_server: TtlServer) -> None:
    await prepared(own_server.url, "sleep", ttl=0)
    url = own_server.url_of(own_server.endpoint, timeout=str(TIMEOUT))
    async with hostler.open_ttl_storage(url) as storage:
        assert await _until_answered(lambda: storage.get("sleep/get")) == "old"
        own_server.suspend()
        try:
            outcomes = await asyncio.gather(*(outcome(verb(storage, "sleep")) for _, verb in (*WRITES, READ)))
            assert kinds(outcomes[:3]) <= {Unavailable, Uncertain}
            assert isinstance(outcomes[3], Unavailable)
            async with hostler.open_ttl_storage(url) as newcomer:
                assert isinstance(await outcome(newcomer.get("sleep/get")), Unavailable)
        finally:
            own_server.resume()
        assert await _until_answered(lambda: storage.get("sleep/get")) == "old"
        # Other records: what was asked of the suspended server may still be under way there.
        await prepared(own_server.url, "kill", ttl=0)
        own_server.kill()
        outcomes = [await outcome(verb(storage, "kill")) for _, verb in (*WRITES, READ)]
        assert kinds(outcomes) <= {Unavailable, Uncertain}
        assert isinstance(outcomes[3], Unavailable)
        own_server.restart()
        assert await _until_answered(lambda: storage.get("kill/get")) == "old"
        assert await _until_answered(lambda: storage.get("kill/swap")) == "old"
        await _until_swapped(storage, "kill/swap")


@pytest.mark.parametrize("own_server", ["redis", "dynamodb"], indirect=True)
async def test_closing_does_not_wait_for_a_server_that_is_silent(own_server: TtlServer) -> None:
    storage = hostler.open_ttl_storage(own_server.url_of(own_server.endpoint, timeout="60"))
    await storage.__aenter__()
    await storage.get("close/get")
    own_server.suspend()
    try:
        running = asyncio.create_task(storage.insert_if_not_exist("close/insert", "new", ttl=LONG))
        await asyncio.sleep(0.2)
        with pace.within(2.0, "closing"):
            await storage.aclose()
        with pytest.raises(Uncertain):
            await running
    finally:
        own_server.resume()


@pytest.mark.parametrize("server", ["redis", "cassandra"], indirect=True)
async def test_a_wrong_password_is_forbidden_and_said_in_one_line(server: TtlServer) -> None:
    async with hostler.open_ttl_storage(server.url_of(server.endpoint, password="wrong")) as storage:
        with pytest.raises(Forbidden, match="wrong user or password; correct them in the URL") as caught:
            await storage.insert_if_not_exist("key", "value", ttl=LONG)
        assert "\n" not in str(caught.value)
        with pytest.raises(Forbidden):
            await storage.get("key")


async def test_no_credentials_are_forbidden_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", "/nonexistent")
    async with hostler.open_ttl_storage(ttl_server("dynamodb").url) as storage:
        with pytest.raises(Forbidden, match="no credentials; set AWS_ACCESS_KEY_ID"):
            await storage.insert_if_not_exist("key", "value", ttl=LONG)


async def test_a_missing_table_or_keyspace_is_not_found_and_says_what_to_do() -> None:
    table = ttl_server("dynamodb").url.replace("hostler-test", "nowhere").replace("create=true", "create=false")
    keyspace = ttl_server("cassandra").url.replace("/sysvvm", "/nowhere").replace("create=true", "create=false")
    for url in (table, keyspace):
        async with hostler.open_ttl_storage(url) as storage:
            for _, verb in (*WRITES, READ):
                with pytest.raises(NotFound, match="create=true"):
                    await verb(storage, "key")


async def test_clients_that_create_the_same_table_at_once_all_find_it() -> None:
    for url in (
        ttl_server("dynamodb").url.replace("hostler-test", "made-at-once"),
        ttl_server("cassandra").url.replace("/sysvvm", "/made_at_once"),
    ):
        storages = [hostler.open_ttl_storage(url) for _ in range(4)]
        try:
            for storage in storages:
                await storage.__aenter__()
            answers = await asyncio.gather(*(_until_answered(_insert(storage)) for storage in storages))
            assert sorted(map(str, answers)) == ["False", "False", "False", "True"]
        finally:
            for storage in storages:
                await storage.aclose()


def _insert(storage: TtlStorage) -> Callable[[], Awaitable[object]]:
    return lambda: storage.insert_if_not_exist("key", "value", ttl=LONG)


async def _until_answered(ask: Callable[[], Awaitable[object]]) -> object:
    """The first answer; until then the storage may say that it cannot."""
    end = time.monotonic() + pace.patience(15)
    while True:
        try:
            return await ask()
        except Unavailable:
            assert time.monotonic() < end, "it does not come back"
            await asyncio.sleep(0.05)


async def _until_found(storage: TtlStorage, key: str, value: str | None) -> None:
    """Until the record has this value."""
    end = time.monotonic() + pace.patience(15)
    while (found := await storage.get(key)) != value:
        assert time.monotonic() < end, f"{key}: {found!r}, not {value!r}"
        await asyncio.sleep(0.05)


async def _until_swapped(storage: TtlStorage, key: str) -> None:
    """Swap until it is done. One that takes longer than the deadline is uncertain: then the record tells."""
    end, is_uncertain = time.monotonic() + pace.patience(15), False
    while await _until_answered(lambda: storage.get(key)) != "new":
        assert time.monotonic() < end, f"{key}: it cannot be swapped"
        try:
            swapped = await storage.compare_and_swap(key, "old", "new", ttl=LONG)
        except Uncertain:
            is_uncertain = True
        except Unavailable:
            await asyncio.sleep(0.05)
        else:
            assert swapped or is_uncertain, f"{key}: nobody else has swapped it"
