"""Nodes fail: machines that wait stay put, fenced ones go elsewhere, and none ever runs in two places."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from dose import dose

from hostler.testing.servers import find_binary

ROUNDS = dose(test=1, full=6)
WITHIN = 500 * ROUNDS


@pytest.mark.timeout(WITHIN + 60)
async def test_nodes_are_killed_suspended_cut_off_and_switched_off(tmp_path: Path) -> None:
    """In namespaces of its own, which end with the process."""
    namespaces = ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if os.geteuid() != 0:
        namespaces += ["--user", "--map-root-user"]
    program = [sys.executable, "-m", "plane.nodes_process", str(tmp_path), str(ROUNDS)]
    paths = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    process = await asyncio.create_subprocess_exec(
        *(find_binary("unshare"), *namespaces, *program),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
    )
    try:
        async with asyncio.timeout(WITHIN):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    text = output.decode()
    print(text)
    assert process.returncode == 0, text
    found = json.loads(text.splitlines()[-1])
    assert found["moved"] >= 3 * ROUNDS, text
    assert found["commands"] > 20, text
