"""Inventory, users and workloads: `/CloudChamber/V0.1/…`. Plural to list, singular to look inside."""

from __future__ import annotations

from hostler.keys.key import Key
from hostler.model.inventory import Blade, Pdu, Rack, Tor, User
from hostler.model.workload import Actual, Target, Workload, WorkloadInstance

ROOT = "/CloudChamber/V0.1"

USER = Key(ROOT + "/users/{user:name}", User)

RACK = Key(ROOT + "/racks/{rack:rack}", Rack)
TOR = Key(ROOT + "/rack/{rack:rack}/tor", Tor)
PDU = Key(ROOT + "/rack/{rack:rack}/pdu", Pdu)
MORE_TORS = Key(ROOT + "/rack/{rack:rack}/tors/{n:int}", Tor)
"""The second tor of a rack is n = 2."""
MORE_PDUS = Key(ROOT + "/rack/{rack:rack}/pdus/{n:int}", Pdu)
"""The second pdu of a rack is n = 2."""
BLADE = Key(ROOT + "/rack/{rack:rack}/blades/{blade:name}", Blade)

WORKLOAD = Key(ROOT + "/workloads/{workload:name}", Workload)
INSTANCE = Key(ROOT + "/workload/{workload:name}/instances/{instance}", WorkloadInstance)
ACTUAL = Key(ROOT + "/workload/{workload:name}/instance/{instance}/actual", Actual)
TARGET = Key(ROOT + "/workload/{workload:name}/instance/{instance}/target", Target)
