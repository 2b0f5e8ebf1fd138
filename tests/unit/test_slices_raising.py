"""Whatever a slice raises: its call is answered, and its slot is free again."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
from harness.pace import patience
from slicing import TOKENS, Caller

from hostler.model.deployment import SliceSettings
from hostler.ports.calls import Failed, Fault
from hostler.ports.worker_protocol import Order
from hostler.slices import method
from hostler.slices.calls import Calls
from hostler.slices.client import Context
from hostler.slices.lifecycle import Instance, NotDone
from hostler.slices.module import SliceModule
from hostler.slices.serving import Serving

HERE = Context(artifact="shop:till:1", instance=3, node="blade-1")
KINDS = {
    kind.__name__: kind
    for kind in (
        StopIteration,
        StopAsyncIteration,
        GeneratorExit,
        SystemExit,
        KeyboardInterrupt,
        asyncio.CancelledError,
    )
}


def fail(kind: str) -> int:
    raise KINDS[kind]("so be it")


@method
def plain(kind: str) -> int:
    return fail(kind)


@method
def finds_nothing() -> int:
    return next(number for number in (1, 2) if number > 2)


@method
async def waits(kind: str) -> int:
    return fail(kind)


@method
def drips(kind: str):
    yield fail(kind)


@method
async def flows(kind: str) -> AsyncIterator[int]:
    yield fail(kind)


@method
def works() -> int:
    return 1


class Till:
    """An instance in this very process."""

    def __init__(self, hooks: dict[str, Any] | None = None, **order: Any) -> None:
        module = SliceModule(sys.modules[__name__])
        module._hooks = hooks or {}
        self.calls = Calls(module, HERE, concurrency=3)
        self.calls.is_active = True
        self.serving = Serving(self.calls, TOKENS)
        self.changed = asyncio.Event()
        made = Order(artifact="shop:till:1", instance=3, module=__name__, settings=SliceSettings(), **order)
        self.instance = Instance(made, module, self.calls, "h:1", self.changed.set)
        self.address = ""

    async def up_and_down(self) -> None:
        await self.instance.activate()
        await self.instance.deactivate(1)

    async def call(self, name: str, **arguments: Any) -> Any:
        caller = await Caller.connect(self.address)
        try:
            return await caller.call(name, **arguments)
        finally:
            await caller.close()


@pytest.fixture
async def till() -> AsyncIterator[Till]:
    till = Till()
    till.address = till.serving.open("127.0.0.1")
    yield till
    assert await till.calls.drained(30)
    till.serving.close()
    till.calls.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["plain", "waits", "drips", "flows"])
async def test_whatever_is_raised_is_told_and_holds_no_slot(till: Till, name: str, kind: str) -> None:
    for _ in range(4):  # one more than it may work on at once
        failed = await till.call(name, kind=kind)
        assert isinstance(failed, Failed), failed
        assert failed.fault is Fault.RAISED
        assert kind in (failed.error, failed.message.split()[-1])
    assert await till.call("works") == 1
    assert till.calls.in_flight == 0


async def test_a_search_that_finds_nothing_is_told(till: Till) -> None:
    failed = await till.call("finds_nothing")
    assert (failed.error, failed.message) == ("RuntimeError", "finds_nothing raised StopIteration")
    assert till.calls.in_flight == 0


@pytest.mark.parametrize("hook", ["start", "stop", "healthy"])
async def test_a_hook_that_finds_nothing_is_told(hook: str) -> None:
    till = Till({hook: finds_nothing}, healthy_within=patience(0.1))
    async with asyncio.timeout(60):
        with pytest.raises(NotDone, match=f"{hook} raised RuntimeError: finds_nothing raised StopIteration"):
            await till.up_and_down()
