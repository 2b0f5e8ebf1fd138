"""What `hostler doctor` says of the clock of the server here."""

from __future__ import annotations

from email.utils import formatdate
from pathlib import Path

import pytest

from hostler.entry import doctor
from hostler.entry.finding import Level
from hostler.entry.folder import DataFolder
from hostler.settings import load

URL = "http://127.0.0.1:7070"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DataFolder:
    """The folder of a server that lives in 2001."""
    folder = DataFolder(tmp_path)
    folder.write(folder.server_file, URL)
    monkeypatch.setattr(doctor, "_asked", lambda url: formatdate(1e9, usegmt=True) if url == URL else None)
    return folder


def said(folder: DataFolder) -> list[str]:
    served, health = doctor._server(load({"data": folder.path}, environ={}, cwd=folder.path), folder)
    assert served.level is Level.OK
    return [finding.of for finding in health]


def test_a_server_whose_clock_is_apart_is_told_of(folder: DataFolder) -> None:
    assert said(folder) == ["clocks"]


def test_a_simulation_has_a_calendar_of_its_own(folder: DataFolder) -> None:
    folder.write(folder.simulation_file, "it is one")
    assert said(folder) == []
