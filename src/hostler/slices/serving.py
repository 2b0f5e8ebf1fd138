"""Connections that bring calls; `ports/calls.py` defines the protocol."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import msgspec

from hostler.kit.connections import AcceptLoop, ConnectionLimits, address_of, listen, open_file_limit
from hostler.kit.frames import MAX_FRAME
from hostler.ports.calls import PROTOCOL, Call, Cancel, Denied, Failed, Fault, FromCaller, Hello, Welcome
from hostler.slices.error_text import encode_message
from hostler.slices.framing import Framed

if TYPE_CHECKING:
    import asyncio
    import socket

    from hostler.kit.connections import InboundConnection
    from hostler.ports.calls import End, Item, Result
    from hostler.slices.calls import Calls, Work

HELLO_WITHIN = 10.0
"""Seconds in which a new connection must identify its caller."""
MAX_HELLO = 4096
"""The largest message of an unidentified caller, in bytes."""
MAX_STRANGERS = 256
"""The largest number of connections from unidentified callers."""
MAX_CONNECTIONS = 4096
_decode = msgspec.msgpack.Decoder(FromCaller).decode


class Serving:
    """All connections of one instance."""

    def __init__(self, calls: Calls, tokens: frozenset[str] = frozenset()) -> None:
        self.calls, self.tokens = calls, tokens
        self.connections: set[Connection] = set()
        self.accepting: AcceptLoop | None = None
        self._listener: socket.socket | None = None

    def open(self, host: str) -> str:
        """Listen at a free port and return `host:port`. OSError: it cannot listen."""
        self._listener = listen(host)
        # All callers may be on one host, so there is no limit per address.
        total = min(MAX_CONNECTIONS, open_file_limit() // 2)
        unproven = min(MAX_STRANGERS, total // 4)
        limits = ConnectionLimits(
            total=total, per_source=total, unproven=unproven, unproven_per_source=unproven, reserve=0
        )
        self.accepting = AcceptLoop(self._listener, lambda inbound: Connection(self, inbound), limits)
        self.accepting.start()
        return address_of(self._listener, host)

    def close(self) -> None:
        if self.accepting is not None and self._listener is not None:
            self.accepting.close()
            self._listener.close()
        for connection in list(self.connections):
            connection.close()


class Connection(Framed):
    """One connection of a caller."""

    def __init__(self, serving: Serving, inbound: InboundConnection | None = None) -> None:
        super().__init__()
        self._serving, self._calls, self._inbound = serving, serving.calls, inbound
        self._works: dict[int, Work] = {}
        self._token = ""
        self._timer: asyncio.TimerHandle | None = None
        self.limit = MAX_HELLO

    def opened(self) -> None:
        self._serving.connections.add(self)
        self._timer = self._loop.call_later(HELLO_WITHIN, self.cut)

    def lost(self) -> None:
        self._stop_timer()
        self._serving.connections.discard(self)
        for work in list(self._works.values()):
            work.stop()
        self._works.clear()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.listen(on=False)  # do not read from a caller that does not read its answers

    def resume_writing(self) -> None:
        self.listen(on=True)
        super().resume_writing()

    def heard(self, payload: bytes) -> None:
        try:
            message = _decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self.cut()
            return
        if type(message) is Call:
            self._call(message)
        elif type(message) is Cancel:
            if (work := self._works.get(message.id)) is not None:
                work.stop()
        elif type(message) is Hello:
            self._hello(message)

    def answer(self, message: Result | Item | End | Failed) -> None:
        self.send(encode_message(message))

    def done(self, number: int) -> None:
        self._works.pop(number, None)

    def _call(self, call: Call) -> None:
        if not self._token or call.id in self._works:  # unidentified, or the answers would be ambiguous
            self.cut()
            return
        if self._token not in self._serving.tokens:
            self.answer(Failed(call.id, Fault.REFUSED, "this caller is no longer admitted"))
            return
        work = self._calls.begin(call, self)
        if work is not None:
            self._works[call.id] = work

    def _hello(self, hello: Hello) -> None:
        if self._token:
            self.cut()
            return
        token = hashlib.sha256(hello.token.encode("utf-8", "replace")).hexdigest()
        here = self._calls.here
        if hello.protocol != PROTOCOL:
            why = f"protocol {hello.protocol} is not supported; use {PROTOCOL}"
        elif token not in self._serving.tokens:
            why = f"{here.artifact}#{here.instance} does not admit this caller, or does not know it yet"
        elif self._inbound is not None and not self._inbound.prove():
            why = f"{here.artifact}#{here.instance} has {MAX_CONNECTIONS} connections already"
        else:
            self._token, self.limit = token, MAX_FRAME
            self._stop_timer()
            self.send(encode_message(Welcome(here.artifact, here.instance)))
            return
        self.send(encode_message(Denied(why)))
        self.close()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
