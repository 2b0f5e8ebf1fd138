"""Running calls: each is started, and answered once."""

from __future__ import annotations

import asyncio
import difflib
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from hostler.kit.frames import MAX_FRAME
from hostler.kit.plural import counted
from hostler.ports.calls import Call, End, Failed, Fault, Item, Result
from hostler.slices.client import CURRENT, Context
from hostler.slices.error_text import MAX_TOLD, log_raised, message_of
from hostler.slices.framing import later
from hostler.slices.module import BadArguments, call_plain

if TYPE_CHECKING:
    from contextvars import Context as Variables

    from hostler.slices.module import Handler, SliceModule

MAX_THREADS = 200
"""Threads for functions that are not coroutines; further calls wait for a free one."""
AT_ONCE = 64
"""Results of a stream that are sent before other tasks get a turn."""
HELD_FOR = 300.0
"""Seconds after which abandoned calls that hold all slots count as never ending."""
_SPARE = 64
"""Bytes of a message other than its value."""
_LOG = logging.getLogger("hostler.slices")


class Answers(Protocol):
    """The receiver of the answers of a call."""

    def answer(self, message: Result | Item | End | Failed) -> None:
        """Send the answer, if the caller is still connected."""
        ...

    async def room(self) -> None:
        """Wait until more can be sent."""
        ...

    def done(self, number: int) -> None:
        """Handle that the call with this number has ended."""
        ...


class Work:
    """One running call."""

    __slots__ = ("call", "calls", "handler", "is_answered", "is_begun", "stopped", "stopped_at", "task", "timer", "to")

    def __init__(self, calls: Calls, call: Call, handler: Handler, to: Answers) -> None:
        self.calls, self.call, self.handler, self.to = calls, call, handler, to
        self.is_answered = self.is_begun = self.stopped = False
        self.stopped_at = 0.0
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None

    def answer(self, message: Result | End | Failed) -> None:
        """Send the final answer; later ones are dropped."""
        if not self.is_answered:
            self.is_answered = True
            self.to.answer(message)

    def expire(self) -> None:
        """Stop the call because its time is over."""
        self.stop(
            Failed(self.call.id, Fault.DEADLINE, f"{self.call.method}: its time of {self.call.within:g} s is over")
        )

    def stop(self, last: Failed | None = None) -> None:
        """Abandon the call. A thread cannot be stopped: it counts as running until it ends."""
        if last is not None:
            self.answer(last)
        if not self.stopped:
            self.stopped_at = time.monotonic()
        self.is_answered = self.stopped = True
        if self.task is None or (self.is_begun and self.handler.in_thread):
            return
        self.task.cancel()
        if not self.is_begun:  # a task that is cancelled before it begins never runs its `finally`
            self.calls.end(self)


