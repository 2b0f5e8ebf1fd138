"""Parts of the command line that lead to a machine: keys that leave, steps that are told, keys that are made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hostler.entry.cli.vm.change import ssh_keys
from hostler.entry.cli.vm.copy import _get_where, _split
from hostler.entry.cli.vm.ssh import Escape
from hostler.entry.cli.vm.wait import Steps, described, goes_on, step_of
from hostler.entry.data_dir import DataFolder
from hostler.entry.ssh import key_file, logged_in
from hostler.errors import Invalid, NotFound, Refused, Unavailable
from hostler.model.vm import Access, OnNodeLoss, Power, Readiness, Step, VmSpec
from hostler.model.vm_api import VmPhase, VmView

ACCESS = Access(host="127.0.0.1", port=22, user="user")


def view(phase: VmPhase, step: Step | None = None, cause: str = "", **more: Any) -> VmView:
    fields: dict[str, Any] = {
        **dict.fromkeys(("org", "project", "address", "detail"), ""),
        **{name: {} for name in ("labels", "node_labels", "snapshots")},
        **dict.fromkeys(("affinity", "at_next_boot"), ()),
        **dict.fromkeys(("restore", "move", "access", "expires_at"), None),
        **dict.fromkeys(("moved", "created_at", "generation", "revision"), 0),
    }
    return VmView(
        **(fields | more),
        id="1",
        name="web",
        node="n1",
        spec=VmSpec(cpus=1, memory_mib=64),
        power=Power.ON,
        phase=phase,
        on_node_loss=OnNodeLoss.WAIT,
        settled=True,
        available=step is Step.AVAILABLE,
        readiness=None if step is None else Readiness(step=step, since=0.0, cause=cause),
    )


def test_the_steps_are_told_in_order_with_the_cause_of_a_late_one() -> None:
    seen = [
        view(VmPhase.PENDING),
        view(VmPhase.PLACED),
        view(VmPhase.CREATING),
        view(VmPhase.STARTING),
        view(VmPhase.RUNNING, access=ACCESS),
        view(VmPhase.RUNNING, Step.BOOTING),
        view(VmPhase.RUNNING, Step.NETWORK),
        view(VmPhase.RUNNING, Step.SSH, "no answer within 120 s"),
        view(VmPhase.RUNNING, Step.AVAILABLE),
    ]
    steps = Steps()
    told = []
    for each in seen:
        steps.seen(each)
        told.append(steps.text())
    names = [step_of(each) for each in seen]
    assert names == ["placing", "disk", "disk", "booting", "booting", "booting", "network", "ssh", "available"]
    assert told[7].startswith("placing 0.0 s → disk 0.0 s → booting 0.0 s → network 0.0 s → ssh")
    assert "no answer within 120 s" in told[7]
    assert steps.summary().startswith("available after")
    at_once = Steps()
    at_once.seen(seen[8])
    assert at_once.summary() == "available after 0.0 s"
    assert step_of(view(VmPhase.RUNNING)) == "running"
    assert described(seen[7]) == "running on n1, not available yet: ssh (no answer within 120 s)"
    assert described(seen[8]) == "running on n1, available"


async def test_a_machine_that_runs_and_that_nobody_can_log_into_is_not_waited_for() -> None:
    nowhere: Any = None
    with pytest.raises(Unavailable, match="see its state"):
        await logged_in(nowhere, view(VmPhase.RUNNING, Step.BOOTING)).__aenter__()
    with pytest.raises(Refused, match="simulated machines; use its console"):
        await logged_in(nowhere, view(VmPhase.RUNNING, Step.AVAILABLE)).__aenter__()


def test_a_machine_that_is_moved_as_it_runs_is_not_said_to_boot() -> None:
    seen = [view(VmPhase.STARTING), view(VmPhase.RUNNING, Step.BOOTING), view(VmPhase.RUNNING, Step.AVAILABLE)]
    assert [goes_on(each) for each in seen] == ["continuing on n1", "running on n1", "running on n1, available"]


def test_tilde_and_dot_count_at_the_beginning_of_a_line_only() -> None:
    for typed, sent in (
        (b"ls ~.\r", b"ls ~.\r"),
        (b"~~x", b"~x"),
        (b"~x\r", b"~x\r"),
        (b"a\r~.", None),
        (b"~.", None),
    ):
        assert Escape().pressed(typed) == sent
    keys = Escape()
    assert [keys.pressed(byte) for byte in (b"\r", b"~", b".")] == [b"\r", b"", None]


def test_a_private_key_is_never_sent_and_files_are_read_with_and_without_a_sign(tmp_path: Path) -> None:
    public, private = tmp_path / "k.pub", tmp_path / "k"
    public.write_text("# mine\nssh-ed25519 AAAA me\n\n")
    private.write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n")
    assert ssh_keys([str(public), f"@{public}", "ssh-rsa BBBB you"]) == (
        "ssh-ed25519 AAAA me",
        "ssh-ed25519 AAAA me",
        "ssh-rsa BBBB you",
    )
    with pytest.raises(Invalid, match="private key"):
        ssh_keys([str(private)])
    with pytest.raises(Invalid, match="cannot be read"):
        ssh_keys([str(tmp_path / "none")])


def test_the_key_is_in_the_state_folder() -> None:
    assert key_file({"HOME": "/home/ada"}) == Path("/home/ada/.local/state/hostler/ssh/id_ed25519")
    assert key_file({"HOME": "/h", "XDG_STATE_HOME": "/s"}) == Path("/s/hostler/ssh/id_ed25519")
    assert key_file({"HOME": "/h", "XDG_STATE_HOME": "relative"}) == Path("/h/.local/state/hostler/ssh/id_ed25519")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("web:/etc", ("web", "/etc")),
        ("web:", ("web", ".")),
        ("web:~", ("web", ".")),
        ("web:~/a", ("web", "a")),
        ("web:a:b", ("web", "a:b")),
        ("a", None),
        ("./a:b", None),
        ("/a:b", None),
        (":a", None),
    ],
)
def test_a_colon_after_a_name_means_a_machine(text: str, found: tuple[str, str] | None) -> None:
    assert _split(text) == found


def test_what_comes_goes_where_cp_would_put_it(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert _get_where(tmp_path, "/a/b", of_folder=True) == (tmp_path / "b", None)
    assert _get_where(tmp_path, "a/..", of_folder=True) == (tmp_path, None)
    assert _get_where(tmp_path, "/a/b", of_folder=False) == (tmp_path, "b")
    assert _get_where(tmp_path / "new", "/a/b", of_folder=True) == (tmp_path / "new", None)
    assert _get_where(tmp_path / "new", "/a/b", of_folder=False) == (tmp_path, "new")
    assert _get_where(tmp_path / "file", "/a/b", of_folder=False) == (tmp_path, "file")
    with pytest.raises(Refused):
        _get_where(tmp_path / "file", "/a/b", of_folder=True)
    with pytest.raises(NotFound):
        _get_where(tmp_path / "no" / "where", "/a/b", of_folder=False)


def test_a_data_folder_has_machines_of_one_kind(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path)
    assert folder.kind() is None
    folder.check_kind("qemu")
    folder.keep_kind("qemu")
    assert folder.kind() == "qemu"
    with pytest.raises(Invalid, match="its machines are qemu, not simulated; give --machines qemu"):
        folder.keep_kind("simulated")
    older = DataFolder(tmp_path / "older")
    (older.path / "machines" / "local-1").mkdir(parents=True)
    assert older.kind() == "simulated"
