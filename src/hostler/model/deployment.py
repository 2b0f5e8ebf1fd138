"""Blueprints, the slices that come of them, and the endpoints of those: the records that the contract names.

What the contract does not name is left out of the JSON while it says nothing: other programs see what they know.
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
"""`group:name`: an artifact without its version, which is what a slice is called from one version to the next."""
_VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*$(?!\n)"
VariableName = Annotated[str, Meta(pattern=_VARIABLE, max_length=128)]
InstanceNumber = Annotated[int, Meta(ge=1)]
MAX_INSTANCES = 1_000_000
MAX_ROUTES = 200
"""Of one slice."""
RouteText = Annotated[str, Meta(min_length=1, max_length=500)]
_ALERT = r"^[a-z0-9][a-z0-9-]{0,39}$(?!\n)"
SAYS[_ALERT] = "of at most 40 lower-case letters, digits and -, not beginning with -"
SAYS[_ARTIFACT] = "group:name:version, each of letters, digits and . _ + -"
SAYS[_BASE] = "group:name, each of letters, digits and . _ + -"
SAYS[_VARIABLE] = "letters, digits and _, not beginning with a digit"


class Artifact(msgspec.Struct, frozen=True, order=True):
    """What a slice is made of: `group:name:version`. Text in records and keys; `str()` gives it back."""

    group: str
    name: str
    version: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """The artifact that `text` names. Invalid: it names none."""
        if not isinstance(text, str) or len(text) > MAX_ARTIFACT or re.search(_ARTIFACT, text) is None:
            raise Invalid(
                f"artifact {text!r}: must be group:name:version, each of letters, digits and . _ + -,"
                f" at most {MAX_ARTIFACT} characters in all"
            )
        return cls(*text.split(":"))

    @property
    def base(self) -> str:
        """`group:name`: what it is called whatever its version."""
        return f"{self.group}:{self.name}"

    def __str__(self) -> str:
        return f"{self.group}:{self.name}:{self.version}"


def base_of(artifact: str) -> str:
    """`group:name` of `group:name:version`."""
    return artifact.rpartition(":")[0]


class SliceSettings(Record, frozen=True, kw_only=True, omit_defaults=True):
    """What an instance is run with, beside its artifact."""

    environment: dict[VariableName, Annotated[str, Meta(max_length=4096)]] = field(default_factory=dict)
    memory_mib: Annotated[int, Meta(ge=16, le=1_048_576)] | None = None
    """What its process may take; None: no limit."""
    cpus: Annotated[float, Meta(ge=0.05, le=1024)] | None = None
    """How much of the processors it may take; None: no limit."""
    concurrency: Annotated[int, Meta(ge=1, le=100_000)] = 100
    """Calls that one instance works on at once; one more is refused, and goes elsewhere."""


class StrategyKind(OpenEnum):
    """How one version follows another."""

    ROLLING = "rolling"
    CANARY = "canary"
    BLUE_GREEN = "blue-green"


class Stage(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A step of a canary: so much of the calls goes to the new version, for so long."""

    weight: Annotated[int, Meta(ge=1, le=99)]
    """Per cent of the calls."""
    hold: Annotated[float, Meta(ge=0, le=604_800)] = 60.0
    """Seconds."""


class Gate(Record, frozen=True, kw_only=True, omit_defaults=True):
    """What the new version must hold to, as the routers measure it, for a canary to go on."""

    max_error_rate: Annotated[float, Meta(ge=0, le=1)] = 0.01
    """Of its calls at a stage: the share that fails."""
    max_latency_ms: Annotated[float, Meta(gt=0)] | None = None
    """95 of 100 calls are answered within this; None: not looked at."""
    min_calls: Annotated[int, Meta(ge=0, le=1_000_000)] = 50
    """Fewer calls at a stage prove nothing: it is held until there were so many."""


class Approval(OpenEnum):
    """Who lets an upgrade go on."""

    AUTOMATIC = "automatic"
    MANUAL = "manual"
    """A person approves each stage of a canary, the switch of a blue-green upgrade, and what follows the first
    instances of a rolling upgrade. Gates must be passed all the same."""


