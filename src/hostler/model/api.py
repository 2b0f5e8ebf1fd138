"""What the HTTP API takes and gives: shared by the server, the client and the command line.

What comes in is strict (`decode(data, strict=True)`): an unknown field is an error. What goes out may gain fields.
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
    """Where a virtual machine is on its way, in one word: made from wish, placement and what its agent sees."""

    PENDING = "pending"
    """No node yet; `reasons` say why."""
    PLACED = "placed"
    """A node was told, and has not answered yet."""
    CREATING = "creating"
    STARTING = "starting"
    RUNNING = "running"
    PAUSED = "paused"
    """Its guest is paused until its node has room for what it writes; then it goes on by itself."""
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"
    DELETING = "deleting"
    MOVING = "moving"
    """It is handed from one node to another, and does not run at this instant."""
    SILENT = "silent"
    """Its node gives no sign of life; the machine may still run."""
    UNKNOWN = "unknown"
    """Its agent, of a later release, tells a state that this one does not know; `state` has it."""


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
    """Changes of a virtual machine; what is left out stays. The shape takes effect at the next boot."""

    name: Name | UnsetType = UNSET
    cpus: Cpus | UnsetType = UNSET
    memory_mib: MemoryMib | UnsetType = UNSET
    disk_gib: DiskGib | UnsetType = UNSET
    """It may only grow."""
    user_data: str | UnsetType = UNSET
    ssh_keys: tuple[SshKey, ...] | UnsetType = UNSET
    labels: Labels | UnsetType = UNSET
    on_node_loss: OnNodeLoss | UnsetType = UNSET
    expires_in: Seconds | UnsetType | None = UNSET
    """From now; null: never."""


class SnapshotRequest(Record, frozen=True, kw_only=True):
    """Which snapshot."""

    name: Name


class MoveRequest(Record, frozen=True, kw_only=True):
    """Where to."""

    to: Name
    stop: bool = False
    """Where it cannot be moved while it runs it may be stopped, moved with its disk, and started."""
    drop_snapshots: bool = False
    """Its snapshots stay behind and are lost; without this, a machine that has some is not moved."""


class TicketRequest(Record, frozen=True, kw_only=True):
    """What to open."""

    door: Literal["console", "ssh", "shell"]


class TicketView(Record, frozen=True, kw_only=True):
    """Good once, for `GET {url}?ticket={ticket}` as a WebSocket; one for the page for `{url}/{ticket}` in a browser."""

    concealed = frozenset(("ticket",))

    ticket: str
    url: str
    expires_at: float


class VmView(Record, frozen=True, kw_only=True):
    """A virtual machine: what is wished for, and what is seen of it."""

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
    """Why it is in this phase, where that needs saying."""
    labels: dict[str, str]
    on_node_loss: OnNodeLoss
    affinity: tuple[Affinity, ...]
    node_labels: dict[str, str]
    at_next_boot: tuple[str, ...]
    """Fields of the spec that take effect at the next boot."""
    snapshots: dict[str, Snapshot | None]
    """Null: asked for, not taken yet."""
    restore: Restore | None
    move: Move | None
    """The last one asked for; `moved` tells whether it is over."""
    moved: int
    available: bool
    """Its user can log in; or its image promises less, and that was kept."""
    readiness: Readiness | None
    """How far it is on its way there, while it runs."""
    access: Access | None
    disk_since: float = 0.0
    """Since when it has a new disk from its image, because its node was lost or drained; 0: it has its own."""
    retained: tuple[RetainedRef, ...] = ()
    """Disks of it that are out of service and can be restored, the newest first."""
    warnings: tuple[str, ...] = ()
    """What it asks for and will not get, such as user data that its image does not run."""
    settled: bool
    """What is seen is what is wished for."""
    created_at: float
    expires_at: float | None
    generation: int
    revision: int
    """Of the wish, for If-Match."""


class VmPage(Record, frozen=True, kw_only=True):
    """`after` of the last page's end gives the next; null: this is the last."""

    items: tuple[VmView, ...]
    after: str | None
    revision: int


class NodeVerdict(Record, frozen=True, kw_only=True):
    """What placement thinks of one node for one machine, now."""

    node: str
    fits: bool
    score: float
    reasons: tuple[str, ...]


