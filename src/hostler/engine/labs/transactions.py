"""Steps as transactions: what each compares, and what it writes. Pure; the leader's guard is added when it is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from hostler.engine.controllers.transactions import Txn, changed
from hostler.engine.labs.decide import kept_until
from hostler.engine.labs.vm_template import labels_of, node_labels_of
from hostler.keys.lab import LAB
from hostler.keys.vm import HANDLE, NAME, VM
from hostler.model.lab import ORG, lab_project
from hostler.model.vm import Power, VirtualMachine
from hostler.ports.store import Comparison, Delete, Operation, Put

if TYPE_CHECKING:
    from hostler.engine.service import Standing
    from hostler.keys.entry import Entry
    from hostler.model.lab import Lab, LabTemplate, LabUser
    from hostler.model.vm import VmHandle, VmSpec


class Seen(msgspec.Struct, frozen=True):
    """What is known of a user's lab. Each family may be of another instant."""

    user: str
    entry: Entry[LabUser] | None
    vm: Entry[VirtualMachine] | None = None
    """The machine that the record names."""
    handle: Entry[VmHandle] | None = None
    strays: tuple[Entry[VirtualMachine], ...] = ()
    """Other machines of labs that the user has."""
    silent: bool = False
    """Its node gives no sign of life."""
    silent_in: float | None = None
    """Seconds after which its node will count as silent, if it is not back by then."""
    unreadable: bool = False
    """Somebody must look at it; nothing is done, for nobody knows what would be right."""


class Claim(msgspec.Struct, frozen=True):
    """A machine of the pool that becomes a user's, and what that takes beside the lab's record."""

    vm: str
    when: list[Comparison]
    then: list[Operation]
    read: tuple[Entry[Any], ...] = ()
    """What it was decided from."""


class Pool(Protocol):
    """Machines that are ready ahead. It starts, runs and stops with the controller, and writes under its leadership."""

    async def start(self, standing: Standing) -> None:
        """As a service."""

    async def run(self) -> None:
        """As a service."""

    async def stop(self) -> None:
        """As a service."""

    async def claim(self, entry: Entry[LabUser], template: LabTemplate, now: float) -> Claim | None:
        """A machine for this lab, which nobody else is given until `settled`; None: there is none.

        Whoever gets one must settle it, whatever happens. The quotas of both projects are among its pieces, so they are
        read (Unavailable, Uncertain, Conflict: there is no claim then). QuotaExceeded: its user may have no more.
        `expires_at` of the machine becomes what `decide.kept_until` says of a lab that begins now.
        """

    def settled(self, claim: Claim, *, written: bool) -> None:
        """It was written; or it was not, or nobody knows."""

    def make_room(self, lab: Lab, template: LabTemplate) -> None:
        """No node has room for the lab: a machine of another lab that nobody uses may have to go."""


def created(
    user: str, lab: Lab, template: LabTemplate, spec: VmSpec, *, vm: str, name: str, at: float
) -> VirtualMachine:
    """The machine of a lab that has just been admitted."""
    return VirtualMachine(
        id=vm,
        name=name,
        org=ORG,
        project=lab_project(user),
        spec=spec,
        labels=labels_of(lab.lab_id, user, template),
        node_labels=node_labels_of(template),
        created_at=at,
        expires_at=kept_until(lab),
    )


def entered(entry: Entry[LabUser], record: LabUser, vm: VirtualMachine) -> Txn:
    """A lab gets a new machine. The quota is still to be added."""
    place: dict[str, Any] = {"org": vm.org, "project": vm.project}
    return Txn(
        [LAB.unchanged(entry), VM.absent(vm=vm.id, **place), NAME.absent(name=vm.name, **place)],
        [_lab(entry, record), VM.put(vm, vm=vm.id, **place), NAME.put(vm.id, name=vm.name, **place)],
    )


def claimed(entry: Entry[LabUser], record: LabUser, claim: Claim) -> Txn:
    """A lab gets a machine of the pool."""
    return Txn([LAB.unchanged(entry), *claim.when], [_lab(entry, record), *claim.then])


def rewritten(seen: Seen, entry: Entry[LabUser], record: LabUser) -> Txn:
    """The record alone, as what was seen of the machine says."""
    when = [LAB.unchanged(entry)]
    if seen.vm is not None:
        when.append(VM.unchanged(seen.vm))
    if seen.handle is not None:
        when.append(HANDLE.unchanged(seen.handle))
    return Txn(when, [_lab(entry, record)])


def deleted(entry: Entry[LabUser] | None, user: str, vm: Entry[VirtualMachine], record: LabUser | None) -> Txn:
    """Delete the machine, if the lab is still as it was, and there or not.

    Without a record of the user its disk is retained: a record that is missing is no request.
    """
    when = [LAB.absent(user=user) if entry is None else LAB.unchanged(entry), VM.unchanged(vm)]
    then: list[Operation] = [changed(vm, deleting=True, keep_disk=entry is None)]
    if entry is not None and record is not None:
        then.append(_lab(entry, record))
    return Txn(when, then)


def kept(entry: Entry[LabUser], lab: Lab, vm: Entry[VirtualMachine]) -> Txn:
    """The machine runs, and lives for longer than the lab."""
    return Txn([LAB.unchanged(entry), VM.unchanged(vm)], [changed(vm, expires_at=kept_until(lab), power=Power.ON)])


def gone(entry: Entry[LabUser], record: LabUser, vm: str) -> Txn:
    """The lab is gone, if its machine is."""
    when = [LAB.unchanged(entry)]
    if vm:
        when.append(VM.absent(org=ORG, project=lab_project(record.user), vm=vm))
    return Txn(when, [_lab(entry, record)])


def forgotten(entry: Entry[LabUser]) -> Txn:
    """Nothing was heard of the user for long."""
    return Txn([LAB.unchanged(entry)], [Delete(entry.key)])


def _lab(entry: Entry[LabUser], record: LabUser) -> Put:
    return Put(entry.key, LAB.encode(record))
