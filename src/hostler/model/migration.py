"""How far the machines of a state file have been moved into a cluster."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from hostler.model.record import Record


class Migration(Record, frozen=True, kw_only=True):
    """`/hostler/v1/migrations/{cluster}`: written in the transaction that moves each machine; stays as the marker.

    Once `finished_at` is set nothing is ever moved from there again.
    """

    source: str
    """Where it came from, for people."""
    started_at: float
    after: str = ""
    """The last key that was looked at; in order of the keys everything up to it is done."""
    labs_after: str = ""
    """The same of the records of labs, which follow the machines."""
    others_after: str = ""
    """The same of all other records: the number of their family in `engine.migration_table`, and the key."""
    records: Annotated[int, Meta(ge=0)] = 0
    """Of them that were moved."""
    moved: Annotated[int, Meta(ge=0)] = 0
    present: Annotated[int, Meta(ge=0)] = 0
    """Stood in the cluster already, and were left as they are there."""
    renamed: Annotated[int, Meta(ge=0)] = 0
    """Among those that were moved: their name was taken."""
    finished_at: float | None = None


class Moved(Record, frozen=True, kw_only=True):
    """`/hostler/v1/moved`: the records were moved or copied to another store. No process starts on this one any more.

    In a state file it is written before the first machine is moved, and again after the last. `hostler store copy`
    writes it once the copy is complete.
    """

    cluster: str = ""
    """The id of the cluster; empty: it had none when the first machine was moved."""
    to: str = ""
    """The store that took over, for people; empty: not known."""
    epoch: int = 0
    """The epoch of that store when it took over; 0: not known."""
    read_only: bool = False
    """This store is itself the copy, made to be looked at; `to` is the store in service."""
    started_at: float
    finished_at: float | None = None
