"""The limit of open files: raised to the hard limit at start, and told where it is low."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hostler.entry import process
from hostler.entry.data_dir import DataFolder
from hostler.ports.machine_driver import Level
from hostler.settings import load

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def hard() -> Iterator[int]:
    """A soft limit of 1,024; it is restored afterwards. The hard limit, which stays."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    yield hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_soft_limit_becomes_the_hard_one_and_both_are_told(hard: int) -> None:
    told: list[str] = []
    limit = process.raise_open_files(told.append)
    assert limit == min(hard, process.MOST) if hard > 0 else process.MOST
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == limit
    assert told == [f"open files: at most {limit} (initially 1024)"]


def test_a_low_limit_is_told_with_what_to_do(hard: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert hard
    told: list[str] = []
    monkeypatch.setattr(process, "ENOUGH", 1 << 30)
    process.raise_open_files(told.append)
    assert "LimitNOFILE" in told[0]


def test_connections_have_a_part_of_the_files(hard: int, tmp_path: Path) -> None:
    assert hard
    settings = load({"data": tmp_path}, environ={}, cwd=tmp_path)
    assert process.api_limits(settings).total == 512
    assert process.relay_limits(settings).total == 256
    process.raise_open_files(lambda _: None)
    assert process.api_limits(settings).total == min(8192, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)


def test_doctor_reads_the_limit_of_the_process_that_runs(
    hard: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = DataFolder(tmp_path)
    assert process.examine_open_files(folder).what.startswith("a process started here")
    with folder.held():  # by this process, which may open 1,024 files
        found = process.examine_open_files(folder)
        assert (found.of, found.level) == ("open files", Level.WARN)
        assert "1,024" in found.what
        assert "LimitNOFILE" in found.next
        process.raise_open_files(lambda _: None)
        monkeypatch.setattr(process, "ENOUGH", min(hard, process.MOST))
        assert process.examine_open_files(folder).level is Level.OK
