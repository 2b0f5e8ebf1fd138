"""Steps as transactions: what each compares, and what it writes. Pure.

Every one carries the leader's guard and the revisions of all it was decided from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec

from hostler.engine.controllers.decision import Act, ordered, told, unplaced
from hostler.keys.node import ALIVE, COMMAND, MEMBER
from hostler.keys.vm import HANDLE, VM
from hostler.ports.store import Comparison, Delete, Operation, Put

if TYPE_CHECKING:
    from hostler.engine.controllers.decision import Step
    from hostler.engine.controllers.seen import Seen
    from hostler.engine.placement import Decision
    from hostler.keys.entry import Entry
    from hostler.model.node import NodeRecord, VmCommand
    from hostler.model.vm import VirtualMachine, VmHandle

T = TypeVar("T")


class Leader(msgspec.Struct, frozen=True):
    """In whose name is written."""

    guard: Comparison
    fence: int


class Txn(msgspec.Struct):
    """A transaction in the making."""

    when: list[Comparison]
    then: list[Operation]


def written(step: Step, seen: Seen, leader: Leader, at: float) -> Txn:
    """The transaction of any step but PLACE. For FORGET, name and quota are still to be added."""
    txn = Txn([leader.guard, *compared(seen)], [])
    command, vm = seen.command, seen.vm
    if step.act is Act.SWEEP:
        txn.then += _gone(seen, wish=False)
    elif step.act in (Act.FORGET, Act.FORGET_LOST):
        txn.then += _gone(seen, wish=True)
        if step.act is Act.FORGET_LOST:
            txn.when += _silent(seen)
    elif step.act in (Act.RELEASE, Act.TAKE) and vm is not None and command is not None:
        lost = step.act is Act.TAKE
        if lost:
            txn.when += _silent(seen)
        why = f"node {seen.node} was lost" if lost else f"moved away from node {seen.node}"
        txn.then += [Delete(command.key), _pending(seen, vm.value, why, at)]
    elif step.act is Act.INSTRUCT and command is not None and vm is not None and step.command is not None:
        if step.command.fenced == command.value.fenced:  # else the handle matters, which its agent may be writing
            txn.when = [leader.guard, VM.unchanged(vm), COMMAND.unchanged(command)]
        txn.then.append(_command(command, step.command, leader))
    elif step.act is Act.ADOPT and vm is not None and command is not None:
        # The command is written anew, so that its agent tells again what it sees.
        driver = "" if seen.member is None else seen.member.value.driver
        record = told(vm.value, _value(seen.handle), node=seen.node, driver=driver, at=at)
        txn.then += [_command(command, command.value, leader), _handle(seen, record)]
    elif step.act is Act.TELL_AGAIN and vm is not None and seen.handle is not None and seen.member is not None:
        again = ordered(vm.value, seen.handle.value, fence=leader.fence, reasons=())
        again = msgspec.structs.replace(again, fenced=False)  # who knows how it was made
        txn.when += [COMMAND.absent(node=seen.node, vm=vm.value.id), _record(seen), ALIVE.exists(node=seen.node)]
        # The node's record is written as it is: whoever has just found it without commands cannot forget it then.
        same = Put(seen.member.key, MEMBER.encode(seen.member.value))
        txn.then += [COMMAND.put(again, node=seen.node, vm=vm.value.id), same]
    elif step.act is Act.UNPLACE and vm is not None:
        txn.when += [COMMAND.absent(node=seen.node, vm=vm.value.id), *_member(seen)]
        why = f"node {seen.node} was never told, or has forgotten"
        txn.then.append(_pending(seen, vm.value, why, at))
    return txn


def placed(
    seen: Seen, vm: Entry[VirtualMachine], member: Entry[NodeRecord], decision: Decision, *, leader: Leader, at: float
) -> Txn:
    """A node was found: tell it, if it is as it was when it was chosen, and lives."""
    node = member.parts["node"]
    handle = _value(seen.handle)
    command = ordered(vm.value, handle, fence=leader.fence, reasons=decision.reasons)
    record = told(vm.value, handle, node=node, driver=member.value.driver, at=at)
    return Txn(
        [
            leader.guard,
            *compared(seen),
            COMMAND.absent(node=node, vm=vm.value.id),
            MEMBER.unchanged(member),
            ALIVE.exists(node=node),
        ],
        [COMMAND.put(command, node=node, vm=vm.value.id), _handle(seen, record)],
    )


def pending(seen: Seen, vm: Entry[VirtualMachine], decision: Decision, leader: Leader, at: float) -> Txn:
    """No node will do: say why."""
    handle = unplaced(vm.value, _value(seen.handle), None, node="", why="", at=at)
    handle = msgspec.structs.replace(handle, detail=decision.summary, reasons=decision.reasons)
    return Txn([leader.guard, *compared(seen)], [_handle(seen, handle)])


def trimmed(seen: Seen, leader: Leader) -> Txn:
    """More than one node was told: those that the handle does not name were told wrongly."""
    when = [leader.guard, *compared(seen), *(COMMAND.unchanged(entry) for entry in seen.extra)]
    return Txn(when, [Delete(entry.key) for entry in seen.extra])


# Parts


def compared(seen: Seen) -> list[Comparison]:
    """Wish, handle and command are as they were seen."""
    ids = seen.ids
    when = [VM.absent(**ids) if seen.vm is None else VM.unchanged(seen.vm)]
    when.append(HANDLE.absent(**ids) if seen.handle is None else HANDLE.unchanged(seen.handle))
    if seen.command is not None:
        when.append(COMMAND.unchanged(seen.command))
    return when


def _record(seen: Seen) -> Comparison:
    return MEMBER.absent(node=seen.node) if seen.member is None else MEMBER.unchanged(seen.member)


def _member(seen: Seen) -> list[Comparison]:
    return _silent(seen) if seen.alive is None else [_record(seen)]


def _silent(seen: Seen) -> list[Comparison]:
    return [_record(seen), ALIVE.absent(node=seen.node)]


def _gone(seen: Seen, *, wish: bool) -> list[Operation]:
    """Delete what there is of it."""
    entries: list[Entry[VirtualMachine] | Entry[VmHandle] | Entry[VmCommand] | None] = [seen.handle, seen.command]
    if wish:
        entries.append(seen.vm)
    return [Delete(entry.key) for entry in (*entries, *seen.extra) if entry is not None]


def _pending(seen: Seen, vm: VirtualMachine, why: str, at: float) -> Operation:
    record = unplaced(vm, _value(seen.handle), _value(seen.command), node=seen.node, why=why, at=at)
    return _handle(seen, record)


def _handle(seen: Seen, record: VmHandle) -> Operation:
    return Put(HANDLE.prefix() + seen.name, HANDLE.encode(record))


def _command(entry: Entry[VmCommand], record: VmCommand, leader: Leader) -> Operation:
    return Put(entry.key, COMMAND.encode(msgspec.structs.replace(record, fence=leader.fence)))


def _value(entry: Entry[T] | None) -> T | None:
    return None if entry is None else entry.value
