"""The process of one instance: `python -m hostler.slices.worker`, with its order on standard input.

The worker imports the slice, answers its agent on the control socket, and takes calls. It outlives its agent, and the
next agent adopts it. If no agent contacts it for `orphaned_after` seconds, it ends.

The output of the slice is its log, of limited size. Standard output is a pipe that a thread of the same process reads,
so no agent is needed, and the output of native code is included. At the end the agent, if there is one, reads what is
left in the pipe.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import io
import logging
import os
import signal
import socket
import sys
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import msgspec

from hostler.kit.frames import FrameError, frame, read_frame
from hostler.kit.host import LEAVE_FILE
from hostler.ports.worker_protocol import (
    MAX_LOG,
    Activate,
    Admit,
    Deactivate,
    FromAgent,
    Gateway,
    Look,
    Order,
    Problem,
    Quit,
    State,
)
from hostler.slices import client, module
from hostler.slices.calls import Calls
from hostler.slices.client import Context, context, set_instance
from hostler.slices.error_text import describe_error, encode_message, message_of
from hostler.slices.lifecycle import Instance, NotDone
from hostler.slices.module import show_as
from hostler.slices.serving import Serving

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostler.slices.module import SliceModule


CHUNK = 64 * 1024


def keep_log(pipe: int, logs: Sequence[int]) -> None:
    """Start to copy the pipe to the log, until the process ends."""
    for descriptor in (pipe, *logs):
        os.set_inheritable(descriptor, False)
    threading.Thread(target=Log(pipe, *logs).keep, name="log", daemon=True).start()


class Log:
    """Two files: the log, and its content before it last reached `limit` bytes."""

    def __init__(self, pipe: int, log: int, older: int, *, limit: int = MAX_LOG) -> None:
        self._pipe, self._log, self._older, self._limit = pipe, log, older, limit
        self._size = os.lseek(log, 0, os.SEEK_END)
        self._can_move = hasattr(os, "splice")

    def keep(self) -> None:
        """Copy until the pipe is closed."""
        while self.take():
            pass

    def take(self) -> bool:
        """Wait for output, and write it. False: the pipe is closed."""
        if self._size >= self._limit:
            self._turn()
        try:
            moved = self._move()
        except OSError:  # the disk is full: drop the older log to make room; if that fails, drop the output
            self._turn(keep=False)
            try:
                moved = self._move()
            except OSError:
                return bool(os.read(self._pipe, CHUNK))
        self._size += moved
        return moved > 0

    def _move(self) -> int:
        """Move some bytes from the pipe to the log. Splice loses no bytes if the process ends."""
        most = min(CHUNK, self._limit - self._size)
        if self._can_move:
            try:
                return os.splice(self._pipe, self._log, most)
            except OSError as error:
                if error.errno != errno.EINVAL:  # this file system does not support splice
                    raise
                self._can_move = False
        return os.write(self._log, text) if (text := os.read(self._pipe, most)) else 0

    def _turn(self, *, keep: bool = True) -> None:
        """Start the log again, and keep its content as the older part, which is emptied first to make room."""
        with suppress(OSError):
            os.ftruncate(self._older, 0)
            at = max(0, self._size - self._limit) if keep else self._size
            to = 0
            while text := os.pread(self._log, CHUNK, at):
                to += os.pwrite(self._older, text, to)
                at += len(text)
        with suppress(OSError):
            os.ftruncate(self._log, 0)
            os.lseek(self._log, 0, os.SEEK_SET)
        self._size = 0


MAX_CONTROL = 4 * 1024 * 1024
"""The largest message of an agent, in bytes."""
MAX_ORDER = 16 * 1024 * 1024
LAST_GRACE = 5.0
"""Seconds that running calls have when the process is asked to end."""
LAST_STOP = 5.0
"""Seconds that `stop` has after that."""
HEARD_WITHIN = 30.0
"""Seconds that a worker that failed to start waits for an agent, to report the error."""
_LOG = logging.getLogger("hostler.slices")


def main() -> NoReturn:
    """Run until the process is asked to end, or no agent contacts it for too long."""
    try:
        order = msgspec.json.decode(sys.stdin.buffer.read(MAX_ORDER), type=Order)
    except msgspec.DecodeError as error:
        print(f"worker: no order on standard input: {error}; slices are started by an agent", file=sys.stderr)  # noqa: T201
        sys.exit(2)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.set_inheritable(order.control, False)
    if order.output >= 0:
        keep_log(order.output, order.logs)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # like standard error: printing must never fail
    os.environ.update(order.settings.environment)
    with suppress(OSError):  # the name in `ps` and `top`
        Path("/proc/self/comm").write_text(order.artifact.split(":")[1][:15], encoding="utf-8")
    sys.argv[:] = [f"{order.artifact}#{order.instance}"]
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    show_as(dict(zip(order.path, order.shown)))
    sys.path[:0] = order.path
    set_instance(Context(artifact=order.artifact, instance=order.instance, node=order.node))
    code = 1
    try:
        # Not asyncio.run: at its end it waits for cancelled tasks, and a slice may wait forever.
        code = asyncio.new_event_loop().run_until_complete(_run(order, *_import_slice(order.module)))
    except BaseException:  # noqa: BLE001 - only the log is left to report it
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # threads of the slice may never end


def _import_slice(name: str) -> tuple[SliceModule | None, str]:
    """Return the slice; or None, and why it cannot be imported."""
    try:
        found = module.load(name)
    except BaseException as error:  # noqa: BLE001 - a module may raise anything
        traceback.print_exc()
        if isinstance(error, TypeError) and message_of(error).startswith((f"{name}:", "method ")):
            return None, message_of(error)
        return None, f"import {name}: {describe_error(error)}"
    gc.collect()
    gc.freeze()
    return found, ""


async def _run(order: Order, found: SliceModule | None, why: str) -> int:
    if found is not None:
        worker = Worker(order, found)
        try:
            return await worker.run()
        except OSError as error:
            why = f"{order.host}: cannot listen for calls: {error.strerror or error}"
    return await _tell(order, why)


async def _tell(order: Order, why: str) -> int:
    """Report to the agent why this process cannot be a worker."""
    told = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(FrameError, OSError, msgspec.DecodeError):
            while (payload := await read_frame(reader, limit=MAX_CONTROL)) is not None:
                question = msgspec.msgpack.decode(payload, type=FromAgent)
                writer.write(frame(encode_message(Problem(question.number, why[:4000]))))
                await writer.drain()
                told.set()

    server = await asyncio.start_unix_server(answer, sock=socket.socket(fileno=order.control), **LEAVE_FILE)
    with suppress(TimeoutError):
        async with asyncio.timeout(HEARD_WITHIN):
            await told.wait()
            await asyncio.sleep(0.2)
    server.close()
    return 1


class Worker:
    """The instance, and its control connections."""

    def __init__(self, order: Order, found: SliceModule) -> None:
        here = context()
        self._order, self._found = order, found
        self._calls = Calls(found, here, concurrency=order.settings.concurrency)
        self._serving = Serving(self._calls, order.tokens)
        self._line: client.AgentConnection | None = None
        self._instance: Instance | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._heard_at = time.monotonic()
        self._end = asyncio.Event()

    async def run(self) -> int:
        """Run until asked to end. OSError: it cannot listen for calls."""
        order = self._order
        address = self._serving.open(order.host)
        if order.gateway:
            self._line = client.AgentConnection(
                order.gateway, order.gateway_token, f"{order.artifact}#{order.instance}"
            )
            client.connect(self._line)
        self._instance = Instance(order, self._found, self._calls, address, self._publish_state)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._end.set)
        server = await asyncio.start_unix_server(self._heard, sock=socket.socket(fileno=order.control), **LEAVE_FILE)
        alone = asyncio.create_task(self._until_alone(), name="alone")
        await self._end.wait()
        alone.cancel()
        with suppress(NotDone, TimeoutError):
            async with asyncio.timeout(LAST_GRACE + LAST_STOP):
                await self._instance.end(LAST_GRACE)
        self._serving.close()
        server.close()
        await asyncio.sleep(0)
        return 0

    async def _until_alone(self) -> None:
        while (left := self._heard_at + self._order.orphaned_after - time.monotonic()) > 0:  # noqa: ASYNC110 - time
            await asyncio.sleep(left)
        _LOG.error("no contact from an agent for %g s: ending", self._order.orphaned_after)
        self._end.set()

    async def _heard(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while (payload := await read_frame(reader, limit=MAX_CONTROL)) is not None:
                question = msgspec.msgpack.decode(payload, type=FromAgent)
                self._heard_at = time.monotonic()
                task = asyncio.create_task(self._answer(question, writer), name=type(question).__name__)
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        except (FrameError, OSError, msgspec.DecodeError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answer(self, question: FromAgent, writer: asyncio.StreamWriter) -> None:
        assert self._instance is not None  # noqa: S101 - it exists before the server accepts questions
        answer: State | Problem
        try:
            match question:
                case Activate():
                    await self._instance.activate()
                case Deactivate(grace=grace):
                    await self._instance.deactivate(grace)
                case Admit(tokens=tokens):
                    self._serving.tokens = tokens
                case Gateway(token=token):
                    if self._line is not None:
                        self._line.token = token
                case Quit():
                    self._end.set()
                    return
                case Look():
                    pass
            answer = self._instance.state(question.number)
        except NotDone as error:
            answer = Problem(question.number, str(error)[:4000])
        self._say(writer, answer)

    def _publish_state(self) -> None:
        assert self._instance is not None  # noqa: S101 - it is the caller
        for writer in self._writers:
            self._say(writer, self._instance.state())

    @staticmethod
    def _say(writer: asyncio.StreamWriter, answer: State | Problem) -> None:
        if not writer.is_closing():
            writer.write(frame(encode_message(answer)))


if __name__ == "__main__":
    main()
