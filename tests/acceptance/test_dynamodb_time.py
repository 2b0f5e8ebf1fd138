"""DynamoDB's conditions know no clock but the caller's: what late requests and clocks that jump can do, and cannot."""

from __future__ import annotations

import asyncio
import time
import uuid
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from harness import pace
from harness.artefacts import safe
from running import ttl_server

from hostler import Elections
from hostler.drivers.ttl.dynamodb import DynamodbTtlStorage
from hostler.kit.clock import SystemClock
from hostler.testing import BreakableTtlStorage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

TTL = 4.0
MARGIN = 1.0
"""Seconds beyond what the protocol allows, at the machine's own pace."""


class JumpingClock(SystemClock):
    """The calendar can be moved; what deadlines count on cannot."""

    moved = 0.0

    def wall(self) -> float:
        return super().wall() + self.moved


@asynccontextmanager
async def client(clock: JumpingClock) -> AsyncIterator[DynamodbTtlStorage]:
    server = ttl_server("dynamodb")
    storage = DynamodbTtlStorage(
        "hostler-test", endpoint=f"http://{server.endpoint}", region="eu-central-1", create=True, clock=clock
    )
    async with storage:
        yield storage


def new_key() -> str:
    return f"time/{uuid.uuid4().hex}"


async def test_a_renewal_that_arrives_late_does_not_set_the_end_of_life_back() -> None:
    """A request that set out 30 s ago is one from a clock that is 30 s behind."""
    clock, behind, ahead, key = JumpingClock(), JumpingClock(), JumpingClock(), new_key()
    behind.moved, ahead.moved = -30, 45
    async with client(clock) as storage, client(behind) as late, client(ahead) as later:
        assert await storage.insert_if_not_exist(key, "mine", ttl=60)
        assert await late.compare_and_swap(key, "mine", "mine", ttl=60), "it lives as long as asked, and longer"
        assert await later.get(key) == "mine", "its life was shortened"
        assert not await late.compare_and_swap(key, "other", "other", ttl=60)
        assert await storage.compare_and_delete(key, "mine")
        assert not await late.compare_and_swap(key, "mine", "mine", ttl=60)


async def test_a_renewal_lengthens_a_life_and_gives_one_to_a_record_that_had_no_end() -> None:
    clock, ahead, key = JumpingClock(), JumpingClock(), new_key()
    async with client(clock) as storage, client(ahead) as later:
        assert await storage.insert_if_not_exist(key, "mine", ttl=10)
        ahead.moved = 30
        assert await later.get(key) is None
        assert await storage.compare_and_swap(key, "mine", "mine", ttl=60)
        assert await later.get(key) == "mine"
        assert await storage.compare_and_swap(key, "mine", "mine", ttl=0)
        ahead.moved = 1000
        assert await later.get(key) == "mine"
        assert await storage.compare_and_swap(key, "mine", "mine", ttl=60)
        assert await later.get(key) is None
        assert await storage.compare_and_delete(key, "mine")


async def test_a_clock_that_jumps_ahead_takes_over_early_with_a_higher_fence_and_the_old_holder_stops() -> None:
    ahead, key = JumpingClock(), new_key()
    async with client(JumpingClock()) as storage, client(ahead) as other:
        one, two = Elections(storage), Elections(other)
        first = await one.acquire(key, "10.0.0.1", ttl=TTL)
        assert first is not None
        assert await two.acquire(key, "10.0.0.2", ttl=TTL) is None
        ahead.moved = 3600
        second = await two.acquire(key, "10.0.0.2", ttl=TTL)
        assert second is not None, "the test is about an early takeover"
        safe(second.fence > first.fence, f"fence {second.fence} follows {first.fence}")
        with pace.within(TTL / 4 + MARGIN, "to hear of it"):
            await first.wait_lost()  # its next renewal finds the other's record
        assert second.held
        ahead.moved = 0
        await second.release()
        third = await one.acquire(key, "10.0.0.1", ttl=TTL)
        assert third is not None
        assert third.fence > second.fence
        await asyncio.gather(one.aclose(), two.aclose())


async def test_a_holder_that_cannot_hear_of_an_early_takeover_stops_at_its_own_deadline() -> None:
    clock, ahead, key = JumpingClock(), JumpingClock(), new_key()
    async with client(clock) as storage, client(ahead) as other:
        cut_off = BreakableTtlStorage(storage)
        one, two = Elections(cut_off, clock=clock), Elections(other)
        first = await one.acquire(key, "10.0.0.1", ttl=TTL)
        assert first is not None
        cut_off.mood = "hang"
        clock.moved, ahead.moved = -3600, 3600
        second = await two.acquire(key, "10.0.0.2", ttl=TTL)
        assert second is not None
        safe(second.fence > first.fence, f"fence {second.fence} follows {first.fence}")
        deadline, since = first.deadline, time.monotonic()
        await asyncio.wait_for(first.wait_lost(), pace.patience(TTL + MARGIN))
        assert first.lost_at is not None
        assert deadline <= first.lost_at
        pace.check(first.lost_at - deadline, MARGIN, since=since, what="beyond its deadline, its end")
        assert not first.held
        assert second.held
        cut_off.hear()
        await asyncio.gather(one.aclose(), two.aclose())


async def test_the_clock_of_a_leader_may_go_back() -> None:
    clock, key = JumpingClock(), new_key()
    async with client(clock) as storage:
        elections = Elections(storage, clock=clock)
        leadership = await elections.acquire(key, "10.0.0.1", ttl=TTL)
        assert leadership is not None
        before = leadership.deadline
        clock.moved = -3600
        async with asyncio.timeout(pace.patience(TTL)):
            while leadership.deadline == before:
                assert leadership.held
                await asyncio.sleep(0.05)
        await elections.aclose()
        assert await storage.get(key) is None
