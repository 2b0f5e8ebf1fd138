"""The leader's next step for one user's lab. Pure function of the record, the state of its VM, and the time."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import msgspec

from hostler.engine.labs import state_machine
from hostler.model.lab import REDIS_DOOR, LabEvent, LabPhase
from hostler.model.vm import MachineState, Power

if TYPE_CHECKING:
    from hostler.model.lab import Lab, LabCatalogue, LabUser
    from hostler.model.vm import VirtualMachine, VmHandle

KEPT = 25 * 3600.0
"""Seconds for which the record of a user without a lab is kept."""
FAILURES = 3
"""Consecutive failed steps of its VM after which a lab has failed."""
SPARE = 600.0
"""Seconds by which a VM outlives its lab if the lab is not ended. The controller that removes expired VMs may not know
of an extension written a moment ago, and must not act before it."""

AFTER_TERMINAL = 300.0
"""Seconds after which a lab that ends with its terminal ends. A closed terminal can be resumed for this long."""
SSH = 22


class Act(enum.Enum):
    """The kind of step."""

    NOTHING = enum.auto()
    ADMIT = enum.auto()
    """The lab waits: give it a VM if it is its turn."""
    WRITE = enum.auto()
    """Write only the lab's record."""
    DELETE = enum.auto()
    """Delete the VM, and write the record in the same transaction if it changes."""
    KEEP = enum.auto()
    """Restore the VM's power state and expiry, which must exceed the lab's, whatever another writer requested."""
    GONE = enum.auto()
    """Write the record on condition that the VM is gone."""
    FORGET = enum.auto()
    """Delete the record."""


class Step(msgspec.Struct, frozen=True):
    """One step."""

    act: Act
    record: LabUser | None = None
    """The record after the step; None: unchanged."""
    until: float | None = None
    """When to check again even if nothing changes."""


NOTHING = Step(Act.NOTHING)


class LabConditions(msgspec.Struct, frozen=True, kw_only=True):
    """What a decision about a lab depends on besides its records."""

    catalogue: LabCatalogue
    unreachable: bool = False
    """The node of its VM is unreachable."""
    never: str = ""
    """Why no node could ever run it, while it has none."""
    expires: bool = True
    """Whether expiry is in effect."""
    since: float = 0.0
    """When this leader began. The time after a terminal was closed counts from here at the earliest, because users may
    not have been able to reopen it before."""


def decide(
    record: LabUser,
    vm: VirtualMachine | None,
    handle: VmHandle | None,
    conditions: LabConditions,
    *,
    now: float,
) -> Step:
    """Return the next step. `vm` and `handle` belong to the VM that the record names."""
    catalogue, expires = conditions.catalogue, conditions.expires
    lab = record.lab
    if lab is None:
        end = record.changed_at + KEPT
        return Step(Act.FORGET) if expires and now >= end else Step(Act.NOTHING, until=end)
    if lab.phase is LabPhase.WAITING:
        return Step(Act.ADMIT)
    if lab.phase is LabPhase.STOPPING:
        if vm is None:
            return Step(Act.GONE, state_machine.gone(record, now, catalogue))
        if not vm.deleting:
            return Step(Act.DELETE)
        new = record if handle is None else state_machine.observe(record, handle, now)
        return NOTHING if new is record else Step(Act.WRITE, new)
    if handle is not None and vm is not None:
        record = state_machine.observe(record, handle, now, silent=conditions.unreachable)
    left = _left_at(record.lab or lab, catalogue, conditions.since)
    why = _over(record.lab or lab, vm, handle, now if expires else None, conditions.never, left=left)
    if why is None:
        return _going_on(record, lab, vm, catalogue, now, left=left)
    ending = state_machine.stopping(record, *why, now)
    if vm is None:
        return Step(Act.GONE, state_machine.gone(ending, now, catalogue))
    return Step(Act.WRITE if vm.deleting else Act.DELETE, ending)


def ends_at(lab: Lab) -> float | None:
    """Return when the lab ends without intervention."""
    return None if lab.expires_at is None else lab.expires_at + lab.grace


def kept_until(lab: Lab) -> float | None:
    """Return when the VM expires by itself if the lab is not ended."""
    end = ends_at(lab)
    return None if end is None else end + SPARE


def _left_at(lab: Lab, catalogue: LabCatalogue, since: float) -> float | None:
    """Return when the lab ends because its terminal stays closed; None: not applicable, or none was opened yet."""
    template = catalogue.find(lab.lab_id)
    if template is None or not template.end_with_terminal or lab.terminal_at is None:
        return None
    return max(lab.terminal_at, since) + AFTER_TERMINAL


def _over(
    lab: Lab, vm: VirtualMachine | None, handle: VmHandle | None, now: float | None, never: str, *, left: float | None
) -> tuple[LabEvent, str] | None:
    """Return how and why the lab ends now; None: it does not. Without `now` nothing expires."""
    end = ends_at(lab)
    if end is not None and now is not None and now >= end:
        return LabEvent.EXPIRED, ""
    if left is not None and now is not None and now >= left:
        return LabEvent.STOPPED, "its terminal was closed and not opened again in time"
    if vm is None or vm.deleting:
        return LabEvent.FAILED, "its machine was deleted"
    if handle is not None and handle.state is MachineState.FAILED and handle.failures >= FAILURES:
        return LabEvent.FAILED, f"its machine failed: {handle.detail or 'no reason was reported'}"
    if lab.door == REDIS_DOOR and lab.port != SSH and handle is not None:
        return LabEvent.FAILED, (
            f"node {handle.node} reaches its guests only through forwarded ports, but clients connect to port {SSH};"
            " give it a bridge (network = bridge, or bridge:NAME)"
        )
    if never:
        return LabEvent.FAILED, f"no node can run it: {never}"
    late = now is not None and lab.provisioned_by is not None and now >= lab.provisioned_by
    if lab.phase is LabPhase.PROVISIONING and late:
        what = f"is {lab.cloud_status}" if lab.cloud_status else "was not seen"
        return LabEvent.FAILED, f"its machine {what}, and was not available in time{lab.detail and ': '}{lab.detail}"
    return None


def _going_on(
    new: LabUser, old: Lab, vm: VirtualMachine | None, catalogue: LabCatalogue, now: float, *, left: float | None
) -> Step:
    """Return the step for a lab that continues. `new` contains the state of its VM; `old` is the stored lab."""
    lab = new.lab or old
    end = ends_at(lab)
    if vm is not None and (vm.expires_at != kept_until(old) or vm.power is not Power.ON):
        return Step(Act.KEEP)
    template = catalogue.find(lab.lab_id) or catalogue.default
    warn = min(template.warn, lab.life / 2)  # do not warn of the end at the beginning
    soon = None if lab.expires_at is None or lab.warned else lab.expires_at - warn
    placed = lab.phase is not LabPhase.PROVISIONING or lab.provisioned_by is not None
    if not placed and lab.expires_at is not None:  # do not warn of an end that is postponed
        end, soon = lab.expires_at - lab.life / 2, None
    if soon is not None and now >= soon:
        new = state_machine.warn(new, now)
    if new.lab != old:
        return Step(Act.WRITE, new)
    times = [end, soon, left]
    if lab.phase is LabPhase.PROVISIONING:
        times.append(lab.provisioned_by)
    return Step(Act.NOTHING, until=min((at for at in times if at is not None), default=None))
