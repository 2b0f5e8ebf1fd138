"""Overview of the cluster. Counts come from caches, as does everything else while the store does not answer."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

from hostler.engine.phase import PhaseCounts
from hostler.errors import HostlerError
from hostler.keys.families import ALIVE, FENCING, LEADER, LEADER_CLOCK, MEMBER, REPLICA, TAKEOVER
from hostler.kit.plural import sized
from hostler.model.blueprint_api import BlueprintPhase
from hostler.model.control_api import (
    BlueprintAtWork,
    Concern,
    ControlPlaneStatus,
    Example,
    LeaderStatus,
    Overview,
    ReplicaStatus,
    StoreStatus,
    TakeoverView,
)
from hostler.model.node import Lifecycle
from hostler.model.vm_api import VmPhase
from hostler.ports.store import FULL, TellsLeases

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hostler.engine.deployments.service import BlueprintService
    from hostler.engine.request import Caller
    from hostler.engine.view import View
    from hostler.keys.entry import Entry, Listing
    from hostler.kit.clock import Clock
    from hostler.model.blueprint_api import BlueprintView
    from hostler.model.node import NodeRecord
    from hostler.model.replica import LeaderRecord, ReplicaRecord, Takeover
    from hostler.model.vm import VirtualMachine
    from hostler.ports.store import Status, Store

GOOD_FOR = 0.5
"""Seconds for which one read of the store serves all callers."""
STATUS_EVERY = 10.0
WITHIN = 2.0
"""Seconds that the store has to return the leader."""
FAILED_FOR = 1.0
"""Seconds without a new read after a failed one."""
FEW = 5
"""Number of examples per concern."""
AT_MOST = 1000
"""Number of blueprints that are counted at most."""
AT_WORK = 50
"""Number of blueprints that are named at most."""
WAITS_LONG = 30.0
"""Seconds after which a pending machine is listed as a concern."""
REFUSED_WITHIN = 3600.0
"""Seconds for which a refused lab is listed as a concern."""
FILLING = 0.6
"""Share of the store quota from which on the store is listed as a concern."""
REPAIR = "run hostler store repair, or raise etcd's --quota-backend-bytes"
_EXPECTED = (Lifecycle.DECOMMISSIONED, Lifecycle.SHUTTING_DOWN)
"""Lifecycles of nodes that need not send heartbeats."""
_MEMBERS, _ALIVE = MEMBER.prefix(), ALIVE.prefix()
_STATES = {lifecycle: lifecycle.value.lower() for lifecycle in Lifecycle}


class OverviewService:
    """Builds the overview. One per process."""

    def __init__(self, store: Store, view: View, blueprints: BlueprintService, *, clock: Clock) -> None:
        self._store, self._view, self._blueprints, self._clock = store, view, blueprints, clock
        self._census = PhaseCounts(view, clock=clock)
        self._reading = asyncio.Lock()
        self._control: ControlPlaneStatus | None = None
        self._control_at = self._failed_at = -math.inf
        self._status: Status | None = None
        self._status_at = -math.inf
        self._revision = 0
        self._nodes_seen: tuple[dict[str, int], list[Entry[NodeRecord]]] = ({}, [])
        self._nodes_of = (-1, -1)
        self._deployed: dict[bool, tuple[float, tuple[BlueprintView, ...]]] = {}

    async def get(self, caller: Caller) -> Overview:
        """Return the overview as the caller may see it."""
        await self._census.load()
        await self._census.waited(self._clock.wall() - WAITS_LONG)
        control = await self._controlled()
        blueprints = await self._blueprint_views(caller)
        nodes, silent = self._nodes()
        vms, labs = self._census.vms(caller), self._census.labs(caller)
        at_work = [one for one in blueprints if one.phase is not BlueprintPhase.READY]
        ready = all(mirror.revision for mirror in self._view.mirrors.values())
        return Overview(
            at=self._clock.wall(),
            ready=ready and self._view.writable(),
            control=control if self._view.healthy() else None,  # read before the last wait
            store=self._store_seen(),
            nodes=nodes,
            vms=vms,
            labs=labs,
            blueprints=_counted(one.phase.value for one in blueprints),
            deployments=tuple(map(_at_work, at_work[:AT_WORK])),
            attention=(
                *self._about_brake(),
                *self._about_store(),
                *self._about_machines(caller, vms),
                *self._about_nodes(silent),
                *self._about_clocks(),
                *_about_blueprints(blueprints),
                *self._about_labs(caller),
            ),
        )

    # The control plane

    async def _controlled(self) -> ControlPlaneStatus | None:
        """Read the control plane once for concurrent callers; None: the store does not answer."""
        async with self._reading:
            if not self._view.healthy() or self._clock.now() - self._failed_at < FAILED_FOR:
                return None
            if self._clock.now() - self._control_at >= GOOD_FOR:
                try:
                    async with asyncio.timeout(WITHIN):
                        self._control = await self._read()
                except (HostlerError, TimeoutError):
                    self._failed_at = self._clock.now()
                    return None
                self._control_at = self._clock.now()
            return self._control

    async def _read(self) -> ControlPlaneStatus:
        found = await LEADER.get(self._store, n=1)
        ends_at = None
        if found is not None and found.lease is not None and isinstance(self._store, TellsLeases):
            ends_at = self._clock.wall() + await self._store.time_left(found.lease)
        replicas = await REPLICA.list(self._store, strict=False)
        takeovers = await TAKEOVER.list(self._store, strict=False)
        if self._clock.now() - self._status_at >= STATUS_EVERY:
            self._status, self._status_at = await self._store.status(), self._clock.now()
        self._revision = takeovers.revision
        leader = found.value if found is not None and found.value.fence else None
        return _control(leader, ends_at, replicas, takeovers)

    def _store_seen(self) -> StoreStatus:
        silent = self._view.stale_for()
        status = self._status
        return StoreStatus(
            answers=self._view.healthy(),
            silent_for=silent if 0 < silent < math.inf else None,
            revision=self._revision or None,
            engine="" if status is None else status.engine,
            version="" if status is None else status.version,
            size_bytes=None if status is None else status.size_bytes,
            quota_bytes=None if status is None else status.quota_bytes,
            writable=self._view.writable(),
            problem=self._view.problem(),
        )

    async def store_status(self) -> Status | None:
        """Return the store status, read at most every `STATUS_EVERY` seconds; None: it was never read."""
        await self._controlled()
        return self._status

    # Counts

    def _nodes(self) -> tuple[dict[str, int], list[Entry[NodeRecord]]]:
        """Return the nodes by state, and the unreachable ones. Equal for all callers, so computed once per revision."""
        known = (self._view.members.revision, self._view.alive.revision)
        if known != self._nodes_of:
            self._nodes_seen, self._nodes_of = self._counted_nodes(), known
        return self._nodes_seen

    def _counted_nodes(self) -> tuple[dict[str, int], list[Entry[NodeRecord]]]:
        alive = self._view.alive.entries
        counts: dict[str, int] = {}
        silent = []
        for key, entry in self._view.members.entries.items():
            record = entry.value
            state = _STATES.get(record.lifecycle, "unknown")
            if record.lifecycle not in _EXPECTED and _ALIVE + key[len(_MEMBERS) :] not in alive:
                state = "silent" if record.off is None else "off"
                if record.off is None:
                    silent.append(entry)
            counts[state] = counts.get(state, 0) + 1
        return counts, silent

    async def _blueprint_views(self, caller: Caller) -> tuple[BlueprintView, ...]:
        if not self._view.blueprints.entries:
            return ()
        now, kept = self._clock.now(), self._deployed.get(caller.may_deploy)
        if kept is None or now - kept[0] >= GOOD_FOR:
            page = await self._blueprints.list(caller, limit=AT_MOST, stale=True)
            self._deployed[caller.may_deploy] = kept = (now, page.items)
        return kept[1]

    # Concerns

    def _about_store(self) -> Iterable[Concern]:
        status, problem = self._status, self._view.problem()
        if status is not None and status.fraction >= FILLING:
            what = "store-full" if FULL in status.alarms else "store-filling"
            yield _about_the_store(what, f"{fill_of(status)}; {problem.rpartition('; ')[2] or REPAIR}")
        elif problem and self._view.healthy():
            yield _about_the_store("store-refuses", problem)

    def _about_machines(self, caller: Caller, counts: dict[str, int]) -> Iterable[Concern]:
        for phase in (VmPhase.FAILED, VmPhase.SILENT, VmPhase.PAUSED):
            if count := counts.get(phase.value, 0):
                yield Concern(what=f"vms-{phase.value}", count=count, examples=self._machines(caller, phase))
        waiting, some = self._census.waiting(caller, FEW)
        if waiting:
            yield Concern(what="vms-waiting", count=waiting, examples=_examples(some))

    def _machines(self, caller: Caller, phase: VmPhase) -> tuple[Example, ...]:
        return _examples(self._census.machines_in(caller, phase, FEW))

    def _about_nodes(self, silent: list[Entry[NodeRecord]]) -> Iterable[Concern]:
        if not silent:
            return
        some = sorted(silent, key=lambda entry: entry.key)[:FEW]
        told = {entry.key: self._view.silences.get(**entry.parts) for entry in some}
        examples = tuple(
            Example(
                object=f"node/{entry.parts['node']}",
                name=entry.value.node,
                since=None if (one := told[entry.key]) is None else one.value.at,
            )
            for entry in some
        )
        yield Concern(what="nodes-silent", count=len(silent), examples=examples)

    def _about_brake(self) -> Iterable[Concern]:
        entry = self._view.brakes.get(scope=FENCING)
        if entry is not None and not entry.value.released:
            record = entry.value
            some = tuple(
                Example(object=f"node/{node}", name=node, detail=record.cause, since=record.at)
                for node in record.nodes[:FEW]
            )
            yield Concern(what="brake-held", count=len(record.nodes), examples=some)

    def _about_clocks(self) -> Iterable[Concern]:
        told = self._view.clock_disputes.get(name=LEADER_CLOCK)
        if told is not None:
            node, why = told.value.node, told.value.why
            examples = (Example(object=f"node/{node}", name=node, detail=why, since=told.value.at),) if node else ()
            yield Concern(what="clock-in-doubt", count=1, examples=examples)

    def _about_labs(self, caller: Caller) -> tuple[Concern, ...]:
        refused = self._census.refusals(caller, self._clock.wall() - REFUSED_WITHIN)
        if not refused:
            return ()
        newest = sorted(refused, key=lambda entry: entry.value.news[-1].at, reverse=True)
        examples = [
            Example(
                object=f"lab/{entry.parts['user']}",
                name=entry.value.user,
                detail=entry.value.news[-1].reason,
                since=entry.value.news[-1].at,
            )
            for entry in newest[:FEW]
        ]
        return (Concern(what="labs-refused", count=len(refused), examples=tuple(examples)),)


def _about_the_store(what: str, detail: str) -> Concern:
    return Concern(what=what, count=1, examples=(Example(object="store", name="store", detail=detail),))


def fill_of(status: Status) -> str:
    """Describe how full the store is."""
    size = sized(status.size_bytes) + ("" if status.quota_bytes is None else f" of {sized(status.quota_bytes)}")
    share = "" if FULL in status.alarms else f"{status.fraction:.0%} "
    return f"{status.engine}'s database is {share}full ({size})"


def _examples(machines: Iterable[tuple[Entry[VirtualMachine], str, float]]) -> tuple[Example, ...]:
    return tuple(
        Example(
            object=f"vm/{vm.value.org}/{vm.value.project}/{vm.value.id}",
            name=f"{vm.value.org}/{vm.value.project}/{vm.value.name}",
            detail=detail,
            since=since or None,
        )
        for vm, detail, since in machines
    )


def _control(
    leader: LeaderRecord | None, ends_at: float | None, replicas: Listing[ReplicaRecord], takeovers: Listing[Takeover]
) -> ControlPlaneStatus:
    running = {entry.value.holder: entry.value for entry in replicas.entries}
    own = None if leader is None else running.get(leader.holder)
    past = {entry.value.fence: entry.value for entry in takeovers.entries}
    seen = None
    if leader is not None:
        began = past.get(leader.fence)
        since = own.held_at if own is not None and own.fence == leader.fence else None
        seen = LeaderStatus(
            address=leader.address,
            holder=leader.holder,
            fence=leader.fence,
            since=since if began is None else began.at,
            ends_at=ends_at,
            ttl=None if own is None else own.ttl,
        )
    return ControlPlaneStatus(
        leader=seen,
        replicas=tuple(
            ReplicaStatus(
                address=one.address,
                holder=one.holder,
                leads=leader is not None and leader.holder == one.holder,
                key=one.key,
                started_at=one.started_at,
            )
            for one in sorted(running.values(), key=lambda one: (one.started_at, one.holder))
        ),
        takeovers=tuple(_takeover(past[fence]) for fence in sorted(past, reverse=True)),
    )


def _takeover(of: Takeover) -> TakeoverView:
    return TakeoverView(
        fence=of.fence,
        holder=of.holder,
        address=of.address,
        at=of.at,
        previous_holder=of.previous_holder,
        previous_address=of.previous_address,
        previous=of.previous,
        released_at=of.released_at,
    )


def _at_work(view: BlueprintView) -> BlueprintAtWork:
    return BlueprintAtWork(
        name=view.name, phase=view.phase, detail=view.detail, ready=view.ready, instances=view.instances
    )


def _about_blueprints(views: Iterable[BlueprintView]) -> Iterable[Concern]:
    views = tuple(views)
    for phase in (BlueprintPhase.FAILED, BlueprintPhase.WAITING):
        found = [view for view in views if view.phase is phase]
        if found:
            examples = tuple(
                Example(object=f"blueprint/{view.name}", name=view.name, detail=view.detail) for view in found[:FEW]
            )
            yield Concern(what=f"blueprints-{phase.value}", count=len(found), examples=examples)


def _counted(names: Iterable[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    return counts
