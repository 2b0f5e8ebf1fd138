"""A process that serves or leads: its control plane with ports from the settings, its server, its tasks.

`up`, `replica` and `sim serve` use it. This module takes no decisions.
"""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import random
import secrets
import uuid
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import msgspec

from hostler.engine.access.rate_limits import BudgetConfig
from hostler.engine.control_plane import ControlPlane, ControlPlaneConfig, LeaderPorts, Ports, build_user_service
from hostler.engine.deployments.state_machine import Limits
from hostler.engine.invocation.endpoints import Why
from hostler.engine.invocation.metrics_collector import CallWatch
from hostler.engine.invocation.service import InvokeService
from hostler.engine.runtime.env import Env
from hostler.engine.tickets import PeerTickets
from hostler.engine.view import WRITE_EVERY
from hostler.entry.backend import opened_backend
from hostler.entry.inventory_reader import read_aside
from hostler.entry.labs import lab_keys, open_queue_service, own_catalogue
from hostler.entry.process import api_limits
from hostler.entry.relay import ProcessPeers
from hostler.entry.router_process import Calling
from hostler.entry.server.app import build
from hostler.entry.server.logs import logger
from hostler.entry.server.serve import ListenAddress, Server
from hostler.entry.server.services import ServerConfig, Services
from hostler.entry.shared_artifacts import SharedArtifacts, open_shared
from hostler.errors import Invalid
from hostler.kit.clock import SystemClock
from hostler.kit.host import WILDCARDS
from hostler.settings.value import split_address
from hostler.wiring import machine_driver, open_audit_files, open_hasher, open_power

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
    from types import TracebackType

    from hostler.engine.cluster_id import StoreGuard
    from hostler.engine.control_plane import MeteredService
    from hostler.engine.users import UserService
    from hostler.entry.data_dir import DataFolder
    from hostler.entry.labs import LabQueueService
    from hostler.kit.clock import Clock
    from hostler.ports.machines import NodeChannels
    from hostler.ports.power import Power
    from hostler.ports.slices import Artifacts
    from hostler.ports.store import Store
    from hostler.settings import Settings
    from hostler.sim.simulation import Simulation

OPEN_METRICS = {"token": False, "nearby": None, "everybody": True}


def new_id() -> str:
    """Return a unique id."""
    return uuid.uuid4().hex


def new_secret() -> str:
    """Return 256 random bits as text."""
    return secrets.token_urlsafe(32)


def peer_tickets(store: Store, clock: Clock, *, by: str) -> PeerTickets:
    """Return the tickets with which processes of the control plane authenticate to each other."""
    return PeerTickets(store, clock=clock, secret=new_secret, by=by)


def check_listen(settings: Settings) -> tuple[str, int]:
    """Return host and port of the API. Invalid: the address is not private and traffic to it is not encrypted."""
    return check_address(settings, settings.listen, "listen")


def check_address(settings: Settings, address: str, what: str) -> tuple[str, int]:
    """Return host and port to listen on, with the same check as for the API."""
    host, port = split_address(address)
    try:
        private = ipaddress.ip_address(host).is_loopback
    except ValueError:
        private = host == "localhost"
    if not (private or settings.insecure or settings.tls_cert is not None):
        raise Invalid(
            f"{what} {address}: tokens sent there could be read on the network; set tls_cert and tls_key,"
            " listen on 127.0.0.1, or force it with --insecure"
        )
    return host, port


def local_url(server: Server, host: str) -> str:
    """Return the server's URL for commands on this host."""
    return server.url.replace(host, WILDCARDS[host], 1) if host in WILDCARDS else server.url


def _metrics(settings: Settings) -> str:
    """Return who may read the metrics.

    Guests may connect from this host's own address, like processes that are trusted.
    """
    if settings.metrics != "auto":
        return settings.metrics
    from_here = machine_driver(settings.machines).guests_call_from_here
    return "token" if from_here is not None and from_here() else "nearby"


@dataclass(frozen=True, kw_only=True)
class ProcessState:
    """What a control plane asks the process that it is a part of."""

    leads: Callable[[], bool] = lambda: False
    """Whether the process leads now."""
    stopping: Callable[[], bool] = lambda: False
    """Whether the process was asked to end."""
    counters: Callable[[], Mapping[str, float]] = dict
    """Its further counters, for `/metrics`."""
    local: Collection[str] = ()
    """Its nodes, by folded name; the collection may grow later."""
    machines_of: Callable[[str], NodeChannels | None] = lambda _: None
    """Returns the channels of one of its nodes, by folded name."""
    address: str | None = None
    """Where others reach the API, `HOST:PORT`; None: the listen address."""


