"""Simulated machines: records that say of themselves when they ran.

    place     where the machines are; outlives the driver. In memory, or (`journal`) in a folder
    driver    the verbs, made of steps that a crash can come between; `change` what a step does, `request` what may be
              asked for
    fault     what goes wrong, from a seeded source or as scripted
    console   a serial port with somebody at the other end

Not here: threads, sockets, or time that is not the clock's, so that all of it runs in virtual time.
"""

from __future__ import annotations

from hostler.drivers.machines.simulated.driver import SimulatedMachines
from hostler.drivers.machines.simulated.fault import MachineFaults, Odds, faults_of
from hostler.drivers.machines.simulated.host import MemoryPlace, Place
from hostler.drivers.machines.simulated.journal import FilePlace, read_intervals

__all__ = [
    "FilePlace",
    "MachineFaults",
    "MemoryPlace",
    "Odds",
    "Place",
    "SimulatedMachines",
    "faults_of",
    "read_intervals",
]
