"""What tests of a machine's process stand on: a folder whose processes end with it, and who is behind its sockets."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

from hostler.drivers.machines.qemu import pid_lookup, process
from hostler.drivers.machines.qemu.folder import MachineFolder, NodeFolder
from hostler.kit.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

SLEEP = ["sleep", "600"]
"""A program that stands for QEMU."""
PATIENCE = 30.0


@contextmanager
def machine_of(place: NodeFolder) -> Iterator[MachineFolder]:
    """A machine's folder. Whatever lives in it ends with it."""
    made = place.machine("m")
    made.create()
    try:
        yield made
    finally:
        deadline = time.monotonic() + PATIENCE
        while process.alive(made) or made.path in process._children.values():
            assert time.monotonic() < deadline
            for found in pid_lookup.holders(made):
                with found:
                    found.kill()
            process.reap()
            time.sleep(0.002)
        made.close()


async def eventually(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


def now() -> float:
    return SystemClock().now()


class Peer:
    """One who listens on a socket in the folder and talks to one client at a time."""

    def __init__(self) -> None:
        self.reader: asyncio.StreamReader | None = None
        self.writer: asyncio.StreamWriter | None = None
        self.came = asyncio.Event()

    def say(self, data: bytes | dict[str, Any]) -> None:
        assert self.writer is not None
        self.writer.write(data if isinstance(data, bytes) else json.dumps(data).encode() + b"\r\n")

    async def read(self) -> bytes:
        assert self.reader is not None
        return await self.reader.read(65536)

    async def asked(self) -> dict[str, Any]:
        assert self.reader is not None
        found: dict[str, Any] = json.loads(await self.reader.readline())
        return found

    def hang_up(self) -> None:
        assert self.writer is not None
        self.writer.transport.abort()


@asynccontextmanager
async def listening(folder: MachineFolder, name: str) -> AsyncIterator[Peer]:
    peer = Peer()

    def came(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer.reader, peer.writer = reader, writer
        peer.came.set()

    server = await asyncio.start_unix_server(came, f"/proc/self/fd/{folder.descriptor}/{name}")
    try:
        yield peer
    finally:
        server.close()
        if peer.writer is not None:
            peer.writer.transport.abort()
        await asyncio.sleep(0.01)
