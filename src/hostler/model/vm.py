"""Virtual machines: the spec, the observed state, and the lock of a multi-step operation.

Instants are seconds since 1970. Nodes advertise hardware by labels, by which VMs request it:

    arch=x86_64              the architecture
    accelerator.gpu=4        the number of accelerators of that kind
    volume.scratch=yes       a volume of that name, which exists on this node only
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, field

from hostler.model.record import SAYS, OpenEnum, Record
from hostler.model.trace import Reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


ARCH = "arch"
ACCELERATOR = "accelerator."
VOLUME = "volume."
YES = "yes"
MOST_ACCELERATORS = 1024
HARDWARE_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$(?!\n)"
HARDWARE_NAME_RULE = "up to 63 letters, digits, '.', '_' and '-', beginning with a letter or digit"
"""Rule for accelerator kinds and volume names."""
_ARCHITECTURES = {"x64": "x86_64", "amd64": "x86_64", "arm64": "aarch64"}


def architecture(name: str) -> str:
    """Return the Linux name of an architecture: `X64` and `amd64` become `x86_64`, `arm64` becomes `aarch64`."""
    word = name.strip().lower()
    return _ARCHITECTURES.get(word, word)


def hardware_labels(arch: str, accelerators: Mapping[str, int], volumes: Iterable[str]) -> dict[str, str]:
    """Return the labels for this hardware; empty arguments yield no labels."""
    return {
        **({ARCH: architecture(arch)} if arch else {}),
        **{ACCELERATOR + kind: str(count) for kind, count in accelerators.items()},
        **{VOLUME + name: YES for name in volumes},
    }


def accelerators_of(labels: Mapping[str, str], kind: str) -> int:
    """Return the number of accelerators of a kind on a node; 0 if the label is not a number."""
    text = labels.get(ACCELERATOR + kind, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


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
SAYS[HARDWARE_NAME] = HARDWARE_NAME_RULE
HardwareName = Annotated[str, Meta(pattern=HARDWARE_NAME)]
Accelerators = Annotated[dict[HardwareName, Annotated[int, Meta(ge=1, le=MOST_ACCELERATORS)]], Meta(max_length=16)]
Volumes = Annotated[tuple[HardwareName, ...], Meta(max_length=64)]


class Power(OpenEnum):
    """Desired power state."""

    ON = "on"
    OFF = "off"


class OnNodeLoss(OpenEnum):
    """What happens to a VM and its disk when its node is unreachable.

    Once a node is confirmed off, each of its VMs is started elsewhere with a new disk from its image.
    """

    WAIT = "wait"
    """The VM waits for its node and keeps its disk."""
    FENCE = "fence"
    """The VM stops by itself after the fencing time. It returns with its disk when the node is back."""
    RECREATE = "recreate"
    """The VM stops by itself after the fencing time, and is then started elsewhere with a new disk from its image."""


class MachineState(OpenEnum):
    """Observed state of a machine."""

    PENDING = "pending"
    """No machine exists: no node is suitable. Written by the leader."""
    PLACED = "placed"
    """No machine exists yet: a node was assigned. Written by the leader; all following states by the node's agent."""
    CREATING = "creating"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"
    DELETING = "deleting"
    GONE = "gone"
    """The machine was destroyed as commanded; the leader may delete its records."""
    ARRIVING = "arriving"
    """The machine receives the state of one that runs on another node. It does not run until it is started."""
    DEPARTED = "departed"
    """The complete machine was copied to another node and does not run here. If started, it resumes here unchanged."""


NO_DISK = (MachineState.PENDING, MachineState.PLACED, MachineState.CREATING, MachineState.GONE)
"""States in a handle of a machine that never had a disk or no longer has one."""


class Origin(Record, frozen=True, kw_only=True):
    """The source of a disk other than an image: a snapshot of another VM of the same project."""

    vm: Id
    """The id of the other VM. Its node has the disk, so a clone is first placed on that node."""
    snapshot: Id


