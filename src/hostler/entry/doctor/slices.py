"""Checks of slices: whether each can have a user of its own, and whether agents can fetch artifacts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.entry.backend import is_cluster
from hostler.errors import HostlerError
from hostler.keys.replica import REPLICA
from hostler.ports.finding import Finding, Level
from hostler.wiring import why_no_slice_users

if TYPE_CHECKING:
    from hostler.ports.store import Store
    from hostler.settings import Settings


async def slices(settings: Settings) -> list[Finding]:
    """Return the findings; empty if separate users work, or if the agent is not root and they are not required."""
    level = Level.FAIL if settings.slice_users == "required" else Level.WARN
    try:
        why, advice = await why_no_slice_users(settings)
    except HostlerError as error:
        what, _, advice = str(error).partition("; ")
        return [Finding("slices", Level.FAIL, what, advice)]
    return [Finding("slices", level, why, advice)] if why else []


async def repository(store: Store, settings: Settings) -> list[Finding]:
    """Return a finding for every replica from which agents of other hosts cannot fetch artifacts."""
    if not is_cluster(settings.store) or "://" in settings.artifacts:
        return []
    return [
        Finding(
            "artifacts",
            Level.WARN,
            f"replica {entry.value.address} has no address for others: artifacts that are only there cannot"
            " be fetched by agents of other hosts",
            "start it with --address HOST:PORT, or let it listen on that address",
        )
        for entry in (await REPLICA.list(store, strict=False)).entries
        if not entry.value.url
    ]
