"""The agent of a node, as a process and as a part of `up`: it runs the machines that are assigned to the node."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import platform
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hostler.engine.agent.config import AgentConfig
from hostler.engine.agent.session import NOT_YET
from hostler.engine.control_plane import NodePorts, build_agent
from hostler.engine.labs.catalogue import MACHINES_LABEL
from hostler.engine.slices.logs import NodeDoors
from hostler.entry.backend import control_plane_of, opened_backend
from hostler.entry.cli.options import redacted
from hostler.entry.control_plane import check_address, environment, peer_tickets, slice_limits
from hostler.entry.data_dir import DataFolder
from hostler.entry.process import (
    asked_to_end,
    on_hangup,
    raise_open_files,
    reload_certificates,
    run_unless_asked,
    watched_host,
)
from hostler.entry.relay import ProcessPeers, relaying
from hostler.entry.router_process import Calling
from hostler.entry.shared_artifacts import open_shared
from hostler.errors import Invalid, NotFound
from hostler.kit.clock import SystemClock
from hostler.model.name import fold
from hostler.model.vm import hardware_labels
from hostler.ports.machine_driver import NodeSetup
from hostler.ports.slices import CpuTimes
from hostler.settings.driver import broken_drivers
from hostler.wiring import machine_driver, open_artifacts, open_machines, open_slices

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from hostler.engine.agent.agent import Agent
    from hostler.engine.invocation.router import Router
    from hostler.kit.clock import Clock
    from hostler.ports.machine_driver import MachineDriver
    from hostler.ports.machines import Machines, NodeChannels, Peers
    from hostler.ports.slices import Artifacts
    from hostler.ports.store import Store
    from hostler.settings import Settings

LEAVING = 5.0
"""Time limit in seconds for the agent to deregister when it stops."""


class Running:
    """A running agent, the channels to the machines of its node, and the function that stops its slices."""

    def __init__(
        self,
        agent: Agent,
        machines: Machines,
        channels: NodeChannels,
        task: asyncio.Task[None],
        stop_slices: Callable[[], Awaitable[None]],
    ) -> None:
        self.agent, self.machines, self.channels, self.task = agent, machines, channels, task
        self.stop_slices = stop_slices


def plan_of(settings: Settings, node: str, rack: str | None, address: str = "") -> AgentConfig:
    """Return the plan of a node from the settings.

    `address` is where other processes reach the machines of the node. The node is labelled with its machine driver, so
    that placement can select the driver, unless the settings already set that label.
    """
    driver = machine_driver(settings.machines)
    return AgentConfig(
        node=node,
        address=address,
        store=redacted(settings.store).partition("?")[0],
        labels={MACHINES_LABEL: settings.machines, **_arch(driver), **settings.labels},
        rack=rack,
        node_ttl=settings.node_ttl,
        fencing_time=settings.fencing_time,
        boots=settings.boots or driver.boots or max(1, os.cpu_count() or 1),
    )


def _arch(driver: MachineDriver) -> dict[str, str]:
    """Return the architecture label of the host, if its machines run on it."""
    return hardware_labels(platform.machine(), {}, ()) if driver.on_this_host else {}


def check_slice_listen(settings: Settings) -> None:
    """Check the address on which slices are called.

    Invalid: the address is not private, so calls and the tokens in them could be read on the network.
    """
    host = settings.slice_listen
    try:
        private = ipaddress.ip_address(host).is_loopback
    except ValueError:
        private = host == "localhost"
    if not (private or settings.insecure):
        raise Invalid(
            f"slice_listen {host}: calls are sent there unencrypted; use a trusted private network"
            " and confirm that with --insecure, or keep 127.0.0.1"
        )


def channels_in(agents: Mapping[str, Running]) -> Callable[[str], NodeChannels | None]:
    """Return a lookup of the channels of this process's own nodes, by folded node name."""

    def channels_of(node: str) -> NodeChannels | None:
        running = agents.get(node)
        return None if running is None else running.channels

    return channels_of


class AgentParts(NamedTuple):
    """What the agent of a node gets from its process."""

    peers: Peers | None = None
    """Reaches the machines of other nodes, for migration to them."""
    nodes: int = 1
    """The number of nodes that share this host."""
    siblings: Path | None = None
    """The folder that holds one subfolder for each of them."""
    router: Router | None = None
    """Handles calls made by the slices; without it slices cannot call others."""
    artifacts: Artifacts | None = None
    """The artifact repository; by default the one of the settings."""
    accept_cluster: bool = False
    """Whether to accept the control plane of this store even if the node belonged to another one before."""


