"""Virtual machines: the wish, what stands for it in the world, and the lock of a multi-step operation.

Instants are seconds since 1970.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from hostler.model.node_label import MOST_ACCELERATORS, NAME, NAME_RULE
from hostler.model.reason import Reason
from hostler.model.record import SAYS, OpenEnum, Record

Cpus = Annotated[int, Meta(ge=1, le=4096)]
MemoryMib = Annotated[int, Meta(ge=1, le=2**30)]
DiskGib = Annotated[int, Meta(ge=0, le=2**30)]
Id = Annotated[str, Meta(min_length=1)]
_LINE = r"^[^\x00-\x1f\x7f]+$"
SAYS[_LINE] = "one line, without control characters"
SshKey = Annotated[str, Meta(max_length=16384, pattern=_LINE)]


_LOGIN = r"^([a-z_][a-z0-9_-]{0,31})?$(?!\n)"
SAYS[_LOGIN] = "1 to 32 of a-z, 0-9, '_' and '-', not beginning with a digit or '-'"
LoginName = Annotated[str, Meta(pattern=_LOGIN)]


_ARCH = r"^[A-Za-z0-9_]{0,32}$(?!\n)"
SAYS[_ARCH] = "up to 32 letters, digits and '_'"
Arch = Annotated[str, Meta(pattern=_ARCH)]
SAYS[NAME] = NAME_RULE
HardwareName = Annotated[str, Meta(pattern=NAME)]
Accelerators = Annotated[dict[HardwareName, Annotated[int, Meta(ge=1, le=MOST_ACCELERATORS)]], Meta(max_length=16)]
Volumes = Annotated[tuple[HardwareName, ...], Meta(max_length=64)]


class Power(OpenEnum):
    """What the owner wants."""

    ON = "on"
    OFF = "off"


class OnNodeLoss(OpenEnum):
    """What happens to a machine whose node is unreachable, and to its disk.

    Once a node is confirmed off, each of its machines is started elsewhere with a new disk from its image.
    """

    WAIT = "wait"
    """It waits for its node, and keeps its disk."""
    FENCE = "fence"
    """It stops by itself after the fencing time; it returns with its disk when the node is back."""
    RECREATE = "recreate"
    """It stops by itself after the fencing time, and is then started elsewhere with a new disk from its image."""


class MachineState(OpenEnum):
    """What there is of a machine."""

    PENDING = "pending"
    """Nothing: no node will do. Said by the leader."""
    PLACED = "placed"
    """Nothing yet: a node was told. Said by the leader; everything below by the node's agent."""
    CREATING = "creating"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"
    DELETING = "deleting"
    GONE = "gone"
    """It was destroyed, as commanded; the leader may forget it."""
    ARRIVING = "arriving"
    """It takes over what runs on another node, and does not run itself before it is started."""
    DEPARTED = "departed"
    """All of it was handed to another node. It does not run; started, it goes on here as if nothing had been."""


NO_DISK = (MachineState.PENDING, MachineState.PLACED, MachineState.CREATING, MachineState.GONE)
"""What a handle says of a machine that never had a disk, or has none any more."""


class Origin(Record, frozen=True, kw_only=True):
    """What a machine's disk begins as, instead of its image: a snapshot of another machine of its project."""

    vm: Id
    """The id of the other machine. It is where the disk is: a clone begins its life on that node."""
    snapshot: Id


class VmSpec(Record, frozen=True, kw_only=True):
    """The shape of a machine."""

    cpus: Cpus
    memory_mib: MemoryMib
    disk_gib: DiskGib = 0
    image: str = ""
    """The default image of the machine driver if empty."""
    user_data: str = ""
    """For cloud-init, beside what Hostler tells it."""
    network_config: str = ""
    """For cloud-init, instead of what Hostler tells it."""
    ssh_keys: tuple[SshKey, ...] = ()
    user: LoginName = ""
    """As whom one logs in; the image's own user if empty."""
    cpu_share: Annotated[int, Meta(ge=1, le=10000)] = 100
    """Its weight against the other machines of its node when there is not enough for all; 100 is usual."""
    origin: Origin | None = None
    arch: Arch = ""
    """Only nodes of this architecture will do; empty: any."""
    accelerators: Accelerators = field(default_factory=dict)
    """Kinds, and how many of each it takes of its node. Only nodes that have as many free will do."""
    volumes: Volumes = ()
    """Only nodes that have all of these volumes will do."""


