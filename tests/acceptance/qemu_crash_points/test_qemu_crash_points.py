"""Kill -9 of the agent, of QEMU, and of both, at every step of what is done to a machine.

Every machine that is wished for runs once, none other does, at no instant did one run twice, nothing is left of what
was there, and what a guest had written is there. `make soak` tries every kind of kill at every step, `make test` some
of them, others with each commit (`TEST_SEED`).
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import running
from crash_points.children import Launcher
from dose import dose, rotation

from .campaign import Campaign
from .scene import QemuScene

if TYPE_CHECKING:
    from collections.abc import Iterator

ROUNDS = dose(test=0, full=1)
FULL = ROUNDS > 0
GUESTS = Path(__file__).parents[1] / "qemu"
pytestmark = pytest.mark.timeout(dose(test=600, full=7200))


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    from warm_image import warm_images

    warm_images()
    with Launcher("qemu_crash_points.launcher", GUESTS) as launcher:
        running.PIDS.add(launcher.pid)
        yield launcher
    running.PIDS.discard(launcher.pid)


VERBS = ["lives", "powers", "snapshots", "migrations"]
MORE = ["restores", "cold"]
"""In the full dose only."""


@pytest.mark.parametrize("verbs", [*VERBS, *(MORE if FULL else ())])
async def test_killed_at_any_step_a_machine_that_is_wished_for_runs_once(
    verbs: str, launcher: Launcher, tmp_path: Path
) -> None:
    kinds = (False, True) * ROUNDS if FULL else (bool((rotation() + VERBS.index(verbs)) % 2),)
    for number, fenced in enumerate(kinds):
        print("fenced machines" if fenced else "machines")
        begun = time.monotonic()
        async with QemuScene(launcher, tmp_path / f"scene-{number}") as scene:
            campaign = Campaign(scene, fenced=fenced)
            await getattr(campaign, verbs)()
            await scene.check_empty()
            watching = scene.watching
            watching.check()
            print(f"{verbs}: killed {campaign.killed} in {time.monotonic() - begun:.0f} s;", end=" ")
            print(f"{watching.looks} looks, {scene.killed} QEMU processes killed")
            assert watching.seen, "it was never seen that a guest ran: nothing would have been seen"