class ControlPlaneProcess:
    """The control plane of a process, and what the process runs around it; an async context manager that runs the view.

    The object graph is that of `engine/control_plane.py`. This class opens its ports from the settings.
    """

    def __init__(
        self,
        store: Store,
        settings: Settings,
        *,
        clock: Clock | None = None,
        process: ProcessState = ProcessState(),  # noqa: B008 - it is immutable
        sim: Simulation | None = None,
        artifacts: Artifacts | None = None,
        guard: StoreGuard | None = None,
    ) -> None:
        """Build the object graph.

        `artifacts`: the artifact repository; by default the one of the settings. `guard`: detects that the store was
        replaced.
        """
        self.settings = settings
        env = self._env = environment(clock or SystemClock())
        self.clock = env.clock
        # The controller never powers off simulated nodes.
        self._power = None if sim is not None else _power(settings)
        self._hasher = open_hasher()
        self.peer_tickets = peer_tickets(store, env.clock, by="replica")
        self._queue_service: LabQueueService | None = None
        self._lab_keys: tuple[str, ...] = ()
        self._controllers: Sequence[MeteredService] = ()
        self._process = process
        if artifacts is None:
            artifacts = open_shared(store, settings, self.peer_tickets, clock=env.clock, url=self.api_url)
        ports = Ports(
            artifacts=artifacts,
            hasher=self._hasher,
            audit_files=open_audit_files(settings.data) if sim is None else None,
            read_inventory=read_aside,
        )
        self.graph = ControlPlane(store, env, ports, config_of(settings))
        self.graph.holder = new_id()
        self.graph.view.calendar.own = process.local
        self.store, self.view, self.users = store, self.graph.view, self.graph.users
        self.calling = Calling(
            store,
            env,
            host=settings.slice_listen,
            local=process.local,
            why=Why(store, self.view, clock=env.clock),
            routers=self.view.routers,
        )
        self._watch = CallWatch(self.view, self.calling.questions, clock=env.clock, rng=env.rng)
        self.services = Services.of(
            self.graph,
            peers=ProcessPeers(store, self.peer_tickets, process.machines_of),
            own_artifacts=artifacts.own if isinstance(artifacts, SharedArtifacts) else None,
            peer_tickets=self.peer_tickets,
            stopping=process.stopping,
            leads=process.leads,
            counters=self._counters,
            calls=InvokeService(self.calling.router, self.view) if sim is None else None,
            watch=self._watch if sim is None else None,
            sim=sim,
        )
        self._viewing: asyncio.Task[None] | None = None
        self._copying: asyncio.Task[None] | None = None
        self._guard = guard
        self._guarding: asyncio.Task[None] | None = None
        self._server: Server | None = None

    async def __aenter__(self) -> Self:
        self._viewing = asyncio.create_task(self.view.run(), name="view")
        ready = asyncio.create_task(self.view.ready(), name="view: ready")
        try:
            await asyncio.wait((self._viewing, ready), return_when=asyncio.FIRST_COMPLETED)
            if self._viewing.done():
                self._viewing.result()
            if self.services.calls is not None:
                await self.calling.__aenter__()
            if isinstance(self.services.artifacts, SharedArtifacts):
                self._copying = asyncio.create_task(self.services.artifacts.keep_copies(), name="artifacts: copies")
            if self._guard is not None:
                self._guarding = asyncio.create_task(self._guard.run(), name="store guard")
            gc.collect()
            gc.freeze()  # the cache stays in memory; a full collection would scan all of it and block every request
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        finally:
            ready.cancel()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._watch.aclose()
        await self.calling.__aexit__(None, None, None)
        running = [task for task in (self._copying, self._viewing, self._guarding) if task is not None]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await self._hasher.aclose()

    async def failed(self) -> Exception:
        """Wait for a failure of the view or the store guard, and return it. Neither ends without a failure."""
        if self._viewing is None:
            raise RuntimeError("plane: used outside its context")
        running = [task for task in (self._guarding, self._viewing) if task is not None]
        done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        ended = next(task for task in running if task in done)
        error = None if ended.cancelled() else ended.exception()
        return error if isinstance(error, Exception) else RuntimeError("the view of the store ended without an error")

    def api_url(self) -> str:
        """Return the API's URL for other processes of the control plane, with its certificate pin; empty if unknown."""
        if self._server is None:
            return ""
        scheme, _, rest = self._server.pinned_url.partition("://")
        listens, mark, pin = rest.partition("#")
        host, _ = split_address(self.settings.listen)
        reached = self._process.address or ("" if host in WILDCARDS else listens)
        return f"{scheme}://{reached}{mark}{pin}" if reached else ""

    @asynccontextmanager
    async def served(self) -> AsyncIterator[Server]:
        """Serve the API at the address of the settings."""
        host, port = check_listen(self.settings)
        plan = ServerConfig(
            open_metrics=OPEN_METRICS[_metrics(self.settings)],
            lab_key=self.settings.lab_key,
            trusted_proxies=self.settings.trusted_proxies,
            budget=budget_of(self.settings),
        )
        app, wall = build(self.services, plan), self.clock.wall
        rate = None if self.services.sim is None else self.services.sim.rate
        async with Server(
            app,
            ListenAddress(host, port, self.settings.tls_cert, self.settings.tls_key),
            wall=wall,
            rate=rate,
            limits=api_limits(self.settings),
            trusted_proxies=self.settings.trusted_proxies,
        ) as server:
            self._server = server
            yield server

    @asynccontextmanager
    async def lab_queue_service(self, tell: Callable[[str], None]) -> AsyncIterator[asyncio.Task[None] | None]:
        """Process lab requests from Redis, if the settings name one. Yield the task of the worker that takes them.

        Controllers created while the context is open also write lab records to Redis.
        """
        self._lab_keys = await asyncio.to_thread(lab_keys, self.settings, tell)
        async with open_queue_service(
            self.store, self.settings, self._env, self.graph.lab_worker, tell
        ) as self._queue_service:
            yield None if self._queue_service is None else self._queue_service.task

    def controllers(self) -> Sequence[MeteredService]:
        """Return new controllers for one leadership; no state of an earlier leadership is reused."""
        ports = LeaderPorts(
            power=self._power,
            lab_records=None if self._queue_service is None else self._queue_service.board,
            lab_keys=self._lab_keys,
            routers=self.calling.questions,
        )
        self._controllers = self.graph.controllers(ports)
        return self._controllers

    def _counters(self) -> Mapping[str, float]:
        found: dict[str, float] = {**self._process.counters(), **self.calling.counters()}
        for controller in self._controllers:
            name = controller.name.replace("-", "_")
            found |= {f"{name}_{what}": number for what, number in controller.counters.items()}
        if self._queue_service is not None:
            found |= self._queue_service.counters()
        if self._server is not None and self._server.connections is not None:
            counts = msgspec.structs.asdict(self._server.connections.counts)
            found |= {f"connections_{what}": float(number) for what, number in counts.items()}
        return found


