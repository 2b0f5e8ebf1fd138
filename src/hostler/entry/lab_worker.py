"""The lab worker process: takes lab requests from Redis and writes the desired labs into the store.

Any number of workers may run, in addition to those of `up` and `replica`. If a worker dies, its lease expires, and the
other workers take over the requests that it held.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from hostler.engine.control_plane import LabCaches, build_lab_worker
from hostler.entry.backend import opened_backend
from hostler.entry.cli.options import local_path
from hostler.entry.control_plane import config_of, environment
from hostler.entry.labs import lab_entry_in, open_queue_service
from hostler.entry.process import asked_to_end, run_unless_asked
from hostler.errors import HostlerError, Invalid, Refused
from hostler.keys.cache import Cache
from hostler.keys.lab import LAB, LAB_CATALOGUE
from hostler.kit.clock import SystemClock
from hostler.kit.tasks import run_together

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.engine.labs.worker import LabWorker
    from hostler.engine.runtime.env import Env
    from hostler.ports.inbox import Inbox
    from hostler.settings import Settings


async def run(settings: Settings, tell: Callable[[str], None]) -> int:
    """Run until a signal asks the worker to end, or until a failure. Return the exit code."""
    if settings.redis is None:
        raise Invalid("redis: a worker needs the Redis that requests come from; give --redis URL, or set HOSTLER_REDIS")
    _check_store(settings)
    with asked_to_end() as asked:
        started = asyncio.Event()
        code = await run_unless_asked("lab worker", asked, started, _run(settings, tell, asked, started))
    tell("stopped")
    return code


def _check_store(settings: Settings) -> None:
    """Check that the default store exists: in an empty store, no control plane would process the requests."""
    path = local_path(settings.store)
    if settings.origins["store"].layer == "default" and path is not None and not path.exists():
        raise Invalid(
            f"store: no hostler up has used {settings.data}, so no control plane would process requests; name the store"
            " of the replicas (--store URL), or their data folder (--data)"
        )


async def _run(settings: Settings, tell: Callable[[str], None], asked: asyncio.Event, started: asyncio.Event) -> int:
    env, config = environment(SystemClock()), config_of(settings)
    clock, rng = env.clock, env.rng
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(opened_backend(settings, clock, tell))
        found = await lab_entry_in(store)
        if found.refusal:
            raise Refused(found.refusal)
        if found.warning:
            tell(found.warning)
        labs = Cache(store, LAB, clock=clock, rng=rng)
        known = Cache(store, LAB_CATALOGUE, clock=clock, rng=rng)
        following = asyncio.create_task(
            run_together("view", {"labs": labs.run(), "catalogue": known.run()}), name="view of labs"
        )
        stack.push_async_callback(_ended, following)
        await labs.ready()
        await known.ready()

        def make(inbox: Inbox, env: Env, source: str) -> LabWorker:
            return build_lab_worker(store, env, inbox, LabCaches(labs, known), config=config, source=source)

        service = await stack.enter_async_context(open_queue_service(store, settings, env, make, tell))
        if service is None:
            return 1
        started.set()
        tell("ready")
        waiting = asyncio.create_task(asked.wait(), name="lab worker: asked to end")
        try:
            await asyncio.wait((waiting, service.task, following), return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        if asked.is_set():
            tell("stopping")
            return 0
        for part in (service.task, following):
            if part.done():
                tell(f"problem: {part.get_name()} ended: {_why(part)}; stopping")
    return 1


def _why(task: asyncio.Task[None]) -> str:
    error = None if task.cancelled() else task.exception()
    if error is None:
        return "without an error"
    return str(error) if isinstance(error, HostlerError) else f"unexpected {type(error).__name__}: {error}"


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait((task,))
