"""Labs on machines that fail in every way: what is refused, half done, or done and not told of, is done once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import running
from crash_points.children import Launcher
from dose import dose
from lab_scene import NODE, LabScene
from lab_story import Rounds

from hostler.testing.ttl_servers import RedisServer

if TYPE_CHECKING:
    from collections.abc import Iterator

USERS = dose(test=5, full=32)


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    with Launcher("lab_launcher", Path(__file__).parent) as launcher:
        running.PIDS.add(launcher.pid)
        yield launcher
    running.PIDS.discard(launcher.pid)


async def test_labs_come_and_go_though_every_verb_of_their_machines_may_fail(
    launcher: Launcher, tmp_path: Path
) -> None:
    with RedisServer() as redis:
        async with LabScene(launcher, tmp_path / "scene", redis.url) as scene:
            (tmp_path / "scene" / "trouble").touch()
            await scene.children[NODE].kill()  # the next one has trouble
            await scene.up()
            rounds, users = Rounds(scene, "provision"), [f"user-{number}" for number in range(USERS)]
            for verb in ("provision", "decommission"):
                for user in users:
                    await rounds.ask(verb, user)
                for user in users:
                    await rounds.done(verb, user)
            assert scene.killed == 1
            scene.check()
            scene.witness.check()
