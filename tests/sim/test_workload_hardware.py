"""A workload that asks for hardware, on a control plane whose inventory says which blade has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.engine.inventory.inventory_file import read_inventory
from hostler.engine.request import HOSTLER
from hostler.engine.workloads.workload_file import read_workload
from hostler.keys.families import TARGET
from hostler.sim.world import run_world

from .world_scene import plan

if TYPE_CHECKING:
    from hostler.sim.world import World

RACK = read_inventory("""
racks:
  - name: r1
    pdus: [{name: pdu1, ports: 8}]
    tors: [{name: tor1, ports: 8}]
    blades:
      - {name: b1, cpus: 16, memory: 64GiB, arch: X64, accelerators: {gpu: 2}, volumes: [scratch]}
      - {name: b2, cpus: 16, memory: 64GiB, arch: arm64, accelerators: {gpu: 2}, volumes: [scratch]}
      - {name: b3, cpus: 16, memory: 64GiB, arch: X64, accelerators: {gpu: 1}}
""")
TRAIN = "{name: train, instances: 3, cpus: 1, memory: 1GiB, arch: x86_64, accelerators: {gpu: 1}, volumes: [scratch]}"


def test_i47_a_workload_runs_where_its_hardware_is_and_each_other_node_says_why_not() -> None:
    async def story(world: World) -> None:
        await world.sleep(30)
        await world.ask(lambda d: d.workloads.apply(d.request, read_workload(TRAIN)))
        await world.sleep(60)
        targets = [entry.value for entry in (await TARGET.list(world.store)).entries]
        assert sorted(str(target.node) for target in targets) == ["None", "r1-b1", "r1-b1"]
        (waits,) = [target for target in targets if target.node is None]
        assert {reason.subject: reason.why for reason in waits.reasons} == {
            "r1-b1": "0 of 1 accelerator of kind gpu free",
            "r1-b2": "not of architecture x86_64",
            "r1-b3": "without volume scratch",
        }
        shown = await world.ask(lambda d: d.workloads.get(HOSTLER, "train"))
        assert (shown.spec.accelerators, shown.spec.volumes) == ({"gpu": 1}, ("scratch",))

    run_world(plan(inventory=RACK), story, seed=3)
