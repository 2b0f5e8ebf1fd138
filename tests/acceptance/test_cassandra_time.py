"""Cassandra counts lives on its own clock: the calendar of a client may jump, and nothing comes earlier or later."""

from __future__ import annotations

import asyncio
import itertools
import uuid

from harness import pace
from harness.artefacts import safe
from running import ttl_server

from hostler import Elections
from hostler.drivers.ttl.cassandra import CassandraServers, CassandraTable, CassandraTtlStorage
from hostler.kit.clock import SystemClock
from hostler.testing import BreakableTtlStorage
from hostler.testing.servers import HOST
from hostler.testing.ttl_servers import CassandraServer

TTL = 4.0
MARGIN = 1.0
"""Seconds beyond what the storage declares, at the machine's own pace."""
HOUR = 3600.0


class JumpingClock(SystemClock):
    """The calendar can be moved; what deadlines count on cannot."""

    moved = 0.0

    def wall(self) -> float:
        return super().wall() + self.moved


class Client(CassandraTtlStorage):
    """One that has the time of `clock` wherever it would put its own into a request, as the protocol allows."""

    def __init__(self, clock: JumpingClock) -> None:
        server = ttl_server("cassandra")
        super().__init__(
            CassandraServers((HOST,), server.ports[0], user=CassandraServer.user, password=CassandraServer.password),
            CassandraTable(CassandraServer.keyspace, create=True),
        )
        self._options["timestamp_generator"] = lambda: int(clock.wall() * 1e6)


def new_key() -> str:
    return f"time/{uuid.uuid4().hex}"


async def test_what_has_expired_is_not_for_the_clock_of_a_client_to_say() -> None:
    await asyncio.gather(*(_expires_on_the_clock_of_the_server(moved) for moved in (HOUR, -HOUR)))


async def _expires_on_the_clock_of_the_server(moved: float) -> None:
    clock, key = JumpingClock(), new_key()
    clock.moved = moved
    async with Client(JumpingClock()) as steady, Client(clock) as jumped:
        assert await steady.insert_if_not_exist(key, "mine", ttl=TTL)
        assert not await jumped.insert_if_not_exist(key, "other", ttl=TTL), "it lives"
        assert await jumped.compare_and_swap(key, "mine", "mine", ttl=TTL), "it lives"
        with pace.within(TTL + steady.lateness(TTL) + MARGIN, "its life"):
            while await steady.get(key) is not None:
                await asyncio.sleep(0.1)
        assert not await jumped.compare_and_swap(key, "mine", "mine", ttl=TTL), "it is gone"
        assert await jumped.insert_if_not_exist(key, "other", ttl=TTL), "it is gone"
        assert await steady.compare_and_delete(key, "other")


async def test_a_clock_that_jumps_brings_no_early_takeover_and_delays_none() -> None:
    jumps = itertools.product(("the leader's", "the other's"), (HOUR, -HOUR))
    await asyncio.gather(*(_a_clock_jumps(who, moved) for who, moved in jumps))


async def _a_clock_jumps(who: str, moved: float) -> None:
    clocks = JumpingClock(), JumpingClock()
    jumping = clocks[0 if who == "the leader's" else 1]
    key = new_key()
    async with Client(clocks[0]) as storage, Client(clocks[1]) as other:
        cut_off = BreakableTtlStorage(storage)
        one, two = Elections(cut_off, clock=clocks[0]), Elections(other, clock=clocks[1])
        first = await one.acquire(key, "10.0.0.1", ttl=TTL)
        assert first is not None
        assert await two.acquire(key, "10.0.0.2", ttl=TTL) is None
        jumping.moved = moved

        end = clocks[0].now() + TTL + storage.lateness(TTL) + 0.5  # a record that is not renewed is gone by then
        while clocks[0].now() < end:
            taken = await two.acquire(key, "10.0.0.2", ttl=TTL)
            safe(taken is None, f"{who} clock moved by {moved:g} s: taken over although the other renews")
            assert first.held, first.lost
            await asyncio.sleep(0.1)

        cut_off.mood = "hang"
        with pace.within(TTL + storage.lateness(TTL) + MARGIN, "the takeover"):
            while (second := await two.acquire(key, "10.0.0.2", ttl=TTL)) is None:
                await asyncio.sleep(0.1)
        safe(not first.held, f"{who} clock moved by {moved:g} s: two lead at once")
        safe(second.fence > first.fence, f"fence {second.fence} follows {first.fence}")
        cut_off.hear()

        await second.release()
        third = await one.acquire(key, "10.0.0.1", ttl=TTL)
        assert third is not None, "a released leadership is free at once"
        assert third.fence > second.fence
        await asyncio.gather(one.aclose(), two.aclose())
        assert await storage.get(key) is None
