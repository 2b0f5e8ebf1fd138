"""Migration of simulated machines: the verbs and the messages between the two nodes.

A message is one line of JSON through a channel of the incoming machine, answered by a line once its content is stored.
First the disk is sent. Then, if it runs, the machine stops here and its memory follows, which is the final step. A
repeated message gets the same answer.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol, Self

import msgspec

from hostler.drivers.machines import validation
from hostler.drivers.machines.simulated import transitions
from hostler.drivers.machines.simulated.host import switched_off
from hostler.errors import Invalid, NotFound, Refused, Unavailable, Uncertain
from hostler.model.vm import MachineState
from hostler.ports.machines import ChannelKind

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType

    from hostler.drivers.machines.simulated.fault import Draw, Verb
    from hostler.drivers.machines.simulated.host import Row, SimulatedHost
    from hostler.ports.machines import Channel, Machine, MachinePlan

TAKEN = b"taken\n"
_replace = msgspec.structs.replace


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A message of a migration, sent as one line."""

    number: int
    """Number of the move."""
    disk: str | None = None
    """Its disk; None: this is the rest."""
    resets: int = 0
    restored: int = 0
    boots: int = 0
    disk_id: str = ""
    disk_made_at: float = 0.0
    writes: int = 0
    last: bool = False
    """With this message the machine is complete."""
    memory: bool = False
    """It was running: its memory is part of this message."""


_decoder = msgspec.json.Decoder(Message)


def sent(row: Row, message: Message) -> Row:
    """Return the incoming machine with the content of the message."""
    if row.whole:
        return row
    fields: dict[str, object] = {"whole": message.last, "memory": message.memory, "boots": message.boots}
    if message.disk is not None:
        fields |= {"disk": message.disk, "resets": message.resets, "restored": message.restored}
        fields |= {"disk_id": message.disk_id, "disk_made_at": message.disk_made_at, "writes": message.writes}
    return _replace(row, **fields)


class Receiver(Protocol):
    """Methods that a migration channel needs of its driver."""

    async def expects(self, vm: str) -> None:
        """Check that the machine is expected. Refused, NotFound, Unavailable: it is not."""

    async def takes(self, vm: str, message: Message) -> None:
        """Apply the message to the incoming machine."""


class SimulatedIncoming:
    """One connection to a channel of an incoming machine."""

    def __init__(self, receiver: Receiver, vm: str) -> None:
        self._receiver, self._vm = receiver, vm
        self._line, self._answers = bytearray(), bytearray()
        self._stir = asyncio.Event()
        self._open = False

    async def __aenter__(self) -> Self:
        await self._receiver.expects(self._vm)
        self._open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end()

    async def read(self) -> bytes:
        """Return the next answer; empty at the end."""
        while self._open and not self._answers:
            self._stir.clear()
            await self._stir.wait()
        said = bytes(self._answers)
        self._answers.clear()
        return said

    async def write(self, data: bytes) -> None:
        """Take more of a message. A message that cannot be applied ends the connection."""
        if not self._open:
            return
        self._line += data
        while b"\n" in self._line:
            line, _, rest = bytes(self._line).partition(b"\n")
            self._line = bytearray(rest)
            try:
                await self._receiver.takes(self._vm, _decode_message(line))
            except (Refused, Unavailable, Uncertain):
                self._end()
                return
            self._answers += TAKEN
            self._stir.set()

    def _end(self) -> None:
        self._open = False
        self._stir.set()


def _decode_message(line: bytes) -> Message:
    try:
        return _decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Invalid(f"arrival: not a message of a simulated machine: {error}") from None


async def say(channel: Channel, message: Message) -> None:
    """Send a message, and wait for its acknowledgement. Uncertain: none came."""
    async with channel as opened:
        await opened.write(msgspec.json.encode(message) + b"\n")
        answer = b""
        while not answer.endswith(b"\n"):
            said = await opened.read()
            if not said:
                raise Uncertain("the other node closed the connection before it acknowledged; inspect the machine")
            answer += said


