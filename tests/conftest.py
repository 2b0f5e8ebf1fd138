"""What every test stands on: servers that are shared, and the check that nothing is left behind."""

from __future__ import annotations

import asyncio
import gc
import inspect
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest

pytest.register_assert_rewrite("hostler.testing.store", "hostler.testing.ttl")

from shared_server import SharedServer  # noqa: E402

from hostler.testing.servers import EtcdCluster, EtcdServer, ServerFailed, ServerMissing  # noqa: E402
from hostler.testing.ttl_servers import CassandraServer, DynamodbServer, RedisServer, TtlServer  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

T = TypeVar("T")

# A run that was started in the background ignores Ctrl-C, and would hand that down to the programs it tests.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Servers of the session: they outlive the test that asked for them first.
_shared: dict[str, EtcdCluster] = {}
_shared_pids: set[int] = set()


def shared_etcd(kind: str) -> EtcdCluster:
    """One server ("etcd") or cluster ("etcd-cluster") for all tests of this worker, started when first asked for."""
    if kind not in _shared:
        cluster = EtcdServer() if kind == "etcd" else EtcdCluster(3)
        try:
            cluster.__enter__()
        except (ServerMissing, ServerFailed) as error:
            pytest.fail(str(error), pytrace=False)
        _shared[kind] = cluster
        _shared_pids.update(cluster.pid(index) for index in range(len(cluster.endpoints)))
    return _shared[kind]


_ttl_servers: dict[str, TtlServer] = {}
_shared_cassandra = SharedServer(CassandraServer)


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
    _shared_pids.add(server.process.pid)
    return server


def _shared_one() -> TtlServer:
    ports = _shared_cassandra.hold()
    if _shared_cassandra.started is not None:
        _shared_pids.add(_shared_cassandra.started.process.pid)
    server = CassandraServer()
    server.ports = ports
    return server


@pytest.fixture(scope="session", autouse=True)
def _credentials() -> Iterator[None]:
    """What a client of DynamoDB must have; the tests' server takes any."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "test")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        yield


def pytest_sessionfinish() -> None:
    while _shared:
        _shared.popitem()[1].stop()
    for kind, server in _ttl_servers.items():
        if kind != "cassandra":
            server.stop()
    _ttl_servers.clear()
    _shared_cassandra.release()


@pytest.fixture
def etcd() -> EtcdCluster:
    """An etcd that all tests of this worker share: use keys of your own, and leave it as it was."""
    return shared_etcd("etcd")


@pytest.fixture
def etcd_cluster() -> EtcdCluster:
    """Three etcd members that all tests of this worker share."""
    return shared_etcd("etcd-cluster")


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """No thread, child process or asyncio task outlives a test."""
    threads, children = _threads(), _children()
    if inspect.iscoroutinefunction(getattr(request.node, "obj", None)):
        request.getfixturevalue("_no_task_left")
    yield
    left_children = _settled(lambda: _children() - children - _shared_pids)
    left_threads = _settled(lambda: _threads() - threads)
    if left_children:
        pytest.fail(f"child processes left behind: {sorted(left_children)}", pytrace=False)
    if left_threads:
        pytest.fail(f"threads left behind: {sorted(thread.name for thread in left_threads)}", pytrace=False)


@pytest.fixture
async def _no_task_left() -> AsyncIterator[None]:
    # The plugin runs each step of a fixture in a task of its own, so those of the test are told apart by when they end.
    before = asyncio.all_tasks()
    yield
    for _ in range(100):
        left = asyncio.all_tasks() - before - {asyncio.current_task()}
        if not left:
            return
        await asyncio.sleep(0.01)
    pytest.fail(f"tasks left behind: {sorted(task.get_name() for task in left)}: {left}", pytrace=False)


def _settled(look: Callable[[], set[T]]) -> set[T]:
    """What is still there after a second: a thread that is ending needs a moment."""
    end = time.monotonic() + 1
    while (left := look()) and time.monotonic() < end:
        gc.collect()
        time.sleep(0.02)
    return left


def _threads() -> set[threading.Thread]:
    """The threads that run, without those that last as long as the event loop (its pool) or the process (grpc's)."""
    kept = "asyncio_"
    return {
        thread
        for thread in threading.enumerate()
        if not thread.name.startswith(kept) and "_poll_wrapper" not in thread.name
    }


def _children() -> set[int]:
    """Processes that this one started and that have not ended."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        try:
            listed = (task / "children").read_text()
        except OSError:  # the thread ended while we looked
            continue
        found.update(int(pid) for pid in listed.split())
    return found
