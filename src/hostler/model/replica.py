"""Who leads, and who stands by."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from hostler.model.record import OpenEnum, Record


class LeaderRecord(Record, frozen=True, kw_only=True):
    """`sysvvm/1/{n}`: the holder of an election key, told apart from every other process by `holder`."""

    address: str
    holder: Annotated[str, Meta(min_length=1)]
    fence: Annotated[int, Meta(ge=0)]
    """Grows with each leadership; 0 while the key is claimed and its fence not drawn yet."""


class ReplicaRecord(Record, frozen=True, kw_only=True):
    """`/hostler/v1/replicas/{holder}`: a replica that runs, attached to a lease of its own; gone means silent.

    Written when it starts and when what it holds changes. Who leads is told by the `LeaderRecord` alone: this one is
    for people, and may be a moment behind.
    """

    address: str
    holder: Annotated[str, Meta(min_length=1)]
    """Unique to the process; the same as in its `LeaderRecord`."""
    ttl: Annotated[float, Meta(gt=0)]
    """The life of its leaderships, in seconds."""
    started_at: float
    key: int | None = None
    """The election key that it holds."""
    fence: Annotated[int, Meta(ge=0)] = 0
    held_at: float | None = None
    """Since when it holds the key."""
    url: str = ""
    """Where other processes of the control plane reach its API, with the digest of its certificate, in the form of
    `NodeRecord.address`; empty: it does not say."""


class Farewell(OpenEnum):
    """How the leadership before ended, as far as the next leader can tell."""

    NONE = "none"
    """Nobody is known to have led before."""
    RELEASED = "released"
    """It was given up in good order."""
    SILENT = "silent"
    """Nothing was said: its time ran out, or it was known to be dead."""


class Takeover(Record, frozen=True, kw_only=True):
    """`/hostler/v1/takeovers/{fence}`: a leadership that began. The last ones are kept, for people."""

    fence: Annotated[int, Meta(ge=1)]
    holder: Annotated[str, Meta(min_length=1)]
    address: str
    at: float
    """When its holder began to lead, by its own clock."""
    previous_holder: str = ""
    """Who led before; empty: nobody is known."""
    previous_address: str = ""
    previous: Farewell = Farewell.NONE
    released_at: float | None = None
    """When it was given up; None: it stands, or it ended without a word."""


class Tally(Record, frozen=True, kw_only=True):
    """`/hostler/v1/demonstration`: what every leader counts on, under its fence."""

    count: Annotated[int, Meta(ge=0)]
    fence: Annotated[int, Meta(ge=0)]
    """Of the leader that counted last."""
    holder: Annotated[str, Meta(min_length=1)]
