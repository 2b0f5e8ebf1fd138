"""What can go wrong in a simulated world, as values: scenarios write them down, draw them and shrink them.

In YAML and JSON a fault is a map: `fault: power`, `on: r1/pdu1`, `for: 30`, and its own numbers. Components are
`r1` (a rack), `r1/pdu1`, `r1/tor1`, `r1/b3` (a blade), `r1/pdu1:3` (the cable at port 3) and `replica-1`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, get_args

import msgspec

from hostler.errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Mapping


class FaultBase(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag_field="fault",
    forbid_unknown_fields=True,
    omit_defaults=True,
    rename={"for_": "for"},
):
    """What all faults have."""

    on: str = ""
    """The component; empty: all that it can be about, or for faults of a leader whoever leads."""
    for_: float | None = None
    """Seconds until it is lifted; None: until somebody lifts it. What happens at once and is over needs none."""

    place: ClassVar[tuple[str, ...]] = ()
    """What `on` may name: `rack`, `pdu`, `tor`, `blade`, `power cable`, `network cable`, `replica`, or nothing
    (`all`)."""

    def __post_init__(self) -> None:
        if self.for_ is not None and not 0 < self.for_ < math.inf:
            raise Invalid(f"for {self.for_:g}: must be above 0 seconds; leave it out for a fault that stays")

    @property
    def name(self) -> str:
        """As YAML has it."""
        return str(self.__struct_config__.tag)

    def told(self) -> str:
        """In one line, for people."""
        numbers = {key: value for key, value in fields_of(self).items() if key not in ("fault", "on", "for")}
        told = [
            self.name,
            *((self.on,) if self.on else ()),
            *(f"{key}={_shown(value)}" for key, value in numbers.items()),
        ]
        return " ".join(told) + ("" if self.for_ is None else f" for {self.for_:g} s")


class PowerFault(FaultBase, frozen=True, kw_only=True, tag="power"):
    """No power: the feed of a pdu is lost, a cable is unplugged, or every one of a blade or every feed of a rack."""

    place = ("rack", "pdu", "blade", "power cable")


class NetworkFault(FaultBase, frozen=True, kw_only=True, tag="network"):
    """No network: the uplink of a tor is lost, a cable is unplugged, or every one of a blade or every uplink of a rack.
    What runs there runs on, and hears nothing."""

    place = ("rack", "tor", "blade", "network cable")


class CableStuck(FaultBase, frozen=True, kw_only=True, tag="cable_stuck"):
    """The port of a cable does not follow commands: it stays as it is."""

    place = ("power cable", "network cable")


class PduStuck(FaultBase, frozen=True, kw_only=True, tag="pdu_stuck"):
    """A pdu does not follow commands."""

    place = ("pdu",)


class TorStuck(FaultBase, frozen=True, kw_only=True, tag="tor_stuck"):
    """A tor does not follow commands."""

    place = ("tor",)


class BladeCrash(FaultBase, frozen=True, kw_only=True, tag="blade_crash"):
    """A blade stops at once, and what ran on it is off. Lifting it repairs the blade."""

    place = ("blade", "rack")
    lasting: bool = False
    """It does so again whenever it has booted, until it is repaired."""


class SlowDisk(FaultBase, frozen=True, kw_only=True, tag="slow_disk"):
    """What is done to machines takes `delay` seconds longer, each verb."""

    place = ("blade", "rack", "all")
    delay: float = 5.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _at_least("delay", self.delay)


class StoreUnavailable(FaultBase, frozen=True, kw_only=True, tag="store_unavailable"):
    """The store refuses, for everybody or for one process: nothing is read or written, and watches are silent."""

    place = ("replica", "blade", "rack", "all")


class StoreSlow(FaultBase, frozen=True, kw_only=True, tag="store_slow"):
    """A share of requests takes up to `slowest` seconds longer."""

    place = ("replica", "blade", "rack", "all")
    chance: float = 1.0
    slowest: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _chance("chance", self.chance)
        _at_least("slowest", self.slowest)


class AnswerLost(FaultBase, frozen=True, kw_only=True, tag="answer_lost"):
    """A share of requests is done, and never answered."""

    place = ("replica", "blade", "rack", "all")
    chance: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        _chance("chance", self.chance)


class WatchLost(FaultBase, frozen=True, kw_only=True, tag="watch_lost"):
    """A share of events does not come through: the watch that should bring it has lagged, and has to be begun anew."""

    place = ("replica", "blade", "rack", "all")
    chance: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        _chance("chance", self.chance)


class Partition(FaultBase, frozen=True, kw_only=True, tag="partition"):
    """The named replicas, blades and racks are cut off from everybody else, and so from the store. They are not told:
    nothing answers. Among themselves they can talk."""

    place = ("replica", "blade", "rack")
    names: tuple[str, ...] = ()
    """Beside `on`."""

    @property
    def members(self) -> tuple[str, ...]:
        """Whom it cuts off."""
        return tuple(dict.fromkeys((*((self.on,) if self.on else ()), *self.names)))


class LeaderPaused(FaultBase, frozen=True, kw_only=True, tag="leader_paused"):
    """Nothing of the process that leads runs until it is lifted, as by SIGSTOP. With `on`: of that replica."""

    place = ("replica", "all")


class LeaderKilled(FaultBase, frozen=True, kw_only=True, tag="leader_killed"):
    """SIGKILL for whoever leads; a supervisor starts it again. With `for`: not before that."""

    place = ("all",)


class ReplicaKilled(FaultBase, frozen=True, kw_only=True, tag="replica_killed"):
    """SIGKILL for a replica; a supervisor starts it again. With `for`: not before that."""

    place = ("replica",)


class ClockRate(FaultBase, frozen=True, kw_only=True, tag="clock_rate"):
    """The clock of a replica or a blade runs at another rate: what it measures and how long it sleeps. The calendar
    stays right."""

    place = ("replica", "blade", "rack")
    rate: float = 1.05

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.01 <= self.rate <= 100:
            raise Invalid(f"rate {self.rate:g}: must be from 0.01 to 100; 1 is right")


class ProviderErrors(FaultBase, frozen=True, kw_only=True, tag="provider_errors"):
    """A share of what is asked of machines fails: half is not done, a quarter is done and not answered, and a quarter
    is done half way."""

    place = ("blade", "rack", "all")
    chance: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        _chance("chance", self.chance)


class AgentKilled(FaultBase, frozen=True, kw_only=True, tag="agent_killed"):
    """SIGKILL for the agent of a blade; its machines run on, and a supervisor starts it again. With `for`: not before
    that."""

    place = ("blade", "rack", "all")


class AgentSlow(FaultBase, frozen=True, kw_only=True, tag="agent_slow"):
    """The agent of a blade tells what it sees `delay` seconds late. Its heartbeats are in time."""

    place = ("blade", "rack", "all")
    delay: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _at_least("delay", self.delay)


class SliceCrash(FaultBase, frozen=True, kw_only=True, tag="slice_crash"):
    """The processes of slices end at once, as by SIGKILL. The agents of their blades start them again."""

    place = ("blade", "rack", "all")
    artifact: str = ""
    """Of this artifact, or of every version of `group:name`; empty: of all."""


class SliceRefuses(FaultBase, frozen=True, kw_only=True, tag="slice_refuses"):
    """A version is broken: it cannot be loaded, or its `start` raises. Others of its slice are well."""

    place = ("blade", "rack", "all")
    artifact: str = ""
    """This artifact, or every version of `group:name`; empty: all."""
    step: Literal["load", "activate"] = "activate"
    chance: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _chance("chance", self.chance)


Fault: TypeAlias = (
    PowerFault
    | NetworkFault
    | CableStuck
    | PduStuck
    | TorStuck
    | BladeCrash
    | SlowDisk
    | StoreUnavailable
    | StoreSlow
    | AnswerLost
    | WatchLost
    | Partition
    | LeaderPaused
    | LeaderKilled
    | ReplicaKilled
    | ClockRate
    | ProviderErrors
    | AgentKilled
    | AgentSlow
    | SliceCrash
    | SliceRefuses
)

FAULTS: dict[str, type[Fault]] = {str(kind.__struct_config__.tag): kind for kind in get_args(Fault)}
"""Every fault, by its name in YAML."""


def fault_of(fields: Mapping[str, Any]) -> Fault:
    """The fault that a map describes. Invalid: it describes none, and why."""
    kind = FAULTS.get(str(fields.get("fault", "")))
    if kind is None:
        raise Invalid(f"fault {fields.get('fault')!r}: there is none of that name; there are {', '.join(FAULTS)}")
    try:
        fault: Fault = msgspec.convert(dict(fields), kind)
    except msgspec.ValidationError as error:
        cause = error.__cause__
        why = str(cause) if isinstance(cause, Invalid) else str(error)[:1].lower() + str(error)[1:]
        raise Invalid(f"fault {kind.__struct_config__.tag}: {why}") from None
    except Invalid as error:
        raise Invalid(f"fault {kind.__struct_config__.tag}: {error}") from None
    return fault


def fields_of(fault: FaultBase) -> dict[str, Any]:
    """The map that describes a fault: `fault_of` reads it back."""
    fields: dict[str, Any] = msgspec.to_builtins(fault)
    return fields


def _shown(value: Any) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _chance(what: str, value: float) -> None:
    if not 0 < value <= 1:
        raise Invalid(f"{what} {value:g}: must be above 0 and at most 1")


def _at_least(what: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise Invalid(f"{what} {value:g}: must be above 0 seconds")
