"""What the HTTP API takes and gives about workloads: shared by the server, the client and the command line."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, UnsetType, field

from hostler.model.api import Labels, Phase
from hostler.model.reason import Reason
from hostler.model.record import SAYS, OpenEnum, Record
from hostler.model.vm import Affinity, Level, OnNodeLoss, RestartPolicy, VmSpec
from hostler.model.workload import Actual, Rollout, Target, Workload

MAX_NAME = 40
"""Of a workload: its machines are called after it, and theirs have 63 characters."""
_NAME = r"^[^/\x00-\x1f\x7f]+$"
SAYS[_NAME] = "without '/' and control characters"
WorkloadName = Annotated[str, Meta(min_length=1, max_length=MAX_NAME, pattern=_NAME)]
Instances = Annotated[int, Meta(ge=0, le=1_000_000)]
Place = Annotated[str, Meta(max_length=255)]


class WorkloadRule(Record, frozen=True, kw_only=True):
    """Where an instance stands in relation to others."""

    together: bool
    level: Level
    labels: Labels = field(default_factory=dict)
    """Who the others are: machines of the project with all of these labels; none: the instances of this workload."""
    required: bool = True

    def rule(self) -> Affinity:
        """As it is kept."""
        return Affinity(together=self.together, level=self.level, labels=self.labels, required=self.required)


class WorkloadApply(Record, frozen=True, kw_only=True):
    """A workload as it shall be."""

    name: WorkloadName
    org: Place = ""
    """Of its machines; `workloads` if empty."""
    project: Place = ""
    """Of its machines; the folded name of the workload if empty."""
    enabled: bool = True
    """False: its machines are switched off, and stay."""
    instances: Instances | UnsetType = UNSET
    """Left out: as many as there shall be already, or one."""
    spec: VmSpec
    affinity: Annotated[tuple[WorkloadRule, ...], Meta(max_length=16)] = ()
    node_labels: Labels = field(default_factory=dict)
    on_node_loss: OnNodeLoss = OnNodeLoss.WAIT
    restart: RestartPolicy = RestartPolicy.ALWAYS
    rollout: Rollout = Rollout()
    labels: Labels = field(default_factory=dict)


def apply_of(workload: Workload) -> WorkloadApply:
    """What asks for this workload."""
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
    """Changes that leave what instances are made from as it is; what is left out stays."""

    instances: Instances | UnsetType = UNSET
    enabled: bool | UnsetType = UNSET


class WorkloadPhase(OpenEnum):
    """How it stands with a workload, in one word."""

    READY = "ready"
    """Every instance serves, and is as it shall be."""
    OFF = "off"
    """It is not enabled, and every machine is off."""
    PENDING = "pending"
    """For some instances no node will do, or their project may have no more; `detail` says why."""
    UPDATING = "updating"
    """Instances are being replaced by newer ones."""
    CHANGING = "changing"
    """Something is on its way: machines are made, started, stopped or removed."""
    DELETING = "deleting"


class WorkloadView(Record, frozen=True, kw_only=True):
    """A workload: what is wished for, and how far that is."""

    name: str
    org: str
    project: str
    enabled: bool
    instances: int
    """That are wished for."""
    spec: VmSpec
    affinity: tuple[Affinity, ...]
    node_labels: dict[str, str]
    on_node_loss: OnNodeLoss
    restart: RestartPolicy
    rollout: Rollout
    labels: dict[str, str]
    phase: WorkloadPhase
    detail: str
    """Why it is in this phase, where that needs saying."""
    made: int
    """Instances that there are, without those that are going."""
    ready: int
    """Of those: that serve; of a workload that is not enabled, that are off."""
    updated: int
    """Of those: that are of the newest template."""
    pending: int
    """Of those: that have no node."""
    leaving: int
    settled: bool
    """Whether all that is wished for has been done."""
    template: int
    generation: int
    created_at: float
    revision: int


class WorkloadPage(Record, frozen=True, kw_only=True):
    """A page of workloads, in order of their names."""

    items: tuple[WorkloadView, ...]
    after: str | None
    """For the next page; None: this is the last."""
    revision: int


class InstanceView(Record, frozen=True, kw_only=True):
    """An instance: what was decided, and what is."""

    instance: str
    vm: str
    name: str
    """Its machine's."""
    phase: Phase
    node: str | None
    template: int
    updated: bool
    """It is of the newest template."""
    ready: bool
    leaving: bool
    detail: str
    reasons: tuple[Reason, ...]
    """Why that node, or why none."""
    target: Target | None
    """What the scheduler decided."""
    actual: Actual | None
    """What the node reported."""
    created_at: float


class InstancePage(Record, frozen=True, kw_only=True):
    """A page of a workload's instances, in order of their numbers."""

    items: tuple[InstanceView, ...]
    after: str | None
    """For the next page; None: this is the last."""
    revision: int
