"""Starts a machine from a saved state. The caller holds the machine's lock."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING

from hostler.drivers.machines.qemu import saved_state
from hostler.drivers.machines.qemu.command import Boot
from hostler.drivers.machines.qemu.launch import spawn
from hostler.drivers.machines.qemu.state import Begun
from hostler.errors import HostlerError, Uncertain
from hostler.model.vm import Step

if TYPE_CHECKING:
    from hostler.drivers.machines.qemu.machine import QemuMachine
    from hostler.drivers.machines.qemu.pid_lookup import Run

LOADS_WITHIN = 60.0
WAKES_WITHIN = 30.0
"""For a guest to report that it is ready, which takes it a second; after that it is rebooted."""
_log = logging.getLogger("hostler.qemu")


async def start_warm(machine: QemuMachine) -> bool:
    """Start a process with a booted guest; False: no saved state exists, or it could not be used."""
    record = machine.record
    if not record.image.warm:
        return False
    descriptor = saved_state.opened(machine.site.images.place.image(record.image.digest), await _shape(machine))
    if descriptor is None:
        return False
    try:
        machine.change(warmed=True)
        await spawn(machine, Boot(incoming=f"fd:{descriptor}"), within=LOADS_WITHIN, descriptors=(descriptor,))
        await _loaded(machine)
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


async def _loaded(machine: QemuMachine) -> None:
    try:
        async with asyncio.timeout(LOADS_WITHIN):
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
