"""What a step makes of a machine: rows in, rows out."""

from __future__ import annotations

import hashlib
import socket
from typing import TYPE_CHECKING

import msgspec

from hostler.drivers.machines.simulated.host import Row, switched_off
from hostler.model.vm import MachineState

if TYPE_CHECKING:
    from hostler.ports.machines import MachinePlan

_replace = msgspec.structs.replace


def begun(plan: MachinePlan, number: int) -> Row:
    """A machine of which nothing is there yet but the intent."""
    return Row(
        label=plan.label,
        number=number,
        spec=plan.spec,
        name=plan.name,
        tags=plan.tags,
        fenced=plan.fenced,
        state=MachineState.CREATING,
    )


def shaped(row: Row, plan: MachinePlan) -> Row:
    """As planned, and off."""
    return _replace(
        row,
        spec=plan.spec,
        name=plan.name,
        tags=plan.tags,
        fenced=plan.fenced,
        state=MachineState.STOPPED,
        detail="",
        on=None,
    )


def marked(row: Row, plan: MachinePlan) -> Row:
    """Of whom the plan says, and otherwise as it is."""
    return _replace(row, label=plan.label, tags=plan.tags)


def reinstated(row: Row, plan: MachinePlan) -> Row:
    """In service again as the plan's machine. What was counted of another virtual machine does not count for it."""
    same = row.vm == plan.label.vm
    return _replace(
        row,
        label=plan.label,
        tags=plan.tags,
        state=MachineState.STOPPED,
        detail="",
        ready=None,
        off=None,
        **({} if same else {"resets": 0, "restored": 0, "moved": 0, "over": False}),
    )


def cloned(row: Row, disk: str) -> Row:
    """With that disk from its first boot on."""
    return _replace(row, disk=disk)


def goes_on(row: Row) -> Row:
    """One that was handed over and stays here, or has come: no longer on its way."""
    return _replace(row, over=row.state is MachineState.DEPARTED, whole=False, memory=False)


def was_reset(row: Row, number: int) -> Row:
    """After its reset of that number, which a machine that does not run only counts."""
    runs = row.state is MachineState.RUNNING
    return _replace(row, resets=number, boots=row.boots + runs, writes=row.writes + runs)


def unmade(row: Row, now: float) -> Row:
    """Off, without its disk: what there is of it can be made again or removed."""
    off = switched_off(row, now, MachineState.CREATING, "its destruction was begun")
    return _replace(off, snapshots={}, disk="", disk_id="", disk_made_at=0.0, writes=0, restoring=None)


def with_snapshot(row: Row, name: str) -> Row:
    """With its disk, as it is, kept under that name."""
    return _replace(row, snapshots=row.snapshots | {name: row.disk})


def without_snapshot(row: Row, name: str) -> Row:
    return _replace(row, snapshots={other: disk for other, disk in row.snapshots.items() if other != name})


def restoring(row: Row, now: float, name: str, number: int) -> Row:
    """Off, its disk about to be replaced."""
    return _replace(switched_off(row, now), restoring=(name, number))


def restored(row: Row) -> Row:
    """After the restore that was begun."""
    if row.restoring is None:
        return row
    name, number = row.restoring
    return _replace(row, disk=row.snapshots[name], restored=number, restoring=None, writes=row.writes + 1)


def saved(row: Row, text: str) -> Row:
    """With that on its disk."""
    return _replace(row, disk=text, writes=row.writes + 1)


def address(place: str, vm: str) -> str:
    """An address from the private range, always the same for the same machine."""
    digest = hashlib.sha256(f"{place}\n{vm}".encode()).digest()
    return socket.inet_ntop(socket.AF_INET6, b"\xfd" + digest[:15])
