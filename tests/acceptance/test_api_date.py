"""Every answer says what time it is by the server's clock: a page reckons with that."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from email.utils import formatdate, parsedate_to_datetime

import aiohttp
import pytest
from api_server import VM_BODY, Api, serving

from hostler.entry.server.app import build
from hostler.entry.server.serve import Server

VMS = "/v1/orgs/acme/projects/web/vms"
NOW = 1_767_225_600.0
"""Of the calendar of a simulation."""


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    """A server by whose clock it is always the same time."""
    async with serving(sockets=True) as api, Server(build(api.services), wall=lambda: NOW) as server:
        api.url = server.url
        yield api


async def test_every_kind_of_answer_has_the_servers_time(api: Api) -> None:
    asked = [
        await api.call("GET", "/v1/overview"),
        await api.call("HEAD", "/v1/overview"),
        await api.call("GET", "/v1/overview", token="nobody"),
        await api.call("GET", "/v1/nowhere"),
        await api.call("PUT", "/v1/overview"),
        await api.call("POST", VMS, json=VM_BODY),
        await api.call("POST", VMS, data=b"{", Content_Type="application/json"),
        await api.call("GET", "/v1/sessions/browser", token=None),
        await api.call("GET", "/"),
        await api.call("GET", "/healthz", token=None),
        await api.call("GET", f"{VMS}/one/console"),
    ]
    assert {reply.status for reply in asked} >= {200, 201, 204, 400, 401, 404, 405}
    for reply in asked:
        assert reply.headers.getall("Date") == [formatdate(NOW, usegmt=True)], reply.status


async def test_so_have_streams_refused_handshakes_and_what_is_no_http(api: Api) -> None:
    headers = {"Authorization": f"Bearer {api.admin}"}
    async with api.http.get(f"{api.url}/v1/events", headers=headers) as stream:
        assert stream.headers.getall("Date") == [formatdate(NOW, usegmt=True)]
        assert stream.content_type == "text/event-stream"
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await api.http.ws_connect(f"{api.url}{VMS}/one/console")
    assert refused.value.headers is not None
    assert "Date" in refused.value.headers  # the library's own; no page sees it
    host, _, port = api.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"nonsense\r\n\r\n")
    async with asyncio.timeout(60):
        said = await reader.readuntil(b"\r\n\r\n")
    writer.close()
    assert f"date: {formatdate(NOW, usegmt=True)}\r\n".encode() in said


async def test_a_simulation_says_how_fast_its_time_goes_and_others_say_nothing(api: Api) -> None:
    assert "Hostler-Rate" not in (await api.call("GET", "/v1/overview")).headers
    for rate, said in ((0.0, "0"), (0.1, "0.1"), (3600.0, "3600")):
        async with Server(build(api.services), wall=lambda: NOW, rate=lambda rate=rate: rate) as server:  # type: ignore[misc]
            api.url = server.url
            assert (await api.call("GET", "/v1/overview")).headers.getall("Hostler-Rate") == [said]


async def test_the_time_is_that_of_now() -> None:
    async with serving(sockets=True) as api:
        before = time.time()
        said = parsedate_to_datetime((await api.call("GET", "/v1/overview")).headers["Date"]).timestamp()
        assert before - 5 < said <= time.time()
