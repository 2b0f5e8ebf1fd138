"""Sends a machine to another node: the steps, and the verbs of the port. The caller of a step holds the machine's lock.

Everything up to the last step can be undone, and is undone when anything fails. `take_back` is also called by an agent
that finds a machine whose migration was interrupted by the death of the previous agent.
"""

from __future__ import annotations

import json
import logging
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from hostler.drivers.machines import validation
from hostler.drivers.machines.qemu import process
from hostler.drivers.machines.qemu.create import instance_of, private_key
from hostler.drivers.machines.qemu.disk import BASE, layers, qemu_img
from hostler.drivers.machines.qemu.machine import SHUT_DOWN
from hostler.drivers.machines.qemu.migration.incoming import IncomingDisk, IncomingMigration, IncomingState, socket_path
from hostler.drivers.machines.qemu.migration.outgoing import (
    DISK_GATE,
    EXPORT,
    STATE_GATE,
    OutgoingMigration,
    close_gates,
    undo,
)
from hostler.drivers.machines.qemu.migration.protocol import Gate, Manifest, Request, Seal, ask
from hostler.drivers.machines.qemu.state import Begun, Life
from hostler.errors import HostlerError, Refused, Unavailable
from hostler.kit.tasks import run_to_end
from hostler.model.vm import MachineState
from hostler.ports.machines import ChannelKind

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager
    from typing import Any

    from hostler.drivers.machines.qemu.machine import QemuMachine
    from hostler.drivers.machines.qemu.node_context import NodeContext
    from hostler.model.image import Image
    from hostler.ports.machines import Channel, Machine, MachinePlan

if TYPE_CHECKING:
    Connect = Callable[[ChannelKind], Channel]

COPIES_WITHIN = 6 * 3600.0
_log = logging.getLogger("hostler.qemu")


async def send(machine: QemuMachine, number: int, connect: Connect, *, live: bool) -> None:
    """Send the machine, as defined by the port."""
    record = machine.record
    if record.departed and record.moved == number:
        return
    _check(machine, number, live=live)
    site = machine.site
    await site.hook("send.begun:before")
    machine.change(moved=number, move_is_over=False, departing=True, departed=False)
    try:
        await site.hook("send.begun:after")
        attempt = await (_send_running if machine.alive else _send_disk)(machine, number, connect)
        await site.hook("send.sealed:before")
        async with connect(ChannelKind.ARRIVAL_STATE) as channel:
            await ask(channel, Request(seal=Seal(vm=machine.vm, attempt=attempt)), _subject(machine))
        await site.hook("send.done:before")
        machine.change(departed=True, departing=False, available_at=None)
    except BaseException as error:
        if not isinstance(error, Refused):
            _log.warning("%s: it stays because its move %d failed: %r", _subject(machine), number, error)
        await run_to_end(take_back(machine))
        raise
    machine.calm()
    await site.hook("send.done:after")


async def take_back(machine: QemuMachine) -> None:
    """Undo an interrupted migration. A machine whose QEMU does not answer is left for `start`."""
    try:
        if machine.alive and machine.status != SHUT_DOWN:
            try:
                await undo(machine)
            except HostlerError:
                if process.alive(machine.folder):
                    raise
                machine.record_unexpected_end()  # the task that waits for its end may not have run yet
        close_gates(machine)
        machine.note(departing=False)
    except HostlerError as error:
        _log.warning("%s: it may be paused because its move could not be undone: %s", _subject(machine), error)
        machine.note(begun=Begun.STARTING)  # `start` tries again


def _check(machine: QemuMachine, number: int, *, live: bool) -> None:
    record, subject = machine.record, _subject(machine)
    if number < record.moved or (number == record.moved and record.move_is_over):
        raise Refused(f"{subject}: move {number} is over; give the next one a higher number")
    if record.arriving or record.departed:
        raise Refused(f"{subject}: it is being migrated; start or stop it first")
    if record.restoring is not None:
        raise Refused(f"{subject}: its last restore was interrupted; restore or start it first")
    if machine.alive and not live:
        raise Refused(f"{subject}: it is running; stop it, or migrate it live")
    if machine.alive and (machine.state is not MachineState.RUNNING or machine.status != "running"):
        raise Refused(f"{subject}: it is {machine.status or machine.state}, so it cannot be migrated now; try again")


