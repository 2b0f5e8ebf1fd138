"""Conformance suite of the ttl storage port: what a driver must do, one claim at a time.

    from hostler.testing import check_ttl_storage

    async def test_my_driver_is_a_ttl_storage():
        await check_ttl_storage(lambda: MyTtlStorage("…"))

For a separate test of each claim, use `ttl_storage_claims()` as with the suite of stores. A driver declares how late a
record may expire (`lateness`). That a record never expires early is checked for every driver.
"""

from __future__ import annotations

from hostler.testing.ttl.claim import TtlClaim, TtlTrial, check_ttl_storage, ttl_storage_claims

__all__ = ["TtlClaim", "TtlTrial", "check_ttl_storage", "ttl_storage_claims"]
