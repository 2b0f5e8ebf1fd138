"""The key families: which key holds which record. Labs have a page of their own, `lab`, with their names in Redis."""

from __future__ import annotations

from typing import Any

from hostler.keys import lab
from hostler.keys.key import Key, Union
from hostler.model.access import Answered, Audit, AuditFile, Project, Quota, Ticket, Token
from hostler.model.deployment import Blueprint, Endpoint, SliceRecord
from hostler.model.inventory import Blade, HardwareFlow, Pdu, Rack, Region, Tor, User, Zone
from hostler.model.migration import Migration, Moved
from hostler.model.node import (
    Arrival,
    BrakeRecord,
    ClockDispute,
    ClockReading,
    Cluster,
    Epoch,
    Heartbeat,
    NodeRecord,
    Retained,
    RetainedRequest,
    VmCommand,
)
from hostler.model.replica import LeaderRecord, ReplicaRecord, Takeover, Tally
from hostler.model.rollout import (
    Alert,
    ArtifactRecord,
    BlueprintRevision,
    Deployment,
    Retries,
    RouterRecord,
    SliceDecision,
    SliceOwner,
)
from hostler.model.trace import Silent, Trace
from hostler.model.vm import LockInfo, VirtualMachine, VmHandle
from hostler.model.workload import Actual, Target, Workload, WorkloadInstance

# Virtual machines: `/plasmavmc/…`, as the contract spells them.

VM = Key("/plasmavmc/vms/{org}/{project}/{vm}", VirtualMachine)
HANDLE = Key("/plasmavmc/handles/{org}/{project}/{vm}", VmHandle)
LOCK = Key("/plasmavmc/locks/{org}/{project}/{vm}", LockInfo)
"""Attached to a lease: 30 seconds, unless configured otherwise."""
NAME = Key("/hostler/v1/names/{org}/{project}/{name:name}", str)
"""The id of the machine with this name in its project. Written and deleted with the machine's own record."""


# Nodes. Their records and commands have separate prefixes: listing the nodes must not read every command of every node.

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


# Elections: `sysvvm/…`. The first number is the kind of record, the second the election key, from 1. Then running
# replicas, past leaderships, and the counter of the demonstration service.

LEADER = Key("sysvvm/1/{n:int}", LeaderRecord)
"""Expires unless it is renewed."""
FENCE = Key("sysvvm/2/{n:int}", int)
"""The highest fence that was ever assigned; only grows, never deleted."""
REPLICA = Key("/hostler/v1/replicas/{holder}", ReplicaRecord)
"""Attached to a lease of the replica."""
TAKEOVER = Key("/hostler/v1/takeovers/{fence:int}", Takeover)
"""The latest leaderships of key 1, by fence."""
DEMONSTRATION = Key("/hostler/v1/demonstration", Tally)


# Inventory, users and workloads: `/CloudChamber/V0.1/…`. Plural names list records; singular names
# hold what is inside one.

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


# Deployments: blueprints, slices, endpoints. The slice record is the command; there is no allocations key.
# Records that the contract does not name are under `/hostler/v1/`: history, owners, rollout progress, retries, reasons.

BLUEPRINT = Key("blueprints/{blueprint:name}", Blueprint)
SLICE = Key("slices/{node:name}/{artifact:artifact}", SliceRecord)
ENDPOINT = Key("endpoints/{artifact:artifact}/{method}:{instance:int}", Endpoint)
"""The keys of all versions of a slice begin with `endpoints_of(base)`."""

BLUEPRINT_HISTORY = Key("/hostler/v1/blueprint-history/{blueprint:name}/{number:int}", BlueprintRevision)
SLICE_OWNER = Key("/hostler/v1/slice-owners/{base:base}", SliceOwner)
DEPLOYMENT = Key("/hostler/v1/deployments/{base:base}", Deployment)
RETRIES = Key("/hostler/v1/slice-retries/{artifact:artifact}", Retries)
SLICE_DECISION = Key("/hostler/v1/slice-decisions/{artifact:artifact}", SliceDecision)
ALERT = Key("/hostler/v1/alerts/{base:base}/{alert}", Alert)
ARTIFACT = Key("/hostler/v1/artifacts/{artifact:artifact}", ArtifactRecord)
"""Published artifacts, wherever their files are. Written by the replica that received the file."""
ROUTER = Key("/hostler/v1/routers/{router}", RouterRecord)
"""Attached to the lease of the process."""


