"""A blade, as a state machine.

    off ──power──▶ booting ──5–8 ticks──▶ working ⇄ isolated        (network lost, network back; it keeps running)
     ▲                ▲ start, repair        │ stop           │ crash
     │ no power:      │                      ▼                ▼
     └── from any  powered ◀──1–3 ticks── stopping         faulted  (way out: power off and on, repair, replace)

The components that a blade is wired to report its power and network (`Supply`). A tick is one second.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Literal

import msgspec

from hostler.sim.hardware.event import Crash, Repair, Replace, Start, Stop
from hostler.sim.hardware.switch import Ignored

if TYPE_CHECKING:
    import random

TICK = 1.0
BOOT_TICKS = (5, 8)
STOP_TICKS = (1, 3)
ENOUGH = 2
"""Number of failures after which the blade should be replaced."""
PROVEN = 3600.0
"""Seconds without a failure after which earlier failures are forgotten."""


class Life(enum.StrEnum):
    """State of the blade's software."""

    DOWN = "down"
    BOOTING = "booting"
    UP = "up"
    STOPPING = "stopping"
    FAULTED = "faulted"


class BladeState(msgspec.Struct, frozen=True, kw_only=True):
    """Complete state of a blade. A blade without power is always DOWN."""

    life: Life = Life.UP
    powered: bool = True
    connected: bool = True
    """At least one path leads from the blade to the network."""
    broken: bool = False
    """The blade fails again after every boot."""
    failures: int = 0
    """Failures since the blade was new, repaired or proven; counted up to ENOUGH."""
    serial: int = 1
    """Identifies the piece of hardware. A replacement has another number and none of the old data."""
    epoch: int = 0
    """Increases with each change of `life`. A timer of another epoch has no effect."""

    @property
    def runs(self) -> bool:
        """Whether the software is running, also while isolated."""
        return self.life is Life.UP

    @property
    def working(self) -> bool:
        """Whether the software is running and reachable."""
        return self.life is Life.UP and self.connected

    @property
    def reaches_network(self) -> bool:
        return self.powered and self.connected

    @property
    def sound(self) -> bool:
        """Whether the blade needs no attention."""
        return self.life is Life.UP and self.connected and not self.broken

    @property
    def word(self) -> Literal["off", "powered", "booting", "working", "isolated", "stopping", "faulted"]:
        if not self.powered:
            return "off"
        match self.life:
            case Life.DOWN:
                return "powered"
            case Life.BOOTING:
                return "booting"
            case Life.STOPPING:
                return "stopping"
            case Life.FAULTED:
                return "faulted"
            case Life.UP:
                return "working" if self.connected else "isolated"

    @property
    def text(self) -> str:
        word = self.word
        return word if self.connected or word == "isolated" else f"{word}, disconnected"


class Supply(msgspec.Struct, frozen=True):
    """The power and network that reach the blade from now on."""

    powered: bool
    connected: bool


class Due(msgspec.Struct, frozen=True):
    """A timer has expired."""

    epoch: int


class Timer(msgspec.Struct, frozen=True):
    """An effect: deliver `Due(epoch)` to the blade at this instant."""

    due: float
    epoch: int


BladeEvent = Supply | Due | Crash | Start | Stop | Repair | Replace
Effect = Timer | Ignored
Outcome = tuple[BladeState, tuple[Effect, ...]]


def step(state: BladeState, event: BladeEvent, *, now: float, rng: random.Random) -> Outcome:
    """Return the next state of the blade and the timers to set."""
    match event:
        case Supply():
            return _apply_supply(state, event, now, rng)
        case Due(epoch=epoch):
            return _due(state, now) if epoch == state.epoch else (state, ())
        case Crash(lasting=lasting):
            broken = _with(state, broken=state.broken or lasting)
            down = state.life in (Life.DOWN, Life.FAULTED)
            return (broken, ()) if down else (_fail(broken), ())
        case Start():
            return _start(state, now, rng)
        case Stop():
            return _stop(state, now, rng)
        case Repair():
            repaired = _with(state, broken=False, failures=0)
            down = state.powered and state.life in (Life.DOWN, Life.FAULTED)
            return _booting(repaired, now, rng) if down else (repaired, ())
        case Replace():
            fresh = BladeState(
                life=Life.DOWN, powered=state.powered, connected=state.connected,
                serial=state.serial + 1, epoch=state.epoch + 1,
            )  # fmt: skip
            return _booting(fresh, now, rng) if state.powered else (fresh, ())


def _apply_supply(state: BladeState, supply: Supply, now: float, rng: random.Random) -> Outcome:
    after = _with(state, powered=supply.powered, connected=supply.connected)
    if supply.powered is state.powered:
        return after, ()
    return _booting(after, now, rng) if supply.powered else (_with_life(after, Life.DOWN), ())


def _due(state: BladeState, now: float) -> Outcome:
    match state.life:
        case Life.BOOTING if state.broken:
            return _fail(state), ()
        case Life.BOOTING:
            up = _with_life(state, Life.UP)
            return up, ((Timer(now + PROVEN, up.epoch),) if up.failures else ())
        case Life.STOPPING:
            return _with_life(state, Life.DOWN), ()
        case Life.UP:
            return _with(state, failures=0), ()
        case _:
            return state, ()


def _start(state: BladeState, now: float, rng: random.Random) -> Outcome:
    if not state.powered:
        return state, (Ignored("it has no power"),)
    if state.life is Life.FAULTED:
        return state, (Ignored("it is faulted: switch its power off and on, or repair it"),)
    return _booting(state, now, rng) if state.life is Life.DOWN else (state, ())


def _stop(state: BladeState, now: float, rng: random.Random) -> Outcome:
    if state.life is Life.FAULTED:
        return state, (Ignored("it is faulted and ignores commands"),)
    if state.life not in (Life.UP, Life.BOOTING):
        return state, ()
    stopping = _with_life(state, Life.STOPPING)
    return stopping, (Timer(now + TICK * rng.randint(*STOP_TICKS), stopping.epoch),)


def _booting(state: BladeState, now: float, rng: random.Random) -> Outcome:
    booting = _with_life(state, Life.BOOTING)
    return booting, (Timer(now + TICK * rng.randint(*BOOT_TICKS), booting.epoch),)


def _fail(state: BladeState) -> BladeState:
    return _with_life(_with(state, failures=min(state.failures + 1, ENOUGH)), Life.FAULTED)


def _with_life(state: BladeState, life: Life) -> BladeState:
    return _with(state, life=life, epoch=state.epoch + 1)


_with = msgspec.structs.replace


def timer_text(state: BladeState) -> str:
    """Describe what the expiry of the timer of a blade means."""
    match state.life:
        case Life.BOOTING:
            return "failed again after booting" if state.broken else "booted"
        case Life.UP:
            return "worked long enough: earlier failures are forgotten"
        case _:
            return "stopped"
