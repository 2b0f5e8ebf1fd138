"""Kill -9 at every write of a migration: taken up again it ends, each machine comes once, and none comes back."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import running

import hostler
from hostler.keys.families import CLUSTER, EPOCH, HANDLE, LOCK, MIGRATION, MOVED, NAME, VM
from hostler.model.vm import LockInfo, MachineState, VirtualMachine, VmHandle, VmSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.fork_server import ForkedProcess

    from hostler.testing.servers import EtcdCluster

KILLED = -9
COUNT = 4
WRITES = COUNT + 5
"""The id in the file, its mark, the beginning, one for each machine, the end, the mark again."""
ALL = {f"vm-{number}" for number in range(COUNT)}


class Mover:
    """Processes that move machines, one at a time, forked from a warm one."""

    def __init__(self, process: ForkedProcess) -> None:
        self._process = process

    def move(self, old: str, new: str, **more: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"old": old, "new": new, **more}) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer


@pytest.fixture(scope="module")
def mover() -> Iterator[Mover]:
    script = Path(__file__).with_name("migrating_process.py")
    with running.fork_server().start(
        [], script=script, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield Mover(process)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(20) == 0


@pytest.fixture
async def state(tmp_path: Path) -> Path:
    """A state file with machines, their handles, and a lock."""
    path = tmp_path / "made" / "state.json"
    path.parent.mkdir()
    async with hostler.open_store(f"file://{path}") as store:
        for number in range(COUNT):
            vm = VirtualMachine(
                id=f"vm-{number}",
                name=f"name-{number}",
                org="acme",
                project=f"p{number % 2}",
                spec=VmSpec(cpus=1, memory_mib=64),
                created_at=1.0,
            )
            handle = VmHandle(id=vm.id, node="local-1", state=MachineState.RUNNING, seen_at=1.0)
            parts = {"org": vm.org, "project": vm.project, "vm": vm.id}
            lock = LOCK.put(LockInfo(timestamp=1, node_id="n"), **parts)  # type: ignore[arg-type]
            await store.txn([], [VM.put(vm, **parts), HANDLE.put(handle, **parts), lock])  # type: ignore[arg-type]
    return path


def copied(state: Path, to: Path) -> str:
    """A file of its own for one round: the migration writes the file's id into it."""
    to.mkdir()
    for path in state.parent.iterdir():
        shutil.copy(path, to / path.name)
    return f"file://{to / state.name}"


async def whole(new: str) -> set[str]:
    """The machines in the cluster: each with its handle and its name, nothing else with either, and no lock."""
    async with hostler.open_store(new) as store:
        machines = {entry.value.id for entry in (await VM.list(store)).entries}
        assert {entry.value.id for entry in (await HANDLE.list(store)).entries} == machines
        assert {entry.value for entry in (await NAME.list(store)).entries} == machines
        assert (await LOCK.list(store)).entries == ()
        return machines


async def delete_all(new: str) -> None:
    """As the leader deletes: with name and handle."""
    async with hostler.open_store(new) as store:
        for entry in (await VM.list(store)).entries:
            name = NAME.delete(org=entry.parts["org"], project=entry.parts["project"], name=entry.value.name)
            await store.txn([], [VM.delete(**entry.parts), HANDLE.delete(**entry.parts), name])


async def clean(new: str) -> None:
    async with hostler.open_store(new) as store:
        for prefix in (VM.prefix(), HANDLE.prefix(), NAME.prefix(), MIGRATION.prefix(), CLUSTER.fill(), EPOCH.prefix()):
            await store.delete_prefix(prefix)
        assert (await store.range("/", limit=1)).items == ()


async def round_of(mover: Mover, old: str, new: str, nth: int, when: str) -> None:
    """Killed at a write; what has come is deleted in the cluster; taken up again, twice."""
    killed = mover.move(old, new, nth=nth, when=when)
    assert killed == {"ended": KILLED, "said": ""}
    arrived = await whole(new)
    assert len(arrived) == min(COUNT, max(0, nth - 3 if when == "after" else nth - 4))
    await delete_all(new)
    again = mover.move(old, new)
    assert again["ended"] == 0
    assert await whole(new) == ALL - arrived
    assert "before" in mover.move(old, new)["said"]
    assert await whole(new) == ALL - arrived
    async with hostler.open_store(old) as store:
        mark = await MOVED.get(store)
        assert mark is not None
        assert mark.value.finished_at is not None


async def test_killed_at_any_write_nothing_is_lost_and_nothing_deleted_comes_back(
    mover: Mover, state: Path, tmp_path: Path
) -> None:
    new = f"sqlite://{tmp_path}/cluster.db"
    for nth in range(1, WRITES + 1):
        for when in ("before", "after"):
            await round_of(mover, copied(state, tmp_path / f"{nth}-{when}"), new, nth, when)
            await clean(new)
    # No write is left out: one more than there are is never reached.
    done = mover.move(copied(state, tmp_path / "whole"), new, nth=WRITES + 1, when="before")
    assert done == {"ended": 0, "said": f"{COUNT} machines were moved into the cluster"}


async def test_killed_again_and_again_it_still_comes_to_its_end(mover: Mover, state: Path, tmp_path: Path) -> None:
    """Each run gets one write further, or none: killed before and after its first write, in turn."""
    old, new = copied(state, tmp_path / "again"), f"sqlite://{tmp_path}/again.db"
    runs = 0
    while mover.move(old, new, nth=1, when="before" if runs % 2 else "after")["ended"] == KILLED:
        runs += 1
        assert runs <= 2 * WRITES
    assert runs == 2 * WRITES - 1
    assert await whole(new) == ALL


@pytest.mark.parametrize("at", [(3, "after"), (5, "before"), (5, "after"), (WRITES, "before")])
async def test_the_same_into_etcd(
    mover: Mover, state: Path, tmp_path: Path, etcd: EtcdCluster, at: tuple[int, str]
) -> None:
    await round_of(mover, copied(state, tmp_path / "etcd"), etcd.url, *at)
    await clean(etcd.url)  # and nothing else is there