class VmSpec(Record, frozen=True, kw_only=True):
    """Resources, image and configuration of a VM."""

    cpus: Cpus
    memory_mib: MemoryMib
    disk_gib: DiskGib = 0
    image: str = ""
    """Image name; the default image of the machine driver if empty."""
    user_data: str = ""
    """User data for cloud-init, in addition to Hostler's own."""
    network_config: str = ""
    """Network configuration for cloud-init, instead of Hostler's own."""
    ssh_keys: tuple[SshKey, ...] = ()
    user: LoginName = ""
    """Login user; the image's own user if empty."""
    cpu_share: Annotated[int, Meta(ge=1, le=10000)] = 100
    """CPU weight against the other VMs of the node under contention; 100 is the default."""
    origin: Origin | None = None
    arch: Arch = ""
    """Required node architecture; empty: any."""
    accelerators: Accelerators = field(default_factory=dict)
    """Number of accelerators by kind. Only nodes with that many free are suitable."""
    volumes: Volumes = ()
    """Only nodes that have all of these volumes are suitable."""


class Level(OpenEnum):
    """A failure domain that VMs can share."""

    NODE = "node"
    RACK = "rack"
    PDU = "pdu"
    TOR = "tor"


class Affinity(Record, frozen=True, kw_only=True):
    """A placement rule relative to other VMs of the project."""

    together: bool
    """True: share the node, rack, PDU or ToR switch with at least one of the others; False: with none of them."""
    level: Level
    labels: dict[str, str]
    """Selects the others: VMs of the project that have all of these labels."""
    required: bool = True
    """False: a preference only."""


class Restore(Record, frozen=True, kw_only=True):
    """A request to restore a snapshot. `number` grows by one with each request, so that each is executed once."""

    snapshot: Id
    number: Annotated[int, Meta(ge=1)]


class Reinstatement(Record, frozen=True, kw_only=True):
    """The retained machine that provides the disk of a VM."""

    node: Id
    """The node that has the retained machine. The VM can be placed only there until it has that disk."""
    name: Id


class RestartPolicy(OpenEnum):
    """What happens when a VM that should run stops by itself."""

    ALWAYS = "always"
    ON_FAILURE = "on_failure"
    """Restart after a failure; a VM that shut itself down stays off."""
    NEVER = "never"


class VirtualMachine(Record, frozen=True, kw_only=True):
    """`/plasmavmc/vms/…`: the desired state. Written by the VM service on behalf of the owner."""

    id: Id
    name: str
    org: Id
    project: Id
    spec: VmSpec
    power: Power = Power.ON
    deleting: bool = False
    keep_disk: bool = False
    """With `deleting`: retain the disk, because the VM is removed due to a missing record and not by its owner."""
    generation: int = 1
    """Grows with each change of the desired state. A report for an older generation is out of date."""
    labels: dict[str, str] = field(default_factory=dict)
    on_node_loss: OnNodeLoss = OnNodeLoss.WAIT
    returns: bool = False
    """`fence` has its current meaning: the VM returns with its disk. Older records lack this field; there `fence` means
    what `recreate` means now, until the value is changed."""
    restart: RestartPolicy = RestartPolicy.ALWAYS
    instance: str = ""
    """`{workload}/{instance}` that it implements; empty: it belongs to no workload."""
    resets: Annotated[int, Meta(ge=0)] = 0
    """Number of requested resets."""
    snapshots: tuple[str, ...] = ()
    """Names of the snapshots that should exist."""
    dropped: dict[str, int] = field(default_factory=dict)
    """Deleted snapshots, by the generation that deleted them, until an agent has reported that generation. A snapshot
    that was taken but not yet reported may still exist, and would be mistaken for a new one of the same name."""
    restore: Restore | None = None
    """The last requested restore."""
    move: Move | None = None
    """The last requested move."""
    reinstate: Reinstatement | None = None
    """The last requested reinstatement; done once `VmHandle.reinstated` has its name."""
    affinity: tuple[Affinity, ...] = ()
    node_labels: dict[str, str] = field(default_factory=dict)
    """Only nodes with all of these labels are suitable."""
    created_at: float
    expires_at: float | None = None

    @property
    def is_fenced(self) -> bool:
        """Whether the VM stops by itself when its node loses the store for the fencing time."""
        return self.on_node_loss in (OnNodeLoss.FENCE, OnNodeLoss.RECREATE)  # not values of later releases

    @property
    def recreates(self) -> bool:
        """Whether the VM is started elsewhere with a new disk once it has stopped by itself."""
        return self.is_fenced and (self.on_node_loss is OnNodeLoss.RECREATE or not self.returns)


class Move(Record, frozen=True, kw_only=True):
    """A request to move to another node. `number` grows by one with each request, so that each is executed once."""

    to: Id
    number: Annotated[int, Meta(ge=1)]
    stop: bool = False
    """Allow a cold move if live migration is impossible: stop the VM, move it with its disk, and start it."""


