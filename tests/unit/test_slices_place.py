"""What a slice's process is given: a bounded log, limits, requirements by name."""

from __future__ import annotations

import errno
import os
import resource
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from hostler.drivers.slices.process.artifact_cache import _PLAIN
from hostler.drivers.slices.process.instance_dir import KEPT_LOGS, InstanceDir, forget_logs, name_of, read_notes
from hostler.drivers.slices.process.privileges import Allowed, Allowing, limits_of
from hostler.entry.agent import check_slice_listen
from hostler.errors import Invalid
from hostler.kit.processes import CgroupBase
from hostler.model.deployment import SliceSettings
from hostler.ports.worker_protocol import MAX_LOG
from hostler.settings import load
from hostler.slices.worker import Log


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        with suppress(OSError):
            os.close(end)


@pytest.mark.parametrize("can_move", [True, False])
def test_a_log_stays_short_and_keeps_its_end(tmp_path: Path, pipe: tuple[int, int], can_move: bool) -> None:
    place = InstanceDir(tmp_path, "a:b:1#1")
    place.make(None)
    place.log.write_bytes(b"from before\n")
    log = Log(pipe[0], *place.open_logs(), limit=1000)
    log._can_move = can_move
    printed = b"from before\n"
    for number in range(500):
        os.write(pipe[1], line := b"line %d\n" % number)
        printed += line
        while select.select(pipe[:1], (), (), 0)[0]:  # of a line that comes at the limit the rest is another step
            assert log.take()
        assert place.log.stat().st_size <= 1000
        assert place.older.stat().st_size <= 1000
        kept = place.older.read_bytes() + place.log.read_bytes()
        assert printed.endswith(kept)
        assert len(kept) >= min(1000, len(printed))
        assert place.last_words() == f"line {number}"
    os.close(pipe[1])
    assert not log.take()


def test_one_that_is_too_long_already_is_cut(tmp_path: Path, pipe: tuple[int, int]) -> None:
    place = InstanceDir(tmp_path, "a:b:1#1")
    place.make(None)
    place.log.write_bytes(b"x" * 5000 + b"the end\n")
    log = Log(pipe[0], *place.open_logs(), limit=1000)
    os.write(pipe[1], b"goes on\n")
    assert log.take()
    assert place.log.read_bytes() == b"goes on\n"
    assert place.older.read_bytes() == b"x" * 992 + b"the end\n"


