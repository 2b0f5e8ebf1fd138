"""Virtual machines: the wish, what stands for it in the world, and the lock of a multi-step operation.

Instants are seconds since 1970.
"""

from __future__ import annotations

import enum
from typing import Annotated

from msgspec import Meta, field

from hostler.model.reason import Reason
from hostler.model.record import Record

Cpus = Annotated[int, Meta(ge=1, le=4096)]
MemoryMib = Annotated[int, Meta(ge=1, le=2**30)]
DiskGib = Annotated[int, Meta(ge=0, le=2**30)]
Id = Annotated[str, Meta(min_length=1)]


class Power(enum.StrEnum):
    """What the owner wants."""

    ON = "on"
    OFF = "off"


class OnNodeLoss(enum.StrEnum):
    """What happens to a machine whose node is silent."""

    WAIT = "wait"
    """It is started elsewhere once somebody confirms that the node is off."""
    FENCE = "fence"
    """Its agent stops it after the fencing time without the store; then it is started elsewhere."""


class MachineState(enum.StrEnum):
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


class VmSpec(Record, frozen=True, kw_only=True):
    """The shape of a machine."""

    cpus: Cpus
    memory_mib: MemoryMib
    disk_gib: DiskGib = 0
    image: str = ""
    """The default image of the machine driver if empty."""
    user_data: str = ""
    ssh_keys: tuple[str, ...] = ()


class Level(enum.StrEnum):
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


class VirtualMachine(Record, frozen=True, kw_only=True):
    """`/plasmavmc/vms/…`: what is wished for. Written by the VM service, for its owner."""

    id: Id
    name: str
    org: Id
    project: Id
    spec: VmSpec
    power: Power = Power.ON
    deleting: bool = False
    generation: int = 1
    """Grows with each change of the wish; a report about an older one is out of date."""
    labels: dict[str, str] = field(default_factory=dict)
    on_node_loss: OnNodeLoss = OnNodeLoss.WAIT
    resets: Annotated[int, Meta(ge=0)] = 0
    """How often a reset was asked for."""
    snapshots: tuple[str, ...] = ()
    """Those that shall exist."""
    dropped: dict[str, int] = field(default_factory=dict)
    """Those that shall exist no more, by the generation that says so, while no agent has answered it: one that was
    taken and not told of may still be there, and would be taken for a new one of its name."""
    restore: Restore | None = None
    """The last one asked for."""
    affinity: tuple[Affinity, ...] = ()
    node_labels: dict[str, str] = field(default_factory=dict)
    """Only nodes with all of these labels will do."""
    created_at: float
    expires_at: float | None = None


class SnapshotState(enum.StrEnum):
    """What the agent sees of a snapshot."""

    READY = "ready"
    FAILED = "failed"


class Snapshot(Record, frozen=True, kw_only=True):
    """A snapshot as its machine's agent sees it."""

    state: SnapshotState
    taken_at: float
    detail: str = ""


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
    failures: int = 0
    """Steps that failed in a row."""
    seen_at: float


class LockInfo(Record, frozen=True, kw_only=True):
    """`/plasmavmc/locks/…`: who works on the machine, and since when (whole seconds)."""

    timestamp: Annotated[int, Meta(ge=0)]
    node_id: str
