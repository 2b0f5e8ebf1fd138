"""The servers that run for all tests of this worker, started when first asked for."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Self, TypeVar

import pytest
from harness.fork_server import ForkServer
from harness.pace import patience
from shared_server import SharedServer

from hostler import open_ttl_storage
from hostler.drivers.machines.qemu import firewall
from hostler.testing.servers import EtcdCluster, EtcdServer, ServerFailed, ServerMissing
from hostler.testing.ttl_servers import CassandraServer, DynamodbServer, RedisServer, TtlServer

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from pathlib import Path

T = TypeVar("T")


def in_a_loop_of_its_own(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in a thread: the loop of a test may run in this one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


_shared: dict[str, EtcdCluster] = {}
PIDS: set[int] = set()
"""Of the servers that run: they are no test's leftovers."""


def shared_etcd(kind: str) -> EtcdCluster:
    """One server ("etcd") or cluster ("etcd-cluster") for all tests of this worker, started when first asked for."""
    if kind not in _shared:
        cluster = EtcdServer() if kind == "etcd" else EtcdCluster(3)
        try:
            cluster.__enter__()
        except (ServerMissing, ServerFailed) as error:
            pytest.fail(str(error), pytrace=False)
        _shared[kind] = cluster
        PIDS.update(cluster.pid(index) for index in range(len(cluster.endpoints)))
    return _shared[kind]


def empty_etcd(kind: str) -> EtcdCluster:
    """The same, without a key: what an earlier test left is deleted."""
    cluster = shared_etcd(kind)
    everything = json.dumps({"key": "AA==", "range_end": "AA=="}).encode()  # from the first key on
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(f"http://{cluster.endpoints[0]}/v3/kv/deleterange", everything, timeout=30) as answer:
        answer.read()
    return cluster


def stop_etcd(kind: str) -> None:
    """Stop what `shared_etcd` started; the next call starts another one."""
    if cluster := _shared.pop(kind, None):
        PIDS.difference_update(cluster.pid(index) for index in range(len(cluster.endpoints)))
        cluster.stop()


_fork_servers: list[ForkServer] = []


def fork_server() -> ForkServer:
    """The server of this worker that forks `hostler` processes, started when first asked for."""
    if not _fork_servers:
        _fork_servers.append(ForkServer())
        PIDS.add(_fork_servers[0].pid)
    return _fork_servers[0]


def forked() -> set[int]:
    """The processes that this worker's fork server started and that have not ended."""
    return _fork_servers[0].children() if _fork_servers else set()


_ttl_servers: dict[str, TtlServer] = {}


class _CassandraWithTable(CassandraServer):
    """Has keyspace and table before any test uses it: Cassandra may fail for a while after two clients created them."""

    def __enter__(self) -> Self:
        super().__enter__()
        in_a_loop_of_its_own(self._create_table())
        return self

    async def _create_table(self) -> None:
        async with open_ttl_storage(self.url) as storage:
            await storage.get("created")


_shared_cassandra = SharedServer(_CassandraWithTable)


def ttl_server(kind: str) -> TtlServer:
    """A "redis" or "dynamodb" for all tests of this worker, or the "cassandra" of the whole run: leave it as it was."""
    if kind not in _ttl_servers:
        try:
            _ttl_servers[kind] = _shared_one() if kind == "cassandra" else _own_one(kind)
        except (ServerMissing, ServerFailed) as error:
            pytest.fail(str(error), pytrace=False)
    return _ttl_servers[kind]


def _own_one(kind: str) -> TtlServer:
    server = RedisServer() if kind == "redis" else DynamodbServer()
    server.__enter__()
    PIDS.add(server.process.pid)
    return server


def _shared_one() -> TtlServer:
    ports = _shared_cassandra.hold()
    if _shared_cassandra.started is not None:
        PIDS.add(_shared_cassandra.started.process.pid)
    server = CassandraServer()
    server.ports = ports
    return server


async def no_task_left(before: set[asyncio.Task[Any]]) -> None:
    """All tasks that were not there before have ended, or end soon: on a machine that is busy, one may need a while."""
    end = time.monotonic() + patience(10)
    while left := asyncio.all_tasks() - before - {asyncio.current_task()}:
        if time.monotonic() > end:
            break
        await asyncio.sleep(0.01)
    else:
        return
    pytest.fail(f"tasks left behind: {sorted(task.get_name() for task in left)}: {left}", pytrace=False)


def stop_all() -> None:
    """At the end of the run."""
    while _fork_servers:
        _fork_servers.pop().stop()
    while _shared:
        _shared.popitem()[1].stop()
    for kind, server in _ttl_servers.items():
        if kind != "cassandra":
            server.stop()
    _ttl_servers.clear()
    _shared_cassandra.release()


def remove_packet_filters(folder: Path) -> None:
    """Delete the packet filter tables of QEMU nodes below a folder: a node that was killed leaves its own."""
    nft = firewall.find_nft()
    if nft is None or firewall.why_not():
        return
    said = subprocess.run([nft, "list", "ruleset", "inet"], capture_output=True, text=True, check=False).stdout
    below = re.escape(f"{folder}/")
    for name in re.findall(rf'^table inet (hostler_\w+) {{\n\s*comment "[0-9]+ {below}', said, re.MULTILINE):
        subprocess.run([nft, "delete", "table", "inet", name], capture_output=True, check=False)
