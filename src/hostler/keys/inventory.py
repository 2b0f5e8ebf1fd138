"""Inventory, users and workloads: `/CloudChamber/V0.1/…`.

Plural names list records; singular names hold what is inside one.
"""

from __future__ import annotations

from hostler.keys.key import Key
from hostler.keys.union import Union
from hostler.model.inventory import Blade, HardwareFlow, Pdu, Rack, Region, Tor, User, Zone
from hostler.model.workload import Actual, Target, Workload, WorkloadInstance

ROOT = "/CloudChamber/V0.1"

USER = Key(ROOT + "/users/{user:name}", User)

REGION = Key("/hostler/v1/regions/{region:name}", Region)
ZONE = Key("/hostler/v1/zones/{region:name}/{zone:name}", Zone)
"""The contract has no levels above racks; these are Hostler's own."""

RACK = Key(ROOT + "/racks/{rack:rack}", Rack)
TOR = Key(ROOT + "/rack/{rack:rack}/tor", Tor)
PDU = Key(ROOT + "/rack/{rack:rack}/pdu", Pdu)
MORE_TORS = Key(ROOT + "/rack/{rack:rack}/tors/{n:int}", Tor)
"""The second tor of a rack is n = 2."""
MORE_PDUS = Key(ROOT + "/rack/{rack:rack}/pdus/{n:int}", Pdu)
"""The second pdu of a rack is n = 2."""
BLADE = Key(ROOT + "/rack/{rack:rack}/blades/{blade:name}", Blade)
IN_RACKS = Union(BLADE.prefix(), BLADE, PDU, TOR, MORE_PDUS, MORE_TORS)
"""Everything inside racks."""

BLADE_FLOW = Key("/hostler/v1/blade-flows/{rack:rack}/{blade:name}", HardwareFlow)
RACK_FLOW = Key("/hostler/v1/rack-flows/{rack:rack}", HardwareFlow)
"""Progress of a burn-in or a retirement; written by the leader."""

WORKLOAD = Key(ROOT + "/workloads/{workload:name}", Workload)
INSTANCE = Key(ROOT + "/workload/{workload:name}/instances/{instance}", WorkloadInstance)
ACTUAL = Key(ROOT + "/workload/{workload:name}/instance/{instance}/actual", Actual)
TARGET = Key(ROOT + "/workload/{workload:name}/instance/{instance}/target", Target)
