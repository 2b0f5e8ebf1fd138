"""Effects of steps on a machine, as pure functions of rows."""

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


def new_row(plan: MachinePlan, number: int) -> Row:
    """Return the row of a machine that does not exist yet."""
    return Row(
        label=plan.label,
        number=number,
        spec=plan.spec,
        name=plan.name,
        tags=plan.tags,
        fenced=plan.fenced,
        state=MachineState.CREATING,
    )


def row_with_spec(row: Row, plan: MachinePlan) -> Row:
    """Return the row with the plan's spec, off."""
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


def row_with_label(row: Row, plan: MachinePlan) -> Row:
    """Return the row with the plan's label and tags, otherwise unchanged."""
    return _replace(row, label=plan.label, tags=plan.tags)


def row_in_service(row: Row, plan: MachinePlan) -> Row:
    """Return the row in service again as the plan's machine. Counters of another virtual machine are reset."""
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


def row_with_disk(row: Row, disk: str) -> Row:
    """Return the row with that disk from its first boot on."""
    return _replace(row, disk=disk)


def goes_on(row: Row) -> Row:
    """Return the row after its migration has ended, on the node that keeps the machine."""
    return _replace(row, over=row.state is MachineState.DEPARTED, whole=False, memory=False)


def was_reset(row: Row, number: int) -> Row:
    """Return the row after a reset; a machine that does not run only records the number."""
    runs = row.state is MachineState.RUNNING
    return _replace(row, resets=number, boots=row.boots + runs, writes=row.writes + runs)


def unmade(row: Row, now: float) -> Row:
    """Return the row off and without its disk, to be created again or removed."""
    off = switched_off(row, now, MachineState.CREATING, "its deletion is incomplete")
    return _replace(off, snapshots={}, disk="", disk_id="", disk_made_at=0.0, writes=0, restoring=None)


def with_snapshot(row: Row, name: str) -> Row:
    """Return the row with its current disk kept under that name."""
    return _replace(row, snapshots=row.snapshots | {name: row.disk})


def without_snapshot(row: Row, name: str) -> Row:
    return _replace(row, snapshots={other: disk for other, disk in row.snapshots.items() if other != name})


def restoring(row: Row, now: float, name: str, number: int) -> Row:
    """Return the row off, with a restore begun."""
    return _replace(switched_off(row, now), restoring=(name, number))


def row_after_restore(row: Row) -> Row:
    """Return the row after the restore that was begun."""
    if row.restoring is None:
        return row
    name, number = row.restoring
    return _replace(row, disk=row.snapshots[name], restored=number, restoring=None, writes=row.writes + 1)


def row_with_text(row: Row, text: str) -> Row:
    """Return the row with that text on its disk."""
    return _replace(row, disk=text, writes=row.writes + 1)


def address(place: str, vm: str) -> str:
    """Return an address from the private range, stable for the same machine."""
    digest = hashlib.sha256(f"{place}\n{vm}".encode()).digest()
    return socket.inet_ntop(socket.AF_INET6, b"\xfd" + digest[:15])
