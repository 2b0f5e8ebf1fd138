"""A slice that calls others: whatever it asks for, the next answer is heard."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from hostler.drivers.calling.gateway import Gateway
from hostler.slices import call, client, stream


class Flow:
    """As many items at once as are asked for."""

    def __init__(self, items: int) -> None:
        self.left = items
        self.is_closed = False

    def __aiter__(self) -> Flow:
        return self

    async def __anext__(self) -> bytes:
        if not self.left:
            raise StopAsyncIteration
        self.left -= 1
        return b"1"

    async def aclose(self) -> None:
        self.is_closed = True


class Agent:
    """What a node has for its slices: it answers with the arguments, or streams."""

    def __init__(self, path: Path) -> None:
        self.gateway = Gateway(path, "token", self.ask)
        self.line = client.AgentConnection(str(path), "token", "shop:till:1#3")
        self.flows: list[Flow] = []

    async def ask(self, _target: str, name: str, arguments: bytes, *, within: float, trace: str) -> Any:  # noqa: ARG002
        if not name.startswith("flow"):
            return arguments
        self.flows.append(Flow(int(name.removeprefix("flow"))))
        return self.flows[-1]


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[Agent]:
    agent = Agent(tmp_path / "calls.sock")
    async with agent.gateway:
        client.connect(agent.line)
        yield agent
        client.connect(None)
        agent.line.close()


@pytest.mark.parametrize("items", [1, 300, 100_000])
async def test_who_calls_what_streams_is_told_and_hears_the_next_answer(agent: Agent, items: int) -> None:
    async with asyncio.timeout(60):
        for number in range(3):
            beside = asyncio.create_task(call("bank:rates", "rate", beside=number))
            with pytest.raises(TypeError, match="use stream"):
                await call("bank:rates", f"flow{items}")
            assert await beside == {"beside": number}
            assert await call("bank:rates", "rate", number=number) == {"number": number}
    assert all(flow.is_closed for flow in agent.flows)
    assert len(agent.gateway.connections) == 1


async def test_long_questions_and_long_answers_do_not_wait_for_each_other(agent: Agent) -> None:
    text = "x" * 1_000_000
    async with asyncio.timeout(60):
        answers = await asyncio.gather(*(call("bank:rates", "rate", number=n, text=text) for n in range(20)))
    assert [answer["number"] for answer in answers] == list(range(20))


async def test_what_cannot_be_sent_is_told_and_leaves_no_connection(agent: Agent) -> None:
    for _ in range(3):
        with pytest.raises(UnicodeEncodeError):
            await call("bank:rates", "caf\udce9")
        with pytest.raises(UnicodeEncodeError):
            await anext(stream("bank:rates", "caf\udce9"))  # type: ignore[call-overload]
        with pytest.raises(UnicodeEncodeError):
            await call("bank:rates", "rate", name="caf\udce9")
    assert await call("bank:rates", "rate") == {}
    async with asyncio.timeout(30):
        while len(agent.gateway.connections) > 1:
            await asyncio.sleep(0.01)
    connection = agent.line._connection
    assert connection is not None
    assert not connection._asked
