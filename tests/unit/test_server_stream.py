"""A caller who sends and goes: all that it sent goes in, whatever the other side says meanwhile."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from hostler.entry.server import terminal, vm_channels
from hostler.entry.server.websocket import AHEAD, LAST_WORDS, TAKEN_WITHIN, WebSocketInput, join_streams
from hostler.entry.terminal.session import first
from hostler.testing import run_virtual

GONE = {"type": "websocket.disconnect"}
PIECE = 4096


class Raw:
    """A caller who sent all of this and has gone. Who speaks to it is told so as uvicorn does."""

    def __init__(self, *messages: dict[str, Any], problem: type[Exception] = OSError) -> None:
        self.coming = [*messages, GONE]
        self.problem = problem
        self.tried: list[dict[str, Any]] = []

    async def receive(self) -> dict[str, Any]:
        await asyncio.sleep(0.001)
        return self.coming.pop(0)

    async def send(self, message: dict[str, Any]) -> None:
        self.tried.append(message)
        raise self.problem


class Guest:
    """Takes its time with each piece, and echoes it, as a serial console does."""

    def __init__(self, after: float) -> None:
        self.after = after
        self.taken: list[Any] = []
        self._said: asyncio.Queue[Any] = asyncio.Queue()

    async def read(self) -> Any:
        return await self._said.get()

    async def write(self, data: Any) -> None:
        await asyncio.sleep(self.after)
        self.taken.append(data)
        self._said.put_nowait(data)


async def for_ever() -> int:
    await asyncio.Event().wait()
    return 0


def typed(data: str) -> dict[str, str]:
    return {"type": "websocket.receive", "text": msgspec.json.encode({"type": "input", "data": data}).decode()}


@pytest.mark.parametrize("problem", [OSError, RuntimeError])
def test_a_machine_that_is_slow_and_echoes_gets_all_that_was_sent_through_its_door(problem: type[Exception]) -> None:
    async def main() -> None:
        pieces = [bytes([n]) * PIECE for n in range(AHEAD // PIECE - 1)]
        raw: Any = Raw(*({"type": "websocket.receive", "bytes": piece} for piece in pieces), problem=problem)
        guest: Any = Guest(after=TAKEN_WITHIN * 0.9)
        await join_streams(raw, guest, for_ever())
        assert guest.taken == pieces
        assert raw.tried

    run_virtual(main)


def test_a_shell_that_echoes_gets_what_was_typed_last() -> None:
    async def main() -> None:
        raw: Any = Raw(*(typed(key) for key in "make\r"))
        guest: Any = Guest(after=LAST_WORDS / 10)
        hearing = WebSocketInput(raw)

        async def served() -> int | None:
            return await first(
                vm_channels._out(raw, guest), hearing.passed_to(lambda said: guest.write(getattr(said, "data", "")))
            )

        assert await first(served(), hearing.until_gone(), for_ever()) is None
        assert "".join(guest.taken) == "make\r"
        assert raw.tried

    run_virtual(main)


def test_a_labs_terminal_gets_what_was_typed_last_and_shows_what_was_not_seen_to_who_comes_back() -> None:
    async def main() -> None:
        raw: Any = Raw(*(typed(key) for key in "make\r"))
        guest = Guest(after=LAST_WORDS / 10)
        asked = 0

        async def read() -> Any:
            nonlocal asked
            asked += 1
            return await guest.read()

        screen: Any = SimpleNamespace(read=read, terminal=SimpleNamespace(code=None))
        hearing = WebSocketInput(raw)
        taking = hearing.passed_to(lambda said: guest.write(getattr(said, "data", "")))
        assert await first(terminal._out(raw, screen), taking, hearing.until_gone()) is None
        assert "".join(guest.taken) == "make\r"
        assert (len(raw.tried), asked) == (1, 1), "to ask for more says that the last was shown"

    run_virtual(main)
