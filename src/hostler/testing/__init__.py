"""For authors of other drivers: the suites that ours pass. May see everything; nothing sees it."""

from __future__ import annotations

from hostler.drivers.store.faulty import Faults, FaultyStore
from hostler.testing.history import Call, Journal, Recorder, read_history
from hostler.testing.linearizability import Violation, check_linearizable
from hostler.testing.store import Claim, Trial, check_store, store_claims

__all__ = [
    "Call",
    "Claim",
    "Faults",
    "FaultyStore",
    "Journal",
    "Recorder",
    "Trial",
    "Violation",
    "check_linearizable",
    "check_store",
    "read_history",
    "store_claims",
]
