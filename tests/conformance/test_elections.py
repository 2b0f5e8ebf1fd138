"""Every claim about elections, on every ttl storage, against the real thing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

import hostler
from hostler.testing import ElectionClaim, check_elections, election_claims

from .patience import together_or_alone
from .test_ttl_storage import DRIVERS, url_of

if TYPE_CHECKING:
    from pathlib import Path

CASES = [
    pytest.param(driver, claim, id=f"{driver}-{claim}")
    for driver in DRIVERS
    for claim in election_claims()
    if not claim.waits
]


@pytest.mark.parametrize(("driver", "claim"), CASES)
async def test_claim(driver: str, claim: ElectionClaim, tmp_path: Path) -> None:
    url = url_of(driver, tmp_path)
    await claim.check(lambda: hostler.open_ttl_storage(url), persistent=driver != "memory")


@pytest.mark.parametrize("driver", DRIVERS)
async def test_claims_that_wait_for_the_end_of_a_leadership(driver: str, tmp_path: Path) -> None:
    url = url_of(driver, tmp_path)
    waiting = [claim.name for claim in election_claims() if claim.waits]
    assert len(waiting) >= 15

    async def check(names: Sequence[str]) -> None:
        await check_elections(lambda: hostler.open_ttl_storage(url), persistent=driver != "memory", only=names)

    # One file, rewritten whole for each write: of eighteen at once the last would come too late on a busy machine.
    size = 6 if driver == "file" else len(waiting)
    for at in range(0, len(waiting), size):
        await together_or_alone(check, waiting[at : at + size])
