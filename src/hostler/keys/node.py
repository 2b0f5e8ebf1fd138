"""Families of our own: `/hostler/v1/…`.

Node records stand beside the commands, not above them: listing the nodes must not read every command of every node.
"""

from __future__ import annotations

from hostler.keys.key import Key
from hostler.model.node import Arrival, Cluster, Heartbeat, NodeRecord, VmCommand

MEMBER = Key("/hostler/v1/members/{node:name}", NodeRecord)
ALIVE = Key("/hostler/v1/alive/{node:name}", Heartbeat)
"""Attached to the agent's lease."""
COMMAND = Key("/hostler/v1/nodes/{node:name}/vms/{vm}", VmCommand)
"""An agent watches `COMMAND.prefix(node=…)` and `ARRIVAL.prefix(node=…)`, and nothing else."""
ARRIVAL = Key("/hostler/v1/arrivals/{node:name}/{vm}", Arrival)
"""Beside the commands too: who follows the few arrivals must not read every command."""
CLUSTER = Key("/hostler/v1/cluster", Cluster)
