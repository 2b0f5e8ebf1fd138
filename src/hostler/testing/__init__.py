"""Conformance suites for authors of drivers. This package may import everything; nothing imports it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.drivers.machines.simulated import (
    FileHost,
    MachineFaults,
    MemoryHost,
    Odds,
    SimulatedMachines,
    read_intervals,
)
from hostler.drivers.slices.simulated import SimulatedSlices, SliceHost, SliceTimes
from hostler.drivers.store.faulty import Faults, FaultyStore
from hostler.kit.lazy_import import old_names
from hostler.kit.virtual_loop import Deadlock, Leftover, VirtualClock, VirtualLoop, run_virtual
from hostler.testing.elections import (
    BreakableTtlStorage,
    ElectionClaim,
    ElectionTrial,
    check_elections,
    election_claims,
)
from hostler.testing.history import Call, Journal, Recorder, read_history
from hostler.testing.inbox import InboxClaim, InboxTrial, LabFrontEnd, check_inbox, inbox_claims
from hostler.testing.linearizability import Violation, check_linearizable
from hostler.testing.machines import MachineClaim, MachineSetup, MachineTrial, check_machines, machine_claims
from hostler.testing.slices import OpenSlices, SliceClaim, SliceSetup, SliceTrial, check_slices, slice_claims
from hostler.testing.store import Claim, Trial, check_store, store_claims
from hostler.testing.ttl import TtlClaim, TtlTrial, check_ttl_storage, ttl_storage_claims

__all__ = [
    "BreakableTtlStorage",
    "Call",
    "Claim",
    "Deadlock",
    "ElectionClaim",
    "ElectionTrial",
    "Faults",
    "FaultyStore",
    "FileHost",
    "InboxClaim",
    "InboxTrial",
    "Journal",
    "LabFrontEnd",
    "Leftover",
    "MachineClaim",
    "MachineFaults",
    "MachineSetup",
    "MachineTrial",
    "MemoryHost",
    "Odds",
    "OpenSlices",
    "Recorder",
    "SimulatedMachines",
    "SimulatedSlices",
    "SliceClaim",
    "SliceHost",
    "SliceSetup",
    "SliceTimes",
    "SliceTrial",
    "Trial",
    "TtlClaim",
    "TtlTrial",
    "Violation",
    "VirtualClock",
    "VirtualLoop",
    "check_elections",
    "check_inbox",
    "check_linearizable",
    "check_machines",
    "check_slices",
    "check_store",
    "check_ttl_storage",
    "election_claims",
    "inbox_claims",
    "machine_claims",
    "read_history",
    "read_intervals",
    "run_virtual",
    "slice_claims",
    "store_claims",
    "ttl_storage_claims",
]

if not TYPE_CHECKING:  # the checker accepts the new names only
    __getattr__ = old_names(__name__, {"LabDoor": "LabFrontEnd"})