class Level(OpenEnum):
    """What machines can share, and lose together."""

    NODE = "node"
    RACK = "rack"
    PDU = "pdu"
    TOR = "tor"


class Affinity(Record, frozen=True, kw_only=True):
    """Where a machine stands in relation to others of its project."""

    together: bool
    """On the same node, rack, pdu or tor as one of the others; False: as none of them."""
    level: Level
    labels: dict[str, str]
    """Who the others are: those machines of the project that have all of these labels."""
    required: bool = True
    """False: only preferred."""


class Restore(Record, frozen=True, kw_only=True):
    """The wish to go back to a snapshot. `number` grows by one each time, so that it is done once."""

    snapshot: Id
    number: Annotated[int, Meta(ge=1)]


class Reinstatement(Record, frozen=True, kw_only=True):
    """The retained machine that a virtual machine gets its disk from."""

    node: Id
    """That has it. The virtual machine is placed there and nowhere else, until it has that disk."""
    name: Id


class RestartPolicy(OpenEnum):
    """What happens to a machine that shall run and ended by itself."""

    ALWAYS = "always"
    ON_FAILURE = "on_failure"
    """It is started again if it failed; one that shut itself down stays off."""
    NEVER = "never"


class VirtualMachine(Record, frozen=True, kw_only=True):
    """`/plasmavmc/vms/…`: what is wished for. Written by the VM service, for its owner."""

    id: Id
    name: str
    org: Id
    project: Id
    spec: VmSpec
    power: Power = Power.ON
    deleting: bool = False
    keep_disk: bool = False
    """With `deleting`: its disk is retained, for it goes because a record is missing, not because its owner asked."""
    generation: int = 1
    """Grows with each change of the wish; a report about an older one is out of date."""
    labels: dict[str, str] = field(default_factory=dict)
    on_node_loss: OnNodeLoss = OnNodeLoss.WAIT
    returns: bool = False
    """`fence` was asked for as it is meant now: it returns with its disk. An older record does not have this; there
    `fence` is what `recreate` is now, until it is changed."""
    restart: RestartPolicy = RestartPolicy.ALWAYS
    instance: str = ""
    """`{workload}/{instance}` that it stands for; empty: it is nobody's instance."""
    resets: Annotated[int, Meta(ge=0)] = 0
    """How often a reset was asked for."""
    snapshots: tuple[str, ...] = ()
    """Those that shall exist."""
    dropped: dict[str, int] = field(default_factory=dict)
    """Those that shall exist no more, by the generation that says so, while no agent has answered it: one that was
    taken and not told of may still be there, and would be taken for a new one of its name."""
    restore: Restore | None = None
    """The last one asked for."""
    move: Move | None = None
    """The last one asked for."""
    reinstate: Reinstatement | None = None
    """The last one asked for; done once `VmHandle.reinstated` has its name."""
    affinity: tuple[Affinity, ...] = ()
    node_labels: dict[str, str] = field(default_factory=dict)
    """Only nodes with all of these labels will do."""
    created_at: float
    expires_at: float | None = None

    @property
    def is_fenced(self) -> bool:
        """It stops by itself when its node loses the store for the fencing time."""
        return self.on_node_loss in (OnNodeLoss.FENCE, OnNodeLoss.RECREATE)  # not what a later release may have added

    @property
    def recreates(self) -> bool:
        """Once it has stopped by itself, it is started elsewhere with a new disk."""
        return self.is_fenced and (self.on_node_loss is OnNodeLoss.RECREATE or not self.returns)


class Move(Record, frozen=True, kw_only=True):
    """The wish to be on another node. `number` grows by one each time, so that it is done once."""

    to: Id
    number: Annotated[int, Meta(ge=1)]
    stop: bool = False
    """Where it cannot be moved while it runs it may be stopped, moved with its disk, and started."""


class SnapshotState(OpenEnum):
    """What the agent sees of a snapshot."""

    READY = "ready"
    FAILED = "failed"


