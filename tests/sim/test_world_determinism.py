"""The same seed, the same world: to the byte, in another process, whatever order its sets and dicts would have."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest
from dose import dose

from .world_tale import told

TESTS = Path(__file__).parents[1]


async def _told_elsewhere(agents: str, seeds: list[int], hash_seed: str) -> list[str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sim.world_tale", agents, *map(str, seeds)),
        cwd=TESTS,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    return out.decode().splitlines()


@pytest.mark.parametrize("agents", ["real", "light"])
async def test_the_same_seed_gives_the_same_world_in_every_process(agents: str) -> None:
    seeds = list(range(1, 1 + dose(test=1, full=20)))
    stories = await asyncio.gather(*(_told_elsewhere(agents, seeds, hash_seed) for hash_seed in ("1", "77")))
    assert stories[0] == stories[1]
    assert len(stories[0]) == len(seeds)
    assert int(stories[0][0].split()[2]) > 300


def test_another_seed_gives_another_world() -> None:
    assert told(1, "light") != told(2, "light")
