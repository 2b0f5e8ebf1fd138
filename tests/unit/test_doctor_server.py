"""What `hostler doctor` says of the server here, and of its clock."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path

import pytest

from hostler.entry.data_dir import DataFolder
from hostler.entry.doctor import examination as doctor
from hostler.ports.machine_driver import Finding, Level
from hostler.settings import load

URL = "http://127.0.0.1:7070"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DataFolder:
    """The folder of a server that lives in 2001."""
    folder = DataFolder(tmp_path)
    folder.write(folder.server_file, URL)
    monkeypatch.setattr(doctor, "_server_date", lambda url: formatdate(1e9, usegmt=True) if url == URL else None)
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


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as found:
        yield found


def at_address(tmp_path: Path, listen: str, **more: str) -> Finding:
    settings = load({"data": tmp_path, "listen": listen, **more}, environ={}, cwd=tmp_path)
    return doctor._server(settings, DataFolder(tmp_path))[0]


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_replica_that_answers_at_its_address_is_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listener: socket.socket, scheme: str
) -> None:
    port = listener.getsockname()[1]
    url = f"{scheme}://127.0.0.1:{port}"
    monkeypatch.setattr(doctor, "_server_date", lambda asked: formatdate(usegmt=True) if asked == url else None)
    found = at_address(tmp_path, f"0.0.0.0:{port}")
    assert (found.level, found.what) == (Level.OK, f"{url} answers")


def test_an_address_that_another_program_has_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listener: socket.socket
) -> None:
    monkeypatch.setattr(doctor, "_server_date", lambda _: None)
    found = at_address(tmp_path, f"127.0.0.1:{listener.getsockname()[1]}")
    assert found.level is Level.FAIL
    assert "in use by another program" in found.what


def test_where_the_store_is_a_cluster_no_one_is_led_to_start_another_control_plane(tmp_path: Path) -> None:
    assert at_address(tmp_path, "127.0.0.1:0").next == "start it: hostler up"
    advice = at_address(tmp_path, "127.0.0.1:0", store="etcd://127.0.0.1:1").next
    assert advice.startswith("start the replica of this host: hostler replica")
