"""The unix socket through which the slices of a node call others; it passes their calls to the router.

Slices use the protocol of routers and workers (`ports/calls.py`); `version` of a call names the slice to call. The
connections, calls and unread bytes of one instance are bounded, because the process is the agent of the node, which
others need too.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import socket
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol, Self

import msgspec

from hostler.errors import (
    DeadlinePassed,
    Forbidden,
    HostlerError,
    Invalid,
    NotFound,
    Raised,
    Unavailable,
)
from hostler.kit.frames import MAX_FRAME, FrameError, Frames, frame
from hostler.kit.host import LEAVE_FILE, short_path
from hostler.ports.calls import (
    Call,
    Cancel,
    Denied,
    End,
    Failed,
    Fault,
    FromCaller,
    Hello,
    Item,
    Result,
    Welcome,
)

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from hostler.ports.calls import Items, Message

WITHIN = 3600.0
"""Seconds for a call whose caller sets no deadline."""
HELLO_WITHIN = 10.0
MOST = 10_000
"""Concurrent calls of one slice."""
MOST_CONNECTIONS = 512
"""Connections of one slice; each of its streams uses a separate one."""
MOST_BYTES = 256 * 1024 * 1024
"""Bytes of calls and answers of one slice: arriving, in progress, or unread."""
AT_ONCE = 256 * 1024
"""Bytes that are buffered to be written together."""
_CREDENTIALS = struct.Struct("3i")
_SOL_LOCAL, _LOCAL_PEERPID = 0, 2
_NO_PID = -1
_decode = msgspec.msgpack.Decoder(FromCaller).decode
_encode = msgspec.msgpack.Encoder().encode


class Asks(Protocol):
    """The signature of `Router.ask`."""

    async def __call__(
        self, target: str, method: str, arguments: bytes, *, within: float, trace: str
    ) -> bytes | Items: ...


class Gateway:
    """An async context manager: takes calls of clients with the token, from entering to leaving."""

    def __init__(self, path: Path, token: str, ask: Asks) -> None:
        self.path, self.token, self.ask = path, token, ask
        self._server: asyncio.Server | None = None
        self.connections: set[_Connection] = set()
        self.owners: dict[tuple[str, int], _Owner] = {}

    async def __aenter__(self) -> Self:
        with suppress(FileNotFoundError):
            self.path.unlink()
        loop = asyncio.get_running_loop()
        try:
            with short_path(self.path.parent, self.path.name) as place:
                self._server = await loop.create_unix_server(
                    lambda: _Connection(self), place, backlog=1024, **LEAVE_FILE
                )
            self.path.chmod(0o666)  # slices may run as other users; the token grants access
        except OSError as error:
            raise Unavailable(f"{self.path}: cannot listen there: {error.strerror or error}") from None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()
        works = [work for connection in self.connections for work in connection.works.values()]
        for connection in list(self.connections):
            connection.cut()
        await asyncio.gather(*works, return_exceptions=True)
        with suppress(FileNotFoundError):
            self.path.unlink()


class _Owner:
    """The owner of connections: a slice instance, as the kernel identifies it."""

    __slots__ = ("calls", "connections", "held", "name")

    def __init__(self, name: tuple[str, int]) -> None:
        self.name = name
        self.connections = self.calls = self.held = 0

    def has_room(self, more: int) -> bool:
        """Return whether that many more bytes may be held."""
        return self.held + more <= MOST_BYTES


def _name_of(transport: asyncio.BaseTransport) -> tuple[str, int]:
    """Identify an instance by its user, or at least its session; a process that forks stays in its session."""
    pid, uid = _peer(transport.get_extra_info("socket"))
    if uid != os.geteuid():
        return "user", uid
    try:
        return "session", os.getsid(pid)
    except OSError:  # it has already ended, or is in another PID namespace
        return "process", pid


def _peer(sock: socket.socket) -> tuple[int, int]:
    """Return the pid and the user of the other end."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is not None:
        pid, uid, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, option, _CREDENTIALS.size))
        return pid, uid
    try:  # macOS, where slices run as the agent's user: their users cannot be changed there
        return sock.getsockopt(_SOL_LOCAL, _LOCAL_PEERPID), os.geteuid()
    except OSError:
        return _NO_PID, os.geteuid()  # all slices count as one owner


