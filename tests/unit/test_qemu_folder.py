"""The folders of a node and of its machines."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from qemu_scene import eventually, machine_of, now

from hostler.drivers.machines.qemu import dead_mans_switch
from hostler.drivers.machines.qemu.folder import ALIVE, LOG, MachineFolder, NodeFolder, folder_name
from hostler.errors import Closed, Damaged, Invalid, Unavailable
from hostler.kit.clock import boot_id

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def place(tmp_path: Path) -> Iterator[NodeFolder]:
    with NodeFolder(tmp_path / "node") as opened:
        yield opened


@pytest.fixture
def folder(place: NodeFolder) -> Iterator[MachineFolder]:
    with machine_of(place) as made:
        yield made


@pytest.mark.parametrize("vm", ["a", "A.b_c-9", "x" * 64, "-drive"])
def test_a_plain_id_names_its_folder(vm: str) -> None:
    assert folder_name(vm) == vm


@pytest.mark.parametrize("vm", ["", ".", "..", ".hidden", "a/b", "../x", "a b", "a\n", "é", "x" * 65, "\0", "a,b=c"])
def test_any_other_id_gets_a_name_that_can_be_no_path_and_no_option(vm: str) -> None:
    name = folder_name(vm)
    assert len(name) == 65
    assert name.isalnum()
    assert name != folder_name(vm + "'")


def test_a_place_keeps_its_id_and_belongs_to_one(tmp_path: Path) -> None:
    first = NodeFolder(tmp_path)
    with pytest.raises(Closed):
        _ = first.id
    with first, pytest.raises(Unavailable, match="another process has them open"):
        NodeFolder(tmp_path).open()
    with first, pytest.raises(Unavailable, match="another process has them open"):
        first.open()
    with NodeFolder(tmp_path) as second:
        assert second.id == first.id


def test_a_place_that_is_damaged_says_so_and_one_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "place").write_text("{")
    for _ in range(2):  # and its lock is let go of
        with pytest.raises(Damaged, match="not written by Hostler"):
            NodeFolder(tmp_path).open()
    with pytest.raises(Invalid, match="name a folder"):
        NodeFolder(tmp_path / "place").open()


async def test_a_removed_folder_is_gone_at_once_and_what_a_crash_left_goes_with_the_next_open(
    place: NodeFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = place.machine("one"), place.machine("a/b")
    for each in (one, two):
        each.create()
        (each.path / "sub").mkdir()
    assert [each.name for each in place.machines()] == ["one", folder_name("a/b")]
    await one.remove()
    await one.remove()
    assert not one.path.exists()
    with monkeypatch.context() as patch:
        patch.setattr("hostler.drivers.machines.qemu.folder._remove", lambda _: None)
        await two.remove()
    assert place.machines() == []
    assert list(place.machines_path.iterdir()) != []
    place.close()
    place.open()
    assert list(place.machines_path.iterdir()) == []


@pytest.mark.parametrize("trap", ["symlink", "dangling", "hard link", "pipe", "nobody"])
def test_a_file_of_ours_is_never_somebody_elses(folder: MachineFolder, tmp_path: Path, trap: str) -> None:
    victim, name = tmp_path / "victim", folder.path / LOG
    victim.write_text("precious")
    match trap:
        case "symlink":
            name.symlink_to(victim)
        case "dangling":
            name.symlink_to(tmp_path / "none")
        case "hard link":
            name.hardlink_to(victim)
        case "pipe":
            os.mkfifo(name)
    descriptor = folder.open_ours(LOG, os.O_WRONLY | os.O_APPEND | os.O_TRUNC)
    os.write(descriptor, b"said")
    os.close(descriptor)
    assert victim.read_text() == "precious"
    assert not (tmp_path / "none").exists()
    assert name.read_bytes() == b"said"
    assert name.stat().st_mode & 0o777 == 0o600


def test_what_qemu_said_is_one_printable_line(folder: MachineFolder) -> None:
    assert folder.said() == ""
    (folder.path / LOG).write_bytes(b"x" * 5000 + b"\n2026-01-02T03:04:05.6Z qemu: one\n\n\x1b[31mtwo\xff\n")
    said = folder.said()
    assert said.endswith("qemu: one;  [31mtwo\N{REPLACEMENT CHARACTER}")
    assert said.isprintable()
    assert len(said) <= 600


def test_a_hold_counts_until_its_end_and_only_if_it_is_whole_and_of_this_boot(place: NodeFolder) -> None:
    assert not place.held(now())
    place.hold(now() + 100)
    assert place.held(now())
    assert not place.held(now() + 101)
    place.hold(now() + 1)
    assert not place.held(now() + 2)
    whole = dead_mans_switch.hold_text(boot_id(), now() + 100)
    for text in (
        "",
        *(whole[:length] for length in range(len(whole))),
        whole + "x",
        dead_mans_switch.hold_text("b", now() + 100),
    ):
        place.hold_path.write_text(text)
        assert not place.held(now()), text
    for until in ("nan", "x", ""):
        place.hold_path.write_text(f"hold {boot_id()} {until} .\n")
        assert not place.held(0.0)
    place.hold_path.write_bytes(b"\xff\xfe")
    assert not place.held(now())
    place.hold_path.unlink()
    assert not place.held(now())
    place.hold_path.mkdir()
    assert not place.held(now())


# What a QEMU that was taken over leaves


def deep(path: Path, depth: int) -> None:
    """Folders in folders, deeper than any name can say."""
    path.mkdir()
    before = os.open(".", os.O_PATH)
    os.chdir(path)
    try:
        for _ in range(depth):
            os.mkdir("d")
            os.chdir("d")
    finally:
        os.fchdir(before)
        os.close(before)


@pytest.mark.slow
async def test_folders_in_folders_without_end_are_removed_like_anything_else(
    place: NodeFolder, folder: MachineFolder
) -> None:
    deep(folder.path / "in the way", sys.getrecursionlimit() + 200)
    folder.forget("in the way")
    assert not (folder.path / "in the way").exists()
    await eventually(lambda: [path.name for path in place.machines_path.iterdir()] == ["m"])
    other = place.machine("other")
    other.create()
    deep(other.path / "d", sys.getrecursionlimit() + 200)
    await other.remove()
    assert [path.name for path in place.machines_path.iterdir()] == ["m"]


def test_only_a_file_of_ours_is_read_as_such(folder: MachineFolder) -> None:
    (folder.path / "one").write_text("ours")
    assert folder.read_ours("one", 2) == b"ou"
    (folder.path / "link").symlink_to("one")
    (folder.path / "other").hardlink_to(folder.path / "one")
    for name in ("link", "other", "none"):
        with pytest.raises(OSError, match=r"symbolic link|is a link|No such file"):
            folder.read_ours(name, 2)
    folder.forget_foreign("link", "none", ALIVE)
    assert sorted(path.name for path in folder.path.iterdir()) == [ALIVE, "one", "other"]
