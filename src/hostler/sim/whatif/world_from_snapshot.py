"""A world whose blades are the nodes of a live control plane, with the machines that run there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from hostler.drivers.machines.simulated import MemoryHost
from hostler.drivers.machines.simulated.host import Row
from hostler.drivers.slices.simulated import METHODS
from hostler.engine.agent.config import FENCING_TIME, NODE_TTL
from hostler.engine.controllers.brake import SHARE
from hostler.errors import Invalid
from hostler.keys.families import BLUEPRINT, SLICE
from hostler.model.deployment import SliceSettings, SliceState
from hostler.model.name import fold
from hostler.model.node import split_node_id
from hostler.model.vm import MachineState
from hostler.ports.machines import Label
from hostler.ports.slices import Life, Method, Run, Running
from hostler.sim.world import BladeConfig, WorldConfig

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostler.model.node import NodeRecord, VmCommand
    from hostler.model.vm import VmHandle
    from hostler.sim.whatif.snapshot import Copied
    from hostler.sim.world import World

NOT_YET = "the nodes register first, so that no leader takes them for dead"
AWAY = "it was unreachable when it was copied"
_NOTHING = (MachineState.PENDING, MachineState.PLACED, MachineState.GONE)
"""States in which there is no machine."""
_UNDER_WAY = {
    MachineState.STARTING: MachineState.STOPPED,
    MachineState.STOPPING: MachineState.RUNNING,
    MachineState.DELETING: MachineState.STOPPED,
    MachineState.ARRIVING: MachineState.STOPPED,
    MachineState.DEPARTED: MachineState.STOPPED,
}
"""Operations in progress start again."""
_LIVES = {
    SliceState.LOADED: Life.LOADED,
    SliceState.ACTIVATE: Life.LOADED,
    SliceState.ACTIVATING: Life.LOADED,
    SliceState.ACTIVE: Life.ACTIVE,
    SliceState.DEACTIVATE: Life.ACTIVE,
    SliceState.DEACTIVATING: Life.ACTIVE,
    SliceState.LOADING: Life.LOADED,
}
"""States of a slice with a process."""


def world_plan(copy: Copied, *, boot_time: float = 0.0, power: bool = False, brake_share: float = SHARE) -> WorldConfig:
    """Return a plan with one replica, and the registered nodes."""
    known = {node for node, _, _ in copy.inventory.nodes()}
    racks = {fold(full.rack.name) for full in copy.inventory.racks}
    loose = [
        _blade(node, member)
        for node, member in copy.members.items()
        if node not in known and _named(node) and split_node_id(node)[0] not in racks
    ]
    fencing_time = max((member.fencing_time for member in copy.members.values()), default=0.0) or FENCING_TIME
    return WorldConfig(
        inventory=copy.inventory,
        blades=tuple(loose),
        records=copy.records,
        replicas=1,
        boot_time=boot_time,
        power=power,
        brake_share=brake_share,
        traces=False,
        slices=any(key.startswith((BLUEPRINT.prefix(), SLICE.prefix())) for key in copy.records),
        fencing_time=fencing_time,
        node_ttl=min(NODE_TTL, fencing_time / 2),
    )


def furnish(world: World, copy: Copied) -> tuple[str, ...]:
    """Set up the blades like the nodes of the copy, with their machines, before the world is entered.

    Return the nodes that are left out.
    """
    for replica in world.replicas.values():
        replica.held[NOT_YET] = None
    out = [node for node in copy.members if node not in world.blades]
    for node, host in world.blades.items():
        member = copy.members.get(node)
        if member is not None:
            host.blade = msgspec.structs.replace(_blade(node, member), pdus=host.blade.pdus, tors=host.blade.tors)
            host.place = MemoryHost(member.place or host.place.id)
            host.place.put(tuple(_rows(copy, node)))
            if node in copy.alive:
                for running in _slices(copy, node):
                    host.slice_place.put(running)
        if node not in copy.alive:
            host.held[AWAY] = None
    return tuple(out)


def _named(node: str) -> bool:
    try:
        split_node_id(node)
    except Invalid:
        return False
    return True


def _blade(node: str, member: NodeRecord) -> BladeConfig:
    return BladeConfig(
        node=node,
        capacity=member.capacity,
        labels=member.labels,
        pdus=member.pdus,
        tors=member.tors,
        images=member.images,
        fences=member.fences,
        moves=member.moves,
    )


def _rows(copy: Copied, node: str) -> Iterator[Row]:
    for number, command in enumerate(copy.commands.get(node, {}).values(), 1):
        handle = copy.handles.get(f"{command.org}/{command.project}/{command.vm}")
        if handle is not None and fold(handle.node) == node and handle.state not in _NOTHING:
            yield _row(copy.cluster, node, number, command, handle)


def _slices(copy: Copied, node: str) -> Iterator[Running]:
    """Return the running slices of a node. Operations in progress start again."""
    for artifact, record in copy.slices.get(node, {}).items():
        for number, one in record.each().items():
            if one.state not in _LIVES:
                continue
            settings = record.settings.get(one.template, SliceSettings())
            run = Run(artifact=artifact, instance=number, template=one.template, settings=settings)
            life = _LIVES[one.state]
            methods = tuple(Method(name=name) for name in record.methods) or METHODS
            address = f"{node}:{number}" if life is Life.ACTIVE else ""
            yield Running(run=run, life=life, methods=methods, address=address)


def _row(cluster: str, node: str, number: int, command: VmCommand, handle: VmHandle) -> Row:
    state = _UNDER_WAY.get(handle.state, handle.state)
    runs = state is MachineState.RUNNING
    return Row(
        label=Label(command.org, command.project, command.vm, cluster, node),
        number=number,
        spec=command.spec,
        name=command.name,
        tags=command.tags,
        fenced=command.fenced,
        resets=handle.resets,
        restored=handle.restored,
        snapshots=dict.fromkeys(handle.snapshots, ""),
        moved=command.arrived or 0,
        state=state,
        detail=handle.detail,
        on=0.0 if runs else None,
        ready=0.0 if runs else None,
    )
