"""Machines that are out of service and are kept with their disks."""

from __future__ import annotations

from hostler.model.record import Record
from hostler.model.vm import Id, VmSpec


class Retained(Record, frozen=True, kw_only=True):
    """`/hostler/v1/retained/{node}/{name}`: a retained machine, as the agent of its node sees it."""

    name: Id
    org: Id
    project: Id
    vm: Id
    """The id of the virtual machine that it was."""
    vm_name: str = ""
    """What its owner called it then."""
    spec: VmSpec
    snapshots: tuple[str, ...] = ()
    retained_at: float
    """By the clock of its node."""
    listed_at: float = 0.0
    """When the leader first saw this record, by its clock: retention counts from then. 0: not yet."""
    disk_bytes: int = 0
    driver: str = ""
    place: str = ""
    """Where on the node it is (`Machines.place`); empty: not known. The record stays when the agent of the node works
    at another place from then on."""

    @property
    def kept_since(self) -> float:
        """From when its retention counts. The clock of its node may be wrong, so the leader's does once it saw it."""
        return self.listed_at or self.retained_at


class RetainedRequest(Record, frozen=True, kw_only=True):
    """`/hostler/v1/retained-requests/{node}/{name}`: delete a retained machine for good.

    Written by the service for an administrator, or by the leader when retention has run out. The agent deletes the
    disk, and then this record together with that of the retained machine.
    """

    by: str
    at: float
