"""How slices are called: what routers and workers say to each other, and the port by which a router says it.

One connection carries many calls at once; each message is one frame (`kit/frames.py`) of msgpack. Arguments and results
are JSON as the caller wrote it and as it is answered: nobody between reads them.

    caller                                  worker
    Hello(token)                       ->
                                       <-   Welcome | Denied, and the end of the connection
    Call(id=1, method, arguments, …)   ->
                                       <-   Result(id=1)   or   Item(id=1)… End(id=1)   or   Failed(id=1)
    Cancel(id=1)                       ->   (nobody waits for the answer any more)

A call that was refused (`Fault.REFUSED`), or whose Call was never written, provably did not start. One whose connection
ended before its answer may have.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PROTOCOL = 1


class Fault(enum.StrEnum):
    """How a call failed."""

    REFUSED = "refused"
    """It did not start: the instance is stopping, has too many calls, or is another one."""
    NO_METHOD = "no_method"
    """It did not start: there is no such method."""
    ARGUMENTS = "arguments"
    """It did not start: the arguments are not what the method takes."""
    RAISED = "raised"
    """The method raised."""
    DEADLINE = "deadline"
    """Its time was over."""
    TOO_LARGE = "too_large"
    """What it answered is longer than a message may be."""


NOT_STARTED = frozenset({Fault.REFUSED, Fault.NO_METHOD, Fault.ARGUMENTS})


class Message(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What is said on a connection."""


class Hello(Message, frozen=True, tag=1):
    """First of all: who calls."""

    token: str
    caller: str = ""
    protocol: int = PROTOCOL


class Welcome(Message, frozen=True, tag=2):
    """Calls may come."""

    artifact: str
    instance: int
    protocol: int = PROTOCOL


class Denied(Message, frozen=True, tag=3):
    """No call is taken from this caller (yet: workers learn of new callers by and by)."""

    why: str


class Call(Message, frozen=True, tag=4):
    """Do it."""

    id: int
    method: str
    arguments: bytes
    """A JSON object: the method's arguments by name."""
    within: float | None = None
    """Seconds that are left."""
    trace: str = ""
    """Of the request that it belongs to; handed on to calls that it makes."""
    version: str = ""
    """The artifact that is meant; empty: whichever listens there."""
    instance: int = 0
    """The instance that is meant; 0: whichever listens there."""


class Cancel(Message, frozen=True, tag=5):
    """Nobody waits any more."""

    id: int


class Result(Message, frozen=True, tag=6):
    """The answer."""

    id: int
    value: bytes
    """JSON."""


class Item(Message, frozen=True, tag=7):
    """One of several results."""

    id: int
    value: bytes


class End(Message, frozen=True, tag=8):
    """There are no more."""

    id: int


class Failed(Message, frozen=True, tag=9):
    """There is no answer."""

    id: int
    fault: Fault
    message: str = ""
    error: str = ""
    """The exception's class, where the method raised."""


FromCaller = Hello | Call | Cancel
FromWorker = Welcome | Denied | Result | Item | End | Failed


class CallFailed(Exception):
    """A call ended without an answer. `started` False: it provably did not start."""

    def __init__(self, fault: Fault | None, message: str, *, started: bool, error: str = "") -> None:
        super().__init__(message)
        self.fault, self.message, self.started, self.error = fault, message, started, error


class NotAdmitted(CallFailed):
    """The worker does not know the caller (yet)."""

    def __init__(self, message: str) -> None:
        super().__init__(None, message, started=False)


class Unreachable(CallFailed):
    """There was no connection to be had."""

    def __init__(self, message: str) -> None:
        super().__init__(None, message, started=False)


class Items(Protocol):
    """The results of a stream as they come. CallFailed: it broke off."""

    def __aiter__(self) -> Items: ...

    async def __anext__(self) -> bytes: ...

    async def aclose(self) -> None:
        """Nobody wants more: the call is cancelled unless it has ended."""
        ...


class Lines(Protocol):
    """Connections to workers, opened when they are first needed and shared by all calls to an address."""

    async def ask(self, address: str, call: Call, *, alone: bool = False) -> bytes | Items:
        """Send it, with an id of the line's own; the answer: one JSON value, or those of a stream, which has begun.

        CallFailed: it failed, or the connection did. `alone`: on a connection of its own, for a stream that may have to
        wait for who reads it. To be cancelled, or to close the stream early, cancels the call.
        """
        ...

    def call(self, address: str, call: Call) -> AsyncIterator[bytes]:
        """The same, whatever comes: one value, or those of a stream."""
        ...

    async def aclose(self) -> None:
        """End all connections."""
        ...


# What the leader asks routers, on the address in their record (`RouterRecord`): one question, one answer.


class Ask(Message, frozen=True, tag=20):
    """What was measured after this second (of the router's own count; 0: all that is known)?"""

    after: int = 0


class Tally(Message, frozen=True):
    """Calls of an artifact that ended within a second."""

    artifact: str
    calls: int
    errors: int
    times: dict[int, int]
    """How many took how long, by the number of the span (`engine/invocation/call_metrics.py`)."""


class Second(Message, frozen=True):
    """A second, and what ended in it."""

    at: int
    tallies: tuple[Tally, ...]


class Told(Message, frozen=True, tag=21):
    """The answer. What is not complete is not told."""

    router: str
    now: int
    """The second that is not complete yet."""
    seconds: tuple[Second, ...] = ()
    in_flight: dict[str, int] = {}
    """Calls under way now, by artifact."""
    cpu: dict[str, float] = {}
    """By artifact: processors in use by its instances on the nodes of that process."""


class Questions(Protocol):
    """The way to ask routers."""

    async def ask(self, address: str, question: Ask) -> Told:
        """Its answer. CallFailed: it gave none in time."""
        ...

    async def aclose(self) -> None:
        """End all connections."""
        ...
