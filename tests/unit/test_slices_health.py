"""The health of an instance is looked at for as long as it is active, whatever its own answer does."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from harness.pace import patience
from slicing import TOKENS, Caller

from hostler.model.deployment import SliceSettings
from hostler.ports.calls import Call, Failed, Fault
from hostler.ports.slices import Life
from hostler.ports.worker_protocol import Order
from hostler.slices import method
from hostler.slices.calls import Calls
from hostler.slices.client import Context
from hostler.slices.lifecycle import Instance, NotDone
from hostler.slices.module import SliceModule
from hostler.slices.serving import Serving

KINDS: dict[str, type[BaseException]] = {
    kind.__name__: kind
    for kind in (ValueError, GeneratorExit, SystemExit, KeyboardInterrupt, asyncio.CancelledError, StopAsyncIteration)
}


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise SystemExit


class Unjudged:
    """What many a library returns from `==`."""

    def __bool__(self) -> bool:
        raise ValueError("the truth of this is ambiguous")


class Unseen:
    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        raise asyncio.CancelledError


gate = threading.Event()


@method
def blocks() -> None:
    gate.wait(60)


@method
async def works() -> int:
    return 1


class Till:
    """An instance in this very process, and how often its health was asked for."""

    def __init__(self, hooks: dict[str, Any], **order: Any) -> None:
        module = SliceModule(sys.modules[__name__])
        module._hooks = hooks
        self.calls = Calls(module, Context(artifact="shop:till:1", instance=3), concurrency=3)
        self.changed = asyncio.Event()
        made = Order(artifact="shop:till:1", instance=3, module=__name__, settings=SliceSettings(), **order)
        self.instance = Instance(made, module, self.calls, "h:1", self.changed.set)

    async def up_and_down(self) -> None:
        await self.instance.activate()
        await self.instance.deactivate(1)

    async def ended(self) -> str:
        """Until it ended by itself; why."""
        async with asyncio.timeout(30):
            await self.changed.wait()
        state = self.instance.state()
        assert (state.life, self.calls.is_active) == (Life.ENDED, False)
        return state.detail


@pytest.fixture(autouse=True)
async def faults() -> AsyncIterator[list[dict[str, Any]]]:
    found: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, fault: found.append(fault))
    yield found
    assert found == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("hook", ["start", "stop", "healthy"])
@pytest.mark.parametrize("is_plain", [True, False])
async def test_hooks_may_raise_whatever_they_like(hook: str, kind: str, is_plain: bool) -> None:
    def raises() -> None:
        raise KINDS[kind]("so be it")

    async def raises_later() -> None:
        raises()

    till = Till({hook: raises if is_plain else raises_later}, healthy_within=patience(0.1))
    async with asyncio.timeout(60):
        with pytest.raises(NotDone, match=f"{hook} raised .*{kind}"):
            await till.up_and_down()
    assert till.instance.state().life is Life.LOADED


async def after_one_that_was_cancelled() -> None:
    refreshing = asyncio.create_task(asyncio.sleep(3600))
    refreshing.cancel()
    await refreshing


async def unspeakably() -> None:
    raise Unspeakable


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (after_one_that_was_cancelled, "healthy raised CancelledError"),
        (unspeakably, "healthy raised Unspeakable"),
        (Unjudged, "what healthy returned raised ValueError: the truth of this is ambiguous"),
        (Unseen, "what healthy returned raised CancelledError"),
        (lambda: False, "healthy returned False"),
    ],
)
async def test_an_answer_that_is_none_counts_as_unwell(answer: Any, why: str) -> None:
    looks: list[int] = []

    async def healthy() -> object:
        looks.append(1)
        if len(looks) == 1:
            return True
        found = answer()
        return await found if asyncio.iscoroutine(found) else found

    till = Till({"healthy": healthy}, healthy_every=patience(0.02))  # an answer that is late has another reason
    await till.instance.activate()
    assert await till.ended() == f"unhealthy: {why}"
    assert len(looks) == 4


class Wordy(logging.Handler):
    """As some that write logs do."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            str(record.exc_info[1])


