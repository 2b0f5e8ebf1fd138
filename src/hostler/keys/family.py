"""All key families in one list, for tools that inspect a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hostler.keys import access, deployment, inventory, lab, node, replica, trace, transfer, vm

if TYPE_CHECKING:
    from hostler.keys.key import Key

FAMILIES: dict[str, tuple[Key[Any], ...]] = {
    "virtual machines": (vm.VM, vm.HANDLE, vm.LOCK, vm.NAME),
    "replicas": (replica.LEADER, replica.FENCE, replica.REPLICA, replica.TAKEOVER, replica.DEMONSTRATION),
    "inventory": (
        inventory.USER,
        inventory.REGION,
        inventory.ZONE,
        inventory.RACK,
        inventory.TOR,
        inventory.PDU,
        inventory.MORE_TORS,
        inventory.MORE_PDUS,
        inventory.BLADE_FLOW,
        inventory.RACK_FLOW,
        inventory.BLADE,
    ),
    "workloads": (inventory.WORKLOAD, inventory.INSTANCE, inventory.ACTUAL, inventory.TARGET),
    "deployments": (
        deployment.BLUEPRINT,
        deployment.SLICE,
        deployment.ENDPOINT,
        deployment.BLUEPRINT_HISTORY,
        deployment.SLICE_OWNER,
        deployment.DEPLOYMENT,
        deployment.RETRIES,
        deployment.SLICE_DECISION,
        deployment.ALERT,
        deployment.ARTIFACT,
        deployment.ROUTER,
    ),
    "nodes": (
        node.MEMBER,
        node.ALIVE,
        node.COMMAND,
        node.ARRIVAL,
        node.RETAINED,
        node.RETAINED_REQUEST,
        node.BRAKE,
        node.CLUSTER,
        node.EPOCH,
        node.CLOCK,
        node.LAST_CLOCK,
        node.CLOCK_DISPUTE,
    ),
    "access": (
        access.TOKEN,
        access.TICKET,
        access.QUOTA,
        access.ORG_QUOTA,
        access.PROJECT,
        access.AUDIT,
        access.AUDIT_FILE,
        access.ANSWERED,
    ),
    "labs": (lab.LAB, lab.LAB_WORKER, lab.LAB_CATALOGUE),
    "traces": (trace.TRACE, trace.SILENT),
    "transfers": (transfer.FILLING, transfer.MIGRATION, transfer.MOVED),
}
KEYS: tuple[Key[Any], ...] = tuple(key for keys in FAMILIES.values() for key in keys)


def find(key: str) -> tuple[Key[Any], dict[str, str]] | None:
    """Return the family that a key belongs to, and its parts; None: it is not a key of Hostler."""
    for family in KEYS:
        parts = family.match(key)
        if parts is not None:
            return family, parts
    return None
