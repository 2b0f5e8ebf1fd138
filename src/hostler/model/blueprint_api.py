"""HTTP API types for blueprints. The rules are those of `hostler.model.vm_api`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, field

from hostler.kit.lazy_import import old_names
from hostler.model.deployment import AlertMetric, Approval, BaseText, SliceSpec, StrategyKind
from hostler.model.record import OpenEnum, Record
from hostler.model.rollout import Phase
from hostler.model.trace import Reason

MAX_SLICES = 100
"""Maximum number of slices per blueprint: a blueprint is applied in one transaction of at most 128 operations."""


class BlueprintDocument(Record, frozen=True, kw_only=True):
    """Desired state of a blueprint: the content of its file, in JSON."""

    kind = "blueprint"

    slices: Annotated[tuple[SliceSpec, ...], Meta(min_length=1, max_length=MAX_SLICES)]


class BlueprintFile(Record, frozen=True, kw_only=True):
    """The text of a blueprint file, in JSON or TOML."""

    text: Annotated[str, Meta(max_length=1024 * 1024)]
    file: Annotated[str, Meta(max_length=255)] = ""
    """File name. The extension `.json` or `.toml` determines the format; otherwise it is detected from the text."""


class BlueprintFault(Record, frozen=True, kw_only=True):
    """An error in a blueprint file."""

    place: str
    """`slices[2].artifact`; empty: the whole file."""
    line: int
    """Line number, counted from 1; 0: not known."""
    what: str


class BlueprintRead(Record, frozen=True, kw_only=True):
    """The parsed content of a blueprint file."""

    name: str
    """Empty: the file has no name."""
    slices: tuple[SliceSpec, ...]
    faults: tuple[BlueprintFault, ...]
    """Errors that can be found from the file alone; empty: the blueprint can be planned."""
    warnings: tuple[BlueprintFault, ...] = ()
    """For an Aether file: parts that have no meaning in Hostler and were ignored."""


class BlueprintRollback(Record, frozen=True, kw_only=True):
    """The revision to restore."""

    to: Annotated[int, Meta(ge=0, le=2**53)] = 0
    """A revision number from the history; 0: the last revision with different content."""


class BlueprintPhase(OpenEnum):
    """Summary state of a blueprint or of one of its slices."""

    READY = "ready"
    """All requested instances serve."""
    CHANGING = "changing"
    """A change is in progress."""
    WAITING = "waiting"
    """Some instances have no node, or their dependencies are missing; `detail` says which and why."""
    FAILED = "failed"
    """A version was given up. The previous version serves; apply again to retry."""
    REMOVING = "removing"
    """The blueprint was deleted and its instances are being removed."""

    @property
    def is_calm(self) -> bool:
        """Return whether nothing remains to be done, or nothing will be done without a user."""
        return self in (BlueprintPhase.READY, BlueprintPhase.FAILED)


class BlueprintView(Record, frozen=True, kw_only=True):
    """A blueprint and its summary state."""

    name: str
    number: int
    """Revision number, which grows with each apply that changes something; 0: not known."""
    slices: tuple[SliceSpec, ...]
    phase: BlueprintPhase
    detail: str
    """Why it is in this phase, where an explanation is needed."""
    instances: int
    """Requested instances of all its slices."""
    ready: int
    """Of `instances`: those that serve."""
    settled: bool
    """Whether the desired state is reached."""
    revision: int
    firing: tuple[str, ...] = ()
    """Alerts that are firing: `group:name alert`."""


class BlueprintPage(Record, frozen=True, kw_only=True):
    """A page of blueprints, ordered by name."""

    items: tuple[BlueprintView, ...]
    after: str | None
    """Cursor of the next page; None: this is the last page."""
    revision: int


# Progress


class NodeCount(Record, frozen=True, kw_only=True):
    """Number of instances on a node."""

    node: str
    instances: int
    ready: int


class VersionStatus(Record, frozen=True, kw_only=True):
    """Instances of one version of a slice."""

    artifact: str
    weight: int | None
    """Percentage of the calls that it receives; None: in proportion to its instances."""
    ready: int
    states: dict[str, int]
    """Number of instances in each state."""
    nodes: tuple[NodeCount, ...]
    """The first nodes, ordered by name."""
    more_nodes: int = 0
    """Number of further nodes."""
    failures: int = 0
    """Consecutive failures without an instance that became active."""
    retry_at: float = 0.0
    """No instance is loaded again before this time."""
    given_up: bool = False
    why: str = ""
    """Reason of its last failure."""


class StageView(Record, frozen=True, kw_only=True):
    """A stage of a canary."""

    weight: int
    """Percentage of the calls."""
    hold: float
    """Seconds."""


class GateView(Record, frozen=True, kw_only=True):
    """Limits that a canary must meet at each stage."""

    max_error_rate: float
    max_latency_ms: float | None
    """Maximum p95 latency; None: not checked."""
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
    """The measured value when it last fired or resolved; None: it never fired."""
    since: float | None = None
    """When it last fired or resolved."""
    why: str = ""
    fired: int = 0
    """Number of times it has fired."""


class RolloutVerb(OpenEnum):
    """A command that a user can give for a rollout."""

    PROMOTE = "promote"
    PAUSE = "pause"
    RESUME = "resume"
    APPROVE = "approve"
    ABORT = "abort"


class RolloutView(Record, frozen=True, kw_only=True):
    """The current or last upgrade of a slice."""

    stages: tuple[StageView, ...]
    """Canary stages."""
    gate: GateView | None
    """Canary gate."""
    bake: float
    """Blue-green: seconds for which the new instances are ready before all calls go to them."""
    keep: float
    """Blue-green: seconds for which the old instances are kept afterwards."""
    started_at: float
    changed_at: float
    """When phase, stage or weights last changed. A gate counts calls from this time on."""
    why: str
    """Why it is in this phase, in one sentence."""
    approval: Approval = Approval.AUTOMATIC
    paused: bool = False
    awaits_approval: bool = False
    ordered: RolloutVerb | None = None
    """`promote` or `abort`: requested, and not yet executed by the leader."""
    ordered_by: str = ""
    """The user who gave the last command."""
    refused: str = ""
    """Why the leader did not execute the last promotion; empty: it did."""
    actions: tuple[RolloutVerb, ...] = ()
    """Commands that are possible now."""


class RolloutSelection(Record, frozen=True, kw_only=True):
    """The rollouts of a blueprint that a command applies to."""

    slice: BaseText | None = None
    """`group:name`; None: every slice of the blueprint for which the command is possible."""
    seen: Annotated[dict[BaseText, float], Meta(max_length=MAX_SLICES)] = field(default_factory=dict)
    """By slice: the `changed_at` of its rollout that the caller saw. 409 if a rollout has changed since."""


class RolloutPromotion(RolloutSelection, frozen=True, kw_only=True):
    """How far to promote a rollout."""

    all: bool = False
    """Promote to the end, not to the next stage."""
    force: bool = False
    """Promote even if the measurements exceed the limits of the gate."""


class SliceStatus(Record, frozen=True, kw_only=True):
    """Progress of a slice."""

    base: str
    """`group:name`."""
    artifact: str
    """The requested version; empty: the slice is no longer requested."""
    previous: str
    """The version that served before, during an upgrade; empty: none."""
    phase: BlueprintPhase
    step: Phase | None
    """Phase of its deployment; None: the leader has not processed it yet."""
    strategy: StrategyKind
    stage: int
    """Current canary stage, counted from 1; 0: none."""
    stages: int
    """Number of canary stages."""
    detail: str
    """Why it waits or failed, or what is in progress."""
    wished: int
    """Requested number of instances."""
    ready: int
    """Number of serving instances of any version."""
    leaving: int
    failed: int
    weights: dict[str, int]
    versions: tuple[VersionStatus, ...]
    needs: tuple[str, ...]
    reasons: tuple[Reason, ...] = ()
    """Reasons of the last placement, by node or kind of reason, for instances that wait."""
    since: float | None = None
    """When its phase last changed."""
    rollout: RolloutView | None = None
    """None: the leader has not processed it yet."""
    alerts: tuple[AlertView, ...] = ()


class BlueprintStatus(Record, frozen=True, kw_only=True):
    """Progress of a blueprint, by slice."""

    name: str
    number: int
    phase: BlueprintPhase
    detail: str
    settled: bool
    slices: tuple[SliceStatus, ...]
    revision: int
    """Revision of the blueprint; 0: it was deleted."""


# Effects of an apply


class Planned(Record, frozen=True, kw_only=True):
    """Number of instances on one node."""

    node: str
    instances: int
    why: str = ""


class PlannedMove(Record, frozen=True, kw_only=True):
    """Instances that move to another node because their node is being drained."""

    source: str
    target: str
    instances: int
    why: str = ""


class SliceChange(OpenEnum):
    """Kind of change to a slice."""

    ADD = "add"
    UPGRADE = "upgrade"
    """The version changes."""
    SETTINGS = "settings"
    """The instances are replaced by instances with other settings."""
    SCALE = "scale"
    CHANGE = "change"
    """A change that does not affect its instances."""
    REMOVE = "remove"
    KEEP = "keep"


class SlicePlan(Record, frozen=True, kw_only=True):
    """The planned change of one slice."""

    base: str
    what: SliceChange
    artifact: str
    """Planned version; empty: none."""
    previous: str
    """Current version; empty: none."""
    instances: int
    previous_instances: int
    how: str
    """How the change is carried out, in one sentence."""
    to_load: int = 0
    to_unload: int = 0
    to_move: int = 0
    """Of these: instances that move to another node."""
    load: tuple[Planned, ...] = ()
    """The first nodes, ordered by name; also in `unload` and `move`."""
    unload: tuple[Planned, ...] = ()
    move: tuple[PlannedMove, ...] = ()
    waiting: int = 0
    """Instances for which there is currently no node."""
    passed_over: tuple[Reason, ...] = ()
    """If instances wait: why they cannot be placed, by node or kind of reason."""


class BlueprintPlan(Record, frozen=True, kw_only=True):
    """The effects of an apply, by slice."""

    name: str
    slices: tuple[SlicePlan, ...]
    refused: tuple[str, ...] = ()
    """Why it cannot be applied."""
    notes: tuple[str, ...] = ()
    """Remarks for the user."""
    changes: bool
    """Whether an apply would write anything."""
    revision: int
    """Revision of the blueprint that the plan is based on, for If-Match; 0: there is none."""


# History


class RevisionView(Record, frozen=True, kw_only=True):
    """One applied revision."""

    number: int
    by: str
    at: float
    rollback_to: int
    deleted: bool
    current: bool
    artifacts: dict[str, int]
    """Number of instances by artifact."""
    slices: tuple[SliceSpec, ...] = ()
    """The full content, if a single revision was requested."""


class BlueprintHistory(Record, frozen=True, kw_only=True):
    """A page of applied revisions, newest first."""

    items: tuple[RevisionView, ...]
    after: str | None
    revision: int


if not TYPE_CHECKING:  # the checker accepts the new names only
    __getattr__ = old_names(
        __name__,
        {
            name: f"hostler.model.slice_api.{name}"
            for name in (
                "BlueprintCalls",
                "EndpointPage",
                "EndpointView",
                "SliceCalls",
                "SliceInstanceView",
                "SliceLog",
                "SlicePage",
                "SliceView",
                "VersionCalls",
            )
        },
    )
