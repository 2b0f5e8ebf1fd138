"""HTTP API types, shared by the server, the client and the CLI.

Requests are decoded strictly (`decode(data, strict=True)`): an unknown field is an error. Responses may gain fields.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType, field

from hostler.model.access import Role, TokenKind
from hostler.model.inventory import Capacity, Rights
from hostler.model.node import DrainMode, Lifecycle, OffConfirmation
from hostler.model.reason import Reason
from hostler.model.record import SAYS, OpenEnum, Record
from hostler.model.retained_api import RetainedRef
from hostler.model.vm import (
    Access,
    Affinity,
    Cpus,
    DiskGib,
    MachineState,
    MemoryMib,
    Move,
    OnNodeLoss,
    Power,
    Readiness,
    Restore,
    Snapshot,
    SshKey,
    VmSpec,
)

MAX_NAME = 63
_NAME = r"^[^/\x00-\x1f\x7f]+$"
SAYS[_NAME] = "without '/' and control characters"
Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME, pattern=_NAME)]
Labels = Annotated[dict[str, str], Meta(max_length=64)]
Seconds = Annotated[float, Meta(gt=0, le=10 * 366 * 86400)]


class Phase(OpenEnum):
    """Phase of a VM, derived from its spec, its placement and the report of its agent."""

    PENDING = "pending"
    """No node is assigned yet; `reasons` says why."""
    PLACED = "placed"
    """A node is assigned and its agent has not reported yet."""
    CREATING = "creating"
    STARTING = "starting"
    RUNNING = "running"
    PAUSED = "paused"
    """The guest is paused until its node has disk space for its writes. It then resumes by itself."""
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"
    DELETING = "deleting"
    MOVING = "moving"
    """The VM is being migrated and is not running at this instant."""
    SILENT = "silent"
    """The node is unreachable; the VM may still run."""
    UNKNOWN = "unknown"
    """The agent is of a later release and reports a state that this release does not know; see `state`."""


# Virtual machines


class VmCreate(Record, frozen=True, kw_only=True):
    """A new virtual machine."""

    name: Name
    spec: VmSpec
    power: Power = Power.ON
    labels: Labels = field(default_factory=dict)
    on_node_loss: OnNodeLoss = OnNodeLoss.WAIT
    affinity: Annotated[tuple[Affinity, ...], Meta(max_length=16)] = ()
    node_labels: Labels = field(default_factory=dict)
    expires_in: Seconds | None = None


class VmUpdate(Record, frozen=True, kw_only=True):
    """Changes to a VM; omitted fields stay unchanged. New resources take effect at the next boot."""

    name: Name | UnsetType = UNSET
    cpus: Cpus | UnsetType = UNSET
    memory_mib: MemoryMib | UnsetType = UNSET
    disk_gib: DiskGib | UnsetType = UNSET
    """The disk may only grow."""
    user_data: str | UnsetType = UNSET
    ssh_keys: tuple[SshKey, ...] | UnsetType = UNSET
    labels: Labels | UnsetType = UNSET
    on_node_loss: OnNodeLoss | UnsetType = UNSET
    expires_in: Seconds | UnsetType | None = UNSET
    """Seconds from now; null: never."""


class SnapshotRequest(Record, frozen=True, kw_only=True):
    """Name of a snapshot."""

    name: Name


class MoveRequest(Record, frozen=True, kw_only=True):
    """Target of a move."""

    to: Name
    stop: bool = False
    """Allow a cold move if live migration is impossible: stop the VM, move it with its disk, and start it."""
    drop_snapshots: bool = False
    """Move even though snapshots stay behind and are lost. Without this, a VM with snapshots is not moved."""


class TicketRequest(Record, frozen=True, kw_only=True):
    """The kind of connection to open."""

    door: Literal["console", "ssh", "shell"]


class TicketView(Record, frozen=True, kw_only=True):
    """Valid once: for `GET {url}?ticket={ticket}` as a WebSocket, or, for the web UI, `{url}/{ticket}` in a browser."""

    concealed = frozenset(("ticket",))

    ticket: str
    url: str
    expires_at: float


class VmView(Record, frozen=True, kw_only=True):
    """A VM: desired and observed state."""

    id: str
    name: str
    org: str
    project: str
    spec: VmSpec
    power: Power
    phase: Phase
    node: str | None
    address: str
    detail: str
    """Why it is in this phase, where an explanation is needed."""
    labels: dict[str, str]
    on_node_loss: OnNodeLoss
    affinity: tuple[Affinity, ...]
    node_labels: dict[str, str]
    at_next_boot: tuple[str, ...]
    """Fields of the spec that take effect at the next boot."""
    snapshots: dict[str, Snapshot | None]
    """Null: requested but not taken yet."""
    restore: Restore | None
    move: Move | None
    """The last requested move; `moved` shows whether it has ended."""
    moved: int
    available: bool
    """Login is possible; or the image promises less, and that check has passed."""
    readiness: Readiness | None
    """Boot progress, while the VM runs."""
    access: Access | None
    disk_since: float = 0.0
    """When it got a new disk from its image because its node was lost or drained; 0: it has its original disk."""
    retained: tuple[RetainedRef, ...] = ()
    """Retained disks of this VM that can be restored, newest first."""
    warnings: tuple[str, ...] = ()
    """Requested features that it will not get, for example user data that its image does not run."""
    settled: bool
    """The observed state matches the desired state."""
    created_at: float
    expires_at: float | None
    generation: int
    revision: int
    """Revision of the spec, for If-Match."""


class VmPage(Record, frozen=True, kw_only=True):
    """A page of VMs. `after` is the cursor of the next page; null: this is the last page."""

    items: tuple[VmView, ...]
    after: str | None
    revision: int


class NodeVerdict(Record, frozen=True, kw_only=True):
    """The current placement result of one node for one VM."""

    node: str
    fits: bool
    score: float
    reasons: tuple[str, ...]


class Why(Record, frozen=True, kw_only=True):
    """Why a VM is on its node, or on none."""

    vm: str
    phase: Phase
    node: str | None
    decided: tuple[Reason, ...]
    """Reasons stored with the decision."""
    nodes: tuple[NodeVerdict, ...]
    """Current evaluation of the nodes, best first; at most 1,000."""


# Nodes


class Drain(Record, frozen=True, kw_only=True):
    """How to drain a node."""

    mode: DrainMode = DrainMode.MOVE
    drop_snapshots: bool = False
    """Move VMs even though their snapshots are lost. Without this, VMs with snapshots stay."""


class NodeView(Record, frozen=True, kw_only=True):
    """A node and its usage."""

    node: str
    lifecycle: Lifecycle
    alive: bool
    capacity: Capacity
    used: Capacity
    vms: int
    labels: dict[str, str]
    rack: str | None
    pdus: tuple[str, ...]
    tors: tuple[str, ...]
    address: str
    driver: str
    fences: bool
    moves: bool
    images: tuple[str, ...] | None
    facts: dict[str, str]
    refuses: str
    objection: str = ""
    """Why the inventory excludes it from placement; empty: it does not."""
    drain: DrainMode
    off: OffConfirmation | None
    awaited: bool = False
    """It has not registered since the store was copied or restored; its VMs wait for it."""
    registered_at: float
    revision: int


class BrakeView(Record, frozen=True, kw_only=True):
    """The brake on mass failure: while it holds, no node is switched off and no VM is taken from its node."""

    held: bool
    nodes: tuple[str, ...] = ()
    """Nodes that became unreachable together and are not back."""
    of: int = 0
    """Total number of nodes."""
    cause: str = ""
    """What these nodes have in common."""
    since: float | None = None
    released_by: str = ""
    """The account that released it; empty: not released."""
    released_at: float | None = None
    revision: int = 0


class NodePage(Record, frozen=True, kw_only=True):
    """A page of nodes, ordered by name."""

    items: tuple[NodeView, ...]
    after: str | None
    revision: int


# Accounts


class UserCreate(Record, frozen=True, kw_only=True):
    """A new account. Permissions are given either one by one or as a role."""

    concealed = frozenset(("password",))

    name: Name
    full_name: Annotated[str, Meta(max_length=200)] = ""
    password: Annotated[str, Meta(min_length=8, max_length=1024)] | None = None
    enabled: bool = True
    role: Role | None = None
    rights: Rights | None = None
    memberships: Annotated[tuple[str, ...], Meta(max_length=1000)] = ()


class UserUpdate(Record, frozen=True, kw_only=True):
    """Changes to an account; omitted fields stay unchanged.

    `old_password` is the current password. An account needs it to change its own password.
    """

    concealed = frozenset(("password", "old_password"))

    full_name: Annotated[str, Meta(max_length=200)] | UnsetType = UNSET
    password: Annotated[str, Meta(min_length=8, max_length=1024)] | UnsetType = UNSET
    old_password: Annotated[str, Meta(max_length=1024)] | UnsetType = UNSET
    enabled: bool | UnsetType = UNSET
    role: Role | UnsetType = UNSET
    rights: Rights | UnsetType = UNSET
    memberships: Annotated[tuple[str, ...], Meta(max_length=1000)] | UnsetType = UNSET


class UserView(Record, frozen=True, kw_only=True):
    """An account, without its password."""

    name: str
    full_name: str
    enabled: bool
    protected: bool
    has_password: bool
    rights: Rights
    memberships: tuple[str, ...]
    created_at: float
    revision: int


class UserPage(Record, frozen=True, kw_only=True):
    """A page of accounts, ordered by name."""

    items: tuple[UserView, ...]
    after: str | None
    revision: int


class Login(Record, frozen=True, kw_only=True):
    """Credentials for a new session."""

    concealed = frozenset(("password",))

    name: Annotated[str, Meta(max_length=255)]
    password: Annotated[str, Meta(max_length=1024)]


class TokenCreate(Record, frozen=True, kw_only=True):
    """A new API token."""

    name: Annotated[str, Meta(max_length=MAX_NAME)] = ""
    expires_in: Seconds | None = None


class TokenView(Record, frozen=True, kw_only=True):
    """A token without its secret."""

    id: str
    user: str
    purpose: TokenKind
    name: str
    created_at: float
    expires_at: float | None


class TokenIssued(Record, frozen=True, kw_only=True):
    """A new token. The token itself is shown only here."""

    concealed = frozenset(("token",))

    token: str
    id: str
    user: str
    expires_at: float | None


class TokenPage(Record, frozen=True, kw_only=True):
    """The tokens of an account."""

    items: tuple[TokenView, ...]


class QuotaSet(Record, frozen=True, kw_only=True):
    """Limits of a project; null: no limit."""

    vms: Annotated[int, Meta(ge=0)] | None = None
    cpus: Annotated[int, Meta(ge=0)] | None = None
    memory_mib: Annotated[int, Meta(ge=0)] | None = None
    disk_gib: Annotated[int, Meta(ge=0)] | None = None


class ProjectCreate(Record, frozen=True, kw_only=True):
    """A new project of an org."""

    name: str


class ProjectView(Record, frozen=True, kw_only=True):
    """A project that exists."""

    org: str
    name: str
    created_at: float | None = None
    """None: the project is older than project records, or it is the default project that every org has."""
    created_by: str = ""
    revision: int = 0
    """0: it has no record."""


class ProjectList(Record, frozen=True, kw_only=True):
    """The projects that the caller may see, ordered by org and name."""

    items: tuple[ProjectView, ...]


class QuotaView(Record, frozen=True, kw_only=True):
    """Limits and usage of a project or a whole org. Without a quota, `used` is counted on request."""

    org: str
    project: str
    """Empty: the limits apply to all projects of the org together."""
    limits: QuotaSet
    inherited: QuotaSet = QuotaSet()
    """For a project: the limits of its org, which also apply."""
    used_vms: int
    used: Capacity
    revision: int
    """0: there is no quota."""


# The control plane


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


class AuditView(Record, frozen=True, kw_only=True):
    """One entry of the audit log."""

    who: str
    verb: str
    subject: str
    before: int
    """The revision that the write was based on; 0: the key did not exist."""
    after: int
    """The revision of the write; 0: not known, because the store was copied or restored since. Then both numbers refer
    to the previous store."""
    at: float
    source: str
    name: str = ""
    """Display name of the subject, where its key does not contain it; empty: not known, or no longer known."""
    count: int = 1
    """Number of requests that this entry counts: refused requests (`refused.…`) are counted per minute."""


class AuditElsewhere(Record, frozen=True, kw_only=True):
    """Files of the audit log that this server does not have. The server on that host has them."""

    host: str
    folder: str
    first: str
    """The first day, `2026-11-15`."""
    last: str
    lines: int


class AuditPage(Record, frozen=True, kw_only=True):
    """A page of the audit log, ordered by time. A page may be short or empty without being the last."""

    items: tuple[AuditView, ...]
    after: str | None
    elsewhere: tuple[AuditElsewhere, ...] = ()
    """Matching entries may be on these other hosts. Empty: the answer is complete."""


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


# Browsers


class SignIn(Record, frozen=True, kw_only=True):
    """Sign-in to the web UI with exactly one of: name and password, a token, or a ticket of `hostler web`."""

    concealed = frozenset(("password", "token", "ticket"))

    name: Annotated[str, Meta(max_length=255)] | None = None
    password: Annotated[str, Meta(max_length=1024)] | None = None
    token: Annotated[str, Meta(max_length=512)] | None = None
    ticket: Annotated[str, Meta(max_length=512)] | None = None


class BrowserSession(Record, frozen=True, kw_only=True):
    """A session whose token is stored only in a cookie."""

    concealed = frozenset(("csrf",))

    user: UserView
    csrf: str
    """Value of the header `Hostler-Csrf`, required for all requests except reads."""
    expires_at: float


# Long lists, and choices for creating a VM


class VmRow(Record, frozen=True, kw_only=True):
    """Summary of a VM."""

    id: str
    name: str
    org: str
    project: str
    phase: Phase
    state: MachineState | None
    """The last state reported by its agent, even if the node is now unreachable; null: none."""
    node: str | None
    available: bool
    detail: str
    """Truncated."""
    cpus: int
    memory_mib: int
    labels: dict[str, str]
    created_at: float
    expires_at: float | None


class VmRowPage(Record, frozen=True, kw_only=True):
    """A page of VM summaries; paging as in `VmPage`."""

    items: tuple[VmRow, ...]
    after: str | None
    revision: int


class VmLog(Record, frozen=True, kw_only=True):
    """Recent output of a VM's serial port. The guest controls it, so it may contain control characters."""

    text: str


class ImageView(Record, frozen=True, kw_only=True):
    """An image that VMs can be created from."""

    name: str
    nodes: int
    """Number of nodes on duty that have it."""
    default: bool
    """Whether it is the default image of at least one of these nodes."""
    memory_mib: int
    """Minimum memory needed to boot; 0: not known."""
    disk_gib: int
    """Disk size of the image; a VM that requests less gets this size. 0: not known."""
    user: str
    """Login user, unless the VM specifies another; empty: not known."""
    seeding: str = ""
    """`cloud-init`: it runs any user data; `firmware`: only a script that begins with `#!`; `none`: none. Empty: not
    known, or not the same on all nodes."""


class ImageList(Record, frozen=True, kw_only=True):
    """All images, ordered by name."""

    items: tuple[ImageView, ...]
    any: bool
    """Whether a node on duty accepts any image name."""


class TerminalKey(Record, frozen=True, kw_only=True):
    """A public SSH key, as in `ssh_keys` of a VM; empty: the server has none and opens no shells."""

    key: str
