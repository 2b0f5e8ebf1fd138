"""Checks of labs: the catalogue, and Redis."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hostler.engine.labs.feasibility import catalogue_problems
from hostler.entry.cli.store_option import redacted
from hostler.entry.data_dir import DataFolder
from hostler.entry.labs import own_catalogue
from hostler.errors import HostlerError, Invalid, NotFound, Unavailable
from hostler.keys.lab import LAB_CATALOGUE
from hostler.keys.node import MEMBER
from hostler.kit.plural import counted
from hostler.ports.finding import Finding, Level
from hostler.wiring import open_inbox

if TYPE_CHECKING:
    from hostler.ports.store import Store
    from hostler.settings import Settings

WITHIN = 5.0


async def labs(settings: Settings) -> list[Finding]:
    """Return the findings; empty without any lab settings."""
    found = [] if settings.labs is None else [_catalogue(settings)]
    # The Redis URL may have been given on the command line of the control plane only.
    redis = settings.redis or DataFolder(settings.data).read(DataFolder(settings.data).redis_file)
    if redis is not None:
        found.append(await _redis(redis))
    return found


async def lab_problems(store: Store, settings: Settings) -> list[Finding]:
    """Return problems of the lab catalogue with the existing nodes."""
    try:
        catalogue = own_catalogue(settings)
    except (Invalid, NotFound):
        return []  # `labs` reports it
    if catalogue is None:
        entry = await LAB_CATALOGUE.get(store, name="default")
        if entry is None:
            return []
        catalogue = entry.value
    records = [entry.value for entry in (await MEMBER.list(store, strict=False)).entries]
    found = []
    for problem in catalogue_problems(catalogue, records):
        what, _, advice = problem.partition("; ")
        found.append(Finding("labs", Level.WARN, what, advice))
    return found


def _catalogue(settings: Settings) -> Finding:
    try:
        catalogue = own_catalogue(settings)
    except (Invalid, NotFound) as error:
        what, _, advice = str(error).partition("; ")
        return Finding("labs", Level.FAIL, what, advice or "correct it: no process starts with it")
    known = None if catalogue is None else catalogue.labs
    many = "every id is a lab" if known is None else counted(len(known), "lab")
    return Finding("labs", Level.OK, f"{settings.labs}: {many}")


async def _redis(url: str) -> Finding:
    """Check Redis by listing its workers, which changes nothing."""
    name = redacted(url)
    try:
        async with asyncio.timeout(WITHIN), open_inbox(url) as inbox:
            workers = len(await inbox.workers())
    except (Unavailable, TimeoutError) as error:
        why = str(error).partition("; ")[0].rpartition(": ")[2] or f"no answer within {WITHIN:g} s"
        return Finding(
            "redis",
            Level.FAIL,
            f"{name}: {why}",
            "start it; running labs continue, and requests are taken once it answers",
        )
    except HostlerError as error:
        what, _, advice = str(error).partition("; ")
        return Finding("redis", Level.FAIL, f"{name}: {what.rpartition(': ')[2]}", advice or "correct the URL")
    if not workers:
        return Finding("redis", Level.WARN, f"{name} answers, but no worker takes requests", "hostler up --redis URL")
    return Finding("redis", Level.OK, f"{name} answers; {counted(workers, 'worker')} of labs")
