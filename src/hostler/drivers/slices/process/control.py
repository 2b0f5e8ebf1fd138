"""The control connection to a worker."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from hostler.kit.frames import FrameError, frame, read_frame
from hostler.kit.host import short_path
from hostler.ports.worker_protocol import FromWorker, Problem, State

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hostler.ports.worker_protocol import Control as Question

SOCKET = "control.sock"
MAX_ANSWER = 4 * 1024 * 1024


class NoConnection(Exception):
    """There is no connection, or it ended before the answer."""


class Control:
    """One connection. `changed` receives states that the worker sends unasked."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, changed: Callable[[State], None]
    ) -> None:
        self._reader, self._writer, self._changed = reader, writer, changed
        self._asked: dict[int, asyncio.Future[State | Problem]] = {}
        self._last = 0
        self._is_over = False
        self._listening = asyncio.create_task(self._listen(), name="worker: control")

    @classmethod
    async def connect(cls, folder: Path, changed: Callable[[State], None]) -> Control:
        """Connect to the worker of that folder. Silent: no process listens there."""
        try:
            with short_path(folder, SOCKET) as path:
                reader, writer = await asyncio.open_unix_connection(path)
        except OSError as error:
            raise NoConnection(f"its process cannot be asked: {error.strerror}") from None
        return cls(reader, writer, changed)

    async def ask(self, question: type[Question], *more: object) -> State:
        """Return the answer.

        Silent: there is none, and will be none. Declined: the worker says that it cannot be done.
        """
        found = await self._put(question, *more)
        if isinstance(found, Problem):
            raise Declined(found.why)
        return found

    def tell(self, question: type[Question], *more: object) -> None:
        """Send a request without waiting for an answer."""
        with suppress(NoConnection):
            self._put(question, *more).add_done_callback(_heard)

    def close(self) -> None:
        self._listening.cancel()
        self._end()

    def _put(self, question: type[Question], *more: object) -> asyncio.Future[State | Problem]:
        if self._is_over:
            raise NoConnection("its process ended the connection")
        self._last += 1
        answer: asyncio.Future[State | Problem] = asyncio.get_running_loop().create_future()
        self._asked[self._last] = answer
        self._writer.write(frame(msgspec.msgpack.encode(question(self._last, *more))))
        return answer

    async def _listen(self) -> None:
        try:
            while (payload := await read_frame(self._reader, limit=MAX_ANSWER)) is not None:
                said = msgspec.msgpack.decode(payload, type=FromWorker)
                asked = self._asked.pop(said.number, None)
                if asked is not None and not asked.done():
                    asked.set_result(said)
                elif said.number == 0 and isinstance(said, State):
                    self._changed(said)
        except (FrameError, OSError, msgspec.DecodeError):
            pass
        finally:
            self._end()

    def _end(self) -> None:
        self._is_over = True
        self._writer.close()
        for asked in self._asked.values():
            if not asked.done():
                asked.set_exception(NoConnection("its process ended the connection"))
                asked.exception()  # mark it as retrieved: the caller may be gone
        self._asked.clear()


class Declined(Exception):
    """The worker says that it cannot be done."""


def _heard(answer: asyncio.Future[State | Problem]) -> None:
    if not answer.cancelled():
        answer.exception()
