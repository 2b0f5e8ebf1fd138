"""HTTP API types for a simulation. Times are virtual seconds since its start.

The rules are those of `hostler.model.vm_api`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType, field

from hostler.model.record import OpenEnum, Record

MOST_SECONDS = 7 * 86400.0
MOST_EVENTS = 100_000
"""Maximum number of events of one step."""
RATES = (0.001, 1_000_000.0)
"""The slowest and the fastest rate."""
LONGEST_FAULT = 366 * 86400.0
Rate = Annotated[float, Meta(ge=RATES[0], le=RATES[1])]
Chance = Annotated[float, Meta(gt=0, le=1)]
Delay = Annotated[float, Meta(gt=0, le=MOST_SECONDS)]
Component = Annotated[str, Meta(max_length=255)]


class Mode(OpenEnum):
    """How virtual time advances."""

    MANUAL = "manual"
    """Time is paused until a step is granted."""
    MEASURED = "measured"
    """Time runs `rate` times as fast as real time."""
    NO_WAIT = "no_wait"
    """Time jumps to the next due event; on average at most `rate` times as fast as real time."""


class ModeSet(Record, frozen=True, kw_only=True):
    """A change of mode. It has no effect if `epoch` is not the current epoch."""

    mode: Mode
    rate: Rate | None = None
    """Virtual seconds per real second; null: 1, or at most 3600 in `no_wait`."""
    epoch: Annotated[int, Meta(ge=0, le=2**53)]


class StepGrant(Record, frozen=True, kw_only=True):
    """Advance time by a number of seconds, or by a number of instants at which something is due."""

    seconds: Annotated[float, Meta(gt=0, le=MOST_SECONDS)] | None = None
    events: Annotated[int, Meta(ge=1, le=MOST_EVENTS)] | None = None
    epoch: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    """If given, the step is granted only in this epoch."""


class StepView(Record, frozen=True, kw_only=True):
    """A step. Steps are executed in the order in which they were granted."""

    id: int
    epoch: int
    asked_at: float
    done: bool
    now: float
    """The current virtual time; for a completed step, the time at which it ended."""


class FaultInject(Record, frozen=True, kw_only=True):
    """A fault, in the form used by scenarios. Parameters that the fault does not have are refused."""

    fault: Annotated[str, Meta(min_length=1, max_length=40)]
    on: Component = ""
    """A component: `r1`, `r1/pdu1`, `r1/tor1`, `r1/b3`, `r1/pdu1:3` or `replica-1`."""
    for_: Annotated[float, Meta(gt=0, le=LONGEST_FAULT)] | None = field(name="for", default=None)
    """Virtual seconds; null: until the fault is lifted."""
    names: Annotated[tuple[Component, ...], Meta(max_length=1000)] | UnsetType = UNSET
    chance: Chance | UnsetType = UNSET
    slowest: Delay | UnsetType = UNSET
    delay: Delay | UnsetType = UNSET
    rate: Annotated[float, Meta(ge=0.01, le=100)] | UnsetType = UNSET
    lasting: bool | UnsetType = UNSET
    artifact: Annotated[str, Meta(max_length=255)] | UnsetType = UNSET
    """For slices: an artifact, or `group:name`."""
    step: Literal["load", "activate"] | UnsetType = UNSET
    """The step at which a slice fails."""


class FaultView(Record, frozen=True, kw_only=True):
    """An active fault. A fault that takes effect once and is over has no id."""

    id: str
    fault: str
    on: str
    text: str
    """Full description in one line."""


class HardwareVerb(OpenEnum):
    """An operator's action on hardware."""

    POWER_ON = "power_on"
    POWER_OFF = "power_off"
    """A PDU or one of its ports. For a blade or ToR switch: every port that feeds it. For a rack: its PDUs."""
    CONNECT = "connect"
    DISCONNECT = "disconnect"
    """A port of a ToR switch. For a blade: every port that it is wired to. For a ToR switch: all of its ports."""
    START = "start"
    STOP = "stop"
    """The software of a blade; its power stays on. For a rack: all its blades."""


