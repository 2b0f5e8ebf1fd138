"""Pdus, tors and cables: they carry power or network unless they are off or cut, and can get stuck."""

from __future__ import annotations

from typing import Literal, TypeVar

import msgspec

from hostler.sim.hardware.event import (
    Command,
    Connect,
    Cut,
    Disconnect,
    Join,
    PowerOff,
    PowerOn,
    Repair,
    Replace,
    Stick,
    Unstick,
)

SwitchEvent = Command | Cut | Join | Stick | Unstick | Repair | Replace


class Switch(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the component is switched on, joined and stuck."""

    on: bool = True
    joined: bool = True
    """False: no feed, no uplink, or unplugged."""
    stuck: bool = False
    """The component ignores commands. It continues to carry what it carries."""

    @property
    def carries(self) -> bool:
        return self.on and self.joined

    @property
    def sound(self) -> bool:
        """Whether the component is in its original state."""
        return self.on and self.joined and not self.stuck


class Ignored(msgspec.Struct, frozen=True):
    """An effect: the component ignored a command."""

    why: str


SwitchT = TypeVar("SwitchT", bound=Switch)


def step(state: SwitchT, event: SwitchEvent) -> tuple[SwitchT, tuple[Ignored, ...]]:
    """Return the next state of the component. No event sets a timer."""
    match event:
        case PowerOff() | Disconnect():
            return _set_on(state, on=False)
        case PowerOn() | Connect():
            return _set_on(state, on=True)
        case Cut():
            return _with(state, joined=False), ()
        case Join():
            return _with(state, joined=True), ()
        case Stick(at=at):
            return _with(state, stuck=True, on=state.on if at is None else at), ()
        case Unstick():
            return _with(state, stuck=False), ()
        case Repair() | Replace():
            return _with(state, on=True, joined=True, stuck=False), ()


def _set_on(state: SwitchT, *, on: bool) -> tuple[SwitchT, tuple[Ignored, ...]]:
    if state.on is on:
        return state, ()
    if state.stuck:
        return state, (Ignored(f"it is stuck, and stays {'on' if state.on else 'off'}"),)
    return _with(state, on=on), ()


def _with(state: SwitchT, **fields: bool) -> SwitchT:
    return msgspec.structs.replace(state, **fields)


class PduState(Switch, frozen=True, kw_only=True):
    """Ports have power while the pdu is on and fed. A stuck pdu keeps its state, and so do its ports."""

    @property
    def word(self) -> Literal["working", "off", "stuck"]:
        return _device_word(self)

    @property
    def text(self) -> str:
        return _position_text(self, self.word, "no feed")


class TorState(Switch, frozen=True, kw_only=True):
    """Ports reach the network while the tor has power and its uplink is up. `on` is always True."""

    powered: bool = True

    @property
    def carries(self) -> bool:
        return self.powered and self.joined

    @property
    def sound(self) -> bool:
        return self.carries and not self.stuck

    @property
    def word(self) -> Literal["working", "off", "stuck"]:
        return _device_word(self)

    @property
    def text(self) -> str:
        said = [*(["stuck"] if self.stuck else []), *([] if self.powered else ["no power"])]
        said += [] if self.joined else ["no uplink"]
        return ", ".join(said) or "working"


def step_tor(state: TorState, event: SwitchEvent) -> tuple[TorState, tuple[Ignored, ...]]:
    """Return the next state of the tor. A tor has no position to stick at."""
    return step(state, Stick(event.on) if isinstance(event, Stick) else event)


class CableState(Switch, frozen=True, kw_only=True):
    """A cable carries the power or network of its pdu or tor while its port is on and it is plugged in.

    A faulted cable keeps its state.
    """

    @property
    def word(self) -> Literal["on", "off", "faulted"]:
        if self.stuck:
            return "faulted"
        return "on" if self.carries else "off"

    @property
    def text(self) -> str:
        return _position_text(self, self.word, "unplugged")


def _device_word(device: Switch) -> Literal["working", "off", "stuck"]:
    if device.stuck:
        return "stuck"
    return "working" if device.carries else "off"


def _position_text(state: Switch, word: str, unjoined: str) -> str:
    if not state.joined:
        return f"stuck, {unjoined}" if state.stuck else unjoined
    return f"stuck at {'on' if state.on else 'off'}" if state.stuck else word
