"""The same scenario and seed, the same story: to the byte, in every process, whatever order its sets would have and
whatever it did before."""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
from pathlib import Path

import pytest
from dose import part, seeds
from harness.artefacts import safe

from hostler.sim.scenario import library

from .scenario_digest import told

TESTS = Path(__file__).parents[1]
SEEDS = [str(1 + seed) for seed in seeds(test=1, pool=20)]
NAMES = part(library.names(), test=8)
STEPS = {"0": 1, "1": -1, "random": 4 if len(SEEDS) == 1 else 1}
"""By which the process with that hash seed goes through the names: all of them, backwards, or every fourth in turn."""


async def _ran(*command: str, hash_seed: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", *command),
        cwd=TESTS,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    return out.decode()


def _by_run(lines: str) -> dict[tuple[str, ...], tuple[str, ...]]:
    """What was told of each scenario and seed."""
    return {tuple(line.split()[:2]): tuple(line.split()[2:]) for line in lines.splitlines()}


@pytest.mark.timeout(1800)
async def test_a_scenario_is_told_alike_in_every_process() -> None:
    """Twelve scenarios, others with each commit; all of them in soak.

    Compared are the log, everything that was ever written in the store, the verdicts and how many steps it took.
    """
    asked = (",".join(NAMES), ",".join(SEEDS))
    ran = [_ran("sim.scenario_digest", str(step), *asked, hash_seed=seed) for seed, step in STEPS.items()]
    first, second, third = [_by_run(out) for out in await asyncio.gather(*ran)]
    assert len(first) == len(NAMES) * len(SEEDS) == len(second)
    assert len(set(first.values())) == len(first)  # no two of them are one story
    assert len(third) >= len(first) // 4
    for hash_seed, other in (("1", second), ("random", third)):
        differing = [run for run in other if first[run] != other[run]]
        safe(
            not differing,
            f"PYTHONHASHSEED {hash_seed} tells another story than 0 (scenario, seed): {differing}",
            **{"hash-seed-0": first, f"hash-seed-{hash_seed}": other},
        )


def test_twice_in_one_process_is_alike_and_another_seed_is_another_story() -> None:
    first = told("chaos", 1)
    assert first == told("chaos", 1)
    assert first.split()[2:] != told("chaos", 2).split()[2:]


async def test_a_user_who_runs_a_file_twice_gets_the_same_log(tmp_path: Path) -> None:
    file = library.folder() / "chaos-in-class.yaml"
    logs = [tmp_path / name for name in ("one.jsonl", "other.jsonl")]
    told = [
        await _ran("hostler", "sim", "run", str(file), "--seed", "7", "--log", str(log), hash_seed=seed)
        for log, seed in zip(logs, ("random", "1"))
    ]
    digests = {hashlib.sha256(log.read_bytes()).hexdigest() for log in logs}
    assert len(digests) == 1
    assert logs[0].read_bytes().count(b"\n") > 200
    assert "holds" in told[0]
