"""Retained machines, as the API has them."""

from __future__ import annotations

from hostler.model.record import Record
from hostler.model.vm import Id


class RetainedRef(Record, frozen=True, kw_only=True):
    """A retained machine, by its node and name."""

    node: str
    name: str
    retained_at: float


class RetainedView(Record, frozen=True, kw_only=True):
    """A machine that is out of service and is kept with its disk and snapshots."""

    node: str
    name: str
    org: str
    project: str
    vm: str
    """The id of the virtual machine that it was."""
    vm_name: str
    cpus: int
    memory_mib: int
    disk_gib: int
    image: str
    snapshots: tuple[str, ...]
    disk_bytes: int
    """What it takes on its node; 0: not known."""
    retained_at: float
    until: float
    """From then on it may be deleted, unless `kept_for` names a virtual machine."""
    kept_for: str
    """The virtual machine that has no newer disk, or gets its disk from it; empty: none."""
    deleting: bool
    """Its deletion was asked for, and waits for its node."""
    alive: bool
    """Whether its node can be reached."""
    lost: str = ""
    """Why no node can bring it back or delete its disk: its node was removed, or works at another place. Empty: one
    can."""
    revision: int


class RetainedPage(Record, frozen=True, kw_only=True):
    """All that the caller sees, the newest first."""

    items: tuple[RetainedView, ...]
    after: str | None = None
    revision: int


class RetainedRestore(Record, frozen=True, kw_only=True):
    """How to restore a retained machine."""

    name: Id | None = None
    """Make a new virtual machine of this name of it; null: the one that it was, if that has no newer disk."""
