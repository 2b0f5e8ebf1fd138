"""Snapshots of a machine. The caller of each function holds the machine's lock.

A snapshot of a running machine includes its memory. The tag of a snapshot inside the disk is recorded before it is
taken, so that the snapshot of an interrupted call can be found and removed.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from hostler.drivers.machines.qemu.machine import SHUT_DOWN
from hostler.drivers.machines.qemu.state import Begun, Restoring, SnapshotRecord
from hostler.errors import HostlerError, Refused
from hostler.model.image import Seeding
from hostler.model.vm import Step

if TYPE_CHECKING:
    from hostler.drivers.machines.qemu.machine import QemuMachine

SAVES_WITHIN = 600.0
FLUSHES_WITHIN = 5.0
"""Seconds that a guest has to flush its memory to disk."""


async def snapshot(machine: QemuMachine, name: str) -> None:
    """Take a snapshot unless it exists."""
    site = machine.site
    await _forget_unknown(machine)
    if name in machine.record.snapshots:
        return
    if machine.record.restoring is not None:
        raise Refused(f"machine {machine.vm!r}: its last restore was interrupted; restore or start it first")
    site.check_room(machine.vm)
    tags = machine.record.tags + 1
    tag = f"s{tags}"
    await site.hook("snapshot.begun:before")
    machine.change(tags=tags, saving=tag)
    await site.hook("snapshot.begun:after")
    memory = None
    if _runs(machine):
        memory = await site.fit(machine.record.spec)
        await _flush(machine)
        await machine.job("snapshot-save", {"tag": tag, "vmstate": "disk", "devices": ["disk"]}, within=SAVES_WITHIN)
    else:
        await _off_if_shut_down(machine)
        await machine.disk.snapshot(tag)
    kept = SnapshotRecord(tag=tag, taken_at=site.clock.wall(), memory=memory)
    await site.hook("snapshot.done:before")
    machine.change(snapshots=machine.record.snapshots | {name: kept}, saving="")
    await site.hook("snapshot.done:after")


async def _flush(machine: QemuMachine) -> None:
    """Let the guest write its dirty memory to disk: a clone gets the disk without the memory."""
    ready = machine.readiness is not None and machine.readiness.step is Step.AVAILABLE
    if machine.guest is not None and ready and machine.record.image.seeding is Seeding.FIRMWARE:
        with suppress(HostlerError):  # otherwise the disk is as after a power failure
            await machine.guest.send("sync")
            await machine.guest.line("synced", within=FLUSHES_WITHIN)


async def restore(machine: QemuMachine, name: str, number: int) -> None:
    """Restore a snapshot, once for each number; the machine is off afterwards."""
    if machine.record.restored >= number:
        return
    if name not in machine.record.snapshots:
        known = ", ".join(map(repr, machine.record.snapshots)) or "none"
        raise Refused(f"machine {machine.vm!r}: no snapshot {name!r}; it has {known}")
    site = machine.site
    await site.hook("restore.begun:before")
    machine.change(
        restoring=Restoring(snapshot=name, number=number),
        **({"begun": Begun.STOPPING} if machine.alive else {}),
    )
    await site.hook("restore.begun:after")
    if machine.alive:
        await machine.off()
    await finish_restore(machine)


async def finish_restore(machine: QemuMachine) -> None:
    """Finish the restore that was begun, of a machine that is off."""
    restoring = machine.record.restoring
    if restoring is None:
        return
    kept = machine.record.snapshots[restoring.snapshot]
    await machine.disk.revert(kept.tag)
    await machine.disk.grow(machine.record.disk_bytes)
    await machine.site.hook("restore.done:before")
    machine.change(
        restoring=None,
        restored=restoring.number,
        resume=restoring.snapshot if kept.memory is not None else "",
        failed=False,
        detail="",
    )
    await machine.site.hook("restore.done:after")


async def drop_snapshot(machine: QemuMachine, name: str) -> None:
    """Delete a snapshot, if it exists."""
    await _forget_unknown(machine)
    kept = machine.record.snapshots.get(name)
    if kept is None:
        return
    restoring = machine.record.restoring
    if restoring is not None and restoring.snapshot == name:
        raise Refused(f"machine {machine.vm!r}: it is being restored to {name!r}; restore or start it first")
    others = {other: one for other, one in machine.record.snapshots.items() if other != name}
    resume = "" if machine.record.resume == name else machine.record.resume
    await machine.site.hook("drop_snapshot.begun:before")
    machine.change(snapshots=others, saving=kept.tag, resume=resume)
    await machine.site.hook("drop_snapshot.begun:after")
    await _forget_unknown(machine)


async def copy_disk(origin: QemuMachine, name: str, into: QemuMachine) -> None:
    """Copy the disk of a snapshot of `origin` to another machine with the same image."""
    kept = origin.record.snapshots.get(name)
    if kept is None:
        raise Refused(f"machine {into.vm!r}: its origin, machine {origin.vm!r}, has no snapshot {name!r}")
    await origin.disk.copy(kept.tag, into.folder.path)


async def _forget_unknown(machine: QemuMachine) -> None:
    """Remove what an interrupted call left inside the disk."""
    tag = machine.record.saving
    if not tag:
        return
    if _runs(machine):
        await machine.settle_jobs(within=SAVES_WITHIN)
        if tag in {item["name"] for item in (await disk_now(machine)).get("snapshots", ())}:
            await machine.job("snapshot-delete", {"tag": tag, "devices": ["disk"]}, within=SAVES_WITHIN)
    else:
        await _off_if_shut_down(machine)
        await machine.disk.drop(tag)
    machine.change(saving="")


async def disk_now(machine: QemuMachine) -> dict[str, Any]:
    """Return QEMU's description of the disk."""
    for block in await machine.execute("query-named-block-nodes", {"flat": True}):
        if block.get("node-name") == "disk":
            found: dict[str, Any] = block["image"]
            return found
    return {}


def _runs(machine: QemuMachine) -> bool:
    return machine.alive and machine.status != SHUT_DOWN


async def _off_if_shut_down(machine: QemuMachine) -> None:
    if machine.alive:
        await machine.off()
