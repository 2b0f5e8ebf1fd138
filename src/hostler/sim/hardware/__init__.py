"""Simulated hardware: blades, pdus, tors and cables as state machines, and the racks that wire them.

    event    actions on hardware: PowerOff, PowerOn, Disconnect, Connect (commands: stuck components ignore them),
             Cut, Join, Stick, Unstick, Crash (faults and their ends: they always apply), Start, Stop, Repair, Replace
    blade    BladeState: off | powered | booting | working | isolated | stopping | faulted; `runs`, `working`, …
    switch   PduState, TorState, CableState, and what the three have in common
    wiring   RackPlan: the components of a rack and their wiring; `plans_of(inventory)`, `rack_plan(records)`; which
             component depends on which; `node_of("r1/b3")`, `address_of("r1-b3")`
    racks    Racks: all racks. `apply(event, now=, cause=)`, `advance(now)`, `next_at()`, `revise(plans, now=)`
             Change(component, before, after, why, cause, at): one state change and its reason
    repair   Target, propose(target, racks) -> Proposals, perform(proposal) -> events

Components have addresses: `r1` (rack), `r1/pdu1`, `r1/tor1`, `r1/b3` (blade; the node is `r1-b3`), `r1/pdu1:3` (the
cable in port 3). Names are folded.

This package does not use asyncio, a clock, or randomness of its own. Time is an argument, and random numbers come from
the given source, so the same seed gives the same changes. A timer carries the epoch in which it was set; a timer of an
older epoch has no effect.
"""

from __future__ import annotations

from hostler.sim.hardware.blade import BladeState
from hostler.sim.hardware.event import (
    Connect,
    Crash,
    Cut,
    Disconnect,
    Event,
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
from hostler.sim.hardware.racks import Change, Racks, State
from hostler.sim.hardware.repair import Proposal, Target, perform, propose
from hostler.sim.hardware.switch import CableState, PduState, TorState
from hostler.sim.hardware.wiring import BladePlan, DevicePlan, RackPlan, address_of, node_of, plans_of, rack_plan

__all__ = [
    "BladePlan",
    "BladeState",
    "CableState",
    "Change",
    "Connect",
    "Crash",
    "Cut",
    "DevicePlan",
    "Disconnect",
    "Event",
    "Join",
    "PduState",
    "PowerOff",
    "PowerOn",
    "Proposal",
    "RackPlan",
    "Racks",
    "Repair",
    "Replace",
    "Start",
    "State",
    "Stick",
    "Stop",
    "Target",
    "TorState",
    "Unstick",
    "address_of",
    "node_of",
    "perform",
    "plans_of",
    "propose",
    "rack_plan",
]
