"""HTTP API types for retained machines."""

from __future__ import annotations

from hostler.model.record import Record
from hostler.model.vm import Id


class RetainedRef(Record, frozen=True, kw_only=True):
    """A reference to a retained machine by node and name."""

    node: str
    name: str
    retained_at: float


class RetainedView(Record, frozen=True, kw_only=True):
    """A machine that is out of service and is retained with its disk and snapshots."""

    node: str
    name: str
    org: str
    project: str
    vm: str
    """The id of the VM that it belonged to."""
    vm_name: str
    cpus: int
    memory_mib: int
    disk_gib: int
    image: str
    snapshots: tuple[str, ...]
    disk_bytes: int
    """Disk space used on the node; 0: not known."""
    retained_at: float
    until: float
    """The machine may be deleted from this time on, unless `kept_for` names a VM."""
    kept_for: str
    """The VM that has no newer disk, or that is being restored from this one; empty: none."""
    deleting: bool
    """Deletion was requested and waits for the node."""
    alive: bool
    """Whether the node is reachable."""
    lost: str = ""
    """Why no node can restore it or delete its disk: its node was removed or uses other storage. Empty: a node can."""
    revision: int


class RetainedPage(Record, frozen=True, kw_only=True):
    """All retained machines that the caller may see, newest first."""

    items: tuple[RetainedView, ...]
    after: str | None = None
    revision: int


class RetainedRestore(Record, frozen=True, kw_only=True):
    """Options for restoring a retained machine."""

    name: Id | None = None
    """Create a new VM with this name; null: restore the original VM, if it has no newer disk."""
