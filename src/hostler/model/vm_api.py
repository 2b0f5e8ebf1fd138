"""HTTP API types for VMs, their images and retained machines, shared by the server, the client and the CLI.

Requests are decoded strictly (`decode(data, strict=True)`): an unknown field is an error. Responses may gain fields.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType, field

from hostler.model.record import SAYS, OpenEnum, Record
from hostler.model.trace import Reason
from hostler.model.vm import (
    Access,
    Affinity,
    Cpus,
    DiskGib,
    Id,
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


class VmPhase(OpenEnum):
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


# Retained machines


class RetainedRef(Record, frozen=True, kw_only=True):
    """A reference to a retained machine by node and name."""

    node: str
    name: str
    retained_at: float


class RetainedView(Record, frozen=True, kw_only=True):
    """A machine that is out of service and is retained with its disk and snapshots."""

    node: str
    name: str
    org: str
    project: str
    vm: str
    """The id of the VM that it belonged to."""
    vm_name: str
    cpus: int
    memory_mib: int
    disk_gib: int
    image: str
    snapshots: tuple[str, ...]
    disk_bytes: int
    """Disk space used on the node; 0: not known."""
    retained_at: float
    until: float
    """The machine may be deleted from this time on, unless `kept_for` names a VM."""
    kept_for: str
    """The VM that has no newer disk, or that is being restored from this one; empty: none."""
    deleting: bool
    """Deletion was requested and waits for the node."""
    alive: bool
    """Whether the node is reachable."""
    lost: str = ""
    """Why no node can restore it or delete its disk: its node was removed or uses other storage. Empty: a node can."""
    revision: int


class RetainedPage(Record, frozen=True, kw_only=True):
    """All retained machines that the caller may see, newest first."""

    items: tuple[RetainedView, ...]
    after: str | None = None
    revision: int


class RetainedRestore(Record, frozen=True, kw_only=True):
    """Options for restoring a retained machine."""

    name: Id | None = None
    """Create a new VM with this name; null: restore the original VM, if it has no newer disk."""


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
    phase: VmPhase
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
    phase: VmPhase
    node: str | None
    decided: tuple[Reason, ...]
    """Reasons stored with the decision."""
    nodes: tuple[NodeVerdict, ...]
    """Current evaluation of the nodes, best first; at most 1,000."""


# Long lists, and choices for creating a VM


class VmRow(Record, frozen=True, kw_only=True):
    """Summary of a VM."""

    id: str
    name: str
    org: str
    project: str
    phase: VmPhase
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
