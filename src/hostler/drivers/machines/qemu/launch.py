"""Starts a machine's process and connects to it. The caller holds the machine's lock."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from hostler.drivers.machines.qemu import acceleration, process
from hostler.drivers.machines.qemu.cgroup import GroupLimits
from hostler.drivers.machines.qemu.command import Boot, Wiring, command
from hostler.drivers.machines.qemu.identity import lay_seed
from hostler.drivers.machines.qemu.network import port_was_taken
from hostler.drivers.machines.qemu.privileges import own_files
from hostler.drivers.machines.qemu.state import Begun
from hostler.errors import HostlerError, Unavailable, Uncertain
from hostler.kit.tasks import run_to_end

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostler.drivers.machines.qemu.machine import QemuMachine

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
            site.network.started(attached)
        machine.lives()
        machine.change(run=run, ran=True)
        await site.hook("start.spawned:after")
        try:
            await _limited_and_attached(machine, within)
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


async def _limited_and_attached(machine: QemuMachine, within: float) -> None:
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
