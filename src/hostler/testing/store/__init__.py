"""Conformance suite of the store port: what a driver must do, one claim at a time.

    from hostler.testing import check_store

    async def test_my_driver_is_a_store(tmp_path):
        await check_store(lambda: MyStore(tmp_path / "data"))

For a separate test of each claim:

    from hostler.testing import store_claims

    @pytest.mark.parametrize("claim", store_claims(), ids=str)
    async def test_my_driver(claim, tmp_path):
        await claim.check(lambda: MyStore(tmp_path / "data"))

Drivers differ in the limits they declare (`lease_lateness`, the granted ttl), not in the claims. The only option that
must be given is `persistent=False`, for a store whose data is gone when it is closed.
"""

from __future__ import annotations

from hostler.testing.store.claim import Claim, Trial, check_store, store_claims

__all__ = ["Claim", "Trial", "check_store", "store_claims"]
