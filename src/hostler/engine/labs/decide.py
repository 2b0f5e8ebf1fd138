"""The leader's next step for one user's lab. Pure: the record, what there is of its machine, and the time in."""

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
"""Seconds for which it is known of a user who has no lab what was last."""
FAILURES = 3
"""Steps of its machine that failed in a row, after which a lab has failed."""
SPARE = 600.0
"""Seconds by which a machine outlives its lab if nobody ends it: whoever removes what has expired does not know of an
extension that was written a moment ago, and shall not come before it."""

AFTER_TERMINAL = 300.0
"""Seconds after its last terminal was closed at which a lab ends that ends with it: so long a terminal is resumed."""
SSH = 22


class Act(enum.Enum):
    """What to do."""

    NOTHING = enum.auto()
    ADMIT = enum.auto()
    """It waits: give it a machine if it is its turn."""
    WRITE = enum.auto()
    """The lab's record alone."""
    DELETE = enum.auto()
    """Wish its machine away; the record changes in the same instant, if it does."""
    KEEP = enum.auto()
    """Let its machine run, and live for longer than the lab does: whoever else has wished for something."""
    GONE = enum.auto()
    """Its machine is gone, and must still be when this is written."""
    FORGET = enum.auto()
    """The record goes."""


class Step(msgspec.Struct, frozen=True):
    """One step."""

    act: Act
    record: LabUser | None = None
    """As it is afterwards; None: as it was."""
    until: float | None = None
    """When something may have to be done though nothing happens."""


NOTHING = Step(Act.NOTHING)


def decide(
    record: LabUser,
    vm: VirtualMachine | None,
    handle: VmHandle | None,
    *,
    catalogue: LabCatalogue,
    now: float,
    silent: bool = False,
    never: str = "",
    expires: bool = True,
    since: float = 0.0,
) -> Step:
    """The next step. `vm` and `handle` are of the machine that the record names.

    `silent`: its node is. `never`: why no node could ever have it, while it has none. `expires`: what ends because of
    its time does. `since`: when this leader began. The time after a terminal was closed counts from then at
    the earliest, for users may not have been able to open it again before.
    """
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
        new = record if handle is None else state_machine.seen(record, handle, now)
        return NOTHING if new is record else Step(Act.WRITE, new)
    if handle is not None and vm is not None:
        record = state_machine.seen(record, handle, now, silent=silent)
    left = _left_at(record.lab or lab, catalogue, since)
    why = _over(record.lab or lab, vm, handle, now if expires else None, never, left=left)
    if why is None:
        return _going_on(record, lab, vm, catalogue, now, left=left)
    ending = state_machine.stopping(record, *why, now)
    if vm is None:
        return Step(Act.GONE, state_machine.gone(ending, now, catalogue))
    return Step(Act.WRITE if vm.deleting else Act.DELETE, ending)


def ends_at(lab: Lab) -> float | None:
    """When it ends, if nobody does anything."""
    return None if lab.expires_at is None else lab.expires_at + lab.grace


def kept_until(lab: Lab) -> float | None:
    """When its machine expires by itself, should nobody have ended the lab."""
    end = ends_at(lab)
    return None if end is None else end + SPARE


def _left_at(lab: Lab, catalogue: LabCatalogue, since: float) -> float | None:
    """When it ends because its terminal stays closed; None: it does not end so, or no terminal was opened yet."""
    template = catalogue.find(lab.lab_id)
    if template is None or not template.end_with_terminal or lab.terminal_at is None:
        return None
    return max(lab.terminal_at, since) + AFTER_TERMINAL


def _over(
    lab: Lab, vm: VirtualMachine | None, handle: VmHandle | None, now: float | None, never: str, *, left: float | None
) -> tuple[LabEvent, str] | None:
    """How and why it ends now; None: it does not. Without `now` its time is not over."""
    end = ends_at(lab)
    if end is not None and now is not None and now >= end:
        return LabEvent.EXPIRED, ""
    if left is not None and now is not None and now >= left:
        return LabEvent.STOPPED, "its terminal was closed and not opened again in time"
    if vm is None or vm.deleting:
        return LabEvent.FAILED, "its machine was deleted"
    if handle is not None and handle.state is MachineState.FAILED and handle.failures >= FAILURES:
        return LabEvent.FAILED, f"its machine failed: {handle.detail or 'nobody knows why'}"
    if lab.door == REDIS_DOOR and lab.port != SSH and handle is not None:
        return LabEvent.FAILED, (
            f"node {handle.node} reaches its guests through forwarded ports only, and who asked connects to port {SSH};"
            " give it a bridge (network = bridge, or bridge:NAME)"
        )
    if never:
        return LabEvent.FAILED, f"no node can have it: {never}"
    late = now is not None and lab.provisioned_by is not None and now >= lab.provisioned_by
    if lab.phase is LabPhase.PROVISIONING and late:
        what = f"is {lab.cloud_status}" if lab.cloud_status else "was not seen"
        return LabEvent.FAILED, f"its machine {what}, and was not available in time{lab.detail and ': '}{lab.detail}"
    return None


def _going_on(
    new: LabUser, old: Lab, vm: VirtualMachine | None, catalogue: LabCatalogue, now: float, *, left: float | None
) -> Step:
    """It stays. `new` has what is seen of its machine; `old` is what the record says."""
    lab = new.lab or old
    end = ends_at(lab)
    if vm is not None and (vm.expires_at != kept_until(old) or vm.power is not Power.ON):
        return Step(Act.KEEP)
    template = catalogue.find(lab.lab_id) or catalogue.default
    warn = min(template.warn, lab.life / 2)  # nobody is told of the end as soon as it begins
    soon = None if lab.expires_at is None or lab.warned else lab.expires_at - warn
    placed = lab.phase is not LabPhase.PROVISIONING or lab.provisioned_by is not None
    if not placed and lab.expires_at is not None:  # nobody is told of an end that moves on
        end, soon = lab.expires_at - lab.life / 2, None
    if soon is not None and now >= soon:
        new = state_machine.warned(new, now)
    if new.lab != old:
        return Step(Act.WRITE, new)
    times = [end, soon, left]
    if lab.phase is LabPhase.PROVISIONING:
        times.append(lab.provisioned_by)
    return Step(Act.NOTHING, until=min((at for at in times if at is not None), default=None))
