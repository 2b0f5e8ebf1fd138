"""Indexes of the instances of all workloads, by condition. The cost of an update does not depend on their number.

They are derived from the caches of the store, and updated with each change.
"""

from __future__ import annotations

import asyncio
import enum
from typing import TYPE_CHECKING

import msgspec

from hostler.engine.workloads.vm_template import Tune, tune_of_machine
from hostler.errors import Invalid
from hostler.keys.families import ALIVE, HANDLE, INSTANCE, VM
from hostler.kit.sorted_sets import Numbers
from hostler.kit.tasks import Fairness
from hostler.model.vm import MachineState, Power, Step
from hostler.model.workload import instance_of, instance_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hostler.engine.view import View
    from hostler.keys.entry import Entry
    from hostler.model.vm import VirtualMachine, VmHandle
    from hostler.model.workload import WorkloadInstance


class WorkloadInstanceState(enum.Enum):
    """Condition of an instance."""

    WAITING = enum.auto()
    """It has no VM: the quota of its project is used up."""
    KEPT = enum.auto()
    LEAVING = enum.auto()
    """Its VM is being removed, and the instance with it."""
    AWAY = enum.auto()
    """Its VM is being removed on an unreachable node; other instances need not wait for it."""
    LOST = enum.auto()
    """The VM that it names does not exist."""
    BLIND = enum.auto()
    """Unknown, because a record cannot be decoded or has not been read yet. It counts and is left alone."""


class Condition(msgspec.Struct, frozen=True, gc=False):
    """Condition of one instance, with details."""

    what: WorkloadInstanceState
    template: int = 0
    """The workload template that its VM was created from."""
    ready: bool = False
    """Its VM matches the desired state and serves."""
    tune: Tune | None = None
    """KEPT: those properties of its VM that can be changed in place."""
    pending: bool = False
    """KEPT: no node is suitable for its VM."""


class WorkloadInstances:
    """Instance numbers by condition. Read-only, except for `put` and the owner of `strays`."""

    def __init__(self) -> None:
        self.conditions: dict[int, Condition] = {}
        self.taken = Numbers((0,))
        """Numbers that cannot be assigned; numbers begin with 1."""
        self.by: dict[WorkloadInstanceState, Numbers] = {what: Numbers() for what in WorkloadInstanceState}
        self.kept: dict[tuple[int, bool], Numbers] = {}
        """KEPT instances by template and readiness."""
        self.pending = Numbers()
        """KEPT instances without a node."""
        self.tunes: dict[Tune, Numbers] = {}
        """KEPT instances by the changeable properties of their VMs."""
        self.strays: dict[str, None] = {}
        """Keys of VMs that claim to implement an instance which does not name them."""
        self.others: dict[str, None] = {}
        """Instances whose names are not numbers: created by other programs, and ignored."""

    def __len__(self) -> int:
        return len(self.conditions)

    @property
    def is_empty(self) -> bool:
        """Whether no instance and no stray VM is left."""
        return not (self.conditions or self.strays or self.others)

    def put(self, number: int, condition: Condition | None) -> bool:
        """Set the condition of an instance; None: it is deleted. Return whether this is a change."""
        old = self.conditions.get(number)
        if old == condition:
            return False
        if old is not None:
            self.by[old.what].discard(number)
            if old.what is WorkloadInstanceState.KEPT:
                _take(self.kept, (old.template, old.ready), number)
                self.pending.discard(number)
                if old.tune is not None:
                    _take(self.tunes, old.tune, number)
        if condition is None:
            del self.conditions[number]
            self.taken.discard(number)
            return True
        self.conditions[number] = condition
        self.taken.add(number)
        self.by[condition.what].add(number)
        if condition.what is WorkloadInstanceState.KEPT:
            self.kept.setdefault((condition.template, condition.ready), Numbers()).add(number)
            if condition.pending:
                self.pending.add(number)
            if condition.tune is not None:
                self.tunes.setdefault(condition.tune, Numbers()).add(number)
        return True

    def count(self, what: WorkloadInstanceState) -> int:
        """Return the number of instances in this condition."""
        return len(self.by[what])

    def groups(self, *, ready: bool, template: int | None = None, beside: int | None = None) -> list[Numbers]:
        """Return the KEPT instances by readiness: of one template, or of all except `beside`."""
        return [
            numbers
            for (of, is_ready), numbers in sorted(self.kept.items(), key=_order)
            if is_ready is ready and template in (None, of) and of != beside
        ]


def _order(item: tuple[tuple[int, bool], Numbers]) -> tuple[int, bool]:
    return item[0]


def _take(groups: dict[Tune, Numbers] | dict[tuple[int, bool], Numbers], key: object, number: int) -> None:
    numbers = groups[key]  # type: ignore[index]
    numbers.discard(number)
    if not numbers:
        del groups[key]  # type: ignore[arg-type]


