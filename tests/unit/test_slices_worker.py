"""Calls of an instance over its protocol: answers, deadlines, refusals, and bytes that nobody should send."""

from __future__ import annotations

import asyncio
import gc
import random
import struct
import sys
from collections.abc import AsyncIterator, Collection
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from dose import dose, rotation
from slicing import TOKEN, TOKENS, Caller

from hostler.drivers.calling.gateway import Gateway
from hostler.errors import NotFound
from hostler.kit.connections import InboundConnection
from hostler.kit.frames import MAX_FRAME, frame
from hostler.model.deployment import SliceSettings
from hostler.ports.calls import Call, CallFailed, Cancel, Denied, Failed, Fault, Hello, Item, Result
from hostler.ports.slices import Life
from hostler.ports.worker_protocol import Order
from hostler.slices import call as call_slice
from hostler.slices import client, context, method, stream, wait
from hostler.slices.calls import Calls
from hostler.slices.client import Context
from hostler.slices.lifecycle import Instance, NotDone
from hostler.slices.module import SliceModule
from hostler.slices.serving import Serving

HERE = Context(artifact="shop:till:1", instance=3, node="blade-1")
events: list[str] = []
gates: dict[str, asyncio.Event] = {}
produced = [0]


@method
async def add(a: int, b: int = 2) -> int:
    return a + b


@method
def add_in_thread(a: int) -> int:
    return a + (context().instance)


@method
async def hang(name: str = "hang") -> str:
    events.append(f"{name} began")
    try:
        await gates.setdefault(name, asyncio.Event()).wait()
    except asyncio.CancelledError:
        events.append(f"{name} cancelled")
        raise
    return name


@method
async def stubborn() -> None:
    while not gates.setdefault("stubborn", asyncio.Event()).is_set():
        try:
            await gates["stubborn"].wait()
        except asyncio.CancelledError:
            events.append("no")


@method
async def flow(to: int) -> AsyncIterator[int]:
    try:
        for number in range(to):
            produced[0] = number
            yield number
    finally:
        events.append("flow closed")


@method
def drip(to: int):
    try:
        for number in range(to):
            yield {"number": number, "left": context().left is not None}
    finally:
        events.append("drip closed")


@method
async def breaks(how: str) -> Any:
    if how == "exit":
        sys.exit(3)
    if how == "cancel":
        raise asyncio.CancelledError
    if how == "unwritable":
        return object()
    if how == "long":
        return "x" * MAX_FRAME
    if how == "unspeakable":
        raise Unspeakable
    raise ValueError("no such thing " + "x" * 5000)


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@method
async def breaks_off() -> AsyncIterator[int]:
    yield 1
    raise ValueError("half way")


@method
async def seen() -> dict[str, Any]:
    here = context()
    return {"artifact": here.artifact, "method": here.method, "trace": here.trace, "left": here.left}


class Till:
    """An instance in this very process."""

    def __init__(self, concurrency: int) -> None:
        self.module = SliceModule(sys.modules[__name__])
        self.calls = Calls(self.module, HERE, concurrency=concurrency)
        self.calls.is_active = True
        self.serving = Serving(self.calls, TOKENS)
        self.address = ""

    async def caller(self, token: str = TOKEN) -> Caller:
        return await Caller.connect(self.address, token)


@pytest.fixture
async def till() -> AsyncIterator[Till]:
    events.clear()
    gates.clear()
    till = Till(concurrency=5)
    till.address = till.serving.open("127.0.0.1")
    yield till
    for gate in gates.values():
        gate.set()
    till.calls.stop_all("the test is over")
    assert await till.calls.drained(30)
    till.serving.close()
    till.calls.close()


async def until(holds: Any) -> None:
    async with asyncio.timeout(30):
        while not holds():
            await asyncio.sleep(0.005)


