"""The state file: whole or as it was; and what a machine is by it."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from qemu_record import record

from hostler.drivers.machines.qemu import state
from hostler.drivers.machines.qemu.pid_lookup import Run
from hostler.drivers.machines.qemu.state import (
    HOST_BOOTED,
    LAPSED,
    Begun,
    Life,
    MemoryFit,
    Restoring,
    SnapshotRecord,
    access_of,
    detail_off,
    state_of,
    why_off,
)
from hostler.errors import Damaged, Unavailable
from hostler.kit.clock import boot_id
from hostler.model.vm import MachineState as State

if TYPE_CHECKING:
    from pathlib import Path

FIT = MemoryFit(cpus=1, memory_mib=128, accelerator="tcg", version="7.2")
HERE = Run(pid=7, start_time=1, boot_id=boot_id())
FULL = record(
    life=Life.WHOLE,
    begun=Begun.STARTING,
    run=HERE,
    restoring=Restoring(snapshot="a name", number=3),
    snapshots={
        "a name": SnapshotRecord(tag="s1", taken_at=1.0, memory=FIT),
        "cold": SnapshotRecord(tag="s2", taken_at=2.0),
    },
)


def test_what_is_written_is_read_and_only_we_may(tmp_path: Path) -> None:
    state.write(tmp_path, FULL)
    assert state.read(tmp_path) == FULL
    assert (tmp_path / state.FILE).stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [state.FILE]


def test_a_later_release_keeps_what_it_wrote(tmp_path: Path) -> None:
    state.write(tmp_path, FULL)
    text = (tmp_path / state.FILE).read_bytes()
    (tmp_path / state.FILE).write_bytes(text[:-1] + b',"of_tomorrow":{"a":[1,2]}}')
    state.write(tmp_path, msgspec.structs.replace(state.read(tmp_path), resets=4))
    assert b'"of_tomorrow":{"a":[1,2]}' in (tmp_path / state.FILE).read_bytes()


@pytest.mark.parametrize("step", ["fsync", "replace", "open"])
def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    state.write(tmp_path, FULL)

    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, step, fail)
        with pytest.raises(Unavailable, match="No space left"):
            state.write(tmp_path, msgspec.structs.replace(FULL, resets=9))
    assert state.read(tmp_path) == FULL
    state.write(tmp_path, msgspec.structs.replace(FULL, resets=9))
    assert state.read(tmp_path).resets == 9


def test_a_draft_of_somebody_who_was_killed_is_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / f".{state.FILE}").symlink_to(tmp_path / "elsewhere")
    state.write(tmp_path, FULL)
    assert state.read(tmp_path) == FULL
    assert not (tmp_path / "elsewhere").exists()


def test_a_folder_in_the_place_of_a_draft_is_in_nobodys_way(tmp_path: Path) -> None:
    folder = tmp_path / "vms" / "a"
    (folder / f".{state.FILE}" / "of a QEMU" / "that was taken over").mkdir(parents=True)
    state.write(folder, FULL)
    assert state.read(folder) == FULL
    assert [path.name for path in folder.iterdir()] == [state.FILE]


def test_nothing_readable_is_said_to_be_damaged(tmp_path: Path) -> None:
    with pytest.raises(Damaged, match="machine.json is missing"):
        state.read(tmp_path)
    (tmp_path / state.FILE).mkdir()
    with pytest.raises(Damaged, match="cannot be read"):
        state.read(tmp_path)


@pytest.mark.parametrize(
    ("changes", "alive", "expected"),
    [
        ({"life": Life.CREATING}, False, State.CREATING),
        ({"life": Life.DELETING}, True, State.CREATING),
        ({}, False, State.STOPPED),
        ({"failed": True}, False, State.FAILED),
        ({"failed": True}, True, State.RUNNING),
        ({}, True, State.RUNNING),
        ({"begun": Begun.STARTING}, True, State.STARTING),
        ({"begun": Begun.STARTING}, False, State.STOPPED),
        ({"begun": Begun.STOPPING}, True, State.STOPPING),
        ({"arriving": True}, True, State.ARRIVING),
        ({"departed": True}, True, State.DEPARTED),
    ],
)
def test_what_a_machine_is(changes: dict[str, Any], alive: bool, expected: State) -> None:
    assert state_of(record(**({"life": Life.WHOLE} | changes)), alive=alive) is expected


@pytest.mark.parametrize(
    ("changes", "shut_down", "held", "expected"),
    [
        ({"run": HERE}, False, True, (True, "its process ended: boom")),
        ({"run": HERE}, True, True, (False, "")),
        ({"run": HERE, "begun": Begun.STOPPING}, False, True, (False, "")),
        ({"run": HERE, "fenced": True}, False, False, (False, LAPSED)),
        ({"run": HERE, "fenced": True}, False, True, (True, "its process ended: boom")),
        ({"run": Run(pid=7, start_time=1, boot_id="b")}, False, True, (False, HOST_BOOTED)),
        ({"begun": Begun.STARTING}, False, True, (False, "")),
    ],
)
def test_why_a_machine_is_off(
    changes: dict[str, Any],
    shut_down: bool,
    held: bool,
    expected: tuple[bool, str],
) -> None:
    gone = record(**({"life": Life.WHOLE} | changes))
    assert why_off(gone, shut_down=shut_down, held=held, said="boom") == expected


def test_what_there_is_to_say_of_one_that_is_off() -> None:
    assert detail_off(record()) == ""
    assert "deletion" in detail_off(record(life=Life.DELETING))
    assert detail_off(record(detail="it broke")) == "it broke"
    assert "'a name'" in detail_off(FULL)


def test_how_it_is_logged_into() -> None:
    assert access_of(record()) is None
    access = access_of(record(host="127.0.0.1", port=22))
    assert access is not None
    assert (access.port, access.host_keys) == (22, ("ssh-ed25519 AAAA",))
