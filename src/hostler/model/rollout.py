"""What Hostler keeps of deployments beside the contract's records: history, who owns a slice, how far an upgrade is."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from hostler.model.deployment import AlertRule, ArtifactText, BaseText, Blueprint, SliceSettings, Strategy
from hostler.model.reason import Reason
from hostler.model.record import OpenEnum, Record

BLUEPRINT_NAME = r"^[a-z0-9][a-z0-9._-]{0,62}$(?!\n)"


class BlueprintRevision(Record, frozen=True, kw_only=True):
    """`/hostler/v1/blueprint-history/{blueprint}/{number}`: what was applied. Written with the blueprint itself."""

    number: Annotated[int, Meta(ge=1)]
    blueprint: Blueprint
    by: str
    at: float
    rollback_to: int = 0
    """The number whose blueprint this one brings back; 0: it is no rollback."""
    deleted: bool = False
    """The blueprint was deleted; what stands here is what it said at last."""


class ArtifactRecord(Record, frozen=True, kw_only=True):
    """`/hostler/v1/artifacts/{artifact}`: an artifact that was published. It never changes.

    Its file is in the repositories of replicas. A file counts if it has this checksum.
    """

    artifact: str
    """`group:name:version`."""
    file: str
    """Its file's name: a wheel, or a module."""
    sha256: str
    size: int
    module: str
    """What is imported."""
    requires: tuple[str, ...] = ()
    """Other packages that it needs."""
    published_at: float = 0.0


class SliceOwner(Record, frozen=True, kw_only=True):
    """`/hostler/v1/slice-owners/{base}`: the blueprint that a slice belongs to. Written with it; one has it at most.

    It is taken away by the leader, once the blueprint does not name the slice any more and nothing of it is left.
    """

    blueprint: str
    number: int
    """Of the blueprint's revision that last named it."""


class Phase(OpenEnum):
    """Where a deployment is."""

    STARTING = "starting"
    """The first version comes up; there is none before it."""
    ROLLING = "rolling"
    CANARY = "canary"
    """A stage is held."""
    STANDBY = "standby"
    """Blue-green: the new instances come up, and no call goes to them."""
    KEEPING = "keeping"
    """Blue-green: all calls go to the new instances, and the old ones are still there."""
    BACKING_OUT = "backing_out"
    """The new version failed, and goes; the old one serves."""
    FAILED = "failed"
    """The new version was given up. What served before serves; a new apply tries again."""
    DONE = "done"
    REMOVING = "removing"
    """No blueprint names the slice any more."""


class Move(Record, frozen=True, kw_only=True):
    """An instance that moves to another node: the new one was loaded, the old one still serves."""

    source: str
    target: str
    why: str = ""
    at: float = 0.0


class Promotion(OpenEnum):
    """How far a person promotes a rollout."""

    NEXT = "next"
    """To the next stage."""
    ALL = "all"
    """To its end."""


class RolloutControl(Record, frozen=True, kw_only=True, omit_defaults=True):
    """What a person ordered for the rollout that is under way. It ends with the rollout.

    The service writes it; the leader carries it out, and clears what it carried out in the same transaction.
    """

    paused: bool = False
    """No share of the calls grows and no old instance is replaced. Gates are still judged."""
    approved: bool = False
    """A person approved the present stage."""
    awaiting: bool = False
    """The present stage waits for approval. Written by the leader."""
    promote: Promotion | None = None
    """To be carried out by the leader."""
    force: bool = False
    """Promote although what was measured exceeds the limits of the gate."""
    abort: bool = False
    """To be carried out by the leader: go back to the version before."""
    by: str = ""
    """Who gave the last order."""
    at: float = 0.0
    answer: str = ""
    """Why the leader refused the last promotion; empty: it did not."""