class Why(Record, frozen=True, kw_only=True):
    """Why a machine is where it is, or why it is nowhere."""

    vm: str
    phase: Phase
    node: str | None
    decided: tuple[Reason, ...]
    """As it was decided, kept with the decision."""
    nodes: tuple[NodeVerdict, ...]
    """As it would be judged now, node by node, best first; at most 1,000."""


# Nodes


class Drain(Record, frozen=True, kw_only=True):
    """How to empty a node."""

    mode: DrainMode = DrainMode.MOVE
    drop_snapshots: bool = False
    """Move machines although their snapshots are lost by that; without this, machines that have some stay."""


class NodeView(Record, frozen=True, kw_only=True):
    """A node, and how full it is."""

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
    """Why the inventory keeps it from taking machines; empty: it does not."""
    drain: DrainMode
    off: OffConfirmation | None
    awaited: bool = False
    """It has not registered since the store was copied or restored; its machines wait for it."""
    registered_at: float
    revision: int


class BrakeView(Record, frozen=True, kw_only=True):
    """The brake on mass failure: while it holds, no node is switched off and no machine is taken from one."""

    held: bool
    nodes: tuple[str, ...] = ()
    """Those that became unreachable together, and are not back."""
    of: int = 0
    """How many nodes there are."""
    cause: str = ""
    """What they have in common."""
    since: float | None = None
    released_by: str = ""
    """The account that released it; empty: none did."""
    released_at: float | None = None
    revision: int = 0


class NodePage(Record, frozen=True, kw_only=True):
    """Nodes in order of their names."""

    items: tuple[NodeView, ...]
    after: str | None
    revision: int


# People


class UserCreate(Record, frozen=True, kw_only=True):
    """A new account. Rights are given one by one or as a role, not both."""

    concealed = frozenset(("password",))

    name: Name
    full_name: Annotated[str, Meta(max_length=200)] = ""
    password: Annotated[str, Meta(min_length=8, max_length=1024)] | None = None
    enabled: bool = True
    role: Role | None = None
    rights: Rights | None = None
    memberships: Annotated[tuple[str, ...], Meta(max_length=1000)] = ()


class UserUpdate(Record, frozen=True, kw_only=True):
    """Changes of an account; what is left out stays.

    `old_password`: the present one, which every account needs to change its own.
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
    """Accounts in order of their names."""

    items: tuple[UserView, ...]
    after: str | None
    revision: int


class Login(Record, frozen=True, kw_only=True):
    """Who wants a session."""

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
    """The only time that the token itself is told."""

    concealed = frozenset(("token",))

    token: str
    id: str
    user: str
    expires_at: float | None


class TokenPage(Record, frozen=True, kw_only=True):
    """The tokens of an account."""

    items: tuple[TokenView, ...]


class QuotaSet(Record, frozen=True, kw_only=True):
    """How much a project may have; null: no limit."""

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
    """None: it is older than the record of it, or every org has it."""
    created_by: str = ""
    revision: int = 0
    """0: there is no record of it."""


class ProjectList(Record, frozen=True, kw_only=True):
    """The projects that the caller sees, by org and name."""

    items: tuple[ProjectView, ...]


class QuotaView(Record, frozen=True, kw_only=True):
    """Limits and use of a project, or of a whole org. Without a quota `used` is counted when asked."""

    org: str
    project: str
    """Empty: the limits are those of the org, for all of its projects together."""
    limits: QuotaSet
    inherited: QuotaSet = QuotaSet()
    """Of a project: the limits of its org, which bound it as well."""
    used_vms: int
    used: Capacity
    revision: int
    """0: there is no quota."""


# The control plane


class LeaderView(Record, frozen=True, kw_only=True):
    """Who leads; address null: nobody."""

    address: str | None
    holder: str | None
    fence: int
    ready: bool
    """Whether this replica's own view of the store is up to date."""


class ReplicaView(Record, frozen=True, kw_only=True):
    """A replica that lives."""

    address: str
    holder: str
    leads: bool
    started_at: float


class ReplicaPage(Record, frozen=True, kw_only=True):
    """All that live."""

    items: tuple[ReplicaView, ...]


