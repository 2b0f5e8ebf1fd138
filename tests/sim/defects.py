"""Deliberate defects, put into a world through its constructors (`hostler.sim.world.Factories`), and what finds each.

None of them can be switched on outside tests: what is broken is made of the product's own parts, with one rule of it
ignored. A part is made as always, and then given a class that differs in one decision.
"""

from __future__ import annotations

import dataclasses
from contextlib import suppress
from copy import copy
from typing import TYPE_CHECKING, Any, TypeVar, cast
from weakref import WeakKeyDictionary

from msgspec.structs import replace

from hostler.drivers.ttl.store import StoreTtlStorage
from hostler.engine.agent.session import Session
from hostler.engine.agent.status_reporter import Reports
from hostler.engine.agent.worker import Workers
from hostler.engine.control_plane import ControlPlane, build_agent
from hostler.engine.controllers.allocations import Allocations
from hostler.engine.controllers.brake import Brake
from hostler.engine.controllers.decision import Act, NodeCase, Step
from hostler.engine.controllers.janitor import Janitor
from hostler.engine.controllers.machines import MachineController
from hostler.engine.controllers.node_lost import HeartbeatMonitor
from hostler.engine.labs import decide as labs
from hostler.engine.labs import state_machine
from hostler.engine.labs.controller import LabController
from hostler.engine.labs.lab_cache import LabCache
from hostler.engine.placement import Decision
from hostler.engine.transfer.restore import restore
from hostler.engine.workloads.transactions import Targets
from hostler.errors import HostlerError, Missed, Unavailable, Uncertain
from hostler.keys.cache import Cache
from hostler.keys.families import COMMAND, FENCE
from hostler.kit.rate_limit import Backoff
from hostler.model.lab import LabPhase
from hostler.model.vm import MachineState
from hostler.ports.store import Version
from hostler.sim.world import Factories

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hostler.engine.agent.agent import Agent
    from hostler.engine.agent.config import AgentConfig
    from hostler.engine.agent.status_reporter import ReportedMachine
    from hostler.engine.control_plane import NodePorts
    from hostler.engine.controllers.decision import Duty
    from hostler.engine.controllers.snapshot import VmSnapshot
    from hostler.engine.labs.transactions import LabSnapshot as LabSeen
    from hostler.engine.placement import NodeState, PlacementRequest
    from hostler.engine.runtime.env import Env
    from hostler.engine.service import Service
    from hostler.engine.transfer.restore import Backup, Restored
    from hostler.engine.workloads.controller import WorkloadController
    from hostler.keys.entry import Entry
    from hostler.kit.clock import Clock
    from hostler.model.lab import LabUser
    from hostler.model.node import Arrival, NodeRecord, VmCommand
    from hostler.model.vm import VirtualMachine, VmHandle
    from hostler.model.workload import Workload
    from hostler.ports.machines import Machine
    from hostler.ports.store import Comparison, Store

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Defect:
    """What is wrong, the scenario that finds it, and the invariant that is broken then."""

    parts: Callable[[], Factories]
    scenario: str
    invariant: str

    @property
    def name(self) -> str:
        return self.parts.__name__


DEFECTS: list[Defect] = []


def found_by(scenario: str, invariant: str) -> Callable[[Callable[[], Factories]], Callable[[], Factories]]:
    """One more defect."""

    def add(parts: Callable[[], Factories]) -> Callable[[], Factories]:
        DEFECTS.append(Defect(parts, scenario, invariant))
        return parts

    return add


# How parts are broken


def _turned(made: Any, kind: type[T]) -> T:
    """The very object, with a class that is derived from its own."""
    made.__class__ = kind
    turned: T = made
    return turned


def _machines(kind: type[MachineController]) -> Factories:
    return Factories(plane=_plane(machine_controller=lambda made: _turned(made, kind)))


def _plane(**broken: Callable[[Any], object]) -> type[ControlPlane]:
    """A control plane in which something is broken in what some methods return."""

    def method(name: str, breaks: Callable[[Any], object]) -> Callable[..., Any]:
        def made(plane: ControlPlane, *ports: Any) -> Any:
            sound = getattr(ControlPlane, name)(plane, *ports)
            breaks(sound)
            return sound

        return made

    return type("Broken", (ControlPlane,), {name: method(name, breaks) for name, breaks in broken.items()})


def _books(kind: type[Allocations]) -> Factories:
    return Factories(plane=_plane(machine_controller=lambda made: _turned(made.books, kind)))


def _labs(kind: type[LabController], sight: type[LabCache] = LabCache) -> Factories:
    def broken(services: Sequence[Service]) -> None:
        for service in services:
            if isinstance(service, LabController):
                _turned(service, kind)
                _turned(service._sight, sight)

    return Factories(plane=_plane(lab_controllers=broken))


