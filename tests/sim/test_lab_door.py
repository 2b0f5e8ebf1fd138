"""Workers at the lab door that are killed, stopped for a while, or lose answers, at every point of a request's way.

Each story is told again and again, with the fault further on each time, until it is over before the fault. `make soak`
meets every point; `make test` every fifth, others with each commit. A point is: something is about to be asked of the
store or the queues; it was done but not answered.
"""

from __future__ import annotations

import asyncio
import json
import random
from typing import TYPE_CHECKING

import pytest
from dose import every_nth, seeds

from hostler.sim.faulty_link import Weather

from .lab_door import ChannelKind, Host, Point

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from hostler.ports.inbox import QueueName

MOST = 400
POINTS = every_nth(range(1, MOST), 5)


def push(door: ChannelKind) -> None:
    """A little of everything: users with several requests in each queue, and nonsense between."""
    for user in ("ada", "bob", "cid", "dan"):
        door.ask(user, "provision")
        door.ask(user, "provision")
        door.ask(user, "decommission")
    door.ask_nonsense("provision", b'{"webuserid":"ada","labId":true}')
    door.ask_nonsense("decommission", b"{")
    door.ask("ada", "provision")
    door.ask("bob", "decommission")


async def story(door: ChannelKind) -> None:
    push(door)
    await door.settled()
    await door.check()


def told_at_every_point(
    make: Callable[[int], ChannelKind],
    tell: Callable[[ChannelKind], str],
    least: int,
    told: Callable[[ChannelKind], Coroutine[None, None, None]] = story,
) -> None:
    for at in POINTS:
        door = make(at)
        try:
            door.run(told)
        except BaseException as error:
            error.add_note(f"at point {at} ({tell(door)})")
            raise
        if not tell(door):
            found = door.asked if door.point is None else door.point.passed
            assert found >= least, f"only {found} points were found"
            return
    pytest.fail(f"more than {MOST} points")


def where(door: ChannelKind) -> str:
    assert door.point is not None
    return door.point.where


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_killed_at_every_point_each_request_is_worked_once_and_in_order(workers: int) -> None:
    def kill(door: ChannelKind, host: Host) -> None:
        host.kill()
        if workers == 1:  # nobody else is there to reclaim
            door.loop.call_later(0.5, door.spawn, host.name)

    told_at_every_point(lambda at: ChannelKind(seed=at, workers=workers, point=Point("w1", at, kill)), where, 10)


def test_all_killed_at_every_point_and_started_again_each_request_is_worked_once_and_in_order() -> None:
    def kill(door: ChannelKind, _host: Host) -> None:
        for name, host in list(door.hosts.items()):
            host.kill()
            door.loop.call_later(0.5, door.spawn, name)

    told_at_every_point(lambda at: ChannelKind(seed=at, workers=2, point=Point("w1", at, kill)), where, 10)


@pytest.mark.parametrize("workers", [1, 2])
def test_told_to_end_at_every_point_it_gives_back_what_it_holds(workers: int) -> None:
    def end(door: ChannelKind, host: Host) -> None:
        host.task.cancel()
        if workers == 1:
            door.loop.call_later(0.5, door.spawn, host.name)

    told_at_every_point(lambda at: ChannelKind(seed=at, workers=workers, point=Point("w1", at, end)), where, 10)


# A front end that does not wait


def send(door: ChannelKind, queue: QueueName, user: str, **more: int) -> None:
    door.door.push(queue, json.dumps({"webuserid": user, **more}).encode())


def switching(pause: float) -> Callable[[ChannelKind], Coroutine[None, None, None]]:
    """Users switch from lab 5 to lab 7, with and without the lab id, behind others whose requests come to nothing."""

    async def told(door: ChannelKind) -> None:
        users = [f"user-{number}" for number in range(6)]
        for user in users:
            send(door, "provision", user, labId=5)
        await door.settled()
        for number in range(12):  # in the way of the others
            send(door, "decommission", f"other-{number}", labId=3)
        for number, user in enumerate(users):
            send(door, "decommission", user, **({"labId": 5} if number % 2 else {}))
            await asyncio.sleep(pause)
            send(door, "provision", user, labId=7)
        send(door, "provision", "comes-and-goes", labId=7)
        send(door, "decommission", "comes-and-goes", labId=7)
        send(door, "decommission", "late", labId=7)  # of a lab that is not there: it is in nobody's way
        await door.settled()
        records = await door.records()
        labs = {user: None if (lab := records[user].lab) is None else lab.lab_id for user in records}
        expected: dict[str, int | None] = dict.fromkeys((f"other-{number}" for number in range(12)), None)
        expected |= dict.fromkeys(users, 7) | {"comes-and-goes": None, "late": None}
        assert labs == expected
        for user in users:
            assert [news.event.value for news in records[user].news] == ["requested", "stopped", "requested"], user

    return told


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_l25_a_front_end_that_switches_without_waiting_ends_with_the_new_lab(workers: int) -> None:
    """L25, M2: what the user has decides which of two requests in the two queues is worked first."""
    for pause in (0.0, 0.001, 0.01, 0.05, 0.3):
        for seed in seeds(test=2, pool=8):
            ChannelKind(seed=seed, workers=workers).run(switching(pause))