async def test_every_kind_of_method_answers(till: Till) -> None:
    caller = await till.caller()
    assert await caller.call("add", a=1) == 3
    assert await caller.call("add_in_thread", a=1) == 4
    assert await caller.call("flow", to=3) == [0, 1, 2]
    assert await caller.call("flow", to=0) == []
    assert await caller.call("drip", to=2) == [{"number": 0, "left": True}, {"number": 1, "left": True}]
    caller.send(Call(9, "seen", b"", 60.0, "the-trace", "shop:till:1", 3))
    found = await caller.answer()
    assert found.pop("left") == pytest.approx(60, abs=20)
    assert found == {"artifact": "shop:till:1", "method": "seen", "trace": "the-trace"}
    assert till.calls.in_flight == 0


async def test_many_calls_share_a_connection_and_overtake_each_other(till: Till) -> None:
    caller = await till.caller()
    caller.send(Call(1, "hang", b"{}"))
    for number in range(2, 100):
        assert await caller.call("add", a=number, number=number) == number + 2
    gates["hang"].set()
    assert await caller.answer() == "hang"


async def failure(till: Till, name: str, /, *, within: float | None = 60, **arguments: Any) -> Failed:
    caller = await till.caller()
    failed = await caller.call(name, within=within, **arguments)
    assert isinstance(failed, Failed), failed
    return failed


async def test_what_fails_says_how(till: Till) -> None:
    assert (await failure(till, "ad")).fault is Fault.NO_METHOD
    assert "did you mean add?" in (await failure(till, "ad")).message
    wrong = await failure(till, "add", a="x")
    assert (wrong.fault, wrong.message) == (Fault.ARGUMENTS, "add: argument a: Expected `int`, got `str`")
    raised = await failure(till, "breaks", how="")
    assert (raised.fault, raised.error) == (Fault.RAISED, "ValueError")
    assert raised.message.startswith("no such thing xxx")
    assert len(raised.message) == 2000
    assert (await failure(till, "breaks", how="exit")).error == "SystemExit"
    assert (await failure(till, "breaks", how="cancel")).error == "CancelledError"
    assert (await failure(till, "breaks", how="unspeakable")).error == "Unspeakable"
    assert "cannot be encoded as JSON" in (await failure(till, "breaks", how="unwritable")).message
    assert (await failure(till, "breaks", how="long")).fault is Fault.TOO_LARGE
    caller = await till.caller()
    caller.send(Call(1, "breaks_off", b""))
    assert [type(await caller.hear()) for _ in range(2)] == [Item, Failed]
    assert till.calls.in_flight == 0


async def test_a_deadline_ends_the_call_and_is_told(till: Till) -> None:
    late = await failure(till, "hang", within=0.5)
    assert (late.fault, "0.5 s is over" in late.message) == (Fault.DEADLINE, True)
    assert events == ["hang began", "hang cancelled"]
    for within in (0.0, -1.0, float("nan")):
        assert (await failure(till, "add", within=within, a=1)).fault is Fault.DEADLINE
    caller = await till.caller()
    assert await caller.call("add", within=1e300, a=1) == 3


async def test_one_that_will_not_end_is_answered_and_counts_until_it_does(till: Till) -> None:
    assert (await failure(till, "stubborn", within=0.5)).fault is Fault.DEADLINE
    assert till.calls.in_flight == 1
    assert events == ["no"]
    gates["stubborn"].set()
    await until(lambda: till.calls.in_flight == 0)


async def test_a_cancelled_call_ends_and_nothing_is_answered(till: Till) -> None:
    caller = await till.caller()
    caller.send(Call(1, "hang", b"{}"))
    await until(lambda: events == ["hang began"])
    caller.cancel(1)
    caller.cancel(77)  # of no call at all
    await until(lambda: till.calls.in_flight == 0)
    assert events == ["hang began", "hang cancelled"]
    assert await caller.call("add", a=1, number=1) == 3  # its number is free again
    never = {"hang": b"{}", "add_in_thread": b'{"a":1}', "flow": b'{"to":1}'}
    for name, arguments in never.items():  # both at once, so that it does not begin
        begin, end = Call(1, name, arguments), Cancel(1)
        caller.writer.write(frame(msgspec.msgpack.encode(begin)) + frame(msgspec.msgpack.encode(end)))
        assert await caller.call("add", a=1, number=2) == 3
    assert till.calls.in_flight == 0


