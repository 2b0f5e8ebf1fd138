"""What the mirrors say of all workloads' instances, kept up one change at a time from when it is first asked for."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hostler.engine.workloads.instance_index import Condition, Is, Roll
from hostler.engine.workloads.vm_template import tune_of_machine
from hostler.errors import Invalid
from hostler.keys.inventory import INSTANCE
from hostler.keys.node import ALIVE
from hostler.keys.vm import HANDLE, VM
from hostler.kit.cooperative_yield import Fairness
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
_NOBODY = Roll()


class Rolls:
    """One roll for each workload of which there is anything. One per process: `View.rolls`."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._listeners: list[Callable[[str], None]] = []
        self._loading = asyncio.Lock()
        self._loaded = self._listening = False
        self._rolls: dict[str, Roll] = {}
        self._claims: dict[str, dict[str, None]] = {}  # by instance: keys of machines that say they stand for it
        self._claimed: dict[str, str] = {}  # the other way round
        self._known: dict[Condition, Condition] = {}  # there are few that differ
        self._tunes: dict[Tune, Tune] = {}

    async def load(self) -> None:
        """Take what the mirrors hold, if that was not done yet, and follow them from then on."""
        async with self._loading:
            if not self._listening:  # first, for reading it all takes a while
                self._listening = True
                self._view.instances.listen(self._instance_changed)
                self._view.vms.listen(self._vm_changed)
                self._view.handles.listen(self._handle_changed)
                self._view.alive.listen(self._node_changed)
            if not self._loaded:
                await self._load()
                self._loaded = True

    def listen(self, changed: Callable[[str], None]) -> Callable[[], None]:
        """Call `changed(workload)` when anything of its instances has changed. What is returned ends it."""
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

    def roll(self, workload: str) -> Roll:
        """Of the workload with this folded name. To be looked at."""
        return self._rolls.get(workload, _NOBODY)

    def names(self) -> list[str]:
        """Workloads of which there is any instance, or any machine that says it is one."""
        return list(self._rolls)

    def machine(self, instance: str, vm: str) -> Entry[VirtualMachine] | None:
        """The machine of this id that stands for the instance."""
        key = self._key(instance, vm)
        return None if key is None else self._view.vms.entries.get(key)

    def handle(self, vm: Entry[VirtualMachine]) -> Entry[VmHandle] | None:
        """What there is of a machine."""
        return self._view.handles.entries.get(_HANDLES + vm.key[len(_VMS) :])

    def is_silent(self, node: str) -> bool:
        """Whether the node gives no sign of life."""
        return self._view.alive.get(node=node) is None

    # News

    def _instance_changed(self, key: str) -> None:
        parts = INSTANCE.parse(key)
        self._look(instance_of(parts["workload"], parts["instance"]))

    def _vm_changed(self, key: str) -> None:
        entry = self._view.vms.entries.get(key)
        if entry is None and key in self._view.vms.unreadable:
            if (claimed := self._claimed.get(key)) is not None:  # it stands for what it stood for
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
        """Whether what is new of a machine is nothing to its instance: most of what is told of one is."""
        workload, _, name = instance.rpartition("/")
        roll, vm = self._rolls.get(workload), self._view.vms.entries.get(key)
        known = None if roll is None or not name.isdecimal() else roll.conditions.get(int(name))
        if known is None or vm is None or known.what is not Is.KEPT:
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
        except Invalid:  # another program's machine; no instance can be called that
            return
        entry = self._view.instances.entries.get(key)
        unreadable = entry is None and key in self._view.instances.unreadable
        roll = self._rolls.get(workload)
        if roll is None:
            if entry is None and not unreadable and instance not in self._claims:
                return
            roll = self._rolls[workload] = Roll()
        news = self._note_strays(roll, instance, None if entry is None else entry.value.vm, blind=unreadable)
        if not name.isascii() or not name.isdigit() or str(int(name)) != name or name == "0":
            there = entry is not None or unreadable
            news |= there != (name in roll.others)
            if there:
                roll.others[name] = None
            else:
                roll.others.pop(name, None)
        elif unreadable:
            news |= roll.put(int(name), Condition(Is.BLIND))
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
            return Condition(Is.WAITING, record.template)
        key = self._key(instance, record.vm)
        vm = None if key is None else view.vms.entries.get(key)
        if vm is None:
            # It was written in one transaction with its machine: the mirror of machines may not be as far.
            unsure = key is not None or view.vms.revision < entry.mod_revision or _unreadable(view, record.vm)
            return Condition(Is.BLIND if unsure else Is.LOST)
        handle = self.handle(vm)
        silent = handle is not None and bool(handle.value.node) and self.is_silent(handle.value.node)
        if vm.value.deleting:
            return Condition(Is.AWAY if silent else Is.LEAVING)
        tune = tune_of_machine(vm.value)
        ready, pending = (False, False) if handle is None else self._serves(vm.value, handle.value)
        # One that is said to be leaving and is not was begun by somebody else: it is replaced.
        template = 0 if record.leaving else record.template
        return Condition(Is.KEPT, template, ready, self._tunes.setdefault(tune, tune), pending)

    def _serves(self, vm: VirtualMachine, handle: VmHandle) -> tuple[bool, bool]:
        """Whether a machine is ready, and whether no node will do for it."""
        ready = bool(handle.node) and is_ready(vm, handle) and not self.is_silent(handle.node)
        return ready, handle.state is MachineState.PENDING

    def _key(self, instance: str, vm: str) -> str | None:
        """Of the machine of this id that says it stands for the instance."""
        return next((key for key in self._claims.get(instance, ()) if key.endswith(f"/{vm}")), None)

    def _claim(self, key: str, instance: str) -> None:
        self._claims.setdefault(instance, {})[key] = None
        self._claimed[key] = instance

    def _unclaim(self, key: str, instance: str) -> bool:
        """Whether it was a stray."""
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

    def _note_strays(self, roll: Roll, instance: str, own: str | None, *, blind: bool) -> bool:
        """Which machines stand for the instance though it does not name them. Whether that is news."""
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
    """Whether a machine is as it shall be, and can be used, as far as its image tells."""
    if vm.power is Power.OFF:
        return handle.state is MachineState.STOPPED
    readiness = handle.readiness
    return handle.state is MachineState.RUNNING and (readiness is None or readiness.step is Step.AVAILABLE)


def _unreadable(view: View, vm: str) -> bool:
    """Whether the record of a machine of this id cannot be read."""
    return bool(view.vms.unreadable) and any(key.endswith(f"/{vm}") for key in view.vms.unreadable)
