"""HTTP API types for the control plane: leader, replicas, overview, events and decisions.

The rules are those of `hostler.model.vm_api`.
"""

from __future__ import annotations

from typing import Any

from msgspec import field

from hostler.model.blueprint_api import BlueprintPhase
from hostler.model.record import OpenEnum, Record
from hostler.model.replica import Farewell
from hostler.model.trace import Reason, Touch


class LeaderView(Record, frozen=True, kw_only=True):
    """The current leader; address null: there is none."""

    address: str | None
    holder: str | None
    fence: int
    ready: bool
    """Whether this replica's cache of the store is up to date."""


class ReplicaView(Record, frozen=True, kw_only=True):
    """A running replica."""

    address: str
    holder: str
    leads: bool
    started_at: float


class ReplicaPage(Record, frozen=True, kw_only=True):
    """All running replicas."""

    items: tuple[ReplicaView, ...]


class EventView(Record, frozen=True, kw_only=True):
    """The data of one Server-Sent Event. Its id, `revision.index`, is what Last-Event-ID takes."""

    type: str
    """`put` or `delete`."""
    of: str = field(name="kind")
    """`vm`, `handle`, `lab`, `node`, `alive`, `leader`."""
    subject: str
    """`org/project/id` of a VM, the name of a node."""
    revision: int
    record: dict[str, Any] | None
    """As stored; null if it was deleted."""


class Problem(Record, frozen=True, kw_only=True):
    """A problem document (RFC 9457). `next` says what to do."""

    type: str
    title: str
    status: int
    detail: str
    next: str
    instance: str = ""


# Overview


class LeaderStatus(Record, frozen=True, kw_only=True):
    """The current leader."""

    address: str
    holder: str
    fence: int
    since: float | None = None
    """When it began to lead, by its own clock; null: not reported."""
    ends_at: float | None = None
    """When its leadership ends unless renewed, by the clock of the answering server; null: the store cannot tell."""
    ttl: float | None = None
    """Seconds that each renewal lasts; null: not reported."""


class ReplicaStatus(Record, frozen=True, kw_only=True):
    """A running replica."""

    address: str
    holder: str
    leads: bool
    key: int | None = None
    """The election key that it holds; null: it is a standby."""
    started_at: float


class TakeoverView(Record, frozen=True, kw_only=True):
    """The start of a leadership."""

    fence: int
    holder: str
    address: str
    at: float
    previous_holder: str
    """The previous leader; empty: not known."""
    previous_address: str
    previous: Farewell
    """How the previous leadership ended: `released`, `silent`, or `none` if no previous leader is known."""
    released_at: float | None
    """When this leadership was released; null: it continues, or it ended without release."""


class ControlPlaneStatus(Record, frozen=True, kw_only=True):
    """The current leader, the replicas, and recent takeovers."""

    leader: LeaderStatus | None
    """Null: there is no leader."""
    replicas: tuple[ReplicaStatus, ...]
    takeovers: tuple[TakeoverView, ...]
    """The most recent takeovers, newest first."""


class StoreStatus(Record, frozen=True, kw_only=True):
    """Condition of the store."""

    answers: bool
    silent_for: float | None = None
    """Seconds since it last answered, while it does not answer; null: it answers, or it never did."""
    revision: int | None = None
    """Null: it was never read."""
    engine: str = ""
    """Empty: it was never read."""
    version: str = ""
    size_bytes: int | None = None
    quota_bytes: int | None = None
    """The size at which it refuses further writes; null: it has no limit of its own, or was never read."""
    writable: bool = True
    """Whether it accepted the last attempted write."""
    problem: str = ""
    """Why it refuses writes, and what to do; empty while it accepts them."""


class Example(Record, frozen=True, kw_only=True):
    """One object that needs attention."""

    object: str
    """In the form that `GET /v1/why` takes: `vm/acme/web/ID`, `node/r1-b2`."""
    name: str
    """Display name."""
    detail: str = ""
    """Why, if known."""
    since: float | None = None
    """Null: not known."""


