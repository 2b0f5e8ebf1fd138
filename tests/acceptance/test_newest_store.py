"""One store is in service: what happens to old copies, restored backups and emptied stores, with real processes."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest
from up_process import HostlerProcess, hostler, well

from hostler import open_store
from hostler.keys.families import FENCE, HANDLE, MEMBER, MOVED, USER

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hostler.model.vm import VmHandle
    from hostler.testing.servers import EtcdServer

TIMES = ("--leadership-ttl", 4, "--node-ttl", 6, "--fencing-time", 12)


class Processes:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.all: list[HostlerProcess] = []

    def start(self, *arguments: object) -> HostlerProcess:
        self.all.append(HostlerProcess(*arguments, folder=self.folder))
        return self.all[-1]

    def up(self, *more: object) -> HostlerProcess:
        return self.start("up", "--data", self.folder / "d", "--listen", "127.0.0.1:0", *TIMES, *more)

    def replica(self, url: str) -> HostlerProcess:
        own = ("--data", self.folder / "replica", "--listen", "127.0.0.1:0")
        return self.start("replica", "--store", url, *own, *TIMES[:2])

    def agent(self, url: str) -> HostlerProcess:
        own = ("--node", "local-1", "--rack", "local", "--data", self.folder / "d")
        return self.start("agent", "--store", url, *own, *TIMES[2:])


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    started = Processes(tmp_path)
    try:
        yield started
    finally:
        for process in started.all:
            process.kill()


async def _ended(process: HostlerProcess) -> None:
    process.signal(signal.SIGTERM)
    assert await process.ends() == 0


async def _handles(url: str) -> dict[str, VmHandle]:
    async with open_store(url) as store:
        return {entry.value.id: entry.value for entry in (await HANDLE.list(store)).entries}


async def test_up_on_the_store_that_was_copied_away_touches_no_machine(processes: Processes, etcd: EtcdServer) -> None:
    folder = processes.folder / "d"
    old, new = f"sqlite://{folder}/hostler.db", etcd.url
    up = processes.up()
    await up.url()
    await well("vm", "create", "before", "--wait", HOSTLER_DATA=str(folder))
    refused = await hostler("store", "copy", old, new)
    assert refused.code != 0
    assert "stop every up, replica and agent on it first" in refused.err
    await _ended(up)
    copied = await well("store", "copy", old, new)
    assert f"{new} is now in service" in copied.out
    # The cluster works on the same machines, and makes another one.
    replica, agent = processes.replica(new), processes.agent(new)
    server = {
        "HOSTLER_SERVER": await replica.url("serving"),
        "HOSTLER_TOKEN": (folder / "admin.token").read_text().strip(),
    }
    await agent.says("registered\n")
    await well("vm", "create", "younger", "--wait", **server)
    known = await _handles(new)
    assert len(known) == 2
    await _ended(agent)
    # The habit: `hostler up` on the folder.
    habit = await hostler("up", "--data", folder, "--listen", "127.0.0.1:0", *TIMES)
    assert habit.code != 0
    assert f"were moved to {new}" in habit.err
    assert f"hostler store activate --store {old}" in habit.err
    # Nor without the mark, for the node remembers who was in command.
    await well("store", "delete", MOVED.fill(), "--store", old)
    up = processes.up()
    await up.says("not ready yet: node local-1 is not on duty: the store is older (epoch 1)")
    up.kill()
    await processes.agent(new).says("registered\n")
    after = await _handles(new)
    assert {id_: handle.machine for id_, handle in after.items()} == {
        id_: handle.machine for id_, handle in known.items()
    }
    assert "destroyed" not in (folder / "log" / "hostler.log").read_text()


async def test_a_restore_gives_no_fence_out_twice_and_touches_no_machine(processes: Processes) -> None:
    folder, backup = processes.folder / "d", processes.folder / "backup.gz"
    store = f"sqlite://{folder}/hostler.db"
    data = {"HOSTLER_DATA": str(folder)}
    up = processes.up()
    await up.url()
    await well("vm", "create", "before", "--wait", **data)
    await well("store", "backup", backup, "--store", store)
    await well("vm", "create", "younger", "--wait", **data)
    running = await hostler("store", "restore", backup, "--replace", "--yes", "--store", store)
    assert running.code != 0
    assert "stop every up, replica and agent on it first" in running.err
    await _ended(up)
    for _ in range(2):
        up = processes.up()
        await up.url()
        await _ended(up)
    async with open_store(store) as opened:
        given_out = await FENCE.get(opened, n=1)
        revision = (await opened.status()).revision
    assert given_out is not None
    assert given_out.value == 3
    machines = {path: path.read_bytes() for path in (folder / "machines").rglob("*") if path.is_file()}
    restored = await well("store", "restore", backup, "--replace", "--yes", "--store", store)
    async with open_store(store) as opened:
        raised = await FENCE.get(opened, n=1)
    assert raised is not None
    assert raised.value > 1_000_003
    assert f"the next leader has a fence above {raised.value:,}" in restored.out
    assert {path: path.read_bytes() for path in (folder / "machines").rglob("*") if path.is_file()} == machines
    saved = next(processes.folder.glob("backup.gz.before-restore-*"))
    assert len(await _handles(store)) == 1
    async with open_store(store) as opened:
        assert (await opened.status()).revision > revision
        member = await MEMBER.get(opened, node="local-1")
    assert member is not None
    assert member.value.awaited
    up = processes.up()
    await up.url()
    assert (await well("leader", "-o", "json", **data)).json["leader"]["fence"] == raised.value + 1
    await _ended(up)
    # What was there is not lost.
    await well("store", "restore", saved, "--replace", "--yes", "--store", store)
    assert len(await _handles(store)) == 2


async def test_replicas_on_an_emptied_store_neither_lead_nor_make_accounts(
    processes: Processes, etcd: EtcdServer
) -> None:
    first = processes.replica(etcd.url)
    await first.says("leading with fence 1")
    second = processes.replica(etcd.url)
    await second.says("leads with fence 1")
    async with open_store(etcd.url) as store:
        for kv in (await store.range("")).items:
            await store.delete(kv.key)
        for replica in (first, second):
            assert await replica.ends() == 1
        again = await hostler("replica", "--store", etcd.url, "--data", processes.folder / "replica", *TIMES[:2])
        assert again.code != 0
        assert "was emptied, or it is a different store" in again.err
        assert not (await store.range(USER.prefix())).items
        assert await FENCE.get(store, n=1) is None
        accepted = processes.start(
            *("replica", "--store", etcd.url, "--data", processes.folder / "replica", "--accept-cluster"),
            *("--listen", "127.0.0.1:0", *TIMES[:2]),
        )
        await accepted.says("leading with fence 1")
