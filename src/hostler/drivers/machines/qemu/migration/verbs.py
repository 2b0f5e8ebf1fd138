"""The verbs that move machines to another node or owner; `driver` has the other verbs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.drivers.machines import validation
from hostler.drivers.machines.qemu.migration import send as sending
from hostler.drivers.machines.qemu.migration.incoming import IncomingDisk, IncomingMigration, IncomingState
from hostler.drivers.machines.qemu.state import Begun, Life
from hostler.errors import Refused, Unavailable
from hostler.ports.machines import Door

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager
    from typing import Any

    from hostler.drivers.machines.qemu.machine import QemuMachine
    from hostler.drivers.machines.qemu.node_context import NodeContext
    from hostler.model.image import Image
    from hostler.ports.machines import Channel, Machine, MachinePlan


class Moving:
    """Mixin of the driver. The attributes and methods that it needs of the driver come first."""

    _machines: dict[str, QemuMachine]
    _arrivals: dict[str, IncomingMigration]
    """Incoming machines and what this process knows of them."""

    def _opened(self) -> NodeContext:
        raise NotImplementedError

    def _verb(self, vm: str) -> AbstractAsyncContextManager[NodeContext]:
        raise NotImplementedError

    def _expected(self, vm: str) -> QemuMachine:
        raise NotImplementedError

    def _whole(self, vm: str) -> QemuMachine:
        raise NotImplementedError

    def _image(self, plan: MachinePlan) -> Image:
        raise NotImplementedError

    def _begin(self, site: NodeContext, plan: MachinePlan, image: Image, **fields: Any) -> QemuMachine:
        raise NotImplementedError

    async def _destroy(self, machine: QemuMachine) -> None:
        raise NotImplementedError

    @property
    def moves(self) -> bool:
        return True

    async def receive(self, plan: MachinePlan, number: int) -> Machine:
        self._opened()
        validation.check_plan(plan, None)
        validation.check_number(number)
        vm = plan.label.vm
        async with self._verb(vm) as site:
            machine = self._machines.get(vm)
            if machine is not None and machine.record.life is Life.DELETING:
                await self._destroy(machine)
                machine = None
            if machine is not None and (not machine.record.arriving or machine.record.label != plan.label):
                raise Refused(f"machine {vm!r}: it already exists here, {machine.state}; delete it first")
            if machine is None or not self._is_present(machine, number):
                machine = await self._expect(site, plan, number, machine)
            return machine.seen()

    async def mark(self, plan: MachinePlan) -> Machine:
        self._opened()
        validation.check_plan(plan, None)
        async with self._verb(plan.label.vm) as site:
            machine = self._expected(plan.label.vm)
            validation.check_markable(machine.record.label, plan.label)
            await site.hook("mark.done:before")
            machine.change(label=plan.label, marks=plan.tags)
            await site.hook("mark.done:after")
            return machine.seen()

    async def send(self, vm: str, number: int, connect: Callable[[Door], Channel], *, live: bool = True) -> Machine:
        self._opened()
        validation.check_number(number)
        async with self._verb(vm):
            machine = self._whole(vm)
            await sending.send(machine, number, connect, live=live)
            return machine.seen()

    def _is_present(self, machine: QemuMachine, number: int) -> bool:
        """Return whether that move can continue.

        A complete machine is kept for its move: it may already own its identity.
        """
        if machine.record.moved != number:
            return False
        arrival = self._arrivals.get(machine.vm)
        return machine.record.arrived or (arrival is not None and arrival.machine is machine and arrival.is_of_use)

    async def _expect(self, site: NodeContext, plan: MachinePlan, number: int, old: QemuMachine | None) -> QemuMachine:
        image = self._image(plan)
        site.check_room(plan.label.vm)
        if old is not None:
            await self._destroy(old)
        await site.hook("receive.begun:before")
        machine = self._begin(site, plan, image, life=Life.WHOLE, arriving=True, moved=number)
        await site.hook("receive.begun:after")
        self._arrivals[machine.vm] = IncomingMigration(machine)
        return machine

    def _arrival_door(self, vm: str, door: Door) -> Channel:
        self._opened()
        machine = self._expected(vm)
        arrival = self._arrivals.get(vm)
        if arrival is None or arrival.machine is not machine or not machine.record.arriving:
            raise Unavailable(f"machine {vm!r}: it is not expected here; call receive first")
        return IncomingState(arrival) if door is Door.ARRIVAL_STATE else IncomingDisk(arrival)

    async def _settle_move(self, machine: QemuMachine) -> None:
        """Clean up after a dead agent: end an incomplete incoming machine, and keep one that was being sent."""
        record = machine.record
        if record.arriving and not record.arrived:
            await machine.off(within=0)
        elif record.departing and record.begun is Begun.NOTHING:
            await sending.take_back(machine)

    def _here(self, vm: str) -> QemuMachine:
        machine = self._whole(vm)
        if machine.record.arriving or machine.record.departed:
            raise Refused(f"machine {vm!r}: it is being migrated; start or stop it first")
        return machine
