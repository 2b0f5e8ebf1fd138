"""The simulator runs the product: the same parts, in the same order."""

from __future__ import annotations

import random
from pathlib import Path

from hostler.drivers.inbox.memory import MemoryLabRecords, MemoryRedis
from hostler.drivers.store.etcd import EtcdStore
from hostler.drivers.store.memory import MemoryStore
from hostler.entry.control_plane import ControlPlaneProcess
from hostler.kit.clock import SystemClock
from hostler.settings import load
from hostler.sim.world import Factories, Making, WorldConfig


async def test_a_leader_of_a_world_has_the_controllers_of_a_real_one(tmp_path: Path) -> None:
    async with MemoryStore() as store:
        plane = ControlPlaneProcess(store, load(environ={"HOME": str(tmp_path)}, cwd=tmp_path))
        real = plane.controllers()
        making = Making(
            plan=WorldConfig(slices=True),
            store=store,
            clock=SystemClock(),
            rng=random.Random(1),
            new_id=lambda: "id",
            tell=lambda _: None,
        )
        simulated = Factories().controllers(making, plane.view)
        names = ["brake", "machines", "nodes", "hardware flows", "workloads", "janitor", "labs", "deployments"]
        assert [each.name for each in real] == ["measures", *names]
        assert [type(each) for each in simulated] == [type(each) for each in real[1:]], "nothing is called there"
        without = Factories().controllers(Making(**{**making.__dict__, "plan": WorldConfig()}), plane.view)
        assert [each.name for each in without] == [name for name in names if name != "deployments"]
        shown = Factories().controllers(
            Making(**{**making.__dict__, "board": MemoryLabRecords(MemoryRedis())}), plane.view
        )
        assert [each.name for each in shown][-2] == "lab-board"


def test_a_leader_compacts_etcd_unless_the_settings_leave_that_to_others(tmp_path: Path) -> None:
    for store_history, compacts in (("3600", True), ("0", False)):
        environ = {"HOME": str(tmp_path), "HOSTLER_STORE_HISTORY": store_history}
        plane = ControlPlaneProcess(EtcdStore(["127.0.0.1:1"]), load(environ=environ, cwd=tmp_path))
        assert ("compaction" in [each.name for each in plane.controllers()]) is compacts
