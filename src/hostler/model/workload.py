"""Workloads: a number of identical VMs. Target and actual state are two records with one writer each."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, field

from hostler.model.inventory import Name
from hostler.model.name import fold
from hostler.model.record import Record
from hostler.model.trace import Reason
from hostler.model.vm import Affinity, MachineState, OnNodeLoss, Power, RestartPolicy, VmSpec

ORG = "workloads"
"""Default org of the VMs of a workload."""


class Rollout(Record, frozen=True, kw_only=True):
    """Limits for replacing instances during an update."""

    max_unavailable: Annotated[int, Meta(ge=0, le=10_000)] = 1
    """Maximum number of unavailable instances during an update."""
    max_surge: Annotated[int, Meta(ge=0, le=10_000)] = 0
    """Maximum number of instances above the requested number during an update. Refused if both limits are 0."""


class Workload(Record, frozen=True, kw_only=True):
    """`/workloads/{workload}`: the desired state. Written by the workload service on behalf of the owner."""

    name: Name
    org: str = ""
    """Org of its VMs; `workloads` if empty."""
    project: str = ""
    """Project of its VMs; the folded name of the workload if empty."""
    enabled: bool = True
    """False: its VMs are switched off but not deleted."""
    instances: Annotated[int, Meta(ge=0, le=1_000_000)]
    spec: VmSpec
    affinity: tuple[Affinity, ...] = ()
    """Placement rules. A rule without labels refers to the instances of this workload."""
    node_labels: dict[str, str] = field(default_factory=dict)
    on_node_loss: OnNodeLoss = OnNodeLoss.FENCE
    """Explicit in new records (default of `WorkloadApply`: wait). A record without it is older and means `fence`."""
    returns: bool = False
    """As in `VirtualMachine`: `fence` has its current meaning, and its VMs return with their disks. In an older record
    `fence` means what `recreate` means now, until the workload is applied again."""
    restart: RestartPolicy = RestartPolicy.ALWAYS
    rollout: Rollout = Rollout()
    labels: dict[str, str] = field(default_factory=dict)
    generation: int = 1
    """Grows with each change of the desired state."""
    template: int = 1
    """Grows with each change of the instance template. Instances of an older template are replaced."""
    had: int = 0
    """Number of instances that could be placed, given quota and nodes, when the template changed."""
    deleting: bool = False
    held: str = ""
    """The id of a control plane whose records, including this workload, are being moved here. The workload is not
    reconciled until all of its VMs have been moved. Empty: not held."""
    created_at: float = 0.0

    @property
    def home(self) -> tuple[str, str]:
        """Return org and project of its VMs."""
        return self.org or ORG, self.project or fold(self.name)

    @property
    def loss(self) -> OnNodeLoss:
        """Return the effective `on_node_loss`: `recreate` where an older record says `fence`."""
        old = self.on_node_loss is OnNodeLoss.FENCE and not self.returns
        return OnNodeLoss.RECREATE if old else self.on_node_loss

    @property
    def power(self) -> Power:
        """Return the desired power state of its VMs."""
        return Power.ON if self.enabled else Power.OFF


class WorkloadInstance(Record, frozen=True, kw_only=True):
    """`/workload/{workload}/instances/{instance}`: the instance index, written in one transaction with the target."""

    instance: Name
    """Instance number."""
    vm: str = ""
    """The id of its VM."""
    template: int = 1
    """The workload template that it was created from."""
    leaving: bool = False
    """Its VM is being removed; the instance is removed with it."""
    created_at: float


class Target(Record, frozen=True, kw_only=True):
    """`…/instance/{instance}/target`: the scheduler's decision. Written only by the scheduler."""

    node: str | None
    """None: no node is suitable; `reasons` says why."""
    power: Power = Power.ON
    vm: str = ""
    generation: int = 1
    reasons: tuple[Reason, ...] = ()
    decided_at: float


class Actual(Record, frozen=True, kw_only=True):
    """`…/instance/{instance}/actual`: the state observed on the node. Written only by its agent."""

    node: str
    state: MachineState
    vm: str = ""
    generation: int = 0
    """The generation of the target that this reports on."""
    detail: str = ""
    seen_at: float


def instance_of(workload: str, number: int | str) -> str:
    """Return the name of an instance in VMs and commands; `workload` is the folded name."""
    return f"{workload}/{number}"


def instance_parts(instance: str) -> dict[str, Any] | None:
    """Return the parts of an instance's keys, or None if the text names no instance."""
    workload, slash, number = instance.rpartition("/")
    return {"workload": workload, "instance": number} if slash and workload and number else None
