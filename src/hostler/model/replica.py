"""Replicas of the control plane and their leadership."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from hostler.model.record import OpenEnum, Record


class LeaderRecord(Record, frozen=True, kw_only=True):
    """`sysvvm/1/{n}`: the holder of an election key. `holder` is unique to the process."""

    address: str
    holder: Annotated[str, Meta(min_length=1)]
    fence: Annotated[int, Meta(ge=0)]
    """Grows with each leadership; 0 while the key is claimed but its fence is not yet drawn."""


class ReplicaRecord(Record, frozen=True, kw_only=True):
    """`/hostler/v1/replicas/{holder}`: a running replica, attached to its own lease. No record: unreachable.

    Written at start and when the held election key changes. It is for display and may lag briefly. Only the
    `LeaderRecord` says which replica leads.
    """

    address: str
    holder: Annotated[str, Meta(min_length=1)]
    """Unique to the process; the same as in its `LeaderRecord`."""
    ttl: Annotated[float, Meta(gt=0)]
    """Duration of its leadership lease, in seconds."""
    started_at: float
    key: int | None = None
    """The election key that it holds."""
    fence: Annotated[int, Meta(ge=0)] = 0
    held_at: float | None = None
    """When it acquired the key."""
    url: str = ""
    """URL of its API for other control plane processes, with the digest of its certificate, in the form of
    `NodeRecord.address`; empty: not published."""


class Farewell(OpenEnum):
    """How the previous leadership ended, as far as the next leader can tell."""

    NONE = "none"
    """No previous leader is known."""
    RELEASED = "released"
    """The leader released it in an orderly way."""
    SILENT = "silent"
    """The lease expired, or the leader was known to be dead."""


class Takeover(Record, frozen=True, kw_only=True):
    """`/hostler/v1/takeovers/{fence}`: the start of a leadership. The most recent ones are kept for display."""

    fence: Annotated[int, Meta(ge=1)]
    holder: Annotated[str, Meta(min_length=1)]
    address: str
    at: float
    """When the holder began to lead, by its own clock."""
    previous_holder: str = ""
    """The previous leader; empty: not known."""
    previous_address: str = ""
    previous: Farewell = Farewell.NONE
    released_at: float | None = None
    """When this leadership was released; None: it continues, or it ended without release."""


class Tally(Record, frozen=True, kw_only=True):
    """`/hostler/v1/demonstration`: a counter that every leader increments under its fence."""

    count: Annotated[int, Meta(ge=0)]
    fence: Annotated[int, Meta(ge=0)]
    """Fence of the leader that counted last."""
    holder: Annotated[str, Meta(min_length=1)]
