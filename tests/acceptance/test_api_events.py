"""Server-Sent Events: each once, in order, over any number of cuts, and only what is one's own."""

from __future__ import annotations

import asyncio
import itertools
import random
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec
import pytest
from api_server import VM_BODY, Api, StreamedReply, api_on, serving
from dose import dose
from harness.pace import within

import hostler
from hostler.entry.server.concurrency_limits import reserved_streams, share
from hostler.entry.server.services import ServerConfig
from hostler.keys.families import HANDLE, VM
from hostler.keys.namespace import Namespace, NamespacedStore
from hostler.model.access import Role
from hostler.model.vm import MachineState, VmHandle
from hostler.ports.store import Put, Store

VMS = "/v1/orgs/acme/projects/web/vms"
QUICK = ServerConfig(heartbeat=0.05)


class Block(msgspec.Struct):
    """One block of a stream."""

    id: str = ""
    event: str = "message"
    data: Any = None
    comment: str = ""


class Listener:
    """Reads one stream as the standard says."""

    def __init__(self, answer: StreamedReply) -> None:
        self._answer = answer
        self.last = ""

    async def block(self) -> Block | None:
        """The next block; None at the end."""
        found = Block()
        while line := await self._answer.content.readline():
            text = line.decode().rstrip("\n")
            name, _, value = text.partition(":")
            value = value.removeprefix(" ")
            if not text:
                self.last = found.id or self.last
                return found
            if not name:
                found.comment = value
            elif name == "data":
                found.data = msgspec.json.decode(value)
            elif name in ("id", "event"):
                setattr(found, name, value)
        return None

    async def event(self) -> Block:
        """The next block with data."""
        async with asyncio.timeout(60):
            while (found := await self.block()) is not None:
                if found.data is not None:
                    return found
        raise EOFError

    async def end(self) -> list[Block]:
        """What comes until the stream ends."""
        found = []
        async with asyncio.timeout(60):
            while (block := await self.block()) is not None:
                found.append(block)
        return found


@asynccontextmanager
async def listening(api: Api, query: str = "", *, token: str = "", last: str | None = None) -> AsyncIterator[Listener]:
    headers = [("Authorization", f"Bearer {token or api.admin}")]
    if last is not None:
        headers.append(("Last-Event-ID", last))
    async with api.stream("GET", f"/v1/events{query}", headers) as answer:
        assert answer.status == 200, await answer.read()
        assert answer.headers["Content-Type"] == "text/event-stream"
        listener = Listener(answer)
        first = await listener.block()
        assert first is not None
        assert first.id
        yield listener


async def _vm(api: Api, name: str, path: str = VMS) -> dict[str, Any]:
    answer = await api.call("POST", path, json={**VM_BODY, "name": name})
    assert answer.status == 201
    return answer.json  # type: ignore[no-any-return]


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    async with serving(plan=QUICK) as api:
        yield api


async def test_a_change_is_told_as_it_stands_in_the_store(api: Api) -> None:
    async with listening(api) as stream:
        made = await _vm(api, "one")
        told = await stream.event()
        assert told.data["type"] == "put"
        assert told.data["kind"] == "vm"
        assert told.data["subject"] == f"acme/web/{made['id']}"
        assert told.data["revision"] == made["revision"]
        assert told.data["record"]["name"] == "one"
        assert told.id.startswith(f"{made['revision']}.")
        await api.store.delete(VM.fill(org="acme", project="web", vm=made["id"]))
        told = await stream.event()
        assert (told.data["type"], told.data["record"]) == ("delete", None)


async def test_nothing_is_missed_between_a_list_and_the_stream_after_it(api: Api) -> None:
    await _vm(api, "before")
    page = (await api.call("GET", VMS)).json
    after = await _vm(api, "between")
    async with listening(api, f"?after={page['revision']}&kinds=vm") as stream:
        assert (await stream.event()).data["revision"] == after["revision"]


async def test_the_events_of_one_transaction_are_told_apart_and_resumed_between(api: Api) -> None:
    async with listening(api) as stream:
        await _wide(api.store, 0)
        ids = [(await stream.event()).id for _ in range(4)]
    assert len(set(ids)) == 4
    assert len({text.split(".")[0] for text in ids}) == 1
    for number, text in enumerate(ids[:-1]):
        async with listening(api, last=text) as stream:
            assert [(await stream.event()).id for _ in range(3 - number)] == ids[number + 1 :]


