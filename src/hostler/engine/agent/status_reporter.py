"""What an agent remembers of one machine, and how it tells the store."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hostler.engine.agent.decide import Action, Step, same
from hostler.errors import Conflict, Damaged, Forbidden, HostlerError, TooManyTries, Uncertain
from hostler.keys.inventory import ACTUAL
from hostler.keys.node import ALIVE, COMMAND
from hostler.keys.vm import HANDLE
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
"""Failures after which the pause does not grow if the cause is the place's: it ends for all machines there at once."""
PATIENCE = 5.0
"""Seconds that one question to the store may take."""


def pause(failures: int, rng: random.Random) -> float:
    """How long to wait after so many failures in a row."""
    span = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(failures - 1, 16))
    return rng.uniform(span / 2, span)


class PutOff:
    """A step that failed, and waits for its next try."""

    __slots__ = ("count", "refused", "until")

    def __init__(self, until: float, count: int, *, refused: bool = False) -> None:
        self.until, self.count, self.refused = until, count, refused


class Known:
    """One machine under one command. All of it can be lost: the store and the machine say the same."""

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
        """The command that the failures are of."""
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
        """How often in a row a report could not be sent."""
        self.seen: Machine | None = None
        """As it was when there was nothing left to do."""
        self.doing: Step | None = None
        self.sent = 0
        """The number of the last departure that this process began to send."""
        self.cold = 0
        """The number of a departure for which it is stopped."""
        self.doubt = 0
        """The number of a departure whose handover may be under way: nobody here knows its outcome."""
        self.given_up: Departure | None = None
        self.unmoved = ""
        self.ran: bool | None = None
        """This process let it run, or saw to it that it does not; None: neither."""
        self.ended = False
        """It ended by itself, and is left so."""
        self.new_disk_at = 0.0
        """When its disk was found missing, and a new one was begun; 0: it was not."""

    def gives_up(self, departure: Departure, why: str) -> None:
        """It will not be handed over under this number."""
        self.given_up, self.unmoved = departure, f"move to {departure.to}: {why}"
        self.put_off.clear()  # it goes on at once

    def has_given_up(self, departure: Departure) -> bool:
        return self.given_up is not None and self.given_up.number >= departure.number

    def meet(self, entry: Entry[VmCommand]) -> None:
        """A new command: what failed under the old one is tried at once."""
        if entry.mod_revision != self.command:
            owner = entry.value.org, entry.value.project
            if entry.value.generation == self.generation or owner != self.owner:
                # Nobody wished for it: the leader did something, perhaps with the handle as well; or the machine is
                # another project's now, and its handle stands there.
                self.read = False
            self.owner = owner
            self.command, self.generation = entry.mod_revision, entry.value.generation
            self.put_off.clear()
            self.detail.clear()
            self.note, self.started_at, self.falls = "", None, 0

    def waiting(self, now: float) -> dict[Step, bool]:
        """Steps whose time has not come, and whether they were refused."""
        return {step: put_off.refused for step, put_off in self.put_off.items() if put_off.until > now}

    def next_at(self, now: float) -> float | None:
        """When the next of them is due."""
        return min((put_off.until for put_off in self.put_off.values() if put_off.until > now), default=None)

    def failed(
        self,
        step: Step,
        why: str,
        now: float,
        rng: random.Random,
        *,
        refused: bool = False,
        error: HostlerError | None = None,
    ) -> None:
        """A step failed; `error` tells when to try it again, if it does."""
        old = self.put_off.get(step)
        count = (0 if old is None else old.count) + 1
        if isinstance(error, TooManyTries):  # nothing was tried
            count = max(1, count - 1)
            wait = error.after + pause(1, rng)
        else:
            wait = pause(min(count, SHARED) if isinstance(error, Forbidden) else count, rng)
        self.put_off[step] = PutOff(now + wait, count, refused=refused)
        self.detail.pop(step, None)
        self.detail[step] = why

    def succeeded(self, step: Step) -> None:
        """A step was done."""
        self.put_off.pop(step, None)
        self.detail.pop(step, None)

    def agreed(self) -> None:
        """Wish and world agree: whatever failed is of the past."""
        self.put_off.clear()
        self.detail.clear()

    @property
    def failures(self) -> int:
        return max((put_off.count for put_off in self.put_off.values()), default=0)

    @property
    def refused(self) -> bool:
        """The machine itself, not a snapshot of it, cannot be as it was asked for."""
        side = (Action.SNAPSHOT, Action.DROP, Action.RESET, Action.MARK)
        return any(put_off.refused and step.action not in side for step, put_off in self.put_off.items())

    @property
    def broken(self) -> dict[str, str]:
        """Snapshots that were refused, and why."""
        return {
            step.name: self.detail.get(step, "")
            for step, put_off in self.put_off.items()
            if put_off.refused and step.action is Action.SNAPSHOT
        }

    @property
    def told(self) -> bool:
        """The store knows that this node has begun: from now on there may be a machine."""
        return self.handle is not None and self.handle.state not in (MachineState.PENDING, MachineState.PLACED)


class Reports:
    """Handles, written under the command and the session that they speak of, and over the handle that was read.

    The last is what keeps a report that was thought lost from arriving after a later one.
    """

    def __init__(self, store: Store, session: Session, *, clock: Clock, node: str) -> None:
        self._store, self._session, self._clock, self._node = store, session, clock, node
        self.sent = 0

    async def read(self, known: Known, entry: Entry[VmCommand]) -> bool:
        """Learn which handle stands; False: the store does not say."""
        key = _key(entry)
        try:
            async with asyncio.timeout(PATIENCE):
                kv = await self._store.get(key)
        except (HostlerError, TimeoutError):
            return False
        self._learn(known, entry, kv)
        return True

    async def send(self, known: Known, entry: Entry[VmCommand], handle: VmHandle) -> bool:
        """Write it, if it says anything new; False: the store does not know it yet."""
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
                self._refused(known, number, result.responses[0])  # type: ignore[arg-type]
                return False
            known.handle, known.handle_revision = handle, result.revision
        known.unsent = 0
        self.sent += 1
        return True

    def _refused(self, known: Known, number: int, alive: KeyValue | None) -> None:
        """The command changed, which its watch will tell; or the handle did; or the session is over."""
        known.read = False
        if number == self._session.number and not self._session.is_own(alive):
            self._session.ended(number)

    def _learn(self, known: Known, entry: Entry[VmCommand], kv: KeyValue | None) -> None:
        first, known.read = known.handle is None, True
        known.handle_revision = 0 if kv is None else kv.mod_revision
        known.handle = None
        if kv is not None:
            try:
                known.handle = HANDLE.entry(kv).value
            except Damaged:
                return  # it will be written over
            known.settled = max(known.settled, known.handle.restored)
            # The leader placed it in one transaction, and no agent has said since that it began: what is here was
            # made under an earlier command, and nobody knows how old it is.
            placed = known.handle.state is MachineState.PLACED and kv.mod_revision == entry.create_revision
            own = entry.value.reinstate == ""  # what is here is its disk: the leader says so
            known.leftover = placed and not own and (first or known.leftover)


def actual(command: VmCommand, handle: VmHandle) -> list[Operation]:
    """What is told of a machine that stands for an instance of a workload, beside its handle and together with it."""
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
