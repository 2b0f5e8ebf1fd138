"""Workers at the lab door that are killed, stopped for a while, or lose answers, at every point of a request's way.

Each story is told again and again, with the fault further on each time, until it is over before the fault. `make soak`
meets every point; `make test` every fifth, others with each commit. A point is: something is about to be asked of the
store or the queues; it was done but not answered.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest
from dose import every_nth, seeds

from hostler.sim.wire import Weather

from .lab_door import Door, Host, Point

if TYPE_CHECKING:
    from collections.abc import Callable

MOST = 400
POINTS = every_nth(range(1, MOST), 5)


def push(door: Door) -> None:
    """A little of everything: users with several requests in each queue, and nonsense between."""
    for user in ("ada", "bob", "cid", "dan"):
        door.ask(user, "provision")
        door.ask(user, "provision")
        door.ask(user, "decommission")
    door.ask_nonsense("provision", b'{"webuserid":"ada","labId":true}')
    door.ask_nonsense("decommission", b"{")
    door.ask("ada", "provision")
    door.ask("bob", "decommission")


async def story(door: Door) -> None:
    push(door)
    await door.settled()
    await door.check()


def told_at_every_point(make: Callable[[int], Door], tell: Callable[[Door], str], least: int) -> None:
    for at in POINTS:
        door = make(at)
        try:
            door.run(story)
        except BaseException as error:
            error.add_note(f"at point {at} ({tell(door)})")
            raise
        if not tell(door):
            found = door.asked if door.point is None else door.point.passed
            assert found >= least, f"only {found} points were found"
            return
    pytest.fail(f"more than {MOST} points")


def where(door: Door) -> str:
    assert door.point is not None
    return door.point.where


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_killed_at_every_point_each_request_is_worked_once_and_in_order(workers: int) -> None:
    def kill(door: Door, host: Host) -> None:
        host.kill()
        if workers == 1:  # nobody else is there to reclaim
            door.loop.call_later(0.5, door.spawn, host.name)

    told_at_every_point(lambda at: Door(seed=at, workers=workers, point=Point("w1", at, kill)), where, 10)


def test_all_killed_at_every_point_and_started_again_each_request_is_worked_once_and_in_order() -> None:
    def kill(door: Door, _host: Host) -> None:
        for name, host in list(door.hosts.items()):
            host.kill()
            door.loop.call_later(0.5, door.spawn, name)

    told_at_every_point(lambda at: Door(seed=at, workers=2, point=Point("w1", at, kill)), where, 10)


@pytest.mark.parametrize("workers", [1, 2])
def test_told_to_end_at_every_point_it_gives_back_what_it_holds(workers: int) -> None:
    def end(door: Door, host: Host) -> None:
        host.task.cancel()
        if workers == 1:
            door.loop.call_later(0.5, door.spawn, host.name)

    told_at_every_point(lambda at: Door(seed=at, workers=workers, point=Point("w1", at, end)), where, 10)


def test_who_was_stopped_for_longer_than_its_lease_writes_nothing_when_it_wakes() -> None:
    def stop(door: Door, host: Host) -> None:
        door.loop.suspend(host.process)

    async def sleeper(door: Door) -> None:
        push(door)
        await asyncio.sleep(30.0)  # its lease is over, and the others have had time to work everything
        if door.point is None or not door.point.where:
            return
        await door.settled()
        before = await door.records()
        door.loop.wake(door.hosts["w1"].process)
        await asyncio.sleep(10.0)
        await door.settled()
        assert await door.records() == before
        await door.check()
        worker = door.hosts["w1"].worker
        assert worker is not None
        assert worker.state()["present"] == 1
        door.ask("ada", "provision")  # it is of use again
        await door.settled()
        await door.check()

    for at in POINTS:
        door = Door(seed=at, workers=2, point=Point("w1", at, stop))
        try:
            door.run(sleeper)
        except BaseException as error:
            error.add_note(f"stopped at point {at} ({where(door)})")
            raise
        if not where(door) or at > 60:  # from there on it only renews its lease
            assert door.point is not None
            assert door.point.passed >= 10
            return


@pytest.mark.parametrize("kind", ["lost", "never", "unavailable", "late"])
def test_with_every_answer_lost_once_each_request_is_worked_once_and_in_order(kind: str) -> None:
    told_at_every_point(lambda at: Door(seed=at, workers=2, loss=(kind, at)), lambda door: door.lost, 8)


@pytest.mark.parametrize("seed", seeds(test=3, pool=12))
def test_in_bad_weather_with_workers_dying_all_the_time(seed: int) -> None:
    bad = Weather(unavailable=0.05, lost=0.05, never=0.05, slow=0.1, slowest=2.0)

    async def storm(door: Door) -> None:
        rng = random.Random(seed)
        users = [f"user-{number}" for number in range(12)]
        for _ in range(8):
            for user in rng.sample(users, 8):
                door.ask(user, rng.choice(("provision", "decommission")))
            door.ask_nonsense(rng.choice(("provision", "decommission")), b'{"labId":5}')
            await asyncio.sleep(rng.uniform(0.0, 2.0))
            name = rng.choice(list(door.hosts))
            door.hosts[name].kill()
            await asyncio.sleep(rng.uniform(0.0, 2.0))
            door.spawn(name)
        await door.settled()
        await door.check()

    Door(seed=seed, workers=3, weather=bad, inbox_weather=bad).run(storm)


def test_a_flood_is_worked_to_the_last_request() -> None:
    async def flood(door: Door) -> None:
        rng = random.Random(7)
        users = [f"user-{number}" for number in range(500)] * 10
        rng.shuffle(users)
        for user in users:
            door.ask(user, rng.choice(("provision", "decommission")))
        await door.settled()
        await door.check()
        states = [host.worker.state() for host in door.hosts.values() if host.worker is not None]
        assert sum(state["worked"] for state in states) == 5000
        assert all(state["worked"] > 500 and not state["held"] for state in states), states

    Door(seed=7, workers=3, width=256).run(flood)
