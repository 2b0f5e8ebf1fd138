"""The same operations with generated stubs only, as a baseline for benchmarks of the driver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from hostler.drivers.store.etcd import rpc_pb2 as pb  # before gRPC: it says how much gRPC logs
from hostler.drivers.store.etcd.codec import PUT, RANGE, TXN, WATCH, end_of, stubs

# isort: split
import grpc.aio
from grpc.aio import EOF  # type: ignore[attr-defined]  # missing in the stubs

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from types import TracebackType


class BareEtcd:
    """One connection to one member (`host:port`). No deadline, no retries, no translated errors."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._channel: grpc.aio.Channel | None = None
        self._stubs: list[Any] = []

    async def __aenter__(self) -> Self:
        options = [("grpc.max_receive_message_length", -1)]
        self._channel = grpc.aio.insecure_channel(self._endpoint, options=options)
        self._stubs = stubs(self._channel)
        await self._channel.channel_ready()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._channel is not None:
            await self._channel.close(None)

    async def put(self, key: bytes, value: bytes) -> int:
        """Return the revision."""
        response = await self._stubs[PUT.index](pb.PutRequest(key=key, value=value))
        return int(response.header.revision)

    async def get(self, key: bytes) -> bytes | None:
        """Return the value."""
        response = await self._stubs[RANGE.index](pb.RangeRequest(key=key))
        return bytes(response.kvs[0].value) if response.kvs else None

    async def txn3(self, keys: Sequence[bytes], value: bytes) -> bool:
        """Put three keys under a comparison that always holds."""
        first = pb.Compare(result=pb.Compare.GREATER, target=pb.Compare.VERSION, key=keys[0], version=-1)
        puts = [pb.RequestOp(request_put=pb.PutRequest(key=key, value=value)) for key in keys[:3]]
        response = await self._stubs[TXN.index](pb.TxnRequest(compare=[first], success=puts))
        return bool(response.succeeded)

    async def batch(self, keys: Sequence[bytes], value: bytes, *, compared: int, read: int) -> bool:
        """Put all keys under `compared` comparisons that always hold; otherwise read `read` of them."""
        request = pb.TxnRequest()
        for number in range(compared):
            made = request.compare.add()
            made.result, made.target, made.mod_revision = pb.Compare.GREATER, pb.Compare.MOD, -1
            made.key = keys[number % len(keys)]
        for key in keys:
            put = request.success.add().request_put
            put.key, put.value = key, value
        for number in range(read):
            request.failure.add().request_range.key = keys[number % len(keys)]
        response = await self._stubs[TXN.index](request)
        return bool(response.succeeded)

    async def range(self, prefix: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Return keys and values."""
        request = pb.RangeRequest(key=prefix or b"\0", range_end=end_of(prefix), limit=limit)
        response = await self._stubs[RANGE.index](request)
        return [(kv.key, kv.value) for kv in response.kvs]

    async def watch(self, prefix: bytes, *, previous: bool = True) -> AsyncGenerator[tuple[bytes, bytes]]:
        """Yield keys and values as they are put; the first item is empty: the watch is established."""
        call = self._stubs[WATCH.index]()
        create = pb.WatchCreateRequest(key=prefix or b"\0", range_end=end_of(prefix), prev_kv=previous)
        await call.write(pb.WatchRequest(create_request=create))
        try:
            while (response := await call.read()) is not EOF:
                if response.created:
                    yield b"", b""
                for event in response.events:
                    yield event.kv.key, event.kv.value
        finally:
            call.cancel()