class SnapshotState(OpenEnum):
    """Observed state of a snapshot."""

    READY = "ready"
    FAILED = "failed"


class Snapshot(Record, frozen=True, kw_only=True):
    """A snapshot as reported by the agent."""

    state: SnapshotState
    taken_at: float
    detail: str = ""


class Step(OpenEnum):
    """Progress of a running machine towards login; each step has a deadline."""

    BOOTING = "booting"
    """The process runs; the guest has not reported yet."""
    NETWORK = "network"
    """The guest reported that it is up; its address does not answer yet."""
    SSH = "ssh"
    """The address answers, but not with the host key generated for the machine."""
    AVAILABLE = "available"
    """Login is possible; or the image promises less, and that check has passed."""


class Readiness(Record, frozen=True, kw_only=True):
    """Current boot step of a running machine."""

    step: Step
    since: float
    cause: str = ""
    """Set once the step has missed its deadline: what was observed instead. The step may still complete."""


class Access(Record, frozen=True, kw_only=True):
    """How to log in to a machine from its node."""

    host: str
    port: Annotated[int, Meta(ge=1, le=65535)]
    user: str
    host_keys: tuple[str, ...] = ()
    """`ssh-ed25519 AAAA…`: a server that presents another key is not this machine. Empty: not known."""


class VmHandle(Record, frozen=True, kw_only=True):
    """`/plasmavmc/handles/…`: the observed state. The leader creates and deletes it; in between, the agent writes it.

    A VM has one handle and a handle names one node, so a VM is on at most one node.
    """

    id: Id
    node: str = ""
    """Empty while pending."""
    driver: str = ""
    machine: str = ""
    """The provider's id of the machine."""
    state: MachineState
    generation: int = 0
    """The generation of the VM that this reports on."""
    cloud_status: str = ""
    """The provider's own state name; empty: it has none."""
    address: str = ""
    detail: str = ""
    """Why it is pending or failed, or what it waits for."""
    reasons: tuple[Reason, ...] = ()
    """While pending: why no node is suitable. The reasons for the chosen node are in the command."""
    at_next_boot: tuple[str, ...] = ()
    """Spec fields that take effect at the next boot."""
    resets: int = 0
    """Number of requested resets that are done."""
    restored: int = 0
    """The number of the last completed restore."""
    snapshots: dict[str, Snapshot] = field(default_factory=dict)
    moved: int = 0
    """The number of the last requested move that is done or given up."""
    attempt: int = 0
    """The number of the last migration attempt that has ended: completed, or certain not to (`Departure.number`)."""
    unmoved: str = ""
    """Why the last migration attempt was given up; empty: it was not."""
    taken_from: str = ""
    """Until the VM has a disk again: the lost node that has, or had, its disk."""
    reinstated: str = ""
    """The name of the last retained machine whose disk was reinstated."""
    disk_since: float = 0.0
    """When the VM got a new disk because its node or disk was lost, or its node was drained. 0: it has its first disk,
    or a reinstated one."""
    lost_arrival: int = 0
    """The number of the last move whose disk was lost on the target. The copy on the source may be the last one."""
    readiness: Readiness | None = None
    """Set while the machine runs."""
    access: Access | None = None
    paused: bool = False
    """The machine runs, but its guest is paused until its node has disk space for its writes."""
    failures: int = 0
    """Number of consecutive failed steps."""
    ended: bool = False
    """The VM should run but stopped by itself, and its restart policy leaves it stopped."""
    seen_at: float


def has_disk(handle: VmHandle | None) -> bool:
    """Return whether the VM has a disk on its node. A VM whose creation was refused is FAILED and has none."""
    if handle is None or not handle.node or handle.state in NO_DISK:
        return False
    return handle.state is not MachineState.FAILED or bool(handle.machine)


def ready_snapshots(handle: VmHandle | None) -> tuple[str, ...]:
    """Return the names of the existing snapshots. A move to another node loses them."""
    found = {} if handle is None else handle.snapshots
    return tuple(name for name, snapshot in found.items() if snapshot.state is SnapshotState.READY)


class LockInfo(Record, frozen=True, kw_only=True):
    """`/plasmavmc/locks/…`: the node that operates on the VM, and since when (whole seconds)."""

    timestamp: Annotated[int, Meta(ge=0)]
    node_id: str
