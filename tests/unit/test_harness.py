"""What runs the tests is tested, too: lanes, the pace, the fork server, artefacts."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import running
from _pytest.assertion import rewrite
from harness import artefacts, lanes, pace, precompile
from harness.fork_server import ForkedProcess

from hostler.testing import servers

TESTS = Path(__file__).parents[1]

# Lanes


class Worker:
    """A worker of xdist, as the scheduler sees it."""

    def __init__(self, number: int) -> None:
        self.gateway = SimpleNamespace(id=f"gw{number}")
        self.sent: list[int] = []
        self.shutting_down = False

    def send_runtest_some(self, tests: list[int]) -> None:
        self.sent += tests

    def shutdown(self) -> None:
        self.shutting_down = True


def scheduling(costs: dict[str, float], workers: int) -> Any:
    plugins = SimpleNamespace(get_plugin=lambda _: None)
    config = SimpleNamespace(getoption=lambda _: ["popen"] * workers, pluginmanager=plugins)
    made = lanes.LaneScheduling(config)  # type: ignore[arg-type]
    made._costs = costs
    return made


def started(tests: dict[int, list[str]], costs: dict[str, float] | None = None) -> tuple[Any, dict[int, Worker]]:
    """A scheduling whose workers have collected these tests."""
    made, workers = scheduling(costs or {}, len(tests)), {number: Worker(number) for number in tests}
    for number, worker in workers.items():
        made.add_node(worker)
        made.add_node_collection(worker, tests[number])
    made.schedule()
    return made, workers


REAL = sum(lane.workers for name, lane in lanes.LANES.items() if name != "real")
"""The number of the first worker of the lane `real`."""


def test_every_folder_of_tests_belongs_to_a_lane() -> None:
    folders = {path.relative_to(TESTS).parts[0] for path in TESTS.rglob("test_*.py")}
    assert folders == {folder for lane in lanes.LANES.values() for folder in lane.folders}
    for folder in folders:
        assert lanes.lane_of_path(TESTS / folder / "test_x.py") is not None
    assert lanes.lane_of_path(TESTS) is None


def test_workers_are_dealt_out_to_lanes_and_one_that_replaces_another_serves_all() -> None:
    total = sum(lane.workers for lane in lanes.LANES.values())
    dealt = [lanes.lane_of_worker(f"gw{number}") for number in range(total)]
    assert {name: dealt.count(name) for name in lanes.LANES} == {n: lane.workers for n, lane in lanes.LANES.items()}
    assert lanes.lane_of_worker(f"gw{total}") is None


def test_the_longest_start_first_and_every_test_is_handed_out_once() -> None:
    tests = [f"tests/acceptance/test_{name}.py::test" for name in "abcdef"]
    costs = {tests[4]: 9.0, tests[2]: 5.0}
    made, workers = started({REAL: tests, REAL + 1: tests}, costs)
    first, second = workers[REAL], workers[REAL + 1]
    assert first.sent[0] == 4
    for worker in (first, second) * len(tests):
        if worker.sent and made._pending[worker]:
            made.mark_test_complete(worker, made._collected[worker][made._pending[worker][0]])
    assert sorted(first.sent + second.sent) == list(range(len(tests)))
    assert made.tests_finished
    assert not made.has_pending
    assert first.shutting_down
    assert second.shutting_down


def test_a_worker_gets_tests_of_its_own_lane_only() -> None:
    made, workers = started({0: ["tests/sim/test_a.py::test"], REAL: ["tests/acceptance/test_b.py::test"]})
    assert made._pending[workers[0]] == ["tests/sim/test_a.py::test"]
    assert made._pending[workers[REAL]] == ["tests/acceptance/test_b.py::test"]


def test_a_worker_with_nothing_left_in_its_lane_helps_another_and_that_lane_alone() -> None:
    unit = lane_number("unit")
    real = [f"tests/acceptance/test_{name}.py::test" for name in "abcd"]
    sim = [f"tests/sim/test_{name}.py::test" for name in "abc"]
    made, workers = started({0: sim, unit: ["tests/unit/test_a.py::test", *real], REAL: real})
    assert made._pending[workers[unit]][0] == "tests/unit/test_a.py::test"
    while made._pending[workers[unit]]:
        made.mark_test_complete(workers[unit], made._collected[workers[unit]][made._pending[workers[unit]][0]])
    ran = {made._collected[workers[unit]][test] for test in real} & set(workers[unit].sent)
    assert len(ran) == 2, "the other two are those of the worker of that lane"
    assert workers[unit].shutting_down
    assert made._waiting["virtual"] == [[sim[0]]]


def test_files_that_one_worker_collects_have_names_of_their_own() -> None:
    for lane in lanes.LANES:
        folders = [TESTS / folder for one in lanes.lanes_of(lane) for folder in lanes.LANES[one].folders]
        names = [
            path.stem
            for folder in folders
            if not (folder / "__init__.py").exists()
            for path in folder.rglob("test_*.py")
        ]
        assert len(names) == len(set(names)), sorted(name for name in names if names.count(name) > 1)


def lane_number(lane: str) -> int:
    """The number of the first worker of a lane."""
    return next(number for number in range(20) if lanes.lane_of_worker(f"gw{number}") == lane)


def test_what_a_crashed_worker_had_is_run_by_the_one_that_replaces_it() -> None:
    tests = [f"tests/web/test_a.py::test_{number}" for number in range(3)]
    number = lane_number("browser")
    made, workers = started({number: tests})
    assert made.remove_node(workers[number]) == tests[0]
    assert not made.tests_finished
    other = Worker(sum(lane.workers for lane in lanes.LANES.values()))
    made.add_node(other)
    made.add_node_collection(other, ["tests/unit/test_z.py::test", *tests])
    made.schedule()
    assert other.sent == [2, 3]


def test_tests_that_share_a_fixture_stay_together_and_other_long_files_are_split() -> None:
    files = (TESTS / "acceptance").rglob("test_*.py")
    sharing = next(path for path in files if 'scope="module"' in path.read_text(encoding="utf-8"))
    both = (str(sharing.relative_to(TESTS.parent)), "tests/acceptance/test_none.py")
    costs = {f"{file}::test_{number}": lanes.LONG_FILE for file in both for number in (1, 2)}
    assert sorted(map(len, scheduling(costs, 1).groups(costs))) == [1, 1, 2]


def test_a_test_with_the_parameters_of_another_commit_costs_what_the_others_did() -> None:
    made = scheduling(
        {"tests/acceptance/test_x.py::test_seed[1]": 9.0, "tests/acceptance/test_x.py::test_seed[2]": 8.0}, 1
    )
    assert made._cost(["tests/acceptance/test_x.py::test_seed[3]"]) == 8.0
    assert made._cost(["tests/acceptance/test_x.py::test_other[3]"]) == lanes.GUESS


# The pace


def test_before_its_first_tick_the_loop_says_nothing_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "pace"
    file.write_bytes(bytes(1 << 20))
    monkeypatch.setenv(pace.VARIABLE, str(file))
    assert pace.slowdown(time.monotonic() - 1.0) == 1.0
    assert pace.patience(1.0) == 2.0


def test_a_limit_holds_at_the_pace_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    pace.check(1.0, 1.0, since=0.0)
    monkeypatch.setattr(pace, "slowdown", lambda _: 3.0)
    pace.check(2.9, 1.0, since=0.0)
    with pytest.raises(AssertionError, match="3.1"):
        pace.check(3.1, 1.0, since=0.0)
    with pytest.raises(AssertionError, match="the answer took"), pace.within(0.001, "the answer"):
        time.sleep(0.02)


def test_a_machine_is_as_slow_as_its_work_its_shares_and_its_standstills_say() -> None:
    assert pace.slowdown_of_tick(worked=1.0, share=0.5, slept=1.0) == 1.0
    assert pace.slowdown_of_tick(worked=2.0, share=0.5, slept=1.0) == 2.0
    assert pace.slowdown_of_tick(worked=1.2, share=5.0, slept=1.0) == 5.0, "it slept before it worked, and was favoured"
    assert pace.slowdown_of_tick(worked=1.0, share=0.5, slept=3.0) == 3.0


@pytest.mark.slow
def test_code_that_is_slow_by_itself_does_not_slow_the_loop_and_fails() -> None:
    assert os.environ.get(pace.VARIABLE), "the loop runs beside every test run"

    def slow() -> None:
        began = time.monotonic()
        while time.monotonic() < began + 1.0:
            pass  # holds the interpreter's lock, and one processor

    with pytest.raises(AssertionError, match="too long"), pace.within(0.02):
        slow()


def test_without_a_loop_the_pace_is_the_machines_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(pace.VARIABLE)
    assert pace.slowdown(0.0) == 1.0


# The fork server


@pytest.fixture
def output(tmp_path: Path) -> Iterator[Any]:
    with (tmp_path / "output").open("w+b") as file:
        yield file


def forked(output: Any, *arguments: str, **environ: str) -> ForkedProcess:
    with Path(os.devnull).open("rb") as nothing:
        return running.fork_server().start(
            list(arguments),
            environ=os.environ | environ,
            cwd="/",
            stdin=nothing.fileno(),
            stdout=output.fileno(),
            stderr=output.fileno(),
        )


def said(output: Any) -> str:
    output.seek(0)
    return str(output.read().decode())


def test_a_forked_command_says_and_ends_as_one_that_was_started(output: Any) -> None:
    assert forked(output, "--version").wait(20) == 0
    started = subprocess.run([sys.executable, "-m", "hostler", "--version"], capture_output=True, text=True, check=True)
    assert said(output) == started.stdout
    assert forked(output, "no-such-command").wait(20) == 2


def test_a_forked_process_has_the_environment_and_folder_that_it_was_given(output: Any) -> None:
    unknown = "hostler_nonsense".upper()  # variables that are spelled out in the tree are known
    assert forked(output, "vm", "list", **{unknown: "1"}).wait(20) == 2
    assert unknown in said(output)


def test_a_forked_process_is_killed_suspended_and_waited_for_as_any_other(output: Any, tmp_path: Path) -> None:
    process = forked(
        output, "up", "--machines", "simulated", "--nodes", "1", "--data", str(tmp_path), "--listen", "127.0.0.1:0"
    )
    end = time.monotonic() + pace.patience(20)
    while "ready http" not in said(output):
        assert process.poll() is None, said(output)
        assert time.monotonic() < end, said(output)
        time.sleep(0.02)
    assert process.pid in running.forked()
    assert os.getsid(process.pid) == process.pid, "it leads a session of its own"
    servers.suspend(process.pid)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.1)
    process.kill()
    assert process.wait(20) == -signal.SIGKILL
    assert process.pid not in running.forked()


# What is compiled before a run


def test_pytest_rewrites_no_test_that_was_compiled_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "test_compiled_before.py"
    path.write_text("def test() -> None:\n    answer = 41\n    assert answer == 42\n")
    precompile.compile_rewritten(path)
    monkeypatch.setattr(rewrite, "_rewrite_test", lambda *_: pytest.fail("it is rewritten again"))
    hook = next(each for each in sys.meta_path if isinstance(each, rewrite.AssertionRewritingHook))
    spec = importlib.util.spec_from_file_location(path.stem, path, loader=hook)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    hook.exec_module(module)
    with pytest.raises(AssertionError, match="assert 41 == 42"):
        module.test()


def test_every_file_that_pytest_rewrites_is_compiled_before_a_run() -> None:
    found = set(precompile.rewritten_files())
    hook = next(each for each in sys.meta_path if isinstance(each, rewrite.AssertionRewritingHook))
    ours = {path for path in hook._rewritten_names.values() if path.is_relative_to(TESTS.parent / "tests")}
    assert Path(__file__) in ours
    assert ours - found == set()


# Artefacts


def test_a_claim_about_safety_that_does_not_hold_keeps_its_history() -> None:
    artefacts.safe(holds=True, claim="nothing is lost")
    with pytest.raises(artefacts.Unsafe, match="a write was lost"):
        artefacts.safe(holds=False, claim="a write was lost", history=[("put", 1), ("get", 0)], record={"a": 1})
    assert artefacts._EVIDENCE["history"] == "('put', 1)\n('get', 0)"
    assert artefacts._EVIDENCE["record"] == "a: 1"


def test_what_a_failed_test_left_is_kept_and_named(tmp_path: Path) -> None:
    left = tmp_path / "left"
    (left / "sub").mkdir(parents=True)
    (left / "sub" / "process.log").write_text("it failed here")
    (left / "large").write_bytes(b"x" * (artefacts.LARGEST_FILE + 1))
    os.mkfifo(left / "pipe")
    item = SimpleNamespace(nodeid="tests/unit/test_a.py::test[one two]", funcargs={"tmp_path": left})
    report = SimpleNamespace(longreprtext="assert 1 == 2", sections=[("stdout", "printed")], when="call")
    artefacts.keep("history", "all calls")
    kept = artefacts.Artefacts(tmp_path / "kept")._keep(item, report)  # type: ignore[arg-type]
    assert kept.parent == tmp_path / "kept"
    assert "assert 1 == 2" in (kept / "call.txt").read_text()
    assert "printed" in (kept / "call.txt").read_text()
    assert (kept / "history.txt").read_text() == "all calls"
    assert (kept / "files" / "sub" / "process.log").read_text() == "it failed here"
    assert not (kept / "files" / "large").exists()


def test_a_suspended_process_stands_still_at_once() -> None:
    busy = "import hashlib, threading\nfor _ in range(8): threading.Thread(target=hashlib.pbkdf2_hmac, "
    busy += "args=('sha256', b'', b'', 1 << 30), daemon=True).start()\nprint(flush=True)\nthreading.Event().wait()"
    with subprocess.Popen([sys.executable, "-c", busy], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            for _ in range(5):
                servers.suspend(process.pid)
                assert servers.thread_states(process.pid) == {"T"}
                process.send_signal(signal.SIGCONT)
        finally:
            process.kill()
