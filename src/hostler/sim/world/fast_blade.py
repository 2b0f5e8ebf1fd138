"""A blade whose agent costs almost nothing while idle, so that a world can have thousands.

It makes the same decisions (`engine.agent.decide`) on the same simulated machines, and writes the same records under
the same comparisons. It omits everything that waits: it renews no heartbeat and no fence. Its lease lives until the
blade becomes unreachable, and then expires when the lease of a real agent would have; so do its fenced machines. It
gets its commands from the world's single watch on the whole store. It does not migrate machines.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from hostler.engine.agent import retained
from hostler.engine.agent.config import BEATS
from hostler.engine.agent.decide import DOING, NOTHING, Action, StatusUpdate, decide, same, tell
from hostler.engine.agent.node_registration import has_machines, record_of, told_of
from hostler.engine.agent.status_reporter import actual, pause
from hostler.engine.cluster_id import cluster_id
from hostler.errors import HostlerError, Refused
from hostler.keys.families import ALIVE, COMMAND, HANDLE, MEMBER, SLICE
from hostler.kit.virtual_loop import outside
from hostler.model.node import Heartbeat
from hostler.ports.machines import Label, MachinePlan
from hostler.ports.store import ModRevision
from hostler.sim.faulty_link import deliver
from hostler.sim.world.blade import BladeHost
from hostler.sim.world.light_slices import LightSlices

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any, TypeVar

    from hostler.drivers.machines.simulated import SimulatedMachines
    from hostler.engine.agent.decide import Step
    from hostler.keys.entry import Entry
    from hostler.model.node import VmCommand
    from hostler.model.vm import VmHandle
    from hostler.ports.machines import Machine
    from hostler.ports.slices import Life as SliceLife
    from hostler.ports.store import Comparison, Event, Lease
    from hostler.sim.world.config import BladeConfig
    from hostler.sim.world.host import Life
    from hostler.sim.world.store_link import StoreLink
    from hostler.sim.world.world import World

    T = TypeVar("T")

FOR_EVER = 1e8
AGAIN = 1.0
"""Seconds between attempts to register its node."""
_COMMANDS, _SLICES = COMMAND.prefix(), SLICE.prefix()


class LightBlade(BladeHost):
    """A blade with a light agent."""

    def __init__(self, world: World, plan: BladeConfig) -> None:
        super().__init__(world, plan)
        self._reachable = asyncio.Event()
        self._over = asyncio.Event()
        self._lease: Lease | None = None
        self._alive = 0  # the revision of its key; 0: it has no session
        self._lapse: asyncio.TimerHandle | None = None
        self._told: dict[str, Entry[VmCommand]] = {}
        self._working: dict[str, bool] = {}  # machines in work, and whether to look again
        self._made: dict[str, int] = {}  # the create revision of the command under which each machine was made
        self._untold: dict[str, None] = {}  # machines that were made at this instant and are not yet reported
        self.slices = LightSlices(self)
        self._new = True  # its process has not read its slices yet

    @property
    def reachable(self) -> bool:
        """Whether the store is reachable."""
        return self._reachable.is_set()

    @property
    def registered(self) -> int:
        """The revision of its ALIVE key; 0: it has no session."""
        return self._alive

    @property
    def lease(self) -> Lease | None:
        """The lease of its session."""
        return self._lease

    def slices_there(self) -> dict[tuple[str, int], SliceLife]:
        return {instance: running.life for instance, running in self.slices.there.items()}

    def crash_slices(self, artifact: str) -> None:
        self.slices.crash(artifact)

    # Registration and loss of contact

    async def run_agent(self, life: Life, machines: SimulatedMachines) -> None:
        self._told, self._working = {}, {}
        self.slices.begin()
        self._new = True
        while True:
            await self._reachable.wait()
            with suppress(HostlerError):
                if await self._registered(life, machines):
                    await self._look()
                    await self._over.wait()
                    continue
            await self.clock.sleep(AGAIN)

    def wire_up(self, wire: StoreLink) -> None:
        super().wire_up(wire)
        if self.silent or self.conditions.refused:
            self._fall_silent()
        else:
            self._be_heard()

    def kill(self, cause: str = "") -> None:
        self._fall_silent()
        super().kill(cause)

    def lose_power(self, cause: str = "") -> None:
        self._fall_silent()
        super().lose_power(cause)
        self.slices.power_off()

    def _fall_silent(self) -> None:
        """Let the lease and the fence expire as if the last heartbeat had been sent within the last interval."""
        if not self._reachable.is_set():
            return
        self._reachable.clear()
        for vm in self._untold:  # as if they had not been created
            self.place.delete(vm, self.clock.now())
        self._untold.clear()
        plan, loop = self.world.plan, self.world.loop
        ago = self.world.rng.random() * plan.node_ttl / BEATS
        self.place.hold(self.clock.now() - ago + plan.fencing_time, self.clock.now())
        self.let_lapse()
        if self._alive:
            self._lapse = loop.call_later(plan.node_ttl - ago, self._end_lease, context=outside())

    def _be_heard(self) -> None:
        if self._reachable.is_set():
            return
        self._reachable.set()
        if self._lapse is not None and self._alive and self.machines is not None and self.life is not None:
            self._stay()  # in time
            self.world.loop.launch(self.life.process, self._look())

    def _stay(self) -> None:
        if self._lapse is not None:
            self._lapse.cancel()
            self._lapse = None
        self.place.hold(FOR_EVER, self.clock.now())

    def _end_lease(self) -> None:
        lease, self._lease, self._lapse, self._alive = self._lease, None, None, 0
        if lease is not None:
            deliver(lease.revoke)
        self._over.set()

    async def _registered(self, life: Life, machines: SimulatedMachines) -> bool:
        """Register the node; return whether it belongs to this blade now."""
        store, node, wall = self.world.store, self.node, self.world.clock.wall()
        self.cluster = await cluster_id(store, self.world.clock, life.new_id)
        member = await MEMBER.get(store, node=node)
        elsewhere = member is not None and member.value.place not in ("", machines.place)
        if elsewhere and await has_machines(store, node, _at_once):
            return False
        known = None if member is None else member.value
        offer = told_of(await machines.offer(), moves=False)
        record = msgspec.structs.replace(record_of(self.agent_plan(), machines, known, at=wall, **offer), awaited=False)
        beat = Heartbeat(holder=life.new_id(), place=machines.place, started_at=wall)
        before, lease = self._lease, await store.grant(FOR_EVER)
        when = [MEMBER.absent(node=node) if member is None else MEMBER.unchanged(member)]
        result = await store.txn(when, [MEMBER.put(record, node=node), ALIVE.put(beat, lease=lease, node=node)])
        if not result.succeeded:
            return False
        if before is not None:
            await before.revoke()  # the lease of an earlier process: the key is attached to the new one
        self._lease, self._alive = lease, result.revision
        self.slices.session()
        self._over.clear()
        self._stay()
        if not self._reachable.is_set():  # cut off in the meantime
            self._reachable.set()
            self._fall_silent()
        return True

    # Commands

    def heard(self, event: Event) -> None:
        """Handle a changed command. Changes missed while unreachable are read when the store is reachable again."""
        if self._alive and self._reachable.is_set() and self.machines is not None:
            vm = event.kv.key.rpartition("/")[2]
            if event.type == "delete":
                self._told.pop(vm, None)
            else:
                self._told[vm] = COMMAND.entry(event.kv)
            self._begin(vm)

    def heard_slice(self, artifact: str, event: Event) -> None:
        """Handle a changed slice."""
        if self._alive and self._reachable.is_set() and self.machines is not None:
            self.slices.heard(artifact, event)

    async def _look(self) -> None:
        """Read all commands and work on all machines."""
        listing = await COMMAND.list(self.world.store, node=self.node)
        self._told = {entry.value.vm: entry for entry in listing.entries}
        for vm in dict.fromkeys((*self._told, *self.place.contents.rows)):
            self._begin(vm)
        if self.world.plan.slices:
            first, self._new = self._new, False
            await self.slices.look(first=first)

    def _begin(self, vm: str) -> None:
        life, machines = self.life, self.machines
        if vm in self._working:
            self._working[vm] = True
        elif life is not None and not life.dead and machines is not None:
            self._working[vm] = False
            self.world.loop.launch(life.process, self._work(life, machines, vm))

    # Execution

    async def _work(self, life: Life, machines: SimulatedMachines, vm: str) -> None:
        failures = 0
        try:
            while True:
                self._working[vm] = False
                try:
                    done = await self._step(machines, vm)
                    failures = 0
                except Refused as error:
                    entry = self._told.get(vm)
                    done = entry is None or await self._tell(entry, await machines.inspect(vm), refused=str(error))
                except HostlerError:
                    done, failures = False, failures + 1
                    await self.clock.sleep(pause(failures, life.rng))
                if done and not self._working[vm]:
                    return
        finally:
            self._working.pop(vm, None)

    async def _step(self, machines: SimulatedMachines, vm: str) -> bool:
        """Take one step; return True if nothing is left to do and the result is reported."""
        entry, seen = self._told.get(vm), await machines.inspect(vm)
        if entry is None:
            if seen is not None:
                await retained.retain(machines, seen, grace=self.world.plan.stop_grace, wall=self.clock.wall())
            self._made.pop(vm, None)
            return True
        own = entry.value.reinstate == ""
        leftover = seen is not None and self._made.get(vm) != entry.create_revision and not own
        step = decide(entry.value, seen, settled=_settled_restore(entry.value, seen), leftover=leftover)
        if step is NOTHING or step.action is Action.SEND:
            return await self._tell(entry, seen)
        creates = step.action is Action.CREATE
        if step.action in DOING and not leftover and self._takes_time(step):
            if not await self._tell(entry, seen, doing=step):
                return creates and not self._reachable.is_set()
            if self._told.get(vm) is not entry:
                return False
        elif creates:
            if not (self._reachable.is_set() and self._alive):
                return True  # the start of the creation cannot be recorded
            self._untold[vm] = None
        if creates:
            self._made[vm] = entry.create_revision
        await self._do(machines, entry.value, step)
        return False

    def _takes_time(self, step: Step) -> bool:
        """Return whether a step must be reported before it starts; an instant step need not be."""
        delays = self.faults.delays
        delay = {Action.CREATE: delays.get("create", 0.0), Action.START: delays.get("start", 0.0)}.get(step.action, 0.0)
        return delay > 0 or self.conditions.errors > 0

    async def _do(self, machines: SimulatedMachines, command: VmCommand, step: Step) -> None:
        vm = command.vm
        match step.action:
            case Action.CREATE | Action.RESHAPE | Action.MARK:
                label = Label(command.org, command.project, vm, self.cluster, self.node)
                plan = MachinePlan(
                    label=label, spec=command.spec, name=command.name, fenced=command.fenced, tags=command.tags
                )
                if step.action is Action.CREATE:
                    await retained.create(machines, plan, command)
                else:
                    await (machines.mark(plan) if step.action is Action.MARK else machines.create(plan))
            case Action.START:
                await machines.start(vm)
            case Action.STOP | Action.SWITCH_OFF:
                await machines.stop(vm, grace=self.world.plan.stop_grace if step.action is Action.STOP else 0.0)
            case Action.RESET:
                await machines.reset(vm, step.number)
            case Action.SNAPSHOT:
                await machines.snapshot(vm, step.name)
            case Action.DROP:
                await machines.drop_snapshot(vm, step.name)
            case Action.RESTORE:
                await machines.restore(vm, step.name, step.number)
            case Action.DELETE:
                await machines.delete(vm)
                self._made.pop(vm, None)
            case Action.RETAIN:
                seen = await machines.inspect(vm)
                if seen is not None:
                    await retained.retain(machines, seen, grace=self.world.plan.stop_grace, wall=self.clock.wall())
                self._made.pop(vm, None)

    async def _tell(
        self, entry: Entry[VmCommand], seen: Machine | None, *, doing: Step = NOTHING, refused: str = ""
    ) -> bool:
        """Report the status; return whether the store has it, or will get it when it is reachable again."""
        if self.conditions.late:
            await self.clock.sleep(self.conditions.late)
        if not self._reachable.is_set() or not self._alive:
            return doing is NOTHING
        store, command = self.world.store, entry.value
        stands = await HANDLE.get(store, org=command.org, project=command.project, vm=command.vm)
        before = None if stands is None else stands.value
        telling = StatusUpdate(
            node=self.node,
            driver="simulated",
            at=self.clock.wall(),
            settled=_settled_restore(command, seen),
            detail=refused,
            refused=bool(refused),
        )
        handle = tell(command, seen, before, telling, doing=doing)
        if same(before, handle):
            self._untold.pop(command.vm, None)
            return True
        when = [
            COMMAND.unchanged(entry),
            ModRevision(ALIVE.fill(node=self.node)) == self._alive,
            _same_handle(command, stands),
        ]
        put = HANDLE.put(handle, org=command.org, project=command.project, vm=command.vm)
        result = await store.txn(when, [put, *actual(command, handle)])
        if result.succeeded:
            self._untold.pop(command.vm, None)
        # A new command arrives as an event, and a session that is over is registered again.
        return result.succeeded or self._told.get(command.vm) is not entry or not self._alive


class Exchange:
    """Delivers commands to light blades."""

    def __init__(self, world: World) -> None:
        self._world = world

    def heard(self, event: Event) -> None:
        """Handle any event of the store."""
        key = event.kv.key
        if key.startswith(_COMMANDS):
            parts = COMMAND.match(key)
            blade = None if parts is None else self._world.blades.get(parts["node"])
            if isinstance(blade, LightBlade):
                blade.heard(event)
        elif key.startswith(_SLICES) and (parts := SLICE.match(key)) is not None:
            blade = self._world.blades.get(parts["node"])
            if isinstance(blade, LightBlade):
                blade.heard_slice(parts["artifact"], event)


def _same_handle(command: VmCommand, stands: Entry[VmHandle] | None) -> Comparison:
    key = HANDLE.fill(org=command.org, project=command.project, vm=command.vm)
    return ModRevision(key) == (0 if stands is None else stands.mod_revision)


def _settled_restore(command: VmCommand, seen: Machine | None) -> int:
    """Return the number of the restore if there is nothing to restore, as for a machine that is created again."""
    if command.restore is None:
        return 0
    return command.restore.number if seen is None or command.restore.snapshot not in seen.snapshots else 0


async def _at_once(work: Coroutine[Any, Any, T]) -> T:
    return await work