def test_on_a_full_disk_the_older_part_goes_and_nobody_waits(
    tmp_path: Path, pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = InstanceDir(tmp_path, "a:b:1#1")
    place.make(None)
    place.log.write_bytes(b"x" * 600)
    place.older.write_bytes(b"y" * 1000)
    log, room = Log(pipe[0], *place.open_logs(), limit=1000), 0
    splice = os.splice

    def full(source: int, to: int, count: int) -> int:
        if place.log.stat().st_size + place.older.stat().st_size > room:
            raise OSError(errno.ENOSPC, "No space left on device")
        return splice(source, to, count)

    monkeypatch.setattr(os, "splice", full)
    os.write(pipe[1], b"kept\n")
    assert log.take()
    assert (place.log.read_bytes(), place.older.read_bytes()) == (b"kept\n", b"")
    room = -1
    os.write(pipe[1], b"z" * 5000)
    assert log.take()
    os.set_blocking(pipe[0], False)
    with pytest.raises(BlockingIOError):  # it was taken all the same: who prints does not wait
        os.read(pipe[0], 1)


def test_what_was_left_in_the_pipe_does_not_make_a_log_long(tmp_path: Path) -> None:
    place = InstanceDir(tmp_path, "a:b:1#1")
    place.make(None)
    place.log.write_bytes(b"x" * (MAX_LOG - 3))
    place.append(b"the end\n")
    assert place.log.read_bytes() == b"the end\n"


def test_a_control_group_that_does_not_take_the_process_is_told(tmp_path: Path) -> None:
    allowing = Allowing(str(tmp_path), sys.executable, None)
    said = ("memory: 64 MiB by a control group", "cpus: 0.5 by a control group")
    (tmp_path / "group").mkdir()
    fine = Allowed(argv=(), groups=(str(tmp_path / "group"),), memory_mib=64, about=said)
    assert allowing.enter(fine, os.getpid()) == "; ".join(said)
    gone = Allowed(argv=(), groups=(str(tmp_path / "gone"),), memory_mib=64, about=said)
    with subprocess.Popen(["sleep", "60"]) as child:
        memory, cpus = allowing.enter(gone, child.pid).split("; ")
        assert resource.prlimit(child.pid, resource.RLIMIT_DATA) == (64 * 2**20, 64 * 2**20)
        child.kill()
    assert memory == "memory: 64 MiB by prlimit, for each of its processes"
    assert cpus.startswith("cpus: cannot be limited here: ")
    assert allowing.enter(gone, child.pid).startswith("memory: cannot be limited here: ")  # it has ended


def test_logs_of_what_is_gone_are_few(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    for number in range(KEPT_LOGS + 5):
        (logs / f"old{number}.log").touch()
    (logs / "kept.log").touch()
    (logs / "kept.1").touch()
    forget_logs(tmp_path, {"kept"})
    assert len(list(logs.iterdir())) == KEPT_LOGS + 2
    assert (logs / "kept.log").exists()


def test_folders_of_instances_are_short_and_distinct(tmp_path: Path) -> None:
    long = "g" * 100 + ":" + "n" * 100 + ":" + "1" * 50
    names = [name_of(f"{one}#{number}") for one in (long, "a:b:1", "a:b+1:1", "a:b_1:1") for number in (1, 11)]
    assert len(set(names)) == len(names)
    assert all(len(name) < 80 and "/" not in name and ":" not in name for name in names)
    for folder in ("nonsense", "empty"):
        (tmp_path / "runs" / folder).mkdir(parents=True)
    (tmp_path / "runs/nonsense/run.json").write_text("{")
    assert read_notes(tmp_path) == []
    assert list((tmp_path / "runs").iterdir()) == []


def test_limits_are_written_as_each_kind_of_control_group_has_them() -> None:
    both = SliceSettings(memory_mib=64, cpus=0.5)
    assert limits_of(CgroupBase("/x", 2, ("memory", "cpu", "pids")), both) == {
        "memory.max": str(64 * 2**20),
        "memory.swap.max": "0",
        "cpu.max": "50000 100000",
    }
    most = str(64 * 2**20)
    assert limits_of(CgroupBase("/x", 1, ("memory",)), both) == {
        "memory.limit_in_bytes": most,
        "memory.memsw.limit_in_bytes": most,
    }
    assert limits_of(CgroupBase("/x", 1, ("cpu",)), both) == {
        "cpu.cfs_period_us": "100000",
        "cpu.cfs_quota_us": "50000",
    }
    assert limits_of(CgroupBase("/x", 2, ("memory", "cpu")), SliceSettings()) == {}


@pytest.mark.parametrize(
    "plain", ["a", "a-b.c>=1,<2", "a[x,y] ~= 1.4", "a (>=1)", "a; python_version < '3.12'", "a==1.*"]
)
def test_packages_by_name_are_requirements(plain: str) -> None:
    assert _PLAIN.fullmatch(plain)


@pytest.mark.parametrize(
    "odd",
    ["--index-url=http://x", "-r x", "a @ http://x/a.whl", "./a", "/a", "http://x/a.whl", "a/b", "", "a b", "-e ."],
)
def test_whatever_else_pip_takes_is_none(odd: str) -> None:
    assert not _PLAIN.fullmatch(odd)


def test_calls_leave_the_machine_only_if_that_was_said() -> None:
    for host, insecure in (("127.0.0.1", False), ("::1", False), ("localhost", False), ("10.0.0.1", True)):
        check_slice_listen(load({"slice_listen": host, "insecure": insecure}, {}))
    with pytest.raises(Invalid, match="slice_listen 10.0.0.1"):
        check_slice_listen(load({"slice_listen": "10.0.0.1"}, {}))
