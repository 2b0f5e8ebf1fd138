"""Nodes: what an agent reports about its node and the machines that it retains, and the commands of the leader."""

from __future__ import annotations

from msgspec import field

from hostler.errors import Invalid
from hostler.model.inventory import Capacity
from hostler.model.record import OpenEnum, Record
from hostler.model.trace import Reason
from hostler.model.vm import Id, Power, RestartPolicy, Restore, VmSpec


class Lifecycle(OpenEnum):
    """Lifecycle of a node."""

    JOINING = "JOINING"
    ON_DUTY = "ON_DUTY"
    DRAINING = "DRAINING"
    DECOMMISSIONED = "DECOMMISSIONED"
    SHUTTING_DOWN = "SHUTTING_DOWN"


class DrainMode(OpenEnum):
    """What happens to the VMs of a node that is drained."""

    MOVE = "move"
    """VMs are moved to other nodes, one at a time: by live migration where both nodes support it (`moves`), otherwise
    by destroying the VM and creating it elsewhere from its image."""
    STOP = "stop"
    """VMs are stopped, one at a time, and stay on the node."""


HOST, HOST_SHARE = "host", "share"
"""Keys of `NodeRecord.facts`: the host of the node, and a text that says which share of the host it offers."""
POWER = "hostler"
"""Value of `OffConfirmation.by` if the leader had the node switched off."""


class OffConfirmation(Record, frozen=True, kw_only=True):
    """Confirmation that an unreachable node is off and runs nothing. A node that comes back deletes it."""

    by: str
    """An operator's account, or `hostler` if a power switch confirmed it."""
    at: float

    @property
    def by_power(self) -> bool:
        """Whether a power switch confirmed it, not an operator."""
        return self.by == POWER


class ImageNeeds(Record, frozen=True, kw_only=True):
    """Requirements of an image, shown when a VM is created from it."""

    memory_mib: int = 0
    """Minimum memory needed to boot."""
    disk_gib: int = 0
    """Disk size of the image; a VM that requests less gets this size."""
    user: str = ""
    """Login user, unless the VM specifies another."""
    default: bool = False
    """Whether this is the node's default image."""
    seeding: str = ""
    """How VMs receive their identity, and which user data they run: `cloud-init` any, `firmware` scripts, `none` none
    (`model.image.Seeding`); empty: not known."""


class NodeRecord(Record, frozen=True, kw_only=True):
    """`/hostler/v1/members/{node}`: a registered node. The record stays while the node is unreachable."""

    node: Id
    lifecycle: Lifecycle
    capacity: Capacity
    labels: dict[str, str] = field(default_factory=dict)
    rack: str | None = None
    pdus: tuple[str, ...] = ()
    tors: tuple[str, ...] = ()
    address: str = ""
    store: str = ""
    """The URL of the store as the agent uses it, without secrets; empty: not known."""
    driver: str = ""
    place: str = ""
    """The storage of its machines (`Machines.place`); empty: not known. An agent with other storage does not have
    them."""
    fences: bool = False
    """The driver can stop machines when the agent cannot, so `on_node_loss=fence` is possible."""
    fencing_time: float = 0.0
    """Seconds after the last heartbeat by which fenced VMs have stopped."""
    moves: bool = False
    """VMs can be live-migrated to another node with the same driver."""
    images: tuple[str, ...] | None = None
    """Available images; None: any."""
    image_needs: dict[str, ImageNeeds] = field(default_factory=dict)
    """Requirements of those images for which they are known."""
    facts: dict[str, str] = field(default_factory=dict)
    """Properties found by the driver, for display: `acceleration`, …"""
    refuses: str = ""
    """Why the node currently accepts no further VMs; empty: it accepts them."""
    drain: DrainMode = DrainMode.MOVE
    drop_snapshots: bool = False
    """While the node is drained by moving: move VMs even though their snapshots are lost."""
    off: OffConfirmation | None = None
    awaited: bool = False
    """The store was copied, restored or put back into service, and since then the node has not registered, or has not
    yet taken machines unknown to the store out of service. While such a node is unreachable its VMs wait, fenced or
    not; only an operator's confirmation that it is off releases them."""
    registered_at: float


class Heartbeat(Record, frozen=True, kw_only=True):
    """`/hostler/v1/alive/{node}`: attached to the agent's lease. Without it the node is unreachable."""

    holder: str
    """Unique to the agent process."""
    place: str = ""
    """As in the node record. A process that has opened the same storage knows that the previous process is dead."""
    started_at: float


