"""Simulated machines: records that document when they ran.

    descriptor   what the rest of Hostler knows of this driver
    host         where the machines are; outlives the driver. In memory, or (`journal`) in a folder
    driver       the verbs, made of steps that a crash can interrupt; `transitions` the effect of a step, `move`
                 migration
    fault        faults, from a seeded source or as scripted
    console      a serial port with a simulated guest

Not here: threads, sockets, or time other than the clock's, so that everything runs in virtual time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.kit.lazy_import import importing

if TYPE_CHECKING:
    from hostler.drivers.machines.simulated.driver import SimulatedMachines
    from hostler.drivers.machines.simulated.fault import MachineFaults, Odds, faults_of
    from hostler.drivers.machines.simulated.host import MemoryHost, SimulatedHost
    from hostler.drivers.machines.simulated.journal import FileHost, read_intervals

# The descriptor of the driver is imported often, and the driver only where it is used.
__getattr__ = importing(
    __name__,
    {
        "FileHost": "journal",
        "MachineFaults": "fault",
        "MemoryHost": "host",
        "Odds": "fault",
        "SimulatedHost": "host",
        "SimulatedMachines": "driver",
        "faults_of": "fault",
        "read_intervals": "journal",
    },
)

__all__ = [
    "FileHost",
    "MachineFaults",
    "MemoryHost",
    "Odds",
    "SimulatedHost",
    "SimulatedMachines",
    "faults_of",
    "read_intervals",
]