async def _send_running(machine: QemuMachine, number: int, connect: Connect) -> str:
    """Send disk, memory and devices; the guest is stopped at the end. Return the attempt."""
    subject, site = _subject(machine), machine.site
    async with AsyncExitStack() as stack:
        state = await stack.enter_async_context(connect(ChannelKind.ARRIVAL_STATE))
        attempt = await ask(state, Request(manifest=await _manifest(machine, number, live=True)), subject)
        await site.hook("send.open:after")
        disk = await stack.enter_async_context(connect(ChannelKind.ARRIVAL_DISK))
        departure = OutgoingMigration(
            machine,
            subject,
            disk=await _gate(stack, machine, DISK_GATE, disk),
            state=await _gate(stack, machine, STATE_GATE, state),
        )
        await departure.copy_disk()
        await site.hook("send.disk:after")
        await departure.hold()
        await site.hook("send.held:after")
        await departure.send_memory()
        await site.hook("send.memory:after")
        await departure.switch()
        await site.hook("send.switched:after")
    return attempt


async def _send_disk(machine: QemuMachine, number: int, connect: Connect) -> str:
    """Send the disk of a machine that is off. Return the attempt."""
    subject = _subject(machine)
    async with AsyncExitStack() as stack:
        state = await stack.enter_async_context(connect(ChannelKind.ARRIVAL_STATE))
        attempt = await ask(state, Request(manifest=await _manifest(machine, number, live=False)), subject)
        await machine.site.hook("send.open:after")
        disk = await stack.enter_async_context(connect(ChannelKind.ARRIVAL_DISK))
        await _gate(stack, machine, DISK_GATE, disk)
        form = machine.record.image.disk_format
        there = f"driver=nbd,server.type=unix,server.path={DISK_GATE},export={EXPORT}"
        words = ("convert", "-n", "-q", "-B", BASE, "-F", form, "--target-image-opts")
        source = "json:" + json.dumps(layers(form))
        await qemu_img(machine.folder.path, (*words, source, there), wrap=machine.rights.wrap, within=COPIES_WITHIN)
        await machine.site.hook("send.disk:after")
    return attempt


async def _gate(stack: AsyncExitStack, machine: QemuMachine, name: str, channel: Channel) -> Gate:
    gate = Gate(socket_path(machine, name), channel, _subject(machine))
    stack.push_async_callback(gate.aclose)
    await gate.open(machine.rights.uid)
    return gate


async def _manifest(machine: QemuMachine, number: int, *, live: bool) -> Manifest:
    record, here = machine.record, await machine.site.here()
    return Manifest(
        vm=machine.vm,
        number=number,
        live=live,
        spec=record.spec,
        name=record.name,
        fit=await machine.site.fit(record.spec),
        processor=here.processor,
        network=here.network,
        digest=record.image.digest,
        disk_bytes=record.disk_bytes,
        instance=instance_of(machine),
        mac=record.mac,
        resets=record.resets,
        restored=record.restored,
        host_key=private_key(machine.folder.path),
    )


def _subject(machine: QemuMachine) -> str:
    return f"machine {machine.vm!r}"


class Moving:
    """Mixin of the driver. The attributes and methods that it needs of the driver come first."""

    _machines: dict[str, QemuMachine]
    _arrivals: dict[str, IncomingMigration]
    """Incoming machines and what this process knows of them."""

    def _require_open(self) -> NodeContext:
        raise NotImplementedError

    def _verb(self, vm: str) -> AbstractAsyncContextManager[NodeContext]:
        raise NotImplementedError

    def _require_machine(self, vm: str) -> QemuMachine:
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
        self._require_open()
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
        self._require_open()
        validation.check_plan(plan, None)
        async with self._verb(plan.label.vm) as site:
            machine = self._require_machine(plan.label.vm)
            validation.check_markable(machine.record.label, plan.label)
            await site.hook("mark.done:before")
            machine.change(label=plan.label, marks=plan.tags)
            await site.hook("mark.done:after")
            return machine.seen()

    async def send(
        self, vm: str, number: int, connect: Callable[[ChannelKind], Channel], *, live: bool = True
    ) -> Machine:
        self._require_open()
        validation.check_number(number)
        async with self._verb(vm):
            machine = self._whole(vm)
            await send(machine, number, connect, live=live)
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

    def _incoming_channel(self, vm: str, kind: ChannelKind) -> Channel:
        self._require_open()
        machine = self._require_machine(vm)
        arrival = self._arrivals.get(vm)
        if arrival is None or arrival.machine is not machine or not machine.record.arriving:
            raise Unavailable(f"machine {vm!r}: it is not expected here; call receive first")
        return IncomingState(arrival) if kind is ChannelKind.ARRIVAL_STATE else IncomingDisk(arrival)

    async def _settle_move(self, machine: QemuMachine) -> None:
        """Clean up after a dead agent: end an incomplete incoming machine, and keep one that was being sent."""
        record = machine.record
        if record.arriving and not record.arrived:
            await machine.off(within=0)
        elif record.departing and record.begun is Begun.NOTHING:
            await take_back(machine)

    def _here(self, vm: str) -> QemuMachine:
        machine = self._whole(vm)
        if machine.record.arriving or machine.record.departed:
            raise Refused(f"machine {vm!r}: it is being migrated; start or stop it first")
        return machine