class ClockReading(Record, frozen=True, kw_only=True):
    """`/hostler/v1/clocks/{node}`: the wall clock of a node's agent, attached to the agent's lease.

    `/hostler/v1/last-clocks/leader`: the last wall clock reading of the leader that was not in doubt.
    """

    at: float
    """When it was written."""


class ClockDispute(Record, frozen=True, kw_only=True):
    """`/hostler/v1/clock-disputes/{name}`: the leader's wall clock disagrees with the nodes or with its own past.

    While it exists, nothing expires. The leader writes it, and deletes it when the clocks agree again.
    """

    why: str
    node: str = ""
    """One of the nodes that disagree; empty: the clock jumped and no node reports a time."""
    at: float
    """By the leader's wall clock."""
    fence: int = 0
    """Fence of the leader."""


class Departure(Record, frozen=True, kw_only=True):
    """Migrate the VM to another node. The agent that completes it writes the target's command and deletes its own."""

    to: Id
    number: int
    """Number of the attempt, higher than that of any earlier attempt (`VmHandle.attempt`), whatever its origin."""
    wish: int = 0
    """The number of the requested move (`Move.number`); 0: the node is being drained."""
    stop: bool = False
    """See `Move.stop`."""


class VmCommand(Record, frozen=True, kw_only=True):
    """`/hostler/v1/nodes/{node}/vms/{vm}`: desired state of a VM on a node. Written by the leader under its fence."""

    org: Id
    project: Id
    vm: Id
    name: str = ""
    """The owner's name for the VM. The guest gets this host name where possible, at creation or the next reshape."""
    tags: dict[str, str] = field(default_factory=dict)
    """Tags for the provider's console: the owner's labels and the expiry."""
    spec: VmSpec
    power: Power = Power.ON
    restart: RestartPolicy = RestartPolicy.ALWAYS
    instance: str = ""
    """`{workload}/{instance}`: the agent also reports the observed state to that instance."""
    deleting: bool = False
    """Destroy the machine: the VM is deleted or moves elsewhere."""
    retain: bool = False
    """With `deleting`: take the machine out of service and keep its disk. The owner did not ask to delete it."""
    reinstate: str | None = None
    """Before creating a machine: reinstate the retained machine of this name instead of creating one. Empty: use any
    machine that this node has for the VM, in service or retained; if there is none, create one."""
    unconfirmed: bool = False
    """The command comes from a backup, and the machine may now be on another node: create nothing. The leader confirms
    the command once every node in the backup has registered and has no other machines."""
    resets: int = 0
    snapshots: tuple[str, ...] = ()
    restore: Restore | None = None
    lost: tuple[str, ...] = ()
    """Requested snapshots that were lost with an earlier node; they are not taken again."""
    fenced: bool = False
    """The VM stops by itself when the node loses the store for the fencing time."""
    fenced_since: int = 0
    """The generation that enabled fencing; 0: the first. Fencing is relied on only after the agent has reported it."""
    generation: int = 1
    """The VM generation that this command was made from."""
    fence: int = 0
    """Fence of the leader that wrote it."""
    departing: Departure | None = None
    arrived: int | None = None
    """The number of the migration that brought the VM here; 0: it was to be created here; None: no longer known."""
    reasons: tuple[Reason, ...] = ()
    """Why this node was chosen."""


class Arrival(Record, frozen=True, kw_only=True):
    """`/hostler/v1/arrivals/{node}/{vm}`: prepare to receive a VM that is migrated from another node.

    The leader writes it together with `departing` in the source node's command. It is deleted in the transaction that
    completes the migration, or by the leader if the migration is given up.
    """

    source: Id
    """The node that has the VM."""
    number: int
    """Number of the migration attempt."""
    place: str = ""
    """The storage of this node when it was chosen. A migration that ended in other storage is not completed."""
    command: VmCommand
    """The command that this node receives once it has the VM."""
    refused: str = ""
    """Why this node cannot receive the VM. Written by its agent; the leader then gives up."""


