"""uvicorn's HTTP protocol with two things more: headers are bounded, and what is no HTTP is told so as a problem."""

from __future__ import annotations

from typing import TYPE_CHECKING

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from hostler.entry.server.problem import HEADERS, INVALID, MEDIA, Refusal, tell

if TYPE_CHECKING:
    from hostler.entry.server.problem import Sort

MAX_HEADERS = 64 * 1024
"""Bytes of the request line and the headers of one request, about."""
LINGER = 0.5
"""Seconds between a refusal and the end of the connection."""


class Protocol(HttpToolsProtocol):
    """One connection."""

    _unfinished = 0
    _refused = False

    def data_received(self, data: bytes) -> None:
        """What came from the caller."""
        if self._refused:
            return
        self._unfinished += len(data)
        super().data_received(data)
        if self._unfinished > MAX_HEADERS and not self.transport.is_closing():
            self._refuse(HEADERS, f"headers: more than {MAX_HEADERS} bytes; send less")

    def on_headers_complete(self) -> None:
        """The headers are there: from here on the body counts, and is counted elsewhere."""
        self._unfinished = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self._unfinished = 0
        super().on_body(body)

    def send_400_response(self, msg: str) -> None:
        """It was no HTTP."""
        self._refuse(INVALID, f"request: {msg.rstrip('.').lower()}; send HTTP/1.1")

    def _refuse(self, sort: Sort, message: str) -> None:
        self._refused = True
        told = tell(Refusal(sort, message))
        head = [
            STATUS_LINE[sort.status],
            b"content-type: " + MEDIA + b"\r\n",
            b"content-length: %d\r\n" % len(told.body),
            b"connection: close\r\n\r\n",
        ]
        self.transport.write(b"".join([*head, told.body]))
        # What still comes is taken in and forgotten for a moment: closing at once would reset the connection, and the
        # caller might never read why.
        self.loop.call_later(LINGER, self.transport.close)
