"""Workloads: a number of machines of one shape. What was decided and what is are two records with one writer each."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, field

from hostler.model.inventory import Name
from hostler.model.name import fold
from hostler.model.reason import Reason
from hostler.model.record import Record
from hostler.model.vm import Affinity, MachineState, OnNodeLoss, Power, RestartPolicy, VmSpec

ORG = "workloads"
"""Of machines of workloads that name no other."""


class Rollout(Record, frozen=True, kw_only=True):
    """How an update goes through the instances."""

    max_unavailable: Annotated[int, Meta(ge=0, le=10_000)] = 1
    """Instances that may be missing meanwhile."""
    max_surge: Annotated[int, Meta(ge=0, le=10_000)] = 0
    """Instances that there may be above the number wished for meanwhile. Both 0: refused, nothing could move."""


class Workload(Record, frozen=True, kw_only=True):
    """`/workloads/{workload}`: the wish. Written by the workload service, for its owner."""

    name: Name
    org: str = ""
    """Of its machines; `workloads` if empty."""
    project: str = ""
    """Of its machines; the folded name of the workload if empty."""
    enabled: bool = True
    """False: its machines are switched off, and stay."""
    instances: Annotated[int, Meta(ge=0, le=1_000_000)]
    spec: VmSpec
    affinity: tuple[Affinity, ...] = ()
    """A rule without labels speaks of the instances of this workload."""
    node_labels: dict[str, str] = field(default_factory=dict)
    on_node_loss: OnNodeLoss = OnNodeLoss.FENCE
    """New ones say it (`WorkloadApply`: wait). A record that does not is older, and means this."""
    returns: bool = False
    """As of `VirtualMachine`: `fence` was asked for as it is meant now, and its machines return with their disks. In an
    older record `fence` is what `recreate` is now, until it is applied again."""
    restart: RestartPolicy = RestartPolicy.ALWAYS
    rollout: Rollout = Rollout()
    labels: dict[str, str] = field(default_factory=dict)
    generation: int = 1
    """Grows with each change of the wish."""
    template: int = 1
    """Grows with each change of what an instance is made from: those of an older one are replaced."""
    had: int = 0
    """Instances that could be had when the template changed: no quota and no want of nodes stood in their way."""
    deleting: bool = False
    held: str = ""
    """The id of the control plane whose records are being moved here, this workload among them: until all of its
    machines have come nothing is decided about it. Empty: nothing holds it."""
    created_at: float = 0.0

    @property
    def home(self) -> tuple[str, str]:
        """Org and project of its machines."""
        return self.org or ORG, self.project or fold(self.name)

    @property
    def loss(self) -> OnNodeLoss:
        """What `on_node_loss` means: `recreate` where an older record says `fence`."""
        old = self.on_node_loss is OnNodeLoss.FENCE and not self.returns
        return OnNodeLoss.RECREATE if old else self.on_node_loss

    @property
    def power(self) -> Power:
        """What its machines shall be."""
        return Power.ON if self.enabled else Power.OFF


class WorkloadInstance(Record, frozen=True, kw_only=True):
    """`/workload/{workload}/instances/{instance}`: the index; written in one transaction with the target."""

    instance: Name
    """Its number."""
    vm: str = ""
    """The id of its machine."""
    template: int = 1
    """Of the workload, that it was made from."""
    leaving: bool = False
    """Its machine is being removed, and it goes with it."""
    created_at: float


class Target(Record, frozen=True, kw_only=True):
    """`…/instance/{instance}/target`: what the scheduler decided. Written by it alone."""

    node: str | None
    """None: no node will do; the reasons tell why."""
    power: Power = Power.ON
    vm: str = ""
    generation: int = 1
    reasons: tuple[Reason, ...] = ()
    decided_at: float


class Actual(Record, frozen=True, kw_only=True):
    """`…/instance/{instance}/actual`: what the node saw. Written by its agent alone."""

    node: str
    state: MachineState
    vm: str = ""
    generation: int = 0
    """Of the target that this answers."""
    detail: str = ""
    seen_at: float


def instance_of(workload: str, number: int | str) -> str:
    """How machines and commands call an instance; `workload` is the folded name."""
    return f"{workload}/{number}"


def instance_parts(instance: str) -> dict[str, Any] | None:
    """The parts of an instance's keys; None: it is nobody's."""
    workload, slash, number = instance.rpartition("/")
    return {"workload": workload, "instance": number} if slash and workload and number else None
