"""Nodes: what an agent says of itself, and what the leader tells it to do."""

from __future__ import annotations

from msgspec import field

from hostler.errors import Invalid
from hostler.model.inventory import Capacity
from hostler.model.reason import Reason
from hostler.model.record import OpenEnum, Record
from hostler.model.vm import Id, Power, RestartPolicy, Restore, VmSpec


class Lifecycle(OpenEnum):
    """Where a node is between arriving and leaving."""

    JOINING = "JOINING"
    ON_DUTY = "ON_DUTY"
    DRAINING = "DRAINING"
    DECOMMISSIONED = "DECOMMISSIONED"
    SHUTTING_DOWN = "SHUTTING_DOWN"


class DrainMode(OpenEnum):
    """What becomes of the machines of a node that is drained."""

    MOVE = "move"
    """Each goes elsewhere, one after the other: handed over as it runs where both nodes can do that (`moves`),
    otherwise destroyed there and made elsewhere from its image."""
    STOP = "stop"
    """Each is stopped and stays; one after the other."""


HOST, HOST_SHARE = "host", "share"
"""Facts of a node (`NodeRecord.facts`): which host it is on, and in words which share of the host it promises."""
POWER = "hostler"
"""Stands in `OffConfirmation.by` where the leader had the node switched off."""


class OffConfirmation(Record, frozen=True, kw_only=True):
    """Somebody stands for it: the silent node is off, and nothing runs on it. A node that comes back takes it away."""

    by: str
    """An operator's account, or `hostler`: a power switch has said so."""
    at: float

    @property
    def by_power(self) -> bool:
        """Whether a power switch confirmed it, not an operator."""
        return self.by == POWER


class ImageNeeds(Record, frozen=True, kw_only=True):
    """What is known of an image, for who makes a machine of it."""

    memory_mib: int = 0
    """The least that it boots with."""
    disk_gib: int = 0
    """Of its disk: a machine that asks for less has that."""
    user: str = ""
    """Who logs in, unless the machine says otherwise."""
    default: bool = False
    """Whether machines that name no image are made of it there."""
    seeding: str = ""
    """How its machines learn who they are, and which user data they run: `cloud-init` any, `firmware` scripts, `none`
    none (`model.image.Seeding`); empty: not known."""


class NodeRecord(Record, frozen=True, kw_only=True):
    """`/hostler/v1/members/{node}`: a node that registered. It stays when the node falls silent."""

    node: Id
    lifecycle: Lifecycle
    capacity: Capacity
    labels: dict[str, str] = field(default_factory=dict)
    rack: str | None = None
    pdus: tuple[str, ...] = ()
    tors: tuple[str, ...] = ()
    address: str = ""
    store: str = ""
    """The URL by which its agent reaches the store, without secrets; empty: not known."""
    driver: str = ""
    place: str = ""
    """Where its machines are (`Machines.place`); empty: not known. Who comes with another place has none of them."""
    fences: bool = False
    """Its driver stops machines by itself when the agent no longer can: `on_node_loss=fence` is possible there."""
    fencing_time: float = 0.0
    """Seconds after the last heartbeat by which fenced machines have stopped."""
    moves: bool = False
    """Its machines can be handed to another node of the same driver, as they run."""
    images: tuple[str, ...] | None = None
    """What machines can be made of there; None: of anything."""
    image_needs: dict[str, ImageNeeds] = field(default_factory=dict)
    """Of those of which it is known."""
    facts: dict[str, str] = field(default_factory=dict)
    """What its driver found out, for people: `acceleration`, …"""
    refuses: str = ""
    """Why it takes no further machine at present; empty: it does."""
    drain: DrainMode = DrainMode.MOVE
    drop_snapshots: bool = False
    """While it is drained by moving: machines are moved although their snapshots are lost by that."""
    off: OffConfirmation | None = None
    awaited: bool = False
    """Since its store was copied, restored or put back into service it has not registered, or has not yet taken out of
    service what the store does not know of. While it is unreachable its machines wait, `fence` or not; only an
    operator's confirmation that it is off releases them."""
    registered_at: float


class Heartbeat(Record, frozen=True, kw_only=True):
    """`/hostler/v1/alive/{node}`: attached to the agent's lease; gone means silent."""

    holder: str
    """Unique to the agent's process."""
    place: str = ""
    """As in the node's record: who has the same place open knows that the other process is dead."""
    started_at: float


class ClockReading(Record, frozen=True, kw_only=True):
    """`/hostler/v1/clocks/{node}`: what the calendar of a node's agent says, attached to the agent's lease.

    `/hostler/v1/last-clocks/leader`: what the leader's said last, while it was not in doubt.
    """

    at: float
    """When it was written."""


class ClockDispute(Record, frozen=True, kw_only=True):
    """`/hostler/v1/clock-disputes/{name}`: the leader's calendar is not that of the nodes, or not that of before.

    So nothing ends because of its time. The leader writes it, and takes it away when the calendars agree again.
    """

    why: str
    node: str = ""
    """One of those that it does not agree with; empty: it jumped, and no node says anything."""
    at: float
    """By the leader's calendar."""
    fence: int = 0
    """Of the leader."""


class Departure(Record, frozen=True, kw_only=True):
    """Hand the machine over. Whoever does that writes the command of the other node, and takes this one away."""

    to: Id
    number: int
    """Of the attempt: above that of every earlier one (`VmHandle.attempt`), whoever wished for it."""
    wish: int = 0
    """The number of the wished-for move that this is (`Move.number`); 0: the node is drained."""
    stop: bool = False
    """See `Move.stop`."""


