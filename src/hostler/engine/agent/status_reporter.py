"""The agent's memory of one machine, and the reports that it writes to the store."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hostler.engine.agent.decide import Action, Step, same
from hostler.errors import Conflict, Damaged, Forbidden, HostlerError, TooManyTries, Uncertain
from hostler.keys.families import ACTUAL, ALIVE, COMMAND, HANDLE
from hostler.model.vm import MachineState
from hostler.model.workload import Actual, instance_parts
from hostler.ports.store import ModRevision

if TYPE_CHECKING:
    import random

    from hostler.engine.agent.session import Session
    from hostler.keys.entry import Entry
    from hostler.kit.clock import Clock
    from hostler.model.node import Departure, VmCommand
    from hostler.model.vm import VmHandle
    from hostler.ports.machines import Machine
    from hostler.ports.store import KeyValue, Operation, Store

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60.0
SHARED = 5
"""Failures after which the pause stops growing if the cause is node-wide: it ends for all machines at once."""
PATIENCE = 5.0
"""Timeout of one store request, in seconds."""


def pause(failures: int, rng: random.Random) -> float:
    """Return how long to wait after this many consecutive failures."""
    span = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(failures - 1, 16))
    return rng.uniform(span / 2, span)


class PutOff:
    """A failed step that waits for its next try."""

    __slots__ = ("count", "refused", "until")

    def __init__(self, until: float, count: int, *, refused: bool = False) -> None:
        self.until, self.count, self.refused = until, count, refused


class ReportedMachine:
    """State of one machine under one command. It can be rebuilt from the store and the machine."""

    __slots__ = (
        "cold",
        "command",
        "detail",
        "doing",
        "doubt",
        "ended",
        "falls",
        "generation",
        "given_up",
        "handle",
        "handle_revision",
        "leftover",
        "life",
        "new_disk_at",
        "note",
        "owner",
        "put_off",
        "ran",
        "read",
        "seen",
        "sent",
        "settled",
        "started_at",
        "unmoved",
        "unsent",
    )

    def __init__(self, entry: Entry[VmCommand]) -> None:
        self.life = entry.create_revision
        self.command = entry.mod_revision
        """Revision of the command that the failures belong to."""
        self.generation = entry.value.generation
        self.owner = entry.value.org, entry.value.project
        self.read = False
        self.handle: VmHandle | None = None
        self.handle_revision = 0
        self.leftover = False
        self.settled = 0
        self.put_off: dict[Step, PutOff] = {}
        self.detail: dict[Step, str] = {}
        self.note = ""
        self.started_at: float | None = None
        self.falls = 0
        self.unsent = 0
        """Number of consecutive reports that could not be written."""
        self.seen: Machine | None = None
        """The machine as observed when nothing remained to be done."""
        self.doing: Step | None = None
        self.sent = 0
        """The number of the last migration that this process began to send."""
        self.cold = 0
        """The number of a migration for which the machine is stopped."""
        self.doubt = 0
        """The number of a migration whose final transaction has an unknown outcome."""
        self.given_up: Departure | None = None
        self.unmoved = ""
        self.ran: bool | None = None
        """True: this process started the machine; False: it stopped it; None: neither."""
        self.ended = False
        """The machine stopped by itself and stays stopped."""
        self.new_disk_at = 0.0
        """When the disk was found missing and a new one was started; 0: it was not missing."""

    def gives_up(self, departure: Departure, why: str) -> None:
        """Give up the migration with this number."""
        self.given_up, self.unmoved = departure, f"move to {departure.to}: {why}"
        self.put_off.clear()  # the machine continues here at once

    def has_given_up(self, departure: Departure) -> bool:
        return self.given_up is not None and self.given_up.number >= departure.number

    def meet(self, entry: Entry[VmCommand]) -> None:
        """Take note of a new command. Steps that failed under the old one are retried at once."""
        if entry.mod_revision != self.command:
            owner = entry.value.org, entry.value.project
            if entry.value.generation == self.generation or owner != self.owner:
                # The spec is unchanged: either the leader acted, perhaps on the handle as well, or the VM now belongs
                # to another project, which has its handle.
                self.read = False
            self.owner = owner
            self.command, self.generation = entry.mod_revision, entry.value.generation
            self.put_off.clear()
            self.detail.clear()
            self.note, self.started_at, self.falls = "", None, 0

    def waiting(self, now: float) -> dict[Step, bool]:
        """Return postponed steps that are not due yet, and whether they were refused."""
        return {step: put_off.refused for step, put_off in self.put_off.items() if put_off.until > now}

    def next_at(self, now: float) -> float | None:
        """Return when the next postponed step is due."""
        return min((put_off.until for put_off in self.put_off.values() if put_off.until > now), default=None)

    def record_failure(
        self,
        step: Step,
        why: str,
        now: float,
        rng: random.Random,
        *,
        refused: bool = False,
        error: HostlerError | None = None,
    ) -> None:
        """Record a failed step. `error` may determine when to retry."""
        old = self.put_off.get(step)
        count = (0 if old is None else old.count) + 1
        if isinstance(error, TooManyTries):  # the driver did not try
            count = max(1, count - 1)
            wait = error.after + pause(1, rng)
        else:
            wait = pause(min(count, SHARED) if isinstance(error, Forbidden) else count, rng)
        self.put_off[step] = PutOff(now + wait, count, refused=refused)
        self.detail.pop(step, None)
        self.detail[step] = why

    def record_success(self, step: Step) -> None:
        """Record a completed step."""
        self.put_off.pop(step, None)
        self.detail.pop(step, None)

    def record_agreement(self) -> None:
        """Record that spec and status agree; clear all failures."""
        self.put_off.clear()
        self.detail.clear()

    @property
    def failures(self) -> int:
        return max((put_off.count for put_off in self.put_off.values()), default=0)

    @property
    def refused(self) -> bool:
        """Whether the machine itself (not a snapshot of it) cannot be as requested."""
        side = (Action.SNAPSHOT, Action.DROP, Action.RESET, Action.MARK)
        return any(put_off.refused and step.action not in side for step, put_off in self.put_off.items())

    @property
    def broken(self) -> dict[str, str]:
        """Return refused snapshots with the reasons."""
        return {
            step.name: self.detail.get(step, "")
            for step, put_off in self.put_off.items()
            if put_off.refused and step.action is Action.SNAPSHOT
        }

    @property
    def told(self) -> bool:
        """Whether the store knows that this node has begun. From then on a machine may exist."""
        return self.handle is not None and self.handle.state not in (MachineState.PENDING, MachineState.PLACED)


class Reports:
    """Writes handles under the command and session that they refer to, replacing the handle that was read.

    The comparison with the handle that was read prevents a report that seemed lost from overwriting a later one.
    """

    def __init__(self, store: Store, session: Session, *, clock: Clock, node: str) -> None:
        self._store, self._session, self._clock, self._node = store, session, clock, node
        self.sent = 0

    async def read(self, known: ReportedMachine, entry: Entry[VmCommand]) -> bool:
        """Read the current handle. Return False if the store does not answer."""
        key = _key(entry)
        try:
            async with asyncio.timeout(PATIENCE):
                kv = await self._store.get(key)
        except (HostlerError, TimeoutError):
            return False
        self._learn(known, entry, kv)
        return True

    async def send(self, known: ReportedMachine, entry: Entry[VmCommand], handle: VmHandle) -> bool:
        """Write the handle if it contains anything new. Return False if the store does not have it yet."""
        if known.read and same(known.handle, handle):
            known.unsent = 0
            return True
        known.unsent += 1
        if not known.read and not await self.read(known, entry):
            return False
        number = self._session.number
        try:
            when = [COMMAND.unchanged(entry), self._session.guard(), ModRevision(_key(entry)) == known.handle_revision]
            put = HANDLE.put(handle, org=entry.value.org, project=entry.value.project, vm=entry.value.vm)
            then = [put, *actual(entry.value, handle)]
            async with asyncio.timeout(PATIENCE):
                result = await self._store.txn(when, then, [ALIVE.get_op(node=self._node)])
        except (Uncertain, TimeoutError):
            known.read = False
            if not await self.read(known, entry) or not same(known.handle, handle):
                return False
        except (Conflict, HostlerError):
            return False
        else:
            if not result.succeeded:
                self._handle_conflict(known, number, result.responses[0])  # type: ignore[arg-type]
                return False
            known.handle, known.handle_revision = handle, result.revision
            self._session.saw(result.revision)
        known.unsent = 0
        self.sent += 1
        return True

    def _handle_conflict(self, known: ReportedMachine, number: int, alive: KeyValue | None) -> None:
        """Handle a failed comparison: command (its watch reports it) or handle changed, or the session ended."""
        known.read = False
        if number == self._session.number and not self._session.is_own(alive):
            self._session.record_end(number)

    def _learn(self, known: ReportedMachine, entry: Entry[VmCommand], kv: KeyValue | None) -> None:
        first, known.read = known.handle is None, True
        known.handle_revision = 0 if kv is None else kv.mod_revision
        known.handle = None
        if kv is not None:
            try:
                known.handle = HANDLE.entry(kv).value
            except Damaged:
                return  # it will be overwritten
            known.settled = max(known.settled, known.handle.restored)
            # The leader placed it in one transaction, and no agent has reported a start since. So this machine was made
            # under an earlier command, and its age is not known.
            placed = known.handle.state is MachineState.PLACED and kv.mod_revision == entry.create_revision
            own = entry.value.reinstate == ""  # the leader says that this machine has the disk of the VM
            known.leftover = placed and not own and (first or known.leftover)


def actual(command: VmCommand, handle: VmHandle) -> list[Operation]:
    """Return the operation that reports a machine of a workload instance, written together with its handle."""
    ids = instance_parts(command.instance)
    if ids is None:
        return []
    told = Actual(
        node=handle.node,
        state=handle.state,
        vm=command.vm,
        generation=handle.generation,
        detail=handle.detail,
        seen_at=handle.seen_at,
    )
    return [ACTUAL.put(told, **ids)]


def _key(entry: Entry[VmCommand]) -> str:
    return HANDLE.fill(org=entry.value.org, project=entry.value.project, vm=entry.value.vm)
