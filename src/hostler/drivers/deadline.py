"""Calls to a server: each ends at its deadline, and all end when their owner is closed."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from hostler.errors import Closed, Unavailable, Uncertain

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from hostler.errors import HostlerError


class Call:
    """One call. `sent` is set just before the request may leave: from then on a write may have been done."""

    def __init__(self, subject: str, end: float, *, writes: bool) -> None:
        self.subject, self.end, self.writes = subject, end, writes
        self.sent = False

    def remaining(self) -> float:
        """Return the seconds until its deadline; a small positive number after it."""
        return max(0.001, self.end - asyncio.get_running_loop().time())

    def failure(self, why: str) -> HostlerError:
        """Return the error for a call without an answer."""
        if self.writes and self.sent:
            return Uncertain(f"{self.subject}: {why}; it may have been done, read before you act")
        return Unavailable(f"{self.subject}: {why}; nothing was written, try later")


class Calls:
    """All calls of one object, which is opened once and closed once.

    `opener` names the function that makes such objects.
    """

    def __init__(self, name: str, timeout: float, *, opener: str = "open_ttl_storage") -> None:
        self._name, self._timeout, self._opener = name, timeout, opener
        self._state = "new"
        self._scopes: set[asyncio.Timeout] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    def open(self) -> None:
        """Mark as open. Closed: it was opened before."""
        if self._state != "new":
            raise Closed(f"{self._name}: already {self._state}; make another with {self._opener}")
        self._state = "open"

    def check(self) -> None:
        """Raise Closed unless it is open."""
        if self._state != "open":
            raise Closed(f"{self._name}: not open; use it inside `async with {self._opener}(url) as …`")

    async def shut(self) -> None:
        """End running calls, and prevent new ones. Closing twice is fine."""
        self._state = "closed"
        for scope in self._scopes:
            if not scope.expired():
                scope.reschedule(asyncio.get_running_loop().time())
        await self._idle.wait()

    @asynccontextmanager
    async def call(self, verb: str, key: str, *, writes: bool) -> AsyncIterator[Call]:
        """Wrap one request. Errors of the server must be translated inside."""
        self.check()
        end = asyncio.get_running_loop().time() + self._timeout
        call = Call(f"{self._name}: {verb} of {key!r}", end, writes=writes)
        scope = asyncio.timeout_at(end)
        try:
            async with scope:
                self._scopes.add(scope)
                self._idle.clear()
                yield call
        except TimeoutError:
            if self._state == "closed":
                raise self._closed_error(call) from None
            raise call.failure(f"no answer within {self._timeout:g} s") from None
        finally:
            self._scopes.discard(scope)
            if not self._scopes:
                self._idle.set()

    def _closed_error(self, call: Call) -> HostlerError:
        if call.writes and call.sent:
            return call.failure("closed before the answer came")
        return Closed(f"{call.subject}: closed while this call ran")
