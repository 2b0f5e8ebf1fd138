"""The view of a process on the store: caches of frequently read key families, and how current they are.

A cache lags behind the store slightly, or by the length of an outage; `stale_for` tells. A decision from the caches is
written under the revisions that it read.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

from hostler.engine.calendar import Calendar
from hostler.engine.deployments.slice_cache import SliceCache
from hostler.engine.inventory.topology_cache import InventoryView
from hostler.engine.workloads.instance_index import InstanceCache
from hostler.errors import Missed, Unavailable, Uncertain
from hostler.keys.cache import Cache
from hostler.keys.families import (
    ALERT,
    ALIVE,
    ARRIVAL,
    BLUEPRINT,
    BRAKE,
    CLOCK,
    CLOCK_DISPUTE,
    CLUSTER,
    COMMAND,
    DEPLOYMENT,
    HANDLE,
    INSTANCE,
    MEMBER,
    RETAINED,
    RETAINED_REQUEST,
    RETRIES,
    ROUTER,
    SILENT,
    SLICE,
    SLICE_OWNER,
    TARGET,
    TOKEN,
    USER,
    VM,
    WORKLOAD,
)
from hostler.keys.lab import LAB, LAB_CATALOGUE
from hostler.kit.tasks import run_together

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

    from hostler.keys.entry import Entry
    from hostler.kit.clock import Clock
    from hostler.model.node import Arrival, Retained, VmCommand
    from hostler.ports.store import Store

PROBE_EVERY = 1.0
PROBE_WITHIN = 2.0
WRITE_EVERY = 5.0
"""Seconds between two write probes."""
WRITE_TTL = 10.0
"""TTL of the lease of a write probe, in seconds."""
FAILURES = 2
"""Failed probes in a row before the store counts as unreachable: one lost answer is no outage."""


class View:
    """Caches of the store. Made once per process; `run` keeps them current until it is cancelled."""

    def __init__(  # noqa: PLR0915 - one line per cache
        self,
        store: Store,
        *,
        clock: Clock,
        rng: random.Random | None = None,
        probe_every: float = PROBE_EVERY,
        probe_within: float = PROBE_WITHIN,
        write_every: float | None = None,
    ) -> None:
        """`write_every`: seconds between two write probes; None: there are none, and `writable` equals `healthy`."""
        self._store, self._clock = store, clock
        self._every, self._within, self._write_every = probe_every, probe_within, write_every
        self.vms = Cache(store, VM, clock=clock, rng=rng)
        self.handles = Cache(store, HANDLE, clock=clock, rng=rng)
        self.commands = Cache(store, COMMAND, clock=clock, rng=rng)
        self.arrivals = Cache(store, ARRIVAL, clock=clock, rng=rng)
        self.retained = Cache(store, RETAINED, clock=clock, rng=rng)
        self.retained_requests = Cache(store, RETAINED_REQUEST, clock=clock, rng=rng)
        self.members = Cache(store, MEMBER, clock=clock, rng=rng)
        self.alive = Cache(store, ALIVE, clock=clock, rng=rng)
        self.clocks = Cache(store, CLOCK, clock=clock, rng=rng)
        self.clock_disputes = Cache(store, CLOCK_DISPUTE, clock=clock, rng=rng)
        """One record at most."""
        self.calendar = Calendar(self.clocks, clock=clock)
        self.users = Cache(store, USER, clock=clock, rng=rng)
        self.tokens = Cache(store, TOKEN, clock=clock, rng=rng)
        self.labs = Cache(store, LAB, clock=clock, rng=rng)
        self.catalogues = Cache(store, LAB_CATALOGUE, clock=clock, rng=rng)
        """One record at most."""
        self.workloads = Cache(store, WORKLOAD, clock=clock, rng=rng)
        self.instances = Cache(store, INSTANCE, clock=clock, rng=rng)
        self.targets = Cache(store, TARGET, clock=clock, rng=rng)
        self.silences = Cache(store, SILENT, clock=clock, rng=rng)
        self.brakes = Cache(store, BRAKE, clock=clock, rng=rng)
        """One record at most."""
        self.blueprints = Cache(store, BLUEPRINT, clock=clock, rng=rng)
        self.slices = Cache(store, SLICE, clock=clock, rng=rng)
        self.owners = Cache(store, SLICE_OWNER, clock=clock, rng=rng)
        self.deployments = Cache(store, DEPLOYMENT, clock=clock, rng=rng)
        self.retries = Cache(store, RETRIES, clock=clock, rng=rng)
        self.alerts = Cache(store, ALERT, clock=clock, rng=rng)
        self.routers = Cache(store, ROUTER, clock=clock, rng=rng)
        self.inventory = InventoryView(store, self.members, clock=clock, rng=rng)
        self.mirrors: dict[str, Cache[Any]] = {
            "vms": self.vms,
            "handles": self.handles,
            "commands": self.commands,
            "arrivals": self.arrivals,
            "retained": self.retained,
            "retained_requests": self.retained_requests,
            "members": self.members,
            "alive": self.alive,
            "clocks": self.clocks,
            "clock_disputes": self.clock_disputes,
            "users": self.users,
            "tokens": self.tokens,
            "labs": self.labs,
            "catalogues": self.catalogues,
            "workloads": self.workloads,
            "instances": self.instances,
            "targets": self.targets,
            "silences": self.silences,
            "brakes": self.brakes,
            "blueprints": self.blueprints,
            "slices": self.slices,
            "slice_owners": self.owners,
            "deployments": self.deployments,
            "slice_retries": self.retries,
            "alerts": self.alerts,
            "routers": self.routers,
            **self.inventory.mirrors,
        }
        self.node_of: dict[str, str] = {}
        """The node that has a command for a machine, by the machine's id."""
        self._others: dict[str, set[str]] = {}  # further nodes that have one: none, unless records were edited by hand
        # ids of machines by node; ordered, so that a simulation seed is reproducible
        self._on: dict[str, dict[str, None]] = {}
        self.commands.listen(self._index)
        self._retained_of: dict[str, set[str]] = {}  # keys of retained machines, by the id of the virtual machine
        self._retained_as: dict[str, str] = {}
        self.retained.listen(self._index_retained)
        self.rolls = InstanceCache(self)
        """Index of workload instances, built at the first use."""
        self.fleet = SliceCache(self)
        """Index of slices, built at the first use."""
        self._answered_at = -math.inf
        self._failures = FAILURES
        self._write_failures = 0
        self._write_problem = ""
        self._probed = asyncio.Event()

    async def run(self) -> None:
        """Keep everything current until cancelled. Raises errors that waiting cannot resolve (Closed, Damaged)."""
        mirrors = {name: mirror.run() for name, mirror in self.mirrors.items()}
        probes = {"probe": self._probe()}
        if self._write_every is not None:
            probes["write probe"] = self._probe_writes(self._write_every)
        await run_together("view", {**mirrors, **probes})

    async def ready(self) -> None:
        """Wait until every family was read once, and the store has answered."""
        for mirror in self.mirrors.values():
            await mirror.ready()
        await self._probed.wait()

    async def refresh(self, *mirrors: Cache[Any]) -> None:
        """Read these families (default: all) now. Afterwards they contain everything written before the call."""
        for mirror in mirrors or self.mirrors.values():
            while True:
                try:
                    await mirror.refresh()
                    break
                except Missed:
                    continue

    # Freshness

    def healthy(self) -> bool:
        """Return whether the store answered the last probes. A suspended process sends no probes."""
        return self._failures < FAILURES

    def writable(self) -> bool:
        """Return whether the store answers, and accepted the last write probe."""
        return self.healthy() and self._write_failures < FAILURES

    def problem(self) -> str:
        """Return why the store does not accept writes, and what to do; empty while it does."""
        if not self.healthy():
            silent = self.stale_for()
            told = f"no answer for {silent:.1f} s" if math.isfinite(silent) else "no answer yet"
            return f"store: {told}; check the store"
        return "" if self.writable() else self._write_problem

    def stale_for(self) -> float:
        """Return the seconds since the store last answered; 0.0 while it does; infinite before the first answer.

        A suspended process sends no probes, so an answer that is older than two probes counts as stale, too.
        """
        silent = self._clock.now() - self._answered_at
        return 0.0 if self.healthy() and silent <= 2 * (self._every + self._within) else silent

    # Locations of machines

    def nodes_of(self, vm: str) -> tuple[str, ...]:
        """Return every node that has a command for this machine; several only if records were edited by hand."""
        first = self.node_of.get(vm)
        if first is None:
            return ()
        return (first, *sorted(self._others[vm])) if vm in self._others else (first,)

    def commands_of(self, node: str) -> Iterator[Entry[VmCommand]]:
        """Yield the commands of a node, in no order."""
        for vm in tuple(self._on.get(node, ())):
            entry = self.commands.get(node=node, vm=vm)
            if entry is not None:
                yield entry

    def count_on(self, node: str) -> int:
        """Return the number of commands of a node."""
        return len(self._on.get(node, ()))

    def arrivals_of(self, vm: str) -> tuple[Entry[Arrival], ...]:
        """Return the arrivals of this machine; several only if records were edited by hand."""
        return tuple(entry for entry in self.arrivals.entries.values() if entry.value.command.vm == vm)

    def retained_of(self, vm: str) -> tuple[Entry[Retained], ...]:
        """Return the retained machines of a virtual machine, newest first."""
        known = self.retained.entries
        found = [known[key] for key in self._retained_of.get(vm, ()) if key in known and known[key].value.vm == vm]
        return tuple(sorted(found, key=lambda entry: (-entry.value.retained_at, entry.key)))

    def arrivals_at(self, node: str) -> tuple[Entry[Arrival], ...]:
        """Return the arrivals at a node."""
        return tuple(entry for entry in self.arrivals.entries.values() if entry.parts["node"] == node)

    # Internal

    def _index(self, key: str) -> None:
        parts = COMMAND.parse(key)
        node, vm = parts["node"], parts["vm"]
        if key in self.commands.entries:
            self._on.setdefault(node, {})[vm] = None
            first = self.node_of.setdefault(vm, node)
            if first != node:
                self._others.setdefault(vm, set()).add(node)
        else:
            self._unindex(node, vm)

    def _index_retained(self, key: str) -> None:
        entry = self.retained.entries.get(key)
        before = self._retained_as.pop(key, None)
        if before is not None:
            self._retained_of[before].discard(key)
            if not self._retained_of[before]:
                del self._retained_of[before]
        if entry is not None:
            self._retained_as[key] = entry.value.vm
            self._retained_of.setdefault(entry.value.vm, set()).add(key)

    def _unindex(self, node: str, vm: str) -> None:
        on = self._on.get(node)
        if on is not None:
            on.pop(vm, None)
            if not on:
                del self._on[node]
        others = self._others.get(vm, set())
        others.discard(node)
        if self.node_of.get(vm) == node:
            del self.node_of[vm]
            if others:
                first = min(others)
                others.discard(first)
                self.node_of[vm] = first
        if not others:
            self._others.pop(vm, None)

    async def _probe(self) -> None:
        while True:
            started = self._clock.now()
            try:
                async with asyncio.timeout(self._within):
                    await self._store.get(CLUSTER.fill())
            except (Unavailable, Uncertain, TimeoutError):
                self._failures += 1
                await self._clock.sleep(self._every / 4)
            else:
                # The answer was true at some instant after the request.
                self._failures, self._answered_at = 0, started
                self._probed.set()
                await self._clock.sleep(self._every)

    async def _probe_writes(self, every: float) -> None:
        """Probe with a lease, the smallest possible write: no key, no revision, no history; it expires by itself."""
        while True:
            try:
                async with asyncio.timeout(self._within):
                    await self._store.grant(WRITE_TTL)
            except (Unavailable, Uncertain, TimeoutError) as error:
                self._write_failures += 1
                unanswered = f"store: a write was not answered within {self._within:g} s; check the store"
                self._write_problem = str(error) or unanswered
                await self._clock.sleep(self._every)
            else:
                self._write_failures = 0
                await self._clock.sleep(every)
