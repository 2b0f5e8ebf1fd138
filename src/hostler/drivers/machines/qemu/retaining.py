"""The verbs that take machines out of service, keep them, and put them back; `driver` has the other verbs.

A machine is in service exactly while its folder is in the folder of machines. Renaming the folder is the step that
decides. What is written before it has no effect until then.
"""

from __future__ import annotations

import logging
import os
import stat
from typing import TYPE_CHECKING

import msgspec

from hostler.drivers.machines import validation
from hostler.drivers.machines.qemu import power, state
from hostler.drivers.machines.qemu.machine import QemuMachine
from hostler.drivers.machines.qemu.state import Begun, Life, number_of
from hostler.errors import Damaged, NotFound, Refused
from hostler.kit.tasks import run_to_end
from hostler.ports.machines import RetainedMachine

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence
    from contextlib import AbstractAsyncContextManager

    from hostler.drivers.machines.qemu.folder import MachineFolder, NodeFolder
    from hostler.drivers.machines.qemu.migration.incoming import IncomingMigration
    from hostler.drivers.machines.qemu.node_context import NodeContext
    from hostler.drivers.machines.qemu.state import MachineRecord
    from hostler.ports.machines import Machine, MachinePlan

_log = logging.getLogger("hostler.qemu")


class RetainedFolder(msgspec.Struct, frozen=True):
    """A retained machine."""

    folder: MachineFolder
    record: MachineRecord
    disk_bytes: int

    def seen(self) -> RetainedMachine:
        """Return the retained machine as defined by the port."""
        record = self.record
        return RetainedMachine(
            name=record.retained,
            label=record.label,
            machine_name=record.name,
            spec=record.spec,
            snapshots=tuple(record.snapshots),
            retained_at=record.retained_at,
            disk_bytes=self.disk_bytes,
        )


class Retaining:
    """Mixin of the driver. The attributes and methods that it needs of the driver come first."""

    _folder: NodeFolder
    _machines: dict[str, QemuMachine]
    _arrivals: dict[str, IncomingMigration]
    _kept: dict[str, RetainedFolder]
    """Retained machines by name."""
    _keeping: asyncio.Lock
    """Serializes changes of retained machines."""

    def _require_open(self) -> NodeContext:
        raise NotImplementedError

    def _verb(self, vm: str) -> AbstractAsyncContextManager[NodeContext]:
        raise NotImplementedError

    def _lock(self, vm: str) -> asyncio.Lock:
        raise NotImplementedError

    async def _destroy(self, machine: QemuMachine) -> None:
        raise NotImplementedError

    async def retain(self, vm: str, name: str) -> RetainedMachine | None:
        self._require_open()
        validation.check_text("retained machine", name)
        async with self._verb(vm) as site, self._keeping:
            machine, kept = self._machines.get(vm), self._kept.get(name)
            if machine is None:
                return None if kept is None or kept.record.vm != vm else kept.seen()
            if kept is not None or self._folder.retained(name).path.exists():
                raise Refused(f"machine {vm!r}: another machine is retained as {name!r}; retain it under another name")
            record = machine.record
            if record.life is not Life.WHOLE or (record.arriving and not record.arrived):
                await self._destroy(machine)
                return None
            await power.stop(machine, 0.0)
            await machine.off(within=0)  # also releases the tap, rules and group of a run that ended by itself
            await site.hook("retain.begun:before")
            machine.change(retained=name, retained_at=site.clock.wall())
            await site.hook("retain.begun:after")
            await run_to_end(self._take_out(machine, name))
            await site.hook("retain.done:after")
            return self._kept[name].seen()

    async def _take_out(self, machine: QemuMachine, name: str) -> None:
        folder = self._folder.retained(name)
        await machine.detach()
        try:
            self._folder.rename(machine.folder, folder)
        except BaseException:  # it is still in service, and needs an object that follows its process
            self._machines[machine.vm] = QemuMachine(machine.site, machine.folder, machine.record, machine.lock)
            raise
        machine.gone = True
        self._arrivals.pop(machine.vm, None)
        del self._machines[machine.vm]
        self._kept[name] = RetainedFolder(folder, machine.record, _disk_bytes(folder))

    async def retained(self) -> Sequence[RetainedMachine]:
        self._require_open()
        return [kept.seen() for kept in self._kept.values()]

    async def reinstate(self, name: str, plan: MachinePlan) -> Machine:
        self._require_open()
        validation.check_text("retained machine", name)
        validation.check_plan(plan, None)
        vm = plan.label.vm
        async with self._verb(vm) as site, self._keeping:
            machine, kept = self._machines.get(vm), self._kept.get(name)
            if kept is None:
                if machine is None or machine.record.life is not Life.WHOLE:
                    raise NotFound(f"machine {vm!r}: nothing is retained as {name!r} here; list what is retained")
                return machine.seen()
            if machine is not None and machine.record.life is Life.WHOLE:
                raise Refused(f"machine {vm!r}: it exists, {machine.state}; retain or delete it first")
            if machine is not None:
                await self._destroy(machine)
            await site.hook("reinstate.begun:before")
            record = reinstated(kept.record, plan)
            state.write(kept.folder.path, record)
            await site.hook("reinstate.begun:after")
            folder = self._folder.machine(vm)
            self._folder.rename(kept.folder, folder)
            del self._kept[name]
            machine = self._machines[vm] = QemuMachine(site, folder, record, self._lock(vm))
            await site.hook("reinstate.done:after")
            return machine.seen()

    async def discard(self, name: str) -> None:
        self._require_open()
        validation.check_text("retained machine", name)
        async with self._keeping:
            site, kept = self._require_open(), self._kept.get(name)
            if kept is not None:
                await site.hook("discard.done:before")
                try:
                    await run_to_end(kept.folder.remove())
                finally:
                    if not kept.folder.path.exists():
                        self._kept.pop(name, None)
                await site.hook("discard.done:after")


def read(place: NodeFolder) -> tuple[dict[str, RetainedFolder], list[Damaged], set[int]]:
    """Return the retained machines in a node's folder, the errors of unreadable ones, and the numbers of all.

    Unreadable ones are left as they are.
    """
    found: dict[str, RetainedFolder] = {}
    damaged: list[Damaged] = []
    numbers: set[int] = set()
    for folder in place.all_retained():
        try:
            record = state.read(folder.path)
            if not record.retained or place.retained(record.retained).path != folder.path:
                raise Damaged(f"{folder.path}: it contains a machine that is retained as {record.retained!r}")
        except Damaged as error:
            damaged.append(error)
            numbers.add(number_of(folder) or 0)
            _log.warning("retained machine: %s", error)
        else:
            found[record.retained] = RetainedFolder(folder, record, _disk_bytes(folder))
            numbers.add(record.number)
    return found, damaged, numbers


def reinstated(record: MachineRecord, plan: MachinePlan) -> MachineRecord:
    """Return the record of the machine in service again. Counters of another virtual machine are reset."""
    same = record.vm == plan.label.vm
    return msgspec.structs.replace(
        record,
        label=plan.label,
        marks=plan.tags,
        begun=Begun.NOTHING,
        run=None,
        failed=False,
        detail="",
        **({} if same else {"resets": 0, "restored": 0, "moved": 0, "move_is_over": False}),
    )


def _disk_bytes(folder: MachineFolder) -> int:
    """Return the space that deleting it would free. Linked images are shared and do not count."""
    used = 0
    try:
        for entry in os.scandir(folder.path):
            status = entry.stat(follow_symlinks=False)
            if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
                used += status.st_blocks * 512
    except OSError:
        return 0
    return used
