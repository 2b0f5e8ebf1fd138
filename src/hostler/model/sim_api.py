"""What the HTTP API takes and gives about a simulation; as `model.api`. Instants are virtual seconds since it began."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType, field

from hostler.model.record import OpenEnum, Record

MOST_SECONDS = 7 * 86400.0
MOST_EVENTS = 100_000
"""Of one step."""
RATES = (0.001, 1_000_000.0)
"""The slowest and the fastest rate."""
LONGEST_FAULT = 366 * 86400.0
Rate = Annotated[float, Meta(ge=RATES[0], le=RATES[1])]
Chance = Annotated[float, Meta(gt=0, le=1)]
Delay = Annotated[float, Meta(gt=0, le=MOST_SECONDS)]
Component = Annotated[str, Meta(max_length=255)]


class Mode(OpenEnum):
    """Who moves time."""

    MANUAL = "manual"
    """It stands still until a step is granted."""
    MEASURED = "measured"
    """It goes `rate` times as fast as real time."""
    NO_WAIT = "no_wait"
    """It jumps to what is due next; on average at most `rate` times as fast as real time."""


class ModeSet(Record, frozen=True, kw_only=True):
    """Another mode, decided under `epoch`: nothing changes if that is over."""

    mode: Mode
    rate: Rate | None = None
    """Virtual seconds for each real one; none: 1, and in `no_wait` at most 3600."""
    epoch: Annotated[int, Meta(ge=0, le=2**53)]


class StepGrant(Record, frozen=True, kw_only=True):
    """Let time go on: by so many seconds, or by so many instants at which something is due."""

    seconds: Annotated[float, Meta(gt=0, le=MOST_SECONDS)] | None = None
    events: Annotated[int, Meta(ge=1, le=MOST_EVENTS)] | None = None
    epoch: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    """Only if it still is that epoch."""


class StepView(Record, frozen=True, kw_only=True):
    """A step. Those that were granted before it come first."""

    id: int
    epoch: int
    asked_at: float
    done: bool
    now: float
    """The present instant; of a step that is done: where it ended."""


class FaultInject(Record, frozen=True, kw_only=True):
    """A fault, as scenarios write it. Numbers that it does not have are refused."""

    fault: Annotated[str, Meta(min_length=1, max_length=40)]
    on: Component = ""
    """A component: `r1`, `r1/pdu1`, `r1/tor1`, `r1/b3`, `r1/pdu1:3` or `replica-1`."""
    for_: Annotated[float, Meta(gt=0, le=LONGEST_FAULT)] | None = field(name="for", default=None)
    """Virtual seconds; none: until it is lifted."""
    names: Annotated[tuple[Component, ...], Meta(max_length=1000)] | UnsetType = UNSET
    chance: Chance | UnsetType = UNSET
    slowest: Delay | UnsetType = UNSET
    delay: Delay | UnsetType = UNSET
    rate: Annotated[float, Meta(ge=0.01, le=100)] | UnsetType = UNSET
    lasting: bool | UnsetType = UNSET
    artifact: Annotated[str, Meta(max_length=255)] | UnsetType = UNSET
    """Of slices: an artifact, or `group:name`."""
    step: Literal["load", "activate"] | UnsetType = UNSET
    """At which a slice fails."""


class FaultView(Record, frozen=True, kw_only=True):
    """A fault that is active. One that happens at once and is over has no id."""

    id: str
    fault: str
    on: str
    text: str
    """All of it, in one line."""


class HardwareVerb(OpenEnum):
    """What an operator does to hardware."""

    POWER_ON = "power_on"
    POWER_OFF = "power_off"
    """A pdu or one of its ports; of a blade or tor: every port that feeds it; of a rack: its pdus."""
    CONNECT = "connect"
    DISCONNECT = "disconnect"
    """A port of a tor; of a blade: every port that it is at; of a tor: all of its ports."""
    START = "start"
    STOP = "stop"
    """A blade's software; its power stays on. Of a rack: all its blades."""