def _agents(broken: Callable[[Agent], object]) -> Factories:
    def agent(store: Store, env: Env, ports: NodePorts, config: AgentConfig) -> Agent:
        made = build_agent(store, env, ports, config)
        broken(made)
        return made

    return Factories(agent=agent)


# Leaders


class _NoGuard(StoreTtlStorage):
    def guard(self, key: str, value: str) -> Comparison:  # noqa: ARG002 - that is the defect
        return Version(key) > -1


@found_by("leader-cut-off-while-taking", "no_stale_leader_write")
def no_fence_check() -> Factories:
    """What a leader writes does not depend on whether it still leads."""
    return Factories(storage=_NoGuard)


class _Deaf(Cache[T]):
    async def run(self) -> None:
        backoff = Backoff(0.05, 1.0, rng=self._rng)
        while self.revision == 0:
            try:
                await self._list()
            except (Missed, Unavailable, Uncertain):
                await self._clock.sleep(backoff.next())
        while True:
            try:
                await self._follow_watch()
            except Missed as missed:
                self.revision = max(self.revision, missed.revision or 0)
            except (Unavailable, Uncertain):
                await self._clock.sleep(backoff.next())


@found_by("watches-lost", "wishes_met")
def event_lost_on_reconnect() -> Factories:
    """A mirror that has missed something watches on from there, and does not read it all again."""

    class Deaf(ControlPlane):
        def __init__(self, *ports: Any) -> None:
            super().__init__(*ports)
            for mirror in self.view.mirrors.values():
                _turned(mirror, _Deaf)

    return Factories(plane=Deaf)


class _Blindfolded(Allocations):
    def _state(self, node: str, record: NodeRecord) -> NodeState:
        return replace(super()._state(node, record), rack=node, pdus=(node,), tors=(node,))


@found_by("anti-affinity-rack-lost", "rules_kept")
def fault_domain_ignored() -> Factories:
    """Placement takes every node for one in a rack, on a pdu and behind a tor of its own."""
    return _books(_Blindfolded)


class _Impatient(MachineController):
    def _case(self, seen: VmSnapshot) -> NodeCase:
        found = super()._case(seen)
        return NodeCase.LONG_SILENT if found is NodeCase.SILENT else found


@found_by("tor-loss", "no_vm_twice")
def restart_before_the_old_node_is_dead() -> Factories:
    """Fenced machines are taken from a node as soon as it is silent."""
    return _machines(_Impatient)


class _Credulous(MachineController):
    def _case(self, seen: VmSnapshot) -> NodeCase:
        found = super()._case(seen)
        return NodeCase.OFF if found in (NodeCase.SILENT, NodeCase.LONG_SILENT) else found


@found_by("labs-behind-a-dead-tor", "no_vm_twice")
def silence_taken_for_off() -> Factories:
    """A node that is silent counts as switched off, so machines that should wait for it are started elsewhere."""
    return _machines(_Credulous)


class _Tidy(Workers):
    async def _retain(self, seen: Machine) -> None:
        await self._machines.delete(seen.label.vm)
        self.removed += 1


@found_by("mass-failure-without-power", "disks_kept")
def disk_given_up_unasked() -> Factories:
    """Machines that should wait are taken from unreachable nodes, which delete their disks when they are back."""
    agents = _agents(lambda agent: _turned(agent._workers, _Tidy))
    return dataclasses.replace(agents, plane=_machines(_Credulous).plane)


@found_by("node-back-after-recreate", "disks_kept")
def destroyed_without_a_command() -> Factories:
    """A machine without a command is destroyed with its disk."""
    return _agents(lambda agent: _turned(agent._workers, _Tidy))


class _Twice(MachineController):
    def _decide(self, seen: VmSnapshot, duty: Duty | None = None) -> Step:
        step = super()._decide(seen, duty)
        handle, command = seen.handle, seen.command
        if step.act is not Act.NOTHING or handle is None or command is None or handle.value.node != seen.node:
            return step
        inherited = command.value.fence != self._writing.fence()
        return Step(Act.PLACE) if inherited and handle.value.state is not MachineState.RUNNING else step


@found_by("leader-killed-while-machines-boot", "no_vm_twice")
def double_adoption() -> Factories:
    """A new leader places what does not run yet once more, though a node was told to have it."""
    return _machines(_Twice)


class _Released(MachineController):
    def _decide(self, seen: VmSnapshot, duty: Duty | None = None) -> Step:
        vm, command = seen.vm, seen.command
        if vm is not None and command is not None and command.value.deleting and not vm.value.deleting:
            return Step(Act.RELEASE)
        return super()._decide(seen, duty)


