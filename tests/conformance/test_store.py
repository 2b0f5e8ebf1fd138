"""Every claim about stores, on every driver, against the real thing."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

from hostler.drivers.store.memory import MemoryStore
from hostler.testing import FaultyStore, check_store, store_claims

from .conftest import DRIVERS
from .patience import in_some_try, together_or_alone

if TYPE_CHECKING:
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
    await claim.check(driver.open, persistent=driver.persistent)


@pytest.mark.parametrize("driver", DRIVERS, indirect=True)
async def test_claims_that_wait_for_leases(driver: Driver) -> None:
    waiting = [claim.name for claim in store_claims(persistent=driver.persistent) if claim.waits]
    assert len(waiting) >= 8

    async def check(names: Sequence[str]) -> None:
        await check_store(driver.open, persistent=driver.persistent, only=names)

    await together_or_alone(check, waiting)


async def test_a_faulty_store_without_faults_is_a_store() -> None:
    await in_some_try(lambda _: check_store(lambda: FaultyStore(MemoryStore(), random.Random(0)), persistent=False))
