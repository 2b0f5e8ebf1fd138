"""The descriptor of simulated machines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.model.inventory import Capacity
from hostler.ports.machine_driver import FirstMachine, MachineDriver

if TYPE_CHECKING:
    from hostler.ports.machine_driver import NodeSetup
    from hostler.ports.machines import Machines

CAPACITY = Capacity(cpus=32, memory_mib=128 * 1024, disk_gib=2048, network_mbps=10_000)
"""Capacity of a simulated node."""


def _open(node: NodeSetup) -> Machines:
    from hostler.drivers.machines.simulated import FileHost, SimulatedMachines, faults_of

    capacity = node.capacity or CAPACITY
    faults = faults_of(node.delays)
    return SimulatedMachines(FileHost(node.folder), clock=node.clock, rng=node.rng, capacity=capacity, faults=faults)


DRIVER = MachineDriver(
    about="records that behave like machines; for tests and evaluation",
    open=_open,
    first=FirstMachine(within=60.0, shows_steps=False),
)