async def _wide(store: Store, number: int) -> int:
    """One transaction with four events for people and two for nobody."""
    operations: list[Put] = [Put(f"/hostler/nobody/{number}", b"{}")]
    for vm in ("x", "y"):
        handle = VmHandle(id=vm, state=MachineState.PENDING, detail=str(number), seen_at=0.0)
        operations.append(HANDLE.put(handle, org="acme", project="web", vm=vm))
        operations.append(Put(VM.fill(org="acme", project="web", vm=vm), b'{"number":%d}' % number))
    operations.append(Put(f"/hostler/nobody/else/{number}", b"{}"))
    return (await store.txn([], operations)).revision


@pytest.mark.parametrize("engine", ["memory", "sqlite", "etcd"])
async def test_a_client_that_is_cut_off_anywhere_and_resumes_sees_every_event_once(
    engine: str, tmp_path: Any, request: pytest.FixtureRequest
) -> None:
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    urls = {"memory": lambda: "memory://", "sqlite": lambda: f"sqlite://{tmp_path}/e.db"}
    if engine == "etcd":
        urls["etcd"] = lambda: request.getfixturevalue("etcd").url
    total = dose(test=60, full=1000)
    # A short memory, so that resuming has to read the store's history as well.
    plan = ServerConfig(heartbeat=0.05, history=8)
    seen: list[Any] = []
    async with (
        hostler.open_store(urls[engine]()) as store,
        api_on(_namespaced(store, engine), plan, sockets=True) as api,
    ):
        place = str(api.app.feed.head[0])
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            group.create_task(_writing(api.store, total, random.Random(seed)))
            while len(seen) < 4 * total:
                place = await _some(api, place, seen, rng, 4 * total)
                if rng.random() < 0.3:  # be away for longer than the server remembers
                    await asyncio.sleep(0.1)
    numbers = [(event["revision"], event["subject"], event["kind"]) for event in seen]
    assert len(numbers) == len(set(numbers)) == 4 * total, f"seed {seed}"
    assert [number[0] for number in numbers] == sorted(number[0] for number in numbers), f"seed {seed}"


def _namespaced(store: Store, engine: str) -> Store:
    if engine != "etcd":
        return store
    return NamespacedStore(store, Namespace(f"Api{random.randrange(10**9)}"))


async def _writing(store: Store, total: int, rng: random.Random) -> None:
    for number in range(total):
        await _wide(store, number)
        if rng.random() < 0.3:
            await asyncio.sleep(rng.random() * 0.02)


async def _some(api: Api, place: str, seen: list[Any], rng: random.Random, total: int) -> str:
    """Read for a while, then be cut off somewhere, in the middle of a line too."""
    reader, writer = await asyncio.open_connection("127.0.0.1", api.server.port)
    lines = ("Host: x", f"Authorization: Bearer {api.admin}", f"Last-Event-ID: {place}", "", "")
    writer.write("\r\n".join(("GET /v1/events?kinds=vm,handle HTTP/1.1", *lines)).encode())
    want = rng.randrange(1, 6000)
    buffer = b""
    try:
        while len(buffer) < want and buffer.count(b'"kind"') + len(seen) < total:
            async with asyncio.timeout(60):
                piece = await reader.read(rng.randrange(1, 1500))
            if not piece:
                break
            buffer += piece
    finally:
        writer.transport.abort()
    body = _unchunked(buffer.partition(b"\r\n\r\n")[2])
    for text in body.split(b"\n\n")[:-1]:
        lines = dict(line.split(b": ", 1) for line in text.split(b"\n") if b": " in line and not line.startswith(b":"))
        if b"data" in lines:
            assert b"event" not in lines, text
            seen.append(msgspec.json.decode(lines[b"data"]))
        if b"id" in lines:
            place = lines[b"id"].decode()
    return place


def _unchunked(data: bytes) -> bytes:
    """What a cut-off body in chunks held."""
    found = b""
    while data:
        size, line, data = data.partition(b"\r\n")
        if not line:
            break
        length = int(size, 16)
        found, data = found + data[:length], data[length + 2 :]
    return found


async def test_tenants_see_their_own_and_nodes(api: Api) -> None:
    ann = await api.user(Role.VIEWER, "acme/web")
    async with listening(api, token=ann) as mine, listening(api) as every:
        await _vm(api, "theirs", "/v1/orgs/other/projects/web/vms")
        await _vm(api, "beside", "/v1/orgs/acme/projects/mobile/vms")
        await _vm(api, "mine")
        await api.node("n1")
        assert [(await every.event()).data["subject"].rpartition("/")[0] for _ in range(3)] == [
            "other/web",
            "acme/mobile",
            "acme/web",
        ]
        assert (await mine.event()).data["record"]["name"] == "mine"
        assert (await mine.event()).data["kind"] == "node"


