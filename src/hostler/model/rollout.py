"""Records about deployments beyond the contract: history, slice ownership, rollout progress, alerts and routers."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from hostler.model.deployment import AlertRule, ArtifactText, BaseText, Blueprint, SliceSettings, Strategy
from hostler.model.record import OpenEnum, Record
from hostler.model.trace import Reason

BLUEPRINT_NAME = r"^[a-z0-9][a-z0-9._-]{0,62}$(?!\n)"


class BlueprintRevision(Record, frozen=True, kw_only=True):
    """`/hostler/v1/blueprint-history/{blueprint}/{number}`: an applied blueprint. Written with the blueprint."""

    number: Annotated[int, Meta(ge=1)]
    blueprint: Blueprint
    by: str
    at: float
    rollback_to: int = 0
    """The revision number that this one restores; 0: it is not a rollback."""
    deleted: bool = False
    """The blueprint was deleted; this record holds its last content."""


class ArtifactRecord(Record, frozen=True, kw_only=True):
    """`/hostler/v1/artifacts/{artifact}`: a published artifact. It never changes.

    The file is in the repositories of replicas. A file is valid if it has this checksum.
    """

    artifact: str
    """`group:name:version`."""
    file: str
    """File name: a wheel or a module."""
    sha256: str
    size: int
    module: str
    """The module to import."""
    requires: tuple[str, ...] = ()
    """Other packages that it depends on."""
    published_at: float = 0.0


class SliceOwner(Record, frozen=True, kw_only=True):
    """`/hostler/v1/slice-owners/{base}`: the one blueprint that owns a slice. Written together with that blueprint.

    The leader deletes it once the blueprint no longer names the slice and no instance is left.
    """

    blueprint: str
    number: int
    """The blueprint revision that last named the slice."""


class Phase(OpenEnum):
    """Phase of a deployment."""

    STARTING = "starting"
    """The first version starts; there is no previous version."""
    ROLLING = "rolling"
    CANARY = "canary"
    """A canary stage is in progress."""
    STANDBY = "standby"
    """Blue-green: the new instances start and receive no calls yet."""
    KEEPING = "keeping"
    """Blue-green: all calls go to the new instances; the old instances are kept for a rollback."""
    BACKING_OUT = "backing_out"
    """The new version failed and is being removed; the old version serves."""
    FAILED = "failed"
    """The new version was given up. The previous version serves; the next apply tries again."""
    DONE = "done"
    REMOVING = "removing"
    """No blueprint names the slice any more; its instances are being removed."""


class Move(Record, frozen=True, kw_only=True):
    """An instance moving to another node: the new instance is loaded, the old one still serves."""

    source: str
    target: str
    why: str = ""
    at: float = 0.0


class Promotion(OpenEnum):
    """How far a user promotes a rollout."""

    NEXT = "next"
    """To the next stage."""
    ALL = "all"
    """To its end."""


class RolloutControl(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A user's commands for the current rollout. They end with the rollout.

    The service writes them. The leader executes them and clears what it executed in the same transaction.
    """

    paused: bool = False
    """No traffic share grows and no old instance is replaced. Gates are still evaluated."""
    approved: bool = False
    """A user approved the current stage."""
    awaiting: bool = False
    """The current stage waits for approval. Written by the leader."""
    promote: Promotion | None = None
    """Pending promotion, to be executed by the leader."""
    force: bool = False
    """Promote even if the measurements exceed the limits of the gate."""
    abort: bool = False
    """Pending abort, to be executed by the leader: return to the previous version."""
    by: str = ""
    """The user who gave the last command."""
    at: float = 0.0
    answer: str = ""
    """Why the leader refused the last promotion; empty: it was not refused."""