class Calls:
    """The calls of one instance."""

    def __init__(self, module: SliceModule, here: Context, *, concurrency: int) -> None:
        self.here, self.concurrency = here, concurrency
        self.is_active = False
        self.why_not = "it was not started yet"
        self._handlers = module.methods
        self._works: set[Work] = set()
        self._loop = asyncio.get_running_loop()
        self._encode = msgspec.json.Encoder().encode
        self._threads: ThreadPoolExecutor | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def in_flight(self) -> int:
        return len(self._works)

    def begin(self, call: Call, to: Answers) -> Work | None:
        """Start the call; None: it was answered already."""
        refused = self._refusal(call)
        if refused:
            return self._fail(to, call, Fault.REFUSED, f"{self.here.artifact}#{self.here.instance}: {refused}")
        handler = self._handlers.get(call.method)
        if handler is None:
            return self._fail(to, call, Fault.NO_METHOD, self._unknown_method(call.method))
        try:
            arguments = handler.signature.read(call.arguments)
        except BadArguments as error:
            return self._fail(to, call, Fault.ARGUMENTS, str(error)[:MAX_TOLD])
        within, ends_at = call.within, None
        work = Work(self, call, handler, to)
        if within is not None:
            if not within > 0:
                return self._fail(to, call, Fault.DEADLINE, f"{call.method}: its time was over when it arrived")
            ends_at = time.monotonic() + within
            work.timer = later(self._loop, within, work.expire)
        variables = copy_context()
        here = self.here
        variables.run(
            CURRENT.set,
            Context(
                artifact=here.artifact,
                instance=here.instance,
                node=here.node,
                method=call.method,
                trace=call.trace,
                ends_at=ends_at,
            ),
        )
        self._works.add(work)
        self._idle.clear()
        work.task = self._loop.create_task(self._run(work, arguments, variables), context=variables)
        return work

    def held_up(self) -> str:
        """Return why calls can never be accepted or begun again; empty: they can."""
        before = time.monotonic() - HELD_FOR
        held = sum(work.stopped and work.stopped_at <= before for work in self._works)
        if held < min(self.concurrency, MAX_THREADS):
            return ""
        calls = counted(held, "call")
        return f"all its slots have been held for {HELD_FOR:g} s or more by {calls} that no caller waits for"

    async def drained(self, grace: float) -> bool:
        """Wait up to `grace` seconds for all calls; return whether all ended."""
        try:
            async with asyncio.timeout(max(0.0, grace)):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def stop_all(self, why: str) -> None:
        """Stop the remaining calls, as far as possible."""
        for work in list(self._works):
            work.stop(Failed(work.call.id, Fault.RAISED, why, "Stopped"))

    def end(self, work: Work) -> None:
        """Remove a call that no longer runs."""
        if work.timer is not None:
            work.timer.cancel()
        self._works.discard(work)
        work.to.done(work.call.id)
        if not self._works:
            self._idle.set()

    def close(self) -> None:
        """Shut down the threads, except those that cannot be ended."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None

    async def _run(self, work: Work, arguments: dict[str, Any], variables: Variables) -> None:
        call, handler = work.call, work.handler
        work.is_begun = True
        try:
            if handler.method.streams:
                stream = self._stream_in_thread if handler.in_thread else self._stream
                await stream(work, arguments, variables)
                work.answer(End(call.id))
            else:
                if handler.in_thread:
                    value = await self._in_thread(variables, handler.function, arguments)
                else:
                    value = await handler.function(**arguments)
                if (encoded := self._encode_result(work, value)) is not None:
                    work.answer(Result(call.id, encoded))
        except BaseException as error:  # noqa: BLE001 - the slice may raise anything
            self._answer_error(work, error)
        finally:
            self.end(work)

    async def _stream(self, work: Work, arguments: dict[str, Any], _variables: Variables) -> None:
        async with aclosing(work.handler.function(**arguments)) as items:
            sent = 0
            async for item in items:
                if not await self._sent(work, item):
                    return
                sent += 1
                if sent % AT_ONCE == 0:
                    await asyncio.sleep(0)

    async def _stream_in_thread(self, work: Work, arguments: dict[str, Any], variables: Variables) -> None:
        items = await self._in_thread(variables, work.handler.function, arguments)
        end = object()
        try:
            while (item := await self._in_thread(variables, next, {}, items, end)) is not end:
                if not await self._sent(work, item):
                    return
        finally:
            await self._in_thread(variables, items.close, {})

    async def _sent(self, work: Work, item: Any) -> bool:
        """Send one result; return whether more are wanted."""
        encoded = self._encode_result(work, item)
        if encoded is None or work.stopped:
            return False
        work.to.answer(Item(work.call.id, encoded))
        await work.to.room()
        return not work.stopped

    def _in_thread(self, variables: Variables, function: Any, arguments: dict[str, Any], *more: Any) -> Any:
        if self._threads is None:
            most = min(self.concurrency, MAX_THREADS)
            self._threads = ThreadPoolExecutor(most, thread_name_prefix="hostler-call")
        inside = variables.copy()  # only one thread at a time can enter a context, and the task is in it
        return self._loop.run_in_executor(self._threads, lambda: inside.run(call_plain, function, *more, **arguments))

    def _encode_result(self, work: Work, value: Any) -> bytes | None:
        """Encode as JSON; None: it is too long, and that was answered."""
        try:
            encoded = self._encode(value)
        except Exception as error:  # noqa: BLE001 - a value of the slice's own types may raise anything
            raise TypeError(f"{work.call.method}: its result cannot be encoded as JSON: {error}") from None
        if len(encoded) + _SPARE > MAX_FRAME:
            why = (
                f"{work.call.method}: its answer has {len(encoded)} bytes, and at most {MAX_FRAME - _SPARE} can be sent"
            )
            work.answer(Failed(work.call.id, Fault.TOO_LARGE, f"{why}; stream it in parts"))
            return None
        return encoded

    def _answer_error(self, work: Work, error: BaseException) -> None:
        if work.stopped:
            return
        if not isinstance(error, asyncio.CancelledError):
            log_raised(_LOG, f"{work.call.method} (trace {work.call.trace or 'none'})", error)
        work.answer(Failed(work.call.id, Fault.RAISED, message_of(error), type(error).__name__))

    def _refusal(self, call: Call) -> str:
        if not self.is_active:
            return self.why_not
        if len(self._works) >= self.concurrency:
            return f"it has {counted(len(self._works), 'running call')}, which is its limit"
        if call.version and call.version != self.here.artifact:
            return f"{call.version} is not here"
        if call.instance and call.instance != self.here.instance:
            return f"instance {call.instance} is not here"
        return ""

    def _unknown_method(self, name: str) -> str:
        name = name[:100]
        near = difflib.get_close_matches(name, self._handlers, n=1)
        known = ", ".join(sorted(self._handlers)[:20])
        return f"{self.here.artifact}: no method {name}; " + (f"did you mean {near[0]}?" if near else f"it has {known}")

    @staticmethod
    def _fail(to: Answers, call: Call, fault: Fault, why: str) -> None:
        to.answer(Failed(call.id, fault, why))
