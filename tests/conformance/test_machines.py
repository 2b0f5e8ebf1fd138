"""Every claim of the machines suite, over every driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from hostler.kit.virtual import VirtualClock, run_virtual
from hostler.model.inventory import Capacity
from hostler.ports.machines import Machines
from hostler.testing import FilePlace, MachineClaim, MachineFaults, MemoryPlace, check_machines, machine_claims
from hostler.wiring import open_machines

from .patience import in_some_try
from .simulated import SETUP, simulated

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

DRIVERS = ("memory", "folder")


def opener(driver: str, folder: Path) -> Callable[[], Machines]:
    if driver == "memory":
        place = MemoryPlace()
        return lambda: simulated(place)
    return lambda: simulated(FilePlace(folder / "machines"))


@pytest.mark.parametrize("claim", machine_claims(), ids=str)
@pytest.mark.parametrize("driver", DRIVERS)
async def test_claim(driver: str, claim: MachineClaim, tmp_path: Path) -> None:
    if claim.fences or claim.waits:
        await in_some_try(lambda number: claim.check(opener(driver, tmp_path / str(number)), setup=SETUP))
    else:
        await claim.check(opener(driver, tmp_path), setup=SETUP)


@pytest.mark.parametrize("seed", range(3))
def test_all_claims_hold_in_virtual_time_of_machines_that_take_theirs(seed: int) -> None:
    place = MemoryPlace()
    slow = {"create": 2.0, "start": 7.0, "stop": 3.0, "delete": 1.0, "restore": 4.0, "snapshot": 1.0, "reset": 0.5}
    setup = msgspec.structs.replace(SETUP, within=60, grace=5.0, hold=20.0, late=0.1)

    async def main() -> None:
        await check_machines(
            lambda: simulated(place, clock=VirtualClock(), faults=MachineFaults(delays=dict(slow))), setup=setup
        )

    run_virtual(main, seed=seed)


async def test_all_claims_hold_of_what_the_wiring_opens(tmp_path: Path) -> None:
    setup = msgspec.structs.replace(SETUP, unknown_image=None)  # it takes every image
    capacity = Capacity(cpus=4, memory_mib=1024)

    async def check(number: int) -> None:
        folder = tmp_path / f"node-{number}"
        await check_machines(lambda: open_machines("simulated", folder, capacity=capacity), setup=setup)

    await in_some_try(check)


def test_the_driver_is_one_of_the_port() -> None:
    assert isinstance(simulated(MemoryPlace()), Machines)
