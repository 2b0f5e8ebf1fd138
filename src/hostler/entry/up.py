"""Everything in one process: store, API, controllers and the agents of some nodes.

    lock the folder → store → view and services → server → agents → labs from Redis → candidacy for leadership → ready

It stops in the reverse order, within seconds; machines keep running. Losing the leadership does not end the process: a
laptop that wakes up from sleep becomes a candidate again (`entry.watchdog`).
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any

import msgspec

from hostler.engine.inventory.local_rack import make_own_rack
from hostler.entry.agent import AgentParts, Running, channels_in, plan_of, running_agent
from hostler.entry.backend import guarded_backend
from hostler.entry.campaign import CampaignConfig, Candidate, Leading, bury, stand
from hostler.entry.control_plane import (
    ControlPlaneProcess,
    ProcessState,
    check_address,
    check_listen,
    first_admin,
    local_url,
    new_id,
)
from hostler.entry.data_dir import DataFolder
from hostler.entry.labs import lab_entry_in, lab_network
from hostler.entry.process import (
    RotatingFile,
    Watchdog,
    asked_to_end,
    on_hangup,
    raise_open_files,
    reload_certificates,
    run_unless_asked,
    watched_host,
)
from hostler.entry.relay import relaying
from hostler.entry.server.logs import configure, logger
from hostler.errors import HostlerError, Unavailable
from hostler.keys.families import LEADER
from hostler.kit.clock import SystemClock
from hostler.kit.plural import counted
from hostler.model.name import fold
from hostler.model.node import Lifecycle
from hostler.settings.driver import broken_drivers
from hostler.wiring import machine_driver, ttl_storage_on

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hostler.engine.cluster_id import StoreGuard
    from hostler.ports.machine_driver import GuestNetwork
    from hostler.ports.store import Store
    from hostler.settings import Settings

RACK = "local"
"""Default rack; the nodes are named after their rack."""
LOOK_EVERY = 0.05
STAND_AGAIN = 1.0
SILENT_FOR = 5.0
"""Seconds after which the reason for not being ready is reported."""
IN_SERVICE = (Lifecycle.ON_DUTY, Lifecycle.DRAINING, Lifecycle.DECOMMISSIONED)
"""Lifecycle states of a node that has joined; an operator may have drained it before."""


class Ready:
    """The values to report once everything works."""

    def __init__(self, url: str, folder: DataFolder, token: str | None) -> None:
        self.url, self.folder, self.token = url, folder, token


class Up:
    """One run of `hostler up`."""

    def __init__(
        self,
        settings: Settings,
        tell: Callable[[str], None],
        ready: Callable[[Ready], Awaitable[None]],
        *,
        first_vm: bool = False,
        accept_cluster: bool = False,
    ) -> None:
        self._settings, self._tell, self._ready, self._first_vm = settings, tell, ready, first_vm
        self._accept = accept_cluster
        self._folder = DataFolder(settings.data)
        self._clock = SystemClock()
        self._log = logger(part="up")
        self._leading = Leading(self._say)
        self._agents: dict[str, Running] = {}
        self._asked = asyncio.Event()
        self._serving = asyncio.Event()

    async def run(self) -> int:
        """Run until a signal asks the process to end, or until a failure. Return the exit code."""
        check_listen(self._settings)
        check_address(self._settings, self._settings.agent_listen, "agent_listen")
        with self._folder.held(), asked_to_end() as self._asked:
            log = RotatingFile(self._folder.log_file)
            configure(self._settings.log_level, log, self._settings.log_format)  # type: ignore[arg-type]
            raise_open_files(self._say)
            self._tell(f"data in {self._folder.path}")
            if self._settings.ignored:
                self._tell(f"ignored variables of other programs: {', '.join(self._settings.ignored)}")
            for problem in broken_drivers():
                self._tell(problem)
            self._folder.check_kind(self._settings.machines)
            # the folder now holds state that is kept after this process ends
            self._folder.simulation_file.unlink(missing_ok=True)
            try:
                return await run_unless_asked("up", self._asked, self._serving, self._run())
            finally:
                log.close()

    async def _run(self) -> int:
        found = await self._settle_network()
        async with AsyncExitStack() as stack:
            backend = guarded_backend(self._settings, self._clock, self._tell, accept=self._accept)
            store, guard = await stack.enter_async_context(backend)
            await self._settle_lab_entry(store, found)
            self._folder.keep_redis(self._settings.redis)
            plane = await stack.enter_async_context(self._plane(store, guard))
            await self._settle_inventory(plane.store)
            server = await stack.enter_async_context(plane.served())
            host, _ = check_listen(self._settings)
            url = local_url(server, host)
            prepare = machine_driver(self._settings.machines).prepare
            if prepare is not None:
                await prepare(self._settings, self._tell, self._first_vm)
            relaying_here = relaying(self._settings, plane.peer_tickets, channels_in(self._agents))
            relay = await stack.enter_async_context(relaying_here)
            await self._agents_in(stack, plane, relay.address)
            # with a terminal, SIGHUP means that the terminal was closed
            if sys.stdin is None or not sys.stdin.isatty():

                def reload() -> None:
                    reload_certificates([server, relay], self._say)
                    for running in self._agents.values():
                        running.agent.session.announce(relay.address)

                stack.enter_context(on_hangup(reload))
            own = [running.machines for running in self._agents.values()]
            await stack.enter_async_context(watched_host(self._settings, own, self._clock, self._tell))
            worker = await stack.enter_async_context(plane.lab_queue_service(self._tell))
            address = server.url.partition("://")[2]
            parts: list[asyncio.Task[Any]] = [
                asyncio.create_task(self._stand(store, plane, address, guard), name="standing"),
                asyncio.create_task(plane.failed(), name="plane: failure"),
                *(running.task for running in self._agents.values()),
                *(() if worker is None else (worker,)),
            ]
            self._serving.set()
            try:
                return await self._serve(plane, url, parts)
            finally:
                # The agents' own contexts end their tasks. The candidacy ends by itself, after its work.
                self._asked.set()
                parts[1].cancel()
                await asyncio.gather(*parts[:2], return_exceptions=True)

    async def _settle_network(self) -> GuestNetwork:
        """Choose the network of guests; labs from Redis need guests with an address of their own."""
        found = await asyncio.to_thread(lab_network, self._settings)
        self._settings = self._settings.with_driver_options(**found.options)
        return found

    async def _settle_lab_entry(self, store: Store, network: GuestNetwork) -> None:
        """Disable labs from Redis if no node has such guests."""
        if self._settings.redis is None:
            return
        found = await lab_entry_in(store, own=dict.fromkeys(self._nodes(), network))
        if found.refusal or found.warning:
            self._tell(found.refusal or found.warning)
        if found.refusal:
            self._settings = msgspec.structs.replace(self._settings, redis=None)

    async def _settle_inventory(self, store: Store) -> None:
        """Create a rack for the nodes of this process if the store has no inventory."""
        try:
            await make_own_rack(store, self._settings.rack or RACK, [str(n + 1) for n in range(self._settings.nodes)])
        except HostlerError as error:
            self._tell(f"inventory: {error}; continuing without an inventory")

    def _nodes(self) -> dict[str, str]:
        """Return the names of this process's nodes, by folded name."""
        rack = self._settings.rack or RACK
        names = (f"{rack}-{number}" for number in range(1, self._settings.nodes + 1))
        return {fold(name): name for name in names}

    def _plane(self, store: Store, guard: StoreGuard) -> ControlPlaneProcess:
        def counters() -> dict[str, float]:
            states = [running.agent.state() for running in self._agents.values()]
            names = ("steps", "reports", "retained", "commands", "working", "failing")
            return {f"agent_{name}": float(sum(getattr(state, name) for state in states)) for name in names}

        process = ProcessState(
            leads=lambda: self._leading.leads,
            counters=counters,
            local=self._agents,
            machines_of=channels_in(self._agents),
        )
        return ControlPlaneProcess(store, self._settings, clock=self._clock, process=process, guard=guard)

    async def _agents_in(self, stack: AsyncExitStack, plane: ControlPlaneProcess, relay: str) -> None:
        """Start the agents of all nodes; on exit all stop together. `relay`: where other processes reach them."""
        rack = self._settings.rack or RACK
        self._folder.keep_kind(self._settings.machines)
        for node, name in self._nodes().items():
            folder = self._folder.machines(node)
            folder.mkdir(parents=True, exist_ok=True)
            plan = plan_of(self._settings, name, rack, relay)
            self._agents[node] = await stack.enter_async_context(
                running_agent(
                    *(plane.store, self._settings, plan, folder, self._clock),
                    parts=AgentParts(
                        peers=plane.services.peers,
                        artifacts=plane.services.artifacts,
                        nodes=self._settings.nodes,
                        router=plane.calling.router,
                        accept_cluster=self._accept,
                    ),
                )
            )
        stack.push_async_callback(self._part)
        self._tell(counted(self._settings.nodes, f"{self._settings.machines} node"))

    async def _part(self) -> None:
        """Deregister all agents at the same time; one after the other would take too long with many."""
        for running in self._agents.values():
            running.task.cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(3.0):
                leaving = [running.agent.aclose(leaving=True) for running in self._agents.values()]
                await asyncio.gather(*leaving, return_exceptions=True)
        await asyncio.gather(*(running.stop_slices() for running in self._agents.values()), return_exceptions=True)

    async def _stand(self, store: Store, plane: ControlPlaneProcess, address: str, guard: StoreGuard) -> None:
        """Run for leadership, and again after each loss of it."""
        settings = self._settings
        plan = CampaignConfig(
            address=address, ttl=settings.leadership_ttl, replicas=settings.replicas, url=plane.api_url
        )
        watchdog = Watchdog(self._clock)
        storage = ttl_storage_on(store)
        dead = self._folder.read(self._folder.replica_file)
        if dead is not None:  # it is certainly dead: this process holds the folder's lock
            with suppress(HostlerError):
                await bury(storage, dead, plan.replicas)
        while not self._asked.is_set():
            holder = plane.graph.holder = new_id()
            problem: Exception | None
            try:
                self._folder.write(self._folder.replica_file, holder)
            except OSError as error:  # a full disk may have space again later
                why = f"{self._folder.replica_file}: cannot be written: {error.strerror}; check the disk"
                problem = Unavailable(why)
            else:
                problem = await stand(
                    storage,
                    plan,
                    (watchdog, *plane.controllers()),
                    leading=self._leading,
                    asked=self._asked,
                    tell=self._say,
                    candidate=Candidate(holder, guard.least_fence, watchdog),
                )
                watchdog.stopped()
            if problem is not None and not self._asked.is_set():
                self._tell(f"leadership lost: {problem}; standing for leadership again")
                with suppress(TimeoutError):
                    async with asyncio.timeout(STAND_AGAIN):
                        await self._asked.wait()

    async def _serve(self, plane: ControlPlaneProcess, url: str, parts: list[asyncio.Task[Any]]) -> int:
        """Report readiness, then wait until a signal arrives or a part ends."""
        ended = asyncio.create_task(self._asked.wait(), name="up: asked to end")
        telling = asyncio.create_task(self._until_ready(plane, url), name="up: becoming ready")
        try:
            await asyncio.wait((ended, telling, *parts), return_when=asyncio.FIRST_COMPLETED)
            if telling.done() and not ended.done():
                telling.result()
                await asyncio.wait((ended, *parts), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (ended, telling):
                task.cancel()
            await asyncio.gather(ended, telling, return_exceptions=True)
            self._folder.server_file.unlink(missing_ok=True)
        if self._asked.is_set():
            self._tell("stopping; machines keep running")
            return 0
        for part in parts:
            if part.done():
                self._tell(f"problem: {part.get_name()} ended: {_why(part)}; stopping")
        return 1

    async def _until_ready(self, plane: ControlPlaneProcess, url: str) -> None:
        token = await first_admin(plane.users, self._folder)
        self._folder.write(self._folder.server_file, url)
        tell_at, told = self._clock.now() + SILENT_FOR, ""
        while (waits := await self._waits_for(plane)) is not None:
            if self._clock.now() >= tell_at and waits != told:
                self._tell(f"not ready yet: {waits}")
                told = waits
            await self._clock.sleep(LOOK_EVERY)
        await self._ready(Ready(url, self._folder, token))

    async def _waits_for(self, plane: ControlPlaneProcess) -> str | None:
        """Return what is missing for readiness; None: nothing. Another process may lead if the store is shared."""
        for node, running in self._agents.items():
            state = running.agent.state()
            if not (state.registered and _serves(plane, node)):
                return f"node {node} is not on duty{f': {state.waits_for}' if state.waits_for else ''}"
        if not self._leading.leads:
            record = await LEADER.get(plane.store, n=1)
            if record is None or not record.value.fence:
                return "no leader"
            if record.value.holder == self._folder.read(self._folder.replica_file):
                return "the controllers are starting"
        return None

    def _say(self, text: str) -> None:
        """Write a line to the log that users do not need to see."""
        self._log.info(text)


def _is_in_service(lifecycle: Lifecycle) -> bool:
    return lifecycle in IN_SERVICE or not lifecycle.is_known


def _serves(plane: ControlPlaneProcess, node: str) -> bool:
    member = plane.view.members.get(node=node)
    return member is not None and _is_in_service(member.value.lifecycle) and plane.view.alive.get(node=node) is not None


def _why(task: asyncio.Task[Any]) -> str:
    if task.cancelled():
        return "cancelled"
    error = task.exception()
    if error is None:
        result = task.result()
        return str(result) if isinstance(result, Exception) else "without an error"
    return str(error) if isinstance(error, HostlerError) else f"unexpected {type(error).__name__}: {error}"