class Moving:
    """The verbs that move machines to another node or owner; `driver` has the other verbs."""

    _place: SimulatedHost
    _images: Collection[str] | None

    def _verb(self, verb: Verb, vm: str) -> AbstractAsyncContextManager[Draw]:
        raise NotImplementedError

    async def _half(self, draw: Draw, verb: Verb) -> None:
        raise NotImplementedError

    async def _do(self, verb: Verb, part: str, make: Callable[[float], Iterable[Row]]) -> None:
        raise NotImplementedError

    def _row(self, vm: str) -> Row | None:
        raise NotImplementedError

    def _require_row(self, vm: str) -> Row:
        raise NotImplementedError

    def _whole(self, vm: str) -> Row:
        raise NotImplementedError

    def _machine(self, row: Row) -> Machine:
        raise NotImplementedError

    @property
    def moves(self) -> bool:
        return True

    async def receive(self, plan: MachinePlan, number: int) -> Machine:
        validation.check_plan(plan, self._images)
        validation.check_number(number)
        vm = plan.label.vm
        async with self._verb("receive", vm) as draw:
            row = self._row(vm)
            if row is not None and (row.state is not MachineState.ARRIVING or row.label != plan.label):
                raise Refused(f"machine {vm!r}: it already exists here, {row.state}; delete it first")
            if row is None or row.moved != number:
                await self._half(draw, "receive")
                await self._do("receive", "done", lambda _: [self._expecting(plan, number)])
            return self._machine(self._require_row(vm))

    async def mark(self, plan: MachinePlan) -> Machine:
        validation.check_plan(plan, None)
        vm = plan.label.vm
        async with self._verb("mark", vm) as draw:
            validation.check_markable(self._require_row(vm).label, plan.label)
            await self._half(draw, "mark")
            await self._do("mark", "done", lambda _: [transitions.row_with_label(self._require_row(vm), plan)])
            return self._machine(self._require_row(vm))

    async def send(
        self, vm: str, number: int, connect: Callable[[ChannelKind], Channel], *, live: bool = True
    ) -> Machine:
        validation.check_number(number)
        async with self._verb("send", vm) as draw:
            row = self._whole(vm)
            self._check_sendable(row, number, live=live)
            if row.moved < number:
                await self._do("send", "begun", lambda _: [_replace(self._require_row(vm), moved=number)])
            if row.state is not MachineState.DEPARTED:
                await say(connect(ChannelKind.ARRIVAL_DISK), self._disk(vm, number))
                await self._half(draw, "send")
                await self._do("send", "stopped", lambda now: [self._depart(vm, now)])
            if not self._require_row(vm).whole:
                await self._rest(vm, number, connect)
                await self._do("send", "done", lambda _: [_replace(self._require_row(vm), whole=True)])
            return self._machine(self._require_row(vm))

    # Incoming side

    async def expects(self, vm: str) -> None:
        """Check that the machine is expected."""
        row = self._row(vm)
        if row is None:
            raise NotFound(f"machine {vm!r}: not found on this node")
        if row.state is not MachineState.ARRIVING:
            raise Unavailable(f"machine {vm!r}: it is {row.state}, so it is not expected; call receive first")

    async def takes(self, vm: str, message: Message) -> None:
        """Apply the message to the incoming machine."""
        self._check_arrives(self._row(vm), vm, message)
        await self._do("receive", "taken", lambda _: [sent(self._check_arrives(self._row(vm), vm, message), message)])

    # Inside

    def _expecting(self, plan: MachinePlan, number: int) -> Row:
        row = self._row(plan.label.vm)
        begun = transitions.new_row(plan, self._place.contents.next_number if row is None else row.number)
        return _replace(begun, state=MachineState.ARRIVING, moved=number)

    def _check_sendable(self, row: Row, number: int, *, live: bool) -> None:
        if row.state is MachineState.ARRIVING:
            raise Refused(f"machine {row.vm!r}: it has only just arrived; start or stop it first")
        if number < row.moved or (number == row.moved and row.over):
            raise Refused(f"machine {row.vm!r}: move {number} is over; give the next one a higher number")
        if row.state is MachineState.DEPARTED and row.moved != number:
            raise Refused(f"machine {row.vm!r}: it has departed as move {row.moved}; start or stop it first")
        if row.restoring is not None:
            raise Refused(f"machine {row.vm!r}: its last restore was interrupted; restore or start it first")
        if not live and row.on is not None:
            raise Refused(f"machine {row.vm!r}: it is running; stop it, or migrate it live")

    def _disk(self, vm: str, number: int) -> Message:
        row = self._require_row(vm)
        return Message(
            number=number,
            disk=row.disk,
            disk_id=row.disk_id,
            disk_made_at=row.disk_made_at,
            writes=row.writes,
            resets=row.resets,
            restored=row.restored,
            boots=row.boots,
        )

    def _depart(self, vm: str, now: float) -> Row:
        """Return the stopped row. The current content of its disk is sent with the rest."""
        row = self._require_row(vm)
        return _replace(switched_off(row, now, MachineState.DEPARTED), memory=row.on is not None, whole=False)

    async def _rest(self, vm: str, number: int, connect: Callable[[ChannelKind], Channel]) -> None:
        row = self._require_row(vm)
        last = _replace(self._disk(vm, number), last=True, memory=row.memory)
        await say(connect(ChannelKind.ARRIVAL_STATE if row.memory else ChannelKind.ARRIVAL_DISK), last)

    @staticmethod
    def _check_arrives(row: Row | None, vm: str, message: Message) -> Row:
        if row is None or row.state is not MachineState.ARRIVING or row.moved != message.number:
            raise Refused(f"machine {vm!r}: move {message.number} is not expected here")
        return row
