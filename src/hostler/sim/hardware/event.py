"""Actions on hardware, and the texts that describe them. `on` is the address of a component."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Collection


class _Event(msgspec.Struct, frozen=True, tag_field="event"):
    on: str


# Commands: stuck components ignore them.


class PowerOff(_Event, frozen=True, tag="power_off"):
    """Switch off a pdu or one of its ports; for a blade or tor: every port that feeds it; for a rack: its pdus."""


class PowerOn(_Event, frozen=True, tag="power_on"):
    """Switch on, with the same scope as PowerOff."""


class Disconnect(_Event, frozen=True, tag="disconnect"):
    """Switch off a port of a tor; for a blade: every port that it is connected to; for a tor: all of its ports."""


class Connect(_Event, frozen=True, tag="connect"):
    """Switch on, with the same scope as Disconnect."""


# Faults and their ends. They apply in every state of the component.


class Cut(_Event, frozen=True, tag="cut"):
    """The feed of a pdu or the uplink of a tor is lost, or a cable is unplugged."""


class Join(_Event, frozen=True, tag="join"):
    """The feed or uplink is restored, or the cable is plugged in."""


class Stick(_Event, frozen=True, tag="stick"):
    """A pdu, tor or cable ignores commands from now on."""

    at: bool | None = None
    """The state in which a pdu or cable sticks: on, off, or (None) the present one."""


class Unstick(_Event, frozen=True, tag="unstick"):
    """The component follows commands again. It keeps its present state."""


class Crash(_Event, frozen=True, tag="crash"):
    """The software of a blade crashes; for a rack: that of all its blades."""

    lasting: bool = False
    """The blade crashes again after every boot until it is repaired or replaced."""


# Actions of an operator at the blade.


class Start(_Event, frozen=True, tag="start"):
    """Boot a blade that has power and is stopped; for a rack: all its blades."""


class Stop(_Event, frozen=True, tag="stop"):
    """Shut down the software of a blade; its power stays on. For a rack: all its blades."""


class Repair(_Event, frozen=True, tag="repair"):
    """Restore a component to its original state: a switch is on, joined and not stuck; a blade is not broken.

    A blade that was down boots.
    """


class Replace(_Event, frozen=True, tag="replace"):
    """Replace a component with a new one. A new blade has no data, and boots."""


Command = PowerOff | PowerOn | Disconnect | Connect
Event = Command | Cut | Join | Stick | Unstick | Crash | Start | Stop | Repair | Replace


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


def event_text(event: Event, kind: str) -> str:
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


def target_text(event: Event) -> str:
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


def is_command(event: Event) -> bool:
    return isinstance(event, Command)


def few_of(names: Collection[str]) -> str:
    """Return a few of the names, and the number of the others."""
    if not names:
        return "none"
    shown = list(names)[:_SHOWN]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
