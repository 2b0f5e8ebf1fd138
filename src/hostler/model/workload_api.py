"""HTTP API types for workloads, shared by the server, the client and the CLI."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, UnsetType, field

from hostler.model.record import SAYS, OpenEnum, Record
from hostler.model.trace import Reason
from hostler.model.vm import Affinity, Level, OnNodeLoss, RestartPolicy, VmSpec
from hostler.model.vm_api import Labels, VmPhase
from hostler.model.workload import Actual, Rollout, Target, Workload

MAX_NAME = 40
"""Maximum length of a workload name. VM names are derived from it and have at most 63 characters."""
_NAME = r"^[^/\x00-\x1f\x7f]+$"
SAYS[_NAME] = "without '/' and control characters"
WorkloadName = Annotated[str, Meta(min_length=1, max_length=MAX_NAME, pattern=_NAME)]
Instances = Annotated[int, Meta(ge=0, le=1_000_000)]
Place = Annotated[str, Meta(max_length=255)]


class WorkloadRule(Record, frozen=True, kw_only=True):
    """A placement rule relative to other VMs."""

    together: bool
    level: Level
    labels: Labels = field(default_factory=dict)
    """Selects the others: VMs of the project with all of these labels; empty: the instances of this workload."""
    required: bool = True

    def rule(self) -> Affinity:
        """Return the rule as it is stored."""
        return Affinity(together=self.together, level=self.level, labels=self.labels, required=self.required)


class WorkloadApply(Record, frozen=True, kw_only=True):
    """Desired state of a workload."""

    name: WorkloadName
    org: Place = ""
    """Org of its VMs; `workloads` if empty."""
    project: Place = ""
    """Project of its VMs; the folded name of the workload if empty."""
    enabled: bool = True
    """False: its VMs are switched off but not deleted."""
    instances: Instances | UnsetType = UNSET
    """Number of instances. Omitted: unchanged, or 1 for a new workload."""
    spec: VmSpec
    affinity: Annotated[tuple[WorkloadRule, ...], Meta(max_length=16)] = ()
    node_labels: Labels = field(default_factory=dict)
    on_node_loss: OnNodeLoss = OnNodeLoss.WAIT
    restart: RestartPolicy = RestartPolicy.ALWAYS
    rollout: Rollout = Rollout()
    labels: Labels = field(default_factory=dict)


def apply_of(workload: Workload) -> WorkloadApply:
    """Return the request that would create this workload."""
    rules = (
        WorkloadRule(together=rule.together, level=rule.level, labels=rule.labels, required=rule.required)
        for rule in workload.affinity
    )
    return WorkloadApply(
        name=workload.name,
        org=workload.org,
        project=workload.project,
        enabled=workload.enabled,
        instances=workload.instances,
        spec=workload.spec,
        affinity=tuple(rules),
        node_labels=workload.node_labels,
        on_node_loss=workload.loss,
        restart=workload.restart,
        rollout=workload.rollout,
        labels=workload.labels,
    )


class WorkloadScale(Record, frozen=True, kw_only=True):
    """Changes that do not affect the instance template; omitted fields stay unchanged."""

    instances: Instances | UnsetType = UNSET
    enabled: bool | UnsetType = UNSET


class WorkloadPhase(OpenEnum):
    """Summary state of a workload."""

    READY = "ready"
    """Every instance serves and matches the desired state."""
    OFF = "off"
    """The workload is disabled and every VM is off."""
    PENDING = "pending"
    """Some instances have no suitable node, or the project's quota is used up; `detail` says why."""
    UPDATING = "updating"
    """Instances are being replaced by newer ones."""
    CHANGING = "changing"
    """VMs are being created, started, stopped or removed."""
    DELETING = "deleting"


class WorkloadView(Record, frozen=True, kw_only=True):
    """A workload: desired state and progress."""

    name: str
    org: str
    project: str
    enabled: bool
    instances: int
    """Requested number of instances."""
    spec: VmSpec
    affinity: tuple[Affinity, ...]
    node_labels: dict[str, str]
    on_node_loss: OnNodeLoss
    restart: RestartPolicy
    rollout: Rollout
    labels: dict[str, str]
    phase: WorkloadPhase
    detail: str
    """Why it is in this phase, where an explanation is needed."""
    made: int
    """Existing instances, except those being removed."""
    ready: int
    """Of `made`: instances that serve; for a disabled workload, instances that are off."""
    updated: int
    """Of `made`: instances of the newest template."""
    pending: int
    """Of `made`: instances without a node."""
    leaving: int
    settled: bool
    """Whether the desired state is reached."""
    template: int
    generation: int
    created_at: float
    revision: int


class WorkloadPage(Record, frozen=True, kw_only=True):
    """A page of workloads, ordered by name."""

    items: tuple[WorkloadView, ...]
    after: str | None
    """Cursor of the next page; None: this is the last page."""
    revision: int


class InstanceView(Record, frozen=True, kw_only=True):
    """An instance: target and actual state."""

    instance: str
    vm: str
    name: str
    """Name of its VM."""
    phase: VmPhase
    node: str | None
    template: int
    updated: bool
    """It has the newest template."""
    ready: bool
    leaving: bool
    detail: str
    reasons: tuple[Reason, ...]
    """Why that node was chosen, or why none."""
    target: Target | None
    """The scheduler's decision."""
    actual: Actual | None
    """The node's report."""
    created_at: float


class InstancePage(Record, frozen=True, kw_only=True):
    """A page of a workload's instances, ordered by number."""

    items: tuple[InstanceView, ...]
    after: str | None
    """Cursor of the next page; None: this is the last page."""
    revision: int