async def test_a_stream_can_be_narrowed(api: Api) -> None:
    async with listening(api, "?org=acme&project=web&kinds=vm") as stream, listening(api, "?org=acme&kinds=vm") as org:
        await api.node("n1")
        await _vm(api, "theirs", "/v1/orgs/other/projects/web/vms")
        await _vm(api, "beside", "/v1/orgs/acme/projects/mobile/vms")
        await _vm(api, "mine")
        assert (await stream.event()).data["record"]["name"] == "mine"
        assert (await org.event()).data["record"]["name"] == "beside"


async def test_secrets_are_never_told(api: Api) -> None:
    async with listening(api) as stream:
        await api.user(Role.VIEWER, "acme/web")
        await _vm(api, "mine")
        assert (await stream.event()).data["kind"] == "vm"


async def test_a_membership_that_is_taken_away_counts_at_once(api: Api) -> None:
    ann = await api.user(Role.MEMBER, "acme/web", name="ann")
    async with listening(api, token=ann) as stream:
        await _vm(api, "one")
        assert (await stream.event()).data["record"]["name"] == "one"
        assert (await api.call("PATCH", "/v1/users/ann", json={"memberships": ["other"]})).status == 200
        await _vm(api, "two")
        await _vm(api, "three", "/v1/orgs/other/projects/p/vms")
        assert (await stream.event()).data["record"]["name"] == "three"


async def test_a_silent_stream_shows_life_and_moves_the_place_to_resume_from(api: Api) -> None:
    async with listening(api, "?kinds=leader") as stream:
        revision = await api.store.put("/elsewhere", b"")
        async with asyncio.timeout(60):
            while not stream.last.startswith(f"{revision}."):
                block = await stream.block()
                assert block is not None
                assert block.data is None


async def test_where_history_is_gone_the_client_is_told_to_list_again(api: Api) -> None:
    old = (await _vm(api, "one"))["revision"]
    for number in range(3):
        await api.store.put("/x", str(number).encode())
    api.app.feed.floor = (2**40, 0)  # as if memory were short
    head = await api.store.put("/x", b"last")
    async with asyncio.timeout(60):
        while api.app.feed.head[0] < head:
            await asyncio.sleep(0.001)
    await api.store.compact(head)
    async with listening(api, last=f"{old - 1}.0") as stream:
        told = await stream.event()
        assert told.event == "reset"
        assert told.data["revision"] >= head
        api.app.feed.floor = (head, 0)
        made = await _vm(api, "two")
        assert (await stream.event()).data["revision"] == made["revision"]


async def test_a_place_in_the_future_is_that_of_another_store(api: Api) -> None:
    async with listening(api, last="999999999.0") as stream:
        told = await stream.event()
        assert told.event == "reset"
        made = await _vm(api, "two")
        assert (await stream.event()).data["revision"] == made["revision"]


async def test_a_stream_is_told_that_the_store_was_put_back_to_an_older_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hostler.entry.server.feed.LOOK_EVERY", 0.1)
    async with serving(plan=QUICK) as api:
        await _put_back(api)


async def _put_back(api: Api) -> None:
    feed = api.app.feed
    async with listening(api) as stream:
        await _vm(api, "one")
        await stream.event()
        feed.head = (2**40, 0)  # as if what it has seen was of another, longer history
        async with asyncio.timeout(60):
            while (told := await stream.event()).event != "reset":
                pass
        assert told.data["revision"] < 2**40
        made = await _vm(api, "two")
        assert (await stream.event()).data["revision"] == made["revision"]


async def test_a_revoked_token_ends_its_stream(api: Api) -> None:
    await api.user(Role.VIEWER, "acme", name="ann")
    issued = (await api.call("POST", "/v1/users/ann/tokens", json={})).json
    async with listening(api, token=issued["token"]) as stream, listening(api) as other:
        assert (await api.call("DELETE", f"/v1/users/ann/tokens/{issued['id']}")).status == 200
        await _vm(api, "one")
        blocks = await stream.end()
        assert [block for block in blocks if block.data is not None] == []
        assert "token" in blocks[-1].comment
        assert (await other.event()).data["kind"] == "vm"


