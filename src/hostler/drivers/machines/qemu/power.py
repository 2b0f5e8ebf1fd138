"""Switches a machine on and off. The caller of each function holds the machine's lock."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from hostler.drivers.machines.qemu.command import Boot
from hostler.drivers.machines.qemu.launch import check_held, limit, spawn
from hostler.drivers.machines.qemu.machine import SHUT_DOWN
from hostler.drivers.machines.qemu.migration.outgoing import announce, close_gates, tell_time, undo
from hostler.drivers.machines.qemu.restore_saved import start_warm, tell_who
from hostler.drivers.machines.qemu.snapshot import disk_now, finish_restore
from hostler.drivers.machines.qemu.state import Begun
from hostler.errors import HostlerError, Refused, Uncertain

if TYPE_CHECKING:
    from hostler.drivers.machines.qemu.machine import QemuMachine

STARTS_WITHIN = 60.0
LOADS_WITHIN = 600.0
"""For loading the memory of a snapshot."""


async def start(machine: QemuMachine) -> None:
    """Start the machine."""
    record = machine.record
    handed = record.arriving or record.departed or record.departing
    if machine.alive and record.begun is Begun.NOTHING and machine.status != SHUT_DOWN and not handed:
        return
    check_arrived(machine)
    site = machine.site
    check_held(machine)
    if machine.alive and (machine.record.begun is Begun.STOPPING or machine.status == SHUT_DOWN):
        await machine.off()  # an interrupted stop is finished first
    if not machine.alive:
        if not machine.record.ran:
            site.check_room(machine.vm)
        await finish_restore(machine)
    await site.hook("start.begun:before")
    left = record.departed or record.departing
    machine.change(
        begun=Begun.STARTING, failed=False, detail="", arriving=False, arrived=False,
        departed=False, departing=left, move_is_over=record.move_is_over or left,
    )  # fmt: skip
    await site.hook("start.begun:after")
    if machine.alive:
        await machine.attach()
        await limit(machine)
        if machine.record.departing:
            await undo(machine)
        elif machine.record.resume:
            await _regrow(machine)
        resumed = True
    else:
        resumed = await _switch_on(machine)
    await site.hook("start.done:before")
    machine.change(resume="")  # before its first instruction: from here on its work is never undone
    await _go(machine)
    await tell_who(machine)
    if machine.record.departing:
        close_gates(machine)
    machine.change(begun=Begun.NOTHING, departing=False, warmed=False)
    await site.hook("start.done:after")
    machine.climb(asks=resumed)
    if resumed:
        await announce(machine)
        await tell_time(machine)


async def _switch_on(machine: QemuMachine) -> bool:
    """Start a process that waits for its first instruction; return whether it resumes from memory."""
    kept = machine.record.snapshots.get(machine.record.resume)
    if kept is not None and kept.memory == await machine.site.fit(machine.record.spec):
        try:
            await spawn(machine, Boot(loadvm=kept.tag), within=LOADS_WITHIN)
            await _regrow(machine)
        except Uncertain:  # its memory cannot be loaded any more; its disk is complete
            machine.change(resume="", begun=Begun.STARTING, failed=False, detail="")
        else:
            return True
    await machine.disk.grow(machine.record.disk_bytes)  # a snapshot whose loading failed has also reset the size
    if not await start_warm(machine):
        machine.change(warmed=False)
        await spawn(machine, Boot(), within=STARTS_WITHIN)
    return False


async def _regrow(machine: QemuMachine) -> None:
    """Grow the disk again: loading a snapshot resets it to the size it had then. Uncertain: the machine is off."""
    wanted = machine.record.disk_bytes
    try:
        if (await disk_now(machine)).get("virtual-size", wanted) < wanted:
            await machine.execute("block_resize", {"node-name": "disk", "size": wanted})
    except HostlerError as error:
        await machine.off(within=0)
        raise Uncertain(f"machine {machine.vm!r}: its disk cannot be resized: {error}; inspect it") from None


async def _go(machine: QemuMachine) -> None:
    if machine.status not in ("running", "io-error"):
        await machine.execute("cont")
    if not machine.alive:
        check_held(machine)
        raise Uncertain(f"machine {machine.vm!r}: it ended while it started; inspect it")


async def stop(machine: QemuMachine, grace: float) -> None:
    """Ask the guest to shut down; after `grace` seconds end the process."""
    check_arrived(machine)
    record = machine.record
    if record.arriving or record.departed:
        await _stay_off(machine)
        return
    if not machine.alive:
        if machine.record.failed or machine.record.detail:
            machine.note(failed=False, detail="")
        return
    await machine.site.hook("stop.begun:before")
    machine.note(begun=Begun.STOPPING)
    await machine.site.hook("stop.begun:after")
    if grace > 0 and machine.status != SHUT_DOWN:
        with suppress(HostlerError, TimeoutError):
            async with asyncio.timeout(grace):
                machine.stopped.clear()
                await machine.execute("system_powerdown")
                await machine.stopped.wait()
    await machine.site.hook("stop.done:before")
    await machine.off()
    machine.note(detail="", failed=False)
    await machine.site.hook("stop.done:after")


async def _stay_off(machine: QemuMachine) -> None:
    """Finish the migration of a machine by keeping it here, off."""
    await machine.site.hook("stop.begun:before")
    await machine.off(within=0)
    close_gates(machine)
    machine.change(
        arriving=False, arrived=False, departed=False, departing=False, failed=False, detail="",
        move_is_over=machine.record.move_is_over or machine.record.departed,
    )  # fmt: skip
    await machine.site.hook("stop.done:after")


async def reset(machine: QemuMachine, number: int) -> None:
    """Reset a running machine, and record the number."""
    if machine.record.resets >= number:
        return
    await machine.site.hook("reset.done:before")
    if machine.alive and machine.record.begun is Begun.NOTHING:
        await machine.execute("system_reset")
        machine.climb(asks=False)
    machine.change(resets=number)
    await machine.site.hook("reset.done:after")


def check_arrived(machine: QemuMachine) -> None:
    """Raise Refused if the machine has not arrived completely."""
    if machine.record.arriving and not machine.record.arrived:
        raise Refused(
            f"machine {machine.vm!r}: its migration to this node is incomplete, so it must not run here; its source"
            " still has it: delete it here, or send it again"
        )
