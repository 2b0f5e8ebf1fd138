"""A lab's terminal: nonsense, slowness on both sides, those who may not, and too many."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest
from api_server import serving
from harness.pace import within
from terminal_guest import Browser, browse
from terminal_place import Place, placed, until

from hostler.entry.server import serve, websocket
from hostler.entry.terminal import protocol, session
from hostler.model.access import Role
from hostler.model.lab import LabPhase


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with placed(tmp_path) as place:
        yield place


@pytest.fixture(autouse=True)
def _nothing_goes_wrong_unseen(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(session, "AGAIN", (0.02, 0.1))
    monkeypatch.setattr(session, "RATE", 1e9)
    yield
    records = [*caplog.get_records("call"), *caplog.records]
    assert not [record for record in records if record.levelno >= logging.ERROR]


NONSENSE = (
    "",
    "no json",
    "[]",
    "7",
    "{}",
    '{"type":"input"}',
    '{"type":"input","data":7}',
    '{"type":"input","data":"\\ud800"}',
    '{"type":"resize","cols":"80","rows":24}',
    '{"type":"resize","cols":0,"rows":24}',
    '{"type":"resize","cols":true,"rows":24}',
    '{"type":"resize","cols":1e99,"rows":24}',
    '{"type":"resize","cols":80,"rows":99999999999999999999}',
    '{"type":"output","data":"x"}',
    '{"type":["input"],"data":"x"}',
    "[" * 100_000,
    '{"type":"input","data":' + "[" * 100_000,
)


async def test_a_message_that_means_nothing_is_told_so_and_the_terminal_goes_on(place: Place) -> None:
    await place.lab()
    for start in range(0, len(NONSENSE), 9):
        page = await browse(place.api)
        await page.until(kind="connected")
        for text in NONSENSE[start : start + 9]:
            page.seen.clear()
            await page.socket.send_str(text)
            assert len((await page.until(kind="error"))["message"]) < 500, text
        await page.type("who\r")
        await page.until(said="shell 1 is here")
    assert place.guest.typed == b"who\r" * 2


async def test_who_sends_nothing_else_is_closed(place: Place) -> None:
    await place.lab()
    page = await browse(place.api)
    for _ in range(10):
        await page.socket.send_str("nonsense")
    assert await page.closed() == 1008
    assert len(page.all("error")) == 10
    page = await browse(place.api)
    await page.socket.send_bytes(b"\x00\xff")
    await page.until(kind="error", said="binary")
    assert await page.closed() == 1003
    page = await browse(place.api)
    await page.type("x" * serve.MAX_MESSAGE)
    assert await page.closed() == 1009
    page = await browse(place.api)
    await page.socket._writer.send_frame(b"\xff\xfe", aiohttp.WSMsgType.TEXT)
    assert await page.closed() == 1007
    page = await browse(place.api)
    await page.type("who\r")
    await page.until(kind="connected")


async def test_a_browser_that_does_not_read_holds_up_the_shell_and_not_the_server(place: Place) -> None:
    await place.lab()
    page = await browse(place.api)
    await page.until(said="shell 1")
    transport = page.socket._response.connection.transport  # type: ignore[union-attr]
    assert transport is not None
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    for each in place.api.server._server.server_state.connections:
        each.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    transport.pause_reading()  # type: ignore[attr-defined]
    await page.type("pour 2000\r")
    last, still = 0, 0
    while still < 30:  # until nothing moves any more
        await asyncio.sleep(0.01)
        still = still + 1 if last == place.guest.poured > 0 else 0
        last = place.guest.poured
    assert 0 < place.guest.poured < 1_500 * 1024  # what the system buffers, and little more
    assert len(place.terminal().scroll._text) <= 64 * 1024
    newer = await browse(place.api)
    await newer.until(said="poured\r\n")
    assert place.guest.poured == 2000 * 1024
    assert "dropped while disconnected" not in str(newer.all("info"))


async def test_a_shell_that_takes_no_input_holds_up_the_browser_and_not_the_server(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    await place.lab()
    page = await browse(place.api)
    await page.until(kind="connected")
    await page.type("later done\r")
    await until(lambda: place.guest.typed)
    paste = "y" * (serve.MAX_MESSAGE // 2)

    async def pasting() -> None:
        for _ in range(40):
            await page.type(paste)

    pasted = asyncio.create_task(pasting())
    done, _ = await asyncio.wait((pasted,), timeout=0.5)
    assert not done, "20 MiB were taken in"
    newer = await browse(place.api)  # and yet it can be taken over
    await newer.until(kind="connected")
    pasted.cancel()
    await asyncio.wait((pasted,))
    monkeypatch.setattr(websocket, "TYPED_WITHIN", 0.05)
    await newer.type("z" * 1024)
    await newer.until(kind="error", said="the shell accepts none")
    await newer.leave()
    await until(lambda: not place.api.app.feed.streams)  # that it has gone is heard


async def test_terminals_count_for_their_labs_and_not_for_who_opens_those_of_a_class(place: Place) -> None:
    await place.lab()
    held = place.api.app.feed.held
    held["admin"] = 1000
    page = await browse(place.api)
    await page.until(kind="connected")
    assert held["labs/ann"] == 1
    held["labs/ann"] += 1000
    with pytest.raises(aiohttp.WSServerHandshakeError, match="503"):
        await browse(place.api)


async def test_who_may_not_is_refused_before_it_is_a_websocket(place: Place) -> None:
    await place.lab()
    viewer = await place.api.user(Role.VIEWER, "labs")
    other = await place.api.user(Role.MEMBER, "labs/bob", "acme")
    for token, user, status in (
        (None, "ann", 401),
        ("x", "ann", 401),
        (viewer, "ann", 403),
        (other, "ann", 404),
        ("", "a%00b", 400),
        ("", "a" * 256, 400),
    ):
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await browse(place.api, user, token=token)
        assert refused.value.status == status, (token, user)
    assert (await place.api.call("GET", "/v1/labs/ann/terminal")).status == 400
    for query in ("?replay=some", "?x=y"):
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await browse(place.api, query=query)
        assert refused.value.status == 400
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await place.api.http.ws_connect(
            f"{place.api.url}/v1/labs/ann/terminal",
            headers={"Authorization": f"Bearer {place.api.admin}", "Origin": "http://elsewhere.example"},
        )
    assert refused.value.status == 403
    assert not len(place.api.app.terminals)
    own = await place.api.user(Role.MEMBER, "labs/ann")
    page = await browse(place.api, token=own)
    await page.until(kind="connected")


async def test_a_ticket_opens_the_terminal_of_its_user_once(place: Place) -> None:
    await place.lab()
    await place.lab("bob")
    own = await place.api.user(Role.MEMBER, "labs/ann", name="ann")
    other = await place.api.user(Role.MEMBER, "labs/bob")
    viewer = await place.api.user(Role.VIEWER, "labs")
    assert (await place.api.call("POST", "/v1/labs/ann/tickets", token=other)).status == 404
    assert (await place.api.call("POST", "/v1/labs/ann/tickets", token=viewer)).status == 403
    reply = await place.api.call("POST", "/v1/labs/ann/tickets", token=own)
    assert (reply.status, reply.json["url"]) == (201, "/v1/labs/ann/terminal")
    ticket = reply.json["ticket"]
    for shown in (ticket, (await place.api.call("POST", "/v1/labs/ann/tickets")).json["ticket"]):
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await browse(place.api, "bob", f"?ticket={shown}", token=None)
        assert refused.value.status == (404 if shown == ticket else 401)
    page = await browse(place.api, "ann", f"?ticket={ticket}&replay=all", token=None)
    await page.until(said="shell 1")
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await browse(place.api, "ann", f"?ticket={ticket}", token=None)
    assert refused.value.status == 401
    tokens = (await place.api.call("GET", "/v1/users/ann/tokens")).json["items"]
    await place.api.call("DELETE", f"/v1/users/ann/tokens/{tokens[0]['id']}")
    assert await page.closed() == 1008  # with the token that it was issued for
    assert len(place.api.app.terminals) == 1  # whoever has the right may come back


async def test_a_server_has_so_many_terminals_and_no_more(tmp_path: Path) -> None:
    async with placed(tmp_path, max_terminals=1, terminal_grace=0.05) as place:
        await place.lab()
        await place.lab("bob")
        page = await browse(place.api)
        await page.until(kind="connected")
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await browse(place.api, "bob")
        assert refused.value.status == 503
        again = await browse(place.api)
        await again.until(kind="connected")  # one's own counts once
        await again.leave()
        await place.empty()
        await (await browse(place.api, "bob")).until(kind="connected")


async def test_a_server_without_a_key_has_no_terminals(tmp_path: Path) -> None:
    async with serving(sockets=True) as api:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await browse(api)
        assert refused.value.status == 503
    (tmp_path / "data").mkdir()
    async with placed(tmp_path) as place:
        (tmp_path / "data" / "lab_ed25519").chmod(0o644)
        await place.lab()
        page = await browse(place.api)
        await page.until(kind="error", said="other users can read it")
        assert await page.closed() == 1011


async def test_the_server_closes_quickly_with_open_terminals(place: Place) -> None:
    pages: list[Browser] = []
    for user in ("ann", "bob"):
        await place.lab(user)
        pages.append(await browse(place.api, user))
        await pages[-1].until(kind="connected")
    await place.lab("eve", phase=LabPhase.WAITING, available=False)
    pages.append(await browse(place.api, "eve"))
    await pages[-1].until(kind="provisioning")
    place.api.server._server.config.timeout_graceful_shutdown = 60  # after which they would be cut
    with within(1.5, "closing"):
        await place.api.server.__aexit__(None, None, None)
    for page in pages:
        assert await page.closed() in (1001, 1012)
        assert page.all("info") == ["the server closes"]
    assert not len(place.api.app.terminals)
    await until(lambda: not [task for task in asyncio.all_tasks() if "terminal of" in task.get_name()])


async def test_what_the_older_still_types_after_the_takeover_goes_nowhere(place: Place) -> None:
    await place.lab()
    page = await browse(place.api)
    await page.until(said="shell 1")
    shell = place.terminal()
    older = shell._screen
    assert older is not None
    shell.enter()
    await older.write(protocol.Input("rm -rf\r"))
    newer = await browse(place.api)
    await newer.type("who\r")
    await newer.until(said="shell 1 is here")
    assert place.guest.typed == b"who\r"
