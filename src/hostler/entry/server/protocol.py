"""uvicorn's protocols with additions.

The size of headers is limited. Input that is not HTTP is answered with a problem document. An answer that is available
as a whole is written at once, where uvicorn writes head and body separately; that saves a system call and checks of our
own headers. WebSockets are uvicorn's, on the package websockets; refusals are problem documents.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from hostler.entry.server.problem import HEADERS, INVALID, MEDIA, Refusal, tell

if TYPE_CHECKING:
    from hostler.entry.server.problem import Sort

MAX_HEADERS = 64 * 1024
"""Approximate limit in bytes of the request line and the headers of one request."""
NO_TEXT = 1007
LINGER = 0.5
"""Seconds between a refusal and the end of the connection."""
CUT_WITHIN = 5.0
"""Seconds to deliver what was sent before a connection is cut."""
CONNECTION = "connection"
"""The name of the `InboundConnection` in the state of a scope."""
HEAD_WITHIN = 10.0
"""Seconds for the request line and the headers of one request."""
UNREAD_WITHIN = 30.0
"""Seconds for which a peer may read nothing of a waiting answer."""
MESSAGE_WITHIN = 30.0
"""Seconds for one message on a stream, from its first byte to its last."""
MAX_PIPELINED = 16
"""Requests of one connection that may wait for the answer to an earlier one."""


class _Stage:
    """The time since which a connection is in its current stage, as far as periodic checks can tell."""

    __slots__ = ("_since", "_stage")

    def __init__(self) -> None:
        self._stage: object = None
        self._since = 0.0

    def lasts(self, stage: object, now: float) -> float:
        """Return the seconds that the connection has been in this stage; None is no stage."""
        if stage is None or stage != self._stage:
            self._stage, self._since = stage, now
        return now - self._since


class _TooManyPipelined(Exception):
    """A peer pipelined more requests than allowed."""


class Protocol(HttpToolsProtocol):
    """One connection."""

    _unfinished = 0
    _refused = False
    _is_queued = False
    """Whether the next request waits for its turn."""
    _stage: _Stage

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start to wait for a request."""
        super().connection_made(transport)
        self._stage = _Stage()
        connection = self.app_state.get(CONNECTION)
        if connection is not None:
            connection.is_waiting, connection.is_late = self._is_waiting, self._is_late

    def _is_waiting(self) -> bool:
        """Return whether the connection waits for the peer or for its turn, so that no work is done for it."""
        cycle = self.cycle
        if cycle is None or self._is_queued:
            return True
        return cycle.response_complete or cycle.more_body or self.flow.write_paused

    def _is_late(self, now: float) -> bool:
        """Return whether the head, or the reading of an answer, takes too long. Bodies have their own limit."""
        cycle, unread = self.cycle, self.transport.get_write_buffer_size()
        if unread:
            return self._stage.lasts((cycle, unread), now) > UNREAD_WITHIN
        if cycle is None or (cycle.response_complete and self._unfinished):
            return self._stage.lasts((cycle, "head"), now) > HEAD_WITHIN
        if cycle.response_complete:
            if self._stage.lasts((cycle, "idle"), now) > self.timeout_keep_alive:
                self.timeout_keep_alive_handler()
        else:
            self._stage.lasts(None, now)
        return False

    def on_response_complete(self) -> None:
        """Continue with the next request.

        `_is_late` ends idle connections, in place of uvicorn's timer after each answer.
        """
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        connection = self.app_state.get(CONNECTION)
        if connection is not None and connection.take_turn(self._go_on):
            self._is_queued = True
            self.flow.pause_reading()
        else:
            self._go_on()

    def _go_on(self) -> None:
        self._is_queued = False
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            self._start_asgi_task(cycle, app)

    def data_received(self, data: bytes) -> None:
        """Process data from the client."""
        if self._refused:
            return
        self._unfinished += len(data)
        super().data_received(data)
        if self._unfinished > MAX_HEADERS and not (self._refused or self.transport.is_closing()):
            self._refuse(HEADERS, f"headers: more than {MAX_HEADERS} bytes; send less")

    def on_headers_complete(self) -> None:
        """Stop counting header bytes: the body is limited elsewhere."""
        self._unfinished = 0
        if len(self.pipeline) >= MAX_PIPELINED:
            # One read may hold thousands of requests. Those already taken are answered, the last with connection:
            # close.
            self._refused = True
            self.cycle.keep_alive = False
            raise _TooManyPipelined  # the only way to stop the parser in the middle of a read
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Process a part of the body."""
        self._unfinished = 0
        super().on_body(body)

    def send_400_response(self, msg: str) -> None:
        """Refuse input that is not HTTP or is too large."""
        if self._refused:
            return
        self._refuse(INVALID, f"request: {msg.rstrip('.').lower()}; send HTTP/1.1")

    def _should_upgrade(self) -> bool:
        """Accept only a handshake that can succeed; any other is a plain request, which the route refuses."""
        if not super()._should_upgrade() or self.scope["method"] != "GET" or not self.url.isascii():
            return False
        headers = dict(self.headers)
        return headers.get(b"sec-websocket-version") == b"13" and len(headers.get(b"sec-websocket-key", b"")) == 24

    def _unsupported_upgrade_warning(self) -> None:
        """Log nothing: the client gets an error, and clients could fill the log."""

    def _refuse(self, sort: Sort, message: str) -> None:
        self._refused = True
        told = tell(Refusal(sort, message))
        head = [
            STATUS_LINE[sort.status],
            *(b"%b: %b\r\n" % header for header in self.server_state.default_headers),
            b"content-type: " + MEDIA + b"\r\n",
            b"content-length: %d\r\n" % len(told.body),
            b"connection: close\r\n\r\n",
        ]
        self.transport.write(b"".join([*head, told.body]))
        # Further input is read and discarded for a moment: closing at once would reset the connection, and the client
        # might never read the answer.
        self.loop.call_later(LINGER, self.transport.close)


class WebSocket(WebSocketsSansIOProtocol):
    """One WebSocket."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.conn.debug = False  # debug logs would contain URLs and headers, with tickets and tokens
        self._heard_at = 0.0
        self._messages = 0
        self._stage = _Stage()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take over the connection from the HTTP protocol."""
        super().connection_made(transport)
        connection = self.app_state.get(CONNECTION)
        if connection is not None:
            connection.is_waiting, connection.is_late = self._is_waiting, self._is_late

    def _is_waiting(self) -> bool:
        """Return False: streams are not dropped for other connections, as they have their own limit."""
        return False

    def _is_late(self, now: float) -> bool:
        """Return whether an incomplete message began too long ago. While reading is paused, it cannot be completed."""
        partial = not self.read_paused and (self.frames or self.conn.reader.buffer)
        return self._stage.lasts(("message", self._messages) if partial else None, now) > MESSAGE_WITHIN

    def data_received(self, data: bytes) -> None:
        """Process data. The HTTP protocol passes the whole head first, so an incomplete handshake never completes."""
        self._heard_at = self.loop.time()
        super().data_received(data)
        if not self.handshake_initiated:
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.transport.close()

    def send_receive_event_to_app(self) -> None:
        """Pass on a message. One that is not valid UTF-8 ends the stream; uvicorn would also log a traceback."""
        self._messages += 1
        if self.curr_msg_data_type == "text" and not self.close_sent:
            try:
                b"".join(self.frames).decode()
            except UnicodeDecodeError:
                self.frames = []
                self.conn.send_close(NO_TEXT)
                self.handle_parser_exception()
                return
        super().send_receive_event_to_app()

    def keepalive_timeout(self) -> None:
        """End the stream of a client that does not answer pings.

        Such a client may not read either, so the server does not wait until it has read everything. While the machine
        takes no input, reading is paused and the answer to a ping cannot arrive. The answer may also come after
        everything that the client sent before; a client that sends is alive.
        """
        if self.read_paused or self._heard_at > self.ping_sent_at:
            self.pong_timer = self.pending_ping_payload = None
            self.schedule_ping()
            return
        super().keepalive_timeout()
        if self.transport.get_write_buffer_size():
            self.transport.abort()

    async def send(self, message: Any) -> None:
        """Send a message of the app. uvicorn takes a refusal for an app that did not answer, and logs that."""
        await super().send(message)
        if message["type"] == "websocket.http.response.body":
            self.handshake_complete = True


def whole_body(receive: Any) -> bytes | None:
    """Return the body if all of it came with the headers, as it usually does; None: it must be awaited."""
    cycle = getattr(receive, "__self__", None)
    if not isinstance(cycle, RequestResponseCycle) or cycle.more_body or cycle.waiting_for_100_continue:
        return None
    if cycle.disconnected or cycle.response_complete:
        return None
    data, cycle.body = bytes(cycle.body), bytearray()
    return data


def cut(send: Any, *, linger: float = CUT_WITHIN) -> None:
    """End a connection in the middle of an answer, so that the client sees it is incomplete.

    Data already sent has `linger` seconds to be delivered.
    """
    cycle = getattr(send, "__self__", None)
    if isinstance(cycle, RequestResponseCycle):
        cycle.response_complete = True
        cycle.message_event.set()
        cycle.transport.close()
        asyncio.get_running_loop().call_later(linger, _drop, cycle.transport)


def _drop(transport: asyncio.Transport) -> None:
    """Abort a connection whose peer does not read, and discard the data that the kernel still holds."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        with suppress(OSError):  # the connection has already ended
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


async def send_whole(send: Any, status: int, headers: list[tuple[bytes, bytes]], data: bytes) -> bool:
    """Write a whole answer, as the two ASGI messages would. Return False if `send` is not uvicorn's; nothing is sent.

    The headers must be our own, with a content-length: they are not checked.
    """
    cycle = getattr(send, "__self__", None)
    if not isinstance(cycle, RequestResponseCycle) or cycle.response_started:
        return False
    if cycle.flow.write_paused and not cycle.disconnected:
        await cycle.flow.drain()
    if cycle.disconnected:
        return True
    cycle.response_started = cycle.response_complete = True
    cycle.waiting_for_100_continue = False
    pieces = [STATUS_LINE[status]]
    for name, value in cycle.default_headers:
        pieces += (name, b": ", value, b"\r\n")
    for name, value in headers:
        pieces += (name, b": ", value, b"\r\n")
    pieces.append(b"\r\n" if cycle.keep_alive else b"connection: close\r\n\r\n")
    if cycle.scope["method"] != "HEAD":
        pieces.append(data)
    cycle.transport.write(b"".join(pieces))
    cycle.message_event.set()
    if not cycle.keep_alive:
        cycle.transport.close()
    cycle.on_response()
    return True
