"""Slices that call slices: through a socket of their node, to the router."""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from hostler import errors
from hostler.drivers.calling import gateway as gateway_module
from hostler.drivers.calling.connection_pool import TcpConnectionPool
from hostler.drivers.calling.gateway import Gateway, failure_of
from hostler.kit.frames import frame, read_frame
from hostler.ports.calls import Call, CallFailed, Failed, Fault, FromWorker, Hello, NotAdmitted, Welcome

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

TOKEN = "of the node"


class FakeRouter:
    """Answers what it is told to."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.error: Exception | None = None
        self.release = asyncio.Event()
        self.ended = 0
        self.made = 0

    async def ask(self, target: str, method: str, arguments: bytes, *, within: float, trace: str) -> Any:
        self.asked.append((target, method, arguments, within, trace))
        if self.error is not None:
            raise self.error
        if method == "stream":
            return self._stream()
        if method == "flood":
            return self._flood()
        if method == "big":
            return b'"' + b"x" * 100_000 + b'"'
        if method == "slow":
            try:
                await self.release.wait()
            finally:
                self.ended += 1
        return arguments

    async def _flood(self) -> AsyncIterator[bytes]:
        """It never waits for anything."""
        try:
            for _ in range(20_000):
                self.made += 1
                yield b"x" * 1000
        finally:
            self.ended += 1

    async def _stream(self) -> AsyncIterator[bytes]:
        try:
            for number in range(3):
                yield str(number).encode()
            await self.release.wait()
        finally:
            self.ended += 1


@asynccontextmanager
async def opened(tmp_path: Path, token: str = TOKEN) -> AsyncIterator[tuple[FakeRouter, TcpConnectionPool, str]]:
    async with AsyncExitStack() as stack:
        router = FakeRouter()
        folder = tmp_path / ("long" * 30)  # the path of a socket may have 107 characters
        folder.mkdir()
        gateway = Gateway(folder / "calls.sock", TOKEN, router.ask)
        await stack.enter_async_context(gateway)
        short = tmp_path / "s"
        short.symlink_to(folder)
        lines = TcpConnectionPool(token, connect_within=30.0)
        stack.push_async_callback(lines.aclose)
        yield router, lines, str(short / "calls.sock")
        await lines.aclose()
        await until(lambda: not gateway.connections)
        assert not gateway.owners
    assert not gateway.path.exists()


async def until(done: Any) -> None:
    async with asyncio.timeout(30):
        while not done():
            await asyncio.sleep(0.001)


async def again_and_again(do: Any) -> None:
    while True:
        await do()


_told = msgspec.msgpack.Decoder(FromWorker).decode


class Rude:
    """A slice that says what it likes, and reads when it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def welcomed(cls, path: str) -> Rude:
        made = cls(*await asyncio.open_unix_connection(path, limit=2000))
        made.say(Hello(TOKEN))
        assert isinstance(await made.hear(), Welcome)
        return made

    def say(self, message: Any) -> None:
        self.writer.write(frame(msgspec.msgpack.encode(message)))

    async def hear(self) -> Any:
        async with asyncio.timeout(30):
            return _told(await read_frame(self.reader) or b"")


def call(method: str = "sell", **more: Any) -> Call:
    return Call(0, method, b'{"n":1}', **{"within": 60.0, "trace": "t", "version": "acme:shop", **more})


async def test_a_call_goes_to_the_router_with_its_time_and_its_trace(tmp_path: Path) -> None:
    async with opened(tmp_path) as (router, lines, path):
        assert await lines.ask(path, call()) == b'{"n":1}'
        target, method, arguments, within, trace = router.asked[0]
        assert (target, method, arguments, trace) == ("acme:shop", "sell", b'{"n":1}', "t")
        assert 30 < within <= 60
        answers = await asyncio.gather(*(lines.ask(path, call()) for _ in range(100)))
        assert set(answers) == {b'{"n":1}'}
        await lines.ask(path, call(within=None))
        assert router.asked[-1][3] == 3600.0


async def test_streams_are_handed_on_and_who_leaves_ends_them(tmp_path: Path) -> None:
    async with opened(tmp_path) as (router, lines, path):
        router.release.set()
        assert [item async for item in lines.call(path, call("stream"))] == [b"0", b"1", b"2"]
        router.release.clear()
        stream = await lines.ask(path, call("stream"))
        assert not isinstance(stream, bytes)
        assert await anext(stream) == b"0"
        assert router.ended == 1
        await stream.aclose()
        async with asyncio.timeout(30):
            while router.ended < 2:
                await asyncio.sleep(0.001)


async def test_a_slice_that_gives_up_or_ends_cancels_its_calls(tmp_path: Path) -> None:
    async with opened(tmp_path) as (router, lines, path):
        for end in ("cancel", "connection"):
            before = router.ended
            calling = asyncio.create_task(lines.ask(path, call("slow")))
            async with asyncio.timeout(30):
                while len(router.asked) == before:
                    await asyncio.sleep(0.001)
                if end == "cancel":
                    calling.cancel()
                else:
                    await lines.aclose()
                await asyncio.wait((calling,))
                while router.ended == before:
                    await asyncio.sleep(0.001)


