"""A machine that is made before it is known what guests run with may use the accelerator all the same."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from hostler.drivers.machines.qemu import (
    ImageFolder,
    QemuMachines,
    QemuOptions,
    acceleration,
    create,
    node_context,
    power,
    process,
)
from hostler.drivers.privileges import Privileges
from hostler.errors import Unavailable
from hostler.model.image import Probe, Seeding
from hostler.model.vm import VmSpec
from hostler.ports.machines import Label, MachinePlan

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

GROUP = os.getegid() or 4242
"""Of the device; never root's."""


@pytest.fixture
async def images(tmp_path: Path) -> ImageFolder:
    folder = ImageFolder(tmp_path / "images", default="none")  # so that nothing is probed as soon as the driver opens
    async with folder.scratch() as scratch:
        subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", "disk", "1M"], cwd=scratch.path, check=True)
        for name in acceleration.GUEST:
            (scratch.path / name).write_text(name)
        fields = {"disk_bytes": 2**20, "user": "u", "seeding": Seeding.NONE, "probe": Probe.NONE, "source": "a test"}
        await folder.register("one", scratch, fields)
    return folder


@pytest.mark.parametrize("boots", [True, False])
async def test_the_first_machine_may_open_the_device_that_its_own_start_found_to_work(
    tmp_path: Path, images: ImageFolder, monkeypatch: pytest.MonkeyPatch, *, boots: bool
) -> None:
    device, tools = tmp_path / "kvm", tmp_path / "tools"
    device.touch()
    os.chown(device, -1, GROUP)
    device.chmod(0o660)
    tools.mkdir()
    (tools / acceleration.BINARY).write_text(f"#!/bin/sh\necho hostler {'booted' if boots else 'broke'}\n")
    (tools / acceleration.BINARY).chmod(0o755)
    monkeypatch.setattr(acceleration, "DEVICE", str(device))
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setattr(node_context, "users_here", lambda _: range(3_000_000, 3_000_100))
    ran: list[tuple[str, Privileges]] = []

    def wrap(self: Privileges, argv: Sequence[str], **_: Any) -> list[str]:
        ran.append((next(word for word in argv if word.startswith("qemu")), self))
        return list(argv)

    async def spawn(_folder: object, argv: list[str], *, wrap: Any, **_: Any) -> None:
        wrap(argv)
        raise Unavailable("this is as far as it goes")

    monkeypatch.setattr(Privileges, "wrap", wrap)
    for module in (acceleration, create, power):
        monkeypatch.setattr(module, "own_files", lambda *_, **__: None)
    monkeypatch.setattr(process, "spawn", spawn)
    options = QemuOptions(network="isolated")
    async with QemuMachines(tmp_path / "node", images=images, options=options) as machines:
        plan = MachinePlan(label=Label("o", "p", "a"), spec=VmSpec(cpus=1, memory_mib=512, image="one"), name="a")
        await machines.create(plan)
        assert (await machines.offer()).facts["acceleration"] == "not tried yet"
        with pytest.raises(Unavailable, match="as far as it goes"):
            await machines.start("a")
        assert (await machines.offer()).facts["acceleration"].startswith("kvm" if boots else "tcg")
    groups = [(program, rights.groups) for program, rights in ran]
    assert groups == [
        ("qemu-img", ()),
        (acceleration.BINARY, (GROUP,)),  # the probe
        (acceleration.BINARY, (GROUP,) if boots else ()),
    ]