async def test_the_end_of_a_connection_ends_its_calls(till: Till) -> None:
    caller, other = await till.caller(), await till.caller()
    caller.send(Call(1, "hang", b"{}"))
    other.send(Call(1, "hang", b'{"name": "other"}'))
    await until(lambda: till.calls.in_flight == 2)
    await caller.close()
    await until(lambda: till.calls.in_flight == 1)
    assert "hang cancelled" in events
    gates["other"].set()
    assert await other.answer() == "other"


@pytest.mark.parametrize("name", ["flow", "drip"])
async def test_a_stream_that_nobody_reads_waits_and_is_closed(till: Till, name: str) -> None:
    caller = await till.caller()
    number = 10**9
    caller.send(Call(1, name, msgspec.json.encode({"to": number})))
    assert isinstance(await caller.hear(), Item)
    caller.cancel(1)
    await until(lambda: till.calls.in_flight == 0)
    assert events == [f"{name} closed"]


async def test_what_is_inactive_full_or_another_refuses(till: Till) -> None:
    caller = await till.caller()
    for number in range(5):
        caller.send(Call(number, "hang", msgspec.json.encode({"name": f"h{number}"})))
    full = await caller.call("add", a=1, number=9)
    assert (full.fault, "5 running calls" in full.message) == (Fault.REFUSED, True)
    gates["h0"].set()
    assert await caller.answer() == "h0"
    assert await caller.call("add", a=1, number=9) == 3
    for wrong in (Call(9, "add", b'{"a":1}', version="shop:till:2"), Call(9, "add", b'{"a":1}', instance=4)):
        caller.send(wrong)
        refused = await caller.answer()
        assert (refused.fault, "is not here" in refused.message) == (Fault.REFUSED, True)
    till.calls.is_active = False
    assert (await failure(till, "add", a=1)).fault is Fault.REFUSED
    till.calls.is_active = True
    till.serving.tokens = frozenset()
    assert (await caller.call("add", a=1, number=9)).fault is Fault.REFUSED
    gates["h1"].set()
    assert await caller.answer() == "h1"  # what had begun goes on


async def test_who_is_not_known_is_denied(till: Till) -> None:
    host, _, port = till.address.rpartition(":")
    for hello in (Hello("somebody"), Hello(""), Hello(TOKEN, protocol=2), Hello("é")):
        caller = Caller(*await asyncio.open_connection(host, int(port)))
        caller.send(hello)
        assert isinstance(await caller.hear(), Denied)
        assert await caller.hear() is None
        await caller.close()
    early = Caller(*await asyncio.open_connection(host, int(port)))
    early.send(Call(1, "add", b'{"a":1}'))
    assert await _end_of(early.reader)
    await early.close()
    await until(lambda: not till.serving.connections and not strangers(till))


def strangers(till: Till, *, most: int | None = None) -> Collection[InboundConnection]:
    """The connections that have not said who calls; there may be `most` of them from now on."""
    accepting = till.serving.accepting
    assert accepting is not None
    if most is not None:
        accepting.limits = msgspec.structs.replace(accepting.limits, unproven=most)
    return accepting.unproven


async def test_strangers_are_few_and_do_not_stay(till: Till, monkeypatch: pytest.MonkeyPatch) -> None:
    strangers(till, most=3)
    monkeypatch.setattr("hostler.slices.serving.HELLO_WITHIN", 0.1)
    host, _, port = till.address.rpartition(":")
    silent = [await asyncio.open_connection(host, int(port)) for _ in range(6)]
    await until(lambda: not strangers(till))
    for reader, writer in silent:
        assert await _end_of(reader)
        writer.close()
    monkeypatch.undo()  # on a busy machine who calls may need longer, too
    assert await (await till.caller()).call("add", a=1) == 3


async def test_many_who_say_nothing_do_not_shut_out_who_calls(till: Till) -> None:
    strangers(till, most=3)
    host, _, port = till.address.rpartition(":")
    silent = [await asyncio.open_connection(host, int(port)) for _ in range(8)]
    await until(lambda: len(strangers(till)) == 3)
    assert await (await till.caller()).call("add", a=1) == 3
    for _, writer in silent:
        writer.close()