class Strategy(Record, frozen=True, kw_only=True, omit_defaults=True):
    """How an upgrade goes through the instances."""

    type: StrategyKind = StrategyKind.ROLLING
    approval: Approval = Approval.AUTOMATIC
    max_surge: Annotated[int, Meta(ge=0, le=MAX_INSTANCES)] = 1
    """Instances that there may be above the number wished for meanwhile."""
    max_unavailable: Annotated[int, Meta(ge=0, le=MAX_INSTANCES)] = 0
    """Instances that may be missing meanwhile. Both 0: refused, nothing could move."""
    stages: tuple[Stage, ...] = ()
    """Of a canary, their weights growing; empty: 5, 25 and 50 per cent, a minute each."""
    gate: Gate = Gate()
    """Of a canary."""
    bake: Annotated[float, Meta(ge=0, le=604_800)] = 0.0
    """Blue-green: seconds for which the new instances stand ready before all calls go to them."""
    keep: Annotated[float, Meta(ge=0, le=604_800)] = 60.0
    """Blue-green: seconds for which the old instances stay afterwards, to go back to."""


USUAL_STAGES = (Stage(weight=5), Stage(weight=25), Stage(weight=50))


class OnErrors(OpenEnum):
    """What autoscaling does while too many calls fail."""

    BLOCK = "block"
    """Add no instances: more failing instances do not help, and may overload what they call."""
    SCALE = "scale"
    """Add instances: the calls fail because the instances are too few."""
    IGNORE = "ignore"


