"""The watch sees what must never be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import table
from .watching import NOISE, Watching

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

HERE, THERE = table.Process(1, "r1-1", "vm", is_qemu=True), table.Process(2, "r1-2", "vm", is_qemu=True)


def watched(patch: pytest.MonkeyPatch, folder: Path, looks: list[dict[table.Process, int]]) -> list[str]:
    """What is wrong with processes whose guests had so much time by each look."""
    watching = Watching(folder)
    for look in looks:
        patch.setattr(table, "processes", lambda _, look=look: list(look))
        patch.setattr(table, "run_time", {process.pid: had for process, had in look.items()}.__getitem__)
        watching.look()
    return watching.wrong


def test_a_guest_that_stops_here_and_goes_on_there_is_as_it_should_be(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ran = 2 * NOISE
    looks = [{HERE: 0, THERE: 0}, {HERE: ran, THERE: 0}, {HERE: 2 * ran, THERE: ran}, {HERE: 2 * ran, THERE: 2 * ran}]
    assert watched(monkeypatch, tmp_path, looks) == []


def test_a_guest_that_runs_in_two_places_is_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    looks = [{HERE: time, THERE: time} for time in (0, 2 * NOISE, 4 * NOISE)]
    assert "runs twice" in watched(monkeypatch, tmp_path, looks)[0]


def test_a_second_process_in_one_place_is_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    looks = [{HERE: 0, HERE._replace(pid=3): 0}]
    assert "two processes in one place" in watched(monkeypatch, tmp_path, looks)[0]