async def _end_of(reader: asyncio.StreamReader) -> bool:
    try:
        async with asyncio.timeout(30):
            return await reader.read(100) == b""
    except ConnectionError:
        return True


def hostile(rng: random.Random) -> bytes:
    """What nobody should send."""
    pieces = [
        lambda: rng.randbytes(rng.randrange(1, 200)),
        lambda: struct.pack(">I", rng.choice([MAX_FRAME + 1, 2**32 - 1, 2**31, 0, 1, 5000])) + rng.randbytes(20),
        lambda: frame(rng.randbytes(rng.randrange(0, 100))),
        lambda: frame(msgspec.msgpack.encode([rng.randrange(0, 30), rng.choice([None, -1, "x", 2**63, [1]])])),
        lambda: frame(msgspec.msgpack.encode([4, 1, "add", b'{"a":', None, "", "", 0])),
        lambda: frame(msgspec.msgpack.encode([4, rng.randrange(-3, 3), "\0" * 300, rng.randbytes(50), -1.0])),
        lambda: frame(msgspec.msgpack.encode(Call(rng.randrange(3), "hang", b"{}", rng.choice([None, 0.001, 1e308])))),
        lambda: frame(b"\x91" * 3000 + b"\xc0"),
        lambda: frame(msgspec.msgpack.encode(Hello(TOKEN))),
        lambda: frame(msgspec.msgpack.encode(Result(1, b"1"))),
        lambda: frame(msgspec.msgpack.encode(Call(1, "flow", b'{"to": 100000}')))[: rng.randrange(1, 40)],
        lambda: frame(msgspec.msgpack.encode([5, rng.randrange(-5, 5)])),
    ]
    return b"".join(rng.choice(pieces)() for _ in range(rng.randrange(1, 6)))


async def test_hostile_bytes_neither_crash_nor_stay(till: Till) -> None:
    rng = random.Random(rotation())
    host, _, port = till.address.rpartition(":")
    faults: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, found: faults.append(found))
    good = await till.caller()
    for round_ in range(dose(test=60, full=20_000)):
        reader, writer = await asyncio.open_connection(host, int(port))
        if rng.random() < 0.7:
            writer.write(frame(msgspec.msgpack.encode(Hello(TOKEN))))
        data = hostile(rng)
        for at in range(0, len(data), 50):
            writer.write(data[at : at + 50])
            if rng.random() < 0.2:
                await asyncio.sleep(0)
        if rng.random() < 0.3:
            with suppress(OSError):  # it was cut already
                writer.write_eof()
            await asyncio.sleep(0)
        writer.close()
        if round_ % 10 == 0:
            assert await good.call("add", a=round_, within=None) == round_ + 2
        _ = reader
    await until(lambda: till.calls.in_flight == 0 and len(till.serving.connections) == 1 and not strangers(till))
    assert await good.call("add", a=1) == 3
    gc.collect()
    await asyncio.sleep(0)
    assert faults == []


async def test_a_number_that_is_in_use_ends_the_connection(till: Till) -> None:
    caller = await till.caller()
    caller.send(Call(1, "hang", b"{}"))
    caller.send(Call(1, "add", b'{"a":1}'))
    assert await _end_of(caller.reader)
    await until(lambda: till.calls.in_flight == 0)


async def test_who_announces_more_than_is_taken_is_cut_at_once(till: Till) -> None:
    host, _, port = till.address.rpartition(":")
    stranger = Caller(*await asyncio.open_connection(host, int(port)))
    stranger.writer.write(struct.pack(">I", 5000))
    assert await _end_of(stranger.reader)
    caller = await till.caller()
    caller.writer.write(struct.pack(">I", MAX_FRAME + 1))
    assert await _end_of(caller.reader)


