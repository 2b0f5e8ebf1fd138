"""Key families for nodes: `/hostler/v1/…`.

Node records and commands have separate prefixes: listing the nodes must not read every command of every node.
"""

from __future__ import annotations

from hostler.keys.key import Key
from hostler.model.node import (
    Arrival,
    BrakeRecord,
    ClockDispute,
    ClockReading,
    Cluster,
    Epoch,
    Heartbeat,
    NodeRecord,
    VmCommand,
)
from hostler.model.retained import Retained, RetainedRequest

MEMBER = Key("/hostler/v1/members/{node:name}", NodeRecord)
ALIVE = Key("/hostler/v1/alive/{node:name}", Heartbeat)
"""Attached to the agent's lease."""
COMMAND = Key("/hostler/v1/nodes/{node:name}/vms/{vm}", VmCommand)
"""An agent watches `COMMAND.prefix(node=…)`, `ARRIVAL.prefix(node=…)` and `RETAINED_REQUEST.prefix(node=…)`, and
nothing else."""
ARRIVAL = Key("/hostler/v1/arrivals/{node:name}/{vm}", Arrival)
"""Separate from the commands, so that a reader of the few arrivals does not read every command."""
RETAINED = Key("/hostler/v1/retained/{node:name}/{name}", Retained)
"""Machines that are out of service. Written only by the agent of the node, under its session."""
RETAINED_REQUEST = Key("/hostler/v1/retained-requests/{node:name}/{name}", RetainedRequest)
BRAKE = Key("/hostler/v1/brakes/{scope}", BrakeRecord)
FENCING = "fencing"
"""The only scope: there is at most one record."""
CLOCK = Key("/hostler/v1/clocks/{node:name}", ClockReading)
"""Attached to the agent's lease."""
LAST_CLOCK = Key("/hostler/v1/last-clocks/{name}", ClockReading)
"""The leader's wall clock when it was last undisputed. It outlives every process."""
CLOCK_DISPUTE = Key("/hostler/v1/clock-disputes/{name}", ClockDispute)
LEADER_CLOCK = "leader"
"""The only name in `LAST_CLOCK` and `CLOCK_DISPUTE`."""
CLUSTER = Key("/hostler/v1/cluster", Cluster)
EPOCH = Key("/hostler/v1/epochs/{epoch:int}", Epoch)
"""Copies, restores and returns to service of this store. Empty in a store that never had one."""