class AuditView(Record, frozen=True, kw_only=True):
    """One write."""

    who: str
    verb: str
    subject: str
    before: int
    """The revision that it was made from; 0: there was nothing."""
    after: int
    """The revision that it led to; 0: not known, for the store was copied or restored since, and both numbers are those
    of the store before."""
    at: float
    source: str
    name: str = ""
    """What people call the subject, where its key does not say it; empty: it is not known, or no more."""
    count: int = 1
    """How many the line stands for: refused requests (`refused.…`) are counted by the minute."""


class AuditElsewhere(Record, frozen=True, kw_only=True):
    """Files of the audit log that this server does not have: ask the server on that machine."""

    host: str
    folder: str
    first: str
    """The first day, `2026-11-15`."""
    last: str
    lines: int


class AuditPage(Record, frozen=True, kw_only=True):
    """Writes, in order of time. A page may be short, or empty, and not be the last."""

    items: tuple[AuditView, ...]
    after: str | None
    elsewhere: tuple[AuditElsewhere, ...] = ()
    """Lines that may belong to the answer and are on other machines. Empty: the answer is complete."""


class EventView(Record, frozen=True, kw_only=True):
    """The data of one Server-Sent Event. Its id, `revision.index`, is what Last-Event-ID takes."""

    type: str
    """`put` or `delete`."""
    of: str = field(name="kind")
    """`vm`, `handle`, `lab`, `node`, `alive`, `leader`."""
    subject: str
    """`org/project/id` of a machine, the name of a node."""
    revision: int
    record: dict[str, Any] | None
    """As it stands in the store; null if it was deleted."""


class Problem(Record, frozen=True, kw_only=True):
    """RFC 9457. `next`: what to do."""

    type: str
    title: str
    status: int
    detail: str
    next: str
    instance: str = ""


# Browsers


class SignIn(Record, frozen=True, kw_only=True):
    """Who opens the page: a name and a password, or a token, or a ticket of `hostler web`; one of the three."""

    concealed = frozenset(("password", "token", "ticket"))

    name: Annotated[str, Meta(max_length=255)] | None = None
    password: Annotated[str, Meta(max_length=1024)] | None = None
    token: Annotated[str, Meta(max_length=512)] | None = None
    ticket: Annotated[str, Meta(max_length=512)] | None = None


class BrowserSession(Record, frozen=True, kw_only=True):
    """A session whose token is in a cookie, and nowhere else."""

    concealed = frozenset(("csrf",))

    user: UserView
    csrf: str
    """For the header `Hostler-Csrf` of everything but reads."""
    expires_at: float


# For long lists, and for who creates a machine


class VmRow(Record, frozen=True, kw_only=True):
    """A machine in brief."""

    id: str
    name: str
    org: str
    project: str
    phase: Phase
    state: MachineState | None
    """What its agent saw last, whether or not its node still gives signs of life; null: nothing."""
    node: str | None
    available: bool
    detail: str
    """Its beginning."""
    cpus: int
    memory_mib: int
    labels: dict[str, str]
    created_at: float
    expires_at: float | None


class VmRowPage(Record, frozen=True, kw_only=True):
    """As `VmPage`."""

    items: tuple[VmRow, ...]
    after: str | None
    revision: int


class VmLog(Record, frozen=True, kw_only=True):
    """What came out of a machine's serial port last. It is whatever the guest likes, control characters included."""

    text: str


class ImageView(Record, frozen=True, kw_only=True):
    """What machines can be made of."""

    name: str
    nodes: int
    """That have it, and are on duty."""
    default: bool
    """Whether machines that name none are made of it, on one of them at least."""
    memory_mib: int
    """The least that it boots with; 0: not known."""
    disk_gib: int
    """Of its disk: a machine that asks for less has that; 0: not known."""
    user: str
    """Who logs in, unless the machine says otherwise; empty: not known."""
    seeding: str = ""
    """`cloud-init`: it runs any user data; `firmware`: only a script that begins with `#!`; `none`: none. Empty: not
    known, or not the same everywhere."""


class ImageList(Record, frozen=True, kw_only=True):
    """All, in order of their names."""

    items: tuple[ImageView, ...]
    any: bool
    """Whether a node on duty takes every name."""


class TerminalKey(Record, frozen=True, kw_only=True):
    """A public SSH key, as `ssh_keys` of a machine takes it; empty: the server has none, and opens no shells."""

    key: str