class VmCommand(Record, frozen=True, kw_only=True):
    """`/hostler/v1/nodes/{node}/vms/{vm}`: what the node shall make true. Written by the leader, under its fence."""

    org: Id
    project: Id
    vm: Id
    name: str = ""
    """What its owner calls it: a guest is called that where it can be, from its making or next reshaping on."""
    tags: dict[str, str] = field(default_factory=dict)
    """For people who look at the provider: its owner's labels, and when it expires."""
    spec: VmSpec
    power: Power = Power.ON
    restart: RestartPolicy = RestartPolicy.ALWAYS
    instance: str = ""
    """`{workload}/{instance}`: what is seen of it is told there, too."""
    deleting: bool = False
    """Destroy it: the machine shall be gone, or shall go elsewhere."""
    retain: bool = False
    """With `deleting`: take it out of service and keep its disk, for its owner did not ask to delete it."""
    reinstate: str | None = None
    """Before a machine is created: put back what is retained under this name, and create nothing instead. Empty: what
    this node has of this virtual machine, in service or retained, is its machine; without any, one is created."""
    unconfirmed: bool = False
    """It comes from a backup, and its machine may be on another node by now: create nothing. The leader confirms it
    once every node that the backup knows has registered and has no other machines."""
    resets: int = 0
    snapshots: tuple[str, ...] = ()
    restore: Restore | None = None
    lost: tuple[str, ...] = ()
    """Snapshots that are wished for but went with an earlier node: they are not taken anew."""
    fenced: bool = False
    """It stops by itself when the node loses the store for the fencing time."""
    fenced_since: int = 0
    """The generation that made it fenced; 0: the first. Nobody counts on it until the agent has answered that one."""
    generation: int = 1
    """Of the wish that this was made from."""
    fence: int = 0
    """Of the leader who wrote it."""
    departing: Departure | None = None
    arrived: int | None = None
    """The number of the departure with which it came here; 0: it was to be made here; None: nobody knows any more."""
    reasons: tuple[Reason, ...] = ()
    """Why this node."""


class Arrival(Record, frozen=True, kw_only=True):
    """`/hostler/v1/arrivals/{node}/{vm}`: make room for a machine that is handed over from another node.

    Written by the leader together with the other node's `departing`, and taken away in the transaction that hands it
    over, or by the leader if that is given up.
    """

    source: Id
    """The node that has it."""
    number: int
    """Of the departure."""
    place: str = ""
    """Where this node's machines were when it was chosen: what arrived elsewhere is not handed over."""
    command: VmCommand
    """What this node is told once it has it."""
    refused: str = ""
    """Why this node cannot take it. Said by its agent; the leader then gives up."""


class Cluster(Record, frozen=True, kw_only=True):
    """`/hostler/v1/cluster`: tells this control plane from every other. Made once, by whoever comes first."""

    id: Id
    created_at: float
    aliases: tuple[str, ...] = ()
    """Ids of state files whose machines were moved here: what carries one of them is ours as well."""
    epoch: int = 1
    """Grows with each copy, restore and return to service of the store. A node takes no command from a lower epoch than
    the last one it obeyed."""
    copy_id: str = ""
    """Random, new with each epoch: tells two stores of the same epoch apart."""
    restored_at: float | None = None
    """When a backup was last restored into this store."""


class EpochKind(OpenEnum):
    """What began an epoch."""

    COPY = "copy"
    RESTORE = "restore"
    ACTIVATION = "activation"
    """An operator put the store into service: after a restore by etcd's own tools, or because its copy was given up."""
    MIGRATION = "migration"


class Epoch(Record, frozen=True, kw_only=True):
    """`/hostler/v1/epochs/{epoch}`: how the store came to be. Written in the transaction that begins the epoch.

    Its own revision is a border: every record that has an equal or lower revision was written by the copy or restore,
    so its revision says nothing about what caused it.
    """

    begun_by: EpochKind
    source: str = ""
    """The store or backup that the records came from, for people."""
    at: float
    source_revision: int = 0
    """The revision of the source that was copied."""
    fence: int = 0
    """Every later fence is above this one."""


class LastControlPlane(Record, frozen=True, kw_only=True):
    """The control plane that a data folder last obeyed, or served. A small file in the folder of the machines."""

    cluster: str
    epoch: int = 1
    copy_id: str = ""
    fence: int = 0
    """The highest fence that was seen."""


class BrakeRecord(Record, frozen=True, kw_only=True):
    """`/hostler/v1/brakes/fencing`: many nodes became unreachable together, so none of them is fenced.

    Written by the leader, released by an operator, deleted by the leader when enough nodes are back.
    """

    nodes: tuple[str, ...]
    """Those that became unreachable together, and are not back; also those that were removed since."""
    of: int
    """How many nodes were reachable before that, with those."""
    cause: str = ""
    """What they have in common."""
    at: float
    released_by: str = ""
    """The operator's account; empty: the brake holds."""
    released_at: float | None = None

    @property
    def released(self) -> bool:
        """Whether an operator lets the nodes be fenced."""
        return self.released_at is not None


def node_id(rack: str, blade: str) -> str:
    """The node that a blade is: `{rack}-{blade}`."""
    if not rack or not blade or "-" in rack:
        raise Invalid(f"node of rack {rack!r} and blade {blade!r}: neither is empty, and a rack's id holds no '-'")
    return f"{rack}-{blade}"


def split_node_id(node: str) -> tuple[str, str]:
    """Rack and blade of a node."""
    rack, dash, blade = node.partition("-")
    if not rack or not dash or not blade:
        raise Invalid(f"node {node!r}: must be {{rack}}-{{blade}}")
    return rack, blade
