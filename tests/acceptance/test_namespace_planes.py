"""Whole control planes side by side in one etcd, with racks, workloads and machines of the same names.

One is production. Two are tests, each in a unique instance: those are `up`, for such an instance is one process's own.
One is a test in the standard namespace, of two processes.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from up_process import HostlerProcess

from hostler import Client, open_store
from hostler.errors import Forbidden
from hostler.keys.families import (
    ACTUAL,
    AUDIT,
    BLADE,
    COMMAND,
    HANDLE,
    INSTANCE,
    LEADER,
    MEMBER,
    PDU,
    RACK,
    REGION,
    TARGET,
    TOR,
    TRACE,
    USER,
    VM,
    WORKLOAD,
    ZONE,
    find,
)
from hostler.keys.namespace import STANDARD, TEST_ROOT, Namespace
from hostler.model.inventory_api import HardwareSet, InventoryDocument
from hostler.model.vm import VmSpec
from hostler.model.vm_api import VmCreate
from hostler.model.workload_api import WorkloadApply
from hostler.testing.servers import EtcdServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from hostler.keys.key import Key

WITHIN = 150.0
PRODUCTION, ONE, OTHER, TEST = "production", "one", "other", "test"
TEST_OPTIONS = {"HOSTLER_USE_TEST_NAMESPACE": "true"}
UNIQUE = TEST_OPTIONS | {"HOSTLER_USE_UNIQUE_INSTANCE": "true"}
CLEAN = TEST_OPTIONS | {"HOSTLER_PRE_CLEAN_STORE": "true"}
TIMES = ("--node-ttl", 20, "--fencing-time", 40)
"""Nobody shall be taken for silent because two cores are busy."""
SPEC = VmSpec(cpus=1, memory_mib=64)
HARD: tuple[Key[Any], ...] = (
    *(REGION, ZONE, RACK, PDU, TOR, BLADE, WORKLOAD, INSTANCE, TARGET, ACTUAL),
    *(VM, HANDLE, COMMAND, MEMBER),
)
KINDS = (*HARD, USER, AUDIT)
"""What every plane has, and nobody changes while nothing is asked for."""


def racks(plane: str) -> InventoryDocument:
    """The same names everywhere; it says whose it is."""
    rack = {
        "name": "local",
        "location": f"hall of {plane}",
        "pdus": [{"name": "pdu1", "ports": 4}],
        "tors": [{"name": "tor1", "ports": 4}],
        "blades": {"count": 2, "prefix": "", "cpus": 8, "memory": "8GiB"},
    }
    return InventoryDocument(regions=({"name": "eu", "zones": [{"name": "eu-1", "racks": [rack]}]},))


class Plane:
    """The processes of one, and what is asked of it."""

    def __init__(self, name: str, url: str, folder: Path) -> None:
        self.name, self._url, self._folder = name, url, folder / name
        self._folder.mkdir(exist_ok=True)
        self.processes: list[HostlerProcess] = []

    def start(self, command: str, *arguments: object, **environ: str) -> HostlerProcess:
        data = self._folder / (command if command != "agent" else "node")
        words = (command, *arguments, "--store", self._url, "--data", data, *TIMES)
        self.processes.append(HostlerProcess(*words, folder=self._folder, environ=environ))
        return self.processes[-1]

    def start_up(self, **environ: str) -> None:
        self.start("up", "--nodes", 1, "--listen", "127.0.0.1:0", **environ)

    def start_pair(self, **environ: str) -> None:
        self.start("replica", "--listen", "127.0.0.1:0", **environ)
        self.start("agent", "--node", "local-1", **environ)

    def kill(self) -> None:
        while self.processes:
            self.processes.pop().kill()

    async def client(self, token: str = "") -> Client:
        """As the administrator of this plane, unless another token is given."""
        process = self.processes[0]
        word, last = ("ready", "ready http") if process.log.name.startswith("up") else ("serving", "kept in ")
        await process.says(last, WITHIN)  # the token is there by then
        return Client(await process.url(word), token or self.token())

    def token(self) -> str:
        (file,) = self._folder.glob("*/admin.token")
        return file.read_text().strip()

    async def fill(self) -> dict[str, Any]:
        """With what all others have, too; what came of it."""
        async with await self.client() as client:
            await client.inventory.load(racks(self.name))
            await client.workloads.apply(WorkloadApply(name="web", instances=2, spec=SPEC, labels={"of": self.name}))
            made = await client.vms.create("acme", "db", VmCreate(name="db", spec=SPEC, labels={"of": self.name}))
            await client.workloads.wait("web", settled=True, within=WITHIN)
            await client.vms.wait("acme", "db", made.id, settled=True, within=WITHIN)
        return await self.seen()

    async def seen(self) -> dict[str, Any]:
        """All that one can see of it."""
        async with await self.client() as client:
            db = [vm async for vm in client.vms.list("acme", "db")]
            web = [vm async for vm in client.vms.list("workloads", "web")]
            return {
                "regions": [(region.name, region.enabled) for region in (await client.inventory.regions()).items],
                "racks": [(rack.location, rack.on_duty, rack.vms) async for rack in client.racks.list()],
                "workloads": [(load.name, load.labels, load.instances) async for load in client.workloads.list()],
                "nodes": [node.node async for node in client.nodes.list()],
                "labels": {vm.labels.get("of") for vm in (*db, *web)},
                "machines": {vm.id for vm in (*db, *web)},
                "phases": {vm.phase.value for vm in (*db, *web)},
                "traces": {trace.id async for trace in client.decisions.list()},
            }


class Planes:
    """All of them, and the store as it stands."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.all = {name: Plane(name, url, folder) for name in (PRODUCTION, ONE, OTHER, TEST)}

    def start(self) -> None:
        self.all[PRODUCTION].start_pair()
        self.all[ONE].start_up(**UNIQUE)
        self.all[OTHER].start_up(**UNIQUE)
        self.all[TEST].start_pair(**TEST_OPTIONS)

    async def fill(self) -> dict[str, dict[str, Any]]:
        found = await asyncio.gather(*(plane.fill() for plane in self.all.values()))
        return dict(zip(self.all, found, strict=True))

    async def stored(self) -> dict[str | None, dict[str, bytes]]:
        """By namespace: keys as their owners have them, and values."""
        found: dict[str | None, dict[str, bytes]] = {}
        async with open_store(self.url) as store:
            for kv in (await store.range("")).items:
                name = kv.key.removeprefix(TEST_ROOT).partition("/")[0] if kv.key.startswith(TEST_ROOT) else None
                key = Namespace(name).production(kv.key)
                assert key is not None
                found.setdefault(name, {})[key] = kv.value
        return found


