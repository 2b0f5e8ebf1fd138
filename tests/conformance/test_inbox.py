"""Every claim about the lab door, over every driver."""

from __future__ import annotations

import pytest
from dose import dose
from running import ttl_server

from hostler.testing import InboxClaim, LabDoor, inbox_claims
from hostler.testing.inbox.drivers import MemoryLabDoor, RedisLabDoor


def door_of(driver: str) -> LabDoor:
    return MemoryLabDoor() if driver == "memory" else RedisLabDoor(ttl_server("redis").url)


@pytest.mark.parametrize("claim", inbox_claims(), ids=str)
@pytest.mark.parametrize("driver", ["memory", "redis"])
async def test_claim(driver: str, claim: InboxClaim) -> None:
    await claim.check(lambda: door_of(driver), rounds=dose(test=3, full=20))
