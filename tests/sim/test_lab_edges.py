"""Labs at the edges, in virtual time: no leader, no node, no room, and hands that reach in from elsewhere."""

from __future__ import annotations

import asyncio

from hostler.model.lab import LabEvent

from .labs import GRACE, LabPlane
from .test_labs import SLACK, play


def test_an_extension_while_nobody_leads_counts() -> None:
    """The lab's end is over when the next leader comes: none of its controllers takes the machine away."""

    async def story(plane: LabPlane) -> None:
        await plane.start("ada", 5)
        await plane.agreed({"ada": 5})
        end = (await plane.lab("ada")).expires_at
        await asyncio.sleep(end + GRACE - 2.0 - plane.clock.wall())
        plane.supervised = False
        plane.kill("replica-1")
        assert await plane.extend("ada", 60) is LabEvent.EXTENDED
        await asyncio.sleep(5.0)
        plane.supervised = True
        plane.spawn("replica-1")
        await asyncio.sleep(60.0)
        await plane.agreed({"ada": 5}, within=SLACK)

    play(story)
