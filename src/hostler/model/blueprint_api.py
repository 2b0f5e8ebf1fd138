"""What the HTTP API takes and gives about blueprints, slices and endpoints.

Shared by the server, the client and the command line. The rules are those of `hostler.model.api`.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from hostler.model.deployment import AlertMetric, Approval, BaseText, SliceSpec, SliceState, StrategyKind
from hostler.model.reason import Reason
from hostler.model.record import OpenEnum, Record
from hostler.model.rollout import Phase

MAX_SLICES = 100
"""Of one blueprint: it is applied in one transaction, and that has 128 operations."""


class BlueprintDocument(Record, frozen=True, kw_only=True):
    """A blueprint as it shall be: what its file holds, in JSON."""

    kind = "blueprint"

    slices: Annotated[tuple[SliceSpec, ...], Meta(min_length=1, max_length=MAX_SLICES)]


class BlueprintFile(Record, frozen=True, kw_only=True):
    """A blueprint as somebody writes it: JSON or TOML."""

    text: Annotated[str, Meta(max_length=1024 * 1024)]
    file: Annotated[str, Meta(max_length=255)] = ""
    """What the file is called: `.json` or `.toml` tells what it is; else it is seen from the text."""


class BlueprintFault(Record, frozen=True, kw_only=True):
    """Something that is wrong with a file."""

    place: str
    """`slices[2].artifact`; empty: the whole."""
    line: int
    """Where to look, counted from 1; 0: nobody knows."""
    what: str


class BlueprintRead(Record, frozen=True, kw_only=True):
    """What a file holds."""

    name: str
    """Empty: it does not say."""
    slices: tuple[SliceSpec, ...]
    faults: tuple[BlueprintFault, ...]
    """As far as can be seen from it alone; none: it can be planned."""
    warnings: tuple[BlueprintFault, ...] = ()
    """Of a file of Aether's: what has no meaning here, and was left out."""


class BlueprintRollback(Record, frozen=True, kw_only=True):
    """Which revision to bring back."""

    to: Annotated[int, Meta(ge=0, le=2**53)] = 0
    """A number of its history; 0: the last one that said something else."""


class BlueprintPhase(OpenEnum):
    """How it stands with a blueprint, or one of its slices, in one word."""

    READY = "ready"
    """All that it wishes for serves."""
    CHANGING = "changing"
    """Something is on its way."""
    WAITING = "waiting"
    """Some instances have no node, or what they need is not there; `detail` says which and why."""
    FAILED = "failed"
    """A version was given up. What served before serves; apply again to try again."""
    REMOVING = "removing"
    """It was deleted, and what is left of it goes."""

    @property
    def is_calm(self) -> bool:
        """Whether nothing has to be done, or nothing will be."""
        return self in (BlueprintPhase.READY, BlueprintPhase.FAILED)


class BlueprintView(Record, frozen=True, kw_only=True):
    """A blueprint, and how far it is in a word."""

    name: str
    number: int
    """Of its revision: it grows with each apply that changes something; 0: nobody knows it."""
    slices: tuple[SliceSpec, ...]
    phase: BlueprintPhase
    detail: str
    """Why it is in this phase, where that needs saying."""
    instances: int
    """That it wishes for, of all its slices."""
    ready: int
    """Of those: that serve."""
    settled: bool
    """Whether all that is wished for has been done."""
    revision: int
    firing: tuple[str, ...] = ()
    """Alerts that fire now: `group:name alert`."""


class BlueprintPage(Record, frozen=True, kw_only=True):
    """Blueprints in order of their names."""

    items: tuple[BlueprintView, ...]
    after: str | None
    """For the next page; None: this is the last."""
    revision: int


# How far it is


class NodeCount(Record, frozen=True, kw_only=True):
    """Instances on a node."""

    node: str
    instances: int
    ready: int


class VersionStatus(Record, frozen=True, kw_only=True):
    """What there is of one version of a slice."""

    artifact: str
    weight: int | None
    """Per cent of the calls that it gets; None: its share of the instances."""
    ready: int
    states: dict[str, int]
    """How many instances are in each state."""
    nodes: tuple[NodeCount, ...]
    """The first of them, by name."""
    more_nodes: int = 0
    """Nodes that are not named."""
    failures: int = 0
    """In a row, without an instance that became active."""
    retry_at: float = 0.0
    """None is loaded anew before this instant."""
    given_up: bool = False
    why: str = ""
    """Of its last failure."""


class StageView(Record, frozen=True, kw_only=True):
    """A step of a canary."""

    weight: int
    """Per cent of the calls."""
    hold: float
    """Seconds."""


