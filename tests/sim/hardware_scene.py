"""Racks for tests of simulated hardware, and everything that can be done to them."""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Iterator

from hostler.sim.hardware import (
    BladePlan,
    Connect,
    Crash,
    Cut,
    DevicePlan,
    Disconnect,
    Event,
    Join,
    PowerOff,
    PowerOn,
    RackPlan,
    Racks,
    Repair,
    Replace,
    Start,
    Stick,
    Stop,
    Unstick,
)


def rack(name: str = "r1", *, blades: int = 3, pdus: int = 1, tors: int = 1, tors_fed: bool = True) -> RackPlan:
    """Every pdu feeds every blade and tor; every tor connects every blade."""
    names = [f"b{n}" for n in range(1, blades + 1)]
    ports = dict(enumerate(names, 1))
    tor_names = [f"tor{n}" for n in range(1, tors + 1)]
    fed = dict(enumerate([*names, *(tor_names if tors_fed else [])], 1))
    return RackPlan(
        name=name,
        pdus=tuple(DevicePlan(name=f"pdu{n}", ports=fed) for n in range(1, pdus + 1)),
        tors=tuple(DevicePlan(name=each, ports=ports) for each in tor_names),
        blades=tuple(BladePlan(name=each) for each in names),
    )


def racks(*plans: RackPlan, seed: int = 1, cold: bool = False) -> Racks:
    return Racks(plans or (rack(),), random.Random(seed), cold=cold)


def events_on(racks: Racks, name: str = "r1") -> Iterator[Event]:
    """Everything that can be done to anything of a rack."""
    wiring = racks.wiring(name)
    for address, kind in wiring.kinds.items():
        if kind == "blade":
            yield from (Crash(address), Crash(address, lasting=True), Start(address), Stop(address))
        else:
            yield from (Cut(address), Join(address), Unstick(address))
            yield from (Stick(address, at) for at in (None, True, False))
        if kind == "pdu" or (kind == "cable" and wiring.cables[address].power):
            yield from (PowerOff(address), PowerOn(address))
        if kind == "cable" and not wiring.cables[address].power:
            yield from (Disconnect(address), Connect(address))
        yield from (Repair(address), Replace(address))


def clone(racks: Racks) -> Racks:
    """The same at this instant, with a way of its own from here."""
    other = copy.copy(racks)
    other._states, other._timers = dict(racks._states), list(racks._timers)
    other._gone, other.amiss = dict(racks._gone), dict(racks.amiss)
    other._rng = random.Random(1)
    return other


def everything(racks: Racks) -> dict[str, object]:
    """The state of all components."""
    return {address: racks.state(address) for name in racks.racks() for address in racks.wiring(name).kinds}


def settle(racks: Racks) -> None:
    """Until nothing more happens by itself. Blades that failed are proven by then."""
    for _ in itertools.count():
        due = racks.next_at()
        if due is None:
            return
        racks.advance(due)
