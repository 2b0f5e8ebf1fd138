"""Whether machines, workloads, labs and nodes match their specs, in the store and on the blades."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from hostler.engine.controllers.decision import DRAIN
from hostler.engine.request import HOSTLER
from hostler.keys.families import (
    ACTUAL,
    ALIVE,
    ARRIVAL,
    COMMAND,
    HANDLE,
    INSTANCE,
    MEMBER,
    RETAINED,
    SLICE,
    TARGET,
    VM,
    WORKLOAD,
)
from hostler.keys.lab import LAB
from hostler.kit.plural import counted
from hostler.model.lab import LAB_LABEL, ORG, LabPhase
from hostler.model.node import DrainMode, Lifecycle
from hostler.model.vm import MachineState, Power
from hostler.model.workload import instance_parts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hostler.drivers.machines.simulated.host import Row
    from hostler.keys.key import Key
    from hostler.model.node import NodeRecord, VmCommand
    from hostler.model.vm import VirtualMachine, VmHandle
    from hostler.ports.store import Event
    from hostler.sim.world import World


LATE = 30.0
"""Seconds after its expiry by which the deletion of a machine must have begun."""
_AWAY = (Lifecycle.DRAINING, Lifecycle.DECOMMISSIONED)


class Unmet(NamedTuple):
    """A spec that is not met. `waits`: it waits for capacity, and its status gives the reason."""

    component: str
    text: str
    waits: bool = False
    invariant: str = "wishes_met"


async def unmet(world: World) -> list[Unmet]:
    """Return everything that does not match its spec."""
    state = await _State.read(world)
    found = [*_machines(state), *_leftovers(state), *_nodes(state), *_workloads(state), *_labs(state)]
    return [*found, *await _unknown_retained(world)]


async def unmet_now(world: World) -> list[Unmet]:
    """Return the machines, workloads and labs that do not match their specs, whatever is broken at present."""
    state = await _State.read(world)
    return [*_machines(state), *_workloads(state), *_labs(state)]


async def _unknown_retained(world: World) -> list[Unmet]:
    """Return retained machines without a record in the store."""
    kept = [(node, name) for node, host in world.blades.items() if host.runs for name in host.place.contents.kept]
    if not kept or world.plan.agents == "light":  # light agents do not publish them
        return []
    told = {(parts["node"], parts["name"]) for parts, _ in await every(world, RETAINED)}
    return [
        Unmet(f"node {node}", f"it retains {name} without a record", invariant="data_kept")
        for node, name in kept
        if (node, name) not in told
    ]


async def unlisted_disks(world: World) -> list[Unmet]:
    """Return retained disks of VMs that `vm show` does not list."""
    vms = {parts["vm"]: vm for parts, vm in await every(world, VM)}
    found: list[Unmet] = []
    for parts, kept in await every(world, RETAINED):
        vm = vms.get(kept.vm)
        if vm is None:
            continue
        view = await world.ask(lambda services, vm=vm: services.vms.get(HOSTLER, vm.org, vm.project, vm.id))  # type: ignore[misc]
        if not any((each.node, each.name) == (parts["node"], kept.name) for each in view.retained):
            text = f"its disk {kept.name} is retained on node {parts['node']}, but the VM does not list it"
            found.append(Unmet(f"vm {vm.id}", text, invariant="data_kept"))
    return found


async def lost(world: World, promised: Iterable[tuple[str, str, str]]) -> list[str]:
    """Return the machines (`org`, `project`, `name`) without a record.

    `promised` are machines whose creation was acknowledged and whose deletion was not requested.
    """
    there = {(vm.value.org, vm.value.project, vm.value.name) for vm in (await VM.list(world.store)).entries}
    return [f"vm {'/'.join(name)}" for name in promised if name not in there]


class _State(msgspec.Struct, kw_only=True):
    """All relevant records at one instant."""

    world: Any
    wall: float
    vms: dict[str, VirtualMachine]
    handles: dict[str, VmHandle]
    commands: dict[str, dict[str, VmCommand]]
    """By machine, then by node."""
    members: dict[str, NodeRecord]
    alive: dict[str, Any]
    arrivals: dict[str, Any]
    workloads: dict[str, Any]
    instances: dict[str, dict[str, Any]]
    targets: dict[str, Any]
    actuals: dict[str, Any]
    labs: dict[str, Any]
    slices: dict[str, list[str]]
    """Artifacts by node."""
    there: dict[str, list[tuple[str, Row]]]

    @classmethod
    async def read(cls, world: World) -> _State:
        commands: defaultdict[str, dict[str, VmCommand]] = defaultdict(dict)
        for parts, command in await every(world, COMMAND):
            commands[parts["vm"]][parts["node"]] = command
        instances: defaultdict[str, dict[str, Any]] = defaultdict(dict)
        for parts, instance in await every(world, INSTANCE):
            instances[parts["workload"]][parts["instance"]] = instance
        slices: defaultdict[str, list[str]] = defaultdict(list)
        if world.plan.slices:
            for parts, _ in await every(world, SLICE):
                slices[parts["node"]].append(parts["artifact"])
        there: defaultdict[str, list[tuple[str, Row]]] = defaultdict(list)
        for node, host in world.blades.items():
            if host.runs:
                for vm, row in host.place.contents.rows.items():
                    there[vm].append((node, row))
        return cls(
            world=world,
            wall=world.clock.wall(),
            vms={parts["vm"]: vm for parts, vm in await every(world, VM)},
            handles={parts["vm"]: handle for parts, handle in await every(world, HANDLE)},
            commands=commands,
            members={parts["node"]: record for parts, record in await every(world, MEMBER)},
            alive={parts["node"]: beat for parts, beat in await every(world, ALIVE)},
            arrivals={parts["vm"]: arrival for parts, arrival in await every(world, ARRIVAL)},
            workloads={parts["workload"]: workload for parts, workload in await every(world, WORKLOAD)},
            instances=instances,
            targets={
                f"{parts['workload']}/{parts['instance']}": target for parts, target in await every(world, TARGET)
            },
            actuals={
                f"{parts['workload']}/{parts['instance']}": actual for parts, actual in await every(world, ACTUAL)
            },
            labs={parts["user"]: lab for parts, lab in await every(world, LAB)},
            slices=slices,
            there=there,
        )


def _machines(state: _State) -> Iterator[Unmet]:
    for id_, vm in state.vms.items():
        component, handle = f"vm {vm.org}/{vm.project}/{vm.name} ({id_})", state.handles.get(id_)
        if vm.deleting:
            yield Unmet(component, f"it is still being deleted; {_observed_text(handle)}")
        elif vm.expires_at is not None and state.wall > vm.expires_at + LATE:
            yield Unmet(component, "it has expired, but is not being deleted")
        elif handle is None:
            yield Unmet(component, "it has no status")
        elif handle.state is MachineState.PENDING:
            yield Unmet(component, f"it is pending: {handle.detail}", waits=bool(handle.reasons))
        elif (what := _unlike(state, vm, handle)) is not None:
            yield Unmet(component, what)


def _unlike(state: _State, vm: VirtualMachine, handle: VmHandle) -> str | None:
    there, commands = state.there.get(vm.id, []), state.commands.get(vm.id, {})
    if list(commands) != [handle.node] or vm.id in state.arrivals:
        return f"{', '.join(commands) or 'no node'} should have it; {_observed_text(handle)}"
    if [node for node, _ in there] != [handle.node]:
        return f"it is on {', '.join(node for node, _ in there) or 'no node'}; {_observed_text(handle)}"
    if handle.ended:
        return None  # in accordance with its restart policy
    power, member = vm.power, state.members.get(handle.node)
    if member is not None and member.lifecycle in _AWAY and member.drain is DrainMode.STOP:
        power = Power.OFF
    wanted = MachineState.RUNNING if power is Power.ON else MachineState.STOPPED
    row = there[0][1]
    if handle.state is not wanted or row.state is not wanted:
        return f"it should be {wanted}; the machine is {row.state}, and {_observed_text(handle)}"
    if handle.generation != vm.generation:
        return f"the status is of generation {handle.generation}, but the spec has {vm.generation}"
    return None


def _leftovers(state: _State) -> Iterator[Unmet]:
    for id_ in dict.fromkeys((*state.there, *state.handles, *state.commands)):
        if id_ not in state.vms:
            where = [node for node, _ in state.there.get(id_, [])]
            told = list(state.commands.get(id_, {}))
            yield Unmet(f"vm {id_}", f"it has no spec; it is on {where}, and nodes {told} have commands for it")
    labs = {record.lab.vm for record in state.labs.values() if record.lab is not None}
    for id_, vm in state.vms.items():
        parts, component = instance_parts(vm.instance), f"vm {vm.org}/{vm.project}/{vm.name} ({id_})"
        if vm.deleting:
            continue  # reported above
        if parts is not None:
            instance = state.instances.get(parts["workload"], {}).get(parts["instance"])
            if instance is None or instance.vm != id_:
                yield Unmet(component, f"it belongs to {vm.instance}, which does not name it")
        elif vm.org == ORG and LAB_LABEL in vm.labels and id_ not in labs:
            yield Unmet(component, "it was made for a lab, but no lab names it")


def _nodes(state: _State) -> Iterator[Unmet]:
    for node, host in state.world.blades.items():
        member, component = state.members.get(node), f"node {node}"
        if not host.runs or not host.connected:
            continue
        if member is None or node not in state.alive:
            yield Unmet(component, "its blade works, but it sends no heartbeats")
        elif member.lifecycle not in (Lifecycle.ON_DUTY, *_AWAY):
            yield Unmet(component, f"its blade works, but it is {member.lifecycle}")
        elif member.lifecycle is Lifecycle.DRAINING:
            left = {vm: commands[node] for vm, commands in state.commands.items() if node in commands}
            for vm, command in left.items():
                why = [reason.why for reason in command.reasons if reason.subject == DRAIN]
                if member.drain is DrainMode.MOVE:
                    yield Unmet(component, f"it is drained and still has {vm}: {'; '.join(why)}", waits=bool(why))
            for artifact in state.slices.get(node, ()):
                yield Unmet(component, f"it is drained and still has slice {artifact}")
            if not left and not state.slices.get(node):
                yield Unmet(component, "it is drained and has no machines, but is not marked as decommissioned")


def _workloads(state: _State) -> Iterator[Unmet]:
    for name, workload in state.workloads.items():
        component, instances = f"workload {name}", state.instances.get(name, {})
        if workload.deleting:
            yield Unmet(component, f"it is still being deleted, and has {counted(len(instances), 'instance')}")
            continue
        staying = {number: instance for number, instance in instances.items() if not instance.leaving}
        if len(staying) != workload.instances or len(staying) != len(instances):
            leaving = len(instances) - len(staying)
            requested = counted(workload.instances, "instance is", "instances are")
            yield Unmet(component, f"{requested} requested; staying: {len(staying)}, leaving: {leaving}")
        for number, instance in staying.items():
            yield from _instance(state, workload, f"{name}/{number}", instance)
    for name, instances in state.instances.items():
        if name not in state.workloads and instances:
            yield Unmet(f"workload {name}", f"it is gone, but {len(instances)} of its instances remain")
    for which in dict.fromkeys((*state.targets, *state.actuals)):
        parts = instance_parts(which)
        if parts is not None and parts["instance"] not in state.instances.get(parts["workload"], {}):
            yield Unmet(f"workload {which}", "no such instance, but it has a target or an actual")


def _instance(state: _State, workload: Any, which: str, instance: Any) -> Iterator[Unmet]:
    component = f"workload {which}"
    vm, handle = state.vms.get(instance.vm), state.handles.get(instance.vm)
    target, actual = state.targets.get(which), state.actuals.get(which)
    if vm is None or vm.instance != which:
        yield Unmet(component, f"its machine {instance.vm or '(none)'} does not exist")
        return
    if instance.template != workload.template:
        yield Unmet(component, f"it is of template {instance.template}; the newest is {workload.template}")
    if target is None:
        yield Unmet(component, "it has no target")
    elif handle is not None and target.node != (handle.node or None):
        yield Unmet(component, f"its target is {target.node}, but its machine is on {handle.node or 'no node'}")
    if handle is None or not handle.node:
        return
    if actual is None:
        yield Unmet(component, "its node has not reported its state")
    elif (actual.node, actual.state) != (handle.node, handle.state):
        yield Unmet(component, f"{actual.node} observed {actual.state}; {_observed_text(handle)}")


def _labs(state: _State) -> Iterator[Unmet]:
    redis = state.world.lab_redis
    for user, record in state.labs.items():
        component, lab, shown = f"lab of {user}", record.lab, redis.records.get(user)
        if lab is None:
            if shown is not None:
                yield Unmet(component, "it is gone, but still shown")
        elif lab.phase is LabPhase.WAITING:
            yield Unmet(component, f"it waits: {lab.detail}", waits=True)
        elif lab.phase is not LabPhase.RUNNING or not lab.available:
            yield Unmet(component, f"it is {lab.phase}, {'' if lab.available else 'not '}available: {lab.detail}")
        elif state.world.plan.labs and shown != lab.server(user):
            yield Unmet(component, f"it is shown as {shown}, but is {lab.server(user)}")


def _observed_text(handle: VmHandle | None) -> str:
    if handle is None:
        return "no observed state"
    detail = f" ({handle.detail})" if handle.detail else ""
    return f"observed {handle.state}{detail} on {handle.node or 'no node'}"


T = TypeVar("T")


async def every(world: World, key: Key[Any]) -> list[tuple[dict[str, str], Any]]:
    """Return all records of a key family: the parts of each key, and its value."""
    page = await world.store.range(key.prefix())
    return [(entry.parts, entry.value) for kv in page.items if (entry := key.readable(kv)) is not None]


def value_of(key: Key[T], event: Event) -> T | None:
    """Return the current value of the key; None: deleted or unreadable."""
    entry = None if event.type == "delete" else key.readable(event.kv)
    return None if entry is None else entry.value
