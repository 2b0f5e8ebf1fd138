"""One replica of the control plane as a process: serves the API, stands by, leads, and shuts down cleanly.

A replica serves reads and writes whether it leads or not; only the controllers of the leader act. A replica that loses
its leadership exits with code 1, and a supervisor restarts it.

`hostler replica --demonstration` runs elections without a control plane, on every storage that supports them: every
leader increments a counter in the store under its fence. The takeover tests rely on it.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import msgspec

from hostler.entry.backend import guarded_backend
from hostler.entry.campaign import CampaignConfig, Candidate, Leading, stand
from hostler.entry.data_dir import DataFolder
from hostler.entry.labs import lab_entry_in
from hostler.entry.process import asked_to_end, on_hangup, raise_open_files, reload_certificates, run_unless_asked
from hostler.errors import HostlerError, LeadershipLost, Unavailable, Uncertain
from hostler.keys.families import DEMONSTRATION, REPLICA
from hostler.kit.clock import SystemClock
from hostler.model.replica import LeaderRecord, Tally
from hostler.ports.store import Get, KeyValue
from hostler.ports.ttl import StoreBacked
from hostler.wiring import ttl_storage_on

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.engine.elections import Leadership
    from hostler.engine.service import Standing
    from hostler.entry.control_plane import ControlPlaneProcess
    from hostler.kit.clock import Clock
    from hostler.ports.store import Store
    from hostler.ports.ttl import TtlStorage
    from hostler.settings import Settings


COUNT_EVERY = 0.2
TELL_EVERY = 5.0


class Counting:
    """Increments the counter while it leads, and reports it every few seconds."""

    name = "demonstration"

    def __init__(self, store: Store | None, tell: Callable[[str], None]) -> None:
        self._store, self._tell = store, tell
        self._standing: Standing | None = None
        self._silent = False

    async def start(self, standing: Standing) -> None:
        self._standing = standing

    async def run(self) -> None:
        told_at = float("-inf")
        clock = SystemClock()
        while True:
            counted = await self._turn()
            if counted is not None and clock.now() >= told_at + TELL_EVERY:
                told_at = clock.now()
                self._tell(counted)
            await clock.sleep(COUNT_EVERY)

    async def stop(self) -> None:
        pass

    async def _turn(self) -> str | None:
        """Increment once. Return the line to report."""
        if self._standing is None:
            return None
        leadership = self._standing.leadership
        if self._store is None:
            leadership.check()
            return f"leading with fence {leadership.fence}; this storage keeps no data, so nothing is counted"
        try:
            tally = await count(self._store, leadership)
        except (Unavailable, Uncertain) as error:
            if not self._silent:
                self._tell(f"leading, but {error}; retrying")
            self._silent = True
            return None
        self._silent = False
        return None if tally is None else f"counted to {tally.count} under fence {tally.fence}"


async def count(store: Store, leadership: Leadership) -> Tally | None:
    """Increment the counter, guarded by the fence and by the revision read.

    None: another process wrote the counter in between. LeadershipLost: this process no longer leads according to the
    store; nothing was written.
    """
    entry = await DEMONSTRATION.get(store)
    before = 0 if entry is None else entry.value.count
    same = DEMONSTRATION.absent() if entry is None else DEMONSTRATION.unchanged(entry)
    tally = Tally(count=before + 1, fence=leadership.fence, holder=_holder(leadership.record))
    result = await store.txn([leadership.guard(), same], [DEMONSTRATION.put(tally)], [Get(leadership.key)])
    if result.succeeded:
        return tally
    found = result.responses[0]
    if not isinstance(found, KeyValue) or found.value != leadership.record.encode():
        raise LeadershipLost(f"leadership {leadership.key}: fence {leadership.fence} is over; nothing was written")
    return None


def _holder(record: str) -> str:
    return LeaderRecord.decode(record.encode()).holder


async def run(
    settings: Settings, address: str | None, tell: Callable[[str], None], *, accept_cluster: bool = False
) -> int:
    """Run a replica of the control plane until a signal asks it to end, or until a failure. Return the exit code."""
    from hostler.entry.control_plane import check_listen

    check_listen(settings)
    raise_open_files(tell)
    if settings.ignored:
        tell(f"ignored variables of other programs: {', '.join(settings.ignored)}")
    with asked_to_end() as asked:
        started = asyncio.Event()
        code = await run_unless_asked(
            "replica", asked, started, _run(settings, address, tell, asked, started, accept_cluster)
        )
    tell("stopped")
    return code


async def _run(  # noqa: PLR0917 - what to run, how to report, and when to end
    settings: Settings,
    address: str | None,
    tell: Callable[[str], None],
    asked: asyncio.Event,
    started: asyncio.Event,
    accept_cluster: bool,
) -> int:
    from hostler.entry.control_plane import ControlPlaneProcess, ProcessState, check_listen

    host, _ = check_listen(settings)
    clock = SystemClock()
    leading = Leading(tell)
    async with AsyncExitStack() as stack:
        backend = guarded_backend(settings, clock, tell, accept=accept_cluster)
        store, guard = await stack.enter_async_context(backend)
        settings = await _without_redis_if_refused(store, settings, tell)
        process = ProcessState(leads=lambda: leading.leads, stopping=asked.is_set, address=address)
        plane = ControlPlaneProcess(store, settings, clock=clock, process=process, guard=guard)
        await stack.enter_async_context(plane)
        server = await stack.enter_async_context(plane.served())
        stack.enter_context(on_hangup(lambda: reload_certificates([server], tell)))
        tell(f"serving {server.url}")
        DataFolder(settings.data).keep_redis(settings.redis)
        await _tell_first_admin(plane, DataFolder(settings.data), tell)
        worker = await stack.enter_async_context(plane.lab_queue_service(tell))
        plan = CampaignConfig(
            address=address or f"{f'[{host}]' if ':' in host else host}:{server.port}",
            ttl=settings.leadership_ttl,
            replicas=settings.replicas,
            acquisition_timeout=settings.acquisition_timeout or None,
            url=plane.api_url,
        )
        standing = asyncio.create_task(
            stand(
                ttl_storage_on(store),
                plan,
                plane.controllers(),
                leading=leading,
                asked=asked,
                tell=tell,
                candidate=Candidate(plane.graph.holder, guard.least_fence),
            ),
            name="standing",
        )
        started.set()
        failing = asyncio.create_task(_wait_for_failure(plane, worker), name="plane: failure")
        try:
            await asyncio.wait((standing, failing), return_when=asyncio.FIRST_COMPLETED)
            problem = None
            if not standing.done():
                problem = failing.result()
                tell(f"problem: {problem}; stopping")
                asked.set()
            problem = await standing or problem
            if problem is None:
                await _serve_on(store, settings, clock, tell)
        finally:
            for task in (standing, failing):
                task.cancel()
            await asyncio.gather(standing, failing, return_exceptions=True)
    return 0 if problem is None else 1


async def _serve_on(store: Store, settings: Settings, clock: Clock, tell: Callable[[str], None]) -> None:
    """Keep serving for `shutdown_delay` if other replicas run, so that load balancers see /readyz return 503.

    The leadership was released before, so that another replica can lead in the meantime.
    """
    delay = settings.shutdown_delay
    if not delay:
        return
    try:
        async with asyncio.timeout(delay):
            others = (await REPLICA.list(store, strict=False)).entries
    except (HostlerError, TimeoutError):
        return
    if others:  # the record of this replica is already deleted
        tell(f"serving for {delay:g} s more while /readyz returns 503; a second signal ends the process at once")
        await clock.sleep(delay)


async def _wait_for_failure(plane: ControlPlaneProcess, worker: asyncio.Task[None] | None) -> Exception:
    """Wait for a failure of the store view or the lab worker, and return it. Neither ends without a failure."""
    failing = asyncio.create_task(plane.failed(), name="view: failure")
    try:
        await asyncio.wait((failing, *(() if worker is None else (worker,))), return_when=asyncio.FIRST_COMPLETED)
        if failing.done() or worker is None:
            return failing.result()
        error = None if worker.cancelled() else worker.exception()
        return error if isinstance(error, Exception) else RuntimeError("the lab worker ended without an error")
    finally:
        failing.cancel()


async def _without_redis_if_refused(store: Store, settings: Settings, tell: Callable[[str], None]) -> Settings:
    """Return the settings, without Redis if no node can serve labs that are requested there."""
    if settings.redis is None:
        return settings
    found = await lab_entry_in(store)
    if found.refusal or found.warning:
        tell(found.refusal or found.warning)
    return msgspec.structs.replace(settings, redis=None) if found.refusal else settings


async def _tell_first_admin(plane: ControlPlaneProcess, folder: DataFolder, tell: Callable[[str], None]) -> None:
    from hostler.entry.control_plane import first_admin

    token = await first_admin(plane.users, folder)
    if token is not None:
        if sys.stderr.isatty():  # elsewhere the token would stay in a log that others read
            tell(f"the administrator's token, shown this once: {token}")
        tell(f"the administrator's token is kept in {folder.token_file}")


async def demonstrate(storage: TtlStorage, plan: CampaignConfig, tell: Callable[[str], None]) -> int:
    """Run elections without a control plane, with a counter in place of controllers. Return the exit code."""
    store = storage.store if isinstance(storage, StoreBacked) else None
    with asked_to_end() as asked:
        problem = await stand(storage, plan, [Counting(store, tell)], leading=Leading(tell), asked=asked, tell=tell)
    tell("stopped")
    return 0 if problem is None else 1
