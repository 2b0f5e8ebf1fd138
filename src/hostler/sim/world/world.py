"""A world: a store, replicas and blades around it, clients, and faults."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Self, TypeVar

from hostler.drivers.inbox.memory import MemoryRedis
from hostler.drivers.store.memory import MemoryStore
from hostler.engine.request import HOSTLER, Request
from hostler.errors import Conflict, NotFound, Unavailable, Uncertain
from hostler.kit.virtual_loop import ProcessLoop, VirtualClock, outside, run_virtual
from hostler.model.name import fold
from hostler.ports.store import Put, pieces
from hostler.sim.hardware import Repair, Replace
from hostler.sim.world.blade import BladeHost
from hostler.sim.world.config import Factories, blade_plans
from hostler.sim.world.event_log import EventLog, Log
from hostler.sim.world.fast_blade import Exchange, LightBlade
from hostler.sim.world.hardware import Disks, Hardware, RackPower
from hostler.sim.world.host import chance
from hostler.sim.world.injection import Injection
from hostler.sim.world.recovery import Recovery
from hostler.sim.world.replica import ReplicaHost, Traffic

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
    from types import TracebackType

    from hostler.engine.inventory.inventory_file import Inventory
    from hostler.engine.request import Caller
    from hostler.ports.power import Power
    from hostler.sim.fault import Fault
    from hostler.sim.hardware import Change, Racks
    from hostler.sim.hardware import Event as HardwareEvent
    from hostler.sim.world.config import BladeConfig, WorldConfig
    from hostler.sim.world.event_log import LogEntry
    from hostler.sim.world.host import Host
    from hostler.sim.world.replica import ReplicaServices

T = TypeVar("T")
_QUIET = logging.NullHandler()

AT_ONCE = 100
"""Most records of one transaction at the start."""
RETRY = 0.25
"""Seconds between two attempts of a client."""
PATIENCE = 600.0
"""Seconds after which a client gives up."""


class World:
    """A simulated datacenter. Enter it inside a `ProcessLoop`. Times are virtual seconds.

    Public parts: `clock`, `store`, `racks`, `log`, `replicas` and `blades` by name, `lab_redis` (queues and records of
    labs), `faults` (the active faults, by id); `ask`, `inject`, `lift`.
    """

    def __init__(
        self,
        plan: WorldConfig,
        *,
        seed: int,
        loop: ProcessLoop,
        parts: Factories | None = None,
        tell: Callable[[LogEntry], None] = lambda _: None,
    ) -> None:
        self.plan, self.seed, self.loop, self.parts = plan, seed, loop, parts or Factories()
        self.clock = VirtualClock(loop)
        self.log = Log(loop.time, tell=tell)
        self.rng = chance(seed, "world")
        self.store = MemoryStore(clock=self.clock, rng=chance(seed, "store"))
        self.lab_redis = MemoryRedis(wall=self.clock.wall)
        self.disks = Disks()
        self.recovery = Recovery(self)
        self.hardware = Hardware(self)
        self.power: Power | None = RackPower(self.hardware) if plan.power else None
        self.request = Request(HOSTLER)
        self.traffic = Traffic()
        """The call rates of slices, as far as they are set."""
        self.replicas = {f"replica-{n}": ReplicaHost(self, f"replica-{n}") for n in range(1, plan.replicas + 1)}
        self.blades: dict[str, BladeHost] = {}
        self._in_rack: dict[str, dict[str, BladeHost]] = {}
        self._injection = Injection(self)
        for blade in (*blade_plans(plan.inventory), *plan.blades):
            self._add_blade(blade)
        self.chronicle = EventLog(self)
        self.failures: list[tuple[str, Exception]] = []
        """Processes that ended with an unexpected error."""
        self._clients = chance(seed, "clients")
        self._asked = 0
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._over = False

    # Start and end

    async def __aenter__(self) -> Self:
        logging.getLogger("hostler").addHandler(_QUIET)  # suppress the log output of all agents
        await self.store.__aenter__()
        await self.store.grant(1e8)  # the store's own task must not belong to a process
        inventory = {key: record.encode() for key, record in self.plan.inventory.records().items()}
        records = {**inventory, **self.plan.records}
        for some in pieces((Put(key, value) for key, value in records.items()), most=AT_ONCE):
            await self.store.txn([], some)
        if self.plan.agents == "light":
            self.chronicle.listen(Exchange(self).heard)
        self.spawn(self.chronicle.run(), "chronicle")
        for host in self.hosts.values():
            host.start()
        self.hardware.wind()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over = True
        self.hardware.stop()
        self._injection.stop()
        lives = [host.life for host in self.hosts.values() if host.life is not None]
        for life in lives:
            life.kill()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*(life.task for life in lives), *self._tasks, return_exceptions=True)
        await asyncio.sleep(0)  # requests in flight are dropped
        await self.store.aclose()

    # Time

    async def sleep(self, seconds: float) -> None:
        """Let the world run for so many seconds."""
        await self.clock.sleep(seconds)

    async def until(self, met: Callable[[], Awaitable[bool]], *, within: float, every: float = 0.5) -> bool:
        """Poll a condition; return whether it was met in time."""
        end = self.clock.now() + within
        while not await met():
            if self.clock.now() >= end:
                return False
            await self.clock.sleep(every)
        return True

    # Clients

    async def ask(
        self,
        do: Callable[[ReplicaServices], Awaitable[T]],
        *,
        caller: Caller = HOSTLER,
        within: float = PATIENCE,
    ) -> T:
        """Run a client's request on a live replica, with one Idempotency-Key until it is answered.

        `do` finds the key in `services.request`. A refusal is raised. Unavailable: no answer `within` that time.
        """
        self._asked += 1
        request = Request(caller, key=f"key-{self._asked}", fingerprint=f"print-{self._asked}")
        end = self.clock.now() + within
        while True:
            host = self._clients.choice(tuple(self.replicas.values()))
            try:
                return await host.ask(do, request)
            except (Conflict, Unavailable, Uncertain):  # Conflict: a replica died while it held the lock
                if self.clock.now() >= end:
                    raise
            await self.clock.sleep(RETRY)

    # Faults

    @property
    def faults(self) -> Mapping[str, Fault]:
        """The active faults, by id."""
        return self._injection.active

    def inject(self, fault: Fault) -> str:
        """Inject a fault now; return its id. It is lifted after its `for`.

        Invalid, NotFound: it names nothing that it could affect. A leader fault has no effect while there is no leader.
        """
        return self._injection.inject(fault)

    def lift(self, id_: str) -> None:
        """Undo a fault. NotFound: the fault is not active."""
        self._injection.lift(id_)

    # Hardware

    @property
    def racks(self) -> Racks:
        """The hardware and its state."""
        return self.hardware.racks

    def apply(self, event: HardwareEvent, *, cause: str = "") -> Sequence[Change]:
        """Act on hardware by hand. A repaired or replaced component is no longer kept broken by a fault.

        NotFound, Invalid: the event cannot be applied.
        """
        changes = self.hardware.apply(event, cause=cause)
        if isinstance(event, Repair | Replace):
            self._injection.note_repair(fold(event.on))
        return changes

    def revise(self, inventory: Inventory) -> None:
        """Replace the racks and blades: new blades boot, and removed ones are off.

        The control plane is not notified.
        """
        for blade in blade_plans(inventory):
            host = self.blades.get(blade.node)
            if host is None:
                host = self._add_blade(blade)
                host.runs = False  # until it has booted
            host.blade = blade
        self.hardware.revise(inventory)

    def _add_blade(self, plan: BladeConfig) -> BladeHost:
        host = LightBlade(self, plan) if self.plan.agents == "light" else BladeHost(self, plan)
        self.blades[plan.node] = host
        self._in_rack.setdefault(plan.rack, {})[plan.node] = host
        self._injection.meet(host)
        return host

    # Processes

    @property
    def hosts(self) -> dict[str, Host]:
        """Replicas and blades, by name."""
        return {**self.replicas, **self.blades}

    def host(self, name: str) -> Host:
        """Return a replica, or a blade by its node or component. NotFound: no such host."""
        folded = fold(name)
        found: Host | None = self.replicas.get(folded) or self.blades.get(folded.replace("/", "-", 1))
        if found is None:
            raise NotFound(f"{name}: no such replica or blade")
        return found

    def hosts_named(self, name: str) -> Sequence[Host]:
        """Return the replica or blade of that name, or the blades of that rack."""
        rack = self._in_rack.get(fold(name))
        if rack is not None:
            return tuple(rack.values())
        try:
            return (self.host(name),)
        except NotFound:
            return ()

    def leader(self) -> ReplicaHost | None:
        """Return the leader; if several replicas believe that they lead, the one with the newest fence."""
        return max((host for host in self.replicas.values() if host.leads), key=lambda host: host.fence, default=None)

    def kill(self, name: str, *, cause: str = "") -> None:
        """SIGKILL; a supervisor restarts the process."""
        host = self.host(name)
        if host.alive:
            host.kill(cause)
            self.start_later(host, cause)

    def start_later(self, host: Host, cause: str = "") -> None:
        """Restart a process that ended, as a supervisor does."""

        async def again() -> None:
            await asyncio.sleep(self.plan.restart)
            if not self._over:
                host.start(cause)

        self.spawn(again(), f"supervisor of {host.name}")

    def process_ended(self, host: Host, error: Exception | None) -> None:
        """Handle a process that ended by itself."""
        self.log.add("killed", host.component, f"process {host.lives} ended" + (f": {error}" if error else ""))
        if error is not None:
            self.failures.append((host.name, error))
        self.start_later(host)

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Start a task that belongs to no process; it runs until it is done or the world ends."""
        task = self.loop.create_task(work, context=outside())
        task.set_name(name)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        return task

    def reach(self, one: BladeHost, other: BladeHost) -> bool:
        """Return whether the network connects two blades."""
        return one.connected and other.connected and self._injection.together(one, other)

    def log_line(self, host: Host, text: str) -> None:
        """Log a line that a process writes to its own log."""
        self.log.add("told", host.component, text)


def run_world(
    plan: WorldConfig,
    story: Callable[[World], Awaitable[T]],
    *,
    seed: int = 0,
    parts: Factories | None = None,
    tell: Callable[[LogEntry], None] = lambda _: None,
) -> T:
    """Run a story in a new world, from start to end."""
    loop = ProcessLoop(seed)

    async def main() -> T:
        async with World(plan, seed=seed, loop=loop, parts=parts, tell=tell) as world:
            return await story(world)

    return run_virtual(main, loop=loop)
