"""A machine's disk: overlays, snapshots inside them and copies of those."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from hostler.drivers.machines.qemu.disk import BASE, COPY, DISK, Disk, layers, qemu_img
from hostler.errors import Refused, Unavailable

if TYPE_CHECKING:
    from pathlib import Path

MIB = 2**20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A machine's folder: its base is one MiB of the letter b."""
    made = tmp_path / "machine"
    made.mkdir()
    (made / "raw").write_bytes(b"b" * MIB)
    subprocess.run(["qemu-img", "convert", "-O", "qcow2", "raw", BASE], cwd=made, check=True)
    return made


def content(folder: Path, offset: int = 0) -> bytes:
    """Eight bytes of the disk, as a guest would read them."""
    subprocess.run(
        ["qemu-img", "convert", "-O", "raw", "json:" + json.dumps(layers("qcow2")), "out"], cwd=folder, check=True
    )
    return (folder / "out").read_bytes()[offset : offset + 8]


def fill(folder: Path, letter: str) -> None:
    """What a guest would write at the start."""
    image = "json:" + json.dumps(layers("qcow2"))
    subprocess.run(
        ["qemu-io", "-c", f"write -P {ord(letter)} 0 64k", image], cwd=folder, check=True, capture_output=True
    )


async def test_an_overlay_shows_its_base_and_is_as_large_as_asked_for(folder: Path) -> None:
    disk = Disk(folder, "qcow2")
    await disk.create(4 * MIB)
    assert content(folder) == b"b" * 8
    assert content(folder, 2 * MIB) == bytes(8)
    assert await disk.grow(2 * MIB) == 4 * MIB, "it never shrinks"
    assert await disk.grow(8 * MIB) == 8 * MIB
    assert await disk.grow(0) == 8 * MIB


async def test_a_snapshot_is_gone_back_to_and_dropped_again_and_again(folder: Path) -> None:
    disk = Disk(folder, "qcow2")
    await disk.create(4 * MIB)
    fill(folder, "x")
    await disk.snapshot("s1")
    fill(folder, "y")
    assert await disk.snapshots() == ["s1"]
    await disk.grow(8 * MIB)
    for _ in range(2):
        await disk.revert("s1")
        assert content(folder) == b"x" * 8
    for _ in range(2):
        await disk.drop("s1")
        assert await disk.snapshots() == []


async def test_a_copy_of_a_snapshot_is_a_disk_of_its_own(folder: Path, tmp_path: Path) -> None:
    disk = Disk(folder, "qcow2")
    await disk.create(4 * MIB)
    fill(folder, "x")
    await disk.snapshot("s1")
    fill(folder, "y")
    other = tmp_path / "other"
    other.mkdir()
    (other / BASE).hardlink_to(folder / BASE)
    await disk.copy("s1", other)
    assert content(other) == b"x" * 8
    assert content(other, 2 * 64 * 1024) == b"b" * 8
    fill(other, "z")
    await Disk(other, "qcow2").drop("s1")  # it has none
    assert content(folder) == b"y" * 8
    assert not (folder / COPY).exists()
    with pytest.raises(Refused):
        await disk.copy("none", other)
    assert not (folder / COPY).exists()


async def test_who_had_the_copy_open_cannot_write_to_the_new_disk(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy is made as the user of the first machine, whose process a guest may have taken over."""
    disk, other = Disk(folder, "qcow2"), tmp_path / "other"
    other.mkdir()
    (other / BASE).hardlink_to(folder / BASE)
    await disk.create(4 * MIB)
    fill(folder, "x")
    await disk.snapshot("s1")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with (folder / COPY).open("w+b") as held:
        await disk.copy("s1", other)
        assert held.seek(0, os.SEEK_END) > MIB // 16, "qemu-img made another file; this shows nothing"
        held.truncate(0)
        assert content(other) == b"x" * 8
    assert not (folder / COPY).exists()


async def test_a_file_name_inside_an_image_is_never_followed(folder: Path) -> None:
    secret = folder / "secret"
    secret.write_bytes(b"s" * MIB)
    subprocess.run(
        ["qemu-img", "create", "-q", "-f", "qcow2", "-b", str(secret), "-F", "raw", BASE], cwd=folder, check=True
    )
    disk = Disk(folder, "qcow2")
    await disk.create(MIB)
    await disk.snapshot("s1")
    assert content(folder) == bytes(8)


async def test_what_cannot_be_is_said_with_the_words_of_the_tool(folder: Path) -> None:
    (folder / DISK).write_bytes(b"this is no disk")
    with pytest.raises(Refused, match="qemu-img info"):
        await Disk(folder, "qcow2").snapshots()


async def test_a_call_that_is_cancelled_has_ended(folder: Path) -> None:
    slow = ("sh", "-c", "exec sleep 60")
    task = asyncio.create_task(qemu_img(folder, ("create",), wrap=lambda _: slow))
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task  # that no process is left, the fixture of all tests checks


async def test_a_call_that_takes_too_long_is_ended(folder: Path) -> None:
    with pytest.raises(Unavailable, match="within"):
        await qemu_img(folder, ("create",), wrap=lambda _: ("sleep", "60"), within=0.05)


async def test_a_tool_that_is_not_there_is_said(folder: Path) -> None:
    with pytest.raises(Unavailable, match="no-such-tool"):
        await qemu_img(folder, ("create",), wrap=lambda _: ("no-such-tool",))


async def test_how_large_it_is_is_told_without_a_process_also_after_a_snapshot_made_it_small(folder: Path) -> None:
    disk = Disk(folder, "qcow2")
    with pytest.raises(Unavailable, match="cannot be read"):
        disk.virtual_bytes()
    await disk.create(4 * MIB)
    await disk.snapshot("s1")
    await disk.grow(8 * MIB)
    assert disk.virtual_bytes() == 8 * MIB
    await disk.revert("s1")
    assert disk.virtual_bytes() == 4 * MIB
    await disk.grow(8 * MIB)
    assert disk.virtual_bytes() == 8 * MIB
    (folder / DISK).write_bytes(b"x" * 64)
    with pytest.raises(Unavailable, match="not a qcow2 disk any more"):
        disk.virtual_bytes()
    (folder / DISK).unlink()
    (folder / DISK).symlink_to(folder / BASE)
    with pytest.raises(Unavailable, match="cannot be read"):
        disk.virtual_bytes()
