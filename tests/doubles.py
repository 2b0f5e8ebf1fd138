"""Machines whose doors are real sockets: a real SSH server behind `ChannelKind.SSH`, an echo behind the others."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

import asyncssh

from hostler.errors import NotFound
from hostler.ports.machines import ChannelKind

if TYPE_CHECKING:
    from types import TracebackType


class SocketChannel:
    """A TCP connection as a `Channel`."""

    def __init__(self, port: int | None) -> None:
        self._port = port
        self._writer: asyncio.StreamWriter | None = None

    async def __aenter__(self) -> Self:
        if self._port is None:
            raise NotFound("vm: it is off and has no door; start it first")
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._writer is not None:
            self._writer.close()
            with suppress(OSError):
                await self._writer.wait_closed()

    async def read(self) -> bytes:
        try:
            return await self._reader.read(65536)
        except OSError:
            return b""

    async def write(self, data: bytes) -> None:
        assert self._writer is not None
        self._writer.write(data)
        await self._writer.drain()


class DoorMachines:
    """As much of `Machines` as the doors need: `ports` by machine and door."""

    def __init__(self, ports: dict[tuple[str, ChannelKind], int]) -> None:
        self.ports = ports

    def channel(self, vm: str, door: ChannelKind) -> SocketChannel:
        return SocketChannel(self.ports.get((vm, door)))


class Guest:
    """An SSH server that runs what it is asked to in a shell of this machine."""

    def __init__(self, folder: str) -> None:
        self.host_key = asyncssh.generate_private_key("ssh-ed25519")
        self.folder = folder
        self.allowed: list[asyncssh.SSHKey] = []
        self.sizes: list[tuple[int, int]] = []
        self.terms: list[str | None] = []
        self._server: Any = None
        self._serving: set[asyncio.Task[Any]] = set()
        self._connections: list[Any] = []

    @property
    def port(self) -> int:
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def public_key(self) -> str:
        return str(self.host_key.export_public_key().decode().strip())

    async def __aenter__(self) -> Self:
        guest = self

        class Admission(asyncssh.SSHServer):
            def connection_made(self, conn: Any) -> None:
                guest._connections.append(conn)

            def begin_auth(self, username: str) -> bool:  # noqa: ARG002
                return True

            def public_key_auth_supported(self) -> bool:
                return True

            def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:  # noqa: ARG002
                return key.convert_to_public() in guest.allowed

        self._server = await asyncssh.listen(
            "127.0.0.1",
            0,
            server_host_keys=[self.host_key],
            server_factory=Admission,
            process_factory=self._process,
            encoding=None,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()
        if self._serving:
            _, late = await asyncio.wait(self._serving, timeout=10)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def cut(self) -> None:
        """Every connection, without a word."""
        for connection in self._connections:
            connection.abort()

    def allow(self, public: str) -> None:
        self.allowed.append(asyncssh.import_public_key(public))

    async def _process(self, process: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        self.terms.append(process.term_type)
        if process.term_type is not None:
            self.sizes.append(process.term_size[:2])
        command = process.command or "cat"
        if process.command == "resized":
            while True:
                try:
                    await process.stdin.read(100)
                except asyncssh.TerminalSizeChanged as changed:
                    self.sizes.append((changed.width, changed.height))
                    process.exit(0)
                    return
        ran = await asyncio.create_subprocess_exec(
            "sh",
            "-c",
            command,
            cwd=self.folder,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        feeding = asyncio.create_task(_feed(process, ran), name="guest: input")
        outputs = [
            asyncio.create_task(_pour(ran.stdout, process.stdout), name="guest: output"),
            asyncio.create_task(_pour(ran.stderr, process.stderr), name="guest: errors"),
        ]
        closing = asyncio.create_task(process.wait_closed(), name="guest: closed")
        try:
            done = asyncio.create_task(_all(*outputs, ran.wait()), name="guest: end")
            await asyncio.wait((done, closing), return_when=asyncio.FIRST_COMPLETED)
            done.cancel()
            await asyncio.wait((done,))
            if ran.returncode is not None:
                name = {-15: "TERM", -9: "KILL", -2: "INT"}.get(ran.returncode)
                process.exit(ran.returncode) if name is None else process.exit_with_signal(name)
        finally:
            for task in (feeding, closing, *outputs):
                task.cancel()
            ran._transport.close()  # type: ignore[attr-defined]  # kills it; and what it said need not be read
            await ran.wait()
            await asyncio.gather(feeding, closing, *outputs, return_exceptions=True)


async def _all(*parts: Any) -> None:
    await asyncio.gather(*parts)


async def _feed(process: Any, ran: asyncio.subprocess.Process) -> None:
    assert ran.stdin is not None
    with suppress(OSError, asyncssh.Error):
        while True:
            try:
                data = await process.stdin.read(65536)
            except asyncssh.SignalReceived as received:
                ran.send_signal({"INT": 2, "TERM": 15, "HUP": 1}[received.signal])
                continue
            if not data:
                break
            ran.stdin.write(data)
            await ran.stdin.drain()
        ran.stdin.close()
        while True:  # signals may come yet
            try:
                await process.stdin.read(1)
            except asyncssh.SignalReceived as received:
                ran.send_signal({"INT": 2, "TERM": 15, "HUP": 1}[received.signal])
            await asyncio.sleep(0.05)


async def _pour(source: Any, target: Any) -> None:
    with suppress(OSError, asyncssh.Error):
        while data := await source.read(65536):
            target.write(data)
            await target.drain()