class GateView(Record, frozen=True, kw_only=True):
    """What a canary is held to at each stage."""

    max_error_rate: float
    max_latency_ms: float | None
    """For 95 of 100 calls; None: not looked at."""
    min_calls: int


class AlertView(Record, frozen=True, kw_only=True):
    """An alert of a slice."""

    name: str
    metric: AlertMetric
    above: float | None
    below: float | None
    after: float
    clear: float | None
    firing: bool
    value: float | None = None
    """What was measured when it last fired or resolved; None: it never fired."""
    since: float | None = None
    """When it last fired or resolved."""
    why: str = ""
    fired: int = 0
    """How often it has fired."""


class RolloutVerb(OpenEnum):
    """What a person can order for a rollout."""

    PROMOTE = "promote"
    PAUSE = "pause"
    RESUME = "resume"
    APPROVE = "approve"
    ABORT = "abort"


class RolloutView(Record, frozen=True, kw_only=True):
    """How one version follows another: the upgrade that is under way, or the last one."""

    stages: tuple[StageView, ...]
    """Of a canary."""
    gate: GateView | None
    """Of a canary."""
    bake: float
    """Of a blue-green deployment: seconds that the new instances stand ready first."""
    keep: float
    """Of a blue-green deployment: seconds that the old ones stay afterwards."""
    started_at: float
    changed_at: float
    """When phase, stage or weights last changed: a gate counts calls from here on."""
    why: str
    """How it came to be where it is, in one sentence."""
    approval: Approval = Approval.AUTOMATIC
    paused: bool = False
    awaits_approval: bool = False
    ordered: RolloutVerb | None = None
    """`promote` or `abort`: ordered, and not yet carried out by the leader."""
    ordered_by: str = ""
    """Who gave the last order."""
    refused: str = ""
    """Why the leader did not carry out the last promotion; empty: it did."""
    actions: tuple[RolloutVerb, ...] = ()
    """What can be ordered now."""


class RolloutSelection(Record, frozen=True, kw_only=True):
    """Which rollouts of a blueprint an order is for."""

    slice: BaseText | None = None
    """`group:name`; None: every slice of the blueprint that the order is possible for."""
    seen: Annotated[dict[BaseText, float], Meta(max_length=MAX_SLICES)] = field(default_factory=dict)
    """By slice: the `changed_at` of its rollout as it was seen. 409 if a rollout has gone on since."""


class RolloutPromotion(RolloutSelection, frozen=True, kw_only=True):
    """How far to promote."""

    all: bool = False
    """To the end, not to the next stage."""
    force: bool = False
    """Although what was measured exceeds the limits of the gate."""


class SliceStatus(Record, frozen=True, kw_only=True):
    """How far a slice is."""

    base: str
    """`group:name`."""
    artifact: str
    """The version that is wished for; empty: none is any more."""
    previous: str
    """The version that served before, while one follows the other; empty: none."""
    phase: BlueprintPhase
    step: Phase | None
    """Where its deployment is; None: the leader has not looked at it yet."""
    strategy: StrategyKind
    stage: int
    """Of a canary: which stage is held, counted from 1; 0: none."""
    stages: int
    """Of a canary: how many there are."""
    detail: str
    """Why it waits, or failed, or what it is doing."""
    wished: int
    """Instances that there shall be."""
    ready: int
    """Instances that serve, of any version."""
    leaving: int
    failed: int
    weights: dict[str, int]
    versions: tuple[VersionStatus, ...]
    needs: tuple[str, ...]
    reasons: tuple[Reason, ...] = ()
    """Of the last placement: why some wait, by node or kind of objection."""
    since: float | None = None
    """When its phase last changed."""
    rollout: RolloutView | None = None
    """None: the leader has not looked at it yet."""
    alerts: tuple[AlertView, ...] = ()


class BlueprintStatus(Record, frozen=True, kw_only=True):
    """How far a blueprint is, slice by slice."""

    name: str
    number: int
    phase: BlueprintPhase
    detail: str
    settled: bool
    slices: tuple[SliceStatus, ...]
    revision: int
    """Of the blueprint; 0: it was deleted."""


# What was measured


class VersionCalls(Record, frozen=True, kw_only=True):
    """Calls of one version, over all routers. The last four have an element for each second in which there were any."""

    artifact: str
    calls: int
    """Since `since`, as a gate counts them."""
    errors: int
    p95_ms: float
    """Of the last minute, since `since`."""
    in_flight: float
    since: float
    at: tuple[int, ...]
    """Seconds since 1970, growing."""
    called: tuple[int, ...]
    failed: tuple[int, ...]
    latency_ms: tuple[float, ...]
    """Within which 95 of 100 were answered."""


