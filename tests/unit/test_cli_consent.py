"""What destroys asks at a terminal; elsewhere a name is enough, and what takes more than was named wants `--yes`."""

from __future__ import annotations

import io
import sys
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from hostler.entry.cli import main
from hostler.errors import NotFound
from hostler.model.vm import OnNodeLoss, Snapshot, SnapshotState, VmSpec
from hostler.model.vm_api import VmPhase, VmView

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

ABORTED, WRONG, NOT_FOUND, UNAVAILABLE = 130, 2, 3, 5
SERVER = ("--server", "http://127.0.0.1:1", "--token", "t")

NAMED = [
    (("vm", "delete", "web"), "web"),
    (("vm", "snapshot", "restore", "web", "before"), "before"),
    (("vm", "snapshot", "delete", "web", "before"), "before"),
    (("workload", "delete", "web"), "web"),
    (("blueprint", "delete", "shop"), "shop"),
    (("user", "delete", "ada"), "ada"),
    (("lab", "stop", "ada"), "ada"),
]
VOUCHED = [("node", "confirm-off", "n1")]


@pytest.fixture(autouse=True)
def _tries_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is not there is asked again a few times: nothing here is about the pauses between."""
    monkeypatch.setattr("hostler.client.transport.Backoff", lambda *_, **__: SimpleNamespace(next=lambda: 0.0))


class Terminal(io.StringIO):
    """Somebody who types this."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("words", "name"), NAMED, ids=lambda one: " ".join(one) if isinstance(one, tuple) else "")
def test_at_a_terminal_it_asks_first_and_elsewhere_a_name_is_enough(
    words: tuple[str, ...], name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    assert main([*words, *SERVER]) == ABORTED
    question = capsys.readouterr().err
    assert name in question
    assert "?" in question
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    assert main([*words, *SERVER]) == UNAVAILABLE  # it went on, to a server that is not there
    monkeypatch.setattr(sys, "stdin", Terminal())
    assert main([*words, "--yes", *SERVER]) == UNAVAILABLE
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    capsys.readouterr()
    assert main([*words, *SERVER]) == UNAVAILABLE
    assert "?" not in capsys.readouterr().err


@pytest.mark.parametrize("words", VOUCHED, ids=" ".join)
def test_what_somebody_has_to_stand_for_wants_a_yes_where_nobody_can_be_asked(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    assert main([*words, *SERVER]) == WRONG
    assert "--yes" in capsys.readouterr().err
    assert main([*words, "--yes", *SERVER]) == UNAVAILABLE
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    assert main([*words, *SERVER]) == UNAVAILABLE  # what is given up is looked up before the question


def on(node: str, name: str) -> VmView:
    fields = dict.fromkeys(VmView.__struct_fields__)
    known = {
        "node": node,
        "name": name,
        "org": "o",
        "project": "p",
        "spec": VmSpec(cpus=1, memory_mib=64, disk_gib=7),
        "phase": VmPhase.RUNNING,
        "on_node_loss": OnNodeLoss.WAIT,
        "snapshots": {"before": Snapshot(state=SnapshotState.READY, taken_at=1.0)},
    }
    return VmView(**{name: value for name, value in {**fields, **known}.items() if name != "unknown"})


def test_confirm_off_lists_the_disks_and_snapshots_that_are_given_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Nodes:
        async def get(self, node: str) -> object:
            return SimpleNamespace(node=node, vms=2)

        async def confirm_off(self, node: str) -> None:
            confirmed.append(node)

    @asynccontextmanager
    async def reached(_: object) -> AsyncIterator[object]:
        yield SimpleNamespace(nodes=Nodes())

    async def machines(*_: object) -> AsyncIterator[VmView]:
        for view in (on("n1", "db"), on("n2", "web")):
            yield view

    confirmed: list[str] = []
    monkeypatch.setattr("hostler.entry.cli.node.open_client", reached)
    monkeypatch.setattr("hostler.entry.cli.vm.read.machines", machines)
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    assert main(["node", "confirm-off", "N1", *SERVER]) == ABORTED
    said = capsys.readouterr().err
    assert "o/p/db (running, on_node_loss=wait): its disk of 7 GiB, snapshots before" in said
    assert "1 more machine with disks, in projects that you cannot see" in said
    assert "web" not in said
    assert confirmed == []
    assert main(["node", "confirm-off", "N1", "--yes", *SERVER]) == 0
    assert "o/p/db" in capsys.readouterr().err
    assert confirmed == ["N1"]


def test_an_update_to_recreate_names_the_disk_and_asks_at_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Vms:
        async def get(self, *_: str) -> VmView:
            return on("n1", "db")

        async def update(self, *asked: object, **_: object) -> VmView:
            updated.append(asked)
            raise NotFound("enough of it")

    @asynccontextmanager
    async def reached(_: object) -> AsyncIterator[object]:
        yield SimpleNamespace(vms=Vms())

    updated: list[object] = []
    monkeypatch.setattr("hostler.entry.cli.vm.change.open_client", reached)
    words = ["vm", "update", "db", "--on-node-loss", "recreate", *SERVER]
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    assert main(words) == ABORTED
    said = capsys.readouterr().err
    assert "o/p/db (running, on_node_loss=wait): its disk of 7 GiB, snapshots before" in said
    assert "new disk if its node is lost?" in said
    assert updated == []
    assert main([*words, "--yes"]) == NOT_FOUND
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    assert main(words) == NOT_FOUND
    assert main(["vm", "update", "db", "--on-node-loss", "wait", *SERVER]) == NOT_FOUND
    assert len(updated) == 3


@pytest.mark.parametrize("kept", [False, True])
def test_node_remove_lists_what_the_node_retains_and_asks(
    kept: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Nodes:
        async def forget(self, node: str, *, forget_retained: bool) -> None:
            forgotten.append((node, forget_retained))

    class Machines:
        async def list(self) -> object:
            return SimpleNamespace(items=[view("n1", "db"), view("n2", "web")] if kept else [])

    @asynccontextmanager
    async def reached(_: object) -> AsyncIterator[object]:
        yield SimpleNamespace(nodes=Nodes(), retained=Machines())

    def view(node: str, name: str) -> object:
        known = {"node": node, "name": f"{name}-1", "org": "o", "project": "p", "vm": "v", "vm_name": name}
        return SimpleNamespace(**known, disk_bytes=3 * 2**20, snapshots=("before",))

    forgotten: list[tuple[str, bool]] = []
    monkeypatch.setattr("hostler.entry.cli.node.open_client", reached)
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    assert main(["node", "remove", "N1", *SERVER]) == ABORTED
    said = capsys.readouterr().err
    assert "Remove the node N1" in said
    assert ("o/p/db: the disk (3 MiB) of retained machine n1/db-1, snapshots before" in said) is kept
    assert "web" not in said
    assert forgotten == []
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    assert main(["node", "remove", "N1", *SERVER]) == (WRONG if kept else 0)
    assert main(["node", "remove", "N1", "--yes", *SERVER]) == 0
    assert set(forgotten) == {("N1", kept)}


def test_an_image_is_removed_after_a_question_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["image", "remove", "mine", "--data", str(tmp_path)]
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    assert main(words) == ABORTED
    assert main([*words, "--yes"]) == NOT_FOUND
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    assert main(words) == NOT_FOUND