def total(groups: Iterable[Numbers]) -> int:
    """Return the total count."""
    return sum(map(len, groups))


_VMS, _HANDLES = VM.prefix(), HANDLE.prefix()
_NOBODY = WorkloadInstances()


class InstanceCache:
    """One index for each workload that has instances. One per process: `View.rolls`."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._listeners: list[Callable[[str], None]] = []
        self._loading = asyncio.Lock()
        self._loaded = self._listening = False
        self._rolls: dict[str, WorkloadInstances] = {}
        self._claims: dict[str, dict[str, None]] = {}  # by instance: keys of VMs that claim to implement it
        self._claimed: dict[str, str] = {}  # the inverse
        self._known: dict[Condition, Condition] = {}  # shared values, because few differ
        self._tunes: dict[Tune, Tune] = {}

    async def load(self) -> None:
        """Build the indexes from the caches, if not done yet, and follow changes from then on."""
        async with self._loading:
            if not self._listening:  # first, because reading everything takes long
                self._listening = True
                self._view.instances.listen(self._instance_changed)
                self._view.vms.listen(self._vm_changed)
                self._view.handles.listen(self._handle_changed)
                self._view.alive.listen(self._node_changed)
            if not self._loaded:
                await self._load()
                self._loaded = True

    def listen(self, changed: Callable[[str], None]) -> Callable[[], None]:
        """Call `changed(workload)` when any of its instances has changed. The returned function ends this."""
        self._listeners = [*self._listeners, changed]

        def end() -> None:
            self._listeners = [other for other in self._listeners if other is not changed]

        return end

    async def _load(self) -> None:
        view, fairness = self._view, Fairness()
        for key in tuple(view.vms.entries):
            if (vm := view.vms.entries.get(key)) is not None and vm.value.instance:
                self._claim(key, vm.value.instance)
            await fairness.share()
        for key in (*view.instances.entries, *view.instances.unreadable):
            self._instance_changed(key)
            await fairness.share()
        for instance in tuple(self._claims):
            self._look(instance)
            await fairness.share()

    def roll(self, workload: str) -> WorkloadInstances:
        """Return the index of the workload with this folded name. Read-only."""
        return self._rolls.get(workload, _NOBODY)

    def names(self) -> list[str]:
        """Return the workloads that have an instance, or a VM that claims to be one."""
        return list(self._rolls)

    def machine(self, instance: str, vm: str) -> Entry[VirtualMachine] | None:
        """Return the VM of this id that implements the instance."""
        key = self._key(instance, vm)
        return None if key is None else self._view.vms.entries.get(key)

    def handle(self, vm: Entry[VirtualMachine]) -> Entry[VmHandle] | None:
        """Return the handle of a VM."""
        return self._view.handles.entries.get(_HANDLES + vm.key[len(_VMS) :])

    def is_silent(self, node: str) -> bool:
        """Return whether the node is unreachable."""
        return self._view.alive.get(node=node) is None

    # Changes

    def _instance_changed(self, key: str) -> None:
        parts = INSTANCE.parse(key)
        self._look(instance_of(parts["workload"], parts["instance"]))

    def _vm_changed(self, key: str) -> None:
        entry = self._view.vms.entries.get(key)
        if entry is None and key in self._view.vms.unreadable:
            if (claimed := self._claimed.get(key)) is not None:  # keep the last known claim
                self._look(claimed)
            return
        before, now = self._claimed.get(key), "" if entry is None else entry.value.instance
        if before is not None and before != now:
            was_stray = self._unclaim(key, before)
            self._look(before)
            if was_stray:
                self._tell(before.rpartition("/")[0])
        if now:
            self._claim(key, now)
            self._look(now)

    def _handle_changed(self, key: str) -> None:
        vm = _VMS + key[len(_HANDLES) :]
        instance = self._claimed.get(vm)
        if instance is not None and not self._is_the_same(instance, vm):
            self._look(instance)

    def _is_the_same(self, instance: str, key: str) -> bool:
        """Return whether a changed handle does not affect the instance, which is the common case."""
        workload, _, name = instance.rpartition("/")
        roll, vm = self._rolls.get(workload), self._view.vms.entries.get(key)
        known = None if roll is None or not name.isdecimal() else roll.conditions.get(int(name))
        if known is None or vm is None or known.what is not WorkloadInstanceState.KEPT:
            return False
        handle = self.handle(vm)
        return handle is not None and (known.ready, known.pending) == self._serves(vm.value, handle.value)

    def _node_changed(self, key: str) -> None:
        for command in self._view.commands_of(ALIVE.parse(key)["node"]):
            if command.value.instance:
                self._look(command.value.instance)

    # One instance

    def _look(self, instance: str) -> None:
        ids = instance_parts(instance)
        if ids is None:
            return
        workload, name = ids["workload"], ids["instance"]
        try:
            key = INSTANCE.fill(**ids)
        except Invalid:  # a VM of another program; no instance can have this name
            return
        entry = self._view.instances.entries.get(key)
        unreadable = entry is None and key in self._view.instances.unreadable
        roll = self._rolls.get(workload)
        if roll is None:
            if entry is None and not unreadable and instance not in self._claims:
                return
            roll = self._rolls[workload] = WorkloadInstances()
        news = self._note_strays(roll, instance, None if entry is None else entry.value.vm, blind=unreadable)
        if not name.isascii() or not name.isdigit() or str(int(name)) != name or name == "0":
            there = entry is not None or unreadable
            news |= there != (name in roll.others)
            if there:
                roll.others[name] = None
            else:
                roll.others.pop(name, None)
        elif unreadable:
            news |= roll.put(int(name), Condition(WorkloadInstanceState.BLIND))
        elif entry is None:
            news |= int(name) in roll.conditions and roll.put(int(name), None)
        else:
            condition = self._condition(instance, entry)
            news |= roll.put(int(name), self._known.setdefault(condition, condition))
        if roll.is_empty:
            del self._rolls[workload]
        if news:
            self._tell(workload)

    def _tell(self, workload: str) -> None:
        for changed in self._listeners:
            changed(workload)

    def _condition(self, instance: str, entry: Entry[WorkloadInstance]) -> Condition:
        record, view = entry.value, self._view
        if not record.vm:
            return Condition(WorkloadInstanceState.WAITING, record.template)
        key = self._key(instance, record.vm)
        vm = None if key is None else view.vms.entries.get(key)
        if vm is None:
            # It was written in one transaction with its VM: the cache of VMs may lag behind.
            unsure = key is not None or view.vms.revision < entry.mod_revision or _unreadable(view, record.vm)
            return Condition(WorkloadInstanceState.BLIND if unsure else WorkloadInstanceState.LOST)
        handle = self.handle(vm)
        silent = handle is not None and bool(handle.value.node) and self.is_silent(handle.value.node)
        if vm.value.deleting:
            return Condition(WorkloadInstanceState.AWAY if silent else WorkloadInstanceState.LEAVING)
        tune = tune_of_machine(vm.value)
        ready, pending = (False, False) if handle is None else self._serves(vm.value, handle.value)
        # Marked as leaving, but its VM is not being deleted: another program did this, so it is replaced.
        template = 0 if record.leaving else record.template
        return Condition(WorkloadInstanceState.KEPT, template, ready, self._tunes.setdefault(tune, tune), pending)

    def _serves(self, vm: VirtualMachine, handle: VmHandle) -> tuple[bool, bool]:
        """Return whether a VM is ready, and whether no node is suitable for it."""
        ready = bool(handle.node) and is_ready(vm, handle) and not self.is_silent(handle.node)
        return ready, handle.state is MachineState.PENDING

    def _key(self, instance: str, vm: str) -> str | None:
        """Return the key of the VM of this id that claims to implement the instance."""
        return next((key for key in self._claims.get(instance, ()) if key.endswith(f"/{vm}")), None)

    def _claim(self, key: str, instance: str) -> None:
        self._claims.setdefault(instance, {})[key] = None
        self._claimed[key] = instance

    def _unclaim(self, key: str, instance: str) -> bool:
        """Remove a claim. Return whether the VM was a stray."""
        del self._claimed[key]
        keys = self._claims[instance]
        del keys[key]
        if not keys:
            del self._claims[instance]
        roll = self._rolls.get(instance.rpartition("/")[0])
        if roll is None or key not in roll.strays:
            return False
        del roll.strays[key]
        return True

    def _note_strays(self, roll: WorkloadInstances, instance: str, own: str | None, *, blind: bool) -> bool:
        """Update the VMs that claim to implement the instance but are not named by it. Return whether this changed."""
        news = False
        for key in self._claims.get(instance, ()):
            entry = self._view.vms.entries.get(key)
            stray = not blind and entry is not None and entry.value.id != own
            if stray is not (key in roll.strays):
                news = True
                if stray:
                    roll.strays[key] = None
                else:
                    del roll.strays[key]
        return news


def is_ready(vm: VirtualMachine, handle: VmHandle) -> bool:
    """Return whether a VM has its desired power state and is available, as far as its image can tell."""
    if vm.power is Power.OFF:
        return handle.state is MachineState.STOPPED
    readiness = handle.readiness
    return handle.state is MachineState.RUNNING and (readiness is None or readiness.step is Step.AVAILABLE)


def _unreadable(view: View, vm: str) -> bool:
    """Return whether the record of a VM of this id cannot be decoded."""
    return bool(view.vms.unreadable) and any(key.endswith(f"/{vm}") for key in view.vms.unreadable)
