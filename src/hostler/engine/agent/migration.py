"""Migration of machines to and from other nodes.

The agent that has the machine completes the migration in one transaction, after the driver has reported that the target
has all of it. Until then anything may fail, and the machine continues on the source. From the moment the transaction is
sent until its outcome is known, the machine runs nowhere, because only the store can tell which node has it.
"""

from __future__ import annotations

import asyncio
import enum
from typing import TYPE_CHECKING, Any, Self

import msgspec

from hostler.engine.agent.decide import Going
from hostler.engine.agent.status_reporter import PATIENCE, actual
from hostler.errors import Closed, HostlerError, NotFound, Refused, Unavailable, Uncertain
from hostler.keys.families import ALIVE, ARRIVAL, COMMAND, HANDLE, MEMBER
from hostler.kit.rate_limit import Backoff
from hostler.model.vm import MachineState
from hostler.ports.machines import Label, MachinePlan, Migration, required
from hostler.ports.store import Delete, Get, KeyValue, ModRevision

if TYPE_CHECKING:
    import random
    from types import TracebackType

    from hostler.engine.agent.session import Session
    from hostler.engine.agent.status_reporter import ReportedMachine
    from hostler.keys.entry import Entry
    from hostler.kit.clock import Clock
    from hostler.model.node import Arrival, Departure, NodeRecord, VmCommand
    from hostler.model.vm import VmHandle, VmSpec
    from hostler.ports.machines import Channel, ChannelKind, Machine, Machines, Peers
    from hostler.ports.store import Comparison, Operation, Store


READY_WITHIN = 60.0
"""Seconds for the target node to open its first channel."""
OPEN_WITHIN = 5.0
"""Seconds for further channels once one was open. A closed one was then closed again, and stays closed."""
_TRIES = 3
_RUNNING_SHAPE = ("cpus", "memory_mib", "disk_gib", "image")
"""Fields that must be equal on the target for a live migration."""


_WATCHED = ("departing", "deleting", "power", "restore")
"""Fields of a command whose change cancels sending its machine."""


class Nobody:
    """Stands in for `Peers` in an agent without connections to other nodes."""

    def channel(self, node: str, vm: str, door: ChannelKind) -> Channel:
        raise Unavailable(f"node {node}: this agent has no connection to other nodes (channel {door} of {vm})")


class Given(enum.Enum):
    """Outcome of the transaction that completes a migration."""

    OVER = enum.auto()
    """The other node has the machine."""
    KEPT = enum.auto()
    """The other node certainly does not have it, and this attempt will not change that."""
    UNKNOWN = enum.auto()


