"""What `hostler doctor` looks at where slices run: whether each can have a user of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.entry.backend import is_cluster
from hostler.entry.finding import Finding, Level
from hostler.errors import HostlerError
from hostler.wiring import why_no_slice_users

if TYPE_CHECKING:
    from hostler.settings import Settings


async def slices(settings: Settings) -> list[Finding]:
    """Nothing, where they can, or where the agent is not root and nobody asked for it."""
    level = Level.FAIL if settings.slice_users == "required" else Level.WARN
    try:
        why, advice = await why_no_slice_users(settings)
    except HostlerError as error:
        what, _, advice = str(error).partition("; ")
        return [Finding("slices", Level.FAIL, what, advice)]
    return [*([Finding("slices", level, why, advice)] if why else []), *_repository(settings)]


def _repository(settings: Settings) -> list[Finding]:
    """Return a finding where several machines work on one store, and each has a repository of its own."""
    if not is_cluster(settings.store) or "://" in settings.artifacts:
        return []
    what = f"{settings.artifacts} is a folder of this machine: a slice that is published here runs here alone"
    advice = "set artifacts to one repository for all machines: https://REPLICA/v1/artifacts (docs/slices.md)"
    return [Finding("artifacts", Level.WARN, what, advice)]
