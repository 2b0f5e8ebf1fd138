"""Proposals for the repair of hardware, with reasons."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from hostler.sim.hardware.blade import ENOUGH, BladeState, Life
from hostler.sim.hardware.event import Connect, Event, PowerOff, PowerOn, Repair, Replace, Start
from hostler.sim.hardware.switch import CableState, PduState, TorState
from hostler.sim.hardware.wiring import Wiring

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hostler.sim.hardware.racks import Racks
    from hostler.sim.hardware.wiring import Cable, RackPlan

RepairKind = Literal["power_on", "reconnect", "start", "restart", "fix", "replace"]
_ORDER = {"pdu": 0, "tor": 1, "cable": 2, "blade": 3}


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """One repair. The same defect always has the same id."""

    id: str
    kind: RepairKind
    component: str
    text: str
    """The action: "power on pdu pdu1 in rack r1", "ask a human: fix the power connection of blade b3 in rack r1"."""
    reason: str
    automatic: bool
    """Whether commands are enough. Otherwise a person has to go to the rack."""
    events: tuple[Event, ...]
    """The events to apply when the repair is performed."""


class Target:
    """The components that should be on and connected according to the inventory."""

    def __init__(self, plans: Iterable[RackPlan]) -> None:
        self._plans = {plan.name: plan for plan in plans}
        self._wanted: dict[str, frozenset[str]] = {}

    def wants(self, address: str) -> bool:
        """Return whether the component should be on, connected and sound."""
        rack = address.partition("/")[0]
        wanted = self._wanted.get(rack)
        if wanted is None:
            plan = self._plans.get(rack)
            wanted = self._wanted[rack] = frozenset() if plan is None else Wiring(plan).wanted()
        return address in wanted


def propose(target: Target, observed: Racks) -> tuple[Proposal, ...]:
    """Return the repairs that are possible now, causes first. Defects that follow from another defect have no proposal.

    Performing all proposals, advancing time and proposing again, repeatedly, makes everything work that should. The
    cost depends on the number of defects, not on the size of the racks.
    """
    found: list[tuple[int, str, Proposal]] = []
    for address in observed.amiss:
        if target.wants(address):
            wiring = observed.wiring(address)
            proposal = _about(observed, wiring, address)
            if proposal is not None:
                found.append((_ORDER[wiring.kinds[address]], address, proposal))
    return tuple(proposal for *_, proposal in sorted(found, key=lambda each: each[:2]))


def perform(proposal: Proposal) -> tuple[Event, ...]:
    """Return the events to apply to the hardware, in order."""
    return proposal.events


def _about(racks: Racks, wiring: Wiring, address: str) -> Proposal | None:
    match racks.state(address):
        case PduState() as pdu:
            return _pdu(wiring, address, pdu)
        case TorState() as tor:
            return _tor(wiring, address, tor)
        case CableState() as cable:
            return _cable(racks, wiring, wiring.cables[address], cable)
        case BladeState() as blade:
            return _blade(racks, wiring, address, blade)


def _pdu(wiring: Wiring, address: str, pdu: PduState) -> Proposal | None:
    name = _full_name(wiring, address)
    if pdu.stuck:
        where = "" if pdu.carries else ", and it is off" if pdu.joined else ", and it has no feed"
        return _ask("fix", address, f"fix {name}", f"it ignores commands{where}")
    if not pdu.joined:
        return _ask("fix", address, f"restore the feed of {name}", "it has no feed")
    return _do("power_on", address, f"power on {name}", "it should be on, but is off", PowerOn(address))


def _tor(wiring: Wiring, address: str, tor: TorState) -> Proposal | None:
    name = _full_name(wiring, address)
    if tor.stuck:
        where = "" if tor.joined else ", and its uplink is down"
        return _ask("fix", address, f"fix {name}", f"it ignores commands{where}")
    if not tor.joined:
        return _ask("fix", address, f"fix the uplink of {name}", "its uplink is down")
    return None  # It has no power: the defect is in what feeds it.


def _cable(racks: Racks, wiring: Wiring, cable: Cable, state: CableState) -> Proposal | None:
    item, port = _full_name(wiring, cable.item), f"port {cable.port} of {_name(cable.source)}"
    what = "power" if cable.power else "network"
    if state.stuck:
        where = f"stuck at {'on' if state.on else 'off'}" if state.joined else "stuck, and its cable is unplugged"
        return _ask("fix", cable.address, f"fix the {what} connection of {item}", f"{port} is {where}")
    if not state.joined:
        return _ask("fix", cable.address, f"fix the {what} connection of {item}", f"the cable in {port} is unplugged")
    if racks.switch(cable.source).stuck:
        return None  # Its port would ignore the command.
    reason = f"{port} should be on, but is off"
    if cable.power:
        return _do("power_on", cable.address, f"power on {port} for {item}", reason, PowerOn(cable.address))
    return _do("reconnect", cable.address, f"reconnect {item} to {port}", reason, Connect(cable.address))


def _blade(racks: Racks, wiring: Wiring, address: str, blade: BladeState) -> Proposal | None:
    name = _full_name(wiring, address)
    if blade.life is Life.DOWN and blade.powered:
        return _do("start", address, f"start {name}", "it has power, but is stopped", Start(address))
    if blade.life is not Life.FAULTED:
        return None  # It is booting or stopping, or the defect is in its power or network supply.
    if blade.failures >= ENOUGH:
        again = f"it failed {blade.failures} times; restarting did not help"
        return _ask("replace", address, f"replace {name}", again, Replace(address))
    live = [cable for cable in wiring.power_to(address) if racks.carries(cable)]
    for cable in live:
        if racks.switch(cable.address).stuck or racks.switch(cable.source).stuck:
            reason = f"it failed, and its power cannot be switched: port {cable.port} of {_name(cable.source)} is stuck"
            return _ask("restart", address, f"restart {name}", reason)
    if not live:
        return _ask("restart", address, f"restart {name}", "it failed, and no pdu is known to feed it")
    off, on = (PowerOff(cable.address) for cable in live), (PowerOn(cable.address) for cable in live)
    return _do("restart", address, f"restart {name}", "it failed; its power is switched off and on", *off, *on)


def _ask(kind: RepairKind, address: str, what: str, reason: str, event: Event | None = None) -> Proposal:
    return Proposal(
        id=_id(kind, address), kind=kind, component=address, text=f"ask a human: {what}", reason=reason,
        automatic=False, events=(event or Repair(address),),
    )  # fmt: skip


def _do(kind: RepairKind, address: str, text: str, reason: str, *events: Event) -> Proposal:
    return Proposal(
        id=_id(kind, address), kind=kind, component=address, text=text, reason=reason, automatic=True, events=events
    )


def _id(kind: RepairKind, address: str) -> str:
    """The id is part of a URL."""
    return f"{kind}~{address.replace('/', '~').replace(':', '~')}"


def _full_name(wiring: Wiring, address: str) -> str:
    return f"{wiring.kinds[address]} {_name(address)} in rack {wiring.plan.name}"


def _name(address: str) -> str:
    return address.partition("/")[2]
