"""The programs in C of the tiny guest, out of the image's initrd: they run here as they run in the guest."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hostler.drivers.machines.qemu.images import formats, guest

if TYPE_CHECKING:
    from hostler.drivers.machines.qemu.images.folder import ImageFolder


@pytest.fixture(scope="module")
def programs(images: ImageFolder) -> dict[str, bytes]:
    _, files = images.find("tiny")
    packed = unpacked((files / "initrd").read_bytes())
    return {name: packed[f"system/bin/{name}"] for name in guest.COMPILED}


def unpacked(archive: bytes) -> dict[str, bytes]:
    """Files by path of an archive in the kernel's format `newc`."""
    files, at = {}, 0
    while True:
        size, name_size = (int(archive[at + start : at + start + 8], 16) for start in (54, 94))
        name = archive[at + 110 : at + 110 + name_size - 1].decode()
        if name == "TRAILER!!!":
            return files
        at += -(-(110 + name_size) // 4) * 4
        files[name] = archive[at : at + size]
        at += -(-size // 4) * 4


def ran(path: Path, code: bytes, *arguments: str, given: bytes = b"", user: int | None = None) -> tuple[int, str]:
    path.write_bytes(code)
    path.chmod(0o755)
    done = subprocess.run([path, *arguments], input=given, capture_output=True, check=False, user=user, timeout=60)
    return done.returncode, done.stderr.decode()


def test_they_are_small_and_need_no_library(programs: dict[str, bytes]) -> None:
    for content in programs.values():
        assert len(content) < 4096
        assert formats.needed_libraries(content) == []
        assert formats.interpreter(content) is None


def test_the_loader_of_modules_counts_those_that_it_could_not_load(programs: dict[str, bytes], tmp_path: Path) -> None:
    assert ran(tmp_path / "load", programs["load"])[0] == 0
    (tmp_path / "none.ko").write_bytes(b"no module")
    files = [str(tmp_path / name) for name in ("absent.ko", "none.ko", "absent.ko")]
    assert ran(tmp_path / "load", programs["load"], *files)[0] == 3


def test_programs_that_cannot_do_it_say_so(programs: dict[str, bytes], tmp_path: Path) -> None:
    assert ran(tmp_path / "reseed", programs["reseed"])[0] == 1, "nothing was given"
    assert ran(tmp_path / "grow", programs["grow"])[0] == 1
    assert ran(tmp_path / "grow", programs["grow"], "/nonexistent", str(tmp_path))[0] == 1
    plain = tmp_path / "plain"
    plain.write_bytes(b"")
    assert ran(tmp_path / "grow", programs["grow"], str(plain), str(tmp_path))[0] == 1, "a file is no device"


def test_who_may_not_become_root_does_not(programs: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)  # another user must find it there
        path = Path(folder) / "sudo"
        root = os.getuid() == 0
        if root:  # it becomes root and runs its script, which only the guest has
            assert "/lib/hostler/sudo" in ran(path, programs["sudo"], "id")[1]
        assert ran(path, programs["sudo"], "id", user=65534 if root else None) == (1, "")
