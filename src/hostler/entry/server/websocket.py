"""WebSockets (RFC 6455) for uvicorn: what consoles need of it, as an ASGI `websocket` scope.

Whole messages of at most `MAX_MESSAGE` bytes, no extensions, no subprotocols. Who refuses before accepting answers with
plain HTTP (`websocket.http.response`).
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE
from uvicorn.protocols.utils import get_local_addr, get_remote_addr, is_ssl

if TYPE_CHECKING:
    from uvicorn.config import Config
    from uvicorn.server import ServerState

MAX_MESSAGE = 1024 * 1024
HIGH_WATER = 256 * 1024
"""Bytes that may wait to be received before the caller is not read any more."""
_MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
NORMAL, GOING_AWAY, PROTOCOL_ERROR, NOT_UTF8, TOO_BIG, FAILED = 1000, 1001, 1002, 1007, 1009, 1011


class Broken(Exception):
    """The caller does not keep to the protocol."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Frames:
    """Makes messages of bytes. Pure: no connection, no time."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._parts: list[bytes] = []
        self._opcode = 0

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """The messages that `data` completes: opcode and payload. Broken: it is no WebSocket."""
        self._buffer += data
        found: list[tuple[int, bytes]] = []
        while (frame := self._frame()) is not None:
            message = self._joined(*frame)
            if message is not None:
                found.append(message)
        return found

    def _frame(self) -> tuple[bool, int, bytes] | None:
        buffer = self._buffer
        if len(buffer) < 2:
            return None
        final, opcode = bool(buffer[0] & 0x80), buffer[0] & 0x0F
        size, start = buffer[1] & 0x7F, 2
        if buffer[0] & 0x70 or not buffer[1] & 0x80:
            raise Broken(PROTOCOL_ERROR)
        if size >= 126:
            if opcode >= CLOSE:
                raise Broken(PROTOCOL_ERROR)
            start = 4 if size == 126 else 10
            if len(buffer) < start:
                return None
            size = int.from_bytes(buffer[2:start], "big")
        if size + sum(map(len, self._parts)) > MAX_MESSAGE:
            raise Broken(TOO_BIG)
        if len(buffer) < start + 4 + size:
            return None
        mask, payload = bytes(buffer[start : start + 4]), bytes(buffer[start + 4 : start + 4 + size])
        del buffer[: start + 4 + size]
        return final, opcode, unmasked(payload, mask)

    def _joined(self, final: bool, opcode: int, payload: bytes) -> tuple[int, bytes] | None:
        if opcode in (CLOSE, PING, PONG):
            if not final:
                raise Broken(PROTOCOL_ERROR)
            return opcode, payload
        if opcode not in (0, TEXT, BINARY) or (opcode == 0) != bool(self._opcode):
            raise Broken(PROTOCOL_ERROR)
        self._opcode = opcode or self._opcode
        self._parts.append(payload)
        if not final:
            return None
        opcode, message = self._opcode, b"".join(self._parts)
        self._opcode, self._parts = 0, []
        return opcode, message


def unmasked(payload: bytes, mask: bytes) -> bytes:
    """The payload as it was meant; the same again masks it."""
    size = len(payload)
    key = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(payload, "big") ^ int.from_bytes(key, "big")).to_bytes(size, "big")


def framed(opcode: int, payload: bytes) -> bytes:
    """One frame from the server."""
    size = len(payload)
    if size < 126:
        head = bytes((0x80 | opcode, size))
    elif size < 65536:
        head = bytes((0x80 | opcode, 126)) + size.to_bytes(2, "big")
    else:
        head = bytes((0x80 | opcode, 127)) + size.to_bytes(8, "big")
    return head + payload


def accepted(key: bytes) -> bytes:
    """What proves that the handshake was understood."""
    return base64.b64encode(hashlib.sha1(key + _MAGIC, usedforsecurity=False).digest())


class _Head:
    """Collects the head of the request."""

    def __init__(self) -> None:
        self.url = b""
        self.headers: list[tuple[bytes, bytes]] = []

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))


class WebSocketProtocol(asyncio.Protocol):
    """One connection, after uvicorn has seen the upgrade."""

    def __init__(self, config: Config, server_state: ServerState, app_state: dict[str, Any]) -> None:  # noqa: ARG002
        self._app, self._state = config.loaded_app, server_state
        self._frames = Frames()
        self._waiting: deque[dict[str, Any]] = deque([{"type": "websocket.connect"}])
        self._waiting_bytes = 0
        self._arrived = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._key = b""
        self._begun = self._open = self._ended = False
        self._task: asyncio.Task[None] | None = None
        self.transport: asyncio.Transport = None  # type: ignore[assignment]

    # What asyncio and uvicorn call

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is ours from now on."""
        self.transport = transport  # type: ignore[assignment]
        self._state.connections.add(self)  # type: ignore[arg-type]

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """It is over."""
        self._state.connections.discard(self)
        self._writable.set()
        self._finish(1006)

    def data_received(self, data: bytes) -> None:
        """First the request's head, then frames."""
        if not self._begun:
            self._begin(data)
            return
        try:
            for opcode, payload in self._frames.feed(data):
                self._take(opcode, payload)
        except Broken as broken:
            self._close(broken.code)
            self._finish(broken.code)

    def pause_writing(self) -> None:
        """The caller does not read."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """It reads again."""
        self._writable.set()

    def shutdown(self) -> None:
        """The server closes."""
        self._close(GOING_AWAY)
        self._finish(GOING_AWAY)

    # ASGI

    async def receive(self) -> dict[str, Any]:
        """The next message."""
        while not self._waiting:
            self._arrived.clear()
            await self._arrived.wait()
        message = self._waiting.popleft()
        before = self._waiting_bytes
        self._waiting_bytes -= len(message.get("bytes") or b"")
        if self._waiting_bytes <= HIGH_WATER < before and not self.transport.is_closing():
            self.transport.resume_reading()
        return message

    async def send(self, message: dict[str, Any]) -> None:
        """Accept, send, close, or refuse by HTTP."""
        kind = message["type"]
        await self._writable.wait()
        if self._ended:
            return
        if kind == "websocket.accept":
            self._open = True
            lines = (b"Upgrade: websocket", b"Connection: Upgrade", b"Sec-WebSocket-Accept: " + accepted(self._key))
            self.transport.write(STATUS_LINE[101] + b"\r\n".join((*lines, b"", b"")))
        elif kind == "websocket.send":
            self.transport.write(framed(BINARY, message["bytes"]))
        elif kind == "websocket.close" or self._open:
            self._close(message.get("code", FAILED))
        elif kind == "websocket.http.response.start":
            lines = (*(name + b": " + value for name, value in message["headers"]), b"connection: close")
            self.transport.write(STATUS_LINE[message["status"]] + b"\r\n".join((*lines, b"", b"")))
        elif kind == "websocket.http.response.body":
            self.transport.write(message["body"])
            self.transport.close()

    # Inside

    def _begin(self, data: bytes) -> None:
        self._begun = True
        head = _Head()
        parser = httptools.HttpRequestParser(head)
        with suppress(httptools.HttpParserUpgrade):
            parser.feed_data(data)
        url = httptools.parse_url(head.url)
        headers = dict(head.headers)
        self._key = headers.get(b"sec-websocket-key", b"")
        version = headers.get(b"sec-websocket-version", b"")
        scope = {
            "type": "websocket",
            "method": "GET",
            "path": url.path.decode("ascii", "replace"),
            "raw_path": url.path,
            "query_string": url.query or b"",
            "headers": head.headers,
            "client": get_remote_addr(self.transport),
            "server": get_local_addr(self.transport),
            "scheme": "wss" if is_ssl(self.transport) else "ws",
            "handshake": version == b"13" and len(self._key) == 24,
        }
        self._task = asyncio.get_running_loop().create_task(self._run(scope), name="websocket")
        self._state.tasks.add(self._task)
        self._task.add_done_callback(self._state.tasks.discard)

    async def _run(self, scope: dict[str, Any]) -> None:
        try:
            await self._app(scope, self.receive, self.send)
        finally:
            self._close(NORMAL)

    def _take(self, opcode: int, payload: bytes) -> None:
        if self._ended:
            return
        if opcode == PING:
            self.transport.write(framed(PONG, payload))
        elif opcode == CLOSE:
            self._close(int.from_bytes(payload[:2], "big") if len(payload) >= 2 else NORMAL)
            self._finish(NORMAL)
        elif opcode in (TEXT, BINARY):
            if opcode == TEXT:
                _check_utf8(payload)
            self._waiting.append({"type": "websocket.receive", "bytes": payload})
            self._waiting_bytes += len(payload)
            self._arrived.set()
            if self._waiting_bytes > HIGH_WATER:
                self.transport.pause_reading()

    def _close(self, code: int) -> None:
        if self.transport.is_closing():
            return
        if self._open:
            self.transport.write(framed(CLOSE, code.to_bytes(2, "big")))
        self.transport.close()

    def _finish(self, code: int) -> None:
        if not self._ended:
            self._ended = True
            self._waiting.append({"type": "websocket.disconnect", "code": code})
            self._arrived.set()


def _check_utf8(payload: bytes) -> None:
    try:
        payload.decode()
    except UnicodeDecodeError:
        raise Broken(NOT_UTF8) from None
