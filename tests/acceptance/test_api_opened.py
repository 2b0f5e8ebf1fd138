"""What is opened in a machine or a lab is in the audit with one line, however its caller came in."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from api_server import VM_BODY, Api
from terminal_guest import browse
from terminal_place import Place, placed, until

from hostler.errors import Unavailable
from hostler.keys.families import HANDLE, VM
from hostler.keys.lab import LAB
from hostler.model.vm import Access, MachineState, Readiness, Step, VmHandle
from hostler.ports.machines import ChannelKind

ONE = "/v1/orgs/acme/projects/web/vms/one"


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    """A lab of ann, and a machine that a shell, the serial port and SSH of which lead to the same guest."""
    async with placed(tmp_path) as place:
        await place.lab()
        vm = (await place.api.call("POST", "/v1/orgs/acme/projects/web/vms", json=VM_BODY)).json["id"]
        place.doubles.ports |= {(vm, door): place.guest.port for door in (ChannelKind.SSH, ChannelKind.CONSOLE)}
        access = Access(host="127.0.0.1", port=22, user="user", host_keys=(place.guest.public_key,))
        ready = Readiness(step=Step.AVAILABLE, since=0.0)
        handle = VmHandle(id=vm, node="n1", state=MachineState.RUNNING, access=access, readiness=ready, seen_at=0.0)
        await place.api.store.txn([], [HANDLE.put(handle, org="acme", project="web", vm=vm)])
        await place.api.services.view.refresh(place.api.services.view.handles)
        yield place


async def lines(api: Api) -> list[tuple[str, str, str, str]]:
    found = (await api.call("GET", "/v1/audit?limit=1000")).json["items"]
    return [
        (line["verb"], line["who"], line["subject"], line["source"]) for line in found if line["verb"].endswith(".open")
    ]


async def ticket(api: Api, what: str) -> str:
    path, body = ("/v1/labs/ann", None) if what == "terminal" else (ONE, {"door": what})
    reply = await api.call("POST", f"{path}/tickets", json=body)
    assert reply.status == 201, reply.body
    return str(reply.json["ticket"])


async def opened(api: Api, what: str, *, by_ticket: bool) -> None:
    """Open it, hear that it is there, and go."""
    query = f"?ticket={await ticket(api, what)}" if by_ticket else ""
    if what == "terminal":
        page = await browse(api, "ann", query, token=None if by_ticket else "")
        await page.until(kind="connected")
        await page.leave()
    else:
        headers = {} if by_ticket else {"Authorization": f"Bearer {api.admin}"}
        async with asyncio.timeout(60), api.http.ws_connect(f"{api.url}{ONE}/{what}{query}", headers=headers) as door:
            await (door.receive_str() if what == "shell" else door.receive_bytes())
    await until(lambda: not api.app.feed.streams)


@pytest.mark.parametrize("by_ticket", [False, True])
@pytest.mark.parametrize("what", ["console", "ssh", "shell", "terminal"])
async def test_what_is_opened_leaves_one_line_however_its_caller_came_in(
    place: Place, what: str, by_ticket: bool
) -> None:
    await opened(place.api, what, by_ticket=by_ticket)
    [(verb, who, subject, source)] = await lines(place.api)
    assert (verb, who, source) == (f"{what}.open", "admin", "127.0.0.1")
    vm = (await place.api.call("GET", ONE)).json["id"]
    assert subject == (LAB.fill(user="ann") if what == "terminal" else VM.fill(org="acme", project="web", vm=vm))


async def test_how_long_it_was_open_is_logged(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        await opened(place.api, "console", by_ticket=False)
        await until(lambda: f"{ONE}/console" in caplog.text)


@pytest.mark.parametrize("what", ["console", "shell", "terminal"])
async def test_what_is_not_opened_leaves_none(place: Place, what: str) -> None:
    path = "/v1/labs/nobody/terminal" if what == "terminal" else f"{ONE}/{what}"
    place.doubles.ports.clear()
    place.guest.allowed.clear()
    headers = {"Authorization": f"Bearer {place.api.admin}"}
    try:
        async with asyncio.timeout(60), place.api.http.ws_connect(f"{place.api.url}{path}", headers=headers) as door:
            while (await door.receive()).type is aiohttp.WSMsgType.TEXT:
                pass
            ended = door.close_code
    except aiohttp.WSServerHandshakeError as refused:
        ended = refused.status
    assert ended in (404, 1011, 4004)
    assert not await lines(place.api)


@pytest.mark.parametrize("what", ["console", "terminal"])
async def test_what_cannot_be_told_is_not_opened(place: Place, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def out_of_reach(*arguments: object, **more: object) -> int:
        raise Unavailable("store: out of reach")

    monkeypatch.setattr("hostler.engine.idempotent_writer.Writer.commit", out_of_reach)
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await opened(place.api, what, by_ticket=False)
    assert refused.value.status == 503
    assert not place.api.app.feed.streams


async def test_who_cannot_be_told_of_throws_nobody_out_of_a_terminal(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = await browse(place.api)
    await there.until(said="shell 1")

    async def out_of_reach(*arguments: object, **more: object) -> int:
        raise Unavailable("store: out of reach")

    monkeypatch.setattr("hostler.engine.idempotent_writer.Writer.commit", out_of_reach)
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await browse(place.api)
    assert refused.value.status == 503
    await there.type("who\r")
    await there.until(said="shell 1 is here")
