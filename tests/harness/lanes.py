"""Lanes: groups of test folders that run side by side, each on workers of its own.

`pytest --lanes` starts the workers of all lanes. A worker collects the folders of its lane and nothing else. The lane
of virtual time is CPU-bound and runs at low priority: it takes what the others leave, so tests on a real clock are
not slowed down. A lane with nothing left may help another one: its workers collect the folders of both. Inside a lane
the tests that take longest start first (`tests/costs.json`), a file at a time where its tests share a fixture.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import defaultdict
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from xdist.workermanage import WorkerController

TESTS = Path(__file__).parents[1]
COSTS = TESTS / "costs.json"
"""Seconds on the clock of each test that takes more than `WORTH_KNOWING`, from an earlier run."""
WORTH_KNOWING = 0.5
GUESS = 0.05
"""Seconds of a test that is not in `COSTS`."""
LONG_FILE = 15.0
"""A file that takes longer is handed out test by test, unless its tests share a fixture."""
AHEAD = 2
"""Tests that a worker must have: the present one, and the next, which says which fixtures end."""


class Lane(NamedTuple):
    """Folders under `tests/`, and the workers that run them."""

    folders: tuple[str, ...]
    workers: int
    nice: int = 0
    helps: str | None = None
    """The lane whose tests its workers run once their own are all handed out."""


LANES = {
    "virtual": Lane(("sim", "upgrade"), 2, nice=12),
    "unit": Lane(("unit",), 1, helps="real"),
    "browser": Lane(("web",), 1, helps="real"),
    "real": Lane(("acceptance", "conformance"), 4),
}


def lane_of_worker(worker: str) -> str | None:
    """The lane of `gw0`, `gw1`, …: the workers are dealt out in the order of `LANES`.

    None: it replaces a worker that crashed, and serves every lane.
    """
    number = int(worker.removeprefix("gw"))
    for name, lane in LANES.items():
        if number < lane.workers:
            return name
        number -= lane.workers
    return None


def lane_of_path(path: Path) -> str | None:
    """The lane whose folders hold a path; None: above the lanes' folders, or outside."""
    try:
        first = path.relative_to(TESTS).parts[0]
    except (ValueError, IndexError):
        return None
    return next((name for name, lane in LANES.items() if first in lane.folders), None)


def lanes_of(lane: str | None) -> tuple[str, ...]:
    """Return the lanes whose tests a worker of this lane runs: its own, then the one that it helps."""
    if lane is None:
        return ()
    helped = LANES[lane].helps
    return (lane,) if helped is None else (lane, helped)


def add_option(parser: pytest.Parser) -> None:
    parser.addoption("--lanes", action="store_true", help="run all lanes side by side (tests/harness/lanes.py)")


def choose_workers(config: pytest.Config) -> None:
    """Ask xdist for as many workers as the lanes have; called before it looks."""
    if config.getoption("lanes") and not hasattr(config, "workerinput"):
        config.option.numprocesses = sum(lane.workers for lane in LANES.values())
        config.option.dist = "load"


class LanePlugin:
    """The plugin: in the process that collects reports it hands out tests; in a worker it keeps to one lane."""

    def __init__(self, config: pytest.Config) -> None:
        worker: dict[str, Any] | None = getattr(config, "workerinput", None)
        lane = None if worker is None else lane_of_worker(worker["workerid"])
        self.lanes = lanes_of(lane)
        if lane is not None:
            _run_at(LANES[lane].nice)

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Leave out what belongs to another lane."""
        if not self.lanes:
            return None
        return True if lane_of_path(collection_path) not in (None, *self.lanes) else None

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave out what the command line named and belongs to another lane."""
        if self.lanes:
            items[:] = [item for item in items if lane_of_path(item.path) in self.lanes]

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config) -> LaneScheduling:
        return LaneScheduling(config)