class _Connection(asyncio.Protocol):
    """One connection of a slice instance."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._owner: _Owner | None = None
        self._held_in = self._held_out = 0
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._frames = Frames(4096)
        self._welcome = False
        self._out: list[bytes] = []
        self._queued = 0
        self._room: asyncio.Event = asyncio.Event()
        self._room.set()
        self._timer: asyncio.TimerHandle | None = None
        self.works: dict[int, asyncio.Task[None]] = {}

    # Callbacks of the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._gateway.connections.add(self)
        self._timer = self._loop.call_later(HELLO_WITHIN, self.cut)
        name = _name_of(transport)
        self._owner = owner = self._gateway.owners.setdefault(name, _Owner(name))
        owner.connections += 1
        if owner.connections > 2 * MOST_CONNECTIONS:
            self.cut()  # connections below this limit get a Denied with the reason

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._gateway.connections.discard(self)
        self._room.set()
        self._transport = None
        self._out = []
        self._holds(0, 0)
        owner = self._owner
        if owner is not None:
            owner.connections -= 1
            if not owner.connections:
                self._gateway.owners.pop(owner.name, None)
        if self._timer is not None:
            self._timer.cancel()
        for work in self.works.values():
            work.cancel()

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._frames.feed(data):
                self._handle_message(_decode(message))
            self._holds(self._frames.held, self._held_out)
            if self._held_in and self._owner is not None and not self._owner.has_room(0):
                self.cut()  # safe to cut: this call has not started
        except (FrameError, msgspec.MsgspecError, UnicodeError, RecursionError):
            self.cut()

    def pause_writing(self) -> None:
        self._room.clear()
        if self._transport is not None:  # do not read from a client that does not read its answers
            self._transport.pause_reading()
            self._holds(self._held_in, self._transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self._room.set()
        self._holds(self._held_in, 0)
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def cut(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    # Internal

    def _handle_message(self, message: Hello | Call | Cancel) -> None:
        if isinstance(message, Call):
            if not self._welcome or message.id in self.works or self._owner is None:
                self.cut()
            elif self._owner.calls >= MOST:
                self._refuse(message, f"{MOST} calls of one slice are already in progress")
            elif not self._owner.has_room(len(message.arguments)):
                self._refuse(message, f"calls and answers of one slice hold more than {MOST_BYTES} bytes already")
            else:
                self._begin(message, self._owner)
        elif isinstance(message, Cancel):
            found = self.works.get(message.id)
            if found is not None:
                found.cancel()
        elif self._welcome or not hmac.compare_digest(message.token.encode(), self._gateway.token.encode()):
            self._deny("only slices of this node may connect")
        elif self._owner is not None and self._owner.connections > MOST_CONNECTIONS:
            self._deny(f"one slice has {MOST_CONNECTIONS} connections already; end a stream first")
        else:
            self._welcome = True
            if self._timer is not None:
                self._timer.cancel()
            self._frames = Frames(MAX_FRAME)
            self._send(Welcome("", 0))

    def _begin(self, call: Call, owner: _Owner) -> None:
        self.works[call.id] = work = self._loop.create_task(self._work(call, owner), name="gateway: call")
        owner.calls += 1
        owner.held += len(call.arguments)
        work.add_done_callback(lambda _: self._over(call, owner))

    async def _work(self, call: Call, owner: _Owner) -> None:
        within = WITHIN if call.within is None else call.within
        ends_at = self._loop.time() + within
        try:
            answer = await self._gateway.ask(call.version, call.method, call.arguments, within=within, trace=call.trace)
            if isinstance(answer, bytes):
                await self._answer(call, answer, owner, ends_at)
                return
            try:
                async for item in answer:
                    if self._send(Item(call.id, item)):
                        await self._has_room(ends_at)
            finally:
                await answer.aclose()
            self._send(End(call.id))
        except FrameError as error:
            self._send(Failed(call.id, Fault.TOO_LARGE, str(error)))
        except TimeoutError:
            self._send(Failed(call.id, Fault.DEADLINE, "the deadline passed, and the answer was not read"))
        except HostlerError as error:
            self._send(failure_of(call.id, error))

    async def _answer(self, call: Call, value: bytes, owner: _Owner, ends_at: float) -> None:
        if self._room.is_set():
            self._send(Result(call.id, value))
            return
        if not owner.has_room(len(value)):
            said = f"calls and answers of one slice hold more than {MOST_BYTES} bytes; read earlier answers first"
            self._send(Failed(call.id, Fault.TOO_LARGE, said))
            return
        owner.held += len(value)
        try:
            await self._has_room(ends_at)
        finally:
            owner.held -= len(value)
        self._send(Result(call.id, value))

    async def _has_room(self, ends_at: float) -> None:
        """Wait until more may be sent. TimeoutError: not within the call's time."""
        async with asyncio.timeout_at(ends_at):
            while not self._room.is_set():  # others wait too, and one of them may have filled the buffer
                await self._room.wait()

    def _over(self, call: Call, owner: _Owner) -> None:
        self.works.pop(call.id, None)
        owner.calls -= 1
        owner.held -= len(call.arguments)

    def _holds(self, coming: int, unread: int) -> None:
        """Record the bytes of an incomplete call and of unread answers."""
        if self._owner is not None:
            self._owner.held += coming - self._held_in + unread - self._held_out
        self._held_in, self._held_out = coming, unread

    def _refuse(self, call: Call, why: str) -> None:
        self._send(Failed(call.id, Fault.REFUSED, f"{why}; wait for some to end"))

    def _deny(self, why: str) -> None:
        self._send(Denied(why))
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def _send(self, message: Message) -> bool:
        """Write a message soon, together with others. True: the buffer is full."""
        if self._transport is None:
            return False
        if not self._out:
            self._loop.call_soon(self._flush)
        data = frame(_encode(message))
        self._out.append(data)
        self._queued += len(data)
        if self._queued >= AT_ONCE:  # a sender of many messages must notice that they are not read
            self._flush()
        return not self._room.is_set()

    def _flush(self) -> None:
        out, self._out, self._queued = self._out, [], 0
        if out and self._transport is not None:
            self._transport.write(b"".join(out))


def failure_of(number: int, error: HostlerError) -> Failed:
    """Return the failure to send to a slice: whether the call started must stay true."""
    said = str(error)[:2000]
    if isinstance(error, Raised):
        return Failed(number, Fault.RAISED, error.said or said, error.error or "Raised")
    if isinstance(error, DeadlinePassed):
        return Failed(number, Fault.DEADLINE, said)
    if isinstance(error, NotFound):
        return Failed(number, Fault.NO_METHOD, said)
    if isinstance(error, Invalid):
        return Failed(number, Fault.ARGUMENTS, said)
    if isinstance(error, Unavailable | Forbidden):
        return Failed(number, Fault.REFUSED, said)
    return Failed(number, Fault.RAISED, said, type(error).__name__)
