"""Saved states: which one fits, where they are, and how many."""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from hostler.drivers.machines.qemu import saved_state
from hostler.drivers.machines.qemu.command import Boot, Wiring, command
from hostler.model.image import Image, Probe, Seeding

if TYPE_CHECKING:
    from pathlib import Path

DIGEST = "0" * 64


def image(**changes: Any) -> Image:
    fields: dict[str, Any] = {
        "digest": DIGEST, "files": {"disk": DIGEST, "kernel": DIGEST, "initrd": DIGEST}, "disk_bytes": 2**20,
        "append": "quiet", "user": "u", "seeding": Seeding.FIRMWARE, "probe": Probe.SSH, "source": "a test",
        "made_at": 0.0,
    }  # fmt: skip
    return Image(**(fields | changes))


def shape(**changes: Any) -> saved_state.SavedShape:
    fields: dict[str, Any] = {
        "image": image(), "cpus": 1, "memory_mib": 128, "accelerator": "tcg", "version": "7.2", "processor": "max",
    }  # fmt: skip
    return saved_state.SavedShape(**(fields | changes))


def made(folder: Path, size: int = 8) -> Path:
    path = folder / "made"
    path.write_bytes(b"x" * size)
    return path


@pytest.mark.parametrize(
    "changes",
    [
        {"cpus": 2},
        {"memory_mib": 129},
        {"accelerator": "kvm"},
        {"version": "7.3"},
        {"processor": "other"},
        {"image": image(digest="1" * 64)},
        {"image": image(append="loud")},
        {"image": image(disk_format="raw")},
    ],
)
def test_a_state_of_another_shape_does_not_fit(changes: dict[str, Any]) -> None:
    assert shape(**changes).key != shape().key


def test_a_state_fits_only_the_command_line_that_machines_have(monkeypatch: pytest.MonkeyPatch) -> None:
    before = shape().key
    monkeypatch.setattr("hostler.drivers.machines.qemu.command.MACHINE", "pc")
    assert shape().key != before


def test_a_template_has_the_devices_of_a_machine_and_nothing_of_an_identity() -> None:
    template = saved_state.template_command(shape())
    record = msgspec.structs.replace(_record_of(shape()), mac="52:54:00:aa:bb:cc")
    wiring = Wiring(accelerator="tcg", netdev="user,id=n0", firmware=("host_key",))
    machine = command(record, wiring, Boot())

    def devices(argv: list[str]) -> list[str]:
        return [word.partition(",mac=")[0] for at, word in enumerate(argv) if argv[at - 1] in ("-device", "-serial")]

    assert devices(template) == devices(machine)
    assert "-fw_cfg" not in template
    assert any(word.endswith(saved_state.ARGUMENT) for word in template)


def _record_of(of: saved_state.SavedShape) -> Any:
    from hostler.drivers.machines.qemu.state import MachineRecord
    from hostler.model.vm import VmSpec
    from hostler.ports.machines import Label

    spec = VmSpec(cpus=of.cpus, memory_mib=of.memory_mib)
    return MachineRecord(label=Label("o", "p", "v"), spec=spec, number=1, image=of.image, mac="", host_key="")


def test_what_is_kept_is_found_and_cannot_be_written_through_what_finds_it(tmp_path: Path) -> None:
    assert saved_state.open_state(tmp_path, shape()) is None
    saved_state.keep(tmp_path, shape(), made(tmp_path))
    descriptor = saved_state.open_state(tmp_path, shape())
    assert descriptor is not None
    try:
        assert os.read(descriptor, 100) == b"x" * 8
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.write(descriptor, b"y")
    finally:
        os.close(descriptor)
    assert saved_state.open_state(tmp_path, shape(cpus=2)) is None


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    saved_state.keep(tmp_path, shape(), made(tmp_path))
    path = shape().path(tmp_path)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert saved_state.open_state(tmp_path, shape()) is None


def test_only_so_many_are_kept_and_the_unused_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved_state, "STATES_AT_MOST", 2)
    for cpus in (1, 2):
        saved_state.keep(tmp_path, shape(cpus=cpus), made(tmp_path))
        os.utime(shape(cpus=cpus).path(tmp_path), (cpus, cpus))
    os.close(saved_state.open_state(tmp_path, shape(cpus=1)) or -1)  # used just now
    saved_state.keep(tmp_path, shape(cpus=3), made(tmp_path))
    left = {entry.name for entry in (tmp_path / "warm").iterdir()}
    assert left == {"1x128", "3x128"}


def test_only_so_many_bytes_are_kept_but_always_the_latest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved_state, "BYTES_AT_MOST", 3 * 4096)
    for cpus in (1, 2):
        saved_state.keep(tmp_path, shape(cpus=cpus), made(tmp_path, size=2 * 4096))
    assert not shape(cpus=1).path(tmp_path).exists()
    saved_state.keep(tmp_path, shape(cpus=3), made(tmp_path, size=9 * 4096))
    assert [path.parent.name for path in tmp_path.glob("warm/*/*")] == ["3x128"]


def test_what_a_killed_maker_left_goes_when_nothing_works_there_any_more(tmp_path: Path) -> None:
    place = tmp_path / "warm"
    (place / ".making-dead").mkdir(parents=True)
    (place / ".making-dead.lock").touch()
    (place / ".making-busy").mkdir()
    with (place / ".making-busy.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with saved_state.making(tmp_path) as (folder, _):
            assert folder.is_dir()
            names = {entry.name for entry in place.iterdir()}
            assert ".making-dead" not in names
            assert ".making-dead.lock" not in names
            assert ".making-busy" in names
        assert not folder.exists()