class LaneScheduling:
    """Hands out tests to the workers of each lane: the longest first, and never to another lane.

    The verbs are those of `xdist.scheduler.protocol.Scheduling`. A worker numbers its tests as it collected them.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._expected = len(config.getoption("tx"))
        self._costs: dict[str, float] = json.loads(COSTS.read_text()) if COSTS.exists() else {}
        self._collected: dict[WorkerController, dict[str, int]] = {}
        self._pending: dict[WorkerController, list[str]] = {}
        self._waiting: dict[str, list[list[str]]] = {}
        """By lane: groups of tests that no worker has yet, the next one last."""
        self._started = False

    @property
    def nodes(self) -> list[WorkerController]:
        return list(self._pending)

    @property
    def collection_is_completed(self) -> bool:
        return self._started or len(self._collected) >= self._expected

    @property
    def tests_finished(self) -> bool:
        return self._started and not any(self._waiting.values()) and not any(map(self._has_two, self._pending))

    @property
    def has_pending(self) -> bool:
        return any(self._waiting.values()) or any(self._pending.values())

    def add_node(self, node: WorkerController) -> None:
        self._pending[node] = []

    def add_node_collection(self, node: WorkerController, collection: Sequence[str]) -> None:
        self._collected[node] = {test: number for number, test in enumerate(collection)}

    def schedule(self) -> None:
        """Called once all workers have collected, and again for one that replaces another."""
        if not self._started:
            self._started = True
            for node, tests in self._collected.items():
                lane = _lane(node)
                if lane is not None and lane not in self._waiting:
                    self._waiting[lane] = self.groups(test for test in tests if _lane_of_test(test) == lane)
            self._tell_total(sum(len(group) for groups in self._waiting.values() for group in groups))
        for node in self.nodes:
            self._supply(node)

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:  # noqa: ARG002
        tests = self._pending[node]
        tests.remove(next(test for test in tests if self._collected[node][test] == item_index))
        self._supply(node)

    def mark_test_pending(self, item: str) -> None:
        self._waiting.setdefault(_lane_of_test(item) or "real", []).append([item])
        for node in self.nodes:
            self._supply(node)

    def remove_pending_tests_from_node(self, node: WorkerController, indices: Sequence[int]) -> None:
        raise NotImplementedError("tests are not taken back from a worker")

    def remove_node(self, node: WorkerController) -> str | None:
        """Return the test during which it crashed. The rest goes to the other workers of its lane."""
        tests = self._pending.pop(node)
        if not tests:
            return None
        crashed, *rest = tests
        for lane in LANES:
            if of_lane := [test for test in rest if _lane_of_test(test) == lane]:
                self._waiting.setdefault(lane, []).append(of_lane)
        for other in self.nodes:
            self._supply(other)
        return crashed

    def _tell_total(self, tests: int) -> None:
        """Let the progress be a part of all tests; xdist takes what one worker collected for all."""
        session = getattr(self._config.pluginmanager.get_plugin("dsession"), "_session", None)
        if session is not None:
            session.testscollected = tests

    def groups(self, tests: Iterable[str]) -> list[list[str]]:
        """Tests that are handed out together, in the order of what they cost, the most last."""
        files: dict[str, list[str]] = defaultdict(list)
        for test in tests:
            files[test.partition("::")[0]].append(test)
        found: list[list[str]] = []
        for file, of_it in files.items():
            if self._cost(of_it) <= LONG_FILE or _shares_a_fixture(TESTS.parent / file):
                found.append(of_it)
            else:
                found += [[test] for test in of_it]
        return sorted(found, key=self._cost)

    @cached_property
    def _costs_of_functions(self) -> dict[str, float]:
        """The least that a test function costs with known parameters: the seeds of this commit may be others."""
        least: dict[str, float] = {}
        for test, cost in self._costs.items():
            least[_function(test)] = min(cost, least.get(_function(test), cost))
        return least

    def _cost(self, tests: list[str]) -> float:
        return sum(self._costs.get(test) or self._costs_of_functions.get(_function(test), GUESS) for test in tests)

    def _has_two(self, node: WorkerController) -> bool:
        return len(self._pending[node]) >= AHEAD

    def _supply(self, node: WorkerController) -> None:
        if node.shutting_down or not self._started or node not in self._collected:
            return
        own, lane = self._collected[node], _lane(node)
        while not self._has_two(node) and (waiting := self._waiting_for(lane)):
            tests = waiting.pop()
            self._pending[node] += tests
            node.send_runtest_some([own[test] for test in tests])
        if not self._has_two(node):
            node.shutdown()  # it runs its last test now instead of waiting for one more

    def _waiting_for(self, lane: str | None) -> list[list[str]]:
        found = self._waiting.values() if lane is None else map(self._waiting.get, lanes_of(lane))
        return next(filter(None, found), [])


def _run_at(nice: int) -> None:
    """Give this worker a share of the processors of its own, and a low priority if `nice` says so.

    Linux shares the processors among sessions first (autogroups), and a `nice` value counts inside a session only. So
    every worker leads a session, and the session gets the value too.
    """
    os.setsid()
    os.nice(nice)
    with contextlib.suppress(OSError):  # no autogroups here: then the line above is enough
        Path("/proc/self/autogroup").write_text(str(nice))


def _function(test: str) -> str:
    """Return the name of a test without its parameters."""
    return test.partition("[")[0]


def _lane_of_test(test: str) -> str | None:
    return lane_of_path(TESTS.parent / test.partition("::")[0])


def _lane(node: WorkerController) -> str | None:
    return lane_of_worker(str(node.gateway.id))


def _shares_a_fixture(file: Path) -> bool:
    return file.exists() and 'scope="module"' in file.read_text(encoding="utf-8")
