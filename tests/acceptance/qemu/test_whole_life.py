"""A machine's whole life, by the commands that a person types; nothing is left of it on the host."""

from __future__ import annotations

import hashlib
import random
from typing import TYPE_CHECKING

import pytest
from real_plane import RealPlane, seen
from up_process import until
from warm_image import warm_images

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SHOW_KEY = "sudo dropbearkey -y -f /run/hostler/host_key | grep ^ssh-"


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[RealPlane]:
    plane = RealPlane(tmp_path, warm_images())
    try:
        yield plane
    finally:
        plane.end()


@pytest.mark.timeout(900)
async def test_a_machine_is_made_used_kept_cloned_and_gone_without_a_trace(plane: RealPlane, tmp_path: Path) -> None:
    plane.start("--nodes", 2)
    before, own, descriptors = plane.traces(), plane.own_traces(), plane.descriptors()

    async def inside(vm: str, command: str) -> str:
        return (await plane.cli("vm", "ssh", vm, command)).out.strip()

    await plane.cli("vm", "create", "first", "--memory", "128M", "--wait")
    data = random.Random(1).randbytes(100_000)
    (tmp_path / "there").write_bytes(data)
    await plane.cli("vm", "cp", tmp_path / "there", "first:text")
    assert (await inside("first", "sha256sum < text; sync")).startswith(hashlib.sha256(data).hexdigest())

    # Off and on again: what was written is there.
    boot = await inside("first", "cat /proc/sys/kernel/random/boot_id")
    await plane.cli("vm", "stop", "first", "--wait")
    assert plane.traces()["processes"] == set()
    await plane.cli("vm", "start", "first", "--wait")
    assert await inside("first", "cat /proc/sys/kernel/random/boot_id") != boot
    await plane.cli("vm", "cp", "first:text", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == data

    # Back to what it was.
    await inside("first", "echo old > text")
    await plane.cli("vm", "snapshot", "create", "first", "before", "--wait")
    await inside("first", "echo new > text; echo more > another; sync")
    await plane.cli("vm", "snapshot", "restore", "first", "before", "--wait")
    async with plane.client() as client:
        await seen(client, "first", lambda view: view.available)
    assert await inside("first", "cat text; ls another 2> /dev/null || true") == "old"

    # Another one like it, who is not it.
    await inside("first", "echo newest > text; sync")
    await plane.cli("vm", "clone", "first", "second", "--snapshot", "before", "--wait")
    assert (await inside("second", "cat text; hostname; ls another || true")).split() == ["old", "second"]
    assert (await inside("first", "cat text; hostname")).split() == ["newest", "first"]
    views = {name: (await plane.cli("vm", "show", name, "-o", "json")).json for name in ("first", "second")}
    keys = [" ".join((await inside(name, SHOW_KEY)).split()[:2]) for name in views]
    assert [[key] for key in keys] == [view["access"]["host_keys"] for view in views.values()]
    assert keys[0] != keys[1]
    assert views["first"]["node"] == views["second"]["node"], "a clone begins where the disk is"

    # Their traces are found, and then there are none.
    during = plane.traces()
    assert len(during["processes"]) == 2, during
    assert len(during["ports"]) == 2, during
    assert {path.rsplit("/", 1)[1] for path in during["files"]} >= {"qmp.sock", "disk.qcow2", "base", "host_key"}
    assert during["links"] != before["links"]
    if "cgroup" in str((await plane.cli("node", "list", "-o", "json")).json):
        assert during["groups"], "the node says that it limits machines by groups"
    await plane.cli("vm", "delete", "--yes", "--wait", "first", "second")
    assert plane.traces() == before
    assert (await plane.cli("vm", "list", "-o", "json")).json == []
    # A program that it ran for a moment at the beginning need not be there now.
    await until(
        lambda: all(traces <= own[what] for what, traces in plane.own_traces().items()),
        30,
        lambda: f"{plane.own_traces()} is more than {own}",
    )
    await until(lambda: plane.descriptors() <= descriptors + 2, 30, lambda: f"{plane.descriptors()}, {descriptors}")
    await plane.stop()
    assert plane.traces() == before
    assert len(plane.places()) == 2
    assert plane.rules() == set()
