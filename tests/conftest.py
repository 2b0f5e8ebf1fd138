"""What every test stands on: servers that are shared, and the check that nothing is left behind."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest

pytest.register_assert_rewrite(
    "hostler.testing.elections",
    "hostler.testing.inbox",
    "hostler.testing.machines",
    "hostler.testing.slices",
    "hostler.testing.store",
    "hostler.testing.ttl",
)

import dose  # noqa: E402
import running  # noqa: E402
from harness import artefacts, lanes  # noqa: E402
from harness.pace import Pace, patience  # noqa: E402
from harness.report import RunReport  # noqa: E402
from hypothesis import HealthCheck, core, settings  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from hostler.testing.servers import EtcdCluster

T = TypeVar("T")

GO = {"GOGC": "400", "GOMAXPROCS": "1"}
"""How the servers that are written in Go (etcd) run here: with one thread of Go code each, and less garbage collection.
With many of them on two processors, their schedulers and collectors used half of their processor time."""

# How long it takes to make an input says something about the machine's other work, and nothing about the test.
settings.register_profile("hostler", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("hostler")

# A run that was started in the background ignores Ctrl-C, and would hand that down to the programs it tests.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _credentials(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What a client of DynamoDB must have; the tests' server takes any. Keys that are made are not a person's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "test")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        yield


@pytest.fixture(autouse=True)
def _same_umask() -> Iterator[None]:
    """What opens a data folder changes the umask for good; the test after the one that does must not have it."""
    before = os.umask(0o022)
    os.umask(before)
    yield
    os.umask(before)


def pytest_addoption(parser: pytest.Parser) -> None:
    lanes.add_option(parser)
    parser.addoption("--learn-costs", action="store_true", help="keep how long tests take, for the order of lanes")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    lanes.choose_workers(config)


def pytest_configure(config: pytest.Config) -> None:
    for name, value in GO.items():
        os.environ.setdefault(name, value)
    if config.getoption("lanes"):
        config.pluginmanager.register(lanes.LanePlugin(config), "lanes")
    if core.global_force_seed is None:
        core.global_force_seed = dose.rotation()  # the examples of Hypothesis rotate with the commit, too
    dose.changed_paths()
    folder = artefacts.folder_of_run(config.rootpath, lambda: time.strftime("%Y%m%d-%H%M%S"))
    learn = config.getoption("learn_costs")
    config.pluginmanager.register(RunReport(folder, lambda: _notes(folder), learn=learn), "run-report")
    config.pluginmanager.register(artefacts.Artefacts(folder), "artefacts")
    if not hasattr(config, "workerinput") and not config.option.collectonly:
        pace = Pace()
        config.add_cleanup(pace.stop)
        running.PIDS.add(pace.pid)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keep what is there before the first test out of garbage collection: looking through it takes 0.1 s each time.

    Tests make little garbage in cycles. To look for it less often saves a twentieth of their processor time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.set_threshold(10_000, 10, 10)
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that rotate and are other commits', unless the command line names them one by one."""
    left = [] if any("::" in argument for argument in config.args) else dose.left_for_other_commits(items)
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in set(left)]
        report = config.pluginmanager.get_plugin("run-report")
        assert isinstance(report, RunReport)
        report.left_out = dict(Counter(lanes.lane_of_path(item.path) or "" for item in left))


def _notes(folder: Path) -> Iterator[str]:
    yield f"seeds: {dose.VARIABLE}={dose.rotation()} runs the same ones again"
    if any(folder.glob("*/")):
        yield f"what failed is kept in {folder}"


def pytest_sessionfinish(session: pytest.Session) -> None:
    running.stop_all()
    running.remove_packet_filters(session.config._tmp_path_factory.getbasetemp())  # type: ignore[attr-defined]


@pytest.fixture
def etcd() -> EtcdCluster:
    """An etcd that all tests of this worker share, one after the other: it is empty."""
    return running.empty_etcd("etcd")


@pytest.fixture
def etcd_cluster(_cluster_of_module: None) -> EtcdCluster:
    """Three etcd members that the tests of a module share, one after the other: they are empty."""
    return running.empty_etcd("etcd-cluster")


@pytest.fixture(scope="module")
def _cluster_of_module() -> Iterator[None]:
    """Stop the three members after the last test of the module: idle, they use 2 % of a processor."""
    yield
    running.stop_etcd("etcd-cluster")


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """No thread, child process or asyncio task outlives a test."""
    threads, children = _threads(), _children()
    if inspect.iscoroutinefunction(getattr(request.node, "obj", None)):
        request.getfixturevalue("_no_task_left")
    yield
    left_children = _settled(lambda: _children() - children - running.PIDS)
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
    await running.no_task_left(before)


def _settled(look: Callable[[], set[T]]) -> set[T]:
    """What is still there after some seconds: a thread that is ending needs a moment, on a busy machine several."""
    end = time.monotonic() + patience(5)
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
    """Processes that this one started, or had forked, and that have not ended."""
    found = running.forked()
    for task in Path("/proc/self/task").iterdir():
        try:
            listed = (task / "children").read_text()
        except OSError:  # the thread ended while we looked
            continue
        found.update(int(pid) for pid in listed.split())
    return found
