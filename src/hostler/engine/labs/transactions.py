"""Steps as transactions: what each compares and writes. Pure; the leader's guard is added when it is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from hostler.engine.labs.decide import kept_until
from hostler.engine.labs.vm_template import labels_of, node_labels_of
from hostler.engine.runtime.guarded_writer import Txn
from hostler.engine.vm_changes import changed
from hostler.keys.families import HANDLE, NAME, VM
from hostler.keys.lab import LAB
from hostler.model.lab import ORG, lab_project
from hostler.model.vm import Power, VirtualMachine
from hostler.ports.store import Comparison, Delete, Operation, Put

if TYPE_CHECKING:
    from hostler.engine.service import Standing
    from hostler.keys.entry import Entry
    from hostler.model.lab import Lab, LabTemplate, LabUser
    from hostler.model.vm import VmHandle, VmSpec


class LabSnapshot(msgspec.Struct, frozen=True):
    """The known state of a user's lab. Each record family may be from a different time."""

    user: str
    entry: Entry[LabUser] | None
    vm: Entry[VirtualMachine] | None = None
    """The VM that the record names."""
    handle: Entry[VmHandle] | None = None
    strays: tuple[Entry[VirtualMachine], ...] = ()
    """Other lab VMs of the user."""
    silent: bool = False
    """Its node is unreachable."""
    silent_in: float | None = None
    """Seconds after which its node counts as unreachable, if it is not back by then."""
    unreadable: bool = False
    """A record cannot be decoded: an operator must repair it. No step is taken, because the state is not known."""


class Claim(msgspec.Struct, frozen=True):
    """A pool VM to be assigned to a user, and the pieces of the transaction other than the lab's record."""

    vm: str
    when: list[Comparison]
    then: list[Operation]
    read: tuple[Entry[Any], ...] = ()
    """The records that the decision is based on."""


class Pool(Protocol):
    """The warm pool. It starts, runs and stops with the controller, and writes under its leadership."""

    async def start(self, standing: Standing) -> None:
        """Start, as a controller."""

    async def run(self) -> None:
        """Run, as a controller."""

    async def stop(self) -> None:
        """Stop, as a controller."""

    async def claim(self, entry: Entry[LabUser], template: LabTemplate, now: float) -> Claim | None:
        """Return a VM for this lab, which is assigned to no other lab until `settled`; None: there is none.

        The caller must call `settled` for every claim, whatever happens. The pieces include the quotas of both
        projects, which are therefore read; if that raises Unavailable, Uncertain or Conflict, there is no claim. Raise
        QuotaExceeded if the user's quota is used up. `expires_at` of the VM becomes `decide.kept_until` of a lab that
        begins now.
        """

    def settled(self, claim: Claim, *, written: bool) -> None:
        """End a claim: it was written; or (False) it was not, or the outcome is unknown."""

    def make_room(self, lab: Lab, template: LabTemplate) -> None:
        """Report that no node has room for the lab: an unused VM of another lab may have to be removed."""


def created(
    user: str, lab: Lab, template: LabTemplate, spec: VmSpec, *, vm: str, name: str, at: float
) -> VirtualMachine:
    """Return the VM of a lab that has just been admitted."""
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
    """Give a lab a new VM. The caller adds the quota."""
    place: dict[str, Any] = {"org": vm.org, "project": vm.project}
    return Txn(
        [LAB.unchanged(entry), VM.absent(vm=vm.id, **place), NAME.absent(name=vm.name, **place)],
        [_lab(entry, record), VM.put(vm, vm=vm.id, **place), NAME.put(vm.id, name=vm.name, **place)],
    )


def claimed(entry: Entry[LabUser], record: LabUser, claim: Claim) -> Txn:
    """Give a lab a VM of the pool."""
    return Txn([LAB.unchanged(entry), *claim.when], [_lab(entry, record), *claim.then])


def rewritten(seen: LabSnapshot, entry: Entry[LabUser], record: LabUser) -> Txn:
    """Write only the record, on condition that the VM and handle are unchanged."""
    when = [LAB.unchanged(entry)]
    if seen.vm is not None:
        when.append(VM.unchanged(seen.vm))
    if seen.handle is not None:
        when.append(HANDLE.unchanged(seen.handle))
    return Txn(when, [_lab(entry, record)])


def deleted(entry: Entry[LabUser] | None, user: str, vm: Entry[VirtualMachine], record: LabUser | None) -> Txn:
    """Delete the VM, on condition that the lab's record is unchanged or still absent.

    Without a record of the user the disk is retained: a missing record is not a request to delete.
    """
    when = [LAB.absent(user=user) if entry is None else LAB.unchanged(entry), VM.unchanged(vm)]
    then: list[Operation] = [changed(vm, deleting=True, keep_disk=entry is None)]
    if entry is not None and record is not None:
        then.append(_lab(entry, record))
    return Txn(when, then)


def kept(entry: Entry[LabUser], lab: Lab, vm: Entry[VirtualMachine]) -> Txn:
    """Set the VM's power to on, and its expiry to later than the lab's."""
    return Txn([LAB.unchanged(entry), VM.unchanged(vm)], [changed(vm, expires_at=kept_until(lab), power=Power.ON)])


def gone(entry: Entry[LabUser], record: LabUser, vm: str) -> Txn:
    """End the lab, on condition that its VM is gone."""
    when = [LAB.unchanged(entry)]
    if vm:
        when.append(VM.absent(org=ORG, project=lab_project(record.user), vm=vm))
    return Txn(when, [_lab(entry, record)])


def forgotten(entry: Entry[LabUser]) -> Txn:
    """Delete the record of a user who has had no lab for long."""
    return Txn([LAB.unchanged(entry)], [Delete(entry.key)])


def _lab(entry: Entry[LabUser], record: LabUser) -> Put:
    return Put(entry.key, LAB.encode(record))
