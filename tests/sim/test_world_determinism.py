"""The same seed, the same world: to the byte, in another process, whatever order its sets and dicts would have."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest
from dose import seeds
from harness.artefacts import safe

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
    chosen = [1 + seed for seed in seeds(test=1, pool=20)]
    stories = await asyncio.gather(*(_told_elsewhere(agents, chosen, hash_seed) for hash_seed in ("1", "77")))
    first, second = stories
    safe(first == second, f"seeds {chosen}: the story depends on the hash seed", first=first, second=second)
    assert len(first) == len(chosen)
    assert all(int(line.split()[2]) > 300 for line in first)


def test_another_seed_gives_another_world() -> None:
    assert told(1, "light") != told(2, "light")
