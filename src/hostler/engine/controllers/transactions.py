"""Transactions of steps: what each compares, and what it writes. Pure.

Each carries the revisions of everything it was decided from; the writer adds the guard. If a machine belongs to
an instance of a workload, the same transaction sets the target of the instance to match the command, or its absence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec

from hostler.engine.controllers import migration
from hostler.engine.controllers.decision import Act, assigned_handle, first_command, to_reinstate, unplaced_handle
from hostler.engine.runtime.guarded_writer import Txn
from hostler.keys.families import (
    ALIVE,
    ARRIVAL,
    COMMAND,
    HANDLE,
    INSTANCE,
    MEMBER,
    RETAINED,
    RETAINED_REQUEST,
    TARGET,
    VM,
)
from hostler.model.trace import Reason
from hostler.model.workload import Target, instance_parts
from hostler.ports.store import Comparison, Delete, Operation, Put

if TYPE_CHECKING:
    from hostler.engine.controllers.decision import Step
    from hostler.engine.controllers.snapshot import VmSnapshot
    from hostler.engine.placement import Decision
    from hostler.keys.entry import Entry
    from hostler.model.node import NodeRecord, VmCommand
    from hostler.model.vm import VirtualMachine, VmHandle

T = TypeVar("T")

FEW = 4
"""Number of reasons in a target, the strongest ones; the command or the handle has all of them."""


def step_transaction(step: Step, seen: VmSnapshot, fence: int, at: float) -> Txn:
    """Return the transaction of any step except PLACE. For FORGET, the caller adds name and quota."""
    txn = Txn(comparisons(seen), [])
    command, vm = seen.command, seen.vm
    if step.act is Act.SWEEP:
        txn.then += _deletions(seen, with_vm=False)
        _not_expected(seen, txn)
    elif step.act in (Act.FORGET, Act.FORGET_LOST):
        txn.then += _deletions(seen, with_vm=True)
        _not_expected(seen, txn)
        if step.act is Act.FORGET_LOST:
            txn.when += _silent(seen)
    elif step.act is Act.STAY and command is not None and seen.handle is not None:
        txn.then += [
            _command(command, msgspec.structs.replace(command.value, departing=None), fence),
            _handle(seen, migration.handle_after_end(seen.handle.value, command.value.departing, step.why, at=at)),
        ]
        _not_expected(seen, txn)
    elif step.act in (Act.RELEASE, Act.TAKE) and vm is not None and command is not None:
        lost = step.act is Act.TAKE
        if lost:
            txn.when += _silent(seen)
        why = f"node {seen.node} was lost" if lost else f"moved away from node {seen.node}"
        txn.then += [Delete(command.key), _pending(seen, vm.value, why, at, lost=lost)]
        _aim(txn, vm.value, None, nowhere(seen.node, why), at=at)
        _not_expected(seen, txn)
    elif step.act is Act.INSTRUCT and command is not None and vm is not None and step.command is not None:
        # If it becomes fenced or is removed, the handle must be unchanged, because its agent may be writing it.
        goes = step.command.deleting and not vm.value.deleting
        if step.command.fenced == command.value.fenced and not goes:
            txn.when = [VM.unchanged(vm), COMMAND.unchanged(command)]
        txn.then.append(_command(command, step.command, fence))
        _aim(txn, vm.value, seen.node, step.command.reasons, at=at, command=step.command)
        if step.command.departing is None:
            _not_expected(seen, txn)
    elif step.act is Act.ADOPT and vm is not None and command is not None:
        # The command is rewritten, so that its agent reports again.
        driver = "" if seen.member is None else seen.member.value.driver
        record = assigned_handle(vm.value, _value(seen.handle), node=seen.node, driver=driver, at=at)
        record = msgspec.structs.replace(record, attempt=max(record.attempt, command.value.arrived or 0))
        txn.then += [_command(command, command.value, fence), _handle(seen, record)]
        _aim(txn, vm.value, seen.node, command.value.reasons, at=at, command=command.value)
    elif step.act is Act.TELL_AGAIN and vm is not None and seen.handle is not None and seen.member is not None:
        # An agent that found no command has retained the machine: it restores it.
        again = first_command(vm.value, seen.handle.value, fence=fence, reasons=(), reinstate="")
        again = msgspec.structs.replace(again, fenced=False, arrived=None)  # it is unknown how it was created
        txn.when += [COMMAND.absent(node=seen.node, vm=vm.value.id), _record(seen), ALIVE.exists(node=seen.node)]
        # The node's record is rewritten unchanged: a concurrent removal of the node that found no commands then fails.
        same = Put(seen.member.key, MEMBER.encode(seen.member.value))
        txn.then += [COMMAND.put(again, node=seen.node, vm=vm.value.id), same]
        _aim(txn, vm.value, seen.node, nowhere(seen.node, "its machine may be there: commanded again"), at=at)
    elif step.act is Act.UNPLACE and vm is not None:
        txn.when += [COMMAND.absent(node=seen.node, vm=vm.value.id), *_member(seen)]
        why = f"node {seen.node} has no command and no machine for it"
        txn.then.append(_pending(seen, vm.value, why, at, lost=True))
        _aim(txn, vm.value, None, nowhere(seen.node, why), at=at)
    return txn


def placement_transaction(
    seen: VmSnapshot,
    vm: Entry[VirtualMachine],
    member: Entry[NodeRecord],
    decision: Decision,
    *,
    fence: int,
    at: float,
) -> Txn:
    """Write the command for the chosen node, if the node is unchanged since the choice, and alive."""
    node = member.parts["node"]
    handle = _value(seen.handle)
    wanted = to_reinstate(vm.value, handle)
    taken_from = "" if handle is None else handle.taken_from
    reinstate = wanted.name if wanted is not None else "" if taken_from == node else None
    command = first_command(vm.value, handle, fence=fence, reasons=decision.reasons, reinstate=reinstate)
    record = assigned_handle(
        vm.value,
        handle,
        node=node,
        driver=member.value.driver,
        at=at,
        new_disk=bool(taken_from) and reinstate is None,
    )
    txn = Txn(
        [
            *comparisons(seen),
            COMMAND.absent(node=node, vm=vm.value.id),
            MEMBER.unchanged(member),
            ALIVE.exists(node=node),
        ],
        [COMMAND.put(command, node=node, vm=vm.value.id), _handle(seen, record)],
    )
    if wanted is not None:  # and its deletion was not requested
        ids = {"node": wanted.node, "name": wanted.name}
        txn.when += [RETAINED.exists(**ids), RETAINED_REQUEST.absent(**ids)]
    _aim(txn, vm.value, node, decision.reasons, at=at)
    return txn


def departure_transaction(
    seen: VmSnapshot, target: Entry[NodeRecord], *, wish: int, stop: bool, fence: int
) -> Txn | None:
    """Write command and arrival for a migration; None: it has no node."""
    vm, handle, command = seen.vm, seen.handle, seen.command
    if vm is None or handle is None or command is None:
        return None
    to, id_ = target.parts["node"], vm.value.id
    first = first_command(vm.value, handle.value, fence=fence, reasons=())
    leaving = migration.handover_command(command.value, handle.value, to, wish=wish, stop=stop)
    if leaving.departing is None:
        return None
    expected = migration.arrival(
        first, command.value, handle.value, leaving.departing, source=seen.node, place=target.value.place
    )
    when = [*comparisons(seen), COMMAND.absent(node=to, vm=id_), ARRIVAL.absent(node=to, vm=id_)]
    when += [MEMBER.unchanged(target), ALIVE.exists(node=to)]
    return Txn(when, [ARRIVAL.put(expected, node=to, vm=id_), _command(command, leaving, fence)])


def not_moved(seen: VmSnapshot, why: str, *, at: float) -> Txn | None:
    """End the requested move; None: it has no node."""
    if seen.vm is None or seen.handle is None:
        return None
    record = migration.handle_after_request(seen.vm.value, seen.handle.value, why, at=at)
    return Txn(comparisons(seen), [_handle(seen, record)])


def not_expected(seen: VmSnapshot) -> Txn:
    """Delete arrivals on nodes that the machine does not migrate to."""
    when = [*comparisons(seen), *(ARRIVAL.unchanged(entry) for entry in seen.strays)]
    return Txn(when, [Delete(entry.key) for entry in seen.strays])


def pending(seen: VmSnapshot, vm: Entry[VirtualMachine], decision: Decision, at: float) -> Txn:
    """Record that no node fits, and why."""
    handle = unplaced_handle(vm.value, _value(seen.handle), None, node="", why="", at=at)
    handle = msgspec.structs.replace(handle, detail=decision.summary, reasons=decision.reasons)
    txn = Txn(comparisons(seen), [_handle(seen, handle)])
    _aim(txn, vm.value, None, decision.reasons or nowhere(vm.value.name, decision.summary), at=at)
    return txn


def trimming_transaction(seen: VmSnapshot) -> Txn:
    """Delete the commands on nodes that the handle does not name."""
    when = [*comparisons(seen), *(COMMAND.unchanged(entry) for entry in seen.extra)]
    return Txn(when, [Delete(entry.key) for entry in seen.extra])


# Parts


def target_of(
    vm: VirtualMachine, node: str | None, reasons: tuple[Reason, ...], *, at: float, command: VmCommand | None = None
) -> Target:
    """Return the target of the machine's instance. With a `command` it matches the command."""
    return Target(
        node=node,
        power=vm.power if command is None else command.power,
        vm=vm.id,
        generation=vm.generation if command is None else command.generation,
        reasons=reasons[:FEW],
        decided_at=at,
    )


