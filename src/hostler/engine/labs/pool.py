"""The warm pool: VMs that are booted ahead of time. A lab that gets one of them is available at once.

They are ordinary VMs of the org `labs-pool`, in one project per lab. A lab takes one over in the transaction that gives
it a VM (`vm_reassignment`). That transaction compares all records that show that the VM is unused, so none is assigned
twice, whatever any leader believes.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from hostler.engine.labs import pool_decide
from hostler.engine.labs.catalogue import MACHINES_LABEL, Catalogue, Feasibility, labels_of
from hostler.engine.labs.decide import SPARE
from hostler.engine.labs.pool_cache import PoolCache
from hostler.engine.labs.pool_decide import PoolState, kind_of, kinds_of, project_of
from hostler.engine.labs.transactions import DROPPED, Claim
from hostler.engine.labs.vm_reassignment import Owner, transfer
from hostler.engine.quotas import claim as charge
from hostler.engine.quotas import counted, share
from hostler.engine.runtime.controller import LeaderService
from hostler.engine.runtime.guarded_writer import Txn, Why
from hostler.errors import Closed, Conflict, HostlerError, LeadershipLost, QuotaExceeded, Unavailable, Uncertain
from hostler.keys.families import NAME, VM
from hostler.kit.rate_limit import Backoff
from hostler.model.lab import LAB_LABEL, ORG, POOL_ORG, SHAPE_LABEL, LabCatalogue, lab_project
from hostler.model.vm import VirtualMachine
from hostler.ports.store import Put

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostler.engine.labs.pool_decide import Kind, Stocked
    from hostler.engine.runtime.env import ControllerEnv
    from hostler.engine.view import View
    from hostler.keys.entry import Entry
    from hostler.model.lab import Lab, LabTemplate, LabUser

EVERY = 5.0
GATHER = 0.05
"""Seconds for which changes are collected before the pool is checked."""
PER_NODE = 2
"""Maximum number of VMs in preparation per suitable node."""
FIRST_PAUSE, LONGEST_PAUSE = 15.0, 600.0
"""Pause after a VM of a project was given up, before the next one is created."""
CROWDED = 30.0
"""Seconds in which no VM is created where a lab found no room."""
TAKEN = 2.0
"""Seconds that a lab has to take the room of a removed VM before another VM is removed."""


class LabPool(LeaderService):
    """The warm pool. It starts, runs and stops with the lab controller. `keys`, `tracer`: as in the controller."""

    name = "pool"

    def __init__(
        self,
        env: ControllerEnv,
        view: View,
        *,
        keys: Sequence[str] = (),
    ) -> None:
        super().__init__(env)
        self._view, self._new_id, self._keys = view, env.new_id, tuple(keys)
        self._wake = asyncio.Event()
        self._shelf = PoolCache(view, clock=env.clock, changed=self._wake.set, came=self._came)
        self._fit, self._offer = Feasibility(view), Catalogue(view)
        self._pauses: dict[str, Backoff] = {}
        self._paused: dict[str, float] = {}  # by project: no VM is created before this time
        self._crowded: dict[str, float] = {}  # by kind of machines: labs need the room until this time
        self._evicted: dict[str, float] = {}  # by kind of machines: when a VM was last removed for a lab

    # Controller lifecycle

    async def begin(self) -> None:
        """Start from the caches."""
        self.follow(
            *self._shelf.listen(),
            self._fit.listen(self._wake.set),
            self._view.catalogues.listen(lambda _: self._wake.set()),
        )

    async def run(self) -> None:
        """Run until cancelled. Raise LeadershipLost when another replica leads."""
        backoff = Backoff(0.5, 30.0, rng=self._rng)
        while True:
            pause = EVERY
            self._wake.clear()
            try:
                await self._look()
                backoff.reset()
            except (LeadershipLost, Closed):
                raise
            except (Conflict, Unavailable, Uncertain):
                pause = backoff.next()
            except HostlerError as error:
                self._tell(f"pool: {error}; it will be tried again")
                pause = backoff.next()
            await self._rest(pause)

    def state(self) -> dict[str, int]:
        """Return counters and current sizes, for metrics."""
        conditions = [one.condition for one in self._shelf.stock(self._kinds())]
        sizes = {"ready_now": conditions.count(PoolState.READY), "coming_now": conditions.count(PoolState.COMING)}
        return {**self.counters, **sizes}

    # Assignment

    async def claim(self, entry: Entry[LabUser], template: LabTemplate, now: float) -> Claim | None:
        """See `transactions.Pool`."""
        user, lab = entry.value.user, entry.value.lab
        if lab is None or self._offer.current() is None:
            return None
        kind = kind_of(project_of(self._catalogue(), lab.lab_id), template, self._keys)
        held = self._shelf.pick(kind)
        if held is None:
            if kind.warm:
                self._writing.count("missed")
            return None
        vm = held.vm.value.id
        to = Owner(
            org=ORG,
            project=lab_project(user),
            name=f"lab-{lab.lab_id}-{lab.generation}",
            labels=labels_of(lab.lab_id, user, template),
            expires_at=now + template.life + template.grace + SPARE,
        )
        self._shelf.give(vm)
        try:
            when, then = await transfer(self._store, held, to, fence=self._writing.leadership().fence)
        except BaseException:
            self._shelf.take_back(vm)
            raise
        return Claim(vm, when, then, (held.vm, held.handle, held.command))

    def settle(self, claim: Claim, *, written: bool) -> None:
        """See `transactions.Pool`. A VM that was taken over stays marked as given until the cache shows it."""
        if written:
            self._writing.count("claimed")
        else:
            self._shelf.take_back(claim.vm)
        self._wake.set()

    def make_room(self, lab: Lab, template: LabTemplate) -> None:  # noqa: ARG002 - the caches contain the same
        """See `transactions.Pool`."""
        self._wake.set()

    # Reconciliation

    async def _look(self) -> None:
        if self._offer.current() is None:
            return  # the catalogue is not known
        await self._make_way()
        kinds = self._kinds()
        there, now = self._shelf.stock(kinds), self._clock.now()
        paused = {project for project, until in self._paused.items() if until > now}
        paused |= {project for project, kind in kinds.items() if self._is_crowded(kind)}
        members = self._view.members.entries.values() if kinds else ()  # a full scan, so only if needed
        nodes = sum(self._shelf.serves(entry.parts["node"]) for entry in members)
        todo = pool_decide.work(kinds, there, coming=self._shelf.coming(), most=PER_NODE * nodes, paused=paused)
        for one, why in todo.drop:
            if why in ("replaced", "no_room"):
                self._pause(one.project)
            await self._drop(one, why)
        for kind in todo.make:
            await self._make(kind)

    async def _make(self, kind: Kind) -> None:
        id_ = self._new_id()
        vm = VirtualMachine(
            id=id_,
            name=f"warm-{id_[:8]}",
            org=POOL_ORG,
            project=kind.project,
            spec=kind.spec,
            labels={SHAPE_LABEL: kind.shape},
            node_labels=kind.node_labels,
            created_at=self._clock.wall(),
        )
        place: dict[str, Any] = {"org": vm.org, "project": vm.project}
        try:
            when, then = charge(await counted(self._store, vm.org, vm.project), share(vm.spec))
        except QuotaExceeded:
            self._pause(kind.project)
            raise
        self._shelf.record_created(id_)
        txn = Txn(
            [VM.absent(vm=id_, **place), NAME.absent(name=vm.name, **place), *when],
            [VM.put(vm, vm=id_, **place), NAME.put(id_, name=vm.name, **place), *then],
        )
        why = Why(what="made", why=f"project {vm.project}: {kind.warm} should be ready")
        if await self._writing.commit("", VM.fill(vm=id_, **place), txn, why) is None:
            self._shelf.record_created(id_, certain=False)

    async def _drop(self, one: Stocked, why: str) -> None:
        entry, vm = one.vm, one.vm.value
        if self._shelf.is_given(vm.id):
            return  # it was offered to a lab in the meantime
        gone = msgspec.structs.replace(vm, deleting=True, generation=vm.generation + 1)
        self._shelf.record_deleted(vm.id)
        txn = Txn([VM.unchanged(entry)], [Put(entry.key, VM.encode(gone))])
        told = Why(what=why, why=f"it is removed: {DROPPED.get(why, why)}", read=(entry,))
        done = False
        try:
            done = await self._writing.commit("", entry.key, txn, told) is not None
        finally:
            if not done:
                self._shelf.record_deleted(vm.id, certain=False)

    def _pause(self, project: str) -> None:
        pause = self._pauses.setdefault(project, Backoff(FIRST_PAUSE, LONGEST_PAUSE, rng=self._rng))
        self._paused[project] = self._clock.now() + pause.next()

    def _came(self, project: str) -> None:
        self._pauses.pop(project, None)  # VMs of this project do become ready

    # Eviction

    async def _make_way(self) -> None:
        """Remove VMs for labs that no node has room for, one at a time, until there is enough room."""
        waiting = (lab_vm for lab_vm in self._shelf.waiting() if not self._fit.never(lab_vm.spec, lab_vm.node_labels))
        lab_vms = {_provider(lab_vm.node_labels): lab_vm for lab_vm in waiting}
        for provider, lab_vm in lab_vms.items():
            now = self._clock.now()
            self._crowded[provider] = now + CROWDED
            there = self._shelf.stock(self._kinds())
            competing = {one.vm.value.id for one in there if self._competes_with(one, lab_vm)}
            going = any(one.condition is PoolState.GOING and one.vm.value.id in competing for one in there)
            if going or now < self._evicted.get(provider, -TAKEN) + TAKEN:
                continue
            lab = lab_vm.labels.get(LAB_LABEL, "")
            own = project_of(self._catalogue(), int(lab)) if lab.isdecimal() else ""
            found = pool_decide.in_the_way(there, competing, own)
            if found is not None:
                self._evicted[provider] = now
                await self._drop(found, "evicted")

    def _competes_with(self, one: Stocked, lab_vm: VirtualMachine) -> bool:
        """Return whether a pool VM uses, or will use, room on a reachable node that the lab's VM could use."""
        node = self._view.node_of.get(one.vm.value.id)
        if node is None:
            return one.vm.value.node_labels == lab_vm.node_labels
        member = self._view.members.get(node=node)
        labels = {} if member is None else member.value.labels
        provider = _provider(lab_vm.node_labels)
        return self._view.alive.get(node=node) is not None and provider in ("", labels.get(MACHINES_LABEL))

    def _is_crowded(self, kind: Kind) -> bool:
        now, own = self._clock.now(), _provider(kind.node_labels)
        return any(until > now and (not own or provider in ("", own)) for provider, until in self._crowded.items())

    # Internals

    def _kinds(self) -> dict[str, Kind]:
        return kinds_of(self._catalogue(), self._keys)

    def _catalogue(self) -> LabCatalogue:
        return self._offer.current() or LabCatalogue()

    async def _rest(self, seconds: float) -> None:
        """Wait for the next check; shorter, if there are changes."""
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return
        await self._clock.sleep(GATHER)


def _provider(node_labels: dict[str, str]) -> str:
    """Return the requested kind of machines; empty: any."""
    return node_labels.get(MACHINES_LABEL, "")
