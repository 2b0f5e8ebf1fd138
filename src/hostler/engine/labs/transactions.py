"""Steps as transactions: what each compares and writes, and the text of its decision. Pure.

The leader's guard is added when a transaction is sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from hostler.engine.labs.catalogue import labels_of, node_labels_of
from hostler.engine.labs.decide import kept_until
from hostler.engine.labs.state_machine import UNREACHABLE
from hostler.engine.runtime.guarded_writer import Txn
from hostler.engine.vm_changes import put_changed
from hostler.keys.families import HANDLE, NAME, VM
from hostler.keys.lab import LAB
from hostler.model.lab import ORG, lab_project, utc_time
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
        """Return a VM for this lab, which is assigned to no other lab until `settle`; None: there is none.

        The caller must call `settle` for every claim, whatever happens. The pieces include the quotas of both
        projects, which are therefore read; if that raises Unavailable, Uncertain or Conflict, there is no claim. Raise
        QuotaExceeded if the user's quota is used up. `expires_at` of the VM becomes `decide.kept_until` of a lab that
        begins now.
        """

    def settle(self, claim: Claim, *, written: bool) -> None:
        """End a claim: it was written; or (False) it was not, or the outcome is unknown."""

    def make_room(self, lab: Lab, template: LabTemplate) -> None:
        """Report that no node has room for the lab: an unused VM of another lab may have to be removed."""


def new_vm(
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


def admit_with_new_vm(entry: Entry[LabUser], record: LabUser, vm: VirtualMachine) -> Txn:
    """Give a lab a new VM. The caller adds the quota."""
    place: dict[str, Any] = {"org": vm.org, "project": vm.project}
    return Txn(
        [LAB.unchanged(entry), VM.absent(vm=vm.id, **place), NAME.absent(name=vm.name, **place)],
        [_lab(entry, record), VM.put(vm, vm=vm.id, **place), NAME.put(vm.id, name=vm.name, **place)],
    )


def admit_with_pool_vm(entry: Entry[LabUser], record: LabUser, claim: Claim) -> Txn:
    """Give a lab a VM of the pool."""
    return Txn([LAB.unchanged(entry), *claim.when], [_lab(entry, record), *claim.then])


def write_record(seen: LabSnapshot, entry: Entry[LabUser], record: LabUser) -> Txn:
    """Write only the record, on condition that the VM and handle are unchanged."""
    when = [LAB.unchanged(entry)]
    if seen.vm is not None:
        when.append(VM.unchanged(seen.vm))
    if seen.handle is not None:
        when.append(HANDLE.unchanged(seen.handle))
    return Txn(when, [_lab(entry, record)])


def delete_vm(entry: Entry[LabUser] | None, user: str, vm: Entry[VirtualMachine], record: LabUser | None) -> Txn:
    """Delete the VM, on condition that the lab's record is unchanged or still absent.

    Without a record of the user the disk is retained: a missing record is not a request to delete.
    """
    when = [LAB.absent(user=user) if entry is None else LAB.unchanged(entry), VM.unchanged(vm)]
    then: list[Operation] = [put_changed(vm, deleting=True, keep_disk=entry is None)]
    if entry is not None and record is not None:
        then.append(_lab(entry, record))
    return Txn(when, then)


def keep_vm(entry: Entry[LabUser], lab: Lab, vm: Entry[VirtualMachine]) -> Txn:
    """Set the VM's power to on, and its expiry to later than the lab's."""
    return Txn([LAB.unchanged(entry), VM.unchanged(vm)], [put_changed(vm, expires_at=kept_until(lab), power=Power.ON)])


def end_lab(entry: Entry[LabUser], record: LabUser, vm: str) -> Txn:
    """End the lab, on condition that its VM is gone."""
    when = [LAB.unchanged(entry)]
    if vm:
        when.append(VM.absent(org=ORG, project=lab_project(record.user), vm=vm))
    return Txn(when, [_lab(entry, record)])


def forget_user(entry: Entry[LabUser]) -> Txn:
    """Delete the record of a user who has had no lab for long."""
    return Txn([LAB.unchanged(entry)], [Delete(entry.key)])


def _lab(entry: Entry[LabUser], record: LabUser) -> Put:
    return Put(entry.key, LAB.encode(record))


DROPPED = {
    "reshaped": "its template is no longer in use",
    "replaced": "it did not become ready",
    "no_room": "no node had room for it, and labs come first",
    "surplus": "there are more than the pool needs",
    "evicted": "a lab found no room, and labs come first",
}
"""Why a machine of the pool is removed, by the name of its counter."""


def why(what: str, old: LabUser | None, new: LabUser | None) -> str:
    """Return one sentence: the latest news in the record, otherwise what changed in it."""
    if what == "strays":
        return "a machine that does not belong to the lab is removed"
    if what == "forget":
        return "the user has had no lab for so long that the record is deleted"
    lab = None if old is None else old.lab
    if what == "keep" and lab is not None:
        until = "" if lab.expires_at is None else f", until after {utc_time(lab.expires_at)}"
        return f"lab {lab.lab_id}: its machine must run{until}"
    if old is None or new is None:
        return "its machine is deleted"
    last = old.news[-1].number if old.news else 0
    for news in reversed(new.news):
        if news.number > last:
            name = "the lab" if news.lab_id is None else f"lab {news.lab_id}"
            how = " (from the pool)" if what == "claimed" else ""
            return f"{name} is {news.event.value}{how}{': ' if news.reason else ''}{news.reason}"
    seen = new.lab
    if seen is None:
        return "the lab is gone"
    said = [f"its machine is {seen.cloud_status}" if seen.cloud_status else "", seen.detail]
    said.append("it is available" if seen.available else "it is not available")
    return f"lab {seen.lab_id}: {', '.join(part for part in said if part)}"


def cause(seen: LabSnapshot, new: LabUser | None, silence: str) -> Entry[Any] | str:
    """Return the cause of a decision: the newest record that was read, or the outage of its node."""
    old = None if seen.entry is None else seen.entry.value.lab
    lab = None if new is None else new.lab
    if silence and lab is not None and lab.detail == UNREACHABLE and (old is None or old.detail != UNREACHABLE):
        return silence
    found = [entry for entry in (seen.entry, seen.vm, seen.handle, *seen.strays) if entry is not None]
    return max(found, key=lambda entry: entry.mod_revision) if found else ""