def environment(clock: Clock) -> Env:
    """Return the environment of a process of the control plane. It logs what controllers do."""
    return Env(
        clock,
        random.Random(),  # noqa: S311 - spreads retries; guards nothing
        new_id,
        new_secret,
        tell=lambda text: logger(part="controllers").info(text),
        warn=lambda text: logger(part="controllers").warning(text),
    )


def config_of(settings: Settings) -> ControlPlaneConfig:
    """Return the configuration of the control plane. NotFound, Invalid: `labs.toml` is missing or has an error."""
    return ControlPlaneConfig(
        write_every=WRITE_EVERY,
        lock_ttl=settings.lock_ttl,
        retention=settings.retention,
        traces_kept=settings.trace_days * 86400.0,
        most_traces=settings.trace_lines,
        audit_kept=settings.audit_days * 86400.0,
        most_audit=settings.audit_lines,
        brake_share=settings.brake_share,
        brake_window=settings.brake_window,
        fence_every=settings.fence_every,
        power_grace=settings.power_grace,
        burn_in=settings.burn_in,
        store_history=settings.store_history,
        store_revisions=settings.store_revisions,
        catalogue=own_catalogue(settings),
        catalogue_first=settings.labs is not None,
        lab_switch=settings.lab_switch,
        lab_limits={"provision": settings.lab_provision_limit, "decommission": settings.lab_decommission_limit},
        slice_limits=slice_limits(settings),
    )


def budget_of(settings: Settings) -> BudgetConfig:
    """Return how many requests accounts and addresses may make."""
    return BudgetConfig(**{name: float(getattr(settings, name)) for name in BudgetConfig.__struct_fields__})


def slice_limits(settings: Settings) -> Limits:
    """Return the time limits of the steps of a slice."""
    return Limits(
        loading=settings.slice_loading_limit,
        activating=settings.slice_activating_limit,
        deactivating=settings.slice_deactivating_limit,
        unloading=settings.slice_unloading_limit,
        min_ready=settings.slice_min_ready,
        rebalance_every=None if settings.slice_rebalance == "never" else Limits().rebalance_every,
    )


def _power(settings: Settings) -> Power | None:
    """Return the driver that powers nodes off. Invalid: the settings do not describe a usable one."""
    return open_power(
        settings.power_command,
        settings.power,
        timeout=settings.power_timeout,
        tell=lambda line: logger(part="controllers").info(line),
    )


async def first_admin(users: UserService, folder: DataFolder) -> str | None:
    """Create the first administrator if no account exists.

    Return the administrator's token, which the folder keeps too.

    The token is written before the account, so that a process killed at any point leaves a usable token.
    """
    kept: list[str] = []

    def keep(token: str) -> None:
        try:
            folder.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.write(folder.token_file, token)
        except OSError as error:
            raise Invalid(
                f"{folder.token_file}: cannot be written: {error.strerror}; it keeps the first"
                " administrator's token; give --data a writable folder"
            ) from None
        kept.append(token)

    token = await users.first_admin(keep)
    found = folder.read(folder.token_file)
    if token is not None and found != token:  # another process that starts in this folder wrote its own token
        folder.write(folder.token_file, token)
    elif token is None and kept and found == kept[0]:
        folder.token_file.unlink(missing_ok=True)
    return token


async def recovered_admin(settings: Settings, *, remove_password: bool = False) -> str:
    """Create a new token for the administrator directly in the store."""
    env, hasher = environment(SystemClock()), open_hasher()
    try:
        async with opened_backend(settings, env.clock, lambda _: None) as store:
            return await build_user_service(store, env, hasher).recover_admin(remove_password=remove_password)
    finally:
        await hasher.aclose()
