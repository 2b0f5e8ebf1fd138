"""Calls of slices: the protocol between routers and workers, and the port that a router calls workers through.

One connection carries many concurrent calls; each message is one frame (`kit/frames.py`) of msgpack. Arguments and
results are JSON, passed through unchanged: only the caller and the slice parse them.

    caller                                  worker
    Hello(token)                       ->
                                       <-   Welcome | Denied, and the end of the connection
    Call(id=1, method, arguments, …)   ->
                                       <-   Result(id=1)   or   Item(id=1)… End(id=1)   or   Failed(id=1)
    Cancel(id=1)                       ->   (the caller no longer waits for the answer)

A call that was refused (`Fault.REFUSED`), or whose Call message was never written, provably did not start. A call whose
connection ended before its answer arrived may have started.
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
    """Not started: the instance is stopping, has too many calls, or is not the requested instance."""
    NO_METHOD = "no_method"
    """Not started: the method does not exist."""
    ARGUMENTS = "arguments"
    """Not started: the arguments do not match the method."""
    RAISED = "raised"
    """The method raised."""
    DEADLINE = "deadline"
    """The deadline of the call passed."""
    TOO_LARGE = "too_large"
    """The answer exceeds the size limit of a message."""


NOT_STARTED = frozenset({Fault.REFUSED, Fault.NO_METHOD, Fault.ARGUMENTS})


class Message(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message on a call connection."""


class Hello(Message, frozen=True, tag=1):
    """First message of a connection: identifies the caller."""

    token: str
    caller: str = ""
    protocol: int = PROTOCOL


class Welcome(Message, frozen=True, tag=2):
    """The worker accepts calls on this connection."""

    artifact: str
    instance: int
    protocol: int = PROTOCOL


class Denied(Message, frozen=True, tag=3):
    """The worker takes no calls from this caller. Retry: workers learn of new callers with a delay."""

    why: str


class Call(Message, frozen=True, tag=4):
    """Start a call."""

    id: int
    method: str
    arguments: bytes
    """A JSON object: the method's arguments by name."""
    within: float | None = None
    """Seconds left until the deadline."""
    trace: str = ""
    """Trace id of the request that the call belongs to; passed on to calls that this call makes."""
    version: str = ""
    """The requested artifact; empty: any artifact at this address."""
    instance: int = 0
    """The requested instance; 0: any instance at this address."""


class Cancel(Message, frozen=True, tag=5):
    """The caller no longer waits for the answer."""

    id: int


class Result(Message, frozen=True, tag=6):
    """The answer of a call that returns one value."""

    id: int
    value: bytes
    """The value as JSON."""


class Item(Message, frozen=True, tag=7):
    """One value of a stream."""

    id: int
    value: bytes


class End(Message, frozen=True, tag=8):
    """The end of a stream."""

    id: int


class Failed(Message, frozen=True, tag=9):
    """The call failed."""

    id: int
    fault: Fault
    message: str = ""
    error: str = ""
    """The class of the exception that the method raised."""


FromCaller = Hello | Call | Cancel
FromWorker = Welcome | Denied | Result | Item | End | Failed


class CallFailed(Exception):
    """A call ended without an answer. `started` False: the call provably did not start."""

    def __init__(self, fault: Fault | None, message: str, *, started: bool, error: str = "") -> None:
        super().__init__(message)
        self.fault, self.message, self.started, self.error = fault, message, started, error


class NotAdmitted(CallFailed):
    """The worker does not know the caller, or does not know it yet."""

    def __init__(self, message: str) -> None:
        super().__init__(None, message, started=False)


class Unreachable(CallFailed):
    """No connection could be opened."""

    def __init__(self, message: str) -> None:
        super().__init__(None, message, started=False)


class Items(Protocol):
    """The values of a stream as they arrive. CallFailed: the stream broke off."""

    def __aiter__(self) -> Items: ...

    async def __anext__(self) -> bytes: ...

    async def aclose(self) -> None:
        """Stop reading: cancels the call unless it has ended."""
        ...


class WorkerConnections(Protocol):
    """Connections to workers, opened on first use and shared by all calls to an address."""

    async def ask(self, address: str, call: Call, *, alone: bool = False) -> bytes | Items:
        """Send a call, with an id of this connection, and return its answer.

        The answer is one JSON value, or a stream that has begun. CallFailed: the call or the connection failed.
        `alone`: use a separate connection, for a stream whose reader may be slow. Cancelling `ask`, or closing the
        stream early, cancels the call.
        """
        ...

    def call(self, address: str, call: Call) -> AsyncIterator[bytes]:
        """Send a call and iterate over its answer: one value, or the values of a stream."""
        ...

    async def aclose(self) -> None:
        """Close all connections."""
        ...


# The leader queries routers at the address in their record (`RouterRecord`): one query, one answer.


class Ask(Message, frozen=True, tag=20):
    """Query: what was measured after this second? Seconds are counted by the router; 0: everything available."""

    after: int = 0


class CallCounts(Message, frozen=True):
    """Calls of an artifact that ended within one second."""

    artifact: str
    calls: int
    errors: int
    times: dict[int, int]
    """Number of calls by bucket of their duration (`engine/invocation/call_metrics.py`)."""


class Second(Message, frozen=True):
    """The calls that ended in one second."""

    at: int
    tallies: tuple[CallCounts, ...]


class Told(Message, frozen=True, tag=21):
    """The answer to `Ask`. Contains complete seconds only."""

    router: str
    now: int
    """The current second, which is not complete."""
    seconds: tuple[Second, ...] = ()
    in_flight: dict[str, int] = {}
    """Calls in progress, by artifact."""
    cpu: dict[str, float] = {}
    """By artifact: processors used by its instances on the nodes of that process."""


class Questions(Protocol):
    """Queries from the leader to routers."""

    async def ask(self, address: str, question: Ask) -> Told:
        """Return the router's answer. CallFailed: no answer in time."""
        ...

    async def aclose(self) -> None:
        """Close all connections."""
        ...
