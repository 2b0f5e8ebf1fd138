"""A story in which a little of everything happens, told as one line: run in processes of their own."""

from __future__ import annotations

import hashlib
import sys
from typing import TYPE_CHECKING

from hostler.model.inventory_api import Drain
from hostler.model.lab import LabRequest
from hostler.model.node import DrainMode
from hostler.model.vm import OnNodeLoss, VmSpec
from hostler.model.vm_api import VmUpdate
from hostler.model.workload_api import WorkloadApply
from hostler.sim.hardware import Replace
from hostler.sim.world import run_world

from .world_scene import broken, make, plan

if TYPE_CHECKING:
    from hostler.ports.store import Event
    from hostler.sim.world import World

FAULTS = (
    ("power", "r1/pdu1", {}),
    ("provider_errors", "", {"chance": 0.2}),
    ("network", "r2/tor1", {}),
    ("answer_lost", "", {"chance": 0.2}),
    ("partition", "", {"names": ["replica-1", "r1"]}),
    ("leader_paused", "", {}),
    ("clock_rate", "replica-2", {"rate": 0.9}),
    ("store_slow", "", {"chance": 0.5}),
    ("store_unavailable", "", {}),
    ("blade_crash", "r2/b1", {}),
    ("agent_slow", "", {}),
)


def told(seed: int, agents: str) -> str:
    """What happened: the digests of the log and of everything that was ever written, and how many steps it took."""
    return run_world(
        plan(latency=0.02, boot_time=1.0, labs=True, power=True, replicas=3, agents=agents), _tale, seed=seed
    )


async def _tale(world: World) -> str:
    written = hashlib.sha256()

    def heard(event: Event) -> None:
        written.update(f"{event.type} {event.kv.key} {event.kv.mod_revision} ".encode() + event.kv.value)

    world.chronicle.listen(heard)
    await make(world, *"abcdef")
    await make(world, *"ghi", loss=OnNodeLoss.WAIT)
    for user in ("ada", "bob", "cy"):
        world.lab_redis.push("provision", LabRequest(webuserid=user, lab_id=5).encode())
    shop = WorkloadApply(
        name="shop",
        instances=5,
        spec=VmSpec(cpus=1, memory_mib=256),
        labels={"tier": "front", "x": "y"},
        on_node_loss=OnNodeLoss.RECREATE,
    )
    await world.ask(lambda doors: doors.workloads.apply(doors.request, shop))
    for number, (name, on, fields) in enumerate(FAULTS):
        broken(world, name, on, **fields, **{"for": 25})
        await world.sleep(30)
        if number == 1:
            await world.ask(lambda d: d.nodes.drain(d.request, "r2-b3", Drain(mode=DrainMode.MOVE)))
        if number == 3:
            await world.ask(lambda d: d.vms.update(d.request, "acme", "shop", "a", VmUpdate(cpus=2)))
    world.apply(Replace("r1/b2"))
    await world.sleep(60)
    log = world.log.lines()
    digests = f"{hashlib.sha256(log).hexdigest()} {written.hexdigest()}"
    return f"{digests} {len(world.log)} entries, {world.loop.steps} steps, {world.loop.time():.6f} s"


if __name__ == "__main__":
    for given in sys.argv[2:]:
        print(told(int(given), sys.argv[1]))
