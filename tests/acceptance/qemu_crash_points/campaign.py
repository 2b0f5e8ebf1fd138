"""Every step of every verb, killed with every kind of kill, or with some of them, others with each commit.

The steps of a verb are found by doing it once undisturbed. One machine at a time stands in a scene, and goes through
what is to be tried on it one after another: what a kill breaks, the next steps would meet.
"""

from __future__ import annotations

import os
import random
import time
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING

from dose import rotation, seeds

from .story import Kill, Life, Point

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from .scene import QemuScene

    Verb = Callable[[Kill | None], Awaitable[list[Point]]]

ONLY = os.environ.get("HOSTLER_CRASH_POINT", "")
"""`VERB/STEP/KIND`: that one alone."""
FOLDER = "tests/acceptance/qemu_crash_points"


KILLS = 1
"""Of each verb in `make test`."""


class Campaign:
    """`fenced`: its machines are."""

    def __init__(self, scene: QemuScene, *, fenced: bool) -> None:
        self._scene, self._fenced = scene, fenced
        self.killed: dict[str, int] = {}
        """By who was."""

    async def lives(self) -> None:
        """Create and delete."""
        life = Life(self._scene, "first", fenced=self._fenced)
        creations = self._kills("create", await life.create(None))
        deletions = self._kills("delete", await life.delete(None))
        for number, (creation, deletion) in enumerate(zip_longest(creations, deletions)):
            life = Life(self._scene, f"web-{number}", fenced=self._fenced)
            await self._try("create", life.create, creation)
            await life.keep()
            await self._try("delete", life.delete, deletion)

    async def powers(self) -> None:
        """Stop and start."""
        life = await self._new("web")
        stops = self._kills("stop", await life.stop(None))
        starts = self._kills("start", await life.start(None))
        await life.keep()
        for stop, start in zip_longest(stops, starts):
            await self._try("stop", life.stop, stop)
            await self._try("start", life.start, start)
            await life.keep()
        await self._end(life)

    async def snapshots(self) -> None:
        """Snapshot; each is then gone back to."""
        life = await self._new("web")
        kills = self._kills("snapshot", await life.snapshot(None))
        await life.keep()
        for kill in kills:
            await self._try("snapshot", life.snapshot, kill)
            if kill.kind == "agent":
                await life.check_undisturbed()
            await life.keep()
        for number in range(len(kills) + 1, 0, -1):
            await life.restore(number)
            await life.check_restored(number)
        await self._end(life, snapshots=len(kills) + 1)

    async def restores(self) -> None:
        """Restore."""
        life = await self._new("web")
        await life.snapshot(None)
        for kill in self._kills("restore", await life.restore(1)):
            await life.scribble()
            await self._try("restore", partial(life.restore, 1), kill)
            await life.check_restored(1)
        await self._end(life, snapshots=1)

    async def migrations(self) -> None:
        """Migrate, to and fro."""
        life = await self._new("web")
        kills = self._kills("migrate", await life.migrate(None))
        await life.check_undisturbed()
        for kill in kills:
            await self._try("migrate", life.migrate, kill)
            if kill.kind == "agent":
                await life.check_undisturbed()
            await life.keep()
        await self._end(life)

    async def cold(self) -> None:
        """Snapshot and migrate, of a machine that is off; it is started now and then to see what it has kept."""
        life = await self._new("web")
        await life.stop(None)
        kills = self._kills("cold migrate", await life.migrate(None))
        for kill in kills:
            await self._try("cold migrate", life.migrate, kill)
        await life.start(None)
        await life.keep()
        await life.stop(None)
        kills = self._kills("cold snapshot", await life.snapshot(None))
        for kill in kills:
            await life.start(None)
            await life.keep()
            await life.stop(None)
            await self._try("cold snapshot", life.snapshot, kill)
        await life.start(None)
        await life.keep()
        await self._end(life, snapshots=len(kills) + 1)

    # Inside

    async def _new(self, name: str) -> Life:
        life = Life(self._scene, name, fenced=self._fenced)
        await life.create(None)
        await life.keep()
        return life

    async def _end(self, life: Life, *, snapshots: int = 0) -> None:
        node = (await self._scene.handle(life.vm)).node
        await life.stop(None)
        self._scene.check_disk(node, life.vm, snapshots)
        await life.delete(None)

    def _kills(self, verb: str, points: list[Point]) -> list[Kill]:
        print(f"{verb}: {len(points)} steps: {', '.join(map(str, points))}")
        # By name: in which order two agents come to theirs is a race, and a seed shall tell the same twice.
        every = [Kill(point, kind) for point in sorted(points) for kind in point.kinds()]
        if ONLY:
            return [kill for kill in every if f"{verb}/{kill}" == ONLY]
        random.Random(verb).shuffle(every)  # so that those of one commit are of several kinds
        return [every[number] for number in seeds(test=KILLS, pool=len(every), full=0)]

    async def _try(self, name: str, verb: Verb, kill: Kill | None) -> None:
        begun = time.monotonic()
        try:
            await verb(kill)
        except BaseException as error:
            if kill is not None:
                error.add_note(f"seed {rotation()}; again: HOSTLER_CRASH_POINT='{name}/{kill}' pytest {FOLDER}")
            raise
        if kill is not None:
            self.killed[kill.kind] = self.killed.get(kill.kind, 0) + 1
            print(f"{name}/{kill}: whole again after {time.monotonic() - begun:.1f} s")
