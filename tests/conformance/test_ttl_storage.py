"""Every claim of the ttl storage suite, over every driver."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest
from dose import dose, seeds
from harness import pace

import hostler
from hostler.ports.ttl import Watchable
from hostler.testing import TtlClaim, check_ttl_storage, run_virtual, ttl_storage_claims

from .together import all_hold
from .ttl_drivers import DRIVERS, FAR, NEAR, REAL, WATCHABLE, opener, url_of, virtual

if TYPE_CHECKING:
    from pathlib import Path

FAST = ("memory", "redis")
"""Two clients race 1,000 times for each verb on these in every run; on the others 100 times (`make soak`: 1,000)."""


def rounds(driver: str) -> int:
    return dose(test=1000 if driver in FAST else 100, full=1000)


CASES = [
    pytest.param(driver, claim, id=f"{driver}-{claim}")
    for driver in DRIVERS
    for claim in ttl_storage_claims()
    if not claim.waits and (driver in WATCHABLE or not claim.watches) and (driver in NEAR or claim.opens)
]


@pytest.mark.parametrize("driver", DRIVERS)
async def test_who_can_watch_says_so(driver: str, tmp_path: Path) -> None:
    assert isinstance(hostler.open_ttl_storage(url_of(driver, tmp_path)), Watchable) == (driver in WATCHABLE)


@pytest.mark.parametrize(("driver", "claim"), CASES)
async def test_claim(driver: str, claim: TtlClaim, tmp_path: Path) -> None:
    url = url_of(driver, tmp_path)
    await claim.check(
        lambda: hostler.open_ttl_storage(url),
        persistent=driver != "memory",
        rounds=rounds(driver),
        on_time=pace.check,
    )


@pytest.mark.parametrize("driver", FAR)
async def test_claims_on_a_storage_whose_clients_are_shared(driver: str, tmp_path: Path) -> None:
    names = [claim.name for claim in ttl_storage_claims() if not claim.waits and not claim.opens]
    async with opener(driver, tmp_path) as open_for:
        await check_ttl_storage(open_for("all"), rounds=rounds(driver), only=names, on_time=pace.check)


async def test_claims_that_wait_for_the_end_of_a_life(tmp_path: Path) -> None:
    """All of all drivers at once; those of the storage in memory are tried in virtual time, below."""
    waiting = [claim for claim in ttl_storage_claims() if claim.waits]
    assert len(waiting) >= 9
    async with AsyncExitStack() as stack:
        openers = {driver: await stack.enter_async_context(opener(driver, tmp_path)) for driver in REAL}
        await all_hold(
            {
                f"{driver}: {claim}": claim.check(open_for(claim.name), on_time=pace.check)
                for driver, open_for in openers.items()
                for claim in waiting
            }
        )


@pytest.mark.parametrize("seed", seeds(test=2, pool=30))
def test_all_claims_hold_in_memory_in_virtual_time(seed: int) -> None:
    run_virtual(lambda: check_ttl_storage(virtual, persistent=False, rounds=50), seed=seed)
