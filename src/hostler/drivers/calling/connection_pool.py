"""Connections to workers: one for all calls to an address, and one for each stream."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hostler.drivers.calling.connection import Stream, WorkerConnection
from hostler.ports.calls import CallFailed, Fault, Hello, Unreachable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from hostler.ports.calls import Call

CONNECT_WITHIN = 2.0
"""Seconds for a connection and its welcome."""
IDLE = 300.0
"""Seconds after which an unused connection is closed."""
SPARE = 4
"""Connections of ended streams that are kept for later streams, per address."""


class TcpConnectionPool:
    """`hostler.ports.calls.WorkerConnections` over TCP; an address with a slash is a unix socket."""

    def __init__(self, token: str, *, caller: str = "", connect_within: float = CONNECT_WITHIN) -> None:
        self._hello = Hello(token, caller)
        self._within = connect_within
        self._shared: dict[str, WorkerConnection] = {}
        self._opening: dict[str, asyncio.Task[WorkerConnection]] = {}
        self._spare: dict[str, list[WorkerConnection]] = {}
        self._all: dict[WorkerConnection, None] = {}
        self._sweeping: asyncio.TimerHandle | None = None
        self._closed = False
        self._empty: asyncio.Event | None = None

    async def ask(self, address: str, call: Call, *, alone: bool = False) -> bytes | Stream | _Alone:
        """Implement `Lines.ask`."""
        line = None if alone else self._shared.get(address)
        within = call.within
        if line is None or not line.open or line.congested:
            line, within = await self._acquire(address, within, alone)
        waiting = line.send(call, within)
        try:
            answer = await waiting.future
        except asyncio.CancelledError:
            line.abandon(waiting)
            if alone:
                line.close()
            raise
        except CallFailed:
            if alone:
                self._keep(line)
            raise
        if alone:
            if isinstance(answer, Stream):
                return _Alone(answer, lambda: self._keep(line))
            self._keep(line)
        return answer

    async def call(self, address: str, call: Call) -> AsyncIterator[bytes]:
        """Implement `Lines.call`."""
        answer = await self.ask(address, call)
        if isinstance(answer, bytes):
            yield answer
            return
        try:
            async for value in answer:
                yield value
        finally:
            await answer.aclose()

    async def aclose(self) -> None:
        """Close all connections."""
        self._closed = True
        if self._sweeping is not None:
            self._sweeping.cancel()
        opening = list(self._opening.values())
        for task in opening:
            task.cancel()
        await asyncio.gather(*opening, return_exceptions=True)
        lines = list(self._all)
        for line in lines:
            line.abort()
        if self._all:  # a transport reports its end in the next iteration of the event loop
            self._empty = asyncio.Event()
            await self._empty.wait()

    # Internal

    async def _acquire(self, address: str, within: float | None, alone: bool) -> tuple[WorkerConnection, float | None]:
        """Return a connection that can take a call now, and the remaining time."""
        loop = asyncio.get_running_loop()
        until = None if within is None else loop.time() + within
        try:
            async with asyncio.timeout_at(until):
                line = await self._line(address, alone)
                while line.congested:
                    await line.writable()
                    if not line.open:
                        line = await self._line(address, alone)
        except TimeoutError:
            raise CallFailed(
                Fault.DEADLINE, f"the deadline passed before there was a connection to {address}", started=False
            ) from None
        return line, None if until is None else until - loop.time()

    async def _line(self, address: str, alone: bool) -> WorkerConnection:
        if alone:
            spare = self._spare.get(address)
            while spare:
                line = spare.pop()
                if line.open:
                    return line
            return await self._connect_to(address)
        line = self._shared.get(address)  # type: ignore[assignment]
        if line is not None and line.open:
            return line
        task = self._opening.get(address)
        if task is None:
            task = asyncio.create_task(self._open_shared(address), name=f"line to {address}")
            self._opening[address] = task
        return await asyncio.shield(task)

    async def _open_shared(self, address: str) -> WorkerConnection:
        try:
            line = await self._connect_to(address)
            if line.open:
                self._shared[address] = line
            return line
        finally:
            self._opening.pop(address, None)

    async def _connect_to(self, address: str) -> WorkerConnection:
        if self._closed:
            raise Unreachable(f"{address}: closed, no more calls are made")
        loop = asyncio.get_running_loop()
        line = WorkerConnection(address, self._hello, loop, self._remove)
        try:
            async with asyncio.timeout(self._within):
                if "/" in address:
                    await loop.create_unix_connection(lambda: line, address)
                else:
                    host, _, port = address.rpartition(":")
                    await loop.create_connection(lambda: line, host.strip("[]"), int(port))
                self._all[line] = None
                await line.ready
        except TimeoutError:
            line.abort()
            raise Unreachable(f"{address}: no connection within {self._within:g} s") from None
        except (OSError, ValueError) as error:
            line.abort()
            raise Unreachable(f"{address}: no connection ({getattr(error, 'strerror', None) or error})") from None
        except BaseException:
            line.abort()
            raise
        if self._sweeping is None:
            self._sweeping = loop.call_later(IDLE / 5, self._sweep)
        return line

    def _keep(self, line: WorkerConnection) -> None:
        """Keep a connection after its stream, for the next one; close it if the worker may still send on it."""
        spare = self._spare.setdefault(line.address, [])
        if line.open and not line.busy and len(spare) < SPARE and not self._closed:
            spare.append(line)
        else:
            line.close()

    def _remove(self, line: WorkerConnection) -> None:
        self._all.pop(line, None)
        if self._empty is not None and not self._all:
            self._empty.set()
        if self._shared.get(line.address) is line:
            del self._shared[line.address]
        spare = self._spare.get(line.address)
        if spare is not None:
            if line in spare:
                spare.remove(line)
            if not spare:
                del self._spare[line.address]

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        for line in list(self._all):
            if line.open and not line.busy and loop.time() - line.used_at > IDLE:
                line.close()
        self._sweeping = None if not self._all else loop.call_later(IDLE / 5, self._sweep)


class _Alone:
    """A stream on a separate connection, which is returned to the pool when the stream ends."""

    __slots__ = ("_back", "_stream")

    def __init__(self, stream: Stream, back: Callable[[], None]) -> None:
        self._stream = stream
        self._back: Callable[[], None] | None = back

    def __aiter__(self) -> _Alone:
        return self

    async def __anext__(self) -> bytes:
        try:
            return await self._stream.__anext__()
        except (StopAsyncIteration, CallFailed):
            await self.aclose()
            raise

    async def aclose(self) -> None:
        """Stop reading the stream."""
        await self._stream.aclose()
        back, self._back = self._back, None
        if back is not None:
            back()
