"""Table of key families for the migration of a state file into a cluster. It has one line for every family."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

from hostler.keys import access, deployment, inventory, lab, node, replica, trace, transfer, vm

if TYPE_CHECKING:
    from hostler.keys.key import Key


class Way(enum.Enum):
    """How a family is moved."""

    MACHINE = "with its machine"
    """In the transaction that moves the machine."""
    ABSENT = "if absent"
    """Key by key, where the cluster has none."""
    ACCOUNT = "with its account"
    """Where the cluster has exactly the same account as the file."""
    BLUEPRINT = "with its blueprint"
    """In the transaction that moves the blueprint."""
    MERGED = "merged"
    STAYS = "stays behind"
    """Not moved: it describes processes of the file, is recreated in the cluster, or belongs to the cluster."""


MOVES: dict[Key[Any], Way] = {
    vm.VM: Way.MACHINE,
    vm.HANDLE: Way.MACHINE,
    vm.NAME: Way.MACHINE,
    vm.LOCK: Way.STAYS,
    replica.LEADER: Way.STAYS,
    replica.FENCE: Way.MERGED,
    replica.REPLICA: Way.STAYS,
    replica.TAKEOVER: Way.STAYS,
    replica.DEMONSTRATION: Way.STAYS,
    inventory.USER: Way.ABSENT,
    inventory.REGION: Way.ABSENT,
    inventory.ZONE: Way.ABSENT,
    inventory.RACK: Way.ABSENT,
    inventory.TOR: Way.ABSENT,
    inventory.PDU: Way.ABSENT,
    inventory.MORE_TORS: Way.ABSENT,
    inventory.MORE_PDUS: Way.ABSENT,
    inventory.BLADE: Way.ABSENT,
    inventory.BLADE_FLOW: Way.STAYS,
    inventory.RACK_FLOW: Way.STAYS,
    inventory.WORKLOAD: Way.ABSENT,
    inventory.INSTANCE: Way.MACHINE,
    inventory.ACTUAL: Way.MACHINE,
    inventory.TARGET: Way.MACHINE,
    deployment.BLUEPRINT: Way.ABSENT,
    deployment.SLICE: Way.STAYS,
    deployment.ENDPOINT: Way.STAYS,
    deployment.BLUEPRINT_HISTORY: Way.ABSENT,
    deployment.SLICE_OWNER: Way.BLUEPRINT,
    deployment.DEPLOYMENT: Way.STAYS,
    deployment.RETRIES: Way.STAYS,
    deployment.SLICE_DECISION: Way.STAYS,
    deployment.ALERT: Way.STAYS,
    deployment.ARTIFACT: Way.STAYS,
    deployment.ROUTER: Way.STAYS,
    node.MEMBER: Way.MACHINE,
    node.ALIVE: Way.STAYS,
    node.COMMAND: Way.MACHINE,
    node.ARRIVAL: Way.STAYS,
    node.RETAINED: Way.STAYS,
    node.RETAINED_REQUEST: Way.STAYS,
    node.BRAKE: Way.STAYS,
    node.CLOCK: Way.STAYS,
    node.LAST_CLOCK: Way.STAYS,
    node.CLOCK_DISPUTE: Way.STAYS,
    node.CLUSTER: Way.MERGED,
    node.EPOCH: Way.STAYS,
    access.TOKEN: Way.ACCOUNT,
    access.TICKET: Way.STAYS,
    access.QUOTA: Way.ABSENT,
    access.ORG_QUOTA: Way.ABSENT,
    access.PROJECT: Way.ABSENT,
    access.AUDIT: Way.ABSENT,
    access.AUDIT_FILE: Way.ABSENT,
    access.ANSWERED: Way.STAYS,
    lab.LAB: Way.MACHINE,
    lab.LAB_WORKER: Way.STAYS,
    lab.LAB_CATALOGUE: Way.ABSENT,
    trace.TRACE: Way.ABSENT,
    trace.SILENT: Way.STAYS,
    transfer.FILLING: Way.STAYS,
    transfer.MIGRATION: Way.STAYS,
    transfer.MOVED: Way.STAYS,
}
BEFORE: tuple[Key[Any], ...] = (
    *(inventory.REGION, inventory.ZONE, inventory.RACK),
    *(inventory.TOR, inventory.PDU, inventory.MORE_TORS, inventory.MORE_PDUS, inventory.BLADE),
    *(inventory.USER, access.TOKEN, access.QUOTA, access.ORG_QUOTA, access.PROJECT),
    *(deployment.BLUEPRINT_HISTORY, deployment.BLUEPRINT),
    *(access.AUDIT, access.AUDIT_FILE, trace.TRACE),
    inventory.WORKLOAD,
)
"""Families that move before the machines, in this order, so that a machine finds its rack, quota and workload."""
AFTER: tuple[Key[Any], ...] = (inventory.INSTANCE, inventory.TARGET, inventory.ACTUAL)
"""Records of instances without a machine."""
