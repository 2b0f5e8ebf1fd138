"""`hostler sim run`, `list` and `show`, as a person at a terminal sees them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from hostler.entry.cli.app import app
from hostler.entry.cli.failure import run
from hostler.sim.scenario import library
from hostler.sim.world.event_log import read_log

FINE = """
name: fine
about: for a test
length: 30
inventory:
  racks:
    - name: r1
      pdus: [{name: pdu1, ports: 3}]
      tors: [{name: tor1, ports: 2}]
      blades: {count: 2, prefix: b, cpus: 4, memory: 8GiB}
vms: [{name: a, count: 2}]
"""
FAILING = FINE.replace("name: fine", "name: failing") + (
    "chances: [{fault: agent_killed, per_hour: 600, on: blades}]\n"
    "timeline: [{at: 12, do: delete_vm, name: nobody}, {at: 15, fault: network, on: r1/tor1, for: 5}]\n"
)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "fine.yaml").write_text(FINE)
    (tmp_path / "failing.yaml").write_text(FAILING)
    return tmp_path


def test_a_run_tells_its_story_and_its_verdicts(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, ["sim", "run", str(files / "fine.yaml"), "--seed", "3"]) == 0
    told = capsys.readouterr().out
    assert "fine, seed 3" in told
    assert "leads with fence 1" in told
    assert "no_vm_twice              holds (2 checks)" in told
    assert "passed: " in told


def test_a_failure_tells_the_seed_what_led_to_it_the_shortest_schedule_and_the_command(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, saved = files / "failing.yaml", files / "small.yaml"
    assert run(app, ["sim", "run", str(file), "--seed", "4", "--save", str(saved)]) == 1
    told = capsys.readouterr()
    assert "BROKEN" in told.out
    assert "at 12 s: delete_vm name=nobody: NotFound" in told.out
    assert "around requests_answered, at 12 s" in told.out
    assert "shortest schedule that breaks requests_answered" in told.out
    assert told.out.split("shortest schedule")[1].count(" s  ") == 1
    assert f"reproduce  hostler sim run {file} --seed 4" in told.out
    assert "Traceback" not in told.out + told.err
    assert run(app, ["sim", "run", str(saved), "--no-shrink", "-o", "json"]) == 1
    plain = json.loads(capsys.readouterr().out)
    assert (plain["seed"], plain["passed"], len(plain["moments"])) == (4, False, 1)
    assert [verdict["invariant"] for verdict in plain["verdicts"] if not verdict["held"]] == ["requests_answered"]


def test_the_log_is_written_whole_and_the_same_every_time(
    files: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    first, second = files / "first.log", files / "second.log"
    for file in (first, second):
        assert run(app, ["sim", "run", str(files / "fine.yaml"), "--log", str(file)]) == 0
    assert first.read_bytes() == second.read_bytes()
    assert [entry.number for entry in read_log(first.read_bytes())] == list(
        range(1, len(read_log(first.read_bytes())) + 1)
    )
    capsysbinary.readouterr()
    assert run(app, ["sim", "run", str(files / "fine.yaml"), "--log", "-"]) == 0
    assert capsysbinary.readouterr().out == first.read_bytes()


def test_a_run_goes_no_faster_than_asked(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (files / "late.yaml").write_text(FINE + "timeline: [{at: 25, fault: leader_killed}]\n")
    begun = time.monotonic()
    assert run(app, ["sim", "run", str(files / "late.yaml"), "--speed", "50"]) == 0
    assert time.monotonic() - begun >= 25 / 50
    assert "leader_killed" in capsys.readouterr().out


def test_many_seeds_on_two_cores_and_what_failed_of_them(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both = [str(files / "fine.yaml"), str(files / "failing.yaml")]
    assert run(app, ["sim", "run", *both, "--seeds", "1..3", "--jobs", "2", "--tries", "10"]) == 1
    told = capsys.readouterr()
    assert "3 FAILED: 6 runs" in told.out
    assert f"{both[1]} --seed 1: requests_answered: at 12 s: delete_vm" in told.out
    assert f"reproduce  hostler sim run {both[1]} --seed 1" in told.out
    assert run(app, ["sim", "run", both[0], "--seeds", "1..2", "--jobs", "1", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["scenarios"][both[0]]["runs"] == 2


def test_whatever_is_wrong_with_a_file_is_told_before_anything_runs(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = files / "wrong.yaml"
    wrong.write_text(FINE + "pending: x\ntimeline: [{at: 1, fault: powr}]\n")
    assert run(app, ["sim", "run", str(files / "fine.yaml"), str(wrong)]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert f"{wrong}:12: pending: must be a whole number, not 'x'\n" in told.err
    assert f"{wrong}:13: timeline[0].fault: unknown fault powr; did you mean power?\n" in told.err
    assert f"{wrong}: 2 mistakes" in told.err


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["run"], 2, "give a file or a name"),
        (["run", "pdu-loss", "--all"], 2, "give a file or a name"),
        (["run", "pdu-los"], 3, "did you mean pdu-loss?"),
        (["run", "./nowhere.yaml"], 3, "cannot be read: No such file or directory"),
        (["run", "pdu-loss", "--seeds", "5..2"], 2, "write A..B"),
        (["run", "pdu-loss", "--seeds", "many"], 2, "write A..B"),
        (["run", "pdu-loss", "--seed", "1", "--seeds", "1..2"], 2, "not both"),
        (["run", "pdu-loss", "--seeds", "1..2", "--log", "x"], 2, "are for one run"),
        (["run", "pdu-loss", "--speed", "0"], 2, "speed"),
        (["show", "nowhere"], 3, "no such scenario"),
    ],
)
def test_what_cannot_be_asked_for(
    arguments: list[str], code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(app, ["sim", *arguments]) == code
    error = capsys.readouterr().err
    assert told in error
    assert "Traceback" not in error


def test_the_library_is_listed_and_each_of_it_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, ["sim", "list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(library.names()) + 1
    assert run(app, ["sim", "list", "-o", "json"]) == 0
    assert [entry["name"] for entry in json.loads(capsys.readouterr().out)] == library.names()
    assert run(app, ["sim", "show", "pdu-loss"]) == 0
    assert capsys.readouterr().out == (library.folder() / "pdu-loss.yaml").read_text()
    assert run(app, ["sim", "show", "pdu-loss", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "pdu-loss"


def children(pid: int) -> set[int]:
    return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


def test_an_interrupt_ends_all_of_it_and_says_how_far_it_was(files: Path) -> None:
    command = [sys.executable, "-m", "hostler", "sim", "run", str(files / "fine.yaml"), "--seeds", "1..100000"]
    process = subprocess.Popen(
        [*command, "--jobs", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        end, workers = time.monotonic() + 120, set[int]()
        while len(workers) < 2 and time.monotonic() < end:
            with suppress(FileNotFoundError, ProcessLookupError):  # one that has ended since it was listed
                workers = {
                    pid
                    for pid in children(process.pid)
                    if "sim.parallel_runs" in Path(f"/proc/{pid}/cmdline").read_text()
                }
            time.sleep(0.05)
        assert len(workers) == 2
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: everybody hears it
        out, err = process.communicate(timeout=120)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert process.returncode == 130, err
    assert "Traceback" not in out + err
    assert "interrupted after " in err
    assert re.search("interrupted after [0-9,]+ of 100,000, none of them failed: ", out)
    end = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in workers) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