class HardwareCommand(Record, frozen=True, kw_only=True):
    """Switch hardware on or off. It is refused if the component has changed after `guard`."""

    command: HardwareVerb
    on: Annotated[str, Meta(min_length=1, max_length=255)]
    """A component: `r1`, `r1/pdu1`, `r1/tor1`, `r1/b3`, or a port with its cable: `r1/pdu1:3`, `r1/tor1:3`."""
    guard: Annotated[float, Meta(ge=0, le=2**53)]
    """The guard tick: the virtual instant (`now`) of the state that the command was decided from."""


class HardwareCommandView(Record, frozen=True, kw_only=True):
    """A command that was given. What was that way before has no changes; what is stuck does not follow."""

    id: str
    """What the log names as the cause of the changes."""
    command: HardwareVerb
    on: str
    at: float
    changes: tuple[str, ...]
    """All that followed at this instant."""
    followed: bool
    """False: something is stuck, has no power or hears nothing; `changes` say what."""


class ProposalView(Record, frozen=True, kw_only=True):
    """What should be done about hardware that is not as it should be, and why."""

    id: str
    what: str = field(name="kind")
    component: str
    text: str
    reason: str
    automatic: bool
    """Whether commands are enough; otherwise somebody has to go there."""


class ProposalPage(Record, frozen=True, kw_only=True):
    """What stands above comes first."""

    items: tuple[ProposalView, ...]
    automatic: bool
    """Whether those that commands are enough for are performed without being asked."""


class RepairMode(Record, frozen=True, kw_only=True):
    """Whether repairs that commands are enough for are performed without being asked."""

    automatic: bool


class SimComponent(Record, frozen=True, kw_only=True):
    """A piece of hardware."""

    component: str
    state: str


class SimRack(Record, frozen=True, kw_only=True):
    """A simulated rack: how many blades work, and everything that is not as it was when it was new."""

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
    """The same as seconds since 1970, as every record of the simulated control plane has it."""
    steps: tuple[StepView, ...]
    """Those that are not done yet."""
    next_at: float | None
    """When something is due next; none: nothing ever is."""
    auto_repair: bool
    faults: tuple[FaultView, ...]
    proposals: tuple[ProposalView, ...]
    racks: tuple[SimRack, ...]
    replicas: tuple[SimReplica, ...]
    log: int
    """How many entries the log has."""
    timeline: int
    """How many moments of the scenario's timeline are still to come."""
    failures: tuple[str, ...]
    """What went wrong in the simulator itself, newest last. None should be here."""


class SimState(Record, frozen=True, kw_only=True):
    """The simulation as it is saved."""

    file: str
    """What `hostler sim serve --resume` reads, to the letter. It holds every write to the simulated control plane,
    hashes of tokens and passwords included."""


class SimLogEntry(Record, frozen=True, kw_only=True):
    """One thing that happened."""

    number: int
    at: float
    what: str = field(name="kind")
    component: str
    text: str
    cause: str
    """The id of a fault, of a repair or of a decision, or the component whose change led to it; empty: not known."""
    id: str = ""
    """Of a fault or a decision: what others name as their cause."""


class SimLogPage(Record, frozen=True, kw_only=True):
    """Oldest first. `after`: the number of the last one, if more follow."""

    items: tuple[SimLogEntry, ...]
    after: str | None
    total: int


class FaultNumber(Record, frozen=True, kw_only=True):
    """Something that can be said of a fault beside where and how long."""

    name: str
    default: str


class FaultKind(Record, frozen=True, kw_only=True):
    """A fault that can be made."""

    fault: str
    about: str
    places: tuple[str, ...]
    """What it can be about: `rack`, `pdu`, `tor`, `blade`, `power cable`, `network cable`, `replica`, `all`."""
    numbers: tuple[FaultNumber, ...]


class FaultKindPage(Record, frozen=True, kw_only=True):
    """Every kind of fault."""

    items: tuple[FaultKind, ...]
