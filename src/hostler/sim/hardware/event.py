"""Actions on hardware. `on` is the address of a component."""

from __future__ import annotations

import msgspec


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
