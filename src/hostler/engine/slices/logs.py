"""The output of a slice, fetched from its node through `ChannelKind.SLICE_LOG` with one request and one response.

The node's side is `NodeDoors`, which the agent puts between its peers and its machines. The other side is `ask`. `told`
formats the result for users as lines of limited length.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

import msgspec

from hostler.errors import HostlerError, NotFound, Unavailable
from hostler.kit.plural import counted
from hostler.ports.machines import ChannelKind
from hostler.ports.slices import Printed  # noqa: TC001 - msgspec reads annotations at run time

if TYPE_CHECKING:
    from types import TracebackType

    from hostler.ports.machines import Channel, Machines, Peers
    from hostler.ports.slices import Slices

WITHIN = 15.0
"""Seconds that a node has to answer."""
LONGEST_ANSWER = 1024 * 1024
LONGEST_LINE = 4096
"""Characters; the rest of a longer line is replaced by its length."""


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of `Slices.printed`; the artifact is given when the channel is opened."""

    instance: int = 0
    after: str = ""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The output, or the reason why there is none."""

    printed: Printed | None = None
    missing: str = ""
    """The instance or its log does not exist."""
    failed: str = ""


class NodeDoors:
    """`hostler.ports.machines.NodeChannels` of one node: channels to its machines and to the logs of its slices."""

    def __init__(self, machines: Machines, slices: Slices) -> None:
        self._machines, self._slices = machines, slices

    def channel(self, vm: str, door: ChannelKind) -> Channel:
        """Return a channel to a machine, or to the log of a slice; the caller enters it."""
        return LogChannel(self._slices, vm) if door is ChannelKind.SLICE_LOG else self._machines.channel(vm, door)


class LogChannel:
    """The node's end of a log channel: the first write is the request, the first read its response, then it ends."""

    def __init__(self, slices: Slices, artifact: str) -> None:
        self._slices, self._artifact = slices, artifact
        self._asked: asyncio.Queue[bytes] = asyncio.Queue()
        self._answered = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        return

    async def read(self) -> bytes:
        if self._answered:
            return b""
        question = await self._asked.get()
        self._answered = True
        return msgspec.msgpack.encode(await self._answer(question))

    async def write(self, data: bytes) -> None:
        if self._asked.empty():  # data after the request is ignored
            self._asked.put_nowait(data)

    async def _answer(self, question: bytes) -> Answer:
        try:
            asked = msgspec.msgpack.decode(question, type=Question)
            printed = await self._slices.printed(self._artifact, asked.instance, after=asked.after)
        except msgspec.DecodeError as error:
            return Answer(failed=f"the request cannot be decoded: {error}")
        except NotFound as error:
            return Answer(missing=str(error))
        except HostlerError as error:
            return Answer(failed=str(error))
        return Answer(printed=printed)


async def ask(peers: Peers, node: str, artifact: str, instance: int, after: str = "") -> Printed:
    """Return the output of an instance. NotFound: the node has none. Unavailable: the node cannot provide it."""
    heard = b""
    try:
        async with peers.channel(node, artifact, ChannelKind.SLICE_LOG) as channel:  # has a time limit of its own
            async with asyncio.timeout(WITHIN):
                await channel.write(msgspec.msgpack.encode(Question(instance=instance, after=after)))
                while (piece := await channel.read()) and len(heard) <= LONGEST_ANSWER:
                    heard += piece
        answer = msgspec.msgpack.decode(heard, type=Answer)
    except TimeoutError:
        raise Unavailable(f"log of {artifact}: node {node} did not answer in time; try again") from None
    except msgspec.DecodeError:
        raise Unavailable(f"log of {artifact}: node {node} sent a response that cannot be decoded; try again") from None
    if answer.printed is not None:
        return answer.printed
    if answer.missing:
        raise NotFound(f"node {node}: {answer.missing}")
    raise Unavailable(f"log of {artifact}: node {node} cannot read it: {answer.failed}")


def told(printed: Printed, lines: int | None) -> str:
    """Return the last `lines` lines as text; None: all of them.

    A first line whose beginning is missing is dropped unless it is the only one. Long lines are cut.
    """
    text = printed.text.decode(errors="replace")
    if printed.skipped:
        _, newline, rest = text.partition("\n")
        text = rest if newline and rest else text
    each = text.split("\n")
    if lines is not None:
        last = lines + (each[-1] == "")  # the empty string after the last newline is not a line
        each = each[-last:] if lines else []
    return "\n".join(map(_cut, each))


def _cut(line: str) -> str:
    more = len(line) - LONGEST_LINE
    return line if more <= 0 else f"{line[:LONGEST_LINE]}… ({counted(more, 'character')} more)"
