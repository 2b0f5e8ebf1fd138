"""Who leads."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from hostler.model.record import Record


class LeaderRecord(Record, frozen=True, kw_only=True):
    """`sysvvm/1/{n}`: the holder of an election key, told apart from every other process by `holder`."""

    address: str
    holder: Annotated[str, Meta(min_length=1)]
    fence: Annotated[int, Meta(ge=0)]
    """Grows with each leadership; 0 while the key is claimed and its fence not drawn yet."""
