"""What an image asks of a machine: memory, and user data that it runs; said when a machine or a lab is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from controller_world import World
from controller_world import play as play_world
from service_scene import ADMIN, ORG, PROJECT, Scene, play

from hostler.drivers.store.memory import MemoryStore
from hostler.engine.placement import image_problems, not_run
from hostler.entry.doctor.records import lab_problems
from hostler.keys.families import COMMAND, MEMBER
from hostler.model.inventory import Capacity
from hostler.model.node import ImageNeeds, Lifecycle, NodeRecord
from hostler.model.vm import MachineState, VmSpec
from hostler.settings import load

CLOUD, SCRIPT = "#cloud-config\npackages: [tree]\n", "#!/bin/sh\ntrue\n"
TINY = {
    "images": ("", "tiny"),
    "image_needs": {"tiny": ImageNeeds(memory_mib=128, default=True, seeding="firmware")},
}
DEBIAN = {
    "images": ("", "debian"),
    "image_needs": {"debian": ImageNeeds(memory_mib=256, default=True, seeding="cloud-init")},
}
ANY: dict[str, Any] = {"images": None}


def node(name: str = "n", **more: Any) -> NodeRecord:
    fields: dict[str, Any] = {"lifecycle": Lifecycle.ON_DUTY, "capacity": Capacity(cpus=8, memory_mib=8192)}
    return NodeRecord(**{"node": name, "registered_at": 0.0, **fields, **more})


@pytest.mark.parametrize(
    ("spec", "nodes", "said"),
    [
        ({"user_data": CLOUD}, [TINY], "the default image has no cloud-init"),
        ({"user_data": CLOUD, "image": "tiny"}, [TINY], "image 'tiny' has no cloud-init"),
        ({"user_data": CLOUD, "image": "tiny"}, [TINY, DEBIAN], "has no cloud-init"),
        ({"user_data": CLOUD}, [TINY, DEBIAN], ""),
        ({"user_data": CLOUD}, [TINY, ANY], ""),
        ({"user_data": SCRIPT}, [TINY], ""),
        ({}, [TINY], ""),
        ({"memory_mib": 64}, [TINY, DEBIAN], "its image needs 128 MiB of memory, and it has 64"),
        ({"image": "gone"}, [TINY, DEBIAN], "no node has the image 'gone'"),
        ({"image": "gone"}, [TINY, ANY], ""),
        ({"image": "gone"}, [TINY | {"lifecycle": Lifecycle.DECOMMISSIONED}], ""),
        ({"image": "gone"}, [], ""),
    ],
)
def test_what_is_wrong_on_every_node_that_could_have_it_is_said(
    spec: dict[str, Any], nodes: list[dict[str, Any]], said: str
) -> None:
    wanted = VmSpec(**{"cpus": 1, "memory_mib": 512, **spec})
    found = image_problems(wanted, [node(**fields) for fields in nodes])
    assert [said in problem for problem in found] == ([True] if said else [])


def test_an_image_that_takes_no_user_data_is_said() -> None:
    bare = {"images": ("disk",), "image_needs": {"disk": ImageNeeds(seeding="none")}}
    spec = VmSpec(cpus=1, memory_mib=64, image="disk", user_data=SCRIPT)
    assert "image 'disk' takes none" in not_run(spec, [node(**bare)])


def test_a_machine_whose_user_data_is_not_run_says_so() -> None:
    async def story(scene: Scene) -> None:
        await scene.node(**TINY)
        assert (await scene.made("good", spec=VmSpec(cpus=1, memory_mib=64, user_data=SCRIPT))).warnings == ()
        made = await scene.made("bad", spec=VmSpec(cpus=1, memory_mib=64, user_data=CLOUD))
        assert "has no cloud-init" in made.warnings[0]
        await scene.node("local-2", **DEBIAN)
        assert (await scene.vms.get(ADMIN, ORG, PROJECT, "bad")).warnings == ()  # it may go there
        await scene.seen(made)
        assert (await scene.vms.get(ADMIN, ORG, PROJECT, "bad")).warnings == made.warnings

    play(story)


def test_the_decision_that_places_it_says_so() -> None:
    async def story(world: World) -> None:
        await world.leader()
        await world.node("n1", **TINY)
        await world.create("a", spec=VmSpec(cpus=1, memory_mib=128, user_data=CLOUD))
        await world.until_state("a", MachineState.RUNNING)
        command = await COMMAND.get(world.raw, node="n1", vm="a")
        assert command is not None
        assert [reason.why for reason in command.value.reasons if reason.subject == "user_data"]

    play_world(story)


async def test_the_doctor_names_labs_that_cannot_be_as_they_were_written(tmp_path: Path) -> None:
    (tmp_path / "two.yaml").write_text(CLOUD)
    (tmp_path / "labs.toml").write_text(
        '[labs.1]\nmemory = "64M"\n[labs.2]\ncloud_init = "two.yaml"\n[labs.3]\nimage = "gone"\n[labs.4]\n'
    )
    settings = load({"data": tmp_path, "labs": tmp_path / "labs.toml"}, environ={}, cwd=tmp_path)
    async with MemoryStore() as store:
        assert await lab_problems(store, settings) == []
        await store.txn([], [MEMBER.put(node(**TINY), node="n")])
        found = await lab_problems(store, settings)
    assert [finding.what.partition(":")[0] for finding in found] == ["lab 1", "lab 2", "lab 3"]
    assert all(finding.next for finding in found)
