"""Texts that describe events in logs and messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.sim.hardware.blade import Life
from hostler.sim.hardware.event import (
    Command,
    Connect,
    Crash,
    Cut,
    Disconnect,
    Join,
    PowerOff,
    PowerOn,
    Repair,
    Replace,
    Start,
    Stick,
    Stop,
    Unstick,
)

if TYPE_CHECKING:
    from collections.abc import Collection

    from hostler.sim.hardware.blade import BladeState
    from hostler.sim.hardware.event import Event

_SHOWN = 8
_CUT = {"pdu": "its feed was lost", "tor": "its uplink was lost", "cable": "unplugged"}
_WORDS: dict[type, str] = {
    PowerOff: "switched off",
    PowerOn: "switched on",
    Disconnect: "disconnected",
    Connect: "connected",
    Stick: "got stuck",
    Unstick: "follows commands again",
    Crash: "crashed",
    Start: "started",
    Stop: "stop requested",
    Repair: "repaired",
    Replace: "replaced",
}
_JOINED = {"pdu": "its feed is back", "tor": "its uplink is back", "cable": "plugged in"}


def of(event: Event, kind: str) -> str:
    """Describe what happened to a component of this kind."""
    match event:
        case Cut():
            return _CUT[kind]
        case Join():
            return _JOINED[kind]
        case Crash(lasting=True):
            return "crashed permanently"
        case _:
            return _WORDS[type(event)]


def instead(event: Event) -> str:
    """Describe which components the event applies to."""
    match event:
        case PowerOff() | PowerOn():
            return "name a pdu, a cable of one, a rack, or a blade or tor that a pdu feeds"
        case Disconnect() | Connect():
            return "name a tor, a cable of one, or a blade that a tor connects"
        case Cut() | Join() | Stick() | Unstick():
            return "name a pdu, a tor or a cable"
        case Crash() | Start() | Stop():
            return "name a blade or a rack"
        case Repair() | Replace():
            return "name a blade, a pdu, a tor or a cable"


def due(state: BladeState) -> str:
    """Describe what the expiry of a blade's timer means."""
    match state.life:
        case Life.BOOTING:
            return "failed again after booting" if state.broken else "booted"
        case Life.UP:
            return "worked long enough: earlier failures are forgotten"
        case _:
            return "stopped"


def is_command(event: Event) -> bool:
    return isinstance(event, Command)


def some(names: Collection[str]) -> str:
    """Return a few of the names, and the number of the others."""
    if not names:
        return "none"
    shown = list(names)[:_SHOWN]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
