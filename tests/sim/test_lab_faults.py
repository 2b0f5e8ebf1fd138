"""Labs when anything fails: the leader killed at every point, every answer lost once, every call of the provider and of
the board failing in turn. In the end there are 0 or 1 machines per user, and store, machines and board agree.

Each story is told again and again, with the fault further on each time, until it is over before the fault. `make soak`
meets every point; `make test` every fifth, others with each commit.
"""

from __future__ import annotations

import asyncio
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from dose import every_nth, seeds

from hostler.drivers.machines.simulated.fault import kinds_of
from hostler.errors import Uncertain
from hostler.model.lab import LabCatalogue, LabPhase

from .labs import SMALL, LabPlane, out_of_reach
from .plane import AgentHost, Crash, Loss

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

MOST = 400
"""Points that no story has: more of them means that the enumeration does not end."""
POINTS = every_nth(range(1, MOST), 5)


async def nothing(plane: LabPlane) -> None:
    await plane.start("bob", 3)
    await plane.agreed({"bob": 3})  # so that somebody leads, and another lab is there that must not suffer


async def a_lab(plane: LabPlane) -> None:
    await plane.start("ada", 5)
    await plane.start("bob", 3)
    await plane.agreed({"ada": 5, "bob": 3})


async def provision(plane: LabPlane) -> None:
    await plane.start("ada", 5)


async def decommission(plane: LabPlane) -> None:
    await plane.stop("ada", 5)


async def again(plane: LabPlane) -> None:
    await plane.stop("ada", 5)
    await plane.start("ada", 6)


async def both(plane: LabPlane) -> None:
    await plane.start("ada", 5)
    await asyncio.sleep(0.15)
    await plane.stop("ada")


async def a_lab_and_one_that_waits(plane: LabPlane) -> None:
    await plane.start("bob", 3)
    await plane.agreed({"bob": 3})
    await plane.start("cy", 3)
    await plane.start("ada", 5)
    await plane.until("ada", LabPhase.WAITING)


async def the_others_leave(plane: LabPlane) -> None:
    await plane.stop("bob")
    await plane.stop("cy")


class Story(NamedTuple):
    begin: Callable[[LabPlane], Awaitable[None]]
    act: Callable[[LabPlane], Awaitable[None]]
    end: dict[str, int | None]
    at_once: int | None = None


STORIES = {
    "provision": Story(nothing, provision, {"ada": 5, "bob": 3}),
    "decommission": Story(a_lab, decommission, {"ada": None, "bob": 3}),
    "stop and start another": Story(a_lab, again, {"ada": 6, "bob": 3}),
    "decommission while provisioning": Story(nothing, both, {"ada": None, "bob": 3}),
    "wait": Story(a_lab_and_one_that_waits, the_others_leave, {"ada": 5, "bob": None, "cy": None}, 1),
}


def tell(story: str, arm: Callable[[LabPlane], None], **options: Any) -> None:
    """With the fault armed from just before what is asked for until all agree."""
    begin, act, end, at_once = STORIES[story]

    async def scenario(plane: LabPlane) -> None:
        await begin(plane)
        arm(plane)
        await act(plane)
        await plane.agreed(end)
        for fault in (plane.crash, plane.loss):
            if fault is not None:
                fault.armed = False
        await asyncio.sleep(10.0)  # what was on its way may not change anything any more
        await plane.agreed(end, within=0.0)
        plane.check_runs()

    LabPlane(nodes=1, catalogue=LabCatalogue(default=SMALL, at_once=at_once), **options).run(scenario)


def arm(plane: LabPlane) -> None:
    fault = plane.crash or plane.loss
    assert fault is not None
    fault.armed = True


IN_A_ROW = 3
"""Points that are not there before there are no more: a seed in which everything comes in another order has fewer."""
VICTIMS = {
    "the leader": ("replica", ("replica",)),
    "leader and node, where the node is": ("agent", ("agent", "replica")),
}


@pytest.mark.parametrize("who", VICTIMS)
@pytest.mark.parametrize("story", STORIES)
def test_killed_at_every_point_of_it_all_agree_in_the_end(story: str, who: str) -> None:
    watched, victims = VICTIMS[who]
    found = missed = most = 0
    for at in POINTS:
        crash = Crash(watched, victims, at)
        try:
            tell(story, arm, seed=at, crash=crash)
        except BaseException as error:
            error.add_note(f"{story}: {who} killed at point {at} ({crash.where})")
            raise
        found, missed = (found + 1, 0) if crash.where else (found, missed + 1)
        most = max(most, crash.passed)
        if missed == IN_A_ROW:
            assert found > 4 // POINTS.step, f"{story}: killed at {found} points only"
            assert most > 4, f"{story}: only {most} points were found"
            return
    pytest.fail(f"{story}: more than {MOST} points")


