"""One candidacy for leadership, from the first attempt to its end, with status lines."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from hostler.engine.replica import Replica, ReplicaConfig
from hostler.engine.replica_records import LeaderHistory, Presence
from hostler.errors import HostlerError
from hostler.keys.families import LEADER, REPLICA
from hostler.kit.clock import SystemClock
from hostler.model.replica import LeaderRecord, ReplicaRecord
from hostler.ports.ttl import StoreBacked, Watchable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hostler.engine.self_fencing import Killer
    from hostler.engine.service import Service, Standing
    from hostler.ports.store import Store
    from hostler.ports.ttl import TtlStorage

LOOK_EVERY = 1.0
"""Seconds between reads of the current leader by a standby replica, if the storage cannot watch."""


class CampaignConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of a candidacy.

    `replicas`: how many election keys are held at the same time. `url`: see `ReplicaRecord.url`. `acquisition_timeout`:
    seconds without a key after which the candidacy ends with a problem; None: never.
    """

    address: str
    ttl: float
    replicas: int = 1
    acquisition_timeout: float | None = None
    url: Callable[[], str] = str


class Leading:
    """The last controller to start: reports that this process leads once all other controllers run."""

    name = "leading"

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self.leads = False
        self.changed = asyncio.Event()

    async def start(self, standing: Standing) -> None:
        self._tell(f"leading with fence {standing.leadership.fence}")
        self._now(True)

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def stop(self) -> None:
        if self.leads:
            self._tell("stopped leading")
        self._now(False)

    def _now(self, leads: bool) -> None:
        self.leads = leads
        self.changed.set()
        self.changed = asyncio.Event()


class Holding:
    """Reports when the replica holds a key other than the first."""

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


class Candidate(NamedTuple):
    """Who runs for leadership."""

    holder: str
    """The id of this candidacy."""
    least_fence: Callable[[], int]
    """A lower bound: every new fence of election key 1 is above it."""
    killer: Killer | None = None


async def stand(
    storage: TtlStorage,
    plan: CampaignConfig,
    controllers: Sequence[Service],
    *,
    leading: Leading,
    asked: asyncio.Event,
    tell: Callable[[str], None],
    candidate: Candidate | None = None,
) -> Exception | None:
    """Run for leadership until `asked` is set or a problem occurs. Return the problem.

    All leader work has stopped when this returns. `candidate`: by default one with a new id.
    """
    candidate = candidate or Candidate(uuid.uuid4().hex, lambda: 0)
    holder = candidate.holder
    store = storage.store if isinstance(storage, StoreBacked) else None
    presence = None if store is None else _presence(store, holder, plan)
    present: tuple[Service, ...] = () if presence is None else (presence,)
    told: tuple[Service, ...] = () if store is None else (LeaderHistory(store, holder=holder, address=plan.address),)
    replica = Replica(
        ReplicaConfig(ip=plan.address, num_vvm=plan.replicas),
        storage,
        (*present, Holding(tell)),
        controllers=(*present, *told, *controllers, leading),
        holder=holder,
        killer=candidate.killer,
        least_fence=candidate.least_fence,
    )
    tell(f"replica {holder[:8]} at {plan.address}, ttl {plan.ttl:g} s")
    if presence is not None:
        presence.open()
    try:
        problem = await _until_ended(replica, storage, plan, asked, tell)
        tell("stopping" if problem is None else f"problem: {problem}; stopping")
        return await replica.shutdown() or problem
    finally:
        if presence is not None:
            await presence.aclose()


async def bury(storage: TtlStorage, holder: str, replicas: int) -> None:
    """Delete the records of a process that is certainly dead, so that others need not wait for their expiry."""
    for number in range(1, replicas + 1):
        key = LEADER.fill(n=number)
        text = await storage.get(key)
        if text is not None and LeaderRecord.decode(text.encode()).holder == holder:
            await storage.compare_and_delete(key, text)
    if isinstance(storage, StoreBacked):
        await storage.store.delete(REPLICA.fill(holder=holder))


def _presence(store: Store, holder: str, plan: CampaignConfig) -> Presence:
    started_at = SystemClock().wall()
    record = ReplicaRecord(address=plan.address, holder=holder, ttl=plan.ttl, started_at=started_at)
    return Presence(store, record, url=plan.url)


async def _until_ended(
    replica: Replica, storage: TtlStorage, plan: CampaignConfig, asked: asyncio.Event, tell: Callable[[str], None]
) -> Exception | None:
    """Launch the replica and wait for a signal or a problem. Return the problem."""
    stopped = asyncio.create_task(asked.wait(), name="replica: asked to end")
    looking = asyncio.create_task(_look(storage, replica.holder, tell), name="replica: looking who leads")
    launching = asyncio.create_task(replica.launch(plan.ttl, plan.acquisition_timeout), name="replica: launch")
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
    except asyncio.CancelledError:
        launching.cancel()
        await asyncio.gather(launching, return_exceptions=True)
        with suppress(RuntimeError):  # the launch may not have begun
            await replica.shutdown()
        raise
    finally:
        rest = [task for task in (stopped, looking, ended) if task is not None]
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)


async def _look(storage: TtlStorage, me: str, tell: Callable[[str], None]) -> None:
    """Report the leader and each change of leader, until this replica leads."""
    seen: str | None = None
    said = _standing_by(None)  # without a leader, this replica takes over at once
    while True:
        try:
            seen = await storage.get(LEADER.fill(n=1))
            record = leader_record(seen)
            if record is not None and record.holder == me:
                return
            line = _standing_by(record)
        except HostlerError as error:
            line = f"standing by, but {error}; retrying"
        if line != said:
            tell(line)
            said = line
        with suppress(HostlerError):
            if isinstance(storage, Watchable):
                await storage.wait_change(LEADER.fill(n=1), seen, within=60.0)
                continue
        await asyncio.sleep(LOOK_EVERY)


def leader_record(text: str | None) -> LeaderRecord | None:
    """Return the leader's record; None if there is no leader, or if a claim has no fence yet."""
    if text is None:
        return None
    record = LeaderRecord.decode(text.encode())
    return record if record.fence else None


def _standing_by(record: LeaderRecord | None) -> str:
    return f"standing by; {f'{record.address} leads with fence {record.fence}' if record else 'no leader'}"
