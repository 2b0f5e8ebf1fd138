"""Consoles: WebSockets of the API to machines that run in the same process."""

from __future__ import annotations

import asyncio
import base64
import logging
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import msgspec
import pytest
from api_server import VM_BODY, Api, run_machine, serving
from harness.pace import within

from hostler import Client
from hostler.client import Channel
from hostler.drivers.machines.simulated import MemoryHost, SimulatedMachines
from hostler.entry.server import serve
from hostler.errors import Closed, Forbidden, NotFound, Unauthenticated, Unavailable
from hostler.kit.clock import SystemClock
from hostler.model.access import Role

VMS = "/v1/orgs/acme/projects/web/vms"
CONSOLE = f"{VMS}/one/console"
KEY = base64.b64encode(bytes(16)).decode()


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    async with serving(sockets=True) as api:
        yield api


@asynccontextmanager
async def with_machine() -> AsyncIterator[tuple[Api, SimulatedMachines, str]]:
    """A server whose process has the machine `one`."""
    async with (
        SimulatedMachines(MemoryHost(), clock=SystemClock(), rng=random.Random(1)) as machines,
        serving(machines_of={"n1": machines}.get, sockets=True) as api,
    ):
        yield api, machines, await run_machine(api, machines)


def opened(api: Api, token: str = "") -> aiohttp.client._WSRequestContextManager:
    return api.http.ws_connect(f"{api.url}{CONSOLE}", headers={"Authorization": f"Bearer {token or api.admin}"})


async def says(console: aiohttp.ClientWebSocketResponse, text: bytes) -> None:
    got = b""
    async with asyncio.timeout(60):
        while text not in got:
            got += await console.receive_bytes()


async def ended(console: aiohttp.ClientWebSocketResponse) -> aiohttp.WSMessage:
    """The message after the output."""
    async with asyncio.timeout(60):
        while (message := await console.receive()).type is aiohttp.WSMsgType.BINARY:
            pass
    return message


async def let_go(api: Api) -> None:
    """The server counts no console any more."""
    async with asyncio.timeout(60):
        while api.app.feed.streams:
            await asyncio.sleep(0.01)


