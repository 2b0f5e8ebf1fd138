"""A machine with a small shell of its own behind a real SSH server, and a browser for the terminal that leads there."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

import aiohttp
import asyncssh
import msgspec

if TYPE_CHECKING:
    from api_server import Api


class ShellGuest:
    """Each login gets a shell with a number. It knows a few words, one per line, and remembers what was typed."""

    def __init__(self) -> None:
        self.host_key = asyncssh.generate_private_key("ssh-ed25519")
        self.allowed: list[asyncssh.SSHKey] = []
        self.users: list[str] = []
        self.typed = b""
        self.poured = 0
        """Bytes that `pour` has got rid of."""
        self.speak = asyncio.Event()
        """What `later` waits for."""
        self.connections: list[Any] = []
        self.logins = 0
        """How many have said who they are, let in or not."""
        self._numbers = itertools.count(1)
        self._server: Any = None
        self._serving: set[asyncio.Task[Any]] = set()
        self.port = 0

    @property
    def public_key(self) -> str:
        return str(self.host_key.export_public_key().decode().strip())

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def listen(self) -> None:
        guest = self

        class Admission(asyncssh.SSHServer):
            def connection_made(self, conn: Any) -> None:
                guest.connections.append(conn)

            def begin_auth(self, username: str) -> bool:
                guest.users.append(username)
                return True

            def public_key_auth_supported(self) -> bool:
                return True

            def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:  # noqa: ARG002
                guest.logins += 1
                return key.convert_to_public() in guest.allowed

        self._server = await asyncssh.listen(
            "127.0.0.1",
            self.port,
            server_host_keys=[self.host_key],
            server_factory=Admission,
            process_factory=self._shell,
            encoding=None,
            line_editor=False,
            reuse_address=True,
        )
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def __aexit__(self, *_: object) -> None:
        self.cut()
        self._server.close()
        await self._server.wait_closed()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def cut(self) -> None:
        """Every connection, without a word."""
        for connection in self.connections:
            connection.abort()
        self.connections.clear()

    async def _shell(self, process: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        number = next(self._numbers)
        process.stdout.write(b"shell %d\r\n" % number)
        line = b""
        with suppress(asyncssh.Error, OSError):
            while True:
                try:
                    data = await process.stdin.read(65536)
                except asyncssh.TerminalSizeChanged as changed:
                    process.stdout.write(b"resized %dx%d\r\n" % (changed.width, changed.height))
                    continue
                if not data:
                    return
                self.typed += data
                *lines, line = (line + data).split(b"\r")
                for each in lines:
                    await self._do(process, number, each.decode().split())

    async def _do(self, process: Any, number: int, words: list[str]) -> None:
        out = process.stdout
        match words:
            case ["who"]:
                out.write(b"shell %d is here\r\n" % number)
            case ["ask"]:
                out.write(b"where is the cursor?\x1b[6n\r\n")
            case ["draw"]:
                out.write(b"\x1b[?1049h\x1b[2J\x1b[5;5Hthe picture of an editor")
            case ["size"]:
                out.write(b"size %dx%d\r\n" % process.term_size[:2])
            case ["split"]:
                for byte in "größe €".encode():
                    out.write(bytes([byte]))
                    await asyncio.sleep(0)
                out.write(b"\xff\r\n")
            case ["pour", count]:
                for _ in range(int(count)):
                    out.write(b"x" * 1024)
                    self.poured += 1024
                    await out.drain()
                out.write(b"poured\r\n")
            case ["later", word]:
                await self.speak.wait()
                out.write(f"{word}\r\n".encode())
            case ["exit", status]:
                process.exit(int(status))
            case ["die"]:
                process.exit_with_signal("KILL")
            case _:
                out.write(b"what?\r\n")


class Browser:
    """A WebSocket to a terminal, as a page has it."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, *, patience: float = 60.0) -> None:
        self.socket, self._patience = socket, patience
        self.seen: list[dict[str, Any]] = []
        self.output = ""
        self.code: int | None = None

    async def say(self, **message: Any) -> None:
        await self.socket.send_str(msgspec.json.encode(message).decode())

    async def type(self, text: str) -> None:
        await self.say(type="input", data=text)

    def all(self, kind: str) -> list[str]:
        return [message.get("message", "") for message in self.seen if message["type"] == kind]

    async def step(self) -> bool:
        """One message more; False: it was closed."""
        message = await self.socket.receive()
        if message.type is not aiohttp.WSMsgType.TEXT:
            self.code = message.data if message.type is aiohttp.WSMsgType.CLOSE else self.socket.close_code
            return False
        said = msgspec.json.decode(message.data)
        self.output += said["data"] if said["type"] == "output" else ""
        self.seen.append(said)
        return True

    async def until(self, *, kind: str = "", said: str = "") -> dict[str, Any]:
        """Until a message of that kind comes, with those words; or until the shell has said them."""
        looked = begin = 0
        async with asyncio.timeout(self._patience):
            while True:
                for message in self.seen[looked:]:
                    if kind and message["type"] == kind and said in message.get("message", ""):
                        return message
                if not kind and said in self.output[begin:]:
                    return {}
                looked, begin = len(self.seen), max(0, len(self.output) - len(said))
                assert await self.step(), f"closed with {self.code} after {self.seen[-20:]}"

    async def closed(self) -> int:
        async with asyncio.timeout(self._patience):
            while await self.step():
                pass
        assert self.code is not None
        return self.code

    async def leave(self) -> None:
        await self.socket.close()


async def browse(api: Api, user: str = "ann", query: str = "", *, token: str | None = "") -> Browser:
    """A new page. `token=None`: without one."""
    headers = {} if token is None else {"Authorization": f"Bearer {token or api.admin}"}
    return Browser(await api.open_websocket(f"/v1/labs/{user}/terminal{query}", headers))
