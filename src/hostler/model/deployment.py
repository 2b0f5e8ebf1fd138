"""Blueprints, slices and endpoints: the records defined by the contract.

Fields that the contract does not define are omitted from the JSON while they have their default, so that other programs
see only fields that they know.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Self

import msgspec
from msgspec import UNSET, Meta, UnsetType, field

from hostler.errors import Invalid
from hostler.model.record import SAYS, OpenEnum, Record

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_ARTIFACT = 255
_WORD = r"[A-Za-z0-9_][A-Za-z0-9._+-]*"
_ARTIFACT = rf"^{_WORD}:{_WORD}:{_WORD}$(?!\n)"
ArtifactText = Annotated[str, Meta(pattern=_ARTIFACT, max_length=MAX_ARTIFACT)]
_BASE = rf"^{_WORD}:{_WORD}$(?!\n)"
BaseText = Annotated[str, Meta(pattern=_BASE, max_length=MAX_ARTIFACT)]
"""`group:name`: an artifact without its version; identifies a slice across versions."""
_VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*$(?!\n)"
VariableName = Annotated[str, Meta(pattern=_VARIABLE, max_length=128)]
InstanceNumber = Annotated[int, Meta(ge=1)]
MAX_INSTANCES = 1_000_000
MAX_ROUTES = 200
"""Maximum number of routes per slice."""
RouteText = Annotated[str, Meta(min_length=1, max_length=500)]
_ALERT = r"^[a-z0-9][a-z0-9-]{0,39}$(?!\n)"
SAYS[_ALERT] = "of at most 40 lower-case letters, digits and -, not beginning with -"
SAYS[_ARTIFACT] = "group:name:version, each of letters, digits and . _ + -"
SAYS[_BASE] = "group:name, each of letters, digits and . _ + -"
SAYS[_VARIABLE] = "letters, digits and _, not beginning with a digit"


class Artifact(msgspec.Struct, frozen=True, order=True):
    """The code of a slice: `group:name:version`. Stored as text in records and keys; `str()` returns that text."""

    group: str
    name: str
    version: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the artifact that `text` names. Raise Invalid if it names none."""
        if not isinstance(text, str) or len(text) > MAX_ARTIFACT or re.search(_ARTIFACT, text) is None:
            raise Invalid(
                f"artifact {text!r}: must be group:name:version, each of letters, digits and . _ + -,"
                f" at most {MAX_ARTIFACT} characters in all"
            )
        return cls(*text.split(":"))

    @property
    def base(self) -> str:
        """Return `group:name`, which is the same for all versions."""
        return f"{self.group}:{self.name}"

    def __str__(self) -> str:
        return f"{self.group}:{self.name}:{self.version}"


def base_of(artifact: str) -> str:
    """Return `group:name` of `group:name:version`."""
    return artifact.rpartition(":")[0]


