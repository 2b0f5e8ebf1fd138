"""One replica as a process: stands, leads, tells what it does, and ends in good order.

Until the rest of the product gives it controllers, what it runs is a demonstration: a tally in the store that every
leader counts on, under its fence.
"""

from __future__ import annotations

import asyncio
import signal
import uuid
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import msgspec

from hostler.engine.presence import Presence
from hostler.engine.replica import Replica, ReplicaConfig
from hostler.errors import HostlerError, LeadershipLost, Unavailable, Uncertain
from hostler.keys.replica import DEMONSTRATION, LEADER
from hostler.kit.clock import SystemClock
from hostler.model.replica import LeaderRecord, ReplicaRecord, Tally
from hostler.ports.store import Get, KeyValue
from hostler.ports.ttl import StoreBacked, Watchable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hostler.engine.elections import Leadership
    from hostler.engine.service import Service, Standing
    from hostler.ports.store import Store
    from hostler.ports.ttl import TtlStorage

COUNT_EVERY = 0.2
TELL_EVERY = 5.0
LOOK_EVERY = 1.0
"""How often a replica that stands by looks who leads, where the storage cannot watch."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How to run a replica. `replicas`: how many hold a key at once."""

    address: str
    ttl: float
    replicas: int = 1


class Counting:
    """The demonstration: counts in the store while it leads, and tells so now and then."""

    name = "demonstration"

    def __init__(self, store: Store | None, tell: Callable[[str], None]) -> None:
        self._store, self._tell = store, tell
        self._standing: Standing | None = None
        self._silent = False

    async def start(self, standing: Standing) -> None:
        self._standing = standing
        self._tell(f"leading with fence {standing.leadership.fence}")

    async def run(self) -> None:
        told_at = float("-inf")
        clock = SystemClock()
        while True:
            counted = await self._turn()
            if counted is not None and clock.now() >= told_at + TELL_EVERY:
                told_at = clock.now()
                self._tell(counted)
            await clock.sleep(COUNT_EVERY)

    async def stop(self) -> None:
        self._tell("stopped leading")

    async def _turn(self) -> str | None:
        """One count; what to say of it."""
        if self._standing is None:
            return None
        leadership = self._standing.leadership
        if self._store is None:
            leadership.check()
            return f"leading with fence {leadership.fence}; this storage keeps no data, so nothing is counted"
        try:
            tally = await count(self._store, leadership)
        except (Unavailable, Uncertain) as error:
            if not self._silent:
                self._tell(f"leading, but {error}; trying again")
            self._silent = True
            return None
        self._silent = False
        return None if tally is None else f"counted to {tally.count} under fence {tally.fence}"


async def count(store: Store, leadership: Leadership) -> Tally | None:
    """Add one to the tally, under the fence and the revision read; None if somebody else wrote it meanwhile.

    LeadershipLost: the store says that another leads, or nobody; nothing was written.
    """
    entry = await DEMONSTRATION.get(store)
    before = 0 if entry is None else entry.value.count
    same = DEMONSTRATION.absent() if entry is None else DEMONSTRATION.unchanged(entry)
    tally = Tally(count=before + 1, fence=leadership.fence, holder=_holder(leadership.record))
    result = await store.txn([leadership.guard(), same], [DEMONSTRATION.put(tally)], [Get(leadership.key)])
    if result.succeeded:
        return tally
    found = result.responses[0]
    if not isinstance(found, KeyValue) or found.value != leadership.record.encode():
        raise LeadershipLost(f"leadership {leadership.key}: fence {leadership.fence} is over; nothing was written")
    return None


def _holder(record: str) -> str:
    return LeaderRecord.decode(record.encode()).holder


class Holding:
    """Tells when a key other than the first is held."""

    name = "holding"

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell

    async def start(self, standing: Standing) -> None:
        held = standing.leadership
        if held.key != LEADER.fill(n=1):
            self._tell(f"holding key {LEADER.parse(held.key)['n']} with fence {held.fence}; standing for key 1")

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def stop(self) -> None:
        pass


