"""`hostler inventory` and `hostler rack`, against one running `hostler up`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from up_process import HostlerProcess, hostler, well

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FILE = """\
regions:
  - name: eu
    zones:
      - name: eu-1
        racks:
          - name: local
            pdus: [{name: pdu1, ports: 4}, {name: pdu2, ports: 4}]
            tors: [{name: tor1, ports: 3}]
            blades: {count: 3, prefix: "", cpus: 16, memory: 64GiB}
          - name: r2
            pdus: [{name: pdu1, ports: 10}]
            tors: [{name: tor1, ports: 10}]
            blades: {count: 8, cpus: 16, memory: 64GiB}
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The data folder of a running `up` with two nodes."""
    folder = tmp_path_factory.mktemp("up")
    up = HostlerProcess(
        *("up", "--data", folder / "data", "--listen", "127.0.0.1:0", "--nodes", 2),
        folder=folder,
    )
    try:
        up.wait_for("end: Ctrl-C")
        yield folder / "data"
    finally:
        up.kill()


async def test_from_the_rack_of_up_to_an_inventory_of_ones_own_and_back_to_duty(running: Path, tmp_path: Path) -> None:
    data, file = {"HOSTLER_DATA": str(running)}, tmp_path / "dc.yaml"
    listed = (await well("rack", "list", "-o", "json", **data)).json
    assert [(rack["name"], rack["blades"], rack["on_duty"]) for rack in listed] == [("local", 2, 2)]
    written = (await well("inventory", "show", "-o", "yaml", **data)).out
    file.write_text(written)
    assert "nothing to do" in (await well("inventory", "load", file, "--plan", **data)).out
    assert "nothing to do" in (await well("inventory", "load", file, **data)).out  # so nobody has to be asked

    file.write_text(FILE)
    assert "1 region, 1 zone, 2 racks, 11 blades" in (await well("inventory", "check", file, **data)).out
    nobody = await hostler("inventory", "load", file, **data)
    assert (nobody.code, "add --yes" in nobody.err) == (2, True)
    loaded = (await well("inventory", "load", file, "--yes", **data)).out.splitlines()
    assert loaded[:3] == [
        "+ region eu",
        "+ zone eu/eu-1",
        "~ rack local: location where hostler up runs → none, region none → eu, zone none → eu-1",
    ]
    assert "~ 2 blades of local (1–2): cpus none → 16, memory none → 64GiB" in loaded
    assert "+ rack r2: 1 pdu, 1 tor, 8 blades" in loaded
    assert loaded[-1].startswith("loaded: ")

    assert (await well("inventory", "set", "local/2", "--condition", "out_for_repair", **data)).out == (
        "blade local/2: out for repair\n"
    )
    await well("inventory", "set", "--zone", "eu/eu-1", "--disable", **data)
    await well("vm", "create", "web", **data)
    why = (await well("vm", "why", "web", **data)).out
    assert "zone eu/eu-1: not enabled" in why
    shown = (await well("rack", "show", "LOCAL", **data)).out
    assert "NOT ACCEPTING  zone eu/eu-1: not enabled" in shown
    assert "2      on duty     out for repair  pdu1:2, pdu2:2  tor1:2" in shown
    assert "3      not joined  operational     pdu1:3, pdu2:3  tor1:3" in shown
    await well("inventory", "set", "--zone", "eu/eu-1", "--enable", **data)
    assert "web: running" in (await well("vm", "start", "web", "--wait", **data)).out
    assert "default/default/web" in (await well("rack", "show", "local", **data)).out

    file.write_text(FILE.replace("          - name: local", "          - name: other"))
    refused = await hostler("inventory", "load", file, "--yes", **data)
    assert refused.code == 4
    assert "! blade local/1: its node local-1 has 1 machine (web); hostler node drain local-1 first" in refused.err
    tree = (await well("inventory", "show", **data)).out.splitlines()
    assert tree == [
        "region eu",
        "  zone eu-1",
        "    rack local: 2 pdus, 1 tor, 3 blades",
        "    rack r2: 1 pdu, 1 tor, 8 blades",
    ]


async def test_every_mistake_of_a_file_is_told_on_its_line_and_no_server_is_asked(tmp_path: Path) -> None:
    file = tmp_path / "dc.yaml"
    file.write_text(FILE.replace("cpus: 16", "cpus: 0").replace("name: r2", "name: r-2"))
    told = await hostler("inventory", "load", file, "--yes", HOSTLER_DATA=str(tmp_path))
    assert told.code == 2
    lines = told.err.splitlines()
    assert [line.partition(": ")[0] for line in lines[:3]] == [f"{file}:9", f"{file}:10", f"{file}:13"]
    assert lines[3:] == [f"hostler: {file}: 3 mistakes", "  next: correct it, see docs/inventory.md"]
    for hostile, word in (
        ("a: &a [*a, *a]", "anchors"),
        ("[" * 50_000, "deep"),
        ("a: \0", "U+0000"),
        ("\tx: 1", "tab"),
    ):
        file.write_text(hostile)
        told = await hostler("inventory", "check", file)
        assert told.code == 2
        assert word in told.err.splitlines()[0]
        assert "Traceback" not in told.err
        assert len(told.err.splitlines()) == 3
