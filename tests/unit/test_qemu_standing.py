"""What a machine stands on stays, whatever becomes of its image's name, of other images and of its origin."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from hostler.drivers.machines.qemu import ImageFolder, QemuMachines, QemuOptions, state
from hostler.drivers.machines.qemu.disk import BASE, COPY
from hostler.errors import Refused
from hostler.model.image import Probe, Seeding
from hostler.model.vm import MachineState, Origin, VmSpec
from hostler.ports.machines import Label, MachinePlan

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from hostler.ports.machine_driver import Named

GIB = 2**30


async def built(images: ImageFolder, content: str) -> Named:
    """The image `tiny`, anew."""
    async with images.scratch() as scratch:
        subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", "disk", "1M"], cwd=scratch.path, check=True)
        (scratch.path / "kernel").write_text(content)
        fields = {"disk_bytes": 2**20, "user": "u", "seeding": Seeding.NONE, "probe": Probe.NONE, "source": content}
        return await images.register("tiny", scratch, fields | {"memory_mib": 64})


def plan(vm: str, **changes: Any) -> MachinePlan:
    spec: dict[str, Any] = {"cpus": 1, "memory_mib": 128}
    return MachinePlan(label=Label("o", "p", vm), spec=VmSpec(**(spec | changes)), name=vm)


class Node:
    """A node, and what it stands on."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.images = (
            folder / "machines" / "n",
            ImageFolder(folder / "images", machines=folder / "machines"),
        )

    def driver(self, step: Callable[[str], Awaitable[None]] | None = None) -> QemuMachines:
        options = QemuOptions(accelerator="tcg", network="isolated")
        return QemuMachines(self.folder, images=self.images, options=options, step=step)

    def of(self, vm: str) -> Path:
        return self.folder / "vms" / vm


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


async def test_a_machine_of_an_image_that_was_rebuilt_goes_on_as_it_is(node: Node) -> None:
    old = await built(node.images, "old")
    async with node.driver() as machines:
        await machines.create(plan("a"))
        await machines.snapshot("a", "s")
        new = await built(node.images, "new")
        assert new.image.digest != old.image.digest
        assert (await machines.create(plan("a", disk_gib=1))).spec.disk_gib == 1, "it has another shape"
        assert (await machines.restore("a", "s", 1)).restored == 1
        await machines.create(plan("b", origin=Origin(vm="a", snapshot="s")))
        await machines.snapshot("b", "s")
        for vm in ("a", "b"):
            assert state.read(node.of(vm)).image == old.image
            assert (node.of(vm) / "kernel").read_text() == "old"
            assert (node.of(vm) / BASE).samefile(node.images.holding(old.image.digest)[1] / "disk")
        await machines.create(plan("c"))
        assert (node.of("c") / "kernel").read_text() == "new"
    async with node.driver() as machines:
        assert {machine.state for machine in await machines.list()} == {MachineState.STOPPED}
        await machines.delete("a")
        node.images.sweep()
        assert node.images.holding(old.image.digest)[0] == old.image, "its copy stands on it"


async def test_an_image_that_cannot_be_read_keeps_no_node_from_its_work_and_is_told_of(node: Node) -> None:
    named = await built(node.images, "one")
    await node.images.call("other", named.image.digest)
    broken = await built(node.images, "two")
    async with node.driver() as machines:
        assert "damaged" not in (await machines.offer()).facts
        path = node.images.path / broken.image.digest / "image.json"
        path.unlink()
        offer = await machines.offer()
        assert offer.images == ("other",)
        assert str(path) in offer.facts["damaged"]
        await machines.create(plan("a", image="other"))


@pytest.mark.parametrize("at", ["create.begun:before", "create.begun:after", "create.disk:before"])
async def test_an_origin_that_is_deleted_meanwhile_is_named_as_the_cause(node: Node, at: str) -> None:
    await built(node.images, "one")
    machines: QemuMachines

    async def delete(name: str) -> None:
        if name == at and await machines.inspect("a") is not None:
            await machines.delete("a")

    async with node.driver() as machines:
        await machines.create(plan("a"))
        await machines.snapshot("a", "s")
    clone = plan("b", origin=Origin(vm="a", snapshot="s"))
    async with node.driver(delete) as machines:
        with pytest.raises(Refused, match="its origin, machine 'a', was deleted"):
            await machines.create(clone)
        await machines.delete("b")
        assert not node.of("b").exists()


async def test_a_copy_has_only_what_its_image_has(node: Node) -> None:
    """Files that a process of the origin made in its folder are not those of the image."""
    await built(node.images, "one")
    async with node.driver() as machines:
        await machines.create(plan("a"))
        await machines.snapshot("a", "s")
        (node.of("a") / "initrd").write_text("of a guest")
        await machines.create(plan("b", origin=Origin(vm="a", snapshot="s")))
    assert not (node.of("b") / "initrd").exists()
    assert (node.of("b") / "kernel").samefile(node.of("a") / "kernel")
    assert not (node.of("a") / COPY).exists()
