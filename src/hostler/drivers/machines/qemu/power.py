"""Switches a machine on, also from a saved state, and off. The caller of each function holds the machine's lock."""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from hostler.drivers.machines.qemu import acceleration, process, saved_state
from hostler.drivers.machines.qemu.command import Boot, Wiring, command
from hostler.drivers.machines.qemu.create import lay_seed
from hostler.drivers.machines.qemu.machine import SHUT_DOWN
from hostler.drivers.machines.qemu.migration.outgoing import announce, close_gates, tell_time, undo
from hostler.drivers.machines.qemu.network import port_was_taken
from hostler.drivers.machines.qemu.privileges import GroupLimits, own_files
from hostler.drivers.machines.qemu.snapshot import disk_now, finish_restore
from hostler.drivers.machines.qemu.state import Begun
from hostler.errors import HostlerError, Refused, Unavailable, Uncertain
from hostler.kit.tasks import run_to_end
from hostler.model.vm import Step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostler.drivers.machines.qemu.machine import QemuMachine
    from hostler.drivers.machines.qemu.pid_lookup import Run

PORTS_TRIED = 5


async def spawn(machine: QemuMachine, boot: Boot, *, within: float, descriptors: Sequence[int] = ()) -> None:
    """Run QEMU, which inherits the descriptors, and connect to it. Uncertain: it ended, or does not answer."""
    site = machine.site
    await machine.leave_none()
    taken = site.ports_of_others(machine.vm)
    accelerator = await site.accelerator(machine.folder.path)
    for _ in range(PORTS_TRIED):
        record = machine.record
        attached = await site.network.attach(record.number, record.mac, port=record.port or 0, taken=taken)
        try:
            machine.change(port=attached.port, host=attached.host)
            wiring = Wiring(accelerator=accelerator, netdev=attached.netdev, **lay_seed(machine, attached))
            own_files(machine.rights, machine.folder.path)
            await site.hook("start.spawned:before")
            run = await process.spawn(
                machine.folder,
                command(machine.record, wiring, boot),
                wrap=partial(acceleration.with_device(machine.rights, accelerator).wrap, cpus=record.spec.cpus),
                hold=site.folder.hold_path if record.fenced else None,
                pass_fds=(*attached.descriptors, *descriptors),
            )
        except BaseException:
            with suppress(Unavailable):
                machine.look()  # a process that could not be ended, either
            raise
        finally:
            site.network.close_descriptors(attached)
        machine.lives()
        machine.change(run=run, ran=True)
        await site.hook("start.spawned:after")
        try:
            await _limit_and_attach(machine, within)
        except (HostlerError, TimeoutError):
            await machine.off(within=0)
            said = machine.folder.said()
            check_held(machine)
            if not (attached.forwarded and port_was_taken(said)):
                raise Uncertain(
                    f"machine {machine.vm!r}: it did not start: {said or 'no answer'}; inspect it"
                ) from None
            taken.add(attached.port)
            machine.change(begun=Begun.STARTING, failed=False, detail="")
        else:
            return
    raise Unavailable(f"machine {machine.vm!r}: {PORTS_TRIED} ports in a row were taken by other processes; try again")


async def _limit_and_attach(machine: QemuMachine, within: float) -> None:
    """Set the limits and connect at the same time: each takes tens of milliseconds."""
    limiting = asyncio.create_task(limit(machine), name=f"machine {machine.vm}: limits")
    try:
        await machine.attach(within=within)
    finally:
        await run_to_end(limiting)  # otherwise a group could be created for a machine that is off


async def limit(machine: QemuMachine) -> None:
    """Set the resource limits of the process. Repeat it: the agent may have been killed before it did so."""
    record = machine.record
    if record.run is not None:
        shape = GroupLimits(record.spec.memory_mib, record.spec.cpus, record.spec.cpu_share)
        await machine.site.limits.apply(record.number, record.run.pid, shape)


def check_held(machine: QemuMachine) -> None:
    """Check that a fenced machine may run. Unavailable: it is not held."""
    if machine.record.fenced and not machine.site.held():
        raise Unavailable(f"machine {machine.vm!r}: it is fenced and not held, so it does not start; hold it first")


RESTORES_WITHIN = 60.0
WAKES_WITHIN = 30.0
"""For a guest to report that it is ready, which takes it a second; after that it is rebooted."""
_log = logging.getLogger("hostler.qemu")


async def start_warm(machine: QemuMachine) -> bool:
    """Start a process with a booted guest; False: no saved state exists, or it could not be used."""
    record = machine.record
    if not record.image.warm:
        return False
    descriptor = saved_state.open_state(machine.site.images.place.image(record.image.digest), await _shape(machine))
    if descriptor is None:
        return False
    try:
        machine.change(warmed=True)
        await spawn(machine, Boot(incoming=f"fd:{descriptor}"), within=RESTORES_WITHIN, descriptors=(descriptor,))
        await _wait_until_loaded(machine)
    except (Uncertain, TimeoutError) as error:
        _log.warning("machine %r: booting, because the saved state of its image cannot be used: %s", machine.vm, error)
        await machine.off(within=0)
        machine.change(begun=Begun.STARTING, failed=False, detail="")
        return False
    finally:
        os.close(descriptor)
    return True


async def tell_who(machine: QemuMachine) -> None:
    """Let a restored guest continue as this machine. Repeating it is harmless."""
    if not machine.record.warmed or machine.guest is None:
        return
    await machine.guest.send(f"go {machine.site.clock.wall():.0f}")
    machine.later("warm", _see_it_wake(machine, machine.record.run))


async def _shape(machine: QemuMachine) -> saved_state.SavedShape:
    record = machine.record
    here = await machine.site.here(await machine.site.accelerator(machine.folder.path))
    return saved_state.SavedShape(
        image=record.image,
        cpus=record.spec.cpus,
        memory_mib=record.spec.memory_mib,
        accelerator=here.accelerator,
        version=here.version,
        processor=here.processor,
    )


async def _wait_until_loaded(machine: QemuMachine) -> None:
    try:
        async with asyncio.timeout(RESTORES_WITHIN):
            while True:
                if (await machine.execute("query-status"))["status"] != "inmigrate":
                    return
                await asyncio.sleep(0.005)
    except HostlerError as error:
        raise Uncertain(machine.folder.said() or str(error)) from None


async def _see_it_wake(machine: QemuMachine, run: Run | None) -> None:
    """Reboot a guest that does not wake up."""
    await machine.site.clock.sleep(WAKES_WITHIN)
    async with machine.lock:
        step = None if machine.readiness is None else machine.readiness.step
        if machine.alive and machine.record.run == run and step is Step.BOOTING:
            _log.warning("machine %r: rebooting, because it did not wake from its image's saved state", machine.vm)
            machine.change(warmed=False)
            await machine.execute("system_reset")


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
