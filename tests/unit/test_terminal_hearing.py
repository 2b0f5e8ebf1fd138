"""What the caller of a WebSocket says, and that it is heard when they go."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from hostler.entry.server.websocket import (
    AHEAD,
    LAST_WORDS,
    MISTAKES,
    PIECE,
    TAKEN_WITHIN,
    TYPED_WITHIN,
    WebSocketInput,
)
from hostler.entry.terminal import protocol
from hostler.entry.terminal.session import first
from hostler.testing import run_virtual

GONE = {"type": "websocket.disconnect"}


def typed(data: str) -> dict[str, str]:
    return {"type": "websocket.receive", "text": msgspec.json.encode({"type": "input", "data": data}).decode()}


class Raw:
    """As much of a request as is needed: what comes, and what was answered."""

    def __init__(self, *messages: dict[str, Any]) -> None:
        self.coming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.sent: list[str] = []
        for message in messages:
            self.coming.put_nowait(message)

    async def receive(self) -> dict[str, Any]:
        return await self.coming.get()

    async def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message["text"])


async def served(raw: Any, take: Callable[[protocol.Said], Awaitable[None]]) -> tuple[int | None, float]:
    """The code, and after how many seconds."""
    loop, hearing = asyncio.get_running_loop(), WebSocketInput(raw)
    began = loop.time()
    code = await first(hearing.passed_to(take), hearing.until_gone())
    return code, loop.time() - began


async def never(said: protocol.Said) -> None:
    await asyncio.Event().wait()


def test_who_goes_is_heard_though_the_shell_takes_nothing() -> None:
    async def main() -> None:
        code, after = await served(Raw(typed("x"), typed("y"), GONE), never)
        assert code is None
        assert after <= LAST_WORDS + 0.1

    run_virtual(main)


def test_what_was_typed_before_going_is_passed_on() -> None:
    async def main() -> None:
        taken: list[str] = []

        async def slowly(said: protocol.Said) -> None:
            await asyncio.sleep(LAST_WORDS / 10)
            taken.append(getattr(said, "data", ""))

        code, after = await served(Raw(typed("make"), typed("\r"), GONE), slowly)
        assert (code, taken) == (None, ["make", "\r"])
        assert after < LAST_WORDS

    run_virtual(main)


def test_before_anybody_takes_it_what_was_typed_waits_and_going_ends_it_at_once() -> None:
    async def main() -> None:
        loop, hearing = asyncio.get_running_loop(), WebSocketInput(Raw(typed("x"), GONE))  # type: ignore[arg-type]
        began = loop.time()
        await hearing.until_gone()
        assert loop.time() - began < LAST_WORDS / 10

    run_virtual(main)


def test_a_shell_that_takes_nothing_is_told_and_no_more_is_read_meanwhile() -> None:
    async def main() -> None:
        raw = Raw(*(typed("x" * AHEAD) for _ in range(3)), GONE)
        serving = asyncio.create_task(served(raw, never))
        await asyncio.sleep(TYPED_WITHIN / 2)
        assert raw.coming.qsize() == 3, "one is read, and no more"
        code, after = await serving
        assert code is None
        assert 2 * TYPED_WITHIN <= after <= 3 * TYPED_WITHIN + LAST_WORDS
        assert "the shell accepts none" in raw.sent[0]

    run_virtual(main)


def test_nonsense_ends_it() -> None:
    async def main() -> None:
        raw = Raw(*({"type": "websocket.receive", "text": "no"} for _ in range(MISTAKES)))
        assert (await served(raw, never))[0] == protocol.NO_LONGER
        assert len(raw.sent) == MISTAKES
        binary = Raw({"type": "websocket.connect"}, {"type": "websocket.receive", "bytes": b"x"})
        assert (await served(binary, never))[0] == protocol.NOT_TEXT

    run_virtual(main)


async def written(raw: Any, write: Callable[[bytes], Awaitable[None]]) -> tuple[int | None, float]:
    """The same of a door of bytes."""
    loop, hearing = asyncio.get_running_loop(), WebSocketInput(raw, last_words=None)
    began = loop.time()
    code = await first(hearing.written_to(write), hearing.until_gone())
    return code, loop.time() - began


def sent(data: bytes) -> dict[str, Any]:
    return {"type": "websocket.receive", "bytes": data}


async def nothing(data: bytes) -> None:
    await asyncio.Event().wait()


def test_a_door_whose_machine_takes_nothing_is_closed_in_time() -> None:
    async def main() -> None:
        code, after = await written(Raw(sent(b"x")), nothing)
        assert (code, after) == (protocol.FAILED, TAKEN_WITHIN)

    run_virtual(main)


@pytest.mark.parametrize("size", [1, AHEAD])
def test_who_goes_from_a_door_whose_machine_takes_nothing_keeps_no_place(size: int) -> None:
    async def main() -> None:
        _, after = await written(Raw(sent(b"x" * size), GONE), nothing)
        assert after <= TAKEN_WITHIN

    run_virtual(main)


def test_a_machine_that_takes_little_is_waited_for_and_gets_all_in_order() -> None:
    async def main() -> None:
        taken = bytearray()

        async def slowly(data: bytes) -> None:
            await asyncio.sleep(TAKEN_WITHIN * 0.9)
            taken.extend(data)

        large = bytes(range(256)) * (4 * PIECE // 256)
        raw = Raw(sent(large), {"type": "websocket.receive", "text": "größe"}, sent(b"end"))
        writing = asyncio.create_task(written(raw, slowly))
        await asyncio.sleep(TAKEN_WITHIN * 10)
        assert not writing.done()
        assert bytes(taken) == large + "größe".encode() + b"end"
        writing.cancel()
        await asyncio.wait([writing])

    run_virtual(main)


def test_what_was_sent_through_a_door_before_going_is_written_first() -> None:
    async def main() -> None:
        taken: list[bytes] = []

        async def slowly(data: bytes) -> None:
            await asyncio.sleep(TAKEN_WITHIN * 0.9)
            taken.append(data)

        code, _ = await written(Raw(sent(b"one"), sent(b"two"), sent(b"three"), GONE), slowly)
        assert (code, taken) == (None, [b"one", b"two", b"three"])


def test_of_last_bytes_too_no_more_is_waited_for_than_that_some_are_taken() -> None:
    async def main() -> None:
        taken: list[bytes] = []

        async def once(data: bytes) -> None:
            if taken:
                await nothing(data)
            await asyncio.sleep(1)
            taken.append(data)

        code, after = await written(Raw(sent(b"one"), sent(b"two"), sent(b"three"), GONE), once)
        assert (code, taken) == (protocol.FAILED, [b"one"])
        assert after == 1 + TAKEN_WITHIN

    run_virtual(main)
