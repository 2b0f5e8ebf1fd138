"""Labs in a process: the lab catalogue in use, the terminal's key, and the connection to Redis.

    queues → worker (every process with `redis`) → the store → projection (the leader) → lab records

If Redis is unreachable at start, the process reports it and keeps trying. Errors that waiting cannot fix (a wrong
password, an invalid URL) end the process.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Protocol

from hostler.engine.labs.controller import LabController
from hostler.engine.labs.pool import LabPool
from hostler.engine.labs.projector import LabProjector
from hostler.engine.service import Service
from hostler.entry.cli.store_option import redacted
from hostler.entry.server.logs import logger
from hostler.errors import HostlerError, Refused, Unavailable, Uncertain
from hostler.keys.lab import LabNames
from hostler.keys.namespaced import namespace_of
from hostler.model.lab import LabCatalogue, LabTemplate
from hostler.settings.catalogue import load_catalogue
from hostler.wiring import open_board, open_inbox

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from hostler.engine.decision_recorder import Tracer
    from hostler.engine.labs.worker import LabWorker
    from hostler.engine.view import View
    from hostler.keys.mirror import Mirror
    from hostler.kit.clock import Clock
    from hostler.model.lab import LabUser
    from hostler.ports.inbox import LabRecords
    from hostler.ports.store import Store
    from hostler.settings import Settings

_SAID = ("lab_life", "lab_user")


def own_catalogue(settings: Settings) -> LabCatalogue | None:
    """Return the lab catalogue of this process: from `labs.toml`, or from settings alone; None if neither is set.

    NotFound, Invalid: `labs.toml` is missing or has an error.
    """
    life, user = settings.lab_life * 60.0, settings.lab_user
    if settings.labs is not None:
        return load_catalogue(settings.labs, life=life, user=user)
    if all(settings.origins[name].layer == "default" for name in _SAID):
        return None
    return LabCatalogue(default=LabTemplate(life=life, user=user))


def catalogue_in_use(
    settings: Settings, own: LabCatalogue | None, known: Mirror[LabCatalogue]
) -> Callable[[], LabCatalogue]:
    """Return the catalogue of this process's file, else the one that the leader stored, else that of the settings."""
    otherwise = own or LabCatalogue()
    if settings.labs is not None:
        return lambda: otherwise

    def catalogue() -> LabCatalogue:
        entry = known.get(name="default")
        return otherwise if entry is None else entry.value

    return catalogue


def lab_keys(settings: Settings, tell: Callable[[str], None]) -> tuple[str, ...]:
    """Return the public part of the terminal's key, which is created if it does not exist."""
    from hostler.entry.lab_key import terminal_key

    try:
        return (terminal_key(settings.lab_key)[1],)
    except Refused as error:
        tell(f"labs without a terminal: {error}")
        return ()


class Counting(Service, Protocol):
    """A controller with counters."""

    @property
    def counters(self) -> Mapping[str, float]:
        """Return the counters by name."""


def lab_controllers(
    store: Store,
    view: View,
    board: LabRecords | None,
    *,
    catalogue: LabCatalogue | None,
    keys: Sequence[str],
    clock: Clock,
    rng: random.Random,
    new_id: Callable[[], str],
    tracer: Tracer,
    tell: Callable[[str], None],
) -> tuple[Counting, ...]:
    """Return the leader's lab controllers; `board` is where lab records are written."""
    pool = LabPool(store, view, clock=clock, rng=rng, new_id=new_id, keys=keys, tracer=tracer, tell=tell)
    labs = LabController(
        *(store, view),
        clock=clock,
        rng=rng,
        new_id=new_id,
        catalogue=catalogue,
        keys=keys,
        pool=pool,
        tracer=tracer,
        tell=tell,
    )
    return (labs,) if board is None else (labs, LabProjector(board, view, clock=clock, rng=rng, tell=tell))


class LabQueueService:
    """The open connection to Redis: lab records for the leader to write, and the worker that takes requests."""

    def __init__(self, board: LabRecords, worker: LabWorker, task: asyncio.Task[None]) -> None:
        self.board, self._worker, self.task = board, worker, task

    def counters(self) -> Mapping[str, float]:
        """Return the worker's counters."""
        return {f"lab_worker_{name}": float(number) for name, number in self._worker.counters.items()}


@asynccontextmanager
async def opened_door(
    store: Store,
    settings: Settings,
    labs: Mirror[LabUser],
    catalogue: Callable[[], LabCatalogue],
    *,
    clock: Clock,
    rng: random.Random,
    new_id: Callable[[], str],
    tell: Callable[[str], None],
) -> AsyncIterator[LabQueueService | None]:
    """Connect to Redis and run a worker that takes requests until the context ends; it returns what it holds then.

    `labs` is a cache that is kept current. None: the settings name no Redis. Forbidden, Invalid: Redis refuses the
    credentials, or the URL is not valid.
    """
    if settings.redis is None:
        yield None
        return
    from hostler.engine.labs.worker import LabWorker

    names, log = LabNames(namespace_of(store).redis_prefix), logger(part="labs")

    def warn(text: str) -> None:
        """Report a problem that only the user can fix."""
        log.warning(text)
        tell(text)

    async with open_board(settings.redis, names=names) as board, open_inbox(settings.redis, names=names) as inbox:
        await _look(board, redacted(settings.redis), tell)
        worker = LabWorker(
            store,
            inbox,
            labs,
            catalogue=catalogue,
            clock=clock,
            rng=rng,
            new_id=new_id,
            switch=settings.lab_switch,
            limits={"provision": settings.lab_provision_limit, "decommission": settings.lab_decommission_limit},
            source=socket.gethostname(),
            tell=log.warning,
            warn=warn,
        )
        task = asyncio.create_task(worker.run(), name="lab worker")
        try:
            yield LabQueueService(board, worker, task)
        finally:
            task.cancel()
            await asyncio.wait((task,))


async def _look(board: LabRecords, url: str, tell: Callable[[str], None]) -> None:
    try:
        await board.epoch()
    except (Unavailable, Uncertain) as error:
        why = str(error).partition("; ")[0].rpartition(": ")[2].removeprefix("cannot connect (").removesuffix(")")
        tell(f"redis {url}: cannot be reached ({why}); labs are taken from there once it is reachable")
    except HostlerError as error:
        error.add_note(f"redis {url}")
        raise
    else:
        tell(f"labs from redis {url}")
