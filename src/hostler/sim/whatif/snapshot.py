"""A copy of the records of a control plane at one revision, and a world that is made from it.

The blades of the world are the nodes of the control plane, with the machines that run there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from hostler.drivers.machines.simulated import MemoryHost
from hostler.drivers.machines.simulated.host import Row
from hostler.drivers.slices.simulated import METHODS
from hostler.engine.agent.config import FENCING_TIME, NODE_TTL
from hostler.engine.controllers.brake import SHARE
from hostler.engine.inventory.export import inventory_from
from hostler.errors import Compacted, Conflict, Damaged, Invalid
from hostler.keys.families import (
    ALIVE,
    ARRIVAL,
    BLUEPRINT,
    CLUSTER,
    COMMAND,
    DEPLOYMENT,
    FAMILIES,
    FENCE,
    HANDLE,
    INSTANCE,
    MEMBER,
    NAME,
    ORG_QUOTA,
    QUOTA,
    RETRIES,
    SLICE,
    SLICE_OWNER,
    TARGET,
    USER,
    VM,
    WORKLOAD,
)
from hostler.keys.lab import LAB, LAB_CATALOGUE
from hostler.model.deployment import SliceSettings, SliceState
from hostler.model.name import fold
from hostler.model.node import split_node_id
from hostler.model.vm import MachineState
from hostler.ports.machines import Label
from hostler.ports.slices import Life, Method, Run, Running
from hostler.sim.world import BladeConfig, WorldConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hostler.engine.inventory.inventory_file import Inventory
    from hostler.keys.key import Key
    from hostler.model.deployment import SliceRecord
    from hostler.model.inventory import Hardware
    from hostler.model.node import NodeRecord, VmCommand
    from hostler.model.vm import VirtualMachine, VmHandle
    from hostler.ports.store import Store
    from hostler.sim.world import World


T = TypeVar("T")

PAGE = 1_000
TRIES = 3
HARDWARE = tuple(key for key in FAMILIES["inventory"] if key is not USER)
TAKEN: tuple[Key[Any], ...] = (
    *HARDWARE,
    *(
        CLUSTER,
        MEMBER,
        COMMAND,
        ARRIVAL,
        VM,
        NAME,
        HANDLE,
        WORKLOAD,
        INSTANCE,
        TARGET,
        LAB,
        LAB_CATALOGUE,
        QUOTA,
        ORG_QUOTA,
        FENCE,
        BLUEPRINT,
        SLICE_OWNER,
        DEPLOYMENT,
        RETRIES,
        SLICE,
    ),
)
"""Records on which decisions are based. Endpoints and routers are attached to leases, and return by themselves. Users,
their tokens, the audit log and old decisions are not copied."""


class Copied(msgspec.Struct, frozen=True, kw_only=True):
    """The copied records."""

    revision: int
    records: dict[str, bytes]
    """The raw records by key; the inventory is not among them."""
    inventory: Inventory
    cluster: str
    members: dict[str, NodeRecord]
    """By node, folded."""
    alive: frozenset[str]
    """Nodes that sent heartbeats."""
    vms: dict[str, VirtualMachine]
    """By `org/project/vm`, as are the handles."""
    handles: dict[str, VmHandle]
    commands: dict[str, dict[str, VmCommand]]
    """By node, then by the machine's id."""
    slices: dict[str, dict[str, SliceRecord]]
    """By node, then by artifact."""
    unreadable: tuple[str, ...]
    """Keys with unreadable values, which are left out."""


async def copy_records(store: Store, tell: Callable[[str, int], None] = lambda *_: None) -> Copied:
    """Copy the records of a store. `tell` is called with the progress. Conflict: its history is compacted too fast."""
    for _ in range(TRIES):
        try:
            return await _Reading(store, tell).read()
        except Compacted:
            continue
    raise Conflict("store: its history is compacted faster than it can be read; try again when the load is lower")


class _Reading:
    def __init__(self, store: Store, tell: Callable[[str, int], None]) -> None:
        self._store, self._tell = store, tell
        self._revision: int | None = None
        self._unreadable: list[str] = []

    async def read(self) -> Copied:
        raw: dict[str, bytes] = {}
        found: dict[str, dict[str, Any]] = {}
        for key in (*TAKEN, ALIVE):
            values = found[key.template] = await self._family(key, raw)
            self._tell(key.template, len(values))
        hardware: dict[str, Hardware] = {}
        for key in HARDWARE:
            hardware |= found[key.template]
        cluster = next(iter(found[CLUSTER.template].values()), None)
        alive = frozenset(ALIVE.parse(key)["node"] for key in found[ALIVE.template])
        commands: dict[str, dict[str, VmCommand]] = {}
        for told, command in found[COMMAND.template].items():
            commands.setdefault(COMMAND.parse(told)["node"], {})[command.vm] = command
        slices: dict[str, dict[str, SliceRecord]] = {}
        for there, record in found[SLICE.template].items():
            parts = SLICE.parse(there)
            slices.setdefault(parts["node"], {})[parts["artifact"]] = record
        return Copied(
            revision=self._revision or 0,
            records={key: value for key, value in raw.items() if key not in hardware and ALIVE.match(key) is None},
            inventory=inventory_from(hardware),
            cluster="" if cluster is None else cluster.id,
            members={MEMBER.parse(key)["node"]: member for key, member in found[MEMBER.template].items()},
            alive=alive,
            vms={key.removeprefix(VM.prefix()): vm for key, vm in found[VM.template].items()},
            handles={key.removeprefix(HANDLE.prefix()): handle for key, handle in found[HANDLE.template].items()},
            commands=commands,
            slices=slices,
            unreadable=tuple(self._unreadable),
        )

    async def _family(self, key: Key[T], raw: dict[str, bytes]) -> dict[str, T]:
        """Read all records of one family, at the revision of the first page."""
        values: dict[str, T] = {}
        after: str | None = None
        prefix = key.prefix() if key.names else key.fill()
        while True:
            page = await self._store.range(prefix, after=after, limit=PAGE, revision=self._revision)
            self._revision = self._revision or page.revision
            for kv in page.items:
                if key.match(kv.key) is None:
                    continue
                try:
                    values[kv.key] = key.decode(kv.value, where=kv.key)
                except Damaged:
                    self._unreadable.append(kv.key)
                else:
                    raw[kv.key] = kv.value
            if not page.more:
                return values
            after = page.items[-1].key


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