@pytest.mark.parametrize("workers", [1, 3])
def test_l25_so_it_does_with_workers_killed_at_every_point(workers: int) -> None:
    def kill(door: ChannelKind, host: Host) -> None:
        host.kill()
        door.loop.call_later(0.5, door.spawn, host.name)

    told_at_every_point(
        lambda at: ChannelKind(seed=at, workers=workers, point=Point("w1", at, kill)), where, 10, switching(0.01)
    )


def test_l25_so_it_does_with_every_answer_lost_once() -> None:
    told_at_every_point(
        lambda at: ChannelKind(seed=at, workers=2, loss=("lost", at)), lambda door: door.lost, 8, switching(0.0)
    )


# A rate limit

LIMIT = 15.0


async def hurried(door: ChannelKind) -> None:
    """Users who ask once, and then again and again within the limit."""
    users = [f"user-{number}" for number in range(4)]
    for user in users:
        send(door, "provision", user, labId=5)
    await door.settled()
    first = {user: record.worked_at["provision"] for user, record in (await door.records()).items()}
    for lab_id in (6, 7, 5, 8):
        for user in users:
            send(door, "provision", user, labId=lab_id)
        await asyncio.sleep(0.2)
    for user in users:
        door.ask_nonsense("provision", json.dumps({"webuserid": user, "labId": "nine"}).encode())
    await door.settled()
    for user, record in (await door.records()).items():
        told = [news.lab_id for news in record.news]
        assert sorted(told, key=str) == [5, 8, None], f"{user}: {told}"  # of the waiting the last; nonsense as ever
        assert told.index(5) < told.index(8)
        assert record.worked_at["provision"] - first[user] >= LIMIT - 0.001, user
        assert record.lab is not None
        assert record.lab.lab_id == 5
    for user in users:
        for more in ({"labId": 5}, {"labId": 9}, {"labId": 5}, {"labId": 5}):
            send(door, "decommission", user, **more)
    await door.settled()
    for user, record in (await door.records()).items():
        assert record.lab is None, user
        stops = [(news.event.value, news.lab_id) for news in record.news][3:]
        assert sorted(stops, key=str) == [("ignored", 9), ("stopped", 5)], f"{user}: {stops}"


def test_l39_a_rate_limit_works_the_last_of_what_came_meanwhile() -> None:
    """L39, M15: no start is dropped for it but for a later one, and no stop but for one that ends the same."""
    for workers in (1, 3):
        for seed in seeds(test=2, pool=8):
            ChannelKind(seed=seed, workers=workers, limits={"provision": LIMIT, "decommission": LIMIT}).run(hurried)


@pytest.mark.parametrize("workers", [1, 2])
def test_l39_so_it_does_with_workers_killed_at_every_point(workers: int) -> None:
    def kill(door: ChannelKind, host: Host) -> None:
        host.kill()
        door.loop.call_later(0.5, door.spawn, host.name)

    limits: dict[QueueName, float] = {"provision": LIMIT, "decommission": LIMIT}
    told_at_every_point(
        lambda at: ChannelKind(seed=at, workers=workers, limits=limits, point=Point("w1", at, kill)), where, 10, hurried
    )


def test_l39_many_who_wait_for_the_limit_keep_nobody_else_waiting() -> None:
    async def told(door: ChannelKind) -> None:
        crowd = [f"user-{number}" for number in range(20)]
        for _ in range(2):
            for user in crowd:
                send(door, "provision", user, labId=5)
            await asyncio.sleep(1.0)
        began = door.clock.now()
        send(door, "provision", "ada", labId=5)
        while "ada" not in await door.records():
            await asyncio.sleep(0.05)
        assert door.clock.now() - began < 2.0
        await door.settled()

    ChannelKind(workers=1, width=3, limits={"provision": LIMIT}).run(told)


def test_who_was_stopped_for_longer_than_its_lease_writes_nothing_when_it_wakes() -> None:
    def stop(door: ChannelKind, host: Host) -> None:
        door.loop.suspend(host.process)

    async def sleeper(door: ChannelKind) -> None:
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
        door = ChannelKind(seed=at, workers=2, point=Point("w1", at, stop))
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
    told_at_every_point(lambda at: ChannelKind(seed=at, workers=2, loss=(kind, at)), lambda door: door.lost, 8)


@pytest.mark.parametrize("seed", seeds(test=3, pool=12))
def test_in_bad_weather_with_workers_dying_all_the_time(seed: int) -> None:
    bad = Weather(unavailable=0.05, lost=0.05, never=0.05, slow=0.1, slowest=2.0)

    async def storm(door: ChannelKind) -> None:
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

    ChannelKind(seed=seed, workers=3, weather=bad, inbox_weather=bad).run(storm)


def test_a_flood_is_worked_to_the_last_request() -> None:
    async def flood(door: ChannelKind) -> None:
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

    ChannelKind(seed=7, workers=3, width=256).run(flood)