async def run(storage: TtlStorage, plan: Plan, tell: Callable[[str], None]) -> int:
    """Run a replica on an open storage until a signal or a problem ends it; the exit code."""
    holder = uuid.uuid4().hex
    store = storage.store if isinstance(storage, StoreBacked) else None
    presence = None if store is None else _presence(store, holder, plan)
    present: tuple[Service, ...] = () if presence is None else (presence,)
    replica = Replica(
        ReplicaConfig(ip=plan.address, num_vvm=plan.replicas),
        storage,
        (*present, Holding(tell)),
        controllers=(*present, Counting(store, tell)),
        holder=holder,
    )
    tell(f"replica {holder[:8]} at {plan.address}, ttl {plan.ttl:g} s")
    if presence is not None:
        presence.open()
    try:
        with _signals() as stop:
            problem = await _until_ended(replica, storage, plan, stop, tell)
        tell("stopping" if problem is None else f"problem: {problem}; stopping")
        problem = await replica.shutdown() or problem
    finally:
        if presence is not None:
            await presence.aclose()
    tell("stopped")
    return 0 if problem is None else 1


def _presence(store: Store, holder: str, plan: Plan) -> Presence:
    started_at = SystemClock().wall()
    return Presence(store, ReplicaRecord(address=plan.address, holder=holder, ttl=plan.ttl, started_at=started_at))


@contextmanager
def _signals() -> Iterator[asyncio.Event]:
    """Set by the first SIGTERM or SIGINT; the next one ends the process as it always would."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        yield stop
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


async def _until_ended(
    replica: Replica, storage: TtlStorage, plan: Plan, stop: asyncio.Event, tell: Callable[[str], None]
) -> Exception | None:
    """Launch it and wait for a signal or a problem; the problem."""
    stopped = asyncio.create_task(stop.wait(), name="replica: signal")
    looking = asyncio.create_task(_look(storage, replica.holder, tell), name="replica: looking who leads")
    launching = asyncio.create_task(replica.launch(plan.ttl, None), name="replica: launch")
    ended: asyncio.Task[None] | None = None
    try:
        await asyncio.wait((launching, stopped), return_when=asyncio.FIRST_COMPLETED)
        looking.cancel()
        if not launching.done():
            return None  # shutdown ends the launch
        problem = launching.result()
        ended = asyncio.create_task(problem.wait(), name="replica: problem")
        await asyncio.wait((ended, stopped), return_when=asyncio.FIRST_COMPLETED)
        return problem.error
    finally:
        rest = [task for task in (stopped, looking, ended) if task is not None]
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)


async def _look(storage: TtlStorage, me: str, tell: Callable[[str], None]) -> None:
    """Tell who leads, and each change of it, until this replica does."""
    seen: str | None = None
    said = _standing_by(None)  # where nobody leads, this replica will at once
    while True:
        try:
            seen = await storage.get(LEADER.fill(n=1))
            record = leader_record(seen)
            if record is not None and record.holder == me:
                return
            line = _standing_by(record)
        except HostlerError as error:
            line = f"standing by, but {error}; trying again"
        if line != said:
            tell(line)
            said = line
        with suppress(HostlerError):
            if isinstance(storage, Watchable):
                await storage.wait_change(LEADER.fill(n=1), seen, within=60.0)
                continue
        await asyncio.sleep(LOOK_EVERY)


def leader_record(text: str | None) -> LeaderRecord | None:
    """The record of who leads; None if nobody does, or if a claim has no fence yet."""
    if text is None:
        return None
    record = LeaderRecord.decode(text.encode())
    return record if record.fence else None


def _standing_by(record: LeaderRecord | None) -> str:
    return f"standing by; {f'{record.address} leads with fence {record.fence}' if record else 'nobody leads'}"