async def test_an_expired_token_ends_its_stream_though_nothing_happens(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    await api.user(Role.VIEWER, "acme", name="ann")
    issued = (await api.call("POST", "/v1/users/ann/tokens", json={"expires_in": 600})).json
    async with listening(api, token=issued["token"]) as stream:
        monkeypatch.setattr(api.services.clock, "wall", lambda: issued["expires_at"])
        assert "token" in (await stream.end())[-1].comment


async def test_more_streams_than_allowed_are_refused() -> None:
    async with serving(plan=ServerConfig(max_streams=2), sockets=True) as api:
        async with listening(api), listening(api):
            answer = await api.call("GET", "/v1/events")
            assert answer.status == 503
        async with asyncio.timeout(60):
            while api.app.feed.streams:
                await asyncio.sleep(0.01)
        async with listening(api):
            pass


async def test_a_stream_that_is_opened_before_the_server_has_read_the_store_waits_for_it(api: Api) -> None:
    api.app.feed._started.clear()  # as before the first read
    async with AsyncExitStack() as streams:
        opening = asyncio.create_task(streams.enter_async_context(listening(api)))
        async with asyncio.timeout(60):
            while not api.app.feed.streams:
                await asyncio.sleep(0.001)
        assert not opening.done()
        api.app.feed._started.set()
        listener = await opening
        made = await _vm(api, "one")
        assert (await listener.event()).data["subject"] == f"acme/web/{made['id']}"


async def test_an_account_that_has_its_share_of_streams_shuts_nobody_out() -> None:
    async with serving(plan=ServerConfig(max_streams=100)) as api, AsyncExitStack() as opened:
        ann, bob = await api.user(Role.VIEWER, "acme", name="ann"), await api.user(Role.VIEWER, "acme", name="bob")
        session = (
            await api.call("POST", "/v1/sessions", token=None, json={"name": "Ann", "password": "password"})
        ).json
        tokens = itertools.cycle((ann, session["token"]))
        for token in itertools.islice(tokens, share(100, manages=False) - 1):
            await opened.enter_async_context(listening(api, token=token))
        async with listening(api, token=ann):
            for token in (ann, session["token"]):
                async with asyncio.timeout(30):
                    answer = await api.call("GET", "/v1/events", token=token)
                assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
                assert answer.json["detail"] == "events: ann has 50 streams open, the limit per account"
                assert answer.json["next"].startswith("close some of them")
            async with listening(api, token=bob), listening(api):
                pass
        async with asyncio.timeout(60):
            while api.app.feed.held["ann"] >= share(100, manages=False):
                await asyncio.sleep(0.01)
        async with listening(api, token=ann):  # a place that was given back
            pass
    assert not api.app.feed.held


async def test_administrators_find_places_where_others_find_none() -> None:
    async with serving(plan=ServerConfig(max_streams=100)) as api:
        ann = await api.user(Role.VIEWER, "acme")
        api.app.feed.streams = 100 - reserved_streams(100)
        async with asyncio.timeout(30):
            answer = await api.call("GET", "/v1/events", token=ann)
        assert (answer.status, answer.json["detail"]) == (503, "events: 90 streams are open, the limit")
        async with listening(api):
            api.app.feed.streams = 100
            assert (await api.call("GET", "/v1/events")).status == 503


def test_an_account_has_a_share_however_many_there_are() -> None:
    for most in (1, 2, 10, 50, 100, 1000, 10_000):
        one, administrator = share(most, manages=False), share(most, manages=True)
        assert 1 <= one <= max(1, most // 2), most
        assert one <= administrator <= most, most
    assert (share(50, manages=False), share(200, manages=False), share(1000, manages=False)) == (25, 50, 100)


async def test_a_reader_that_does_not_read_costs_no_memory_and_misses_nothing() -> None:
    async with serving(plan=ServerConfig(history=50), sockets=True) as api:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        sock.connect(("127.0.0.1", api.server.port))
        reader, writer = await asyncio.open_connection(sock=sock, limit=2**10)
        head = f"GET /v1/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {api.admin}\r\n\r\n"
        writer.write(head.encode())
        await reader.readuntil(b"\n\n")
        padding = "x" * 4000
        total = 2000
        for number in range(total):
            record = msgspec.json.encode({"number": number, "padding": padding})
            await api.store.put(VM.fill(org="a", project="b", vm="c"), record)
        assert len(api.app.feed._items) <= 100
        got = b""
        async with asyncio.timeout(60):
            while b'"number":%d,' % (total - 1) not in got[-20000:]:
                got += await reader.read(65536)
        numbers = [int(text.partition(b",")[0]) for text in got.split(b'"number":')[1:]]
        assert numbers == list(range(total))
        writer.transport.abort()


async def test_closing_the_server_ends_streams_within_seconds() -> None:
    async with serving(sockets=True) as api, asyncio.timeout(60), listening(api) as one, listening(api) as two:
        api.server._server.config.timeout_graceful_shutdown = 60  # after which they would be cut
        with within(1.0, "closing"):
            await api.server.__aexit__(None, None, None)
        assert "closing" in (await one.end())[-1].comment
        assert await two.end()
