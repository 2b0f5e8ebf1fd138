"""The instance indexes of all workloads, derived from the caches of the store and updated with each change."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hostler.engine.workloads.instance_index import Condition, WorkloadInstances, WorkloadInstanceState
from hostler.engine.workloads.vm_template import tune_of_machine
from hostler.errors import Invalid
from hostler.keys.families import ALIVE, HANDLE, INSTANCE, VM
from hostler.kit.tasks import Fairness
from hostler.model.vm import MachineState, Power, Step
from hostler.model.workload import instance_of, instance_parts

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.engine.view import View
    from hostler.engine.workloads.vm_template import Tune
    from hostler.keys.entry import Entry
    from hostler.model.vm import VirtualMachine, VmHandle
    from hostler.model.workload import WorkloadInstance

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