@pytest.mark.parametrize("kind", ["lost", "never", "late"])
@pytest.mark.parametrize("story", STORIES)
def test_with_every_write_of_the_leader_lost_once_all_agree_in_the_end(story: str, kind: str) -> None:
    for at in POINTS:
        loss = Loss("replica", kind, at)
        try:
            tell(story, arm, seed=at, loss=loss)
        except BaseException as error:
            error.add_note(f"{story}: request {at}: {kind}")
            raise
        if not loss.where:
            assert loss.passed, f"{story}: no request was met"
            return
    pytest.fail(f"{story}: more than {MOST} requests")


@pytest.mark.parametrize("verb", ["create", "start", "stop", "delete", "inspect", "list"])
@pytest.mark.parametrize("story", [story for story in STORIES if story != "wait"])
def test_with_every_call_of_the_provider_failing_in_turn_all_agree_in_the_end(story: str, verb: Any) -> None:
    for kind in [kind for kind in kinds_of(verb) if kind != "slow"]:
        for nth in every_nth(range(1, 4), 3):

            def script(plane: LabPlane, kind: Any = kind, nth: int = nth) -> None:
                (host,) = [host for host in plane.hosts.values() if isinstance(host, AgentHost)]
                assert host.machines is not None
                host.machines.script(verb, kind, nth=nth)

            try:
                tell(story, script, seed=nth)
            except BaseException as error:
                error.add_note(f"{story}: call {nth} of {verb}: {kind}")
                raise


@pytest.mark.parametrize("verb", ["epoch", "ahead", "publish", "servers"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_with_every_call_of_the_board_failing_in_turn_all_agree_in_the_end(when: str, verb: str) -> None:
    for at in every_nth(range(1, 6), 5):
        calls = count(1)

        def fault(met: str, called: str, at: int = at, calls: Any = calls) -> None:
            if (met, called) == (when, verb) and next(calls) == at:
                raise out_of_reach(verb) if when == "before" else Uncertain(f"board: {verb}: no answer")

        def fail(plane: LabPlane, fault: Any = fault) -> None:
            plane.board_fault = fault

        for story in STORIES:
            try:
                tell(story, fail, seed=at)
            except BaseException as error:
                error.add_note(f"{story}: call {at} of {verb}, {when} it is done")
                raise


def test_while_the_board_is_out_of_reach_labs_go_on_and_all_is_shown_when_it_is_back() -> None:
    async def story(plane: LabPlane) -> None:
        await a_lab(plane)

        def fault(_: str, verb: str) -> None:
            raise out_of_reach(verb)

        plane.board_fault = fault
        await plane.stop("ada")
        await plane.start("cy", 7)
        await asyncio.sleep(60.0)
        assert await plane.phase("cy") == "running"
        assert not plane.machines_of("ada")
        assert plane.door.records.keys() == {"ada", "bob"}
        plane.board_fault = None
        await plane.agreed({"ada": None, "bob": 3, "cy": 7}, within=10.0)

    LabPlane().run(story)


def test_a_board_that_is_flushed_or_meddled_with_is_made_again() -> None:
    async def story(plane: LabPlane) -> None:
        await a_lab(plane)
        news = {user: list(of) for user, of in plane.door.news.items()}
        plane.door.flush()
        await plane.agreed({"ada": 5, "bob": 3}, within=3.0)
        assert plane.door.news == news
        for _ in range(2):
            record = plane.door.records.pop("ada")
            plane.door.records["eve"] = record
            await asyncio.sleep(301.0)
            await plane.agreed({"ada": 5, "bob": 3}, within=5.0)
            assert plane.door.records.keys() == {"ada", "bob"}

    LabPlane(nodes=1).run(story)


@pytest.mark.parametrize("seed", seeds(test=3, pool=12))
def test_whatever_users_ask_for_in_whatever_weather_the_limits_hold_and_all_agree_in_the_end(seed: int) -> None:
    async def story(plane: LabPlane) -> None:
        rng, users = plane.rng, [f"u{number}" for number in range(8)]
        plane.weather.lost = plane.weather.never = plane.weather.unavailable = 0.05
        plane.weather.slow, plane.weather.lagged = 0.3, 0.05
        wanted: dict[str, int | None] = dict.fromkeys(users)
        for _ in range(60):
            user, lab_id = rng.choice(users), rng.choice((5, 6))
            if rng.random() < 0.6:
                await plane.start(user, lab_id, switch=True)
                wanted[user] = lab_id
            else:
                await plane.stop(user)
                wanted[user] = None
            if rng.random() < 0.1:
                plane.kill(rng.choice(list(plane.hosts)))
            await asyncio.sleep(rng.random() * 3)
        plane.weather = plane.weather.__class__()
        for host in plane.hosts.values():
            host.wire._weather = plane.weather
        there = [user for user in users if wanted[user] is not None]
        for user in there[3:]:  # as many as may be there stay
            await plane.stop(user)
            wanted[user] = None
        await plane.agreed(wanted)
        plane.check_runs()

    LabPlane(seed=seed, replicas=2, catalogue=LabCatalogue(default=SMALL, at_once=3)).run(story)
