"""Every claim of the machines suite, over every driver."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from dose import seeds
from harness import pace
from msgspec.structs import replace

from hostler.kit.virtual_loop import VirtualClock, run_virtual
from hostler.model.inventory import Capacity
from hostler.ports.machine_driver import NodeSetup
from hostler.ports.machines import Machine, Machines
from hostler.testing import (
    FileHost,
    MachineClaim,
    MachineFaults,
    MachineSetup,
    MemoryHost,
    SimulatedMachines,
    check_machines,
    machine_claims,
)
from hostler.wiring import open_machines

from .simulated import SETUP, simulated
from .together import all_hold

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

DRIVERS = ("memory", "folder")
STALLS_AT = 3
"""The answer that arrives late: one between two holds."""


def opener(driver: str, folder: Path) -> Callable[[], Machines]:
    if driver == "memory":
        place = MemoryHost()
        return lambda: simulated(place, clock=VirtualClock())
    return lambda: simulated(FileHost(folder / "machines"), clock=VirtualClock())


def virtual(setup: MachineSetup) -> MachineSetup:
    """In virtual time nothing is late."""
    return replace(setup, late=0.1, elsewhere=lambda: simulated(MemoryHost("elsewhere"), clock=VirtualClock()))


@pytest.mark.parametrize("claim", machine_claims(), ids=str)
@pytest.mark.parametrize("driver", DRIVERS)
def test_claim(driver: str, claim: MachineClaim, tmp_path: Path) -> None:
    run_virtual(lambda: claim.check(opener(driver, tmp_path), setup=virtual(SETUP)))


@pytest.mark.parametrize("seed", seeds(test=3, pool=30))
def test_all_claims_hold_in_virtual_time_of_machines_that_take_theirs(seed: int) -> None:
    place = MemoryHost()
    slow = {"create": 2.0, "start": 7.0, "stop": 3.0, "delete": 1.0, "restore": 4.0, "snapshot": 1.0, "reset": 0.5}
    setup = replace(virtual(SETUP), within=60, grace=5.0, stops_within=10.0, hold=20.0)

    async def main() -> None:
        await check_machines(
            lambda: simulated(place, clock=VirtualClock(), faults=MachineFaults(delays=dict(slow))), setup=setup
        )

    run_virtual(main, seed=seed)


def test_a_caller_that_stands_still_between_two_holds_accuses_no_driver() -> None:
    claim = next(one for one in machine_claims() if one.name == "a_fenced_machine_that_is_held_again_and_again_runs_on")
    answers = 0

    class Stalled(SimulatedMachines):
        async def inspect(self, vm: str) -> Machine | None:
            nonlocal answers
            found = await super().inspect(vm)
            answers += 1
            if answers == STALLS_AT:
                await asyncio.sleep(1.2 * SETUP.hold)  # what was observed arrives after the hold has ended
            return found

    setup = replace(virtual(SETUP), on_time=lambda *_, **__: None)
    run_virtual(lambda: claim.check(lambda: simulated(MemoryHost(), Stalled, clock=VirtualClock()), setup=setup))
    assert answers >= STALLS_AT


@pytest.mark.parametrize("fences", [False, True])
async def test_all_claims_hold_of_what_the_wiring_opens(fences: bool, tmp_path: Path) -> None:
    """In real time, each at a place of its own beside the others."""
    setup = replace(SETUP, unknown_image=None, hold=0.5, on_time=pace.check)  # it takes every image
    capacity = Capacity(cpus=4, memory_mib=1024)

    def opener(claim: MachineClaim) -> Callable[[], Machines]:
        return lambda: open_machines(NodeSetup(kind="simulated", folder=tmp_path / claim.name, capacity=capacity))

    claims = [claim for claim in machine_claims() if claim.fences is fences]
    await all_hold({claim.name: claim.check(opener(claim), setup=setup) for claim in claims})


def test_the_driver_is_one_of_the_port() -> None:
    assert isinstance(simulated(MemoryHost()), Machines)