class Cluster(Record, frozen=True, kw_only=True):
    """`/hostler/v1/cluster`: identity of this control plane. Written once, by the first process that starts."""

    id: Id
    created_at: float
    aliases: tuple[str, ...] = ()
    """Ids of state files whose VMs were moved here. Machines that carry one of them also belong to this cluster."""
    epoch: int = 1
    """Grows with each copy, restore and activation of the store. A node refuses commands from a lower epoch than the
    last one it obeyed."""
    copy_id: str = ""
    """Random, new with each epoch; distinguishes two stores of the same epoch."""
    restored_at: float | None = None
    """When a backup was last restored into this store."""


class EpochKind(OpenEnum):
    """What started an epoch."""

    COPY = "copy"
    RESTORE = "restore"
    ACTIVATION = "activation"
    """An operator activated the store: after a restore by etcd's own tools, or because its copy was given up."""
    MIGRATION = "migration"


class Epoch(Record, frozen=True, kw_only=True):
    """`/hostler/v1/epochs/{epoch}`: the origin of the store. Written in the transaction that starts the epoch.

    Its own revision is a boundary: every record with an equal or lower revision was written by the copy or restore, so
    the revision of such a record says nothing about its cause.
    """

    begun_by: EpochKind
    source: str = ""
    """The store or backup that the records came from, for display."""
    at: float
    source_revision: int = 0
    """The revision of the source that was copied."""
    fence: int = 0
    """Every later fence is higher than this one."""


class LastControlPlane(Record, frozen=True, kw_only=True):
    """The control plane that a data folder last obeyed or served: a small file in the folder of the machines."""

    cluster: str
    epoch: int = 1
    copy_id: str = ""
    fence: int = 0
    """The highest fence seen."""
    revision: int = 0
    """A revision that the store has reached in this epoch; 0: unknown."""
    went_back: bool = False
    """The store was put back to an older state in this epoch, so only a new epoch is obeyed."""


class BrakeRecord(Record, frozen=True, kw_only=True):
    """`/hostler/v1/brakes/fencing`: many nodes became unreachable together, so none of them is fenced.

    Written by the leader, released by an operator, deleted by the leader when enough nodes are back.
    """

    nodes: tuple[str, ...]
    """Nodes that became unreachable together and are not back, including nodes that were removed since."""
    of: int
    """Number of nodes that were reachable before, including these."""
    cause: str = ""
    """What these nodes have in common."""
    at: float
    released_by: str = ""
    """The operator's account; empty: the brake holds."""
    released_at: float | None = None

    @property
    def released(self) -> bool:
        """Whether an operator allows fencing of these nodes."""
        return self.released_at is not None


def node_id(rack: str, blade: str) -> str:
    """Return the node id of a blade: `{rack}-{blade}`."""
    if not rack or not blade or "-" in rack:
        raise Invalid(f"node of rack {rack!r} and blade {blade!r}: neither is empty, and a rack's id holds no '-'")
    return f"{rack}-{blade}"


def split_node_id(node: str) -> tuple[str, str]:
    """Return the rack and blade of a node."""
    rack, dash, blade = node.partition("-")
    if not rack or not dash or not blade:
        raise Invalid(f"node {node!r}: must be {{rack}}-{{blade}}")
    return rack, blade


class Retained(Record, frozen=True, kw_only=True):
    """`/hostler/v1/retained/{node}/{name}`: a retained machine, as reported by the agent of its node."""

    name: Id
    org: Id
    project: Id
    vm: Id
    """The id of the VM that it belonged to."""
    vm_name: str = ""
    """The name of that VM when the machine was retained."""
    spec: VmSpec
    snapshots: tuple[str, ...] = ()
    retained_at: float
    """By the clock of its node."""
    listed_at: float = 0.0
    """When the leader first saw this record, by the leader's clock; retention starts then. 0: not yet seen."""
    disk_bytes: int = 0
    driver: str = ""
    place: str = ""
    """The storage on the node that holds it (`Machines.place`); empty: not known. The record stays if the agent of the
    node later uses other storage."""

    @property
    def kept_since(self) -> float:
        """Return the start of retention, by the leader's clock if known, because the node's clock may be wrong."""
        return self.listed_at or self.retained_at


class RetainedRequest(Record, frozen=True, kw_only=True):
    """`/hostler/v1/retained-requests/{node}/{name}`: a request to delete a retained machine permanently.

    Written by the service for an administrator, or by the leader when retention has expired. The agent deletes the
    disk, and then this record together with the record of the retained machine.
    """

    by: str
    at: float