class Snapshot(Record, frozen=True, kw_only=True):
    """A snapshot as its machine's agent sees it."""

    state: SnapshotState
    taken_at: float
    detail: str = ""


class Step(OpenEnum):
    """How far a running machine is on its way to its user; each step has its deadline."""

    BOOTING = "booting"
    """Its process runs; nothing was heard of the guest."""
    NETWORK = "network"
    """The guest said that it is up; nothing answers at its address."""
    SSH = "ssh"
    """Its address answers, but not as the server that was made for it."""
    AVAILABLE = "available"
    """It can be logged into; or its image promises less, and that was kept."""


class Readiness(Record, frozen=True, kw_only=True):
    """How far a running machine is."""

    step: Step
    since: float
    cause: str = ""
    """The step has passed its deadline: what was seen instead. It may still come."""


class Access(Record, frozen=True, kw_only=True):
    """How to log into a machine, from the node it stands on."""

    host: str
    port: Annotated[int, Meta(ge=1, le=65535)]
    user: str
    host_keys: tuple[str, ...] = ()
    """`ssh-ed25519 AAAA…`: whoever answers with another key is not the machine. Empty: not known."""


class VmHandle(Record, frozen=True, kw_only=True):
    """`/plasmavmc/handles/…`: what there is of it. The leader makes it and takes it away; between, the agent writes it.

    One machine has one handle, and the handle names one node: so it stands in one place at most.
    """

    id: Id
    node: str = ""
    """Empty while pending."""
    driver: str = ""
    machine: str = ""
    """The provider's id of it."""
    state: MachineState
    generation: int = 0
    """Of the wish that this answers."""
    cloud_status: str = ""
    """The provider's own word for its state; empty: it has none but ours."""
    address: str = ""
    detail: str = ""
    """Why it is pending or failed, or what it waits for."""
    reasons: tuple[Reason, ...] = ()
    """While pending: why no node will do. The reasons for the node that was chosen stand in the command."""
    at_next_boot: tuple[str, ...] = ()
    """Fields of the spec that the running machine does not have yet."""
    resets: int = 0
    """How many of the wished-for resets are done."""
    restored: int = 0
    """The number of the last restore that was done."""
    snapshots: dict[str, Snapshot] = field(default_factory=dict)
    moved: int = 0
    """The number of the last wished-for move that was done or given up."""
    attempt: int = 0
    """The number of the last departure that is over: handed over, or certain never to be (`Departure.number`)."""
    unmoved: str = ""
    """Why the last departure was given up; empty: it was not."""
    taken_from: str = ""
    """Until it has a disk again: the node that was lost and has, or had, its disk."""
    reinstated: str = ""
    """The name of the last retained machine that it got its disk from."""
    disk_since: float = 0.0
    """Since when it has a new disk, made because its node or its disk was lost, or its node drained; 0: it has its
    first disk, or one that was reinstated."""
    lost_arrival: int = 0
    """The number of the last move whose disk was lost where it arrived: what departed may be the last copy."""
    readiness: Readiness | None = None
    """While it runs."""
    access: Access | None = None
    paused: bool = False
    """It is running, and its guest is paused until its node has room for what it writes."""
    failures: int = 0
    """Steps that failed in a row."""
    ended: bool = False
    """It shall run and ended by itself, and its restart policy leaves it so."""
    seen_at: float


def has_disk(handle: VmHandle | None) -> bool:
    """Whether the machine has a disk on its node. One whose creation was refused is FAILED, and has none."""
    if handle is None or not handle.node or handle.state in NO_DISK:
        return False
    return handle.state is not MachineState.FAILED or bool(handle.machine)


def ready_snapshots(handle: VmHandle | None) -> tuple[str, ...]:
    """Those that exist where the machine is: a move to another node loses them."""
    found = {} if handle is None else handle.snapshots
    return tuple(name for name, snapshot in found.items() if snapshot.state is SnapshotState.READY)


class LockInfo(Record, frozen=True, kw_only=True):
    """`/plasmavmc/locks/…`: who works on the machine, and since when (whole seconds)."""

    timestamp: Annotated[int, Meta(ge=0)]
    node_id: str
