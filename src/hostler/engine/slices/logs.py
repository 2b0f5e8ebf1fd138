"""What a slice printed, asked of its node: through `Door.SLICE_LOG`, by one question that has one answer.

The node's side is `NodeDoors`, which agents put between their peers and their machines; the other side is `ask`. What
is made of it for people is `told`: lines, and none of them endless.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

import msgspec

from hostler.errors import HostlerError, NotFound, Unavailable
from hostler.kit.plural import counted
from hostler.ports.machines import Door
from hostler.ports.slices import Printed  # noqa: TC001 - msgspec reads annotations at run time

if TYPE_CHECKING:
    from types import TracebackType

    from hostler.ports.machines import Channel, Machines
    from hostler.ports.peers import Peers
    from hostler.ports.slices import Slices

WITHIN = 15.0
"""Seconds for which a node may take its time."""
LONGEST_ANSWER = 1024 * 1024
LONGEST_LINE = 4096
"""Characters; of a longer one the rest is counted."""


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of `Slices.printed`; the artifact is what the door was opened for."""

    instance: int = 0
    after: str = ""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What it says, or why it says nothing."""

    printed: Printed | None = None
    missing: str = ""
    """It is not there."""
    failed: str = ""


class NodeDoors:
    """`hostler.ports.peers.Doors` of one node: of its machines, and the logs of its slices."""

    def __init__(self, machines: Machines, slices: Slices) -> None:
        self._machines, self._slices = machines, slices

    def channel(self, vm: str, door: Door) -> Channel:
        """Through a door, to be entered."""
        return LogChannel(self._slices, vm) if door is Door.SLICE_LOG else self._machines.channel(vm, door)


class LogChannel:
    """The node's end: what is written first is the question, what is read is its answer, and then it ends."""

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
        if self._asked.empty():  # what comes after the question goes nowhere
            self._asked.put_nowait(data)

    async def _answer(self, question: bytes) -> Answer:
        try:
            asked = msgspec.msgpack.decode(question, type=Question)
            printed = await self._slices.printed(self._artifact, asked.instance, after=asked.after)
        except msgspec.DecodeError as error:
            return Answer(failed=f"the question cannot be read: {error}")
        except NotFound as error:
            return Answer(missing=str(error))
        except HostlerError as error:
            return Answer(failed=str(error))
        return Answer(printed=printed)


async def ask(peers: Peers, node: str, artifact: str, instance: int, after: str = "") -> Printed:
    """What an instance on the node printed. NotFound: nothing of it is there. Unavailable: the node does not tell."""
    heard = b""
    try:
        async with asyncio.timeout(WITHIN), peers.channel(node, artifact, Door.SLICE_LOG) as channel:
            await channel.write(msgspec.msgpack.encode(Question(instance=instance, after=after)))
            while (piece := await channel.read()) and len(heard) <= LONGEST_ANSWER:
                heard += piece
        answer = msgspec.msgpack.decode(heard, type=Answer)
    except TimeoutError:
        raise Unavailable(f"log of {artifact}: its node {node} did not answer in time; try again") from None
    except msgspec.DecodeError:
        raise Unavailable(f"log of {artifact}: its node {node} gave no answer that can be read; try again") from None
    if answer.printed is not None:
        return answer.printed
    if answer.missing:
        raise NotFound(f"node {node}: {answer.missing}")
    raise Unavailable(f"log of {artifact}: its node {node} cannot read it: {answer.failed}")


def told(printed: Printed, lines: int | None) -> str:
    """As text: the last `lines` of it, or all. A first line of which the beginning is missing is left out, if there is
    another; endless ones are cut."""
    text = printed.text.decode(errors="replace")
    if printed.skipped:
        _, newline, rest = text.partition("\n")
        text = rest if newline and rest else text
    each = text.split("\n")
    if lines is not None:
        last = lines + (each[-1] == "")  # what is behind the last newline is no line
        each = each[-last:] if lines else []
    return "\n".join(map(_cut, each))


def _cut(line: str) -> str:
    more = len(line) - LONGEST_LINE
    return line if more <= 0 else f"{line[:LONGEST_LINE]}… ({counted(more, 'character')} more)"