async def test_who_does_not_show_the_token_is_not_let_in(tmp_path: Path) -> None:
    async with opened(tmp_path, token="another") as (router, lines, path):
        with pytest.raises(NotAdmitted, match="only slices of this node"):
            await lines.ask(path, call())
        assert not router.asked


@pytest.mark.parametrize(
    ("error", "fault", "started"),
    [
        (errors.NotFound("a: no such slice"), Fault.NO_METHOD, False),
        (errors.Invalid("a: arguments"), Fault.ARGUMENTS, False),
        (errors.Unavailable("a: nobody"), Fault.REFUSED, False),
        (errors.DeadlinePassed("a: late"), Fault.DEADLINE, True),
        (errors.Uncertain("a: lost"), Fault.RAISED, True),
        (errors.Raised("a: raised", error="KeyError", said="'x'"), Fault.RAISED, True),
    ],
)
async def test_what_is_told_of_a_failure_says_truly_whether_it_started(
    tmp_path: Path, error: errors.HostlerError, fault: Fault, started: bool
) -> None:
    async with opened(tmp_path) as (router, lines, path):
        router.error = error
        with pytest.raises(CallFailed) as found:
            await lines.ask(path, call())
        assert (found.value.fault, found.value.started) == (fault, started)
    assert failure_of(1, errors.Raised("a", error="KeyError", said="'x'")).error == "KeyError"
    assert failure_of(1, errors.Uncertain("a")).error == "Uncertain"


@pytest.mark.slow
async def test_what_never_waits_is_not_made_faster_than_it_is_read(tmp_path: Path) -> None:
    async with opened(tmp_path) as (router, _, path):
        slice_ = await Rude.welcomed(path)
        slice_.say(call("flood", within=1.0))
        await until(lambda: router.made)
        assert router.made < 10_000  # of 20 MB
        await until(lambda: router.ended)  # its time was over, and nobody had read it
        assert router.made < 10_000
        found = [await slice_.hear()]
        while not isinstance(found[-1], Failed):
            found.append(await slice_.hear())
        assert found[-1].fault is Fault.DEADLINE
        slice_.writer.close()


async def test_one_slice_has_so_many_calls_and_so_many_bytes_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as (router, lines, path):
        monkeypatch.setattr(gateway_module, "MOST", 3)
        calling = [asyncio.create_task(lines.ask(path, call("slow"))) for _ in range(3)]
        await until(lambda: len(router.asked) == 3)
        other = await Rude.welcomed(path)  # another connection is of the same slice
        other.say(call())
        refused = await other.hear()
        assert (refused.fault, "3 calls of one slice" in refused.message) == (Fault.REFUSED, True)
        calling[0].cancel()
        await until(lambda: router.ended)
        assert await lines.ask(path, call()) == b'{"n":1}'
        monkeypatch.setattr(gateway_module, "MOST_BYTES", 100)
        big = msgspec.structs.replace(call(), arguments=b"x" * 101)
        with pytest.raises(CallFailed, match="hold more than 100 bytes") as found:
            await lines.ask(path, big)
        assert not found.value.started
        other.writer.write(frame(msgspec.msgpack.encode(big))[:-1])
        async with asyncio.timeout(30):  # what is not even complete is not kept
            assert await other.reader.read() == b""
        router.release.set()
        await asyncio.wait(calling)
        assert await lines.ask(path, call()) == b'{"n":1}'  # everything was given back


async def test_answers_that_nobody_reads_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_module, "MOST_BYTES", 2_000_000)
    async with opened(tmp_path) as (router, lines, path):
        slice_ = await Rude.welcomed(path)
        for number in range(100):
            slice_.say(msgspec.structs.replace(call("big", within=60.0), id=number))
        await until(lambda: len(router.asked) == 100)
        await asyncio.sleep(0.05)
        large = msgspec.structs.replace(call(), arguments=b"x" * 1_900_000)
        with pytest.raises(CallFailed):  # another connection of the same slice has no room either, once they are made
            await asyncio.wait_for(again_and_again(lambda: lines.ask(path, large)), 30)
        found = [await slice_.hear() for _ in range(100)]
        faults = [one.fault for one in found if isinstance(one, Failed)]
        assert set(faults) == {Fault.TOO_LARGE}  # not one that says that it did not start
        assert 50 < len(faults) < 100
        slice_.writer.close()


async def test_one_slice_has_so_many_connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_module, "MOST_CONNECTIONS", 2)
    async with opened(tmp_path) as (_, lines, path):
        held = [await Rude.welcomed(path) for _ in range(2)]
        with pytest.raises(NotAdmitted, match="one slice has 2 connections already"):
            await lines.ask(path, call())
        silent = [await asyncio.open_unix_connection(path) for _ in range(3)]
        async with asyncio.timeout(30):
            assert await silent[2][0].read() == b""  # and who says nothing is not let in for ever
        monkeypatch.setattr(gateway_module.os, "geteuid", lambda: os.getuid() + 1)
        assert await lines.ask(path, call()) == b'{"n":1}'  # another user has its own
        for one in (*[rude.writer for rude in held], *[writer for _, writer in silent]):
            one.close()
