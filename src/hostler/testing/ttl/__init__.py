"""The conformance suite of the ttl storage port: what a driver must do, one claim at a time.

    from hostler.testing import check_ttl_storage

    async def test_my_driver_is_a_ttl_storage():
        await check_ttl_storage(lambda: MyTtlStorage("…"))

or, for a test of its own for each claim, `ttl_storage_claims()` as with the suite of stores. How late a record may end
is what the driver says of itself (`lateness`); that it never ends early is claimed of all.
"""

from __future__ import annotations

from hostler.testing.ttl.claim import TtlClaim, TtlTrial, check_ttl_storage, ttl_storage_claims

__all__ = ["TtlClaim", "TtlTrial", "check_ttl_storage", "ttl_storage_claims"]
