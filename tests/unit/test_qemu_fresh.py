"""What another user has made is taken from them: whatever they still have open, it is not what was taken."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING

import pytest

from hostler.drivers.machines.qemu import disk
from hostler.drivers.machines.qemu.disk import take
from hostler.errors import Refused, Unavailable

if TYPE_CHECKING:
    from pathlib import Path

MIB = 2**20


@pytest.fixture
def as_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is made here is somebody else's."""
    monkeypatch.setattr(disk.os, "geteuid", lambda: os.getuid() + 1)


@pytest.mark.usefixtures("as_another")
async def test_who_still_has_it_open_cannot_write_to_what_was_taken(tmp_path: Path) -> None:
    made, target = tmp_path / "made", tmp_path / "target"
    made.write_bytes(b"content")
    target.write_bytes(b"of an earlier try")
    with made.open("r+b") as held:
        await take(made, target)
        held.write(b"CHANGED")
        held.flush()
        assert target.read_bytes() == b"content"
        assert target.stat().st_mode & 0o777 == 0o600
        assert not os.path.samestat(os.fstat(held.fileno()), target.stat())


async def test_what_we_made_is_ours_without_a_copy(tmp_path: Path) -> None:
    made, target = tmp_path / "made", tmp_path / "target"
    made.write_bytes(b"content")
    before = made.stat().st_ino
    await take(made, target)
    assert target.stat().st_ino == before
    assert not made.exists()


@pytest.mark.usefixtures("as_another")
@pytest.mark.parametrize("shared", [True, False], ids=["in the kernel", "where the file system cannot"])
async def test_a_copy_is_equal_and_as_thin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, shared: bool) -> None:
    if not shared:

        def cannot(*_: int) -> int:
            raise OSError(18, "Invalid cross-device link")

        monkeypatch.setattr(disk.os, "copy_file_range", cannot)
    monkeypatch.setattr(disk, "CHUNK", 50_000)
    made, target = tmp_path / "made", tmp_path / "target"
    with made.open("wb") as file:
        for offset, letter in ((0, b"a"), (8 * MIB, b"b"), (20 * MIB, b"c")):
            file.seek(offset)
            file.write(letter * 100_001)
        file.truncate(64 * MIB)
    await take(made, target)
    assert target.read_bytes() == made.read_bytes()
    assert target.stat().st_blocks * 512 < 4 * MIB


@pytest.mark.usefixtures("as_another")
@pytest.mark.parametrize("kind", ["link", "second name", "pipe", "folder"])
async def test_what_was_put_in_its_place_is_not_taken(tmp_path: Path, kind: str) -> None:
    secret, made, target = tmp_path / "secret", tmp_path / "made", tmp_path / "target"
    secret.write_text("of somebody")
    match kind:
        case "link":
            made.symlink_to(secret)
        case "second name":
            made.hardlink_to(secret)
        case "pipe":
            os.mkfifo(made)
        case _:
            made.mkdir()
    with pytest.raises((Refused, Unavailable)):
        await take(made, target)
    assert not target.exists()


@pytest.mark.usefixtures("as_another")
async def test_a_copy_that_is_cancelled_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, target = tmp_path / "made", tmp_path / "target"
    made.write_bytes(b"x" * MIB)
    begun, go = threading.Event(), threading.Event()
    copied: list[int] = []

    def slow(source: int, into: int, at: int, count: int) -> int:
        begun.set()
        go.wait(30)
        copied.append(at)
        return os.sendfile(into, source, at, count)

    monkeypatch.setattr(disk, "CHUNK", 4096)
    monkeypatch.setattr(disk, "_copy_range", slow)
    taking = asyncio.ensure_future(take(made, target))
    await asyncio.to_thread(begun.wait, 30)
    taking.cancel()
    await asyncio.sleep(0.01)
    assert not taking.done()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await taking
    assert copied == [0]
