"""Steps as transactions: what each compares and writes. Pure, except `Targets`.

Each transaction compares the workload record, so a decision from an older spec writes nothing. The leader's guard is
added when a transaction is sent. A change of many instances consists of one piece per instance, and as many pieces as
fit are sent `together`.

The leader's VM controllers write a target together with the command. `Targets` keeps targets consistent in the other
cases: an agent that migrated a VM, which writes no targets, and records changed by other programs.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from hostler.engine.controllers.transactions import nowhere, target_of
from hostler.engine.runtime.guarded_writer import LAG, Txn, Why
from hostler.engine.runtime.work_queue import WorkQueue
from hostler.engine.vm_changes import put_changed
from hostler.errors import Invalid
from hostler.keys.families import ACTUAL, COMMAND, INSTANCE, NAME, TARGET, VM, WORKLOAD
from hostler.model.workload import Target, WorkloadInstance, instance_of, instance_parts
from hostler.ports.store import PIECE_BYTES, Delete, Put, size_of

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable, Sequence

    from hostler.engine.runtime.guarded_writer import GuardedWriter
    from hostler.engine.view import View
    from hostler.engine.workloads.instance_index import InstanceCache
    from hostler.engine.workloads.vm_template import Tune
    from hostler.keys.entry import Entry
    from hostler.kit.clock import Clock
    from hostler.model.node import VmCommand
    from hostler.model.trace import Reason
    from hostler.model.vm import VirtualMachine
    from hostler.model.workload import Workload
    from hostler.ports.store import Comparison, Operation


FIRST = "waits for its first placement"
T = TypeVar("T")


class New(msgspec.Struct, frozen=True):
    """An instance that gets a VM: a new instance, or one that waited."""

    number: int
    vm: VirtualMachine
    waited: Entry[WorkloadInstance] | None = None


class Held(msgspec.Struct, frozen=True):
    """An existing instance, and its VM if it has one."""

    instance: Entry[WorkloadInstance]
    vm: Entry[VirtualMachine] | None = None


def unchanged_spec(workload: str, entry: Entry[Workload] | None) -> list[Comparison]:
    """Return the comparison that the spec is unchanged."""
    return [WORKLOAD.absent(workload=workload) if entry is None else WORKLOAD.unchanged(entry)]


def cut(items: Iterable[T], piece: Callable[[T], Txn], *, most: int = PIECE_BYTES) -> tuple[list[T], list[Txn]]:
    """Return the first items whose pieces fit into one transaction, and these pieces; always at least one."""
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
    """Return the size in bytes, as the store counts it."""
    return size_of(txn.when, txn.then)


def together(workload: str, entry: Entry[Workload] | None, pieces: Sequence[Txn]) -> Txn:
    """Combine the pieces into one transaction, on condition that the spec is unchanged."""
    txn = Txn(unchanged_spec(workload, entry), [])
    for piece in pieces:
        txn.when += piece.when
        txn.then += piece.then
    return txn


# Pieces for one instance


def create(workload: str, entry: Entry[Workload], one: New, at: float) -> Txn:
    """Create index, target, VM and name. The caller adds the quota."""
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
            TARGET.put(target_of(vm, None, nowhere(vm.name, FIRST), at=at), **ids),
            VM.put(vm, vm=vm.id, **place),
            NAME.put(vm.id, name=vm.name, **place),
        ],
    )


def remove(one: Held, *, keep_disk: bool = False) -> Txn:
    """Mark the VM for deletion. The instance is deleted together with the VM record."""
    if one.vm is None:
        return Txn([], [])
    leaving = msgspec.structs.replace(one.instance.value, leaving=True)
    return Txn(
        [INSTANCE.unchanged(one.instance), VM.unchanged(one.vm)],
        [Put(one.instance.key, INSTANCE.encode(leaving)), put_changed(one.vm, deleting=True, keep_disk=keep_disk)],
    )


def drop(entry: Entry[Workload] | None, one: Held) -> Txn:
    """Delete an instance without a VM, on condition that the VM it names does not exist."""
    txn = Txn([INSTANCE.unchanged(one.instance)], _deletions(one.instance.parts))
    if one.instance.value.vm and entry is not None:
        org, project = entry.value.home
        txn.when.append(VM.absent(org=org, project=project, vm=one.instance.value.vm))
    return txn


def tuned(one: Held, tune: Tune) -> Txn:
    """Change the VM in place."""
    return Txn([], []) if one.vm is None else Txn([VM.unchanged(one.vm)], [put_changed(one.vm, **tune.fields())])


# Transactions for one instance


def names(new: Sequence[New]) -> list[Operation]:
    """Return the reads that show which names are taken."""
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
    """Create or update an instance without a VM, with the reason."""
    ids = _ids(workload, number)
    target = Target(node=None, power=entry.value.power, reasons=(why,), decided_at=at)
    when = INSTANCE.absent(**ids) if waited is None else INSTANCE.unchanged(waited)
    then: list[Operation] = [TARGET.put(target, **ids)]
    if waited is None:
        index = WorkloadInstance(instance=ids["instance"], template=entry.value.template, created_at=at)
        then.insert(0, INSTANCE.put(index, **ids))
    return Txn([*unchanged_spec(workload, entry), when], then)


def stray(vm: Entry[VirtualMachine], instance: Entry[WorkloadInstance] | None, ids: dict[str, Any]) -> Txn:
    """Delete a VM that claims to implement an instance which does not name it; its disk is retained."""
    when = INSTANCE.absent(**ids) if instance is None else INSTANCE.unchanged(instance)
    return Txn([when, VM.unchanged(vm)], [put_changed(vm, deleting=True, keep_disk=True)])


def forgotten(entry: Entry[Workload]) -> Txn:
    """Delete the record of a workload without instances."""
    return Txn([WORKLOAD.unchanged(entry)], [Delete(entry.key)])


# Targets that the VM controllers do not write


def retarget(
    instance: Entry[WorkloadInstance], target: Entry[Target], vm: VirtualMachine, command: Entry[VmCommand], at: float
) -> Txn:
    """Update the target after an agent migrated the VM."""
    node = command.parts["node"]
    record = target_of(vm, node, command.value.reasons or nowhere(node, "moved there"), at=at, command=command.value)
    when = [INSTANCE.unchanged(instance), TARGET.unchanged(target), COMMAND.unchanged(command)]
    return Txn(when, [Put(target.key, TARGET.encode(record))])


def untarget(target: Entry[Target]) -> Txn:
    """Delete a target without an instance."""
    ids = target.parts
    return Txn([INSTANCE.absent(**ids), TARGET.unchanged(target)], _deletions(ids))


def targeted(instance: Entry[WorkloadInstance], vm: VirtualMachine | None, at: float) -> Txn:
    """Create the missing target of an instance."""
    ids, reasons = instance.parts, nowhere(instance.value.instance, "its target was missing")
    empty = Target(node=None, reasons=reasons, decided_at=at)
    record = empty if vm is None else target_of(vm, None, reasons, at=at)
    return Txn([INSTANCE.unchanged(instance), TARGET.absent(**ids)], [TARGET.put(record, **ids)])  # type: ignore[arg-type]


def _deletions(ids: dict[str, Any]) -> list[Operation]:
    return [INSTANCE.delete(**ids), TARGET.delete(**ids), ACTUAL.delete(**ids)]


def _ids(workload: str, number: int) -> dict[str, Any]:
    return {"workload": workload, "instance": str(number)}


class Targets:
    """The part of the workload controller that repairs targets. It starts, runs and stops with the controller."""

    def __init__(
        self,
        view: View,
        rolls: InstanceCache,
        writing: GuardedWriter,
        *,
        clock: Clock,
        rng: random.Random,
        tell: Callable[[str], None],
        counters: dict[str, int],
    ) -> None:
        self._view, self._rolls, self._writing, self._clock = view, rolls, writing, clock
        self._queue = WorkQueue(self._look, clock=clock, rng=rng, tell=tell, counters=counters, width=8)

    def listen(self) -> list[Callable[[], None]]:
        """Start listening to changes. The returned functions end this."""
        return [
            self._view.commands.listen(self._command_changed),
            self._view.targets.listen(lambda key: self.check(TARGET.parse(key))),
        ]

    async def run(self) -> None:
        """Run until cancelled. Raise LeadershipLost when another replica leads."""
        await self._queue.run()

    def check(self, ids: dict[str, Any]) -> None:
        """Queue an instance with a short delay if its target seems out of date."""
        if not self._is_aimed(ids):
            self._queue.add(instance_of(ids["workload"], ids["instance"]), after=LAG)

    # Internals

    def _command_changed(self, key: str) -> None:
        entry = self._view.commands.entries.get(key)
        if entry is None:  # the command of the new node may have arrived earlier
            entry = self._command(COMMAND.parse(key)["vm"])
        ids = None if entry is None else instance_parts(entry.value.instance)
        if ids is not None:
            with suppress(Invalid):  # a command of another program; no instance can have this name
                self.check(ids)

    def _is_aimed(self, ids: dict[str, Any]) -> bool:
        """Return whether target and command agree in the caches, which may lag by different amounts."""
        instance, target = self._view.instances.get(**ids), self._view.targets.get(**ids)
        if instance is None or target is None:
            return instance is None and target is None
        command = self._command(instance.value.vm)
        if command is None or command.value.deleting:
            return True
        aim, told = target.value, command.value
        same = (aim.vm, aim.power, aim.generation) == (told.vm, told.power, told.generation)
        return same and aim.node == command.parts["node"]

    async def _look(self, instance: str) -> None:
        ids = instance_parts(instance)
        if ids is None or self._is_aimed(ids):
            return
        at, index, target = self._clock.wall(), self._view.instances.get(**ids), self._view.targets.get(**ids)
        if index is None:
            if target is not None:
                why = Why(what="untargeted", why="there is no such instance", read=(target,))
                await self._aim(untarget(target), target, why)
            return
        vm, command = self._rolls.machine(instance, index.value.vm), self._command(index.value.vm)
        if target is None:
            why = Why(what="targeted", why="its target was missing", read=(index, vm))
            await self._aim(targeted(index, None if vm is None else vm.value, at), index, why)
        elif command is not None and vm is not None and not vm.value.deleting:
            why = Why(what="targeted", why=f"its machine is on {command.parts['node']}", read=(command, target))
            await self._aim(retarget(index, target, vm.value, command, at), target, why)

    async def _aim(self, txn: Txn, about: Entry[Any], why: Why) -> None:
        await self._writing.write("", about.key, txn, why)

    def _command(self, vm: str) -> Entry[VmCommand] | None:
        node = self._view.node_of.get(vm)
        return None if node is None else self._view.commands.entries.get(COMMAND.fill(node=node, vm=vm))