def nowhere(subject: str, why: str) -> tuple[Reason, ...]:
    """Return one reason in the form that targets have."""
    return (Reason(subject=subject, why=why),)


def _aim(
    txn: Txn,
    vm: VirtualMachine,
    node: str | None,
    reasons: tuple[Reason, ...],
    *,
    at: float,
    command: VmCommand | None = None,
) -> None:
    """Write the target of the instance, if the machine has one and is not being deleted.

    A missing instance gets none.
    """
    ids = instance_parts(vm.instance)
    if ids is not None and not vm.deleting:
        txn.when.append(INSTANCE.exists(**ids))
        txn.then.append(TARGET.put(target_of(vm, node, reasons, at=at, command=command), **ids))


def comparisons(seen: VmSnapshot) -> list[Comparison]:
    """Return comparisons that spec, handle and command are unchanged."""
    ids = seen.ids
    when = [VM.absent(**ids) if seen.vm is None else VM.unchanged(seen.vm)]
    when.append(HANDLE.absent(**ids) if seen.handle is None else HANDLE.unchanged(seen.handle))
    if seen.command is not None:
        when.append(COMMAND.unchanged(seen.command))
    return when


def _not_expected(seen: VmSnapshot, txn: Txn) -> None:
    """Delete all known arrivals of the machine."""
    if seen.to and seen.arrival is None:
        txn.when.append(ARRIVAL.absent(node=seen.to, vm=seen.ids["vm"]))
    txn.when += [ARRIVAL.unchanged(entry) for entry in seen.arrivals]
    txn.then += [Delete(entry.key) for entry in seen.arrivals]


