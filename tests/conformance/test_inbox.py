"""Every claim about the lab door, over every driver."""

from __future__ import annotations

import pytest
from dose import dose
from running import ttl_server

from hostler.testing import InboxClaim, LabFrontEnd, inbox_claims
from hostler.testing.inbox.drivers import MemoryLabFrontEnd, RedisLabFrontEnd


def door_of(driver: str) -> LabFrontEnd:
    return MemoryLabFrontEnd() if driver == "memory" else RedisLabFrontEnd(ttl_server("redis").url)


@pytest.mark.parametrize("claim", inbox_claims(), ids=str)
@pytest.mark.parametrize("driver", ["memory", "redis"])
async def test_claim(driver: str, claim: InboxClaim) -> None:
    await claim.check(lambda: door_of(driver), rounds=dose(test=3, full=20))
