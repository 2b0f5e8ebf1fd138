"""Faults of simulated machines, from a seeded source or as scripted.

Faults and delays depend only on the seed and the order of calls: every call of a verb draws the same number of random
numbers with any odds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import msgspec

from hostler.errors import Invalid

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping

Verb: TypeAlias = Literal[
    "capacity", "create", "start", "stop", "reset", "delete", "inspect", "list", "snapshot", "restore", "drop_snapshot",
    "console", "hold", "receive", "send", "mark", "retain", "retained", "reinstate", "discard",
]  # fmt: skip
Kind: TypeAlias = Literal["unavailable", "never", "half", "lost", "broken", "deaf", "slow"]

_READS = ("capacity", "inspect", "list", "console", "retained")
_SOFT: tuple[Kind, ...] = ("unavailable", "slow")
_HARD: tuple[Kind, ...] = ("unavailable", "never", "half", "lost", "slow")


@dataclass
class Odds:
    """Probability of each fault of a verb, from 0 (never) to 1 (always)."""

    unavailable: float = 0.0
    """Unavailable is raised, and nothing was done."""
    never: float = 0.0
    """Nothing was done, and Uncertain is raised."""
    half: float = 0.0
    """The first of its steps is done, and Uncertain is raised."""
    lost: float = 0.0
    """Everything is done, and then Uncertain is raised."""
    broken: float = 0.0
    """A start leaves the machine FAILED, and Uncertain is raised."""
    deaf: float = 0.0
    """A stop is ignored by the guest: it runs until `grace` is over."""
    slow: float = 0.0
    """The call takes up to `slowest` seconds longer."""
    slowest: float = 1.0
    some: bool = field(init=False, compare=False, repr=False)
    """Whether any fault is possible."""

    def __setattr__(self, name: str, value: float) -> None:
        super().__setattr__(name, value)
        if name in _HARD or name in ("broken", "deaf"):  # read by every call, and changed a few times in a run
            super().__setattr__("some", any(getattr(self, kind, 0.0) for kind in (*_HARD, "broken", "deaf")))


@dataclass
class MachineFaults:
    """How often verbs fail and how long they take. Everything may be changed at any time."""

    every: Odds = field(default_factory=Odds)
    verbs: dict[Verb, Odds] = field(default_factory=dict)
    """Verbs with their own odds, instead of `every`."""
    delays: dict[Verb, float] = field(default_factory=dict)
    """Seconds that a verb takes between its steps. Of `stop`: how long the machine takes to shut down."""

    def of(self, verb: Verb) -> Odds:
        return self.verbs.get(verb, self.every)


class Draw(msgspec.Struct, frozen=True):
    """The fault and delay of one call."""

    kind: Kind | None
    delay: float
    """Seconds that the call takes."""


_FINE = Draw(None, 0.0)


@dataclass
class _Script:
    verb: Verb
    kind: Kind
    vm: str
    skip: int
    times: int


class FaultSource:
    """Draws the fault of each call."""

    def __init__(self, faults: MachineFaults, rng: random.Random) -> None:
        self.faults = faults
        self._rng = rng
        self._scripts: list[_Script] = []

    def script(self, verb: Verb, kind: Kind, *, vm: str = "", nth: int = 1, times: int = 1) -> None:
        """Let the `nth` call of `verb` from now, and `times` calls in total, meet a fault; with `vm` only its calls."""
        allowed = kinds_of(verb)
        if kind not in allowed:
            raise Invalid(f"script: {verb} cannot be {kind}; it can be {', '.join(allowed)}")
        if nth < 1 or times < 1:
            raise Invalid(f"script: nth {nth} and times {times} must be at least 1")
        self._scripts.append(_Script(verb, kind, vm, nth - 1, times))

    def draw(self, verb: Verb, vm: str) -> Draw:
        """Draw the fault and delay of this call."""
        chance, share = self._rng.random(), self._rng.random()
        odds, kind = self.faults.of(verb), self._next_scripted(verb, vm) if self._scripts else None
        if kind is None and not odds.some:
            delay = self.faults.delays.get(verb, 0.0)
            return Draw(None, delay) if delay else _FINE
        if kind is None:
            for each in kinds_of(verb):
                often: float = getattr(odds, each)
                if chance < often:
                    kind = each
                    break
                chance -= often
        return Draw(kind, self.faults.delays.get(verb, 0.0) + (share * odds.slowest if kind == "slow" else 0.0))

    def _next_scripted(self, verb: Verb, vm: str) -> Kind | None:
        found: Kind | None = None
        for script in list(self._scripts):
            if script.verb != verb or script.vm not in ("", vm):
                continue
            if script.skip:
                script.skip -= 1
            elif found is None:
                found = script.kind
                script.times -= 1
                if not script.times:
                    self._scripts.remove(script)
        return found


def faults_of(delays: Mapping[str, float]) -> MachineFaults:
    """Return faults with delays only. Invalid: no such verb, or an invalid time."""
    faults = MachineFaults()
    for name, seconds in delays.items():
        verb = next((verb for verb in get_args(Verb) if verb == name), None)
        if verb is None or not 0 <= seconds < math.inf:
            raise Invalid(f"delay {name}={seconds!r}: must be seconds for one of {', '.join(get_args(Verb))}")
        faults.delays[verb] = seconds
    return faults


def kinds_of(verb: Verb) -> tuple[Kind, ...]:
    """Return the faults that a verb can meet."""
    if verb in _READS:
        return _SOFT
    return (*_HARD, *(("broken",) if verb == "start" else ("deaf",) if verb == "stop" else ()))
