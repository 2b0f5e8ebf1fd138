"""The seed of a machine is laid in files of ours, whatever a process of the machine has put in their place."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from qemu_record import image, record

from hostler.drivers.machines.qemu.create import FIRMWARE, ISO, KEY, keep_identity, lay_seed
from hostler.drivers.machines.qemu.folder import MachineFolder
from hostler.drivers.machines.qemu.network import Attached
from hostler.drivers.machines.qemu.state import access_of
from hostler.drivers.machines.seed import new_host_key
from hostler.errors import Unavailable
from hostler.model.image import Seeding
from hostler.model.vm import VmSpec

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hostler.drivers.machines.qemu.machine import QemuMachine

ATTACHED = Attached(netdev="user,id=n0", host="127.0.0.1", port=1)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[MachineFolder]:
    made = MachineFolder(tmp_path / "m")
    made.create()
    keep_identity(made, new_host_key().private)
    yield made
    made.close()


def machine(folder: MachineFolder, seeding: Seeding, user: str = "") -> QemuMachine:
    found: Any = SimpleNamespace(
        record=record(image=image(seeding=seeding), spec=VmSpec(cpus=1, memory_mib=128, user=user)),
        folder=folder,
        site=SimpleNamespace(place="p"),
    )
    made: QemuMachine = found
    return made


@pytest.mark.parametrize("left", ["nothing", "a link", "a broken link", "a file", "a pipe", "a folder of ours"])
def test_the_files_of_the_firmware_are_in_a_folder_of_ours(folder: MachineFolder, tmp_path: Path, left: str) -> None:
    elsewhere, place = tmp_path / "elsewhere", folder.path / FIRMWARE
    elsewhere.mkdir()
    (elsewhere / "precious").write_text("kept")
    if left == "a link":
        place.symlink_to(elsewhere)
    elif left == "a broken link":
        place.symlink_to(tmp_path / "none")
    elif left == "a file":
        place.symlink_to(elsewhere / "precious")
    elif left == "a pipe":
        os.mkfifo(place)
    elif left == "a folder of ours":
        place.mkdir()
        (place / "old").touch()
        (place / "host_key").symlink_to(elsewhere / "precious")
    for _ in range(2):
        told = lay_seed(machine(folder, Seeding.FIRMWARE), ATTACHED)
        assert not place.is_symlink()
        assert {entry.name for entry in place.iterdir()} == set(told["firmware"])
        assert (place / "host_key").read_text() == (folder.path / KEY).read_text()
        assert {entry.lstat().st_mode & 0o777 for entry in place.iterdir()} == {0o600}
    assert {entry.name: entry.read_text() for entry in elsewhere.iterdir()} == {"precious": "kept"}
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("left", ["nothing", "a link", "a folder"])
def test_the_disk_of_a_seed_is_a_file_of_ours(folder: MachineFolder, tmp_path: Path, left: str) -> None:
    (tmp_path / "precious").write_text("kept")
    if left == "a link":
        (folder.path / ISO).symlink_to(tmp_path / "precious")
    elif left == "a folder":
        (folder.path / ISO / "in").mkdir(parents=True)
    for _ in range(2):
        assert lay_seed(machine(folder, Seeding.CLOUD_INIT), ATTACHED) == {"iso": True}
        assert b"cidata" in (folder.path / ISO).read_bytes()
    assert (tmp_path / "precious").read_text() == "kept"


def test_a_seed_that_cannot_be_laid_is_told(folder: MachineFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "mkdir", full)
    with pytest.raises(Unavailable, match="No space left"):
        lay_seed(machine(folder, Seeding.FIRMWARE), ATTACHED)


@pytest.mark.parametrize(("user", "told"), [("", "hostler"), ("student", "student")])
def test_a_guest_is_told_whom_its_machine_wants_and_else_its_image(folder: MachineFolder, user: str, told: str) -> None:
    one = machine(folder, Seeding.FIRMWARE, user)
    lay_seed(one, ATTACHED)
    assert (folder.path / FIRMWARE / "user").read_text() == told
    access = access_of(msgspec.structs.replace(one.record, host="fd00::5", port=22))
    assert access is not None
    assert access.user == told
    lay_seed(machine(folder, Seeding.CLOUD_INIT, user), ATTACHED)
    assert f'"name": "{told}"'.encode() in (folder.path / ISO).read_bytes()