async def test_long_messages_come_whole_in_any_pieces(till: Till) -> None:
    caller = await till.caller()
    whole = frame(msgspec.msgpack.encode(Call(1, "add", b'{"a": 1' + b" " * 3_000_000 + b"}")))
    for piece in (whole[:1], whole[1:3], whole[3:2_000_000], whole[2_000_000:-1], whole[-1:]):
        caller.writer.write(piece)
        await caller.writer.drain()
        await asyncio.sleep(0)
    assert await caller.answer() == 3


async def test_who_does_not_read_is_not_listened_to(till: Till) -> None:
    caller = await till.caller()
    caller.reader._limit = 1  # type: ignore[attr-defined] # then it stops reading at once
    caller.send(Call(1, "flow", b'{"to": 100000000}'))
    await until(lambda: any(one._is_paused for one in till.serving.connections))
    (connection,) = till.serving.connections
    assert connection._queued < 2 * 1024 * 1024
    before = produced[0]
    for _ in range(200):
        await asyncio.sleep(0)
    assert produced[0] == before  # it waits
    caller.writer.transport.abort()
    await until(lambda: till.calls.in_flight == 0)


# Calls of other slices


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[SimpleNamespace]:
    """What an agent has for the slices of its node."""
    asked: list[tuple[str, str, bytes, float, str]] = []

    async def ask(target: str, name: str, arguments: bytes, *, within: float, trace: str) -> Any:
        asked.append((target, name, arguments, within, trace))
        if name == "fails":
            raise NotFound("no such slice")
        if name == "hangs":
            await asyncio.sleep(3600)
        if name == "streams":
            return _Items([b"2", b"1"])
        if name == "many":
            return found.items
        return arguments

    async with Gateway(tmp_path / "calls.sock", "node-token", ask) as gateway:
        line = client.AgentConnection(str(gateway.path), "node-token", "shop:till:1#3")
        client.connect(line)
        found = SimpleNamespace(asked=asked, gateway=gateway, line=line, items=None)
        yield found
        client.connect(None)
        line.close()


class _Items:
    def __init__(self, items: list[bytes]) -> None:
        self._items = items

    def __aiter__(self) -> _Items:
        return self

    async def __anext__(self) -> bytes:
        if not self._items:
            raise StopAsyncIteration
        await asyncio.sleep(0)
        return self._items.pop()

    async def aclose(self) -> None: ...


@method
async def through(name: str) -> Any:
    return await call_slice("bank:rates", name, a=[1])


@method
def through_in_thread() -> Any:
    return wait(call_slice("bank:rates", "rate", b=2))


async def test_a_slice_calls_another_and_hands_on_its_time_and_trace(till: Till, door: SimpleNamespace) -> None:
    caller = await till.caller()
    caller.send(Call(1, "through", b'{"name": "rate"}', 7.0, "tr"))
    assert await caller.answer() == {"a": [1]}
    ((target, name, arguments, within, trace),) = door.asked
    assert (target, name, arguments, trace) == ("bank:rates", "rate", b'{"a":[1]}', "tr")
    assert 5 < within <= 7
    assert await caller.call("through_in_thread") == {"b": 2}
    assert [item async for item in stream("bank:rates", "streams")] == [1, 2]
    assert [item async for item in stream("bank:rates", "rate", c=3)] == [{"c": 3}]
    with pytest.raises(TypeError, match="use stream"):
        await call_slice("bank:rates", "streams")
    failed = await caller.call("through", name="fails")
    assert (failed.fault, failed.error, failed.message) == (Fault.RAISED, "CallFailed", "no such slice")


async def test_a_stream_waits_for_who_reads_slowly_and_others_do_not(door: SimpleNamespace) -> None:
    door.items = _Items([b"7" + b" " * 1000] * 10_000)
    items = stream("bank:rates", "many")
    assert await anext(items) == 7
    left = -1
    while left != len(door.items._items):  # until no more is taken
        left = len(door.items._items)
        await asyncio.sleep(0.02)
    assert left > 5_000
    assert await call_slice("bank:rates", "rate") == {}
    assert sum([item async for item in items]) == 7 * 9_999
    await until(lambda: len(door.gateway.connections) == 1)  # its own is closed


