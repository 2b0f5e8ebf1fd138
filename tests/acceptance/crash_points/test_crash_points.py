"""Kill -9 of agent, replica, and both, at every point of every verb: real processes, a real store, the real API.

The points are found by running the verb: first undisturbed, then with a kill at each point that any run has shown,
until no run shows a new one. Every point of the undisturbed verb must be met again; what only some runs show, because
of a race, is tried and told. `make soak` takes all points; `make test` takes a few of each verb and victim, spread over
all of them, others for each verb and victim and with each commit.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import pytest
import running
from dose import dose, rotation

from hostler.model.vm import Power, VmSpec
from hostler.model.vm_api import VmCreate

from .children import Child, Launcher
from .scene import ORG, PROJECT, Scene

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from hostler import Client

Point: TypeAlias = tuple[str, int]
Passed: TypeAlias = dict[str, list[Point]]
"""By role."""
Act: TypeAlias = "Callable[[Client, str], Awaitable[None]]"

AT = (ORG, PROJECT)
SPEC = VmSpec(cpus=2, memory_mib=512, disk_gib=4)
SIDE_BY_SIDE = 4
"""Stories that are told at once: most of their time they wait for a lease to end."""
POINTS = dose(test=2, full=1_000_000)
"""Of each verb and victim at most."""
CLOCKWORK = {
    "agent": ("keep_alive", "range alive", "machine hold.done"),
    "replica": ("keep_alive", "get cluster", "txn ?sysvvm/1"),
}
"""What runs by the clock, whatever is asked for; the first of each is one of the points, the others are like it."""
FEWEST = 10
"""Points that every verb has at least."""
MOST = 200
"""Points that no verb has: more of them means that the enumeration does not end."""
TRIES = 3
"""What depends on a race may not come again at once."""
COMES_AGAIN = 3.0
"""Seconds within which what runs by the clock comes again."""


async def create(client: Client, key: str, power: Power = Power.ON) -> None:
    await client.vms.create(*AT, VmCreate(name="web", spec=SPEC, power=power), key=key)


async def create_off(client: Client, key: str) -> None:
    await create(client, key, Power.OFF)


async def start(client: Client, key: str) -> None:
    await client.vms.start(*AT, "web", key=key)


async def stop(client: Client, key: str) -> None:
    await client.vms.stop(*AT, "web", key=key)


async def delete(client: Client, key: str) -> None:
    await client.vms.delete(*AT, "web", key=key)


async def snapshot(client: Client, key: str) -> None:
    await client.vms.snapshot(*AT, "web", "before", key=key)


VERBS: dict[str, tuple[Act | None, Act, int]] = {
    "create": (None, create, 1),
    "start": (create_off, start, 1),
    "stop": (create, stop, 1),
    "snapshot": (create, snapshot, 1),
    "delete": (create, delete, 0),
}
"""What was done before, what is done, and how many machines there are in the end."""
VICTIMS = {
    "the agent": ("agent", False),
    "the replica": ("replica", False),
    "both, where the agent is": ("agent", True),
    "both, where the replica is": ("replica", True),
}


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    with Launcher() as launcher:
        running.PIDS.add(launcher.pid)
        yield launcher
    running.PIDS.discard(launcher.pid)


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, list[Passed]]:
    """What two runs of each verb pass that nobody disturbs; the same for all victims."""
    return {}


class Story:
    """A verb from its beginning to its end, with a kill on the way."""

    def __init__(self, verb: str, who: str, launcher: Launcher, folder: Path) -> None:
        self.verb, self.who, self._launcher, self._folder = verb, who, launcher, folder
        self._numbers = itertools.count(1)
        self.killed = 0
        """Processes."""
        self.lost: list[str] = []
        """Processes that lost their leadership, and said so: a machine that is slow may cost them that."""

    async def undisturbed(self) -> Passed:
        """The points that each role passes while the verb is done, in order.

        Who loses its leadership on a slow machine is not undisturbed: its points are those of two processes.
        """
        for _ in range(TRIES):
            passed, _, calm = await self._run(tuple(CLOCKWORK), None, both=False)
            if calm:
                break
        return passed

    async def run(self, target: Point) -> tuple[list[Point], bool]:
        """The points that were passed while the verb was done, in order; and whether it came to the kill."""
        role, both = VICTIMS[self.who]
        passed, killed, _ = await self._run((role,), target, both=both)
        return passed[role], killed

    async def _run(self, roles: tuple[str, ...], target: Point | None, *, both: bool) -> tuple[Passed, bool, bool]:
        """The points by role, whether it came to the kill, and whether nobody ended."""
        folder = self._folder / f"story-{next(self._numbers)}"
        before, act, machines = VERBS[self.verb]
        async with Scene(self._launcher, folder) as scene:
            if before is not None:
                await scene.wish(before)
                await scene.settled()
            await scene.up()
            watched = [child for role in roles for child in await scene.arm(role, target, both=both)]
            await scene.wish(act)
            await scene.settled()
            if not scene.crashes:
                for child in watched:
                    await child.answered()
            over_at = time.monotonic()
            if target is not None and not scene.crashes:
                await _come_again(watched)
            for child in watched:
                await child.disarm()
            killed = [child for _, child in scene.crashes]
            assert all(child.code == -9 for child in killed), [child.code for child in killed]
            self.killed += sum(child.code == -9 for _, child in scene.restarts)
            for text, (name, child) in zip(scene.ended(), scene.restarts, strict=True):
                assert scene.explained(name, child), f"it ended, and nobody asked for that: {text}"
                self.lost += [text] if child.code != -9 else []
            await scene.check(f"vm.{self.verb}", machines=machines)
        shutil.rmtree(folder)
        if killed:
            over_at = min(child.passed[-1][0] for child in killed)
        passed: Passed = {}
        for role in roles:
            of_role = sorted(
                point for child in watched if child.role == role for point in child.passed if point[0] <= over_at
            )
            passed[role] = list(dict.fromkeys((name, number) for _, name, number in of_role))
        return passed, bool(killed), not scene.restarts


async def _come_again(watched: list[Child]) -> None:
    """What runs by the clock comes again, whatever the verb does."""
    waits = [asyncio.ensure_future(child.until(lambda: False)) for child in watched]
    await asyncio.wait(waits, timeout=COMES_AGAIN, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    await asyncio.gather(*waits, return_exceptions=True)


def _clockwork(role: str) -> list[Point]:
    names = CLOCKWORK[role]
    machines = [f"{name}:{when}" for name in names if name.startswith("machine") for when in ("before", "after")]
    requests = [f"{when} {name}" for name in names if not name.startswith("machine") for when in ("before", "after")]
    return [(name, 1) for name in (*machines, *requests)]


class Enumeration:
    """Every point of a story, each killed at once; or `most` of them, spread over all."""

    def __init__(self, story: Story, most: int, offset: int) -> None:
        self._story, self._most, self._offset = story, most, offset
        self._clockwork = _clockwork(VICTIMS[story.who][0])
        self.known: dict[Point, None] = {}
        """In the order in which they were found."""
        self.certain: list[Point] = []
        """Of the verb when nothing disturbs it."""
        self.killed: set[Point] = set()
        self._todo: list[Point] = []

    async def run(self, one: list[Point], other: list[Point]) -> None:
        """Until there is no point left. Assertion: a story ended as none may. `one`, `other`: undisturbed runs."""
        self.certain = [point for point in self._new(one) if point in other] + self._clockwork
        if len(self.certain) > self._most:
            count, most = len(self.certain), self._most
            self._todo = [self.certain[(self._offset + number * count // most) % count] for number in range(most)]
            self.known.update(dict.fromkeys(self.certain))
        else:
            self._add([*self.certain, *self._new(one), *self._new(other)])
        while self._todo:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(SIDE_BY_SIDE, len(self._todo))):
                    group.create_task(self._work())

    async def _work(self) -> None:
        while self._todo:
            await self._kill_at(self._todo.pop(0))

    async def _kill_at(self, target: Point) -> None:
        for _ in range(TRIES):
            try:
                passed, killed = await self._story.run(target)
            except BaseException as error:
                error.add_note(f"{self._story.verb}: {self._story.who} killed at {target}")
                raise
            if self._most >= len(self.known):
                self._add(self._new(passed))
            if killed:
                self.killed.add(target)
                return

    def _new(self, points: list[Point]) -> list[Point]:
        clockwork = {name for name, _ in self._clockwork}
        return [point for point in points if point[0] not in clockwork and point not in self.known]

    def _add(self, points: list[Point]) -> None:
        new = [point for point in dict.fromkeys(points) if point not in self.known]
        self.known.update(dict.fromkeys(new))
        self._todo.extend(new)
        assert len(self.known) <= MOST, f"more than {MOST} points: {list(self.known)}"


@pytest.mark.parametrize("who", VICTIMS)
@pytest.mark.parametrize("verb", VERBS)
async def test_killed_at_every_point_of_a_verb_all_that_was_wished_for_exists_once(
    verb: str, who: str, launcher: Launcher, undisturbed: dict[str, list[Passed]], tmp_path: Path
) -> None:
    offset = rotation() + 7 * list(VERBS).index(verb) + 3 * list(VICTIMS).index(who)
    story = Story(verb, who, launcher, tmp_path)
    enumeration = Enumeration(story, POINTS, offset)
    begun = time.monotonic()
    if verb not in undisturbed:
        undisturbed[verb] = await asyncio.gather(story.undisturbed(), story.undisturbed())
    one, other = (passed[VICTIMS[who][0]] for passed in undisturbed[verb])
    await enumeration.run(one, other)
    known, certain, killed = enumeration.known, enumeration.certain, enumeration.killed
    took = time.monotonic() - begun
    print(f"\n{verb}, {who}: {len(certain)} points and {len(known) - len(certain)} that races show;")
    print(f"killed at {len(killed)}: {story.killed} processes, in {took:.0f} s; lost their leadership: {story.lost}")
    for point in known:
        print("  killed " if point in killed else "         ", *point, "" if point in certain else "(race)")
    names = {name for name, _ in certain}
    if VICTIMS[who][0] == "agent":
        assert {f"machine {verb}.done:before", f"machine {verb}.done:after", "after txn +handles"} <= names
    else:
        assert {"before", "after"} <= {name.split()[0] for name in names if "+audit" in name and "+vms" in name}
    assert len(certain) >= FEWEST
    missed = set(certain) - killed
    assert len(killed & set(certain)) >= min(POINTS, len(certain)), f"seen and not met again: {missed}"