class SliceSettings(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Runtime settings of an instance, in addition to its artifact."""

    environment: dict[VariableName, Annotated[str, Meta(max_length=4096)]] = field(default_factory=dict)
    memory_mib: Annotated[int, Meta(ge=16, le=1_048_576)] | None = None
    """Memory limit of the process; None: no limit."""
    cpus: Annotated[float, Meta(ge=0.05, le=1024)] | None = None
    """CPU limit; None: no limit."""
    concurrency: Annotated[int, Meta(ge=1, le=100_000)] = 100
    """Maximum number of concurrent calls per instance. Further calls are refused and routed elsewhere."""


class StrategyKind(OpenEnum):
    """How a new version replaces the old one."""

    ROLLING = "rolling"
    CANARY = "canary"
    BLUE_GREEN = "blue-green"


class Stage(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A canary stage: the traffic share of the new version, and for how long."""

    weight: Annotated[int, Meta(ge=1, le=99)]
    """Percentage of the calls."""
    hold: Annotated[float, Meta(ge=0, le=604_800)] = 60.0
    """Seconds."""


class Gate(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Limits that the new version must meet for a canary to continue, as measured by the routers."""

    max_error_rate: Annotated[float, Meta(ge=0, le=1)] = 0.01
    """Maximum share of failed calls at a stage."""
    max_latency_ms: Annotated[float, Meta(gt=0)] | None = None
    """Maximum p95 latency; None: not checked."""
    min_calls: Annotated[int, Meta(ge=0, le=1_000_000)] = 50
    """Minimum number of calls at a stage. The stage is held until there were that many, because fewer prove nothing."""


class Approval(OpenEnum):
    """What an upgrade needs to continue."""

    AUTOMATIC = "automatic"
    MANUAL = "manual"
    """A user approves each stage of a canary, the switch of a blue-green upgrade, and the continuation after the first
    instances of a rolling upgrade. Gates must pass as well."""


class Strategy(Record, frozen=True, kw_only=True, omit_defaults=True):
    """How an upgrade replaces the instances."""

    type: StrategyKind = StrategyKind.ROLLING
    approval: Approval = Approval.AUTOMATIC
    max_surge: Annotated[int, Meta(ge=0, le=MAX_INSTANCES)] = 1
    """Maximum number of instances above the requested number during an upgrade."""
    max_unavailable: Annotated[int, Meta(ge=0, le=MAX_INSTANCES)] = 0
    """Maximum number of unavailable instances during an upgrade. Refused if both limits are 0."""
    stages: tuple[Stage, ...] = ()
    """Canary stages with increasing weights; empty: 5, 25 and 50 per cent, one minute each."""
    gate: Gate = Gate()
    """Canary gate."""
    bake: Annotated[float, Meta(ge=0, le=604_800)] = 0.0
    """Blue-green: seconds for which the new instances are ready before all calls go to them."""
    keep: Annotated[float, Meta(ge=0, le=604_800)] = 60.0
    """Blue-green: seconds for which the old instances are kept for a rollback."""


USUAL_STAGES = (Stage(weight=5), Stage(weight=25), Stage(weight=50))


class OnErrors(OpenEnum):
    """What autoscaling does while too many calls fail."""

    BLOCK = "block"
    """Add no instances: more failing instances do not help, and may overload their dependencies."""
    SCALE = "scale"
    """Add instances: the calls fail because there are too few instances."""
    IGNORE = "ignore"


class Autoscale(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Adjust the number of instances to the load."""

    min: InstanceNumber = 1
    max: Annotated[int, Meta(ge=1, le=MAX_INSTANCES)]
    in_flight: Annotated[float, Meta(gt=0)] = 8.0
    """Target number of calls in flight per instance."""
    latency_ms: Annotated[float, Meta(gt=0)] | None = None
    """Scale up while the p95 latency is higher; None: not checked."""
    cpu: Annotated[float, Meta(gt=0, le=1)] | None = None
    """Target CPU usage per instance, as a share of `settings.cpus` (or of one CPU); None: not checked."""
    max_error_rate: Annotated[float, Meta(ge=0, le=1)] = 0.1
    """Error rate of the last minute above which `on_errors` applies."""
    on_errors: OnErrors = OnErrors.BLOCK
    warm_up: Annotated[float, Meta(ge=0, le=86_400)] = 30.0
    """Seconds after a change before scaling up again, so that the new instances are measured first."""
    cool_down: Annotated[float, Meta(ge=0, le=86_400)] = 120.0
    """Seconds for which fewer instances must have sufficed before scaling down."""


class Callers(OpenEnum):
    """Who may call a slice from outside. Slices may always call each other."""

    OPERATORS = "operators"
    """Users who may modify workloads."""
    EVERYBODY = "everybody"
    """Every signed-in user."""


class AlertMetric(OpenEnum):
    """The metric that an alert watches."""

    ERROR_RATE = "error_rate"
    """Share of failed calls in the last minute, from 0 to 1. Ignored with fewer than 20 calls."""
    P95_MS = "p95_ms"
    """p95 latency of the calls of the last minute, in milliseconds."""
    CPU = "cpu"
    """Average CPU usage of an instance, as a share of `settings.cpus` (or of one CPU)."""
    IN_FLIGHT = "in_flight"
    """Calls in flight per instance."""
    READY = "ready"
    """Number of serving instances of any version."""


class AlertRule(Record, frozen=True, kw_only=True, omit_defaults=True):
    """When to alert about a slice. Exactly one of `above` and `below` is given."""

    name: Annotated[str, Meta(pattern=_ALERT)]
    metric: AlertMetric
    above: Annotated[float, Meta(ge=0)] | None = None
    below: Annotated[float, Meta(ge=0)] | None = None
    after: Annotated[float, Meta(ge=0, le=86_400)] = 60.0
    """Seconds for which the threshold must be crossed before the alert fires, and for which it must not be crossed
    before the alert resolves."""
    clear: Annotated[float, Meta(ge=0)] | None = None
    """The value at which a firing alert resolves; None: 90 % of `above`, or `below` itself."""


class Atomicity(OpenEnum):
    """What is rolled back when the upgrade of a slice fails."""

    BEST_EFFORT = "best_effort"
    """Only the slice. The other slices of the blueprint are not affected."""
    ALL_OR_NOTHING = "all_or_nothing"
    """The whole blueprint revision, with all of its slices."""


class SliceSpec(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Desired state of one slice in a blueprint."""

    artifact: ArtifactText
    instances: Annotated[int, Meta(ge=1, le=MAX_INSTANCES)]
    needs: tuple[BaseText, ...] = ()
    """Slices that must have an active instance before this one is activated."""
    settings: SliceSettings = SliceSettings()
    strategy: Strategy = Strategy()
    min_available: Annotated[int, Meta(ge=0, le=MAX_INSTANCES)] = 0
    """Minimum number of active instances that planned operations (an upgrade, a drain) preserve."""
    node_labels: dict[str, str] = field(default_factory=dict)
    """Only nodes with these labels are suitable."""
    autoscale: Autoscale | None = None
    callers: Callers = Callers.OPERATORS
    routes: Annotated[dict[RouteText, VariableName], Meta(max_length=MAX_ROUTES)] = field(default_factory=dict)
    """HTTP routes (`hostler.model.http_route`), each with the method that it calls."""
    atomicity: Atomicity = Atomicity.BEST_EFFORT
    alerts: tuple[AlertRule, ...] = ()

    @property
    def base(self) -> str:
        """Return `group:name`, which is the same for all versions."""
        return base_of(self.artifact)


class Blueprint(Record, frozen=True, kw_only=True):
    """`blueprints/{name}`: the slices that should run."""

    slices: tuple[SliceSpec, ...]

    def spec_of(self, base: str) -> SliceSpec | None:
        """Return the spec of a slice, or None."""
        return next((spec for spec in self.slices if spec.base == base), None)


class SliceState(OpenEnum):
    """The leader writes commands (LOAD, ACTIVATE, DEACTIVATE, UNLOAD); the node writes all other states."""

    LOAD = "LOAD"
    LOADING = "LOADING"
    LOADED = "LOADED"
    ACTIVATE = "ACTIVATE"
    ACTIVATING = "ACTIVATING"
    ACTIVE = "ACTIVE"
    DEACTIVATE = "DEACTIVATE"
    DEACTIVATING = "DEACTIVATING"
    UNLOAD = "UNLOAD"
    UNLOADING = "UNLOADING"
    FAILED = "FAILED"


_S = SliceState
MOVES: dict[SliceState | None, frozenset[SliceState | None]] = {
    None: frozenset({_S.LOAD}),
    _S.LOAD: frozenset({_S.LOADING, _S.UNLOAD}),
    _S.LOADING: frozenset({_S.LOADED, _S.FAILED}),
    _S.LOADED: frozenset({_S.ACTIVATE, _S.UNLOAD}),
    _S.ACTIVATE: frozenset({_S.ACTIVATING, _S.FAILED}),
    _S.ACTIVATING: frozenset({_S.ACTIVE, _S.FAILED}),
    _S.ACTIVE: frozenset({_S.DEACTIVATE, _S.FAILED}),
    _S.DEACTIVATE: frozenset({_S.DEACTIVATING, _S.FAILED}),
    _S.DEACTIVATING: frozenset({_S.LOADED, _S.FAILED}),
    _S.FAILED: frozenset({_S.UNLOAD}),
    _S.UNLOAD: frozenset({_S.UNLOADING}),
    _S.UNLOADING: frozenset({None, _S.FAILED}),
}
"""Allowed transitions. None: the slice does not exist on the node."""


def may_move(old: SliceState | None, new: SliceState | None, *, node_dead: bool = False) -> bool:
    """Return whether a slice may go from `old` to `new` (None: it does not exist). Staying is not a transition.

    `node_dead`: the leader knows that the node is dead and may remove the slice in any state.
    """
    if node_dead and old is not None and new is None:
        return True
    return new in MOVES.get(old, ())


COMMANDS = frozenset({_S.LOAD, _S.ACTIVATE, _S.DEACTIVATE, _S.UNLOAD})
"""States that the leader writes and the node acts on."""
LEAVING = frozenset({_S.DEACTIVATE, _S.DEACTIVATING, _S.UNLOAD, _S.UNLOADING, _S.FAILED})
"""States of an instance that will not serve again."""
_ORDER = (
    _S.ACTIVE,
    _S.ACTIVATING,
    _S.ACTIVATE,
    _S.LOADED,
    _S.LOADING,
    _S.LOAD,
    _S.DEACTIVATE,
    _S.DEACTIVATING,
    _S.FAILED,
    _S.UNLOAD,
    _S.UNLOADING,
)
_RANK = {state: rank for rank, state in enumerate(_ORDER)}


class SliceInstance(Record, frozen=True, kw_only=True, omit_defaults=True):
    """One of the instances that share a slice key."""

    state: SliceState
    since: int = 0
    """When it entered this state, in seconds since 1970; 0: see the record's timestamp."""
    template: int = 0
    """Template number of its settings; 0: the default settings."""
    why: str = ""
    """Why it failed, or why it was placed here."""
    ready: bool = True
    """False: it is ACTIVE, but its process ended and is restarting. It has no endpoints until then."""
    restarts: int = 0
    """Number of automatic restarts of its process."""


class SliceRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """`slices/{node-id}/{artifact}`. `state` is the aggregate of its instances: the most advanced state."""

    state: SliceState
    timestamp: Annotated[int, Meta(ge=0)]
    """When a state last changed, in seconds since 1970."""
    instances: dict[int, SliceInstance] | UnsetType = UNSET
    """By instance number. Absent (another program wrote the record): there is one instance, with number 1."""
    settings: dict[int, SliceSettings] = field(default_factory=dict)
    """Settings by template, where they differ from the default."""
    methods: tuple[str, ...] = ()
    """Methods that the node published endpoints for. The leader removes these endpoints with a dead node's slice."""

    def each(self) -> Mapping[int, SliceInstance]:
        """Return its instances by number."""
        if self.instances is UNSET:
            return {1: SliceInstance(state=self.state)}
        return self.instances


def aggregate(instances: Mapping[int, SliceInstance]) -> SliceState:
    """Return the state of the most advanced instance. `instances` must not be empty."""
    return min((one.state for one in instances.values()), key=lambda state: _RANK.get(state, len(_RANK)))


class Endpoint(Record, frozen=True, kw_only=True, omit_defaults=True):
    """`endpoints/{artifact}/{method-name}:{instance}`: address of a callable method. Attached to the node's lease."""

    node_id: str = field(name="node-id")
    instance: InstanceNumber
    state: SliceState
    address: str = ""
    """`host:port` that routers connect to."""
    idempotent: bool = False
    """Calling it twice is harmless, so a failed call is retried elsewhere."""
    streams: bool = False
    """The method returns a stream of results."""