class Deployment(Record, frozen=True, kw_only=True):
    """`/hostler/v1/deployments/{base}`: progress of a slice towards the state that its blueprint specifies.

    The leader writes it under its fence, and the next leader continues from it. The service writes only `control`. Both
    compare the revision that they read. Routers read `weights`.
    """

    blueprint: str
    number: int
    """The blueprint revision that it follows."""
    artifact: ArtifactText
    """The target version."""
    template: int = 0
    """Version number of `settings`, incremented with each change; 0: the default settings."""
    settings: SliceSettings = SliceSettings()
    needs: tuple[str, ...] = ()
    """Dependencies of the version, as `SliceSpec.needs`."""
    strategy: Strategy = Strategy()
    """The strategy when the upgrade began. A later change of the strategy alone applies to the next upgrade."""
    previous: str = ""
    """The artifact that served before, during an upgrade and after a failed one; empty: none."""
    previous_template: int = 0
    previous_settings: SliceSettings = SliceSettings()
    previous_needs: tuple[str, ...] = ()
    phase: Phase
    stage: int = 0
    """Canary stage, counted from 0."""
    weights: dict[str, Annotated[int, Meta(ge=0, le=100)]] = field(default_factory=dict)
    """Percentage of the calls of `group:name` by artifact; empty: evenly over all artifacts with endpoints."""
    scale: int | None = None
    """Number of instances chosen by autoscaling; None: the number in the blueprint."""
    scaled_at: float = 0.0
    needed_at: float = 0.0
    """When autoscaling last found that no fewer instances suffice, accurate to a quarter of its cool-down."""
    started_at: float
    changed_at: float
    """When phase, stage or weights last changed. Call counts restart at this time."""
    why: str = ""
    """Why the deployment is in this phase, in one sentence."""
    move: Move | None = None
    """The rebalancing move in progress."""
    moved_at: float = 0.0
    """When the last rebalancing move ended."""
    control: RolloutControl = RolloutControl()


class Retries(Record, frozen=True, kw_only=True):
    """`/hostler/v1/slice-retries/{artifact}`: failures of the instances of an artifact. Written only by the leader."""

    failures: int = 0
    """Consecutive failures without an instance that became active."""
    total: int = 0
    not_before: float = 0.0
    """No instance is loaded again before this time."""
    nodes: dict[str, int] = field(default_factory=dict)
    """Failures by node. Nodes with fewer failures are tried first."""
    given_up: bool = False
    why: str = ""
    """Reason of the last failure."""
    at: float = 0.0


class SliceDecision(Record, frozen=True, kw_only=True):
    """`/hostler/v1/slice-decisions/{artifact}`: the last placement of its instances, with all reasons."""

    chosen: tuple[Reason, ...]
    """By node: which instances were placed there, and why."""
    passed_over: tuple[Reason, ...] = ()
    """By node or kind of reason: why no instance was placed there."""
    waiting: int = 0
    """Instances for which no node was found."""
    fence: int = 0
    at: float


class AlertState(OpenEnum):
    """State of an alert that has fired at least once."""

    FIRING = "firing"
    RESOLVED = "resolved"


class Alert(Record, frozen=True, kw_only=True):
    """`/hostler/v1/alerts/{base}/{alert}`: the state of an alert that fired. Written only by the leader.

    An alert that never fired has no record. The record is deleted with its rule.
    """

    blueprint: str
    rule: AlertRule
    """The rule when the state last changed."""
    state: AlertState
    value: float
    """The measured value when the state last changed."""
    at: float
    """When the state last changed."""
    why: str = ""
    fired: int = 1
    """Number of times it has fired."""


class RouterRecord(Record, frozen=True, kw_only=True):
    """`/hostler/v1/routers/{router}`: a process that calls slices. Attached to its lease.

    Workers accept calls that carry the token whose SHA-256 is stored here. The leader queries `address` for
    measurements.
    """

    router: str
    token_sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$(?!\n)")]
    address: str = ""
    """`host:port` that serves its measurements; empty: it serves none."""
    node: str = ""
    """The node, if the router runs in an agent."""
    started_at: float


__all__ = [
    "BLUEPRINT_NAME",
    "Alert",
    "AlertState",
    "BaseText",
    "BlueprintRevision",
    "Deployment",
    "Move",
    "Phase",
    "Promotion",
    "Retries",
    "RolloutControl",
    "RouterRecord",
    "SliceDecision",
    "SliceOwner",
]
