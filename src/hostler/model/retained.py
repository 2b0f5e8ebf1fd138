"""Machines that are out of service and are retained with their disks."""

from __future__ import annotations

from hostler.model.record import Record
from hostler.model.vm import Id, VmSpec


class Retained(Record, frozen=True, kw_only=True):
    """`/hostler/v1/retained/{node}/{name}`: a retained machine, as reported by the agent of its node."""

    name: Id
    org: Id
    project: Id
    vm: Id
    """The id of the VM that it belonged to."""
    vm_name: str = ""
    """The name of that VM when the machine was retained."""
    spec: VmSpec
    snapshots: tuple[str, ...] = ()
    retained_at: float
    """By the clock of its node."""
    listed_at: float = 0.0
    """When the leader first saw this record, by the leader's clock; retention starts then. 0: not yet seen."""
    disk_bytes: int = 0
    driver: str = ""
    place: str = ""
    """The storage on the node that holds it (`Machines.place`); empty: not known. The record stays if the agent of the
    node later uses other storage."""

    @property
    def kept_since(self) -> float:
        """Return the start of retention, by the leader's clock if known, because the node's clock may be wrong."""
        return self.listed_at or self.retained_at


class RetainedRequest(Record, frozen=True, kw_only=True):
    """`/hostler/v1/retained-requests/{node}/{name}`: a request to delete a retained machine permanently.

    Written by the service for an administrator, or by the leader when retention has expired. The agent deletes the
    disk, and then this record together with the record of the retained machine.
    """

    by: str
    at: float
