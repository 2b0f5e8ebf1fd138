"""What `hostler doctor` looks at where labs are set up: the catalogue, and the door."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hostler.engine.labs.feasibility import catalogue_problems
from hostler.entry.cli.store_option import redacted
from hostler.entry.data_dir import DataFolder
from hostler.entry.doctor.result import Finding, Level
from hostler.entry.labs import own_catalogue
from hostler.errors import HostlerError, Invalid, NotFound, Unavailable
from hostler.keys.lab import LAB_CATALOGUE
from hostler.keys.node import MEMBER
from hostler.kit.plural import counted
from hostler.wiring import open_inbox

if TYPE_CHECKING:
    from hostler.ports.store import Store
    from hostler.settings import Settings

WITHIN = 5.0


async def labs(settings: Settings) -> list[Finding]:
    """Nothing where nobody set anything of labs."""
    found = [] if settings.labs is None else [_catalogue(settings)]
    # Who started the control plane may have named it on the command line alone.
    redis = settings.redis or DataFolder(settings.data).read(DataFolder(settings.data).redis_file)
    if redis is not None:
        found.append(await _redis(redis))
    return found


async def lab_problems(store: Store, settings: Settings) -> list[Finding]:
    """What is wrong with labs on the nodes that there are."""
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
        return Finding("labs", Level.FAIL, what, advice or "correct it: no process that is given it starts")
    known = None if catalogue is None else catalogue.labs
    many = "every id is a lab" if known is None else counted(len(known), "lab")
    return Finding("labs", Level.OK, f"{settings.labs}: {many}")


async def _redis(url: str) -> Finding:
    """It is asked for its workers, which changes nothing there."""
    name = redacted(url)
    try:
        async with asyncio.timeout(WITHIN), open_inbox(url) as inbox:
            workers = len(await inbox.workers())
    except (Unavailable, TimeoutError) as error:
        why = str(error).partition("; ")[0].rpartition(": ")[2] or f"no answer within {WITHIN:g} s"
        return Finding("redis", Level.FAIL, f"{name}: {why}", "start it; labs run on, and are taken once it answers")
    except HostlerError as error:
        what, _, advice = str(error).partition("; ")
        return Finding("redis", Level.FAIL, f"{name}: {what.rpartition(': ')[2]}", advice or "correct the URL")
    if not workers:
        return Finding("redis", Level.WARN, f"{name} answers, but nobody takes requests", "hostler up --redis URL")
    return Finding("redis", Level.OK, f"{name} answers; {counted(workers, 'worker')} of labs")
