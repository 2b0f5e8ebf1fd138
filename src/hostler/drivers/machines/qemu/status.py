"""The state of a machine, as pure functions of its record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.drivers.machines.qemu.state import Begun, Life
from hostler.kit.clock import boot_id
from hostler.model.vm import Access, MachineState

if TYPE_CHECKING:
    from hostler.drivers.machines.qemu.state import MachineRecord

LAPSED = "its fence was not extended, so it stopped by itself"
HOST_BOOTED = "its node was switched off"


def state_of(record: MachineRecord, *, alive: bool) -> MachineState:
    """Return the state by the record and by whether the process lives."""
    if record.life is not Life.WHOLE:
        return MachineState.CREATING
    if record.arriving:
        return MachineState.ARRIVING
    if record.departed:
        return MachineState.DEPARTED
    if not alive:
        return MachineState.FAILED if record.failed else MachineState.STOPPED
    if record.begun is Begun.NOTHING:
        return MachineState.RUNNING
    return MachineState(record.begun)


def access_of(record: MachineRecord) -> Access | None:
    """Return how to log in; None: it was never started."""
    if not record.host or not record.port:
        return None
    return Access(host=record.host, port=record.port, user=record.user, host_keys=(record.host_key,))


def detail_off(record: MachineRecord) -> str:
    """Return the detail of a machine that does not run."""
    if record.life is Life.DELETING:
        return "its deletion is incomplete"
    if record.detail:
        return record.detail
    return "" if record.restoring is None else f"a restore to {record.restoring.snapshot!r} is incomplete"


def why_off(record: MachineRecord, *, shut_down: bool, held: bool, said: str) -> tuple[bool, str]:
    """Return whether an ended process failed, and the detail to report."""
    if record.begun is Begun.STOPPING or shut_down or record.life is not Life.WHOLE:
        return False, ""
    if record.fenced and not held:
        return False, LAPSED
    if record.run is not None and record.run.boot_id != boot_id():
        return False, HOST_BOOTED
    if record.run is None:  # its start began and never reached a process
        return False, ""
    return True, f"its process ended: {said or 'no message'}"