@pytest.fixture
async def planes(tmp_path: Path) -> AsyncIterator[Planes]:
    with EtcdServer() as etcd:
        planes = Planes(etcd.url, tmp_path)
        try:
            planes.start()
            yield planes
        finally:
            for plane in planes.all.values():
                plane.kill()


def of_kinds(keys: dict[str, bytes], *kinds: Key[Any]) -> dict[str, bytes]:
    """Those of these families."""
    return {key: value for key, value in keys.items() if (found := find(key)) is not None and found[0] in kinds}


async def check_unchanged(plane: Plane, before: dict[str, Any]) -> None:
    """It is as it was; whoever leads it may have thought of something since."""
    now = await plane.seen()
    assert now | {"traces": before["traces"]} == before
    assert before["traces"] <= now["traces"]


async def test_planes_of_one_store_never_see_each_other_and_pre_clean_leaves_all_but_its_own_alone(
    planes: Planes,
) -> None:
    seen = await planes.fill()
    for name, found in seen.items():
        assert (found["regions"], found["racks"]) == ([("eu", True)], [(f"hall of {name}", 1, 3)])
        assert found["workloads"] == [("web", {"of": name}, 2)]
        assert (found["nodes"], found["labels"], found["phases"]) == (["local-1"], {name}, {"running"})
        assert (len(found["machines"]), bool(found["traces"])) == (3, True)
    for what in ("machines", "traces"):
        assert len(set().union(*(found[what] for found in seen.values()))) == sum(len(f[what]) for f in seen.values())
    async with await planes.all[ONE].client(planes.all[PRODUCTION].token()) as stranger:
        with pytest.raises(Forbidden):
            await stranger.racks.list()

    # In the store, too, each has all of it once.
    stored = await planes.stored()
    one, other = (name for name in stored if name not in (None, STANDARD))
    for keys in stored.values():
        count = {kind: len(of_kinds(keys, kind)) for kind in (*KINDS, TRACE, LEADER)}
        assert all(count.values()), count
        assert [count[kind] for kind in (REGION, ZONE, RACK, PDU, TOR, BLADE)] == [1, 1, 1, 1, 1, 2]
        assert [count[kind] for kind in (WORKLOAD, INSTANCE, TARGET, ACTUAL, VM, COMMAND)] == [1, 2, 2, 2, 3, 3]

    # What is taken out of use, or deleted, in one stays as it is in the others.
    async with await planes.all[ONE].client() as client:
        await client.inventory.set_region("eu", HardwareSet(enabled=False))
        await client.workloads.delete("web")
        await client.workloads.wait("web", gone=True, within=WITHIN)
    mine = await planes.all[ONE].seen()
    assert (mine["regions"], mine["racks"], mine["workloads"]) == ([("eu", False)], [("hall of one", 0, 1)], [])
    for name in (PRODUCTION, OTHER, TEST):
        await check_unchanged(planes.all[name], seen[name])

    # A test that cleans first finds nothing of the one before; nobody else misses anything.
    planes.all[TEST].kill()
    before = await planes.stored()
    planes.all[TEST].start("replica", "--listen", "127.0.0.1:0", **CLEAN)
    fresh = await planes.all[TEST].seen()
    assert not fresh.pop("traces") & seen[TEST]["traces"]
    assert not any(fresh.values()), fresh
    after = await planes.stored()
    assert not of_kinds(after[STANDARD], *HARD), "but for the new administrator there is nothing"
    for name in (None, one, other):
        assert of_kinds(after[name], *KINDS) == of_kinds(before[name], *KINDS)
        assert of_kinds(before[name], TRACE).items() <= of_kinds(after[name], TRACE).items()
    for name in (PRODUCTION, OTHER):
        await check_unchanged(planes.all[name], seen[name])
