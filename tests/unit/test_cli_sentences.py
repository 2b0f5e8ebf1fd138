"""Sentences of the command line that are made of parts, where a part is missing; and a reader that goes away."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hostler.entry.cli.demo import Show
from hostler.entry.cli.plane_options import called
from hostler.entry.cli.sim.control import line
from hostler.model.sim_api import SimLogEntry


class Gone:
    """An output whose reader has gone away."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return False

    def write(self, _: str) -> int:
        raise BrokenPipeError

    def flush(self) -> None:
        raise BrokenPipeError

    def fileno(self) -> int:
        return -1


def test_what_can_be_typed_names_the_program_the_shorter_way(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "a" / "b" / "c").mkdir(parents=True)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["/opt/hostler/bin/hostler"])
    monkeypatch.chdir(tmp_path / "a" / "b" / "c")
    assert called() == "/opt/hostler/bin/hostler"
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "a" / "b" / "c" / "bin" / "hostler")])
    assert called() == "bin/hostler"


def test_an_entry_without_a_text_ends_with_what_it_is_about() -> None:
    entry = SimLogEntry(number=1, at=300.0, what="asked", component="expect", text="", cause="")
    assert line(entry) == "     300.000  asked     expect"


def test_the_tour_tells_that_its_reader_went_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Gone())
    with pytest.raises(BrokenPipeError):
        Show().scene("Put and watch", "One task writes.")
