"""Unix sockets in folders with long paths, with and without `/proc`, on every Python."""

from __future__ import annotations

import ast
import asyncio
import os
import socket
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import hostler
from hostler.kit import host as this_host
from hostler.kit.host import LEAVE_FILE, LONGEST, short_path

if TYPE_CHECKING:
    from collections.abc import Iterator

DEEP = "a-folder-whose-name-is-long/" * 6


@pytest.fixture(params=["/proc", "no /proc"])
def host(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "no /proc":
        monkeypatch.setattr(this_host, "_DESCRIPTORS", "/proc-of-another-system/self/fd")
    return str(request.param)


@contextmanager
def listening(folder: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        with short_path(folder, "it.sock") as path:
            listener.bind(path)
        listener.listen(4)
        yield listener


@pytest.mark.parametrize("below", ["", DEEP])
async def test_a_socket_in_any_folder_is_bound_and_reached(host: str, below: str, tmp_path: Path) -> None:
    folder = tmp_path / below
    folder.mkdir(parents=True, exist_ok=True)
    with listening(folder), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        assert (folder / "it.sock").is_socket()
        with short_path(folder, "it.sock") as path:
            assert len(path) <= LONGEST
            caller.connect(path)


def test_the_temporary_link_is_removed_and_the_folder_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(this_host, "_DESCRIPTORS", "/proc-of-another-system/self/fd")
    folder = tmp_path / DEEP
    folder.mkdir(parents=True)
    (folder / "kept").write_text("data")
    with short_path(folder, "it.sock") as path:
        own = Path(path).parents[1]
        assert own.is_dir()
        assert (Path(path).parent / "kept").read_text() == "data"
    assert not own.exists()
    assert (folder / "kept").read_text() == "data"


async def test_a_server_starts_and_ends_when_its_address_leads_nowhere(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker gets the socket that its agent bound through a descriptor of its own."""
    heard = asyncio.Event()
    with listening(tmp_path) as listener:
        descriptor = int(listener.getsockname().split("/")[-2])  # of the folder, and closed by now
        file = os.open(tmp_path / "a file", os.O_WRONLY | os.O_CREAT)
        if file != descriptor:  # the address leads through a file
            os.dup2(file, descriptor)
            os.close(file)
        server = await asyncio.start_unix_server(lambda *_: heard.set(), sock=listener, **LEAVE_FILE)
        with short_path(tmp_path, "it.sock") as path:
            _, writer = await asyncio.open_unix_connection(path)
        await heard.wait()
        writer.close()
        server.close()
        os.close(descriptor)
    assert caplog.messages == []


def test_no_server_of_a_unix_socket_asks_asyncio_to_delete_its_file() -> None:
    """On Python 3.13 one that does cannot start, or logs an error at its end."""
    found, wrong = 0, []
    for path in Path(hostler.__file__).parent.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if "unix_server" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            name = getattr(node.func, "attr", "") if isinstance(node, ast.Call) else ""
            if isinstance(node, ast.Call) and name in ("start_unix_server", "create_unix_server"):
                found += 1
                spread = [ast.unparse(one.value) for one in node.keywords if one.arg is None]
                wrong += [] if "LEAVE_FILE" in spread else [f"{path.name}:{node.lineno}"]
    assert found >= 5
    assert wrong == []