async def test_calls_of_others_that_fail_say_whether_they_started(door: SimpleNamespace) -> None:
    with pytest.raises(CallFailed, match="no such slice") as failed:
        await call_slice("bank:rates", "fails")
    assert (failed.value.fault, failed.value.started) == (Fault.NO_METHOD, False)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await call_slice("bank:rates", "hangs")
    (connection,) = door.gateway.connections
    await until(lambda: not connection.works)  # it was cancelled there too
    lost = asyncio.create_task(call_slice("bank:rates", "hangs"))
    await until(lambda: connection.works)
    connection.cut()
    with pytest.raises(CallFailed, match="ended before the answer") as failed:
        await lost
    assert failed.value.started
    assert await call_slice("bank:rates", "rate", d=4) == {"d": 4}  # on a new connection
    door.line.close()
    await asyncio.sleep(0)
    door.line.token = "wrong"
    with pytest.raises(CallFailed, match="slices of this node") as failed:
        await call_slice("bank:rates", "rate")
    assert not failed.value.started


async def test_without_an_agent_a_call_provably_did_not_start(tmp_path: Path) -> None:
    client.connect(client.AgentConnection(str(tmp_path / "nobody.sock"), "", ""))
    try:
        with pytest.raises(CallFailed, match="the node's agent: No such file") as failed:
            await call_slice("bank:rates", "rate")
    finally:
        client.connect(None)
    assert not failed.value.started


# Life


def living(hooks: dict[str, Any], **order: Any) -> tuple[Instance, Calls, list[int]]:
    module = SliceModule(sys.modules[__name__])
    module._hooks = hooks
    calls = Calls(module, HERE, concurrency=10)
    changed: list[int] = []
    made = Order(artifact="shop:till:1", instance=3, module=__name__, settings=SliceSettings(), **order)
    return Instance(made, module, calls, "h:1", lambda: changed.append(1)), calls, changed


async def test_activating_and_deactivating_are_done_once() -> None:
    done: list[str] = []

    async def start() -> None:
        done.append("start")
        await asyncio.sleep(0.01)

    instance, calls, _ = living({"start": start, "stop": lambda: done.append("stop")})
    assert (instance.state().life, calls.is_active) == (Life.LOADED, False)
    await asyncio.gather(instance.activate(), instance.activate())
    await instance.activate()
    assert (instance.state().life, calls.is_active, done) == (Life.ACTIVE, True, ["start"])
    await asyncio.gather(instance.deactivate(1), instance.deactivate(1))
    assert (instance.state().life, calls.is_active, done) == (Life.LOADED, False, ["start", "stop"])
    await instance.activate()
    await instance.end(0)
    assert done == ["start", "stop"] * 2


async def test_a_start_that_hangs_can_be_ended() -> None:
    instance, calls, _ = living({"start": lambda: asyncio.sleep(3600)})
    starting = asyncio.create_task(instance.activate())
    await until(lambda: instance.state().detail == "start is being called")
    async with asyncio.timeout(30):
        await instance.end(0)
    with pytest.raises(NotDone, match="was ended while"):
        await starting
    assert not calls.is_active


async def test_one_that_is_unwell_three_times_in_a_row_ends_and_takes_no_calls() -> None:
    answers = iter([True, False, False, True, False, None, False, False, False])
    seen_answers: list[object] = []

    async def healthy() -> object:
        seen_answers.append(next(answers))
        return seen_answers[-1]

    instance, calls, changed = living({"healthy": healthy}, healthy_every=0.005)
    await instance.activate()
    await until(lambda: changed)
    assert len(seen_answers) == 9
    state = instance.state()
    assert (state.life, state.detail, calls.is_active) == (Life.ENDED, "unhealthy: healthy returned False", False)
    with pytest.raises(NotDone, match="it has ended"):
        await instance.activate()


async def test_a_health_check_that_hangs_counts_as_unwell() -> None:
    looks: list[int] = []

    async def healthy() -> None:
        looks.append(1)
        if len(looks) > 1:
            await asyncio.sleep(3600)

    instance, _, changed = living({"healthy": healthy}, healthy_every=0.005)
    await instance.activate()
    await until(lambda: changed)
    assert "has not answered" in instance.state().detail
