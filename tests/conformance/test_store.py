"""Every claim about stores, on every driver, against the real thing."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from dose import seeds
from harness import pace

from hostler.drivers.store.memory import MemoryStore
from hostler.testing import FaultyStore, VirtualClock, check_store, run_virtual, store_claims

from .conftest import DRIVERS, open_driver
from .together import all_hold

if TYPE_CHECKING:
    from pathlib import Path

    from hostler.testing import Claim

    from .conftest import Driver

CASES = [
    pytest.param(driver, claim, id=f"{driver}-{claim}")
    for driver in DRIVERS
    for claim in store_claims(persistent=driver != "memory")
    if not claim.waits
]


@pytest.mark.parametrize(("driver", "claim"), CASES, indirect=["driver"])
async def test_claim(driver: Driver, claim: Claim) -> None:
    await claim.check(driver.open, persistent=driver.persistent, on_time=pace.check)


async def test_claims_that_wait_for_leases(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """All of all drivers at once; those of the store in memory are tried in virtual time, below."""
    waiting = [claim for claim in store_claims() if claim.waits]
    assert len(waiting) >= 10
    drivers = [open_driver(name, tmp_path, request) for name in DRIVERS if name != "memory"]
    await all_hold(
        {
            f"{driver.name}: {claim}": claim.check(driver.open, on_time=pace.check)
            for driver in drivers
            for claim in waiting
        }
    )


@pytest.mark.parametrize("seed", seeds(test=2, pool=30))
def test_all_claims_hold_in_memory_in_virtual_time(seed: int) -> None:
    run_virtual(lambda: check_store(lambda: MemoryStore(clock=VirtualClock()), persistent=False), seed=seed)


@pytest.mark.parametrize("seed", seeds(test=1, pool=10))
def test_a_faulty_store_without_faults_is_a_store(seed: int) -> None:
    def faulty() -> FaultyStore:
        return FaultyStore(MemoryStore(clock=VirtualClock()), random.Random(0))

    run_virtual(lambda: check_store(faulty, persistent=False), seed=seed)