class Autoscale(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Let the number of instances follow the calls."""

    min: InstanceNumber = 1
    max: Annotated[int, Meta(ge=1, le=MAX_INSTANCES)]
    in_flight: Annotated[float, Meta(gt=0)] = 8.0
    """Calls under way per instance that are aimed at."""
    latency_ms: Annotated[float, Meta(gt=0)] | None = None
    """While 95 of 100 calls take longer, there shall be more; None: not looked at."""
    cpu: Annotated[float, Meta(gt=0, le=1)] | None = None
    """Share of its processors (`settings.cpus`, or one) per instance that is aimed at; None: not looked at."""
    max_error_rate: Annotated[float, Meta(ge=0, le=1)] = 0.1
    """Of the calls of the last minute; above it `on_errors` counts."""
    on_errors: OnErrors = OnErrors.BLOCK
    warm_up: Annotated[float, Meta(ge=0, le=86_400)] = 30.0
    """Seconds after a change before there may be more still: new instances must tell first."""
    cool_down: Annotated[float, Meta(ge=0, le=86_400)] = 120.0
    """Seconds for which fewer must have been enough before there are fewer."""


class Callers(OpenEnum):
    """Who may call a slice from outside; slices may call each other."""

    OPERATORS = "operators"
    """Who may modify workloads."""
    EVERYBODY = "everybody"
    """Who has signed in."""


class AlertMetric(OpenEnum):
    """What an alert watches."""

    ERROR_RATE = "error_rate"
    """Share of the calls of the last minute that failed, from 0 to 1. Fewer than 20 calls say nothing."""
    P95_MS = "p95_ms"
    """p95 latency of the calls of the last minute, in milliseconds."""
    CPU = "cpu"
    """Share of its processors (`settings.cpus`, or one) that an instance uses, on average."""
    IN_FLIGHT = "in_flight"
    """Calls in flight per instance."""
    READY = "ready"
    """Instances that serve, of any version."""


class AlertRule(Record, frozen=True, kw_only=True, omit_defaults=True):
    """When a person is to be told of a slice. Exactly one of `above` and `below` is given."""

    name: Annotated[str, Meta(pattern=_ALERT)]
    metric: AlertMetric
    above: Annotated[float, Meta(ge=0)] | None = None
    below: Annotated[float, Meta(ge=0)] | None = None
    after: Annotated[float, Meta(ge=0, le=86_400)] = 60.0
    """Seconds for which the threshold must be crossed before the alert fires, and for which it must not be before the
    alert resolves."""
    clear: Annotated[float, Meta(ge=0)] | None = None
    """The value at which a firing alert resolves; None: 90 % of `above`, or `below` itself."""


class Atomicity(OpenEnum):
    """What goes back when the upgrade of a slice fails."""

    BEST_EFFORT = "best_effort"
    """The slice alone. The other slices of the blueprint are not affected."""
    ALL_OR_NOTHING = "all_or_nothing"
    """The whole revision of the blueprint, with all of its slices."""


class SliceSpec(Record, frozen=True, kw_only=True, omit_defaults=True):
    """How many of what, and how."""

    artifact: ArtifactText
    instances: Annotated[int, Meta(ge=1, le=MAX_INSTANCES)]
    needs: tuple[BaseText, ...] = ()
    """Slices that must have an active instance before this one is activated."""
    settings: SliceSettings = SliceSettings()
    strategy: Strategy = Strategy()
    min_available: Annotated[int, Meta(ge=0, le=MAX_INSTANCES)] = 0
    """Nothing that is planned (an upgrade, a drain) leaves fewer active."""
    node_labels: dict[str, str] = field(default_factory=dict)
    """Only on nodes that have these."""
    autoscale: Autoscale | None = None
    callers: Callers = Callers.OPERATORS
    routes: Annotated[dict[RouteText, VariableName], Meta(max_length=MAX_ROUTES)] = field(default_factory=dict)
    """HTTP routes (`hostler.model.http_route`), each with the method that it calls."""
    atomicity: Atomicity = Atomicity.BEST_EFFORT
    alerts: tuple[AlertRule, ...] = ()

    @property
    def base(self) -> str:
        """What it is called whatever its version."""
        return base_of(self.artifact)


class Blueprint(Record, frozen=True, kw_only=True):
    """`blueprints/{name}`: the slices that shall run."""

    slices: tuple[SliceSpec, ...]

    def spec_of(self, base: str) -> SliceSpec | None:
        """What it says of a slice."""
        return next((spec for spec in self.slices if spec.base == base), None)


class SliceState(OpenEnum):
    """Commands (LOAD, ACTIVATE, DEACTIVATE, UNLOAD) are the leader's; the answers to them are the node's."""

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
"""Where each state may go. None: there is no such slice on the node."""


def may_move(old: SliceState | None, new: SliceState | None, *, node_dead: bool = False) -> bool:
    """Whether a slice may go from `old` to `new` (None: it is not there). Staying is no move.

    `node_dead`: the leader knows that the node is dead, and may drop the slice whatever its state.
    """
    if node_dead and old is not None and new is None:
        return True
    return new in MOVES.get(old, ())


COMMANDS = frozenset({_S.LOAD, _S.ACTIVATE, _S.DEACTIVATE, _S.UNLOAD})
"""States that the leader writes, and the node takes up."""
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
    """When it came into this state, in seconds since 1970; 0: the record's timestamp."""
    template: int = 0
    """Of the settings that it is run with; 0: the usual ones."""
    why: str = ""
    """Why it failed, or why it is here."""
    ready: bool = True
    """False: it is ACTIVE, and its process ended and is being started again. It has no endpoints meanwhile."""
    restarts: int = 0
    """How often its process was started again by itself."""


class SliceRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """`slices/{node-id}/{artifact}`. `state` is the aggregate of its instances: that of the best of them."""

    state: SliceState
    timestamp: Annotated[int, Meta(ge=0)]
    """When a state last changed, in seconds since 1970."""
    instances: dict[int, SliceInstance] | UnsetType = UNSET
    """By their numbers. Absent (another program wrote it): there is one, and its number is 1."""
    settings: dict[int, SliceSettings] = field(default_factory=dict)
    """By template: what instances are run with, where that is not the usual."""
    methods: tuple[str, ...] = ()
    """What the node published endpoints of: whoever drops a dead node's slice takes those away too."""

    def each(self) -> Mapping[int, SliceInstance]:
        """Its instances by number."""
        if self.instances is UNSET:
            return {1: SliceInstance(state=self.state)}
        return self.instances


def aggregate(instances: Mapping[int, SliceInstance]) -> SliceState:
    """The state that stands for all: that of the instance which is furthest on. There must be one."""
    return min((one.state for one in instances.values()), key=lambda state: _RANK.get(state, len(_RANK)))


class Endpoint(Record, frozen=True, kw_only=True, omit_defaults=True):
    """`endpoints/{artifact}/{method-name}:{instance}`: where a method can be called. Goes with the node's lease."""

    node_id: str = field(name="node-id")
    instance: InstanceNumber
    state: SliceState
    address: str = ""
    """`host:port` that routers connect to."""
    idempotent: bool = False
    """Calling it twice does no harm: a call that failed is tried elsewhere."""
    streams: bool = False
    """It answers with a stream of results."""
