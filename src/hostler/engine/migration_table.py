"""Table of key families for the migration of a state file into a cluster. It has one line for every family."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

from hostler.keys import families, lab

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
    families.VM: Way.MACHINE,
    families.HANDLE: Way.MACHINE,
    families.NAME: Way.MACHINE,
    families.LOCK: Way.STAYS,
    families.LEADER: Way.STAYS,
    families.FENCE: Way.MERGED,
    families.REPLICA: Way.STAYS,
    families.TAKEOVER: Way.STAYS,
    families.DEMONSTRATION: Way.STAYS,
    families.USER: Way.ABSENT,
    families.REGION: Way.ABSENT,
    families.ZONE: Way.ABSENT,
    families.RACK: Way.ABSENT,
    families.TOR: Way.ABSENT,
    families.PDU: Way.ABSENT,
    families.MORE_TORS: Way.ABSENT,
    families.MORE_PDUS: Way.ABSENT,
    families.BLADE: Way.ABSENT,
    families.BLADE_FLOW: Way.STAYS,
    families.RACK_FLOW: Way.STAYS,
    families.WORKLOAD: Way.ABSENT,
    families.INSTANCE: Way.MACHINE,
    families.ACTUAL: Way.MACHINE,
    families.TARGET: Way.MACHINE,
    families.BLUEPRINT: Way.ABSENT,
    families.SLICE: Way.STAYS,
    families.ENDPOINT: Way.STAYS,
    families.BLUEPRINT_HISTORY: Way.ABSENT,
    families.SLICE_OWNER: Way.BLUEPRINT,
    families.DEPLOYMENT: Way.STAYS,
    families.RETRIES: Way.STAYS,
    families.SLICE_DECISION: Way.STAYS,
    families.ALERT: Way.STAYS,
    families.ARTIFACT: Way.STAYS,
    families.ROUTER: Way.STAYS,
    families.MEMBER: Way.MACHINE,
    families.ALIVE: Way.STAYS,
    families.COMMAND: Way.MACHINE,
    families.ARRIVAL: Way.STAYS,
    families.RETAINED: Way.STAYS,
    families.RETAINED_REQUEST: Way.STAYS,
    families.BRAKE: Way.STAYS,
    families.CLOCK: Way.STAYS,
    families.LAST_CLOCK: Way.STAYS,
    families.CLOCK_DISPUTE: Way.STAYS,
    families.CLUSTER: Way.MERGED,
    families.EPOCH: Way.STAYS,
    families.TOKEN: Way.ACCOUNT,
    families.TICKET: Way.STAYS,
    families.QUOTA: Way.ABSENT,
    families.ORG_QUOTA: Way.ABSENT,
    families.PROJECT: Way.ABSENT,
    families.AUDIT: Way.ABSENT,
    families.AUDIT_FILE: Way.ABSENT,
    families.ANSWERED: Way.STAYS,
    lab.LAB: Way.MACHINE,
    lab.LAB_WORKER: Way.STAYS,
    lab.LAB_CATALOGUE: Way.ABSENT,
    families.TRACE: Way.ABSENT,
    families.SILENT: Way.STAYS,
    families.FILLING: Way.STAYS,
    families.MIGRATION: Way.STAYS,
    families.MOVED: Way.STAYS,
}
BEFORE: tuple[Key[Any], ...] = (
    *(families.REGION, families.ZONE, families.RACK),
    *(families.TOR, families.PDU, families.MORE_TORS, families.MORE_PDUS, families.BLADE),
    *(families.USER, families.TOKEN, families.QUOTA, families.ORG_QUOTA, families.PROJECT),
    *(families.BLUEPRINT_HISTORY, families.BLUEPRINT),
    *(families.AUDIT, families.AUDIT_FILE, families.TRACE),
    families.WORKLOAD,
)
"""Families that move before the machines, in this order, so that a machine finds its rack, quota and workload."""
AFTER: tuple[Key[Any], ...] = (families.INSTANCE, families.TARGET, families.ACTUAL)
"""Records of instances without a machine."""
