"""Every claim about elections, on every ttl storage, against the real thing."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest
from dose import seeds
from harness import pace

import hostler
from hostler.testing import ElectionClaim, VirtualClock, check_elections, election_claims, run_virtual

from .together import all_hold
from .ttl_drivers import FAR, NEAR, opener, url_of, virtual

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

CASES = [
    pytest.param(driver, claim, id=f"{driver}-{claim}")
    for driver in NEAR
    for claim in election_claims()
    if not claim.waits
]


@pytest.mark.parametrize(("driver", "claim"), CASES)
async def test_claim(driver: str, claim: ElectionClaim, tmp_path: Path) -> None:
    url = url_of(driver, tmp_path)
    await claim.check(lambda: hostler.open_ttl_storage(url), persistent=driver != "memory", on_time=pace.check)


@pytest.mark.parametrize("driver", FAR)
async def test_claims_on_a_storage_whose_clients_are_shared(driver: str, tmp_path: Path) -> None:
    names = [claim.name for claim in election_claims() if not claim.waits]
    async with opener(driver, tmp_path) as open_for:
        await check_elections(open_for("all"), only=names, on_time=pace.check)


@pytest.mark.parametrize("drivers", [("sqlite", "file", "redis"), ("etcd", "dynamodb", "cassandra")], ids="-".join)
async def test_claims_that_wait_for_the_end_of_a_leadership(drivers: Sequence[str], tmp_path: Path) -> None:
    """Those of several drivers at once; those of the storage in memory are tried in virtual time, below."""
    waiting = [claim for claim in election_claims() if claim.waits]
    assert len(waiting) >= 20
    async with AsyncExitStack() as stack:
        openers = {driver: await stack.enter_async_context(opener(driver, tmp_path)) for driver in drivers}
        await all_hold(
            {
                f"{driver}: {claim}": claim.check(open_for(claim.name), on_time=pace.check)
                for driver, open_for in openers.items()
                for claim in waiting
            }
        )


@pytest.mark.parametrize("seed", seeds(test=5, pool=50))
def test_all_claims_hold_in_memory_in_virtual_time(seed: int) -> None:
    run_virtual(lambda: check_elections(virtual, persistent=False, clock=VirtualClock()), seed=seed)
