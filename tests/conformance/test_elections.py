"""Every claim about elections, on every ttl storage, against the real thing."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest
from dose import seeds
from harness import pace

import hostler
from hostler.testing import ElectionClaim, VirtualClock, check_elections, election_claims, run_virtual
from hostler.testing.elections.claim import TTL, ElectionTrial, acquire

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


def on_a_slow_machine(passed: float, limit: float, *, since: float, what: str) -> None:
    """A machine that was so slow that every limit was passed rightly."""


def test_a_leadership_that_a_slow_machine_loses_fails_no_claim_though_its_record_is_left_to_lapse() -> None:
    async def body(t: ElectionTrial) -> None:
        leadership, _, storage = await t.leader(ttl=TTL)
        storage.mood = "lost"  # renewals are done, and the process does not learn of it
        await leadership.wait_lost()
        storage.mood = "fine"
        assert await t.record() is not None
        t.must_stand(leadership, storage)
        pytest.fail("the leadership was lost")

    run_virtual(lambda: checked(ElectionClaim("lost", body)))


def test_a_storage_that_gives_no_answer_in_a_whole_life_is_asked_again_for_a_leadership_that_must_be_had() -> None:
    async def body(t: ElectionTrial) -> None:
        elections, storage = await t.elections()
        storage.moods.extend(("fine", "lost", "never", "hang"))
        leadership = await acquire(elections, t.key, ttl=TTL)
        assert leadership.held
        assert await t.record() == json.loads(leadership.record)

    run_virtual(lambda: checked(ElectionClaim("asked again", body)))


async def checked(claim: ElectionClaim) -> None:
    await claim.check(virtual, persistent=False, clock=VirtualClock(), on_time=on_a_slow_machine)
