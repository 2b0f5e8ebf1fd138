"""What slices print is seen from anywhere: on a node of the server's process, and on one of another."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest
from harness.pace import patience
from slice_stage import SETTLED, TIMES, UpStage
from up_process import until, well

from hostler.errors import HostlerError, NotFound, Unavailable
from hostler.model.deployment import SliceSpec
from hostler.model.node import Lifecycle

if TYPE_CHECKING:
    from pathlib import Path

TALKER = """
import os
from hostler.slices import context, method

def start():
    print("life begins at", os.environ["SLICE_RUN"])

@method
async def die() -> None:
    print("about to die")
    os._exit(3)

@method
async def spew() -> None:
    os.write(1, b"\\x1b]0;owned\\x07\\x1b[2J\\x00\\xff\\xfe end of it\\n" + b"z" * 1_000_000)
    os.write(1, b"\\nafter it\\n")
"""


async def test_what_a_slice_printed_is_seen_wherever_it_runs_and_through_its_crash(tmp_path: Path) -> None:
    async with UpStage(tmp_path, nodes=1) as stage:
        log = stage.client.blueprints.log

        async def ended(artifact: str, text: str) -> bool:
            return (await log(artifact)).text.endswith(text)

        async def on_duty() -> bool:
            nodes = {view.node: view async for view in stage.client.nodes.list()}
            return "far-1" in nodes and nodes["far-1"].alive and nodes["far-1"].lifecycle is Lifecycle.ON_DUTY

        near = await stage.push("1.0.0", TALKER, "near")
        far = await stage.push("1.0.0", TALKER, "far")
        with pytest.raises(NotFound, match="there is no instance, and none has failed"):
            await log(near)
        assert (await stage.settled("near", SliceSpec(artifact=near, instances=1))).settled
        found = await log("org.example:near")
        assert (found.node, found.artifact, found.instance, found.skipped) == ("local-1", near, 1, 0)
        assert found.text.startswith("life begins at ")

        agent = stage.start(
            *("agent", "--node", "far-1", "--store", f"sqlite://{stage.data / 'hostler.db'}", *TIMES),
            *("--data", tmp_path / "far"),
            environ={"HOSTLER_ARTIFACTS": str(stage.data / "artifacts")},
        )
        await agent.says("registered\n")
        await stage.until(on_duty)
        assert (await stage.settled("far", SliceSpec(artifact=far, instances=1))).settled
        environ = {"HOSTLER_DATA": str(stage.data)}
        following = stage.start("slice", "logs", "org.example:far", "--follow", environ=environ)
        await following.says("life begins at")
        with pytest.raises(HostlerError):
            await stage.client.invoke("org.example:far", "die")
        await until(lambda: following.text.count("life begins at") == 2, SETTLED, lambda: following.text)
        following.signal(signal.SIGINT)
        assert await following.ends(10) == 130
        done = await well("slice", "logs", far, "--node", "far-1", **environ)
        first, died, second = done.out.splitlines()
        assert (first.split()[:3], died) == (["life", "begins", "at"], "about to die")
        assert (second != first, second.split()[:3]) == (True, ["life", "begins", "at"])
        assert (await log(far, lines=2)).text.splitlines() == [died, second]

        await stage.client.invoke("org.example:near", "spew")
        await stage.until(lambda: ended(near, "after it\n"))  # what was printed is in the log a moment later
        spewed = await log(near, after=found.after)
        assert spewed.skipped > 700_000
        assert spewed.text == "after it\n"
        assert (await log(near)).text == "after it\n"

        await stage.client.blueprints.delete("near")
        assert await stage.client.blueprints.wait("near", gone=True, within=patience(SETTLED)) is None
        with pytest.raises(NotFound):
            await log(near)
        kept = await well("slice", "logs", near, "--node", "local-1", "-n", "1", **environ)
        assert (kept.out, "no longer exists" in kept.err) == ("after it\n", True), kept
        agent.kill()
        with pytest.raises(Unavailable, match="agent of node far-1"):
            await log(far)
