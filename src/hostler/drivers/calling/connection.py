"""One connection to a worker: the calls sent over it, and their answers.

Everything sent within one iteration of the event loop goes out in one write. A call waits for a future and nothing
else: there is no task per call.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec

from hostler.kit.frames import MAX_FRAME, FrameError, Frames, frame
from hostler.ports.calls import (
    NOT_STARTED,
    CallFailed,
    Cancel,
    Denied,
    End,
    Failed,
    Fault,
    FromWorker,
    Hello,
    Item,
    NotAdmitted,
    Result,
    Unreachable,
    Welcome,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.ports.calls import Call

AHEAD_ITEMS, AHEAD_BYTES = 64, 1024 * 1024
"""Limits of a stream that is not read: beyond them, its connection is not read either."""
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(FromWorker).decode
_CALL = 4
"""The tag of a Call: it is encoded directly, without creating the object."""


class Stream:
    """The values of one streaming call, as they arrive."""

    __slots__ = ("_bytes", "_end", "_items", "_left", "_line", "_waiter", "_waiting")

    def __init__(self, line: WorkerConnection, waiting: _Waiting) -> None:
        self._line, self._waiting = line, waiting
        self._items: deque[bytes] = deque()
        self._bytes = 0
        self._waiter: asyncio.Future[None] | None = None
        self._end: BaseException | None = None
        self._left = False

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> bytes:
        while not self._items:
            if self._end is not None:
                raise self._end
            self._waiter = self._line.loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        value = self._items.popleft()
        self._bytes -= len(value)
        if self._line.paused_by is self and len(self._items) <= AHEAD_ITEMS // 2 and self._bytes <= AHEAD_BYTES // 2:
            self._line.resume_reading()
        return value

    async def aclose(self) -> None:
        """Stop reading the stream."""
        if self._left:
            return
        self._left = True
        self._items.clear()
        if self._end is None:
            self._end = StopAsyncIteration()
        self._line.abandon(self._waiting)

    def push(self, value: bytes) -> None:
        """Append one value."""
        if self._left:
            return
        self._items.append(value)
        self._bytes += len(value)
        self._wake()
        if len(self._items) > AHEAD_ITEMS or self._bytes > AHEAD_BYTES:
            self._line.pause_reading(self)

    def finish(self, end: BaseException) -> None:
        """End the stream."""
        if self._end is None:
            self._end = end
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class _Waiting:
    """A call that was queued or sent."""

    __slots__ = ("batch", "future", "id", "stream", "timer")

    def __init__(self, number: int, batch: int, future: asyncio.Future[bytes | Stream]) -> None:
        self.id, self.batch, self.future = number, batch, future
        self.stream: Stream | None = None
        self.timer: asyncio.TimerHandle | None = None


class WorkerConnection(asyncio.Protocol):
    """One connection. `ready` completes with the worker's welcome."""

    def __init__(
        self, address: str, hello: Hello, loop: asyncio.AbstractEventLoop, ended: Callable[[WorkerConnection], None]
    ) -> None:
        self.address, self.loop, self._ended = address, loop, ended
        self._hello = hello
        self.ready: asyncio.Future[None] = loop.create_future()
        self.open = False
        """Whether calls can be sent now."""
        self.used_at = loop.time()
        self.paused_by: Stream | None = None
        self._transport: asyncio.Transport | None = None
        self._frames = Frames()
        self._waiting: dict[int, _Waiting] = {}
        self._number = 0
        self._out: list[bytes] = []
        self._batch = 0
        self._writable: asyncio.Future[None] | None = None
        self._why = ""

    @property
    def busy(self) -> bool:
        """Whether a call waits for an answer."""
        return bool(self._waiting)

    # Callbacks of the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the hello."""
        self._transport = transport  # type: ignore[assignment]
        _watch_over(transport.get_extra_info("socket"))
        self._transport.write(frame(_encode(self._hello)))  # type: ignore[union-attr]

    def data_received(self, data: bytes) -> None:
        """Handle answers, or a part of one."""
        try:
            for message in self._frames.feed(data):
                self._take(_decode(message))
        except (FrameError, msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            self._why = f"it sent data that cannot be read ({error})"
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail all waiting calls, with whether each may have started."""
        why = self._why or (f"the connection broke ({exc})" if exc is not None else "the connection ended")
        if self._frames.within and not self._why:
            why += " in the middle of an answer"
        self.open = False
        self._ended(self)
        if not self.ready.done():
            self.ready.set_exception(Unreachable(f"{self.address}: {why} before a welcome"))
            self.ready.exception()  # mark it as retrieved: perhaps no caller waits
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        waiting, self._waiting = self._waiting, {}
        for one in waiting.values():
            started = one.batch < self._batch
            how = "" if started else "; the call was not sent"
            _fail(one, CallFailed(None, f"{self.address}: {why}{how}", started=started))

    def pause_writing(self) -> None:
        """The worker does not accept data."""
        self._writable = self.loop.create_future()

    def resume_writing(self) -> None:
        """The worker accepts data again."""
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    # For callers

    async def writable(self) -> None:
        """Wait until more may be sent."""
        while self._writable is not None and self.open:
            await asyncio.shield(self._writable)

    @property
    def congested(self) -> bool:
        """Whether `writable` would wait."""
        return self._writable is not None

    def send(self, call: Call, within: float | None) -> _Waiting:
        """Queue a call for the next write and return its future. CallFailed: too long, or the connection has ended."""
        if not self.open:  # closed between the welcome and the caller that waited for it
            raise CallFailed(None, f"{self.address}: the connection ended; the call was not sent", started=False)
        self._number = number = self._number + 1
        data = _encode((_CALL, number, call.method, call.arguments, within, call.trace, call.version, call.instance))
        if len(data) > MAX_FRAME:
            raise CallFailed(
                Fault.ARGUMENTS, f"the arguments are longer than a message may be ({MAX_FRAME} bytes)", started=False
            )
        waiting = self._waiting[number] = _Waiting(number, self._batch, self.loop.create_future())
        if within is not None:
            waiting.timer = self.loop.call_later(max(0.0, within), self._expire, waiting)
        self._queue(data)
        return waiting

    def abandon(self, waiting: _Waiting) -> None:
        """Give up a call: its caller no longer waits and its stream is not read."""
        if self.paused_by is not None and self.paused_by is waiting.stream:
            self.resume_reading()
        if self._waiting.pop(waiting.id, None) is None:
            return
        if waiting.timer is not None:
            waiting.timer.cancel()
        if self.open:
            self._queue(_encode(Cancel(waiting.id)))

    def pause_reading(self, stream: Stream) -> None:
        """Stop reading until the stream was read further."""
        if self.paused_by is None and self._transport is not None and not self._transport.is_closing():
            self.paused_by = stream
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read again after the stream was read."""
        self.paused_by = None
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def close(self) -> None:
        """Send what is queued, and close."""
        self.open = False
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self.open = False
        if self._transport is not None:
            self._transport.abort()

    # Internal

    def _queue(self, data: bytes) -> None:
        if not self._out:
            self.loop.call_soon(self._flush)
        self._out.append(len(data).to_bytes(4, "big"))
        self._out.append(data)

    def _flush(self) -> None:
        out = self._out
        if out and self._transport is not None and not self._transport.is_closing():
            self._batch += 1
            self._out = []
            self.used_at = self.loop.time()
            self._transport.write(b"".join(out))

    def _take(self, message: Any) -> None:
        kind = type(message)
        if kind is Item:
            waiting = self._waiting.get(message.id)
            if waiting is not None:
                self._stream(waiting).push(message.value)
        elif kind is Welcome or kind is Denied:
            self._handle_greeting(message)
        else:
            waiting = self._waiting.pop(message.id, None)
            if waiting is not None:
                self._handle_answer(waiting, message)

    def _handle_answer(self, waiting: _Waiting, message: Any) -> None:
        """Handle the final message of a call."""
        if waiting.timer is not None:
            waiting.timer.cancel()
        kind = type(message)
        if kind is Result:
            if waiting.stream is not None:  # its reader waits for an end
                why = f"{self.address}: it sent a result in the middle of a stream"
                _fail(waiting, CallFailed(None, why, started=True))
            elif not waiting.future.done():
                waiting.future.set_result(message.value)
        elif kind is End:
            self._stream(waiting).finish(StopAsyncIteration())
        elif kind is Failed:
            started = message.fault not in NOT_STARTED or waiting.stream is not None
            _fail(waiting, CallFailed(message.fault, message.message, started=started, error=message.error))

    def _handle_greeting(self, message: Welcome | Denied) -> None:
        if isinstance(message, Welcome):
            if not self.ready.done():
                self.open = True
                self.ready.set_result(None)
            return
        if not self.ready.done():
            self.ready.set_exception(NotAdmitted(f"{self.address}: {message.why}"))
            self.ready.exception()  # mark it as retrieved: perhaps no caller waits
        self.abort()

    def _stream(self, waiting: _Waiting) -> Stream:
        if waiting.stream is None:
            waiting.stream = Stream(self, waiting)
            if not waiting.future.done():
                waiting.future.set_result(waiting.stream)
        return waiting.stream

    def _expire(self, waiting: _Waiting) -> None:
        waiting.timer = None
        self.abandon(waiting)
        _fail(waiting, CallFailed(Fault.DEADLINE, "the deadline passed before the answer", started=True))


def _fail(waiting: _Waiting, error: CallFailed) -> None:
    if waiting.timer is not None:
        waiting.timer.cancel()
    if waiting.stream is not None:
        waiting.stream.finish(error)
    elif not waiting.future.done():
        waiting.future.set_exception(error)


def _watch_over(sock: socket.socket | None) -> None:
    """Enable keepalive: a dead host sends nothing; detect it within a dozen seconds."""
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 12_000)):
        option = getattr(socket, name, None)
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
