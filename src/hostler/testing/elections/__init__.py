"""Elections on a ttl storage: what must be true of them on every driver, one claim at a time.

    from hostler.testing import check_elections

    async def test_elections_on_my_driver():
        await check_elections(lambda: MyTtlStorage("…"))

or, for a test of its own for each claim, `election_claims()` as with the suite of stores. Each claim also checks that
nothing is left behind: no record, no task.
"""

from __future__ import annotations

from hostler.testing.elections.breakable import BreakableTtlStorage
from hostler.testing.elections.claim import ElectionClaim, ElectionTrial, check_elections, election_claims

__all__ = ["BreakableTtlStorage", "ElectionClaim", "ElectionTrial", "check_elections", "election_claims"]