class HardwareCommand(Record, frozen=True, kw_only=True):
    """Switch hardware on or off. The command is refused if the component has changed after `guard`."""

    command: HardwareVerb
    on: Annotated[str, Meta(min_length=1, max_length=255)]
    """A component: `r1`, `r1/pdu1`, `r1/tor1`, `r1/b3`, or a port with its cable: `r1/pdu1:3`, `r1/tor1:3`."""
    guard: Annotated[float, Meta(ge=0, le=2**53)]
    """The guard tick: the virtual time (`now`) of the state that the command was based on."""


class HardwareCommandView(Record, frozen=True, kw_only=True):
    """A command that was given. Components already in the requested state have no changes; stuck ones do not react."""

    id: str
    """The id that log entries name as the cause of the changes."""
    command: HardwareVerb
    on: str
    at: float
    changes: tuple[str, ...]
    """All effects at this instant."""
    followed: bool
    """False: a component is stuck, has no power or is disconnected; `changes` says which."""


class ProposalView(Record, frozen=True, kw_only=True):
    """A proposed repair of faulty hardware, with its reason."""

    id: str
    what: str = field(name="kind")
    component: str
    text: str
    reason: str
    automatic: bool
    """Whether commands suffice; otherwise a technician must go there."""


class ProposalPage(Record, frozen=True, kw_only=True):
    """Proposed repairs, with the hardware of the highest level first."""

    items: tuple[ProposalView, ...]
    automatic: bool
    """Whether repairs for which commands suffice are performed automatically."""


class RepairMode(Record, frozen=True, kw_only=True):
    """Whether repairs for which commands suffice are performed automatically."""

    automatic: bool


class SimComponent(Record, frozen=True, kw_only=True):
    """A piece of hardware."""

    component: str
    state: str


class SimRack(Record, frozen=True, kw_only=True):
    """A simulated rack: the number of working blades, and all components that are not in their original state."""

    name: str
    blades: int
    working: int
    amiss: tuple[SimComponent, ...]


class SimReplica(Record, frozen=True, kw_only=True):
    """A simulated replica of the control plane."""

    name: str
    runs: bool
    leads: bool


class SimView(Record, frozen=True, kw_only=True):
    """The whole simulation at one instant."""

    name: str
    about: str
    seed: int
    mode: Mode
    rate: float
    epoch: int
    now: float
    wall: float
    """The same time in seconds since 1970, as used in the records of the simulated control plane."""
    steps: tuple[StepView, ...]
    """Pending steps."""
    next_at: float | None
    """When the next event is due; null: there is none."""
    auto_repair: bool
    faults: tuple[FaultView, ...]
    proposals: tuple[ProposalView, ...]
    racks: tuple[SimRack, ...]
    replicas: tuple[SimReplica, ...]
    log: int
    """Number of log entries."""
    timeline: int
    """Number of remaining entries of the scenario's timeline."""
    failures: tuple[str, ...]
    """Internal errors of the simulator, newest last. It should be empty."""


class SimState(Record, frozen=True, kw_only=True):
    """The saved simulation."""

    file: str
    """The exact input of `hostler sim serve --resume`. It contains every write to the simulated control plane,
    including hashes of tokens and passwords."""


class SimLogEntry(Record, frozen=True, kw_only=True):
    """One entry of the simulation log."""

    number: int
    at: float
    what: str = field(name="kind")
    component: str
    text: str
    cause: str
    """The id of a fault, repair or decision, or the component whose change caused it; empty: not known."""
    id: str = ""
    """For a fault or decision: the id that other entries name as their cause."""


class SimLogPage(Record, frozen=True, kw_only=True):
    """A page of the log, oldest first. `after`: the number of the last entry, if more follow."""

    items: tuple[SimLogEntry, ...]
    after: str | None
    total: int


class FaultNumber(Record, frozen=True, kw_only=True):
    """A parameter of a fault, in addition to its target and duration."""

    name: str
    default: str


class FaultKind(Record, frozen=True, kw_only=True):
    """A kind of fault that can be injected."""

    fault: str
    about: str
    places: tuple[str, ...]
    """Possible targets: `rack`, `pdu`, `tor`, `blade`, `power cable`, `network cable`, `replica`, `all`."""
    numbers: tuple[FaultNumber, ...]


class FaultKindPage(Record, frozen=True, kw_only=True):
    """All kinds of faults."""

    items: tuple[FaultKind, ...]
