"""A fork server (`harness.fork_server`) of replicas and agents that stop at crash points.

A message names what to run. On its socket the child reports what it prints and which points it passes, and takes orders
to arm and disarm; the server reports its process id and, as the last word, how it ended.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from harness import fork_server

from hostler import settings
from hostler.drivers.machines.simulated import FileHost, SimulatedMachines
from hostler.drivers.machines.simulated.descriptor import CAPACITY
from hostler.entry import agent, replica
from hostler.entry.backend import guarded_backend, opened_backend
from hostler.entry.server.logs import configure
from hostler.ports.machine_driver import NodeSetup

from .points import PointedStore, Points

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager
    from typing import TypeAlias

    from hostler.engine.cluster_id import StoreGuard
    from hostler.kit.clock import Clock
    from hostler.ports.machines import Machines
    from hostler.ports.store import Store
    from hostler.settings import Settings

    Backend: TypeAlias = Callable[[Settings, Clock, Callable[[str], None]], AbstractAsyncContextManager[Any]]

LATER = (
    "encodings.idna",
    "hostler.drivers.artifacts.metadata",
    "hostler.drivers.calling.connection_pool",
    "hostler.drivers.calling.listener",
    "hostler.drivers.hasher",
    "hostler.drivers.machines.qemu.driver",
    "hostler.drivers.slices.process.driver",
    "hostler.drivers.store.sqlite",
    "hostler.drivers.ttl.store",
    "hostler.engine.migration",
    "hostler.entry.control_plane",
    "uvicorn.lifespan.off",
    "uvicorn.lifespan.on",
    "uvicorn.protocols.http.httptools_impl",
)
"""What a process would import only once it runs."""
MESSAGE = 65_536


class Kind:
    """What the agents' machines are, and what dies with an agent."""

    def machines(self, node: NodeSetup, points: Points) -> Machines:
        """Of an agent. What else it says is not of simulated ones."""
        machines = SimulatedMachines(FileHost(node.folder), capacity=CAPACITY, clock=node.clock)
        machines.step = points.step
        return machines

    def starts(self, told: dict[str, Any]) -> None:
        """Somebody is forked with these settings."""

    def also(self, order: dict[str, Any]) -> dict[str, Any]:
        """More options of `Points.arm`, by what the test said."""
        del order
        return {}

    def wrap(self, store: Store, points: Points) -> Any:
        """The store as a process has it."""
        return PointedStore(store, points)

    async def run(self, role: str, settled: Settings, points: Points, backend: Backend) -> int:
        """The very function behind `hostler replica` or `hostler agent`, its store and machines wrapped."""

        def machines(node: NodeSetup) -> Machines:
            return self.machines(node, points)

        def tell(text: str) -> None:
            points.tell("says", text=text)

        @asynccontextmanager
        async def guarded(
            settled: Settings, clock: Clock, tell: Callable[[str], None], *, accept: bool = False
        ) -> AsyncIterator[tuple[Any, StoreGuard]]:
            async with guarded_backend(settled, clock, tell, accept=accept) as (store, guard):
                yield self.wrap(store, points), guard  # which looks by the clock, at no point

        vars(replica).update(guarded_backend=guarded)
        vars(agent).update(opened_backend=backend, open_machines=machines)
        return await (replica.run(settled, None, tell) if role == "replica" else agent.run(settled, tell))


def main(commands: socket.socket, kind: Kind | None = None) -> None:
    """Until the test lets go of the other end."""
    kind = kind or Kind()
    fork_server.serve(commands, LATER, partial(_child, kind), before_fork=kind.starts)


def _child(kind: Kind, told: dict[str, Any], fds: list[int]) -> None:
    """Does not return."""
    code = 70
    try:
        control = socket.socket(fileno=fds[0])
        log = os.open(told["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for stream in (1, 2):
            os.dup2(log, stream)
        os.chdir(told["data"])
        configure("info")
        flags = {name: value for name, value in told.items() if name not in ("role", "log")}
        settled = settings.load(flags, {}, toml="")
        code = asyncio.run(_run(told["role"], settled, Points(control), control, kind))
    except BaseException as error:  # noqa: BLE001 - the process ends here, and the log says why
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        os._exit(code)


async def _run(role: str, settled: Settings, points: Points, control: socket.socket, kind: Kind) -> int:
    asyncio.get_running_loop().add_reader(control, _told, control, points, kind)

    @asynccontextmanager
    async def backend(settled: Settings, clock: Clock, tell: Callable[[str], None]) -> AsyncIterator[Any]:
        async with opened_backend(settled, clock, tell) as store:
            yield kind.wrap(store, points)

    return await kind.run(role, settled, points, backend)


def _told(control: socket.socket, points: Points, kind: Kind) -> None:
    """What the test says: to arm, with the processes that die too, or to disarm."""
    data, fds, _, _ = socket.recv_fds(control, MESSAGE, 8)
    if not data:
        os._exit(71)  # the test is gone
    for line in data.splitlines():
        order = json.loads(line)
        if order["is"] == "arm":
            target = order["target"]
            points.arm((target[0], target[1]) if target else None, fds, **kind.also(order))
            points.tell("armed")
        else:
            points.disarm()
            points.tell("disarmed")


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
