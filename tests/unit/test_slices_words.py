"""Texts of a slice that cannot be written, such as names of files with half a surrogate: they are told all the same."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from harness.pace import patience
from slicing import TOKENS, Caller

from hostler.kit.frames import frame, read_frame
from hostler.ports.calls import Call, Failed, Fault, Item
from hostler.ports.slices import Life
from hostler.ports.worker_protocol import Activate, Deactivate, FromAgent, FromWorker, Look, Order, Problem, Quit, State
from hostler.slices import method
from hostler.slices.calls import Calls
from hostler.slices.client import Context
from hostler.slices.module import SliceModule
from hostler.slices.serving import Serving
from hostler.slices.worker import Worker

HALF = "caf\udce9"
TOLD = "caf\\udce9"


class Named(msgspec.Struct):
    name: str

    def __post_init__(self) -> None:
        if self.name == "exit":
            raise SystemExit
        raise ValueError(f"no file {HALF}")


@method
async def raises() -> None:
    raise FileNotFoundError(HALF)


@method
def raises_in_thread() -> None:
    raise FileNotFoundError(HALF)


@method
async def takes(named: Named) -> str:
    return named.name


@method
async def returns(how: str) -> Any:
    return {HALF: 1} if how == "key" else [HALF]


@method
async def yields() -> AsyncIterator[str]:
    yield "fine"
    yield HALF


@method
async def works() -> int:
    return 1


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """What pytest keeps of a log goes from process to process, where it has no place for such text."""
    monkeypatch.setattr(logging.getLogger("hostler.slices"), "disabled", True)


@pytest.fixture
async def caller() -> AsyncIterator[Caller]:
    calls = Calls(SliceModule(sys.modules[__name__]), Context(artifact="shop:till:1", instance=3), concurrency=3)
    calls.is_active = True
    serving = Serving(calls, TOKENS)
    caller = await Caller.connect(serving.open("127.0.0.1"))
    yield caller
    assert await caller.call("works") == 1  # on the same connection
    assert calls.in_flight == 0
    await caller.close()
    serving.close()
    calls.close()


@pytest.mark.parametrize("name", ["raises", "raises_in_thread"])
async def test_an_exception_whose_text_cannot_be_written_is_told(caller: Caller, name: str) -> None:
    failed = await caller.call(name)
    assert (failed.fault, failed.error, failed.message) == (Fault.RAISED, "FileNotFoundError", TOLD)


async def test_arguments_that_are_refused_so_are_told(caller: Caller) -> None:
    failed = await caller.call("takes", named={"name": "x"})
    assert failed.fault is Fault.ARGUMENTS
    assert f"no file {TOLD}" in failed.message
    failed = await caller.call("takes", named={"name": "exit"})
    assert (failed.fault, failed.message) == (Fault.ARGUMENTS, "takes: SystemExit")


@pytest.mark.parametrize("how", ["key", "item"])
async def test_a_result_that_cannot_be_written_is_an_error(caller: Caller, how: str) -> None:
    failed = await caller.call("returns", how=how)
    assert (failed.fault, failed.error) == (Fault.RAISED, "TypeError")
    assert failed.message.startswith("returns: its result cannot be encoded as JSON: ")
    assert "udce9" in failed.message


async def test_an_item_that_cannot_be_written_ends_its_stream(caller: Caller) -> None:
    caller.send(Call(1, "yields", b"{}"))
    assert [type(await caller.hear()) for _ in range(2)] == [Item, Failed]


# What its agent is told


class Asking:
    """An agent, at the other end of the control socket."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.listening = socket.socket(socket.AF_UNIX)
        self.listening.bind(str(path))
        self.listening.listen()
        self._numbers = iter(range(1, 100))

    def order(self, module: str, **more: Any) -> Order:
        more |= {"healthy_within": patience(0.1), "healthy_every": patience(0.02)}
        return Order(artifact="shop:till:1", instance=3, module=module, **more)

    async def connect(self) -> None:
        self.reader, self.writer = await asyncio.open_unix_connection(self.path)

    async def hear(self) -> State | Problem | None:
        async with asyncio.timeout(60):
            payload = await read_frame(self.reader)
        return None if payload is None else msgspec.msgpack.decode(payload, type=FromWorker)

    async def ask(self, kind: type[FromAgent]) -> State | Problem:
        number = next(self._numbers)
        self.writer.write(frame(msgspec.msgpack.encode(kind(number))))
        while (answer := await self.hear()) is not None:
            if answer.number == number:
                return answer
        raise AssertionError(kind)


@pytest.fixture
def asking(tmp_path: Path) -> Iterator[Asking]:
    asking = Asking(tmp_path / "control.sock")
    yield asking
    asking.listening.close()


@contextlib.asynccontextmanager
async def living(asking: Asking, hooks: dict[str, Any]) -> AsyncIterator[None]:
    module = SliceModule(sys.modules[__name__])
    module._hooks = hooks
    order = asking.order(__name__, control=os.dup(asking.listening.fileno()))
    running = asyncio.create_task(Worker(order, module).run())
    try:
        await asking.connect()
        yield
        asking.writer.write(frame(msgspec.msgpack.encode(Quit(0))))
        async with asyncio.timeout(60):
            assert await running == 0
    finally:
        running.cancel()
        asking.writer.close()


async def failing() -> None:
    raise ValueError(HALF)


async def test_hooks_that_fail_so_are_told(asking: Asking) -> None:
    async with living(asking, {"start": failing}):
        assert await asking.ask(Activate) == Problem(1, f"start raised ValueError: {TOLD}")
        state = await asking.ask(Look)
        assert isinstance(state, State)
        assert state.detail == f"start raised ValueError: {TOLD}"


async def test_a_stop_that_fails_so_is_told(asking: Asking) -> None:
    async with living(asking, {"stop": failing}):
        await asking.ask(Activate)
        assert await asking.ask(Deactivate) == Problem(2, f"stop raised ValueError: {TOLD}")


async def test_health_that_fails_so_is_told(asking: Asking) -> None:
    looks = iter([True])

    async def healthy() -> bool:
        return next(looks, None) or await failing() or True

    async with living(asking, {"healthy": healthy}):
        await asking.ask(Activate)
        changed = await asking.hear()
        assert isinstance(changed, State)
        assert (changed.life, changed.detail) == (Life.ENDED, f"unhealthy: healthy raised ValueError: {TOLD}")


async def test_an_import_that_fails_so_is_told_and_what_it_printed_is_in_the_log(
    asking: Asking, tmp_path: Path
) -> None:
    half = ascii(HALF)
    lines = ["import sys", f"print({half}, 'é')", f"print({half}, file=sys.stderr)", f"raise ValueError({half})"]
    (tmp_path / "broken.py").write_text("\n".join(lines), encoding="utf-8")
    control = asking.listening.fileno()
    order = asking.order("broken", path=(str(tmp_path),), control=control)
    process = subprocess.Popen(
        [sys.executable, "-m", "hostler.slices.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=(control,),
        env={"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONIOENCODING": "utf-8:strict"},
    )
    try:
        told = asyncio.create_task(asyncio.to_thread(process.communicate, msgspec.json.encode(order), 60))
        await asking.connect()
        assert await asking.ask(Look) == Problem(1, f"import broken: ValueError: {TOLD}")
        log, _ = await told
    finally:
        process.kill()
        asking.writer.close()
    assert {TOLD, f"{TOLD} é"} <= set(log.decode().splitlines())
