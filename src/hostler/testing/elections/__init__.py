"""Conformance of elections on a ttl storage: what must hold on every driver, one claim at a time.

    from hostler.testing import check_elections

    async def test_elections_on_my_driver():
        await check_elections(lambda: MyTtlStorage("…"))

For a separate test of each claim, use `election_claims()` as with the suite of stores. Each claim also checks that it
leaves no record and no task behind.
"""

from __future__ import annotations

from hostler.testing.elections.breakable import BreakableTtlStorage
from hostler.testing.elections.claim import ElectionClaim, ElectionTrial, check_elections, election_claims

__all__ = ["BreakableTtlStorage", "ElectionClaim", "ElectionTrial", "check_elections", "election_claims"]
