"""Small worlds for tests, and what people do and see in them."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from hostler.engine.inventory.inventory_file import read_inventory
from hostler.keys.families import HANDLE
from hostler.model.vm import MachineState, OnNodeLoss, VmSpec
from hostler.model.vm_api import VmCreate
from hostler.sim.fault import fault_of
from hostler.sim.world import WorldConfig

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostler.model.vm import VmHandle
    from hostler.sim.world import ReplicaServices, World
    from hostler.sim.world.event_log import LogEntry

TWO_RACKS = read_inventory("""
racks:
  - name: r1
    pdus: [{name: pdu1, ports: 8}]
    tors: [{name: tor1, ports: 8}]
    blades: {count: 3, prefix: b, cpus: 16, memory: 64GiB, disk: 500GiB}
  - name: R2
    pdus: [{name: pdu1, ports: 8}, {name: pdu2, ports: 8}]
    tors: [{name: tor1, ports: 8}]
    blades: {count: 3, prefix: b, cpus: 16, memory: 64GiB, disk: 500GiB}
""")


def plan(**changes: Any) -> WorldConfig:
    """Two racks of three blades; the second one has two feeds. The loss of one rack is no mass failure here."""
    return WorldConfig(**{"inventory": TWO_RACKS, "brake_share": 0.5, **changes})


async def make(world: World, *names: str, loss: OnNodeLoss = OnNodeLoss.RECREATE, within: float = 600.0) -> None:
    """Wish for machines that shall run."""
    for name in names:
        wanted = VmCreate(name=name, spec=VmSpec(cpus=1, memory_mib=512), on_node_loss=loss)

        async def create(doors: ReplicaServices, wanted: VmCreate = wanted) -> object:
            return await doors.vms.create(doors.request, "acme", "shop", wanted)

        await world.ask(create, within=within)


async def handles(world: World) -> list[VmHandle]:
    return [entry.value for entry in (await HANDLE.list(world.store)).entries]


async def running(world: World, count: int, *, within: float = 60.0) -> list[str]:
    """Until so many run where the store says so, and nothing else is there; on which nodes."""

    async def met() -> bool:
        found = await handles(world)
        told = sorted(handle.node for handle in found if handle.state is MachineState.RUNNING)
        return len(found) == len(told) == count and told == there(world)

    assert await world.until(met, within=within), [(h.node, h.state, h.detail) for h in await handles(world)]
    return there(world)


def there(world: World) -> list[str]:
    """The nodes of all machines that run."""
    places = ((node, host.place.contents.rows.values()) for node, host in world.blades.items())
    return sorted(node for node, rows in places for row in rows if row.on is not None)


def broken(world: World, fault: str, on: str = "", **fields: Any) -> str:
    """Let a fault happen; its id."""
    return world.inject(fault_of({"fault": fault, "on": on, **fields}))


def said(world: World, kind: str, component: str = "", text: str = "") -> list[LogEntry]:
    """What was written down of that kind, about that component, with that text in it."""
    return [
        entry for entry in world.log if entry.kind == kind and component in ("", entry.component) and text in entry.text
    ]


def overlaps(world: World) -> Iterator[str]:
    """Machines that ran in two places at one instant."""
    vms = {vm: None for host in world.blades.values() for vm in host.vms()}
    for vm in vms:
        runs = sorted(
            (start, world.clock.now() if end is None else end, node)
            for node, host in world.blades.items()
            for start, end in host.intervals(vm)
        )
        for (_, end, one), (start, _, other) in pairwise(runs):
            if start < end - 1e-6:
                yield f"{vm} on {one} until {end:g} and on {other} from {start:g}"
