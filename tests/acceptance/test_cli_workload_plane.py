"""A workload through a running `hostler up`: applied, kept apart, scaled, replaced and deleted, at the command line."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from harness import pace
from up_process import START, HostlerProcess, hostler, well

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FILE = """
name: Web
instances: 2
cpus: 1
memory: 64MiB
affinity: [{together: false, level: node}]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    up = HostlerProcess("up", "--data", tmp_path / "data", "--listen", "127.0.0.1:0", "--nodes", 2, folder=tmp_path)
    try:
        up.wait_for("end: Ctrl-C")
        yield tmp_path
    finally:
        up.kill()


async def test_a_workload_from_its_file_to_nothing(folder: Path) -> None:
    data = {"HOSTLER_DATA": str(folder / "data")}
    file = folder / "web.yaml"
    file.write_text(FILE)
    assert "Web: ready, 2/2 ready" in (await well("workload", "apply", file, "--wait", **data)).out
    first = (await well("workload", "status", "web", "-o", "json", **data)).json
    assert {item["node"] for item in first["items"]} == {"local-1", "local-2"}
    again = await well("workload", "apply", "-", "-o", "json", stdin=FILE, **data)
    assert again.json["revision"] == first["revision"], "the same file changes nothing"

    late = await hostler("workload", "scale", "web", 3, "--wait", "--timeout", "2s", **data)
    assert late.code != 0
    assert "work continues: hostler workload status web" in late.err
    why = "2 nodes share a node with a machine labelled workload=web"
    async with asyncio.timeout(pace.patience(START)):  # a pending instance says why, once that was decided
        while why not in (await well("workload", "status", "web", **data)).out:
            await asyncio.sleep(0.1)

    file.write_text(FILE.replace("cpus: 1", "cpus: 2"))
    await well("workload", "apply", file, "--wait", **data)
    after = (await well("workload", "status", "web", "-o", "json", **data)).json
    assert {item["vm"] for item in after["items"]}.isdisjoint(item["vm"] for item in first["items"])
    assert after["spec"]["cpus"] == 2

    assert "Web: gone" in (await well("workload", "delete", "Web", "--wait", **data)).out
    assert (await hostler("workload", "status", "web", **data)).code == 3
    assert (await well("vm", "list", "--all", "-o", "json", **data)).json == []
    left = await well("store", "list", "/CloudChamber/V0.1/workload", "--store", f"sqlite://{folder}/data/hostler.db")
    assert "workload" not in left.out
