"""Faults that a simulated world can suffer, as values that scenarios write, draw and shrink.

In YAML and JSON a fault is a map: `fault: power`, `on: r1/pdu1`, `for: 30`, and its own parameters. Components are `r1`
(a rack), `r1/pdu1`, `r1/tor1`, `r1/b3` (a blade), `r1/pdu1:3` (the cable at port 3) and `replica-1`.
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
    """Fields that all faults share."""

    on: str = ""
    """The affected component. Empty: every component that the fault can affect, or the current leader for leader
    faults."""
    for_: float | None = None
    """Seconds until the fault is lifted; None: until it is lifted explicitly. A momentary fault needs no duration."""

    place: ClassVar[tuple[str, ...]] = ()
    """What `on` may name: `rack`, `pdu`, `tor`, `blade`, `power cable`, `network cable`, `replica`, or nothing
    (`all`)."""

    def __post_init__(self) -> None:
        if self.for_ is not None and not 0 < self.for_ < math.inf:
            raise Invalid(f"for {self.for_:g}: must be above 0 seconds; leave it out for a permanent fault")

    @property
    def name(self) -> str:
        """The name of the fault in YAML."""
        return str(self.__struct_config__.tag)

    def told(self) -> str:
        """Return a one-line description of the fault."""
        numbers = {key: value for key, value in fields_of(self).items() if key not in ("fault", "on", "for")}
        told = [
            self.name,
            *((self.on,) if self.on else ()),
            *(f"{key}={_value_text(value)}" for key, value in numbers.items()),
        ]
        return " ".join(told) + ("" if self.for_ is None else f" for {self.for_:g} s")


class PowerFault(FaultBase, frozen=True, kw_only=True, tag="power"):
    """Power loss: the feed of a pdu, one cable, every power cable of a blade, or every pdu feed of a rack."""

    place = ("rack", "pdu", "blade", "power cable")


class NetworkFault(FaultBase, frozen=True, kw_only=True, tag="network"):
    """Network loss: the uplink of a tor, one cable, every network cable of a blade, or every tor uplink of a rack.

    Software there keeps running without network.
    """

    place = ("rack", "tor", "blade", "network cable")


class CableStuck(FaultBase, frozen=True, kw_only=True, tag="cable_stuck"):
    """The port of a cable ignores commands and keeps its state."""

    place = ("power cable", "network cable")


class PduStuck(FaultBase, frozen=True, kw_only=True, tag="pdu_stuck"):
    """A pdu ignores commands."""

    place = ("pdu",)


class TorStuck(FaultBase, frozen=True, kw_only=True, tag="tor_stuck"):
    """A tor ignores commands."""

    place = ("tor",)


class BladeCrash(FaultBase, frozen=True, kw_only=True, tag="blade_crash"):
    """A blade stops at once, together with everything that runs on it. Lifting the fault repairs the blade."""

    place = ("blade", "rack")
    lasting: bool = False
    """The blade crashes again after every boot until it is repaired."""


class SlowDisk(FaultBase, frozen=True, kw_only=True, tag="slow_disk"):
    """Each machine operation takes `delay` seconds longer."""

    place = ("blade", "rack", "all")
    delay: float = 5.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _at_least("delay", self.delay)


class StoreUnavailable(FaultBase, frozen=True, kw_only=True, tag="store_unavailable"):
    """The store rejects all requests, of every process or of one: no reads, no writes, and watches deliver nothing."""

    place = ("replica", "blade", "rack", "all")


class StoreSlow(FaultBase, frozen=True, kw_only=True, tag="store_slow"):
    """A fraction of the requests takes up to `slowest` seconds longer."""

    place = ("replica", "blade", "rack", "all")
    chance: float = 1.0
    slowest: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _chance("chance", self.chance)
        _at_least("slowest", self.slowest)


class AnswerLost(FaultBase, frozen=True, kw_only=True, tag="answer_lost"):
    """A fraction of the requests is executed but never answered."""

    place = ("replica", "blade", "rack", "all")
    chance: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        _chance("chance", self.chance)


class WatchLost(FaultBase, frozen=True, kw_only=True, tag="watch_lost"):
    """A fraction of the events is not delivered: the watch fails as lagged and must be restarted."""

    place = ("replica", "blade", "rack", "all")
    chance: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        _chance("chance", self.chance)


class Partition(FaultBase, frozen=True, kw_only=True, tag="partition"):
    """The named replicas, blades and racks are cut off from everything else, including the store.

    They get no error, only no answers. They can still reach each other.
    """

    place = ("replica", "blade", "rack")
    names: tuple[str, ...] = ()
    """More components, in addition to `on`."""

    @property
    def members(self) -> tuple[str, ...]:
        """All components that are cut off."""
        return tuple(dict.fromkeys((*((self.on,) if self.on else ()), *self.names)))


class LeaderPaused(FaultBase, frozen=True, kw_only=True, tag="leader_paused"):
    """The leader's process is suspended until the fault is lifted, as by SIGSTOP. With `on`: that replica's process."""

    place = ("replica", "all")


class LeaderKilled(FaultBase, frozen=True, kw_only=True, tag="leader_killed"):
    """SIGKILL for the leader. A supervisor restarts it, with `for` only after that time."""

    place = ("all",)


class ReplicaKilled(FaultBase, frozen=True, kw_only=True, tag="replica_killed"):
    """SIGKILL for a replica. A supervisor restarts it, with `for` only after that time."""

    place = ("replica",)


class ClockRate(FaultBase, frozen=True, kw_only=True, tag="clock_rate"):
    """The monotonic clock of a replica or blade runs at another rate, for measurements and sleeps.

    Wall-clock time stays correct.
    """

    place = ("replica", "blade", "rack")
    rate: float = 1.05

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.01 <= self.rate <= 100:
            raise Invalid(f"rate {self.rate:g}: must be from 0.01 to 100; 1 is normal")


class ProviderErrors(FaultBase, frozen=True, kw_only=True, tag="provider_errors"):
    """A fraction of the machine operations fails.

    Of these, half are not executed, a quarter are executed but not answered, and a quarter are executed half way.
    """

    place = ("blade", "rack", "all")
    chance: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        _chance("chance", self.chance)


class AgentKilled(FaultBase, frozen=True, kw_only=True, tag="agent_killed"):
    """SIGKILL for the agent of a blade.

    Its machines keep running. A supervisor restarts the agent, with `for` only after that time.
    """

    place = ("blade", "rack", "all")


class AgentSlow(FaultBase, frozen=True, kw_only=True, tag="agent_slow"):
    """The agent of a blade reports observed state `delay` seconds late. Its heartbeats are on time."""

    place = ("blade", "rack", "all")
    delay: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _at_least("delay", self.delay)


class SliceCrash(FaultBase, frozen=True, kw_only=True, tag="slice_crash"):
    """The processes of slices end at once, as by SIGKILL. The agents of their blades restart them."""

    place = ("blade", "rack", "all")
    artifact: str = ""
    """Only slices of this artifact, or of every version of `group:name`; empty: all slices."""


class SliceRefuses(FaultBase, frozen=True, kw_only=True, tag="slice_refuses"):
    """A version is broken: it fails to load, or its `start` raises. Other versions of the slice are not affected."""

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
"""All fault types by their name in YAML."""


def fault_of(fields: Mapping[str, Any]) -> Fault:
    """Build the fault that a map describes. Invalid: the map is not a valid fault; the message says why."""
    kind = FAULTS.get(str(fields.get("fault", "")))
    if kind is None:
        raise Invalid(f"fault {fields.get('fault')!r}: no such fault; the faults are {', '.join(FAULTS)}")
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
    """Return the map that describes a fault; `fault_of` reads it back."""
    fields: dict[str, Any] = msgspec.to_builtins(fault)
    return fields


def _value_text(value: Any) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _chance(what: str, value: float) -> None:
    if not 0 < value <= 1:
        raise Invalid(f"{what} {value:g}: must be above 0 and at most 1")


def _at_least(what: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise Invalid(f"{what} {value:g}: must be above 0 seconds")
