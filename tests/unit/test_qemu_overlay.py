"""A new disk over a base is what `qemu-img` makes, whoever makes it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hostler.drivers.machines.qemu import disk
from hostler.drivers.machines.qemu.disk import BASE, DISK, Disk, lay, layers
from hostler.errors import Unavailable

MIB = 2**20


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    monkeypatch.setattr(disk, "_kept", disk._kept.copy())
    disk._kept.clear()
    found = [tmp_path / name for name in "ab"]
    for folder in found:
        folder.mkdir()
        (folder / BASE).write_bytes(folder.name.encode() * MIB)
    return found


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What `qemu-img` was asked for."""
    found: list[str] = []
    real = disk.qemu_img

    async def counted(folder: Path, words: Any, **options: Any) -> bytes:
        found.append(words[0])
        return await real(folder, words, **options)

    monkeypatch.setattr(disk, "qemu_img", counted)
    return found


async def test_the_second_of_a_size_is_a_copy_over_a_base_of_its_own(folders: list[Path], calls: list[str]) -> None:
    for folder in folders:
        (folder / DISK).write_bytes(b"half of something")
        await lay(Disk(folder, "raw"), folder, "raw", 4 * MIB)
    assert calls == ["create"]
    first, second = ((folder / DISK).read_bytes() for folder in folders)
    assert first == second
    assert (folders[1] / DISK).stat().st_mode & 0o777 == 0o600
    image = "json:" + json.dumps(layers("raw"))
    subprocess.run(["qemu-img", "convert", "-O", "raw", image, "out"], cwd=folders[1], check=True)
    seen = (folders[1] / "out").read_bytes()
    assert seen == b"b" * MIB + bytes(3 * MIB)
    await lay(Disk(folders[0], "raw"), folders[0], "raw", 8 * MIB)
    assert calls == ["create"] * 2, "another size is another disk"
    elsewhere = folders[0] / "c"
    elsewhere.mkdir()
    await lay(Disk(elsewhere, "raw"), elsewhere, "raw", 8 * MIB)
    assert calls == ["create"] * 3, "another place has its own"


async def test_only_some_small_ones_are_kept(
    folders: list[Path], calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folders[0]
    monkeypatch.setattr(disk, "KEPT", 1)
    for size in (1, 2, 1):
        await lay(Disk(folder, "raw"), folder, "raw", size * MIB)
    assert calls == ["create"] * 3
    assert len(disk._kept) == 1
    disk._kept.clear()
    monkeypatch.setattr(disk, "KEPT_BYTES", 1000)
    await lay(Disk(folder, "raw"), folder, "raw", MIB)
    assert disk._kept == {}


async def test_a_disk_that_cannot_be_written_is_said(folders: list[Path]) -> None:
    await lay(Disk(folders[0], "raw"), folders[0], "raw", MIB)
    gone = folders[0].with_name("gone")
    with pytest.raises(Unavailable, match="cannot create the disk: No such file"):
        await lay(Disk(gone, "raw"), gone, "raw", MIB)