class Concern(Record, frozen=True, kw_only=True):
    """A condition that needs attention."""

    what: str
    """`brake-held`, `store-full`, `store-filling`, `store-refuses`, `vms-failed`, `vms-silent`, `vms-paused`,
    `vms-waiting`, `nodes-silent`, `blueprints-failed`, `blueprints-waiting`, `labs-refused`
    or `clock-in-doubt`."""
    count: int
    examples: tuple[Example, ...] = ()
    """The first few."""


class BlueprintAtWork(Record, frozen=True, kw_only=True):
    """A blueprint whose desired state is not reached."""

    name: str
    phase: BlueprintPhase
    detail: str
    ready: int
    instances: int


class Overview(Record, frozen=True, kw_only=True):
    """Summary of the whole cluster. VMs and labs include only those that the caller may see."""

    at: float
    """By the clock of the answering server."""
    ready: bool
    """Whether this replica's cache of the store is up to date."""
    control: ControlPlaneStatus | None
    """Null: not known, because the store does not answer."""
    store: StoreStatus
    nodes: dict[str, int]
    """By state: `joining`, `on_duty`, `draining`, `decommissioned`, `shutting_down`. Unreachable nodes count as
    `silent`, or as `off` if they are confirmed off."""
    vms: dict[str, int]
    """By phase."""
    labs: dict[str, int]
    """By phase; `waiting` is the waiting list."""
    blueprints: dict[str, int]
    """By phase."""
    deployments: tuple[BlueprintAtWork, ...] = ()
    """The first few deployments that are in progress or stuck."""
    attention: tuple[Concern, ...] = field(default=())
    """Conditions that need attention, most severe first."""
    simulation: bool = False
    """Whether this is a simulation. Then its time is virtual, and its replicas are in `GET /v1/sim`."""


# Decisions


class Sort(OpenEnum):
    """Origin of an entry."""

    DECISION = "decision"
    """A decision of one of the leader's controllers."""
    WISH = "wish"
    """A user's write, taken from the audit log."""
    REPORT = "report"
    """A write of an agent or lab worker. These leave no entry, so this one is derived from the written record."""


class TraceView(Record, frozen=True, kw_only=True):
    """One entry: a decision, a user's write or a report."""

    id: str
    parent: str = ""
    """Id of the entry that caused this one; empty: unknown."""
    open: bool = False
    """The cause is no longer stored, or the caller may not see it."""
    sort: Sort
    revision: int
    """Store revision of the change."""
    at: float | None = None
    """None: no longer known."""
    actor: str
    """The controller, user or node that acted."""
    what: str
    """`place`, `take`, `silent`, `vm.create`, …"""
    subject: str
    """The affected object, for display: `vm acme/web/www`, `node r1-b2`."""
    why: str = ""
    reasons: tuple[Reason, ...] = ()
    touches: tuple[Touch, ...] = ()
    fence: int = 0
    """Fence of the leader that decided; 0: not a decision of a leader."""


class TracePage(Record, frozen=True, kw_only=True):
    """A page of entries, newest first. A page may be short or empty without being the last."""

    items: tuple[TraceView, ...]
    before: tuple[TraceView, ...] = ()
    """Causes of these entries that are not on this page, newest first."""
    unreadable: int = 0
    """Number of records skipped because they cannot be decoded."""
    after: str | None = None


class WhyView(Record, frozen=True, kw_only=True):
    """The chain of causes behind the current state of an object."""

    object: str
    """`vm acme/web/www`, `node r1-b2`."""
    state: str
    """Current state in words: `runs on r1-b2`."""
    since: float | None = None
    steps: tuple[TraceView, ...] = ()
    """The chain of causes, newest first. The last one is the root cause, if it is still stored."""
    cut: bool = False
    """The chain is longer than the requested limit."""
    border: str = ""
    """States that the store was copied or restored since the object was last written; empty: it was not."""
    filed: str = ""
    """If entries are missing because older audit log entries are in files: which files, and how to read them. Empty
    otherwise, and for callers who may not read the audit log."""