async def asked(api: Api, head: str) -> tuple[int, bytes]:
    """Status and rest of the answer to a request in raw bytes, read to the end of the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", api.server.port)
    lines = f"Host: x\r\nAuthorization: Bearer {api.admin}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    writer.write(f"{head}{lines}\r\n".encode("latin-1"))
    try:
        async with asyncio.timeout(60):
            status = int((await reader.readline()).split()[1])
            while (await reader.readline()).strip():
                pass
            return status, await reader.read(2000)
    finally:
        writer.close()


async def test_a_console_is_a_websocket_to_the_machine() -> None:
    async with with_machine() as (api, _, _):
        assert (await api.call("GET", CONSOLE)).status == 400
        async with opened(api) as console:
            await says(console, b"simulated machine")
            await console.ping()
            await console.send_bytes(b"echo hello\r")
            await says(console, b"hello")
            await console.send_str("echo words\r")
            await says(console, b"words")
            assert api.app.feed.streams == 1
        await let_go(api)


async def test_a_console_is_refused_by_problem_document_before_it_is_one(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    viewer = await api.user(Role.VIEWER, "acme")
    await api.call("POST", VMS, json=VM_BODY)
    handshake = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": KEY,
    }
    for token, path, status in (
        (viewer, CONSOLE, 403),
        (api.admin, CONSOLE, 503),
        (api.admin, f"{VMS}/none/console", 404),
        (api.admin, f"{VMS}/one", 400),
        ("x", CONSOLE, 401),
    ):
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await api.http.ws_connect(f"{api.url}{path}", headers={"Authorization": f"Bearer {token}"})
        assert refused.value.status == status
        answer = await api.call("GET", path, token=token, **handshake)
        assert (answer.status, answer.json["status"]) == (status, status)
        assert answer.headers["Content-Type"] == "application/problem+json"
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize(
    "headers",
    [
        "",
        f"Sec-WebSocket-Version: 8\r\nSec-WebSocket-Key: {KEY}\r\n",
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: short\r\n",
    ],
)
async def test_a_handshake_that_cannot_be_is_told_so_in_our_words(headers: str) -> None:
    async with with_machine() as (api, _, _):
        status, body = await asked(api, f"GET {CONSOLE} HTTP/1.1\r\n{headers}Connection: close\r\n")
        assert status == 400
        assert "version 13" in msgspec.json.decode(body)["detail"]


@pytest.mark.parametrize(
    ("line", "more"),
    [
        (f"GET {CONSOLE}", "X: " + "x" * 9000 + "\r\n"),
        (f"GET {CONSOLE}", "".join(f"X-{n}: x\r\n" for n in range(200))),
        (f"GET {CONSOLE}?{'x' * 9000}", ""),
        (f"GET {CONSOLE}/\xff", ""),
        (f"POST {CONSOLE}", ""),
    ],
    ids=["long header", "many headers", "long address", "no ascii", "no GET"],
)
async def test_no_handshake_leaves_a_connection_behind(line: str, more: str, caplog: pytest.LogCaptureFixture) -> None:
    async with with_machine() as (api, _, _):
        handshake = f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {KEY}\r\n"
        status, _ = await asked(api, f"{line} HTTP/1.1\r\n{handshake}{more}")
        assert 400 <= status < 500
        async with asyncio.timeout(60):
            while any(isinstance(each, serve.WebSocket) for each in api.server._server.server_state.connections):
                await asyncio.sleep(0.01)
        assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_a_revoked_token_ends_its_console() -> None:
    async with with_machine() as (api, _, _):
        await api.user(Role.MEMBER, "acme", name="ann")
        issued = (await api.call("POST", "/v1/users/ann/tokens", json={})).json
        async with opened(api, issued["token"]) as console:
            assert (await api.call("DELETE", f"/v1/users/ann/tokens/{issued['id']}")).status == 200
            message = await ended(console)
            assert (message.type, message.data) == (aiohttp.WSMsgType.CLOSE, 1008)
        await let_go(api)


async def test_a_machine_that_goes_off_ends_its_console() -> None:
    async with with_machine() as (api, machines, vm), opened(api) as console:
        await says(console, b"simulated machine")
        await machines.stop(vm, grace=0.0)
        message = await ended(console)
        assert (message.type, message.data) == (aiohttp.WSMsgType.CLOSE, 1000)


async def test_a_message_of_a_mebibyte_is_taken_and_a_larger_one_ends_the_console() -> None:
    async with with_machine() as (api, _, _), opened(api) as console:
        await says(console, b"simulated machine")
        await console.send_bytes(b"\r" + b"x" * (serve.MAX_MESSAGE - 2) + b"\r")
        await console.send_bytes(b"echo still here\r")
        await says(console, b"still here")
        await console.send_bytes(b"x" * (serve.MAX_MESSAGE + 1))
        message = await ended(console)
        assert (message.type, message.data) == (aiohttp.WSMsgType.CLOSE, 1009)
        await let_go(api)


async def test_a_caller_that_leaves_without_a_word_is_let_go(caplog: pytest.LogCaptureFixture) -> None:
    async with with_machine() as (api, _, _):
        console = await opened(api)
        await says(console, b"simulated machine")
        transport = console._response.connection.transport  # type: ignore[union-attr]
        assert transport is not None
        transport.abort()
        await let_go(api)
        await console.close()
        assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize("flood", [False, True], ids=["quiet machine", "machine that talks"])
async def test_a_caller_that_answers_no_ping_is_let_go(flood: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "PING_EVERY", 0.3)
    async with with_machine() as (api, machines, vm):
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        listener.setblocking(False)
        loop = asyncio.get_running_loop()
        with listener:
            await loop.sock_connect(listener, ("127.0.0.1", api.server.port))
            head = (
                f"GET {CONSOLE} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {api.admin}\r\nConnection: Upgrade\r\n"
                f"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {KEY}\r\n\r\n"
            )
            await loop.sock_sendall(listener, head.encode())
            async with asyncio.timeout(60):
                while not api.app.feed.streams:
                    await asyncio.sleep(0.001)
            if flood:
                talking = asyncio.create_task(_talk(machines, vm))
            await let_go(api)
            async with asyncio.timeout(60):
                while any(isinstance(each, serve.WebSocket) for each in api.server._server.server_state.connections):
                    await asyncio.sleep(0.01)
            if flood:
                talking.cancel()


async def test_a_caller_whose_answer_to_a_ping_is_behind_what_it_sends_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "PING_EVERY", 0.5)
    async with with_machine() as (api, _, _):
        headers = {"Authorization": f"Bearer {api.admin}"}
        async with api.http.ws_connect(f"{api.url}{CONSOLE}", headers=headers, autoping=False) as console:
            loop = asyncio.get_running_loop()
            began = loop.time()
            while loop.time() - began < 2.0:  # four times what an unanswered ping may take
                await console.send_bytes(b"x")
                await asyncio.sleep(0.01)
            assert api.app.feed.streams == 1
            await let_go(api)  # it says nothing any more


async def _talk(machines: SimulatedMachines, vm: str) -> None:
    """Every console of the machine says a lot."""
    while True:
        for console in list(machines._consoles.get(vm, ())):
            console._say(b"x" * 60_000)
        await asyncio.sleep(0)


async def test_the_server_closes_quickly_with_an_open_console(caplog: pytest.LogCaptureFixture) -> None:
    async with with_machine() as (api, _, _), opened(api) as console:
        await says(console, b"simulated machine")
        api.server._server.config.timeout_graceful_shutdown = 60  # after which it would be cut
        with within(1.0, "closing"):
            await api.server.__aexit__(None, None, None)
        assert (await ended(console)).type is aiohttp.WSMsgType.CLOSE
        assert api.app.feed.streams == 0
        assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


# The client


async def heard(console: Channel, text: bytes) -> None:
    got = b""
    async with asyncio.timeout(60):
        while text not in got:
            got += await console.read()
            assert got, "it ended"


async def test_the_client_types_and_reads_until_the_machine_is_off() -> None:
    async with with_machine() as (api, machines, vm), Client(api.url, api.admin) as client:
        async with client.vms.console("acme", "web", "one") as console:
            await heard(console, b"simulated machine")
            await console.write(b"echo hello\r")
            await heard(console, b"hello\r\n")
            await console.write(b"\r" + b"x" * (2 * serve.MAX_MESSAGE) + b"\recho after\r")
            await heard(console, b"after\r\n")
            await machines.stop(vm, grace=0.0)
            async with asyncio.timeout(60):
                while await console.read():
                    pass
            assert await console.read() == b""
        with pytest.raises(Closed):
            await console.read()
        await let_go(api)
        with pytest.raises(NotFound, match="it is off and has no console; start it first"):
            async with client.vms.console("acme", "web", "one"):
                pass


async def test_the_client_tells_why_there_is_no_console(api: Api) -> None:
    viewer = await api.user(Role.VIEWER, "acme")
    await api.call("POST", VMS, json=VM_BODY)
    for token, vm, kind, words in (
        (api.admin, "one", Unavailable, "console of one: not placed on a node yet"),
        (api.admin, "none", NotFound, "none"),
        (viewer, "one", Forbidden, "modify_workloads"),
        ("x", "one", Unauthenticated, "token"),
    ):
        async with Client(api.url, token) as client:
            with pytest.raises(kind, match=words):
                async with client.vms.console("acme", "web", vm):
                    pass
    async with Client("http://127.0.0.1:1", api.admin) as client:
        with pytest.raises(Unavailable, match="cannot be reached"):
            async with client.vms.console("acme", "web", "one"):
                pass


async def test_the_client_tells_a_token_that_no_longer_counts_from_a_machine_that_is_off() -> None:
    async with with_machine() as (api, _, _):
        await api.user(Role.MEMBER, "acme", name="ann")
        issued = (await api.call("POST", "/v1/users/ann/tokens", json={})).json
        async with Client(api.url, issued["token"]) as client, client.vms.console("acme", "web", "one") as console:
            await heard(console, b"simulated machine")
            await api.call("DELETE", f"/v1/users/ann/tokens/{issued['id']}")
            with pytest.raises(Unauthenticated):
                await heard(console, b"never said")


async def test_the_client_tells_a_server_that_closes_from_a_machine_that_is_off() -> None:
    async with (
        with_machine() as (api, _, _),
        Client(api.url, api.admin) as client,
        client.vms.console("acme", "web", "one") as console,
    ):
        await heard(console, b"simulated machine")
        await api.server.__aexit__(None, None, None)
        with pytest.raises(Unavailable):
            await heard(console, b"never said")
        with pytest.raises(Unavailable):
            await console.write(b"too late")
