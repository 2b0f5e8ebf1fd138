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
    """What the agent sees."""

    CREATING = "creating"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"
    DELETING = "deleting"


class VmSpec(Record, frozen=True, kw_only=True):
    """The shape of a machine."""

    cpus: Cpus
    memory_mib: MemoryMib
    disk_gib: DiskGib = 0
    image: str = ""
    """The default image of the machine driver if empty."""
    user_data: str = ""
    ssh_keys: tuple[str, ...] = ()


class VirtualMachine(Record, frozen=True, kw_only=True):
    """`/plasmavmc/vms/…`: what is wished for. Written by the VM service and by the leader's placement."""

    id: Id
    name: str
    org: Id
    project: Id
    spec: VmSpec
    power: Power = Power.ON
    deleting: bool = False
    generation: int = 1
    """Grows with each change of the wish; a report about an older one is out of date."""
    node: str | None = None
    reasons: tuple[Reason, ...] = ()
    """Of the placement; while there is no node, why there is none."""
    labels: dict[str, str] = field(default_factory=dict)
    on_node_loss: OnNodeLoss = OnNodeLoss.WAIT
    created_at: float
    expires_at: float | None = None


class VmHandle(Record, frozen=True, kw_only=True):
    """`/plasmavmc/handles/…`: the machine as its agent sees it. Written by that agent."""

    id: Id
    node: Id
    driver: str
    machine: str = ""
    """The provider's id of it."""
    state: MachineState
    generation: int = 0
    """Of the wish that this answers."""
    address: str = ""
    detail: str = ""
    seen_at: float


class LockInfo(Record, frozen=True, kw_only=True):
    """`/plasmavmc/locks/…`: who works on the machine, and since when (whole seconds)."""

    timestamp: Annotated[int, Meta(ge=0)]
    node_id: str
