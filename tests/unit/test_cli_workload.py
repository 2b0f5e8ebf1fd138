"""`hostler workload`: how workloads are told of, what is typed, and what a watch shows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hostler.entry.cli import main, options
from hostler.entry.cli.workload import change, read
from hostler.errors import NotFound, Unavailable
from hostler.model.trace import Reason
from hostler.model.vm import Affinity, Level, OnNodeLoss, RestartPolicy, VmSpec
from hostler.model.vm_api import VmPhase
from hostler.model.workload import Rollout
from hostler.model.workload_api import (
    InstancePage,
    InstanceView,
    WorkloadApply,
    WorkloadPage,
    WorkloadPhase,
    WorkloadView,
)

VIEW = WorkloadView(
    name="web",
    org="workloads",
    project="web",
    enabled=True,
    instances=3,
    spec=VmSpec(cpus=1, memory_mib=512),
    affinity=(Affinity(together=False, level=Level.NODE, labels={}),),
    node_labels={"disk": "ssd"},
    on_node_loss=OnNodeLoss.FENCE,
    restart=RestartPolicy.ALWAYS,
    rollout=Rollout(),
    labels={},
    phase=WorkloadPhase.READY,
    detail="",
    made=3,
    ready=3,
    updated=3,
    pending=0,
    leaving=0,
    settled=True,
    template=1,
    generation=1,
    created_at=0.0,
    revision=7,
)
ONE = InstanceView(
    instance="1",
    vm="v1",
    name="web-1",
    phase=VmPhase.RUNNING,
    node="n1",
    template=1,
    updated=True,
    ready=True,
    leaving=False,
    detail="",
    reasons=(Reason(subject="n1", why="chosen: score 90"), Reason(subject="n2", why="fits")),
    target=None,
    actual=None,
    created_at=0.0,
)
PENDING = msgspec.structs.replace(
    ONE,
    instance="2",
    phase=VmPhase.PENDING,
    node=None,
    ready=False,
    reasons=(Reason(subject="2 nodes", why="no room"), Reason(subject="n3", why="not on duty")),
)


def seen(**changes: Any) -> WorkloadView:
    return msgspec.structs.replace(VIEW, **changes)


@pytest.mark.parametrize(
    ("view", "text"),
    [
        (VIEW, "ready, 3/3 ready"),
        (
            seen(phase=WorkloadPhase.PENDING, ready=1, pending=2, detail="instance 2: no room"),
            "pending, 1/3 ready, 2 pending: instance 2: no room",
        ),
        (seen(phase=WorkloadPhase.DELETING, ready=0, leaving=2), "deleting, 0/3 ready, 2 leaving"),
    ],
)
def test_a_workload_is_told_of_in_a_line(view: WorkloadView, text: str) -> None:
    assert read.described(view) == text


def test_a_pending_instance_says_why_and_a_placed_one_why_there() -> None:
    assert read._instance_row(ONE) == ["1", "running", "yes", "n1", "web-1", "chosen: score 90"]
    assert read._instance_row(PENDING)[-1] == "2 nodes: no room; n3: not on duty"
    old = msgspec.structs.replace(ONE, updated=False, detail="it crashed", leaving=True)
    assert read._instance_row(old)[1:] == [
        *("leaving", "yes", "n1", "web-1"),
        "of template 1, to be replaced; it crashed",
    ]


def test_what_is_shown_moves_no_cursor() -> None:
    hostile = seen(name="a\x1b[2J", detail="\x1b]0;x", labels={"\x07": "\x9b1m"}, org="\x1b")
    cells = [*read._row(hostile), *(text for _, text in read._rows(hostile))]
    cells += read._instance_row(msgspec.structs.replace(PENDING, name="\x1b", node="\x07"))
    assert all(cell.isprintable() for cell in cells)


def test_rules_are_told_in_words() -> None:
    rule = Affinity(together=True, level=Level.RACK, labels={"app": "db"}, required=False)
    assert read._rule(VIEW.affinity[0]) == "on another node than each other"
    assert read._rule(rule) == "on one rack with machines with app=db (preferred)"


@pytest.mark.parametrize(
    "arguments",
    [
        ["workload", "scale", "web", "-1"],
        ["workload", "scale", "web", "three"],
        ["workload", "scale", "web"],
        ["workload", "scale", "web", "1000001"],
        ["workload", "apply"],
        ["workload", "start", "web"],
        ["workload", "status", "web", "--limit", "-1"],
    ],
)
def test_what_cannot_be_is_refused_before_anybody_is_asked(
    arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (change, read, options):
        monkeypatch.setattr(module, "chosen_server", lambda: pytest.fail("somebody was asked"))
    assert main(arguments) == 2
    assert capsys.readouterr().err


class Workloads:
    """As much of the client as the command line needs."""

    def __init__(self) -> None:
        self.views: list[Any] = [VIEW]
        self.pages: list[tuple[InstanceView, ...]] = [(ONE, PENDING)]
        self.applied: list[WorkloadApply] = []

    async def get(self, _: str, **__: Any) -> WorkloadView:
        view = self.views.pop(0) if len(self.views) > 1 else self.views[0]
        if isinstance(view, Exception):
            raise view
        return view  # type: ignore[no-any-return]

    async def list(self, **_: Any) -> WorkloadPage:
        return WorkloadPage(items=(VIEW,), after=None, revision=1)

    async def instances(self, _: str, **__: Any) -> InstancePage:
        items = self.pages.pop(0) if len(self.pages) > 1 else self.pages[0]
        return InstancePage(items=items, after=None, revision=1)

    async def apply(self, wanted: WorkloadApply) -> WorkloadView:
        self.applied.append(wanted)
        return seen(settled=False, phase=WorkloadPhase.CHANGING, ready=0)

    async def delete(self, _: str) -> WorkloadView:
        return seen(phase=WorkloadPhase.DELETING)

    async def wait(self, _: str, *, on_change: Any, gone: bool, **__: Any) -> WorkloadView | None:
        on_change(VIEW)
        return None if gone else VIEW


@pytest.fixture
def workloads(monkeypatch: pytest.MonkeyPatch) -> Workloads:
    found = Workloads()

    @asynccontextmanager
    async def reached(_: object) -> AsyncIterator[object]:
        yield type("Client", (), {"workloads": found})()

    for module in (change, read, options):
        monkeypatch.setattr(module, "chosen_server", lambda: None)
        monkeypatch.setattr(module, "open_client", reached)
    monkeypatch.setattr(read, "LOOK_EVERY", 0.0)
    return found


def test_a_file_is_applied_and_waited_for(
    workloads: Workloads, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "web.yaml"
    file.write_text("name: web\ninstances: 3\ncpus: 1\nmemory: 512MiB\n")
    assert main(["workload", "apply", str(file)]) == 0
    assert capsys.readouterr().out == "web: changing, 0/3 ready\n"
    assert workloads.applied == [WorkloadApply(name="web", instances=3, spec=VmSpec(cpus=1, memory_mib=512))]
    assert main(["workload", "apply", str(file), "--wait"]) == 0
    assert capsys.readouterr().out == "web: ready, 3/3 ready\n"
    assert main(["workload", "delete", "web", "--wait"]) == 0
    assert capsys.readouterr().out == "web: gone\n"


def test_a_file_that_is_wrong_is_told_line_by_line_and_nobody_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change, "chosen_server", lambda: None)
    monkeypatch.setattr(change, "open_client", lambda _: pytest.fail("somebody was asked"))
    file = tmp_path / "web.yaml"
    file.write_text("name: web\ncpus: none\nmemory: 512MiB\nsize: 3\n")
    assert main(["workload", "apply", str(file)]) != 0
    said = capsys.readouterr().err
    assert f"{file}:2: cpus: must be a whole number" in said
    assert f"{file}:4: size: unknown field" in said
    assert main(["workload", "apply", str(tmp_path / "none.yaml")]) != 0
    assert "cannot be read: No such file" in capsys.readouterr().err


def test_status_and_list_show_what_there_is(workloads: Workloads, capsys: pytest.CaptureFixture[str]) -> None:
    workloads.views = [seen(phase=WorkloadPhase.PENDING, ready=1, pending=1, detail="instance 2: no room")]
    assert main(["workload", "status", "web"]) == 0
    said = capsys.readouterr()
    for text in ("pending: instance 2: no room", "1/3", "2 nodes: no room; n3: not on duty", "disk=ssd"):
        assert text in said.out
    assert "1 more instance; see all with --limit" in said.err
    assert main(["workload", "status", "web", "-o", "json"]) == 0
    assert msgspec.json.decode(capsys.readouterr().out)["items"][1]["phase"] == "pending"
    assert main(["workload", "list"]) == 0
    assert "workloads/web" in capsys.readouterr().out


def test_a_watch_shows_changes_through_outages_until_it_is_gone(
    workloads: Workloads, capsys: pytest.CaptureFixture[str]
) -> None:
    workloads.views = [VIEW, Unavailable("no answer"), VIEW, seen(ready=2, settled=False), NotFound("none")]
    running = msgspec.structs.replace(PENDING, phase=VmPhase.RUNNING, node="n2", ready=True, reasons=())
    workloads.pages = [(ONE, PENDING), (ONE, running), (ONE,)]
    assert main(["workload", "status", "web", "--watch"]) == 0
    said = capsys.readouterr()
    assert said.out.splitlines() == [
        "web: ready, 3/3 ready",
        "web/1: running on n1, ready: chosen: score 90",
        "web/2: pending: 2 nodes: no room; n3: not on duty",
        "web/2: running on n2, ready",
        "web: ready, 2/3 ready",
        "web/2: gone",
        "web: gone",
    ]
    assert "no answer; retrying" in said.err