class Deployment(Record, frozen=True, kw_only=True):
    """`/hostler/v1/deployments/{base}`: how far the slice is on its way to what the blueprint says.

    The leader writes it under its fence, and the next leader goes on from it. The service writes `control` alone. Both
    compare the revision that they read. Routers read `weights`.
    """

    blueprint: str
    number: int
    """Of the blueprint's revision that it follows."""
    artifact: ArtifactText
    """The version that it is on its way to, or is at."""
    template: int = 0
    """Of `settings`; grows with each change of them, 0 stands for the usual ones."""
    settings: SliceSettings = SliceSettings()
    needs: tuple[str, ...] = ()
    """What the version needs, as `SliceSpec.needs`."""
    strategy: Strategy = Strategy()
    """As the upgrade began: a change of the strategy alone is for the next."""
    previous: str = ""
    """The artifact that served before, while an upgrade is under way or after it failed; empty: none."""
    previous_template: int = 0
    previous_settings: SliceSettings = SliceSettings()
    previous_needs: tuple[str, ...] = ()
    phase: Phase
    stage: int = 0
    """Of a canary, counted from 0."""
    weights: dict[str, Annotated[int, Meta(ge=0, le=100)]] = field(default_factory=dict)
    """Per cent of the calls of `group:name`, by artifact; empty: every artifact that has endpoints, evenly."""
    scale: int | None = None
    """The number of instances that autoscaling wants; None: what the blueprint says."""
    scaled_at: float = 0.0
    needed_at: float = 0.0
    """When autoscaling last found that no fewer were enough, within a quarter of its cool-down."""
    started_at: float
    changed_at: float
    """When phase, stage or weights last changed: calls are counted anew from here on."""
    why: str = ""
    """How it came to be here, in one sentence."""
    move: Move | None = None
    """The rebalancing move that is under way."""
    moved_at: float = 0.0
    """When the last move ended."""
    control: RolloutControl = RolloutControl()


class Retries(Record, frozen=True, kw_only=True):
    """`/hostler/v1/slice-retries/{artifact}`: failures of its instances. Written by the leader alone."""

    failures: int = 0
    """In a row, without one that became active."""
    total: int = 0
    not_before: float = 0.0
    """No instance is loaded anew before this instant."""
    nodes: dict[str, int] = field(default_factory=dict)
    """Failures by node: others are tried first."""
    given_up: bool = False
    why: str = ""
    """Of the last failure."""
    at: float = 0.0


class SliceDecision(Record, frozen=True, kw_only=True):
    """`/hostler/v1/slice-decisions/{artifact}`: the last placement of its instances, with all its reasons."""

    chosen: tuple[Reason, ...]
    """By node: which instances, and why there."""
    passed_over: tuple[Reason, ...] = ()
    """By node or by kind of objection: why not there."""
    waiting: int = 0
    """Instances for which there was no node."""
    fence: int = 0
    at: float


class AlertState(OpenEnum):
    """Of an alert that fired once."""

    FIRING = "firing"
    RESOLVED = "resolved"


class Alert(Record, frozen=True, kw_only=True):
    """`/hostler/v1/alerts/{base}/{alert}`: an alert of a slice that fires, or fired last. Written by the leader alone.

    There is none for an alert that never fired. It goes with its rule.
    """

    blueprint: str
    rule: AlertRule
    """As it was when the state last changed."""
    state: AlertState
    value: float
    """What was measured when the state last changed."""
    at: float
    """When the state last changed."""
    why: str = ""
    fired: int = 1
    """How often it has fired."""


class RouterRecord(Record, frozen=True, kw_only=True):
    """`/hostler/v1/routers/{router}`: a process that calls slices. Goes with its lease.

    Workers take calls from whoever shows the token whose SHA-256 stands here; the leader asks its `address` for what
    was measured.
    """

    router: str
    token_sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$(?!\n)")]
    address: str = ""
    """`host:port` that tells what it measured; empty: nobody can ask."""
    node: str = ""
    """Of an agent."""
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
