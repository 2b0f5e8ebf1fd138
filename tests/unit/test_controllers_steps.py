"""What each step of the leader compares: everything it was decided from."""

from __future__ import annotations

from typing import Any

import pytest
from controller_world import node, vm

from hostler.engine.controllers.decision import Act, Step
from hostler.engine.controllers.snapshot import VmSnapshot
from hostler.engine.controllers.transactions import (
    pending,
    placement_transaction,
    step_transaction,
    trimming_transaction,
)
from hostler.engine.placement import Decision
from hostler.keys.entry import Entry
from hostler.keys.families import ALIVE, COMMAND, HANDLE, MEMBER, VM
from hostler.model.node import VmCommand
from hostler.model.vm import MachineState, VmHandle, VmSpec
from hostler.ports.store import ModRevision, Version

FENCE = 7
IDS = {"org": "o", "project": "p", "vm": "a"}
COMMANDED = VmCommand(org="o", project="p", vm="a", spec=VmSpec(cpus=1, memory_mib=1))


def entry(key: str, value: Any, revision: int) -> Entry[Any]:
    names = {"node": "n1", "vm": "a"} if "nodes" in key else {"node": "n1"}
    return Entry(value, names, key, revision, revision, 1)


SEEN = VmSnapshot(
    "o/p/a",
    entry(VM.fill(**IDS), vm("a"), 11),
    entry(HANDLE.fill(**IDS), VmHandle(id="a", node="n1", state=MachineState.RUNNING, seen_at=0.0), 12),
    "n1",
    entry(COMMAND.fill(node="n1", vm="a"), COMMANDED, 13),
    (),
    frozenset(),
    entry(MEMBER.fill(node="n1"), node("n1"), 14),
    None,
)
WISH = ModRevision(VM.fill(**IDS)) == 11
HANDLED = ModRevision(HANDLE.fill(**IDS)) == 12
TOLD = ModRevision(COMMAND.fill(node="n1", vm="a")) == 13
RECORD = ModRevision(MEMBER.fill(node="n1")) == 14
SILENT = Version(ALIVE.fill(node="n1")) == 0


def without(**fields: None) -> VmSnapshot:
    return VmSnapshot(**{name: fields.get(name, getattr(SEEN, name)) for name in SEEN.__struct_fields__})  # type: ignore[arg-type]


CASES: list[tuple[Act, VmSnapshot, list[Any]]] = [
    (Act.INSTRUCT, SEEN, [WISH, TOLD]),
    (Act.RELEASE, SEEN, [WISH, HANDLED, TOLD]),
    (Act.TAKE, SEEN, [WISH, HANDLED, TOLD, RECORD, SILENT]),
    (Act.FORGET, SEEN, [WISH, HANDLED, TOLD]),
    (Act.FORGET_LOST, SEEN, [WISH, HANDLED, TOLD, RECORD, SILENT]),
    (Act.SWEEP, without(vm=None), [Version(VM.fill(**IDS)) == 0, HANDLED, TOLD]),
    (Act.ADOPT, without(handle=None), [WISH, Version(HANDLE.fill(**IDS)) == 0, TOLD]),
    (
        Act.TELL_AGAIN,
        without(command=None),
        [WISH, HANDLED, Version(COMMAND.fill(node="n1", vm="a")) == 0, RECORD, Version(ALIVE.fill(node="n1")) > 0],
    ),
    (
        Act.UNPLACE,
        without(command=None),
        [WISH, HANDLED, Version(COMMAND.fill(node="n1", vm="a")) == 0, RECORD, SILENT],
    ),
]


@pytest.mark.parametrize(("act", "seen", "compared"), CASES, ids=lambda value: getattr(value, "name", ""))
def test_a_step_compares_what_it_was_decided_from(act: Act, seen: VmSnapshot, compared: list[Any]) -> None:
    txn = step_transaction(Step(act, COMMANDED if act is Act.INSTRUCT else None), seen, FENCE, 0.0)
    assert txn.then
    for condition in compared:
        assert condition in txn.when


def test_a_fence_is_asked_for_only_under_the_handle_that_was_seen() -> None:
    fenced = VmCommand(org="o", project="p", vm="a", spec=COMMANDED.spec, fenced=True)
    assert HANDLED in step_transaction(Step(Act.INSTRUCT, fenced), SEEN, FENCE, 0.0).when


def test_a_machine_is_drained_away_only_under_the_handle_that_was_seen() -> None:
    going = VmCommand(org="o", project="p", vm="a", spec=COMMANDED.spec, deleting=True)
    assert HANDLED in step_transaction(Step(Act.INSTRUCT, going), SEEN, FENCE, 0.0).when


def test_who_is_told_again_is_not_told_how_it_came_to_be_there() -> None:
    txn = step_transaction(Step(Act.TELL_AGAIN), without(command=None), FENCE, 0.0)
    (told,) = [COMMAND.decode(put.value, where=put.key) for put in txn.then if "/vms/" in put.key]  # type: ignore[union-attr]
    assert told.arrived is None


def test_a_node_is_told_only_as_it_was_chosen_and_alive() -> None:
    seen = without(handle=None, command=None)
    decision = Decision(node="n1", score=1.0, reasons=(), summary="")
    assert SEEN.vm is not None
    assert SEEN.member is not None
    txn = placement_transaction(seen, SEEN.vm, SEEN.member, decision, fence=FENCE, at=0.0)
    for condition in (
        *(WISH, RECORD, Version(HANDLE.fill(**IDS)) == 0),
        *(Version(COMMAND.fill(node="n1", vm="a")) == 0, Version(ALIVE.fill(node="n1")) > 0),
    ):
        assert condition in txn.when
    assert len(txn.then) == 2
    waiting = pending(seen, SEEN.vm, decision, 0.0)
    assert waiting.when == [WISH, Version(HANDLE.fill(**IDS)) == 0]


def test_what_was_told_wrongly_is_deleted_as_it_was_seen() -> None:
    other = entry(COMMAND.fill(node="n2", vm="a"), COMMANDED, 20)
    seen = VmSnapshot(**{**{name: getattr(SEEN, name) for name in SEEN.__struct_fields__}, "extra": (other,)})
    txn = trimming_transaction(seen)
    assert HANDLED in txn.when
    assert (ModRevision(other.key) == 20) in txn.when
    assert [operation.key for operation in txn.then] == [other.key]  # type: ignore[union-attr]
