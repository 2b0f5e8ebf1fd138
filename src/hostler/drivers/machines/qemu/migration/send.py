"""Sends a machine to another node. The caller holds the machine's lock.

Everything up to the last step can be undone, and is undone when anything fails. `take_back` is also called by an agent
that finds a machine whose migration was interrupted by the death of the previous agent.
"""

from __future__ import annotations

import json
import logging
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from hostler.drivers.machines.qemu import process
from hostler.drivers.machines.qemu.disk import BASE, layers, qemu_img
from hostler.drivers.machines.qemu.identity import instance_of, private_key
from hostler.drivers.machines.qemu.machine import SHUT_DOWN
from hostler.drivers.machines.qemu.migration.incoming import socket_path
from hostler.drivers.machines.qemu.migration.outgoing import (
    DISK_GATE,
    EXPORT,
    STATE_GATE,
    OutgoingMigration,
    close_gates,
    undo,
)
from hostler.drivers.machines.qemu.migration.protocol import Gate, Manifest, Request, Seal, ask
from hostler.drivers.machines.qemu.state import Begun
from hostler.errors import HostlerError, Refused
from hostler.kit.tasks import run_to_end
from hostler.model.vm import MachineState
from hostler.ports.machines import Door

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.drivers.machines.qemu.machine import QemuMachine
    from hostler.ports.machines import Channel

    Connect = Callable[[Door], Channel]

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
        async with connect(Door.ARRIVAL_STATE) as channel:
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
                machine.ended_by_itself()  # the task that waits for its end may not have run yet
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
        state = await stack.enter_async_context(connect(Door.ARRIVAL_STATE))
        attempt = await ask(state, Request(manifest=await _manifest(machine, number, live=True)), subject)
        await site.hook("send.open:after")
        disk = await stack.enter_async_context(connect(Door.ARRIVAL_DISK))
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
        state = await stack.enter_async_context(connect(Door.ARRIVAL_STATE))
        attempt = await ask(state, Request(manifest=await _manifest(machine, number, live=False)), subject)
        await machine.site.hook("send.open:after")
        disk = await stack.enter_async_context(connect(Door.ARRIVAL_DISK))
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
