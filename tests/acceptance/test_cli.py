"""`hostler` as a person meets it: real processes, real pipes, real failures, and never a traceback."""

from __future__ import annotations

import itertools
import json
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
import running
from dose import seeds
from harness import pace

from hostler.testing.servers import free_ports

if TYPE_CHECKING:
    from pathlib import Path

HOSTLER = [sys.executable, "-m", "hostler"]


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HOSTLER_")}
    return kept | {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")}


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite://{tmp_path}/store.db"


def hostler(environ: dict[str, str], *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a command, forked; it must end with that code."""
    done = running.fork_server().run(arguments, environ=environ)
    assert done.returncode == code, (arguments, done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done


def test_help_answers_within_three_tenths_of_a_cpu_second(environ: dict[str, str]) -> None:
    for _ in range(2):  # the first run may compile
        began = time.monotonic()
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([*HOSTLER, "--help"], capture_output=True, text=True, env=environ, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert "store" in done.stdout
    took = (after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime)
    pace.check(took, 0.3, since=began, what="--help: its processor time")


def test_no_command_shows_help_and_a_wrong_one_says_so(environ: dict[str, str]) -> None:
    for arguments in ((), ("store",), ("nonsense",), ("store", "nonsense"), ("--nonsense",), ("bench", "store", "--x")):
        assert "Usage:" in hostler(environ, *arguments, code=2).stderr


def test_every_bad_store_is_two_clear_lines(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "damaged.db").write_bytes(b"SQLite format 3\0" + b"\xff" * 5000)
    (tmp_path / "text.db").write_text("this is no database")
    (tmp_path / "damaged.json").write_text('{"half')
    (tmp_path / "folder.db").mkdir()
    with sqlite3.connect(tmp_path / "foreign.db") as foreign:
        foreign.execute("CREATE TABLE t (x)")
    foreign.close()
    dead = free_ports(1)[0]
    expected = {
        "bogus://x": 2,
        "": 2,
        "sqlite://relative.db": 2,
        "sqlite:///x?bogus=1": 2,
        "etcd://": 2,
        "etcd://[": 2,
        "memory://host": 2,
        f"sqlite://{tmp_path}/nowhere/x.db": 2,
        f"sqlite://{tmp_path}/foreign.db": 2,
        f"sqlite://{tmp_path}/damaged.db": None,
        f"sqlite://{tmp_path}/text.db": 8,
        f"sqlite://{tmp_path}/folder.db": None,
        f"file://{tmp_path}/damaged.json": 8,
        f"etcd://127.0.0.1:{dead}?timeout=1": 5,
    }
    for store, code in expected.items():
        done = running.fork_server().run(["store", "put", "/a", "b", "--store", store or " "], environ=environ)
        lines = done.stderr.splitlines()
        assert len(lines) == 2, (store, done.stderr)
        assert lines[0].startswith("hostler: "), store
        assert lines[1].startswith("  next: "), store
        assert "unexpected" not in done.stderr, (store, done.stderr)
        assert done.returncode == (code or done.returncode) != 0, (store, done.stderr)


def test_a_password_is_never_shown(environ: dict[str, str]) -> None:
    dead = free_ports(1)[0]
    store = f"etcd://127.0.0.1:{dead}?user=root&password=s3cret&timeout=0.5"
    for arguments in (("store", "get", "/a", "--store", store), ("store", "copy", store, "memory://")):
        done = hostler(environ, *arguments, code=5)
        assert "s3cret" not in done.stdout + done.stderr


def test_a_pipe_that_closes_early_is_no_error(environ: dict[str, str], url: str) -> None:
    for number in range(3):
        hostler(environ, "store", "put", "--store", url, f"/{number}", "x" * 100_000)
    command = " ".join(HOSTLER) + f" store list --store {url} | head -c 10; echo ' ' ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=100, env=environ, check=True)
    assert done.stdout.split()[-1] == "141"
    assert done.stderr == ""


def test_an_output_or_input_that_is_closed_or_full_is_no_traceback(environ: dict[str, str]) -> None:
    targets = (">&-", "2>&-", ">/dev/full", ">&- 2>&-", "<&-", "<&- >&- 2>&-")
    asking = "vm delete web --server http://127.0.0.1:1 --token t"
    commands = ("--version", "store get /a --store memory://", "store status --store memory://", asking)
    every = list(itertools.product(commands, targets))
    for number in seeds(test=len(targets), pool=len(every)):
        command = "exec " + " ".join((*HOSTLER, *every[number]))
        done = subprocess.run(
            ["bash", "-c", command], capture_output=True, text=True, timeout=60, env=environ, check=False
        )
        assert "Traceback" not in done.stderr, command
        assert "unexpected" not in done.stderr, (command, done.stderr)


def test_a_watch_shows_what_another_process_does_and_ctrl_c_ends_it_quietly(environ: dict[str, str], url: str) -> None:
    hostler(environ, "store", "put", "--store", url, "/a", "1")
    watch = running.fork_server().start(
        ["store", "watch", "/a", "--store", url, "-o", "json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        environ=environ,
    )
    try:
        assert watch.stdout is not None
        assert watch.stderr is not None
        assert "watching /a" in watch.stderr.readline()
        hostler(environ, "store", "put", "--store", url, "/a", "2")
        event = json.loads(watch.stdout.readline())
        assert (event["key"], event["value"], event["previous"]["value"]) == ("/a", "2", "1")
        watch.send_signal(signal.SIGINT)
        out, err = watch.stdout.read(), watch.stderr.read()
        assert watch.wait() == 130
        assert (out, err.strip()) == ("", "")
    finally:
        watch.kill()
        watch.close_pipes()
        watch.wait()


def test_the_demo_needs_nobody_and_ends_well(environ: dict[str, str], tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as beside:
        kept_once = beside.submit(hostler, environ, "demo", "--data", str(tmp_path / "kept"))
        with pace.within(8.0, "the demo"):
            shown = hostler(environ, "demo").stdout
        kept_once.result()
    for proof in ("sees put /labs/cem", "won", "lost", "sees delete /labs/node-7/alive", "(version 1)", "Your turn"):
        assert proof in shown
    assert "\x1b" not in shown
    hostler(environ, "demo", "--data", str(tmp_path / "kept"))
    kept = f"sqlite://{tmp_path}/kept/demo.db"
    assert "/labs/ada" in hostler(environ, "store", "list", "--store", kept).stdout


def test_the_benchmark_measures_everything_and_leaves_no_key(environ: dict[str, str], url: str, tmp_path: Path) -> None:
    options = ("--seconds", "0.1", "--clients", "1,4", "--json", "-", "--markdown", str(tmp_path / "t.md"))
    found = json.loads(hostler(environ, "bench", "store", url, *options).stdout)
    names = {row["name"].split(",")[0] for row in found["rows"]}
    assert names >= {"put", "get", "txn of 3", "range of 1", "watch: put to event"}
    assert all(row["ours"]["per_second"] > 0 for row in found["rows"])
    assert all(row["ratio"] > 0 for row in found["rows"] if row["other"])
    assert (tmp_path / "t.md").read_text(encoding="utf-8").startswith("Median fdatasync")
    assert json.loads(hostler(environ, "store", "list", "--store", url, "-o", "json").stdout)["items"] == []


def test_the_shell_is_told_how_to_complete(environ: dict[str, str]) -> None:
    asked = {"_HOSTLER_COMPLETE": "bash_complete", "COMP_WORDS": "hostler store wa", "COMP_CWORD": "2"}
    assert "watch" in hostler(environ | asked).stdout
