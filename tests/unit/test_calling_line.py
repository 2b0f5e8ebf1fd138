"""One connection to a worker: whoever goes leaves it as it was."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from hostler.drivers.calling.connection import AHEAD_ITEMS, WorkerConnection
from hostler.kit.frames import frame
from hostler.ports.calls import Call, End, Hello, Item, Result, Welcome

encode = msgspec.msgpack.Encoder().encode


class Wire:
    """A transport that only knows whether it is read."""

    def __init__(self) -> None:
        self.is_read = True

    def get_extra_info(self, _name: str) -> None: ...

    def write(self, _data: bytes) -> None: ...

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True


def heard(line: WorkerConnection, *messages: Any) -> None:
    line.data_received(b"".join(frame(encode(message)) for message in messages))


async def test_who_goes_when_a_stream_has_begun_leaves_a_line_that_is_read() -> None:
    for its_end in ([], [End(1)]):
        line, wire = WorkerConnection("here", Hello("token"), asyncio.get_running_loop(), lambda _: None), Wire()
        line.connection_made(wire)  # type: ignore[arg-type]
        heard(line, Welcome("shop:till:1", 1))
        waiting = line.send(Call(1, "flow", b"{}"), None)
        heard(line, *(Item(1, b"1") for _ in range(AHEAD_ITEMS + 1)), *its_end)
        assert not wire.is_read
        line.abandon(waiting)  # its caller was cancelled before it had the stream in its hands
        assert wire.is_read
        after = line.send(Call(2, "rate", b"{}"), None)
        heard(line, Result(2, b"2"))
        assert await after.future == b"2"
