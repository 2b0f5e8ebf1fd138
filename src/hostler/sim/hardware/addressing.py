"""Resolution of events to components: powering a blade means its cables, and not every event applies to every kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.errors import Invalid
from hostler.sim.hardware import event_names
from hostler.sim.hardware.event import (
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
    from hostler.sim.hardware.event import Event
    from hostler.sim.hardware.wiring import Wiring


def reached(event: Event, address: str, wiring: Wiring) -> tuple[str, ...]:
    """Return the components that an event applies to, in order. Invalid: it applies to none."""
    kind = wiring.kinds.get(address, "rack")
    found: tuple[str, ...] = ()
    match event:
        case PowerOff() | PowerOn():
            found = _powered(address, kind, wiring)
        case Connect() | Disconnect():
            found = _connected(address, kind, wiring)
        case Cut() | Join() | Stick() | Unstick():
            found = (address,) if kind in ("pdu", "tor", "cable") else ()
        case Crash() | Start() | Stop():
            found = tuple(wiring.of("blade")) if kind == "rack" else (address,) if kind == "blade" else ()
        case Repair() | Replace():
            found = (address,) if kind != "rack" else ()
    if not found:
        raise Invalid(f"{address}: {type(event).__name__} does not apply to a {kind}; {event_names.instead(event)}")
    return found


def _powered(address: str, kind: str, wiring: Wiring) -> tuple[str, ...]:
    if kind == "rack":
        return tuple(wiring.of("pdu"))
    if kind == "cable":
        return (address,) if wiring.cables[address].power else ()
    return (address,) if kind == "pdu" else tuple(cable.address for cable in wiring.power_to(address))


def _connected(address: str, kind: str, wiring: Wiring) -> tuple[str, ...]:
    if kind == "cable":
        return () if wiring.cables[address].power else (address,)
    cables = wiring.ports[address] if kind == "tor" else wiring.network_to(address)
    return tuple(cable.address for cable in cables)