@found_by("drain-by-making-anew", "no_vm_twice")
def placed_before_it_is_gone() -> Factories:
    """A machine that leaves a node is placed elsewhere before its node has said that it is gone."""
    return _machines(_Released)


class _Careless(MachineController):
    def _decide(self, seen: VmSnapshot, duty: Duty | None = None) -> Step:
        step = super()._decide(seen, duty)
        return Step(Act.FORGET_LOST) if step.act is Act.TAKE else step


@found_by("pdu-loss", "no_vm_lost")
def forgotten_with_its_node() -> Factories:
    """What was on a node that is lost is forgotten, the wish for it included."""
    return _machines(_Careless)


class _Silent(MachineController):
    def _choose_node(self, seen: VmSnapshot, vm: VirtualMachine, wanted: PlacementRequest) -> Decision:
        found = super()._choose_node(seen, vm, wanted)
        return found if found.node is not None else Decision(node=None, score=0.0)


@found_by("full-cluster", "pending_has_reason")
def pending_without_a_reason() -> Factories:
    """A machine that no node will do for waits, and nobody says why."""
    return _machines(_Silent)


class _NoObjection(Allocations):
    def _state(self, node: str, record: NodeRecord) -> NodeState:
        state = super()._state(node, record)
        objected = self._view.inventory.objection(node)
        return replace(state, on_duty=True, why_not="") if objected and state.why_not == objected else state


@found_by("zone-disabled", "inventory_heeded")
def inventory_ignored() -> Factories:
    """Machines are placed on nodes that the inventory has taken out of use."""
    return _books(_NoObjection)


_COUNTS: WeakKeyDictionary[Any, dict[str, float]] = WeakKeyDictionary()
"""Of each world, by its store: since when each node is silent."""


class _Inherited(HeartbeatMonitor):
    known: dict[str, float]

    def look(self, node: str) -> None:
        super().look(node)
        if node in self._counts:
            count = self._counts[node]
            self._counts[node] = replace(count, since=self.known.setdefault(node, count.since))
        else:
            self.known.pop(node, None)


@found_by("flapping-while-nobody-leads", "no_vm_twice")
def silence_counted_by_a_former_leader() -> Factories:
    """A new leader goes on counting a node's silence where the last one was."""

    class Inheriting(ControlPlane):
        def machine_controller(self, brake: Brake | None) -> MachineController:
            made = super().machine_controller(brake)
            counted = _turned(made._silence, _Inherited)
            world: Any = self.store
            counted.known = _COUNTS.setdefault(world._store, {})
            return made

    return Factories(plane=Inheriting)


class _NoBrake(Brake):
    def may_fence(self, node: str) -> bool:  # noqa: ARG002 - that is the defect
        return True


@found_by("mass-failure-with-power", "brake_kept")
def no_brake() -> Factories:
    """Nodes are switched off, and machines taken from them, however many became unreachable together."""
    return Factories(plane=_plane(brake=lambda made: _turned(made, _NoBrake)))


class _Forgetful(Janitor):
    async def _expire_retained(self) -> bool:
        for entry in tuple(self._view.retained.entries.values()):
            await self._expire_one(entry, self._clock.wall())
        return False


@found_by("node-back-after-recreate", "disks_kept")
def retention_ignored() -> Factories:
    """Retained machines are garbage-collected at once."""
    return Factories(plane=_plane(janitor=lambda made: _turned(made, _Forgetful)))


@found_by("restore-under-load", "no_stale_leader_write")
def fence_reused_after_restore() -> Factories:
    """A restore writes the fences as the backup has them."""

    async def with_old_fences(store: Store, backup: Backup, prefix: str, **how: Any) -> Restored:
        done = await restore(store, backup, prefix, **how)
        async for kv in backup.entries():
            if FENCE.match(kv.key) is not None:
                await store.put(kv.key, kv.value)
        return done

    return Factories(restore=with_old_fences)


@found_by("restore-under-load", "no_vm_twice")
def commands_of_a_backup_obeyed() -> Factories:
    """A restore lets nodes create machines at once, though they may be on other nodes since the backup."""

    async def confirmed(store: Store, backup: Backup, prefix: str, **how: Any) -> Restored:
        done = await restore(store, backup, prefix, **how)
        for entry in (await COMMAND.list(store)).entries:
            await COMMAND.replace(store, entry, replace(entry.value, unconfirmed=False))
        return done

    return Factories(restore=confirmed)


# Workloads and labs