def _record(seen: VmSnapshot) -> Comparison:
    return MEMBER.absent(node=seen.node) if seen.member is None else MEMBER.unchanged(seen.member)


def _member(seen: VmSnapshot) -> list[Comparison]:
    return _silent(seen) if seen.alive is None else [_record(seen)]


def _silent(seen: VmSnapshot) -> list[Comparison]:
    return [_record(seen), ALIVE.absent(node=seen.node)]


def _deletions(seen: VmSnapshot, *, with_vm: bool) -> list[Operation]:
    """Delete its records."""
    entries: list[Entry[VirtualMachine] | Entry[VmHandle] | Entry[VmCommand] | None] = [seen.handle, seen.command]
    if with_vm:
        entries.append(seen.vm)
    return [Delete(entry.key) for entry in (*entries, *seen.extra) if entry is not None]


def _pending(seen: VmSnapshot, vm: VirtualMachine, why: str, at: float, *, lost: bool) -> Operation:
    record = unplaced_handle(vm, _value(seen.handle), _value(seen.command), node=seen.node, why=why, at=at, lost=lost)
    return _handle(seen, record)


def _handle(seen: VmSnapshot, record: VmHandle) -> Operation:
    return Put(HANDLE.prefix() + seen.name, HANDLE.encode(record))


def _command(entry: Entry[VmCommand], record: VmCommand, fence: int) -> Operation:
    return Put(entry.key, COMMAND.encode(msgspec.structs.replace(record, fence=fence)))


def _value(entry: Entry[T] | None) -> T | None:
    return None if entry is None else entry.value
