"""Calls of other slices, through the agent of the node, which knows their endpoints; and the context of a call.

The context is the instance, the method and the deadline.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from hostler.kit.frames import MAX_FRAME
from hostler.kit.host import short_path
from hostler.ports.calls import (
    NOT_STARTED,
    Call,
    CallFailed,
    Cancel,
    Denied,
    End,
    Failed,
    Fault,
    FromWorker,
    Hello,
    Item,
    Result,
    Welcome,
)
from hostler.slices.framing import Framed

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Coroutine


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """The context of a call, or (in `start`, `stop` and `healthy`) of the instance."""

    artifact: str = ""
    """`group:name:version`; empty: this process is not a worker."""
    instance: int = 0
    node: str = ""
    method: str = ""
    trace: str = ""
    """The trace of the request that the call belongs to."""
    ends_at: float | None = None
    """On the clock of `time.monotonic`; None: no deadline."""

    @property
    def left(self) -> float | None:
        """Return the seconds until the deadline; None: there is none."""
        return None if self.ends_at is None else max(0.0, self.ends_at - time.monotonic())


CURRENT: ContextVar[Context] = ContextVar("hostler.slices.context")
_NOWHERE = Context()
_here = _NOWHERE


def context() -> Context:
    """Return the context of the call that this code runs for."""
    return CURRENT.get(_here)


def set_instance(here: Context) -> None:
    """Set the context outside of calls."""
    global _here  # noqa: PLW0603 - a process is one instance
    _here = here


T = TypeVar("T")
CONNECT_WITHIN = 10.0
AHEAD = 256
"""Results of a stream that are buffered for a slow reader."""
_decode = msgspec.msgpack.Decoder(FromWorker).decode
_encode = msgspec.msgpack.Encoder().encode
_line: AgentConnection | None = None


async def call(target: str, method: str, /, **arguments: Any) -> Any:
    """Call a method of another slice: `group:name`, or `group:name:version` for that version only.

    The called method gets the remaining time of this call. CallFailed: it failed, and how.
    """
    async with aclosing(_through(target, method, arguments)) as answers:
        async for kind, value in answers:
            if kind is Result:
                return value
            break
    raise TypeError(f"call: {method} of {target} streams its results; use stream()")


async def stream(target: str, method: str, /, **arguments: Any) -> AsyncIterator[Any]:
    """Yield the results of a method of another slice that streams; of another method, its only result."""
    async with aclosing(_through(target, method, arguments, alone=True)) as answers:
        async for kind, value in answers:
            if kind is not End:
                yield value


def wait(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine from a method that is not a coroutine: `wait(call(…))`."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        work.close()
        raise RuntimeError("wait: called from a coroutine; use await instead")
    if _line is None:
        return asyncio.run(work)
    return asyncio.run_coroutine_threadsafe(work, _line.loop).result()


def connect(line: AgentConnection | None) -> None:
    """Set the connection that `call` uses."""
    global _line  # noqa: PLW0603 - a process is one instance
    _line = line


async def _through(
    target: str, method: str, arguments: dict[str, Any], *, alone: bool = False
) -> AsyncGenerator[tuple[type[Result | Item | End], Any], None]:
    if _line is None:
        raise RuntimeError(f"call {target} {method}: this process is not a worker, so there is no agent to send it to")
    here = context()
    left = here.left
    if left is not None and left <= 0:
        raise CallFailed(Fault.DEADLINE, f"{target} {method}: no time is left for it", started=False)
    encoded = msgspec.json.encode(arguments)
    if len(encoded) + 1024 > MAX_FRAME:
        raise CallFailed(Fault.TOO_LARGE, f"{target} {method}: {len(encoded)} bytes of arguments", started=False)
    asked = Call(0, method, encoded, left, here.trace, target)
    async with aclosing(_line.ask(asked, alone=alone)) as answers:
        async for answer in answers:
            if isinstance(answer, End):
                yield End, None
            else:
                yield type(answer), msgspec.json.decode(answer.value)


class AgentConnection:
    """The connection to the agent, opened on first use."""

    def __init__(self, path: str, token: str, caller: str) -> None:
        self.loop = asyncio.get_running_loop()
        self.token = token
        self._path, self._caller = path, caller
        self._connection: _Outgoing | None = None
        self._connecting = asyncio.Lock()

    async def ask(self, call: Call, *, alone: bool = False) -> AsyncGenerator[Result | Item | End, None]:
        """Send the call, and yield its answers. CallFailed: the call or the connection failed.

        `alone`: use a separate connection, which is not read faster than the caller reads.
        """
        connection = await (self._new(alone=True) if alone else self._shared_connection())
        number, is_over = 0, False
        try:
            number, answers = connection.begin(call)
            while not is_over:
                answer = await answers.get()
                connection.taken(answers)
                if isinstance(answer, CallFailed):
                    is_over = True
                    raise answer
                is_over = not isinstance(answer, Item)
                yield answer
        finally:
            if number:
                connection.finish(number, cancel=not is_over)
            if alone:
                connection.close()

    async def _shared_connection(self) -> _Outgoing:
        async with self._connecting:
            if self._connection is None or not self._connection.is_open:
                self._connection = await self._new()
            return self._connection

    async def _new(self, *, alone: bool = False) -> _Outgoing:
        try:
            async with asyncio.timeout(CONNECT_WITHIN):
                with short_path(Path(self._path).parent, Path(self._path).name) as path:
                    _, connection = await self.loop.create_unix_connection(lambda: _Outgoing(alone=alone), path)
                await connection.introduce(Hello(self.token, self._caller))
        except (OSError, TimeoutError) as error:
            why = getattr(error, "strerror", None) or "it does not answer"
            raise CallFailed(None, f"the node's agent: {why}", started=False) from None
        return connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.cut()


class _Outgoing(Framed):
    """A connection to the agent: the shared one, which is always read; or that of one stream, read at its pace."""

    def __init__(self, *, alone: bool) -> None:
        super().__init__()
        self._alone = alone
        self._greeting: asyncio.Future[None] = self._loop.create_future()
        self._asked: dict[int, asyncio.Queue[Result | Item | End | CallFailed]] = {}
        self._last = 0

    async def introduce(self, hello: Hello) -> None:
        """Identify the caller. CallFailed: the agent refuses it."""
        self.send(_encode(hello))
        try:
            await self._greeting
        except BaseException:
            self.cut()
            raise

    def begin(self, call: Call) -> tuple[int, asyncio.Queue[Result | Item | End | CallFailed]]:
        self._last += 1
        encoded = _encode(msgspec.structs.replace(call, id=self._last))
        answers = self._asked[self._last] = asyncio.Queue()
        if not self.is_open:
            answers.put_nowait(CallFailed(None, "the node's agent: the connection ended", started=False))
        self.send(encoded)
        return self._last, answers

    def finish(self, number: int, *, cancel: bool) -> None:
        self._asked.pop(number, None)
        if cancel:
            self.send(_encode(Cancel(number)))

    def heard(self, payload: bytes) -> None:
        try:
            message = _decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self.cut()
            return
        if isinstance(message, Welcome | Denied):
            if isinstance(message, Denied) and not self._greeting.done():
                self._greeting.set_exception(CallFailed(None, f"the node's agent: {message.why}", started=False))
            elif not self._greeting.done():
                self._greeting.set_result(None)
            return
        answers = self._asked.get(message.id)
        if answers is None:
            return
        if isinstance(message, Failed):
            started = message.fault not in NOT_STARTED
            answers.put_nowait(CallFailed(message.fault, message.message, started=started, error=message.error))
        else:
            answers.put_nowait(message)
            if self._alone and answers.qsize() >= AHEAD:  # a shared connection must not wait for one reader
                self.listen(on=False)

    def taken(self, answers: asyncio.Queue[Result | Item | End | CallFailed]) -> None:
        """Resume reading once the reader has caught up."""
        if answers.qsize() == AHEAD // 2:
            self.listen(on=True)

    def lost(self) -> None:
        if not self._greeting.done():
            self._greeting.set_exception(CallFailed(None, "the node's agent ended the connection", started=False))
        for answers in self._asked.values():
            answers.put_nowait(CallFailed(None, "the node's agent ended before the answer came", started=True))
