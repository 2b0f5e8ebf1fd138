"""Kill -9 at every step of a deployment: of the replica that writes, and of the agent that answers.

Each story is told again and again, the kill further on each time, until it is over before that. `make soak` kills at
every step; `make test` at every third or fifth, others with each commit. A step is a transaction about slices,
blueprints or the duty of a node: the kill comes before it is sent, or when it is done and not answered.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from dose import every_nth

from hostler.errors import Conflict
from hostler.keys.families import BLUEPRINT, DEPLOYMENT, ENDPOINT, MEMBER, RETRIES, SLICE, SLICE_DECISION, SLICE_OWNER
from hostler.model.blueprint_api import RolloutSelection, RolloutVerb
from hostler.model.deployment import Strategy
from hostler.model.inventory_api import Drain
from hostler.model.rollout import Phase
from hostler.sim.world.store_link import StoreLink

from .deployments import CART, Watch, apply, blueprint, plan, rollback, spec
from .evidence import run_named_world

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from hostler.sim.world import World

    Step = Callable[[World], Awaitable[None]]

ABOUT = tuple(
    key.prefix() for key in (BLUEPRINT, DEPLOYMENT, ENDPOINT, MEMBER, RETRIES, SLICE, SLICE_DECISION, SLICE_OWNER)
)
MOST = 400
"""Steps that no story has: more of them means that the enumeration does not end."""


class Trip:
    """Kills the process that takes the `at`-th step, counted from when it is armed."""

    def __init__(self, kind: str, at: int) -> None:
        self.kind, self.at = kind, at
        self.armed = False
        self.passed = 0
        self.where = ""

    def steps(self, world: World, wire: StoreLink, when: str, then: Any) -> bool:
        """Whether the process is dead now."""
        if not self.armed or self.where:
            return False
        host = next((host for host in world.hosts.values() if host.life is not None and host.life.wire is wire), None)
        if host is None or host.kind != self.kind:
            return False
        self.passed += 1
        if self.passed != self.at:
            return False
        self.where = f"{when} {host.name} wrote {[operation.key for operation in then][:3]}"
        world.kill(host.name, cause="the test")
        return True


@contextmanager
def tripping(trip: Trip, worlds: list[World]) -> Iterator[None]:
    sound = StoreLink.txn

    async def txn(self: StoreLink, when: Any, then: Any, otherwise: Any = ()) -> Any:
        about = any(getattr(operation, "key", "").startswith(ABOUT) for operation in then)
        if about and trip.steps(worlds[0], self, "before", then):
            await asyncio.Event().wait()
        answer = await sound(self, when, then, otherwise)
        if about and trip.steps(worlds[0], self, "after", then):
            await asyncio.Event().wait()
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StoreLink, "txn", txn)
        yield


ONE = blueprint(spec("1.0.0", 2, min_available=1), spec("1.0.0", 1, "org.shop:mail", needs=("org.shop:cart",)))
TWO = blueprint(spec("2.0.0", 2, min_available=1), spec("1.0.0", 1, "org.shop:mail", needs=("org.shop:cart",)))


async def nothing(world: World) -> None:
    await world.sleep(6)


async def first(world: World) -> None:
    await nothing(world)
    await apply(world, "shop", ONE)


async def second(world: World) -> None:
    await first(world)
    await world.sleep(10)
    await apply(world, "shop", TWO)


async def do_apply(world: World) -> None:
    await apply(world, "shop", ONE)


async def do_upgrade(world: World) -> None:
    await apply(world, "shop", TWO)


async def do_rollback(world: World) -> None:
    await rollback(world, "shop", 1)


async def do_drain(world: World) -> None:
    await world.ask(lambda d: d.nodes.drain(d.request, "r1-b1", Drain()))


async def do_promote(world: World) -> None:
    """A canary that nobody calls is promoted to its end by a person, however often that has to be said."""
    slow = msgspec.convert({"type": "canary", "stages": [{"weight": 50, "hold": 9000}]}, Strategy)
    await apply(world, "shop", blueprint(spec("2.0.0", 2, min_available=1, strategy=slow), TWO.slices[1]))

    async def ordered() -> bool:
        entry = await DEPLOYMENT.get(world.store, base=CART)
        if entry is not None and entry.value.artifact.endswith("2.0.0"):
            if entry.value.phase is Phase.DONE or entry.value.stage:
                return True
            with suppress(Conflict):
                await world.ask(
                    lambda d: d.blueprints.order(
                        d.request, "shop", RolloutVerb.PROMOTE, RolloutSelection(), everything=True
                    )
                )
        return False

    assert await world.until(ordered, within=120, every=0.5)


STORIES: dict[str, tuple[Step, Step]] = {
    "apply": (nothing, do_apply),
    "upgrade": (first, do_upgrade),
    "rollback": (second, do_rollback),
    "drain": (first, do_drain),
    "promote": (first, do_promote),
}
"""How it begins, and what is done."""


def told(name: str, trip: Trip, replicas: int = 1) -> list[str]:
    """The story, with the kill armed from just before what is done until all is as it was wished for.

    Who led before and after it.
    """
    begin, act = STORIES[name]
    worlds: list[World] = []
    led: dict[str, None] = {}

    async def story(world: World) -> None:
        worlds.append(world)
        watch = Watch(world)
        await begin(world)
        if begin is not nothing:
            await watch.met()
        trip.armed = True
        note(world)
        await act(world)
        await watch.met()
        note(world)
        trip.armed = False
        watch.held()

    def note(world: World) -> None:
        leader = world.leader()
        if leader is not None:
            led[leader.name] = None

    with tripping(trip, worlds):
        run_named_world(plan(3, replicas=replicas), story, seed=trip.at, run=f"{name} with {replicas} replicas")
    return list(led)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("who", ["replica", "blade"])
@pytest.mark.parametrize("name", STORIES)
def test_killed_at_every_step_it_comes_to_what_the_blueprint_says(name: str, who: str) -> None:
    enumerate_kills(name, who, every_nth(range(1, MOST), 5))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["apply", "upgrade"])
def test_killed_at_every_step_another_replica_goes_on(name: str) -> None:
    steps = every_nth(range(1, MOST), 3)  # the other one follows half of the time
    changes = enumerate_kills(name, "replica", steps, replicas=2)
    assert changes >= 8 // steps.step, "leadership hardly ever went to the other one"


def enumerate_kills(name: str, who: str, steps: range, replicas: int = 1) -> int:
    """How often another replica led in the end than in the beginning."""
    changes = 0
    for at in steps:
        trip = Trip(who, at)
        try:
            changes += len(told(name, trip, replicas)) > 1
        except BaseException as error:
            error.add_note(f"{name}, {who} killed at step {at}: {trip.where}")
            raise
        if not trip.where:
            assert trip.passed >= 8, f"{name}: only {trip.passed} steps were found"
            return changes
    pytest.fail(f"{name}: more than {MOST} steps")
