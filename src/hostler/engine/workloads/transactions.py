"""Steps as transactions: what each compares, and what it writes. Pure; the leader's guard is added when it is sent.

Each compares the workload's record, so that what was decided from an older wish writes nothing. What is done to many
instances at once is made piece by piece, one for each, and as many as fit go `together`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from hostler.engine.controllers.transactions import Txn, aimed, changed, nowhere
from hostler.keys.inventory import ACTUAL, INSTANCE, TARGET, WORKLOAD
from hostler.keys.node import COMMAND
from hostler.keys.vm import NAME, VM
from hostler.model.workload import Target, WorkloadInstance
from hostler.ports.store import PIECE_BYTES, Delete, Put, size_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from hostler.engine.workloads.vm_template import Tune
    from hostler.keys.entry import Entry
    from hostler.model.node import VmCommand
    from hostler.model.reason import Reason
    from hostler.model.vm import VirtualMachine
    from hostler.model.workload import Workload
    from hostler.ports.store import Comparison, Operation

FIRST = "waits for its first placement"
T = TypeVar("T")


class New(msgspec.Struct, frozen=True):
    """An instance that gets a machine: a new one, or one that waited."""

    number: int
    vm: VirtualMachine
    waited: Entry[WorkloadInstance] | None = None


class Held(msgspec.Struct, frozen=True):
    """An instance that is there, and its machine, if that is."""

    instance: Entry[WorkloadInstance]
    vm: Entry[VirtualMachine] | None = None


def wished(workload: str, entry: Entry[Workload] | None) -> list[Comparison]:
    """The wish is as it was."""
    return [WORKLOAD.absent(workload=workload) if entry is None else WORKLOAD.unchanged(entry)]


def cut(items: Iterable[T], piece: Callable[[T], Txn], *, most: int = PIECE_BYTES) -> tuple[list[T], list[Txn]]:
    """The first of them whose pieces fit into one transaction, and these. One always does, however large it is."""
    taken: list[T] = []
    pieces: list[Txn] = []
    left = most
    for item in items:
        made = piece(item)
        left -= size(made)
        if left < 0 and taken:
            break
        taken.append(item)
        pieces.append(made)
    return taken, pieces


def size(txn: Txn) -> int:
    """Its bytes, as the store counts them."""
    return size_of(txn.when, txn.then)


def together(workload: str, entry: Entry[Workload] | None, pieces: Sequence[Txn]) -> Txn:
    """All of them, as long as the wish is as it was."""
    txn = Txn(wished(workload, entry), [])
    for piece in pieces:
        txn.when += piece.when
        txn.then += piece.then
    return txn


# Pieces


def made(workload: str, entry: Entry[Workload], one: New, at: float) -> Txn:
    """Index, target, machine and name. The quota is still to be added."""
    vm, ids = one.vm, _ids(workload, one.number)
    place: dict[str, Any] = {"org": vm.org, "project": vm.project}
    created = at if one.waited is None else one.waited.value.created_at
    index = WorkloadInstance(instance=ids["instance"], vm=vm.id, template=entry.value.template, created_at=created)
    return Txn(
        [
            INSTANCE.absent(**ids) if one.waited is None else INSTANCE.unchanged(one.waited),
            VM.absent(vm=vm.id, **place),
            NAME.absent(name=vm.name, **place),
        ],
        [
            INSTANCE.put(index, **ids),
            TARGET.put(aimed(vm, None, nowhere(vm.name, FIRST), at=at), **ids),
            VM.put(vm, vm=vm.id, **place),
            NAME.put(vm.id, name=vm.name, **place),
        ],
    )


def removed(one: Held, *, keep_disk: bool = False) -> Txn:
    """Its machine is wished away; who forgets a machine forgets its instance."""
    if one.vm is None:
        return Txn([], [])
    leaving = msgspec.structs.replace(one.instance.value, leaving=True)
    return Txn(
        [INSTANCE.unchanged(one.instance), VM.unchanged(one.vm)],
        [Put(one.instance.key, INSTANCE.encode(leaving)), changed(one.vm, deleting=True, keep_disk=keep_disk)],
    )


def dropped(entry: Entry[Workload] | None, one: Held) -> Txn:
    """An instance without a machine goes at once; what it names is certainly not there."""
    txn = Txn([INSTANCE.unchanged(one.instance)], _gone(one.instance.parts))
    if one.instance.value.vm and entry is not None:
        org, project = entry.value.home
        txn.when.append(VM.absent(org=org, project=project, vm=one.instance.value.vm))
    return txn


def tuned(one: Held, tune: Tune) -> Txn:
    """Its machine is changed in place."""
    return Txn([], []) if one.vm is None else Txn([VM.unchanged(one.vm)], [changed(one.vm, **tune.fields())])


# What concerns one at a time


def names(new: Sequence[New]) -> list[Operation]:
    """What tells whose names stood in the way."""
    return [NAME.get_op(org=one.vm.org, project=one.vm.project, name=one.vm.name) for one in new]


def waits(
    workload: str,
    entry: Entry[Workload],
    number: int,
    waited: Entry[WorkloadInstance] | None,
    *,
    why: Reason,
    at: float,
) -> Txn:
    """An instance without a machine, which says why there is none."""
    ids = _ids(workload, number)
    target = Target(node=None, power=entry.value.power, reasons=(why,), decided_at=at)
    when = INSTANCE.absent(**ids) if waited is None else INSTANCE.unchanged(waited)
    then: list[Operation] = [TARGET.put(target, **ids)]
    if waited is None:
        index = WorkloadInstance(instance=ids["instance"], template=entry.value.template, created_at=at)
        then.insert(0, INSTANCE.put(index, **ids))
    return Txn([*wished(workload, entry), when], then)


def stray(vm: Entry[VirtualMachine], instance: Entry[WorkloadInstance] | None, ids: dict[str, Any]) -> Txn:
    """Delete a machine that says it stands for an instance which does not name it; its disk is retained."""
    when = INSTANCE.absent(**ids) if instance is None else INSTANCE.unchanged(instance)
    return Txn([when, VM.unchanged(vm)], [changed(vm, deleting=True, keep_disk=True)])


def forgotten(entry: Entry[Workload]) -> Txn:
    """Nothing is left of it but the wish."""
    return Txn([WORKLOAD.unchanged(entry)], [Delete(entry.key)])


# Targets that nobody else has written


def retargeted(
    instance: Entry[WorkloadInstance], target: Entry[Target], vm: VirtualMachine, command: Entry[VmCommand], at: float
) -> Txn:
    """An agent handed the machine over: the target follows."""
    node = command.parts["node"]
    record = aimed(vm, node, command.value.reasons or nowhere(node, "moved there"), at=at, command=command.value)
    when = [INSTANCE.unchanged(instance), TARGET.unchanged(target), COMMAND.unchanged(command)]
    return Txn(when, [Put(target.key, TARGET.encode(record))])


def untargeted(target: Entry[Target]) -> Txn:
    """A target without an instance."""
    ids = target.parts
    return Txn([INSTANCE.absent(**ids), TARGET.unchanged(target)], _gone(ids))


def targeted(instance: Entry[WorkloadInstance], vm: VirtualMachine | None, at: float) -> Txn:
    """An instance without a target."""
    ids, reasons = instance.parts, nowhere(instance.value.instance, "its target was missing")
    empty = Target(node=None, reasons=reasons, decided_at=at)
    record = empty if vm is None else aimed(vm, None, reasons, at=at)
    return Txn([INSTANCE.unchanged(instance), TARGET.absent(**ids)], [TARGET.put(record, **ids)])  # type: ignore[arg-type]


def _gone(ids: dict[str, Any]) -> list[Operation]:
    return [INSTANCE.delete(**ids), TARGET.delete(**ids), ACTUAL.delete(**ids)]


def _ids(workload: str, number: int) -> dict[str, Any]:
    return {"workload": workload, "instance": str(number)}
