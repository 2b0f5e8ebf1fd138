"""What is done to hardware. `on` is the address of a component."""

from __future__ import annotations

import msgspec


class _Event(msgspec.Struct, frozen=True, tag_field="event"):
    on: str


# Commands: what is stuck does not follow them.


class PowerOff(_Event, frozen=True, tag="power_off"):
    """Switch off a pdu or one of its ports; of a blade or tor: every port that feeds it; of a rack: its pdus."""


class PowerOn(_Event, frozen=True, tag="power_on"):
    """Switch on, as PowerOff switches off."""


class Disconnect(_Event, frozen=True, tag="disconnect"):
    """Switch off a port of a tor; of a blade: every port that it is at; of a tor: all of its ports."""


class Connect(_Event, frozen=True, tag="connect"):
    """Switch on, as Disconnect switches off."""


# Faults, and how they end. They happen whatever state the component is in.


class Cut(_Event, frozen=True, tag="cut"):
    """The feed of a pdu is lost, the uplink of a tor, or a cable is unplugged."""


class Join(_Event, frozen=True, tag="join"):
    """What was cut is whole again."""


class Stick(_Event, frozen=True, tag="stick"):
    """A pdu, tor or cable follows no command from now on."""

    at: bool | None = None
    """Where a pdu or cable sticks: on, off, or (None) as it is."""


class Unstick(_Event, frozen=True, tag="unstick"):
    """It follows again. It is where it was."""


class Crash(_Event, frozen=True, tag="crash"):
    """A blade's software dies. Of a rack: that of all its blades."""

    lasting: bool = False
    """It does so again whenever it has booted, until the blade is repaired or replaced."""


# What people do at the blade.


class Start(_Event, frozen=True, tag="start"):
    """Boot a blade that has power and is stopped. Of a rack: all its blades."""


class Stop(_Event, frozen=True, tag="stop"):
    """Shut a blade's software down; its power stays on. Of a rack: all its blades."""


class Repair(_Event, frozen=True, tag="repair"):
    """Make it as it should be: a pdu, tor or cable whole, on and obedient; a blade sound, and booted if it was down."""


class Replace(_Event, frozen=True, tag="replace"):
    """Put a new one in its place. A new blade has forgotten all, and boots."""


Command = PowerOff | PowerOn | Disconnect | Connect
Event = Command | Cut | Join | Stick | Unstick | Crash | Start | Stop | Repair | Replace
