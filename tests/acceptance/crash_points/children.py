"""The launcher, and the processes that it forks, as a test sees them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from harness import pace
from harness.fork_server import ForkServer

if TYPE_CHECKING:
    from collections.abc import Callable

TESTS = Path(__file__).parents[2]
PATIENCE = 30.0
"""Seconds in which everything must have happened; waits are longer where the machine is slow."""


class Launcher:
    """A process of its own that forks children; leaving it ends all of them."""

    def __init__(self, module: str = "crash_points.launcher", *paths: Path) -> None:
        self._module, self._paths = module, (*paths, TESTS / "acceptance")

    def __enter__(self) -> Self:
        self._server = ForkServer(self._module, *self._paths)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()

    @property
    def pid(self) -> int:
        return self._server.pid

    def start(self, role: str, heard: Callable[[Child, dict[str, Any]], None], **flags: object) -> Child:
        """Fork a replica or an agent with these settings. `heard` is called with each of its messages.

        A replica stands by without a limit, because a story may take longer than the default of 120 s.
        """
        if role == "replica":
            flags.setdefault("acquisition_timeout", "0")
        return Child(role, self._server.fork({"role": role, **flags}), heard)


class Child:
    """One replica or agent. `said`: its lines; `passed`: its points since it was armed, each with its instant."""

    def __init__(self, role: str, control: socket.socket, heard: Callable[[Child, dict[str, Any]], None]) -> None:
        self.role, self.pid = role, 0
        self.said: list[str] = []
        self.passed: list[tuple[float, str, int]] = []
        self.crashed: tuple[str, int] | None = None
        self.code: int | None = None
        """How it ended; None: it has not."""
        self._control, self._heard, self._rest = control, heard, b""
        self._stirred = asyncio.Event()
        self._armed = False
        self._open: Counter[str] = Counter()
        control.setblocking(False)
        asyncio.get_running_loop().add_reader(control, self._read)

    @property
    def running(self) -> bool:
        return self.code is None

    async def arm(self, target: tuple[str, int] | None, others: list[Child], **more: object) -> None:
        """Until it counts. At `target` it kills the others, then itself; or what its launcher makes of `more`."""
        for other in others:  # one that has just been started has none yet
            await other.until(lambda other=other: bool(other.pid))  # type: ignore[misc]
        fds = [os.pidfd_open(other.pid) for other in others if other.running]
        try:
            self._send({"is": "arm", "target": target, **more}, fds)
        finally:
            for fd in fds:
                os.close(fd)
        await self.until(lambda: self._armed)

    async def disarm(self) -> None:
        """Until it counts no more, or is dead."""
        if self.running:
            self._send({"is": "disarm"}, [])
            await self.until(lambda: not self._armed)

    async def answered(self) -> None:
        """Until every request that was counted is answered, and every step done; or it is dead."""
        await self.until(lambda: not self._open)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Until that holds or it has ended; looked at after each of its messages."""
        async with asyncio.timeout(pace.patience(PATIENCE)):
            while not condition() and self.running:
                self._stirred.clear()
                await self._stirred.wait()

    def told(self, start: str) -> str | None:
        """The rest of the last line that it began like this."""
        return next((text.removeprefix(start) for text in reversed(self.said) if text.startswith(start)), None)

    async def kill(self) -> None:
        """Until it is dead."""
        if self.running:
            await self.until(lambda: self.pid > 0)
            with suppress(ProcessLookupError):  # it has ended by itself; its last word is on its way
                process = os.pidfd_open(self.pid)
                try:
                    signal.pidfd_send_signal(process, signal.SIGKILL)
                finally:
                    os.close(process)
            await self.until(lambda: False)

    def _send(self, order: dict[str, Any], fds: list[int]) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # it is dead; its last word is on its way
            socket.send_fds(self._control, [json.dumps(order).encode() + b"\n"], fds)

    def _read(self) -> None:
        try:
            data = self._control.recv(1 << 20)
        except ConnectionResetError:
            data = b""
        if not data:
            self._close()
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._hear(json.loads(line))
        self._stirred.set()

    def _hear(self, message: dict[str, Any]) -> None:
        kind = message["is"]
        if kind == "point":
            self.passed.append((message["at"], message["name"], message["number"]))
            self._note(message["name"])
        elif kind == "crash":
            self.crashed = message["name"], message["number"]
        elif kind == "says":
            self.said.append(message["text"])
        elif kind == "forked":
            self.pid = message["pid"]
        elif kind == "armed":
            self._armed = True
            self.passed.clear()
        elif kind == "disarmed":
            self._armed = False
        elif kind == "ended":
            self.code = message["code"]
        self._heard(self, message)

    def _note(self, name: str) -> None:
        what = name.removeprefix("before ").removeprefix("after ").removesuffix(":before").removesuffix(":after")
        self._open[what] += 1 if name.startswith("before ") or name.endswith(":before") else -1
        self._open += Counter()  # forgets what is at zero

    def _close(self) -> None:
        if self._control.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._control)
            self._control.close()
        if self.code is None:
            self.code = 255  # the launcher is gone