class SliceCalls(Record, frozen=True, kw_only=True):
    """Calls of a slice, by version."""

    base: str
    versions: tuple[VersionCalls, ...]


class BlueprintCalls(Record, frozen=True, kw_only=True):
    """What the routers measured of the slices of a blueprint in the last minutes. Nothing of it is stored."""

    name: str
    now: float
    kept: int
    """Seconds for which routers remember."""
    slices: tuple[SliceCalls, ...]


# What an apply would do


class Planned(Record, frozen=True, kw_only=True):
    """Instances on one node."""

    node: str
    instances: int
    why: str = ""


class PlannedMove(Record, frozen=True, kw_only=True):
    """Instances that go from one node to another: their node is being emptied."""

    source: str
    target: str
    instances: int
    why: str = ""


class SliceChange(OpenEnum):
    """What happens to a slice."""

    ADD = "add"
    UPGRADE = "upgrade"
    """Another version."""
    SETTINGS = "settings"
    """Its instances are replaced by ones of other settings."""
    SCALE = "scale"
    CHANGE = "change"
    """Something that its instances need not know of."""
    REMOVE = "remove"
    KEEP = "keep"


class SlicePlan(Record, frozen=True, kw_only=True):
    """What would happen to one slice."""

    base: str
    what: SliceChange
    artifact: str
    """That there would be; empty: none."""
    previous: str
    """That there is; empty: none."""
    instances: int
    previous_instances: int
    how: str
    """How it goes, in a sentence."""
    to_load: int = 0
    to_unload: int = 0
    to_move: int = 0
    """Of those: instances that go to another node."""
    load: tuple[Planned, ...] = ()
    """The first nodes, by name; so the next two."""
    unload: tuple[Planned, ...] = ()
    move: tuple[PlannedMove, ...] = ()
    waiting: int = 0
    """Instances for which there is no node now."""
    passed_over: tuple[Reason, ...] = ()
    """Where some wait: why not there."""


class BlueprintPlan(Record, frozen=True, kw_only=True):
    """What an apply would do, slice by slice."""

    name: str
    slices: tuple[SlicePlan, ...]
    refused: tuple[str, ...] = ()
    """Why it cannot be applied as it is."""
    notes: tuple[str, ...] = ()
    """What is worth a look."""
    changes: bool
    """Whether an apply would write anything."""
    revision: int
    """Of the blueprint that it was compared with, for If-Match; 0: there is none."""


# What there was


class RevisionView(Record, frozen=True, kw_only=True):
    """One that was applied."""

    number: int
    by: str
    at: float
    rollback_to: int
    deleted: bool
    current: bool
    artifacts: dict[str, int]
    """Instances by artifact."""
    slices: tuple[SliceSpec, ...] = ()
    """All of it, where one revision is asked for."""


class BlueprintHistory(Record, frozen=True, kw_only=True):
    """What was applied, newest first."""

    items: tuple[RevisionView, ...]
    after: str | None
    revision: int


# What there is


class SliceInstanceView(Record, frozen=True, kw_only=True):
    """One instance."""

    instance: int
    state: SliceState
    ready: bool
    since: int
    restarts: int
    template: int
    why: str


class SliceView(Record, frozen=True, kw_only=True):
    """What there is of one artifact on one node."""

    node: str
    artifact: str
    state: SliceState
    """Of the instance that is furthest on."""
    instances: tuple[SliceInstanceView, ...]
    methods: tuple[str, ...]
    revision: int


class SlicePage(Record, frozen=True, kw_only=True):
    """Slices in order of node and artifact."""

    items: tuple[SliceView, ...]
    after: str | None
    revision: int


class SliceLog(Record, frozen=True, kw_only=True):
    """What an instance printed last. It is whatever the slice likes, control characters included: show it as text."""

    node: str
    artifact: str
    instance: int
    text: str
    after: str
    """Where it ends: with this, what came later is asked for."""
    skipped: int
    """Bytes before it that are not told, as they were too many, or are gone."""


class EndpointView(Record, frozen=True, kw_only=True):
    """Where a method of an instance can be called."""

    artifact: str
    method: str
    instance: int
    node: str
    address: str
    idempotent: bool
    streams: bool
    revision: int


class EndpointPage(Record, frozen=True, kw_only=True):
    """Endpoints in order of artifact, method and instance."""

    items: tuple[EndpointView, ...]
    after: str | None
    revision: int
