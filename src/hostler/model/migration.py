"""Progress of moving the VMs of a state file into a cluster."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from hostler.model.record import Record


class Migration(Record, frozen=True, kw_only=True):
    """`/hostler/v1/migrations/{cluster}`: written in the transaction that moves each VM, and kept as a marker.

    Once `finished_at` is set, nothing is moved from that state file again.
    """

    source: str
    """The source, for display."""
    started_at: float
    after: str = ""
    """The last key processed. Keys are processed in order, so every key up to this one is done."""
    labs_after: str = ""
    """The last key processed among lab records, which follow the VMs."""
    others_after: str = ""
    """The last key processed among all other records, with the number of its family in `engine.migration_table`."""
    records: Annotated[int, Meta(ge=0)] = 0
    """Number of these other records that were moved."""
    moved: Annotated[int, Meta(ge=0)] = 0
    present: Annotated[int, Meta(ge=0)] = 0
    """VMs that already existed in the cluster and were left unchanged."""
    renamed: Annotated[int, Meta(ge=0)] = 0
    """Moved VMs that were renamed because their name was taken."""
    finished_at: float | None = None


class Moved(Record, frozen=True, kw_only=True):
    """`/hostler/v1/moved`: the records were moved or copied to another store. No process may start on this store.

    In a state file it is written before the first VM is moved and again after the last. `hostler store copy` writes it
    once the copy is complete.
    """

    cluster: str = ""
    """The id of the target cluster; empty: the target had no id when the first VM was moved."""
    to: str = ""
    """The store that took over, for display; empty: not known."""
    epoch: int = 0
    """The epoch of that store when it took over; 0: not known."""
    read_only: bool = False
    """This store is itself the copy, made for reading only; `to` is the store in service."""
    started_at: float
    finished_at: float | None = None
