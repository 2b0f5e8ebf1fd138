"""A store full of running machines: specs, names, handles and commands on some nodes.

Written directly in large transactions, as the services would write it. The nodes are alive for the time of a lease that
is not renewed: an hour.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import msgspec

from hostler.engine.controllers.decision import assigned_handle, first_command
from hostler.engine.placement import Cluster, node_state, place, wanted_of
from hostler.keys.families import ALIVE, COMMAND, HANDLE, MEMBER, NAME, VM
from hostler.model.inventory import Capacity
from hostler.model.node import Heartbeat, Lifecycle, NodeRecord
from hostler.model.vm import MachineState, VirtualMachine, VmSpec
from hostler.ports.store import MAX_OPERATIONS
from hostler.wiring import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hostler.ports.store import Operation, Store

ORG = "bench"
IN_PROJECT = 1_000
LIVES = 3600.0
AT_ONCE = 8
_CPUS = 256


def project_of(number: int) -> str:
    """Return the project of a machine; each project has a thousand machines."""
    return f"project-{number // IN_PROJECT:04}"


def machine(number: int) -> VirtualMachine:
    """Return the record of a VM as the service writes it."""
    return VirtualMachine(
        id=f"{number:032x}",
        name=f"machine-{number:06}",
        org=ORG,
        project=project_of(number),
        spec=VmSpec(cpus=1, memory_mib=1024, disk_gib=10, image="debian-12"),
        labels={"tier": "web" if number % 2 else "db"},
        created_at=1_700_000_000.0 + number,
    )


def first_path() -> str:
    """Return the API path of the first machine."""
    first = machine(0)
    return f"/v1/orgs/{ORG}/projects/{first.project}/vms/{first.id}"


def node(number: int) -> NodeRecord:
    """Return a node in service with free capacity."""
    rack = f"r{number // 40}"
    return NodeRecord(
        node=f"{rack}-{number % 40}",
        lifecycle=Lifecycle.ON_DUTY,
        capacity=Capacity(cpus=_CPUS, memory_mib=4096 * _CPUS, disk_gib=100 * _CPUS),
        labels={"zone": str(number % 10)},
        rack=rack,
        pdus=(f"{rack}/pdu0", f"{rack}/pdu1"),
        tors=(f"{rack}/tor0",),
        driver="simulated",
        fences=True,
        fencing_time=30.0,
        registered_at=1_700_000_000.0,
    )


async def fill(url: str, machines: int, nodes: int, tell: Callable[[str], None]) -> float:
    """Write running machines on some nodes. Return the seconds it took."""
    began = time.perf_counter()
    async with open_store(url) as store:
        await fill_nodes(store, nodes)
        await write_groups(store, _machines(machines, nodes, tell))
    return time.perf_counter() - began


async def fill_nodes(store: Store, nodes: int) -> None:
    """Write live nodes."""
    lease = await store.grant(LIVES)
    alive = Heartbeat(holder="bench", started_at=1_700_000_000.0)

    def operations() -> Iterator[list[Operation]]:
        for number in range(nodes):
            record = node(number)
            yield [MEMBER.put(record, node=record.node), ALIVE.put(alive, node=record.node, lease=lease)]

    await write_groups(store, operations())


async def write_specs(store: Store, numbers: range) -> None:
    """Write VMs that are not placed yet."""
    await write_groups(store, (_spec_operations(machine(number)) for number in numbers))


def _spec_operations(vm: VirtualMachine) -> list[Operation]:
    place_: dict[str, Any] = {"org": vm.org, "project": vm.project}
    return [VM.put(vm, vm=vm.id, **place_), NAME.put(vm.id, name=vm.name, **place_)]


def _machines(machines: int, nodes: int, tell: Callable[[str], None]) -> Iterator[list[Operation]]:
    names = [node(number).node for number in range(nodes)]
    reasons = place(wanted_of(machine(0)), Cluster(node_state(node(number), True) for number in range(nodes))).reasons
    for number in range(machines):
        if number % 1000 == 0:
            tell(f"writing {number:,} of {machines:,} machines")
        vm, where = machine(number), names[number % nodes]
        command = first_command(vm, None, fence=1, reasons=reasons)
        handle = assigned_handle(vm, None, node=where, driver="simulated", at=vm.created_at)
        handle = msgspec.structs.replace(handle, state=MachineState.RUNNING, address="10.0.0.1")
        yield [
            *_spec_operations(vm),
            HANDLE.put(handle, org=vm.org, project=vm.project, vm=vm.id),
            COMMAND.put(command, node=where, vm=vm.id),
        ]


async def write_groups(store: Store, groups: Iterator[list[Operation]]) -> None:
    """Write groups of operations in concurrent transactions, each with as many groups as fit."""
    waiting: set[asyncio.Task[object]] = set()
    batch: list[Operation] = []
    for group in groups:
        if len(batch) + len(group) > MAX_OPERATIONS:
            waiting.add(asyncio.ensure_future(store.txn([], batch)))
            batch = []
            if len(waiting) == AT_ONCE:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        batch += group
    if batch:
        waiting.add(asyncio.ensure_future(store.txn([], batch)))
    for task in waiting:
        await task
