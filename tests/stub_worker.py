"""Workers on loopback that speak as workers do, and misbehave on demand; their endpoints in a store."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

import msgspec

from hostler.keys.families import DEPLOYMENT, ENDPOINT
from hostler.kit.frames import FrameError, frame, read_frame
from hostler.model.deployment import Endpoint, SliceState
from hostler.model.rollout import Deployment, Phase
from hostler.ports.calls import Call, Cancel, Denied, End, Failed, Fault, FromCaller, Hello, Item, Result, Welcome

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hostler.ports.store import Store

_decode = msgspec.msgpack.Decoder(FromCaller).decode
TOKEN = "a token of tests"


class StubWorker:
    """One instance. What `mode` says is done with each call, until it is changed."""

    def __init__(
        self, artifact: str = "acme:shop:1.0", instance: int = 1, node: str = "n1", *, token: str = TOKEN
    ) -> None:
        self.artifact, self.instance, self.node, self.token = artifact, instance, node, token
        self.mode = "answer"
        self.calls: list[Call] = []
        self.cancelled: list[int] = []
        self.connections = 0
        self.release = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._closed = False
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self.port = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        self._closed = False
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        self._closed = True
        for writer in self._writers:
            writer.transport.abort()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._server = None

    async def publish(self, store: Store, *methods: str, idempotent: bool = False, streams: bool = False) -> None:
        """Its endpoints."""
        record = Endpoint(
            node_id=self.node,
            instance=self.instance,
            state=SliceState.ACTIVE,
            address=self.address,
            idempotent=idempotent,
            streams=streams,
        )
        puts = [
            ENDPOINT.put(record, artifact=self.artifact, method=method, instance=self.instance)
            for method in methods or ("sell",)
        ]
        await store.txn([], puts)

    async def withdraw(self, store: Store, *methods: str) -> None:
        deletes = [
            ENDPOINT.delete(artifact=self.artifact, method=method, instance=self.instance)
            for method in methods or ("sell",)
        ]
        await store.txn([], deletes)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if self._closed:  # before this one had its turn
            writer.transport.abort()
            return
        self.connections += 1
        self._tasks.add(task)
        self._writers.append(writer)
        try:
            hello = _decode(await read_frame(reader) or b"")
            assert isinstance(hello, Hello)
            if self.mode == "deny" or hello.token != self.token:
                self._send(writer, Denied("who are you?"))
                return
            if self.mode == "mute":
                await asyncio.sleep(60)
            self._send(writer, Welcome(self.artifact, self.instance))
            while (message := await read_frame(reader)) is not None:
                await self._heard(_decode(message), writer)
        except (OSError, FrameError, msgspec.MsgspecError, asyncio.CancelledError):
            pass
        finally:
            with suppress(OSError):
                writer.close()
            self._tasks.discard(task)

    async def _heard(self, message: Any, writer: asyncio.StreamWriter) -> None:
        if isinstance(message, Cancel):
            self.cancelled.append(message.id)
            return
        assert isinstance(message, Call)
        if message.version not in ("", self.artifact) or message.instance not in (0, self.instance):
            self._send(writer, Failed(message.id, Fault.REFUSED, f"this is {self.artifact}#{self.instance}"))
            return
        self.calls.append(message)
        await self._do(message, writer)

    async def _do(self, call: Call, writer: asyncio.StreamWriter) -> None:
        mode, number = self.mode, call.id
        if mode == "answer":
            self._send(writer, Result(number, call.arguments))
        elif mode in ("refused", "no_method", "arguments", "raised", "too_large", "deadline"):
            self._send(writer, Failed(number, Fault(mode), f"it is {mode}", "ValueError" if mode == "raised" else ""))
        elif mode == "cut":
            writer.transport.abort()
        elif mode == "half":
            writer.write(frame(msgspec.msgpack.encode(Result(number, b"0" * 100)))[:50])
            await writer.drain()
            writer.close()
        elif mode == "garbage":
            writer.write(b"\xff\xff\xff\xff nothing of the kind")
        elif mode == "no text":
            writer.write(frame(msgspec.msgpack.encode(Failed(number, Fault.RAISED, "??")).replace(b"??", b"\xff\xff")))
        elif mode == "deep":
            writer.write(frame(b"\x94\x06\x01\xc4\x00" + b"\x91" * 100_000 + b"\xc0"))
        elif mode in ("result in a stream", "refused in a stream"):
            self._send(writer, Item(number, b"0"))
            refused = Failed(number, Fault.REFUSED, "no")
            self._send(writer, Result(number, b"1") if mode.startswith("result") else refused)
        elif mode == "slow":
            task = asyncio.create_task(self._later(number, writer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif mode == "stream":
            for item in range(3):
                self._send(writer, Item(number, str(item).encode()))
            self._send(writer, End(number))
        elif mode == "broken stream":
            self._send(writer, Item(number, b"0"))
            await writer.drain()
            await self.release.wait()
            writer.transport.abort()
        elif mode == "endless":
            task = asyncio.create_task(self._endless(number, writer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _later(self, number: int, writer: asyncio.StreamWriter) -> None:
        await self.release.wait()
        self._send(writer, Result(number, b'"late"'))

    async def _endless(self, number: int, writer: asyncio.StreamWriter) -> None:
        sent = 0
        while number not in self.cancelled and not writer.is_closing():
            self._send(writer, Item(number, b'"%d %b"' % (sent, b"x" * 1000)))
            sent += 1
            self.sent = sent
            await writer.drain()
            await asyncio.sleep(0)

    @staticmethod
    def _send(writer: asyncio.StreamWriter, message: Any) -> None:
        if not writer.is_closing():
            writer.write(frame(msgspec.msgpack.encode(message)))


async def weigh(store: Store, weights: Mapping[str, int], base: str = "acme:shop") -> None:
    """Let the versions of a slice have these shares."""
    record = Deployment(
        blueprint="b",
        number=1,
        artifact=next(iter(weights), f"{base}:1.0"),
        phase=Phase.CANARY,
        weights=dict(weights),
        started_at=0.0,
        changed_at=0.0,
    )
    await store.txn([], [DEPLOYMENT.put(record, base=base)])
