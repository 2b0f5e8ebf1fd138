"""A user gets a lab and gives it back, and what must be so afterwards."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, TypeAlias

from harness.pace import patience
from lab_scene import LAB_ID

if TYPE_CHECKING:
    from lab_scene import LabScene

Point: TypeAlias = tuple[str, int]

VERBS = ("provision", "decommission")
LAST_STEP = 0.5
"""Seconds that the last step may take to end after its effect was seen."""
MADE, ENDED = ["requested", "started", "available"], ["stopping", "stopped"]


def _around(*names: str) -> list[Point]:
    return [(f"{when} {name}", 1) for name in names for when in ("before", "after")]


CLAIM = "txn +handles +labs +names +nodes +vms -handles -names -vms"
_TAKEN: list[Point] = [("after take", 1), *_around("txn +labs of a worker", "acknowledge")]
_MADE = _around("txn +labs available", "publish available")
STEPS = {
    "provision": [*_TAKEN, *_around("txn +labs +names +vms", "txn +handles +nodes"), *_MADE],
    "decommission": [
        *_TAKEN,
        *_around("txn +vms", "txn +nodes", "txn -handles -names -nodes -vms", "txn +labs gone", "publish gone"),
    ],
    "claim": [*_TAKEN, *_around(CLAIM), *_MADE],
}
"""Points that every run of a story comes to. What is written and shown on the way to its end may be left out."""


class Rounds:
    """Users, one after the other, each of whom gets a lab and gives it back, with a kill in between."""

    def __init__(self, scene: LabScene, verb: str) -> None:
        self.scene, self._verb, self._numbers = scene, verb, itertools.count(1)

    async def run(self, target: Point | None, *, everybody: bool = False) -> tuple[list[Point], bool]:
        """The points that were passed while the verb was done; and whether it came to the kill."""
        scene, user, passed = self.scene, f"user-{next(self._numbers)}", []
        await scene.up()
        killed = False
        for verb in VERBS:
            if verb == self._verb:
                await scene.arm(target, everybody=everybody)
            await self.ask(verb, user)
            await self.done(verb, user)
            if verb == self._verb:
                killed = target is not None and await scene.came(patience(LAST_STEP))
                if target is None:
                    await scene.answered()
                passed = await scene.disarm()
                assert all(child.code == -9 for child in scene.crashes)
        await scene.up()
        return [point for point in passed if _is_a_step(point[0])], killed

    async def ask(self, verb: str, user: str) -> None:
        await self.scene.redis.rpush(f"vmmanager:{verb}", json.dumps({"webuserid": user, "labId": LAB_ID}))

    async def done(self, verb: str, user: str) -> None:
        """Until it is as it was asked for, everywhere; and it was made once, and told once."""
        witness = self.scene.witness
        expected = MADE if verb == "provision" else MADE + ENDED

        async def missing() -> str | None:
            told = [news.event.value for news in witness.told.get(user, ())]
            return f"{user}: {told}" if len(told) < len(expected) else await witness.missing()

        await self.scene.until(missing)
        told = [news.event.value for news in witness.told[user]]
        witness.safe(told == expected, f"{user} was told {told}, not {expected}")
        witness.safe(len(witness.machines_of(user)) == 1, f"{user} had {witness.machines_of(user)}")


def _is_a_step(name: str) -> bool:
    """Of the two verbs; what goes by the clock, and what a process does when it starts, is not."""
    what = name.partition(" ")[2]
    if what.startswith("txn"):
        return any(f"+{family}" in what or f"-{family}" in what for family in ("labs", "vms", "handles", "nodes"))
    return what in ("take", "acknowledge", "release") or what.startswith("publish")