@asynccontextmanager
async def running_agent(
    store: Store,
    settings: Settings,
    plan: AgentConfig,
    folder: Path,
    clock: Clock,
    *,
    parts: AgentParts,
) -> AsyncIterator[Running]:
    """Run the agent of a node until the context ends.

    On exit the agent deregisters the node, then stops its slices; machines keep running.
    """
    router = parts.router
    check_slice_listen(settings)
    opened = open_machines(
        NodeSetup(
            kind=settings.machines,
            folder=Path(folder),
            clock=clock,
            settings=settings,
            nodes=parts.nodes,
            siblings=parts.siblings,
        )
    )
    async with AsyncExitStack() as stack:
        machines = await stack.enter_async_context(opened)
        place = settings.data / "slices" / plan.node
        ask = None if router is None else router.ask
        slices = open_slices(
            settings,
            place,
            parts.artifacts or open_artifacts(settings, clock=clock),
            node=plan.node,
            clock=clock,
            ask=ask,
        )
        await stack.enter_async_context(slices)
        if router is not None and isinstance(slices, CpuTimes):
            stack.enter_context(router.measures.cpu.counting(slices.cpu_seconds))
        ports = NodePorts(
            machines=machines, peers=parts.peers, slices=slices, memory=control_plane_of(settings, folder)
        )
        agent = build_agent(
            *(store, environment(clock), ports, plan),
            limits=slice_limits(settings),
            accept_cluster=parts.accept_cluster,
        )
        task = asyncio.create_task(agent.run(), name=f"agent {plan.node}")
        try:
            yield Running(agent, machines, NodeDoors(machines, slices), task, slices.aclose)
        finally:
            task.cancel()
            await asyncio.wait((task,))
            with suppress(TimeoutError):  # on timeout the lease expires instead
                async with asyncio.timeout(LEAVING):
                    await agent.aclose(leaving=True)


async def run(settings: Settings, tell: Callable[[str], None], *, accept_cluster: bool = False) -> int:
    """Run the agent of the settings' node until a signal asks it to end. Return the exit code."""
    node = settings.node
    if node is None:
        raise Invalid("node: an agent needs the name of its node; give --node NAME, or set HOSTLER_NODE")
    check_address(settings, settings.agent_listen, "agent_listen")
    raise_open_files(tell)
    for problem in broken_drivers():
        tell(problem)
    folder = settings.data / "machines" / fold(node)
    _make(settings.data)
    # first: without the kind file, an existing folder is taken for simulated machines
    DataFolder(settings.data).keep_kind(settings.machines)
    _make(folder)
    with asked_to_end() as asked:
        started = asyncio.Event()
        code = await run_unless_asked(
            "agent", asked, started, _run(settings, node, folder, tell, asked, started, accept_cluster)
        )
    if code == 0:
        tell("stopped")
    return code


async def _run(  # noqa: PLR0917 - what to run, how to report, and when to end
    settings: Settings,
    node: str,
    folder: Path,
    tell: Callable[[str], None],
    asked: asyncio.Event,
    started: asyncio.Event,
    accept_cluster: bool,
) -> int:
    clock = SystemClock()
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(opened_backend(settings, clock, tell))
        agents: dict[str, Running] = {}
        tickets = peer_tickets(store, clock, by=f"node:{fold(node)}")
        relay = await stack.enter_async_context(relaying(settings, tickets, channels_in(agents)))
        plan = plan_of(settings, node, settings.rack, relay.address)

        def reload() -> None:
            reload_certificates([relay], tell)
            for running in agents.values():
                running.agent.session.announce(relay.address)

        stack.enter_context(on_hangup(reload))
        peers = ProcessPeers(store, tickets, channels_in(agents))
        calling = await stack.enter_async_context(_calling(store, settings, plan, clock))
        # Agents that share a data folder share a host, for example when one `up` is split into several processes.
        async with (
            running_agent(
                *(store, settings, plan, folder, clock),
                parts=AgentParts(
                    peers=peers,
                    nodes=settings.nodes,
                    siblings=folder.parent,
                    router=calling.router,
                    artifacts=open_shared(store, settings, tickets, clock=clock),
                    accept_cluster=accept_cluster,
                ),
            ) as running,
            watched_host(settings, [running.machines], clock, tell),
        ):
            agents[plan.node] = running
            started.set()
            tell(f"agent of {node}, machines in {folder}")
            telling = asyncio.create_task(_tell_state(running, clock, tell), name="agent: telling")
            ended = asyncio.create_task(asked.wait(), name="agent: asked to end")
            try:
                await asyncio.wait((ended, running.task), return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (telling, ended):
                    task.cancel()
                await asyncio.gather(telling, ended, return_exceptions=True)
            if running.task.done() and not running.task.cancelled():
                running.task.result()
                return 1
            tell("stopping; machines keep running")
    return 0


def _calling(store: Store, settings: Settings, plan: AgentConfig, clock: Clock) -> Calling:
    """Return the router through which slices of this node call other slices."""
    check_slice_listen(settings)
    return Calling(
        store,
        environment(clock),
        host=settings.slice_listen,
        node=plan.node,
        local=(plan.node,),
    )


async def _tell_state(running: Running, clock: Clock, tell: Callable[[str], None]) -> None:
    """Report each change between registered and not registered, except the initial state."""
    said = f"not registered: {NOT_YET}"
    while True:
        state = running.agent.state()
        now = "registered" if state.registered else f"not registered{f': {state.waits_for}' * bool(state.waits_for)}"
        if now != said:
            said = now
            tell(now)
        await clock.sleep(0.2)


def _make(folder: Path) -> None:
    try:
        os.umask(0o077)
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NotFound(f"{folder}: cannot create the folder: {error.strerror}; give --data a writable folder") from None
