"""A minimal load generator: raw HTTP/1.1 requests on persistent connections.

All compared servers get the same load generator, so its cost is the same for all.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from time import perf_counter
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from bench.plane_process import TICKS
from hostler.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from bench.plane_process import Process

_END = b"\r\n\r\n"
_LENGTH = b"content-length: "


class Reply:
    """The status and the body of an answer."""

    __slots__ = ("body", "status")

    def __init__(self, status: int, body: bytes) -> None:
        self.status, self.body = status, body


class Line(asyncio.Protocol):
    """One connection with one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._data = b""
        self._waiter: asyncio.Future[Reply] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        """Collect the answer."""
        data = self._data + data if self._data else data
        end = data.find(_END)
        if end >= 0:
            at = data.find(_LENGTH, 0, end + 2)
            length = int(data[at + len(_LENGTH) : data.index(b"\r", at)]) if at >= 0 else 0
            if len(data) >= end + len(_END) + length:
                waiter, self._waiter, self._data = self._waiter, None, b""
                if waiter is not None and not waiter.done():
                    waiter.set_result(Reply(int(data[9:12]), data[end + len(_END) :]))
                return
        self._data = data

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Fail the pending request."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(Unavailable("server: closed the connection"))

    async def ask(self, request: bytes) -> Reply:
        """Send a request. Return the answer."""
        if self._transport is None or self._transport.is_closing():
            raise Unavailable("server: the connection is closed")
        self._waiter = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._waiter

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


def get(url: str, path: str, token: str = "") -> bytes:
    """Return a GET request as a client sends it."""
    lines = [f"GET {path} HTTP/1.1", f"Host: {urlsplit(url).netloc}", "Accept: application/json"]
    if token:
        lines.append(f"Authorization: Bearer {token}")
    return "\r\n".join([*lines, "", ""]).encode()


@asynccontextmanager
async def lines(url: str, count: int) -> AsyncIterator[list[Line]]:
    """Open connections to a server."""
    parts = urlsplit(url)
    opened: list[Line] = []
    try:
        for _ in range(count):
            _, line = await asyncio.get_running_loop().create_connection(Line, parts.hostname or "", parts.port or 0)
            opened.append(line)
        yield opened
    finally:
        for line in opened:
            line.close()


async def measure_load(opened: list[Line], request: bytes, seconds: float) -> int:
    """Send requests on all connections for some seconds. Return the number of answers. Unavailable: one was not 200."""
    until = perf_counter() + seconds
    counts = [0] * len(opened)

    async def ask(number: int, line: Line) -> None:
        while perf_counter() < until:
            reply = await line.ask(request)
            if reply.status != 200:
                raise Unavailable(f"server: answered {reply.status}: {reply.body[:200].decode('utf-8', 'replace')}")
            counts[number] += 1

    await asyncio.gather(*(ask(number, line) for number, line in enumerate(opened)))
    return sum(counts)


async def until(what: str, done: Callable[[], Awaitable[bool]], within: float) -> float:
    """Wait until `done` is true. Return the seconds that took. Unavailable: it took too long."""
    started = perf_counter()
    while not await done():
        if perf_counter() - started > within:
            raise Unavailable(f"{what}: not within {within:g} s")
        await asyncio.sleep(0.02)
    return perf_counter() - started


class MeasuredServer:
    """A server, connections to it, and its results by round."""

    def __init__(self, process: Process, opened: list[Line], request: bytes) -> None:
        self._process, self._opened, self._request = process, opened, request
        self.rates: list[float] = []
        self.cpu_us: list[float] = []

    async def round(self, seconds: float) -> None:
        """Send requests for some seconds."""
        before = self._process.cpu()
        # on a busy host there may be no answer in time
        count = max(1, await measure_load(self._opened, self._request, seconds))
        self.rates.append(count / seconds)
        used = max(1 / TICKS, self._process.cpu() - before)  # a short round may end within a tick
        self.cpu_us.append(used * 1e6 / count)
