"""The report at the end of a run: tests, processor time and waiting of each folder, the slowest ten, and the seeds.

Every worker measures its tests; the process that collects their reports adds them up. What each test took is also
written to `costs.jsonl` in the artefact folder. `--learn-costs` keeps it in `tests/costs.json`, by which lanes order
their tests.
"""

from __future__ import annotations

import json
import resource
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from .fork_server import ForkedProcess
from .lanes import COSTS, TESTS, WORTH_KNOWING, lane_of_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

SLOWEST = 10
_PROPERTY = "cost"


class Cost(NamedTuple):
    """What a test took, in seconds: on the clock, of its worker's processor time, of its worker's ended children's."""

    wall: float
    own: float
    children: float

    @property
    def cpu(self) -> float:
        return self.own + self.children

    @property
    def waited(self) -> float:
        return max(0.0, self.wall - self.cpu)


def _now() -> Cost:
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Cost(time.monotonic(), time.process_time(), ended.ru_utime + ended.ru_stime + ForkedProcess.cpu)


class RunReport:
    """A plugin of pytest: measures in workers, adds up where reports arrive. `notes` are lines for the end."""

    def __init__(self, folder: Path, notes: Callable[[], Iterable[str]], *, learn: bool) -> None:
        self._folder, self._notes, self._learn = folder, notes, learn
        self._began = self._test_began = _now()
        self._costs: dict[str, Cost] = {}
        self._ended_at: dict[str, float] = {}
        """By lane: seconds from the start of the run to the end of its last test."""
        self.left_out: dict[str, int] = {}
        """By lane: tests that rotate and are other commits', as this process or its workers collected them."""

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take over what a worker left out; all workers leave the same tests of a lane out."""
        self.left_out |= getattr(node, "workeroutput", {}).get("left_out", {})

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["left_out"] = self.left_out

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self) -> None:
        self._test_began = _now()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> Any:
        report = yield
        if call.when == "teardown":
            spent = [round(now - then, 4) for now, then in zip(_now(), self._test_began, strict=True)]
            report.user_properties = [*report.user_properties, (_PROPERTY, spent)]
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties:
            if name == _PROPERTY and report.when == "teardown":
                self._costs[report.nodeid] = Cost(*value)
                lane = lane_of_path(TESTS.parent / report.nodeid.partition("::")[0])
                self._ended_at[lane or "other"] = time.monotonic() - self._began.wall

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if not self._costs:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        lines = (json.dumps({"test": test, **cost._asdict()}) for test, cost in self._costs.items())
        (self._folder / "costs.jsonl").write_text("\n".join(lines) + "\n")
        if self._learn:
            long = {
                test: round(cost.wall, 1) for test, cost in sorted(self._costs.items()) if cost.wall > WORTH_KNOWING
            }
            COSTS.write_text(json.dumps(long, indent=0) + "\n")
        terminalreporter.section("where the time went")
        left = sum(self.left_out.values())
        rotating = f"tests that rotate and run with other commits, and all in `make soak`: {left}"
        for line in (*self._table(), *self._notes(), rotating):
            terminalreporter.write_line(line)

    def _table(self) -> Iterable[str]:
        folders: dict[str, list[Cost]] = defaultdict(list)
        for test, cost in self._costs.items():
            folders["/".join(Path(test.partition("::")[0]).parts[:2])].append(cost)
        yield f"{'':20} {'tests':>6} {'CPU s':>8} {'waited s':>9}"
        for folder, costs in [*sorted(folders.items()), ("all", list(self._costs.values()))]:
            cpu, waited = sum(cost.cpu for cost in costs), sum(cost.waited for cost in costs)
            yield f"{folder:20} {len(costs):6} {cpu:8.1f} {waited:9.1f}"
        yield f"the slowest {SLOWEST}:"
        for test, cost in sorted(self._costs.items(), key=lambda each: -each[1].wall)[:SLOWEST]:
            yield f"  {cost.wall:6.1f} s ({cost.cpu:5.1f} s CPU)  {test}"
        ends = ", ".join(f"{lane} {ended:.0f} s" for lane, ended in sorted(self._ended_at.items()))
        yield f"the last test of each lane ended after: {ends}"
