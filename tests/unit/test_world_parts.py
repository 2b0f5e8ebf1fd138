"""The simulator runs the product: the same composition root with other ports, so the same controllers in one order."""

from __future__ import annotations

import ast
import random
from pathlib import Path

from hostler.drivers.inbox.memory import MemoryLabRecords, MemoryRedis
from hostler.drivers.store.etcd import EtcdStore
from hostler.drivers.store.memory import MemoryStore
from hostler.engine.control_plane import ControlPlane, LeaderPorts
from hostler.engine.runtime.env import Env
from hostler.entry.control_plane import ControlPlaneProcess
from hostler.kit.clock import SystemClock
from hostler.settings import load
from hostler.sim.world import Factories, WorldConfig
from hostler.sim.world.config import config_of
from hostler.sim.world.replica import PORTS

SOURCE = Path(__file__).parents[2] / "src" / "hostler"
NAMES = ["brake", "machines", "nodes", "hardware flows", "workloads", "janitor", "labs", "deployments"]


async def test_a_leader_of_a_world_has_the_controllers_of_a_real_one(tmp_path: Path) -> None:
    async with MemoryStore() as store:
        process = ControlPlaneProcess(store, load(environ={"HOME": str(tmp_path)}, cwd=tmp_path))
        assert type(process.graph) is Factories().plane is ControlPlane
        real = process.controllers()
        assert [each.name for each in real] == ["measures", *NAMES]
        simulated = in_a_world(store, WorldConfig(slices=True)).controllers(LeaderPorts())
        assert [type(each) for each in simulated] == [type(each) for each in real[1:]], "nothing is called there"
        without = in_a_world(store, WorldConfig()).controllers(LeaderPorts())
        assert [each.name for each in without] == NAMES[:-1]
        board = LeaderPorts(lab_records=MemoryLabRecords(MemoryRedis()))
        shown = in_a_world(store, WorldConfig(slices=True)).controllers(board)
        assert [each.name for each in shown][-2] == "lab-board"


def in_a_world(store: MemoryStore, plan: WorldConfig) -> ControlPlane:
    """The control plane of a replica of a world."""
    env = Env(SystemClock(), random.Random(1), new_id=lambda: "id", new_secret=lambda: "secret")
    return Factories().plane(store, env, PORTS, config_of(plan))


def test_nothing_but_the_composition_root_builds_a_service_or_a_controller() -> None:
    """Except what is made for one call."""
    root = SOURCE / "engine" / "control_plane.py"
    built = called(root, constructors(root)) - {"ControllerEnv", "Limits", "RetentionLimits", "Rules", "Tracer"}
    assert {"VmService", "MachineController", "LabWorker", "Agent", "View", "Writer"} <= built
    elsewhere = {
        (str(path.relative_to(SOURCE)), name)
        for path in SOURCE.rglob("*.py")
        if path != root and "drivers" not in path.relative_to(SOURCE).parts  # drivers cannot import the engine
        for name in called(path, built)
    }
    assert elsewhere == {
        ("engine/invocation/metrics_collector.py", "Collector"),
        ("entry/doctor/examination.py", "View"),
    }


def constructors(path: Path) -> set[str]:
    """The classes of the engine that a module imports."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    engine = [node for node in imports if (node.module or "").startswith("hostler.engine.")]
    return {alias.name for node in engine for alias in node.names if alias.name[0].isupper()}


def called(path: Path, names: set[str]) -> set[str]:
    """Those of the names that a module calls."""
    text = path.read_text(encoding="utf-8")
    if not any(f"{name}(" in text for name in names):
        return set()
    calls = [node.func for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    return {func.id for func in calls if isinstance(func, ast.Name)} & names


def test_a_leader_compacts_etcd_unless_the_settings_leave_that_to_others(tmp_path: Path) -> None:
    for store_history, compacts in (("3600", True), ("0", False)):
        environ = {"HOME": str(tmp_path), "HOSTLER_STORE_HISTORY": store_history}
        process = ControlPlaneProcess(EtcdStore(["127.0.0.1:1"]), load(environ=environ, cwd=tmp_path))
        assert ("compaction" in [each.name for each in process.controllers()]) is compacts