class _Unaimed(Targets):
    def check(self, ids: dict[str, Any]) -> None:  # noqa: ARG002 - that is the defect
        return


@found_by("drain-rack", "wishes_met")
def target_left_behind() -> Factories:
    """The target of an instance stays as it is when its machine is handed over to another node."""

    return Factories(plane=_plane(workload_controller=lambda made: _turned(made._targets, _Unaimed)))


class _Unbounded:
    """What workloads say, as if each allowed that none of it serves."""

    def __init__(self, workloads: Cache[Workload]) -> None:
        self._workloads = workloads

    def __getattr__(self, name: str) -> Any:
        return getattr(self._workloads, name)

    def get(self, **parts: str) -> Entry[Workload] | None:
        entry = self._workloads.get(**parts)
        if entry is None:
            return None
        rollout = replace(entry.value.rollout, max_unavailable=entry.value.instances)
        return replace(entry, value=replace(entry.value, rollout=rollout))


@found_by("rolling-update", "rollout_kept")
def updated_all_at_once() -> Factories:
    """An update takes all instances away before the new ones serve, whatever the rollout says."""

    class Unbounded(ControlPlane):
        def workload_controller(self) -> WorkloadController:
            other, unbounded = copy(self), cast("Any", copy(self.view))
            unbounded.workloads = _Unbounded(self.view.workloads)
            other.view = unbounded
            return ControlPlane.workload_controller(other)

    return Factories(plane=Unbounded)


class _Ahead:
    """A clock whose calendar is two minutes ahead."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clock, name)

    def wall(self) -> float:
        return self._clock.wall() + 120.0


@found_by("machines-expire", "no_early_end")
def ended_before_its_time() -> Factories:
    """Machines that expire are deleted too early."""

    class Early(ControlPlane):
        def janitor(self) -> Janitor:
            other, ahead = copy(self), cast("Any", _Ahead(self.env.clock))
            other.env = dataclasses.replace(self.env, clock=ahead)
            return ControlPlane.janitor(other)

    return Factories(plane=Early)


class _Generous(LabController):
    def _decide(self, record: LabUser, seen: LabSeen) -> labs.Step:
        lab = record.lab
        if lab is not None and lab.phase is LabPhase.STOPPING and seen.vm is not None and seen.vm.value.deleting:
            return labs.Step(labs.Act.WRITE, state_machine.gone(record, self._clock.wall(), self._catalogue()))
        return super()._decide(record, seen)


class _NoStrays(LabCache):
    def _strays(self, user: str, own: str) -> tuple[Entry[VirtualMachine], ...]:  # noqa: ARG002 - that is the defect
        return ()


@found_by("lab-switch", "one_lab_per_user")
def lab_given_twice() -> Factories:
    """A user gets the machine of another lab before that of the last one is gone."""
    return _labs(_Generous, _NoStrays)


class _Proud(LabController):
    def _decide(self, record: LabUser, seen: LabSeen) -> labs.Step:
        return super()._decide(record, replace(seen, silent=False))


@found_by("labs-behind-a-dead-tor", "no_unreachable_endpoint")
def lab_shown_though_its_node_is_silent() -> Factories:
    """A lab stays available when its node gives no sign of life any more."""
    return _labs(_Proud)


# Agents


class _HoldsOn(Session):
    async def _hold(self, sent: float) -> None:  # noqa: ARG002 - that is the defect
        with suppress(HostlerError):
            await self._machines.hold(1_000.0)


@found_by("flapping-node", "no_vm_twice")
def fenced_machines_held_too_long() -> Factories:
    """An agent holds its fenced machines for longer than it told the leader."""
    return _agents(lambda agent: _turned(agent.session, _HoldsOn))


class _Hasty(Workers):
    async def _expect(self, vm: str, arrival: Entry[Arrival]) -> None:
        await super()._expect(vm, arrival)
        with suppress(HostlerError):
            await self._machines.start(vm)
        self.queue.add_at(vm, self._clock.now() + 0.2)


@found_by("handovers-on-a-bad-network", "no_vm_twice")
def started_before_it_was_handed_over() -> Factories:
    """A machine that has arrived is started while it still is the other node's."""
    return _agents(lambda agent: _turned(agent._workers, _Hasty))


class _Embellished(Reports):
    async def send(self, known: ReportedMachine, entry: Entry[VmCommand], handle: VmHandle) -> bool:
        return await super().send(known, entry, replace(handle, disk_since=0.0))


@found_by("node-back-after-recreate", "data_kept")
def new_disk_not_told() -> Factories:
    """Agents do not say that a machine has a new disk."""
    return _agents(lambda agent: _turned(agent._workers.reports, _Embellished))
