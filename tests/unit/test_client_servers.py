"""A client that knows several servers asks one that takes connections."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from api_server import api_on, serving

from hostler.client import Client
from hostler.client.address import Address
from hostler.errors import Invalid, Unavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from api_server import Api


def closed() -> str:
    """An address where nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return f"http://127.0.0.1:{found.getsockname()[1]}"


@asynccontextmanager
async def two() -> AsyncIterator[tuple[Api, Api, AsyncExitStack]]:
    """Two servers on one store; the stack ends the first."""
    async with serving(sockets=True) as one, AsyncExitStack() as stack:
        other = await stack.enter_async_context(api_on(one.store, sockets=True))
        yield one, other, stack


async def test_the_first_server_that_takes_connections_is_asked_and_the_next_when_it_ends() -> None:
    async with (
        two() as (one, other, stack),
        Client(f"{closed()}, {other.url},{one.url}", one.admin, retries=1) as client,
    ):
        await client.nodes.list()
        assert client.url == other.url
        await stack.aclose()
        await client.nodes.list()
        assert client.url == one.url


async def test_a_stream_is_opened_at_the_first_server_that_takes_connections() -> None:
    async with (
        serving(sockets=True) as api,
        Client(f"{closed()},{api.url}", api.admin) as client,
        client.events() as events,
        asyncio.timeout(20),
    ):
        first = asyncio.ensure_future(anext(aiter(events)))
        await events.connected.wait()
        await api.node("n1")
        assert await first


async def test_where_none_takes_connections_all_are_named() -> None:
    first, second = closed(), closed()
    async with Client(f"{first},{second}", "token", retries=0) as client:
        with pytest.raises(Unavailable, match=f"server {first}, {second}: cannot be reached"):
            await client.nodes.list()


@pytest.mark.parametrize("url", ["http://127.0.0.1:1,", "http://127.0.0.1:1,x", "https://a:1,ftp://b"])
def test_each_of_several_must_be_a_server(url: str) -> None:
    with pytest.raises(Invalid, match="must be http"):
        Address(url, token=False, unix=None, insecure=False)


def test_a_token_is_sent_in_clear_to_none_of_several() -> None:
    with pytest.raises(Invalid, match="server http://b.example:1: the token would be sent in clear"):
        Address("https://a.example:1,http://b.example:1", token=True, unix=None, insecure=False)