async def test_logs_that_want_its_words_do_not_end_the_looking() -> None:
    answers = iter([True])

    async def healthy() -> object:
        return next(answers, None) or await unspeakably()

    wordy, log = Wordy(), logging.getLogger("hostler.slices")
    log.addHandler(wordy)
    try:
        till = Till({"healthy": healthy}, healthy_every=patience(0.02))
        await till.instance.activate()
        assert await till.ended() == "unhealthy: healthy raised Unspeakable"
    finally:
        log.removeHandler(wordy)


async def test_what_is_told_of_health_is_short() -> None:
    class Long:
        def __bool__(self) -> bool:
            return False

        def __repr__(self) -> str:
            return "x" * 10_000_000

    answers = iter([True])
    till = Till({"healthy": lambda: next(answers, Long())}, healthy_every=0.01)
    await till.instance.activate()
    assert len(await till.ended()) < 3000


async def test_one_whose_health_nobody_looks_at_any_more_ends() -> None:
    async def healthy() -> None:
        for task in asyncio.all_tasks():
            if task.get_name() == "healthy":
                task.cancel()

    till = Till({"healthy": healthy}, healthy_every=0.01)
    await till.instance.activate()
    assert await till.ended() == "unhealthy: the health checks ended with CancelledError"


async def test_one_that_is_stopped_in_good_order_is_not_unwell() -> None:
    till = Till({"healthy": lambda: True}, healthy_every=0.01)
    for _ in range(3):
        await till.up_and_down()
        await asyncio.sleep(0.05)
        assert not till.changed.is_set()
        assert till.instance.state().life is Life.LOADED


@pytest.fixture
async def caller_of() -> AsyncIterator[Any]:
    opened: list[tuple[Serving, Caller]] = []
    gate.clear()

    async def connect(till: Till) -> Caller:
        serving = Serving(till.calls, TOKENS)
        opened.append((serving, await Caller.connect(serving.open("127.0.0.1"))))
        return opened[-1][1]

    yield connect
    gate.set()
    for serving, caller in opened:
        assert await serving.calls.drained(30)
        await caller.close()
        serving.close()
        serving.calls.close()


async def test_one_whose_places_are_held_by_calls_of_nobody_ends(
    caller_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hostler.slices.calls.HELD_FOR", 0.2)
    till = Till({}, healthy_every=0.01)  # with or without a `healthy` of its own
    await till.instance.activate()
    caller = await caller_of(till)
    for number in range(3):
        late = await caller.call("blocks", number=number, within=patience(0.05))  # enough to begin
        assert isinstance(late, Failed)
        assert late.fault is Fault.DEADLINE
    assert await till.ended() == (
        "unhealthy: all its slots have been held for 0.2 s or more by 3 calls that no caller waits for"
    )


async def test_one_whose_threads_are_all_held_ends_though_it_has_places_left(
    caller_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hostler.slices.calls.HELD_FOR", 0.2)
    monkeypatch.setattr("hostler.slices.calls.MAX_THREADS", 2)
    till = Till({}, healthy_every=0.01)
    await till.instance.activate()
    caller = await caller_of(till)
    for number in range(2):
        assert isinstance(await caller.call("blocks", number=number, within=patience(0.05)), Failed)
    assert "by 2 calls that no caller waits for" in await till.ended()


@pytest.mark.slow
async def test_one_that_works_on_as_many_calls_as_it_may_is_well(
    caller_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hostler.slices.calls.HELD_FOR", 0.0)
    till = Till({}, healthy_every=0.01)
    await till.instance.activate()
    caller = await caller_of(till)
    for number in range(2):
        await caller.call("blocks", number=number, within=0.01)
    await asyncio.sleep(0.2)
    assert await caller.call("works", number=2) == 1  # there is a place
    caller.send(Call(3, "blocks", b"{}"))  # somebody waits for this one
    await asyncio.sleep(0.2)
    assert till.instance.state().life is Life.ACTIVE
    await till.instance.deactivate(0)
