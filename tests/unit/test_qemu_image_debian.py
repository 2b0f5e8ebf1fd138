"""The build of the Debian guest, as far as it goes without packages."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hostler.drivers.machines.qemu.images import build_debian, debian
from hostler.drivers.machines.qemu.images.build_debian import DebianBuild
from hostler.drivers.machines.qemu.images.layout import ImageLayout, take
from hostler.errors import Refused, Unavailable

TOLD: list[str] = []


@pytest.fixture
def making(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DebianBuild]:
    monkeypatch.setattr(build_debian, "_refuse_without_tools", lambda: None)
    TOLD.clear()
    with ImageLayout(tmp_path / "images").scratch() as scratch:
        yield DebianBuild(scratch, lambda what, *_: TOLD.append(what), cache=tmp_path / "cache")


def test_what_is_missing_is_named_with_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        build_debian.shutil, "which", lambda tool, **_: None if tool == "mmdebstrap" else "/bin/" + tool
    )
    with (
        pytest.raises(Refused, match="mmdebstrap is missing; install mmdebstrap, or build tiny"),
        ImageLayout(tmp_path).scratch() as scratch,
    ):
        DebianBuild(scratch, lambda *_: None, cache=tmp_path)
    monkeypatch.setattr(build_debian.shutil, "which", lambda *_, **__: None)
    with pytest.raises(Refused, match="install .*e2fsprogs .*qemu-utils"), ImageLayout(tmp_path).scratch() as scratch:
        DebianBuild(scratch, lambda *_: None, cache=tmp_path)


def test_the_initrd_holds_modules_in_their_order_and_a_program_for_each_word_of_its_script() -> None:
    packed = build_debian._initrd([("virtio", b"1"), ("virtio_blk", b"2")], b"busybox")
    assert b"virtio virtio_blk\n" in packed
    assert packed.index(b"lib/modules/virtio.ko") < packed.index(b"lib/modules/virtio_blk.ko")
    words = set(debian.text("init").decode().split())
    assert set(build_debian.APPLETS) - {"sh"} <= words


def test_every_file_of_the_guest_is_there() -> None:
    assert all(debian.text(name) for name in (*debian.FILES.values(), "init"))
    assert b"hostler ready" in debian.text("ready.service")


def test_a_program_that_fails_is_told_by_its_first_complaint() -> None:
    argv = ("mmdebstrap", "x")
    found = build_debian._failure_of(argv, "I: begun\nE: first\nW: other\nE: mmdebstrap failed to run\n")
    assert isinstance(found, Refused)
    assert "mmdebstrap failed: E: first;" in str(found)
    assert isinstance(build_debian._failure_of(argv, "E: Failed to fetch http://h/x"), Unavailable)
    assert "no reason given" in str(build_debian._failure_of(argv, ""))


async def test_what_a_program_is_at_is_told_and_its_failure_raised(making: DebianBuild) -> None:
    told = await making._run("sh", "-c", "echo out; echo 'I: installing packages...' >&2")
    assert told == "out\nI: installing packages...\n"
    assert TOLD == ["installing packages..."]
    with pytest.raises(Refused, match="E: no"):
        await making._run("sh", "-c", "echo 'E: no' >&2; exit 3")


async def test_a_program_ends_with_whoever_wanted_it_and_has_the_folder_until_then(making: DebianBuild) -> None:
    running = asyncio.ensure_future(making._run("sh", "-c", "echo I: $$ > pid; exec sleep 60"))
    pid = making._path / "pid"
    async with asyncio.timeout(20):
        while not pid.exists() or not pid.read_text():
            await asyncio.sleep(0.01)
    child = int(pid.read_text().split()[1])
    lock = os.open(f"{making._path}.lock", os.O_RDONLY)
    inherited = os.readlink(f"/proc/{child}/fd/{making._lock}")
    assert inherited == f"{making._path}.lock"
    assert not take(lock, fcntl.LOCK_EX)
    os.close(lock)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