class Migrations:
    """The migrations of one node."""

    def __init__(
        self,
        store: Store,
        machines: Machines,
        session: Session,
        peers: Peers | None,
        *,
        node: str,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self._store, self._machines, self._session, self._node = store, machines, session, node
        self._peers: Peers = peers or Nobody()
        self._clock, self._rng = clock, rng
        self._sending: dict[str, tuple[asyncio.Task[Machine], VmCommand]] = {}

    # Outgoing

    async def expected_arrival(self, vm: str, departing: Departure) -> Entry[Arrival] | None:
        """Return the arrival record of the other node if it still belongs to this migration."""
        async with asyncio.timeout(PATIENCE):
            arrival = await ARRIVAL.get(self._store, node=departing.to, vm=vm)
        return arrival if arrival is not None and arrival.value.number == departing.number else None

    def heed(self, vm: str, command: VmCommand | None) -> None:
        """React to a changed command: cancel sending if the machine should be elsewhere, off or gone."""
        if vm in self._sending:
            task, old = self._sending[vm]
            if command is None or any(getattr(command, name) != getattr(old, name) for name in _WATCHED):
                task.cancel()

    async def send(self, command: VmCommand, departing: Departure, *, live: bool) -> Machine:
        """Send until the target has all of it. Raise Unavailable also if the command has changed in the meantime."""
        vm = command.vm
        opened: set[ChannelKind] = set()

        def connect(door: ChannelKind) -> Channel:
            return _Patient(self._peers, departing.to, vm, door, opened, clock=self._clock, rng=self._rng)

        task = asyncio.create_task(
            required(self._machines, Migration).send(vm, departing.number, connect, live=live),
            name=f"machine {vm}: sending",
        )
        self._sending[vm] = task, command
        try:
            await asyncio.wait((task,))
        finally:
            del self._sending[vm]
            task.cancel()
            await asyncio.wait((task,))
        if task.cancelled():
            raise Unavailable("another change was requested in the meantime")
        return task.result()

    async def give(self, known: ReportedMachine, entry: Entry[VmCommand], arrival: Entry[Arrival]) -> Given:
        """Give the machine to the other node, in one transaction."""
        command, handle, departing = entry.value, known.handle, entry.value.departing
        if departing is None or handle is None or handle.node != self._node:
            return Given.KEPT
        to, vm = departing.to, command.vm
        ids: dict[str, Any] = {"org": command.org, "project": command.project, "vm": vm}
        handed = _handed_over(handle, departing, at=self._clock.wall())
        then: list[Operation] = [
            Delete(entry.key),
            Delete(arrival.key),
            COMMAND.put(_theirs(arrival.value.command, command, handle, departing), node=to, vm=vm),
            HANDLE.put(handed, **ids),
            *actual(command, handed),
        ]
        for _ in range(_TRIES):
            try:
                async with asyncio.timeout(PATIENCE):
                    target = await MEMBER.get(self._store, node=to)
                if target is None or target.value.place != arrival.value.place:
                    return Given.KEPT  # the data was sent to storage that the node no longer uses
                when = [self._session.guard(), COMMAND.unchanged(entry), ARRIVAL.unchanged(arrival)]
                when += [ModRevision(HANDLE.fill(**ids)) == known.handle_revision]
                when += [ALIVE.exists(node=to), MEMBER.unchanged(target)]
            except (HostlerError, TimeoutError):
                return Given.KEPT
            given, again = await self._commit_handover(when, then, target)
            if not again:
                return given
        return Given.KEPT

    async def _commit_handover(
        self, when: list[Comparison], then: list[Operation], target: Entry[NodeRecord]
    ) -> tuple[Given, bool]:
        """Commit; return the outcome, and whether only a change of the other node's record prevented it."""
        try:
            async with asyncio.timeout(PATIENCE):
                result = await self._store.txn(when, then, [Get(target.key)])
        except (Uncertain, TimeoutError):
            return Given.UNKNOWN, False
        except HostlerError:
            return Given.KEPT, False
        if result.succeeded:
            return Given.OVER, False
        found = result.responses[0]
        return Given.KEPT, isinstance(found, KeyValue) and found.mod_revision != target.mod_revision

    # Incoming

    async def receive(self, entry: Entry[Arrival]) -> None:
        """Prepare to receive a machine. A permanent obstacle is recorded, so that the leader gives up."""
        arrival, command = entry.value, entry.value.command
        label = Label(command.org, command.project, command.vm, self._session.cluster, self._node)
        plan = MachinePlan(label=label, spec=command.spec, name=command.name, fenced=command.fenced, tags=command.tags)
        try:
            await required(self._machines, Migration).receive(plan, arrival.number)
        except (Closed, NotFound):
            raise
        except Refused as error:
            await self.refuse(entry, str(error))

    async def refuse(self, entry: Entry[Arrival], why: str) -> None:
        """Record why this node cannot receive the machine."""
        if entry.value.refused != why:
            refused = msgspec.structs.replace(entry.value, refused=why)
            put = ARRIVAL.put(refused, node=self._node, vm=entry.value.command.vm)
            async with asyncio.timeout(PATIENCE):
                await self._store.txn([self._session.guard(), ARRIVAL.unchanged(entry)], [put])


def not_live(seen: Machine, spec: VmSpec) -> str:
    """Return why a running machine cannot be live-migrated to this spec; empty: it can."""
    other = [name for name in _RUNNING_SHAPE if getattr(seen.spec, name) != getattr(spec, name)]
    if not other:
        return ""
    return f"it runs with another {', '.join(other)} than requested; restart it first, or allow to stop it"


def _theirs(first: VmCommand, command: VmCommand, handle: VmHandle, departing: Departure) -> VmCommand:
    """Return the command of the target node. Snapshots taken in the meantime stay behind, too, and are listed as lost.

    The command contains the migration number, so that the machine is never mistaken for a leftover.
    """
    lost = {*first.lost, *command.lost, *handle.snapshots}
    kept = tuple(name for name in first.snapshots if name in lost)
    return msgspec.structs.replace(first, lost=kept, arrived=departing.number)


def _handed_over(handle: VmHandle, departing: Departure, *, at: float) -> VmHandle:
    """Return the handle of a machine that the other node has, before that node's first report."""
    return msgspec.structs.replace(
        handle,
        node=departing.to,
        machine="",
        state=MachineState.ARRIVING,
        address="",
        detail="",
        at_next_boot=(),
        moved=max(handle.moved, departing.wish),
        attempt=departing.number,
        unmoved="",
        readiness=None,
        access=None,
        failures=0,
        seen_at=at,
    )


class _Patient:
    """A channel of an arriving machine, which may not be open yet. `opened`: the channels that have been open."""

    def __init__(
        self,
        peers: Peers,
        node: str,
        vm: str,
        door: ChannelKind,
        opened: set[ChannelKind],
        *,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self._peers, self._node, self._vm, self._door, self._opened = peers, node, vm, door, opened
        self._clock, self._rng = clock, rng
        self._inner: Channel | None = None

    async def __aenter__(self) -> Self:
        within = OPEN_WITHIN if self._opened else READY_WITHIN
        until = self._clock.now() + within
        backoff = Backoff(0.05, 2.0, rng=self._rng)
        while True:
            try:
                inner = self._peers.channel(self._node, self._vm, self._door)
                self._inner = await inner.__aenter__()
            except (Unavailable, NotFound) as error:
                pause = backoff.next()
                if self._clock.now() + pause > until:
                    why = f"node {self._node} was not ready within {within:g} s ({error})"
                    raise Unavailable(why) from None
                await self._clock.sleep(pause)
            else:
                self._opened.add(self._door)
                return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._inner is not None:
            await self._inner.__aexit__(kind, error, traceback)

    async def read(self) -> bytes:
        return b"" if self._inner is None else await self._inner.read()

    async def write(self, data: bytes) -> None:
        if self._inner is not None:
            await self._inner.write(data)


_OFF = (MachineState.STOPPED, MachineState.FAILED)


def going(command: VmCommand, known: ReportedMachine, seen: Machine | None, node: str) -> Going:
    """Return the state of a migration: whether to continue it, and whether a departed machine may resume here.

    The final transaction compares the command and the handle that it was based on, so it cannot succeed once either has
    changed. If neither has changed, only the process that sent the transaction knows its outcome, if it got an answer.
    """
    departing, handle = command.departing, known.handle
    ours = handle is not None and handle.node == node
    if seen is None or departing is None or handle is None:
        return Going(stays=departing is None)
    over = handle.attempt >= departing.number
    sends = ours and not over and not known.has_given_up(departing)
    if departing.number != seen.moved:
        return Going(sends=sends, cold=known.cold == departing.number)
    certain = over or (known.has_given_up(departing) and known.doubt != departing.number)
    return Going(sends=sends, cold=known.cold == departing.number, stays=ours and certain)


def is_stray(command: VmCommand, seen: Machine) -> bool:
    """Return whether an arriving machine belongs to an abandoned migration, while a new one is to be created here.

    Only the command can tell: it was written when the migration completed, or when it was certain that no node has the
    machine. The numbers in the handle continue to grow with every later migration that is given up.
    """
    return seen.state is MachineState.ARRIVING and command.arrived == 0


async def leave(handovers: Migrations, known: ReportedMachine, entry: Entry[VmCommand], seen: Machine) -> bool:
    """Migrate a machine; True: the other node has it. Otherwise it is known whether the migration was given up."""
    command, departing = entry.value, entry.value.departing
    if departing is None:
        return False
    if seen.state is not MachineState.DEPARTED:
        known.sent = departing.number
    elif known.sent != departing.number:
        known.doubt = departing.number  # an earlier process let it depart, and may have completed the migration
    try:
        arrival = await handovers.expected_arrival(command.vm, departing)
    except (HostlerError, TimeoutError) as error:
        raise Unavailable(f"the store does not say whether node {departing.to} expects it: {error}") from None
    if arrival is None:
        known.gives_up(departing, "that node does not expect it; request the move again")
        return False
    if not await _send(handovers, known, entry, arrival, seen):
        return False
    given = await handovers.give(known, entry, arrival)
    if given is Given.UNKNOWN:
        known.doubt = departing.number
        known.read = False
        raise Uncertain("the store did not answer the final transaction of the move; its outcome is read next")
    if given is Given.KEPT:
        known.gives_up(departing, "that node or the spec changed before the move was complete; request the move again")
    return given is Given.OVER


async def _send(
    handovers: Migrations, known: ReportedMachine, entry: Entry[VmCommand], arrival: Entry[Arrival], seen: Machine
) -> bool:
    departing = entry.value.departing
    if departing is None:
        return False
    runs = seen.state not in (*_OFF, MachineState.DEPARTED)
    why = not_live(seen, arrival.value.command.spec) if runs else ""
    try:
        if why:
            raise Refused(why)
        await handovers.send(entry.value, departing, live=seen.state not in _OFF)
    except HostlerError as error:
        known.read = False  # sending takes long, so the handle may have changed
        _not_sent(known, departing, error, runs=runs)
        return False
    return True


def _not_sent(known: ReportedMachine, departing: Departure, error: HostlerError, *, runs: bool) -> None:
    refused = isinstance(error, Refused) and not isinstance(error, NotFound | Closed)
    if refused and runs and departing.stop and known.cold != departing.number:
        known.cold = departing.number
    else:
        known.gives_up(departing, str(error))