def endpoints_of(base: str) -> str:
    """Return the common prefix of the endpoint keys of all versions of `group:name`."""
    return f"{ENDPOINT.prefix()}{base}:"


# Access: tokens, quotas, the audit log, and answered requests.

TOKEN = Key("/hostler/v1/tokens/{digest}", Token)
TICKET = Key("/hostler/v1/tickets/{digest}", Ticket)
"""Attached to a lease."""
QUOTA = Key("/hostler/v1/quotas/{org}/{project}", Quota)
ORG_QUOTA = Key("/hostler/v1/org-quotas/{org}", Quota)
"""Quota of all projects of the org together."""
PROJECT = Key("/hostler/v1/projects/{org}/{project}", Project)
AUDIT = Key("/hostler/v1/audit/{day}/{write}", Audit)
"""`day` is `2026-11-15`; the entries of a day are in order of time."""
AUDIT_FILE = Key("/hostler/v1/audit-files/{day}/{place}", AuditFile)
"""`place` is the id of a folder with files of the audit log, one per day."""
ANSWERED = Key("/hostler/v1/requests/{user:name}/{life:int}/{request}", Answered)
"""Attached to a lease: a request can be repeated for a day. `life` is the revision in which the account was created."""


# Decisions, in order of time; and unreachable nodes, with the decision that says so.

TRACE = Key("/hostler/v1/traces/{day}/{decision}", Trace)
"""`day` is `2026-11-15`; the decisions of a day are in order of time."""
SILENT = Key("/hostler/v1/silences/{node:name}", Silent)


# Copies between stores: a key that marks an incomplete copy in the target, and those that remain afterwards.

FILLING: Key[dict[str, Any]] = Key("/hostler/v1/filling", dict)
"""What is being copied, and from where. There is at most one."""
MIGRATION = Key("/hostler/v1/migrations/{cluster}", Migration)
"""Machines that were moved here from a state file. `cluster` is the id that the control plane had in that file."""
MOVED = Key("/hostler/v1/moved", Moved)
"""Exists in a store whose records were moved or copied to another one."""


# All families in one list, for tools that inspect a store.

FAMILIES: dict[str, tuple[Key[Any], ...]] = {
    "virtual machines": (VM, HANDLE, LOCK, NAME),
    "replicas": (LEADER, FENCE, REPLICA, TAKEOVER, DEMONSTRATION),
    "inventory": (USER, REGION, ZONE, RACK, TOR, PDU, MORE_TORS, MORE_PDUS, BLADE_FLOW, RACK_FLOW, BLADE),
    "workloads": (WORKLOAD, INSTANCE, ACTUAL, TARGET),
    "deployments": (
        BLUEPRINT,
        SLICE,
        ENDPOINT,
        BLUEPRINT_HISTORY,
        SLICE_OWNER,
        DEPLOYMENT,
        RETRIES,
        SLICE_DECISION,
        ALERT,
        ARTIFACT,
        ROUTER,
    ),
    "nodes": (
        MEMBER,
        ALIVE,
        COMMAND,
        ARRIVAL,
        RETAINED,
        RETAINED_REQUEST,
        BRAKE,
        CLUSTER,
        EPOCH,
        CLOCK,
        LAST_CLOCK,
        CLOCK_DISPUTE,
    ),
    "access": (TOKEN, TICKET, QUOTA, ORG_QUOTA, PROJECT, AUDIT, AUDIT_FILE, ANSWERED),
    "labs": (lab.LAB, lab.LAB_WORKER, lab.LAB_CATALOGUE),
    "traces": (TRACE, SILENT),
    "transfers": (FILLING, MIGRATION, MOVED),
}
KEYS: tuple[Key[Any], ...] = tuple(key for keys in FAMILIES.values() for key in keys)


def find(key: str) -> tuple[Key[Any], dict[str, str]] | None:
    """Return the family that a key belongs to, and its parts; None: it is not a key of Hostler."""
    for family in KEYS:
        parts = family.match(key)
        if parts is not None:
            return family, parts
    return None
