"""The whole control plane as processes in virtual time: replicas, agents, and machines that outlive them.

The composition root (`hostler.engine.control_plane`) builds both: a replica is that of `hostler replica`, and an agent
that of `hostler agent`, on simulated machines. Each has a wire to one store, and can be killed at any point of what it
does: before a request is sent, after it was done and before it is answered, and between any two steps inside a machine
driver.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Self, TypeVar

from hostler.drivers.machines.simulated import MachineFaults, MemoryHost, SimulatedMachines
from hostler.drivers.store.memory import MemoryStore
from hostler.drivers.ttl.store import StoreTtlStorage
from hostler.engine.agent.config import AgentConfig
from hostler.engine.control_plane import ControlPlane, ControlPlaneConfig, NodePorts, Ports, build_agent
from hostler.engine.replica import Replica, ReplicaConfig
from hostler.engine.request import HOSTLER, Request
from hostler.engine.runtime.env import Env
from hostler.errors import Conflict, Unavailable, Uncertain
from hostler.keys.families import ARRIVAL, COMMAND, HANDLE, LOCK, NAME, VM
from hostler.kit.virtual_loop import ProcessLoop, VirtualClock, outside, run_virtual
from hostler.model.vm import MachineState, Power
from hostler.sim.faulty_link import FaultyLink, Weather
from hostler.sim.world.replica import EveryArtifact

from .evidence import name_run

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from hostler.engine.elections import Leadership
    from hostler.engine.service import Service
    from hostler.engine.vms import VmService
    from hostler.model.vm import VirtualMachine
    from hostler.ports.machines import Channel, ChannelKind

T = TypeVar("T")

LEADERSHIP_TTL = 4.0
NODE_TTL = 4.0
FENCING_TIME = 8.0
LOCK_TTL = 5.0
RESTART = 0.3
"""Seconds after which a supervisor starts a killed process again."""
CUT = 10.0
"""Seconds for which a wire is cut."""
HALF_CUT = 3.0
"""Seconds for which a process is told nothing; no lease lapses meanwhile."""
PATIENCE = 240.0
"""Virtual seconds in which everything must have settled."""
ORG, PROJECT = "acme", "shop"
CONFIG = ControlPlaneConfig(lock_ttl=LOCK_TTL)
PORTS = Ports(artifacts=EveryArtifact(), threads=False)


class Wrong(AssertionError):
    """Something that must never be."""


class NoKiller:
    """Losing the leadership stops the controllers; the process goes on."""

    def guard(self, leadership: Leadership) -> None:
        pass


@dataclass
class Crash:
    """Kill when the `at`-th point is reached by a process whose role is watched, counted from when it was armed."""

    watched: str
    """`agent`, `replica`, or empty: any."""
    victims: tuple[str, ...]
    """Roles that are killed then."""
    at: int
    armed: bool = False
    passed: int = 0
    where: str = ""
    """The point at which it happened; empty: not yet."""


@dataclass
class Loss:
    """Let the `at`-th request of a process whose role is watched meet a fault, counted from when it was armed."""

    watched: str
    kind: str
    """`lost`: done, and the answer never comes. `cut`: the same, and nothing else comes or goes for a while. `late`:
    done when nobody waits for it any more, and for a while the process can only ask, and is told nothing. `never`: not
    done, and nobody says so. `unavailable`."""
    at: int
    armed: bool = False
    passed: int = 0
    where: str = ""


class Host:
    """One operating-system process."""

    def __init__(self, plane: Plane, name: str, role: str) -> None:
        self.plane, self.name, self.role = plane, name, role
        plane.lives += 1
        self.process = f"{name}#{plane.lives}"
        self.rng = random.Random(f"{plane.seed} {self.process}")
        self.wire = FaultyLink(plane.store, self.rng, plane.weather)
        self.wire.step = self.step
        self.wire.fate = lambda writes: plane.fate(self, writes)
        self.dead = False
        self.task = plane.loop.launch(self.process, self._main())

    async def _main(self) -> None:
        try:
            await self.main()
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - the plane raises it
            if not self.dead:
                self.plane.failure = self.plane.failure or error

    async def main(self) -> None:
        raise NotImplementedError

    async def step(self, point: str) -> None:
        """A point at which this process may be killed."""
        if self.dead:
            raise asyncio.CancelledError
        if self.plane.passes(self, point):
            await asyncio.sleep(1e9)  # until its cancellation arrives

    def kill(self) -> None:
        """SIGKILL."""
        self.dead = self.wire.dead = True
        self.plane.loop.kill(self.process)

    def new_id(self) -> str:
        return f"{self.rng.getrandbits(64):016x}"

    def env(self) -> Env:
        return Env(self.plane.clock, self.rng, self.new_id, self.new_id)


class ReplicaHost(Host):
    """View, services and a replica that leads when it can; launched anew when it lost its leadership."""

    def __init__(self, plane: Plane, name: str) -> None:
        self.vms: VmService | None = None
        super().__init__(plane, name, "replica")

    async def main(self) -> None:
        graph = ControlPlane(self.wire, self.env(), PORTS, self.plane.config)
        watching = asyncio.create_task(graph.view.run(), name=f"{self.name}: view")
        try:
            await graph.view.ready()
            graph.holder = self.new_id()
            self.vms = graph.vms
            while True:
                await self._lead(graph)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def _lead(self, graph: ControlPlane) -> None:
        replica = Replica(
            ReplicaConfig(ip=self.name),
            StoreTtlStorage(self.wire),
            (),
            controllers=self.plane.controllers(self, graph),
            clock=self.plane.clock,
            killer=NoKiller(),
            holder=graph.holder,
            rng=self.rng,
        )
        try:
            problem = await replica.launch(LEADERSHIP_TTL, None)
            await problem.wait()
        finally:
            if not self.dead:
                await replica.shutdown()

    async def ask(self, do: Callable[[VmService], Awaitable[T]]) -> T:
        """What a door does. Unavailable: the process died meanwhile, or is not ready."""
        if self.vms is None or self.dead:
            raise Unavailable("replica: not there")
        asked = self.plane.loop.launch(self.process, _result(do, self.vms))
        await asyncio.wait((asked,))
        if asked.cancelled():
            raise Unavailable("replica: the connection was lost")
        result: T = asked.result()  # type: ignore[assignment]
        return result


async def _result(do: Callable[[VmService], Awaitable[Any]], vms: VmService) -> Any:
    return await do(vms)


class AgentHost(Host):
    """One node."""

    def __init__(self, plane: Plane, node: str) -> None:
        self.node = node
        self.machines: SimulatedMachines | None = None
        super().__init__(plane, node, "agent")

    async def main(self) -> None:
        plane = self.plane
        machines = SimulatedMachines(plane.places[self.node], clock=plane.clock, rng=self.rng, faults=plane.faults)
        machines.step = self.step
        plan = AgentConfig(node=self.node, node_ttl=NODE_TTL, fencing_time=FENCING_TIME, stop_grace=2.0, rack="r1")
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(machines)
            self.machines = machines
            peers = PlanePeers(plane) if plane.hands_over else None
            agent = build_agent(self.wire, self.env(), NodePorts(machines=machines, peers=peers), plan)
            await agent.run()

    def kill(self) -> None:
        super().kill()
        self.plane.places[self.node].disown()


class PlanePeers:
    """Agents reach each other, whatever became of the store."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane

    def channel(self, node: str, vm: str, door: ChannelKind) -> PlaneChannel:
        return PlaneChannel(self._plane, node, vm, door)


class PlaneChannel:
    """A connection to a door of a machine of another process: what happens there happens in that process."""

    def __init__(self, plane: Plane, node: str, vm: str, door: ChannelKind) -> None:
        self._plane, self._node, self._vm, self._door = plane, node, vm, door
        self._host: AgentHost | None = None
        self._inner: Channel | None = None

    async def __aenter__(self) -> Self:
        host = self._plane.hosts.get(self._node)
        if not isinstance(host, AgentHost) or host.dead or host.machines is None:
            raise Unavailable(f"{self._node}: nobody listens")
        self._host, self._inner = host, host.machines.channel(self._vm, self._door)
        await self._there(self._inner.__aenter__())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._inner is not None and self._host is not None and not self._host.dead:
            await self._there(self._inner.__aexit__(None, None, None))

    async def read(self) -> bytes:
        return b"" if self._inner is None else await self._there(self._inner.read())

    async def write(self, data: bytes) -> None:
        if self._inner is not None:
            await self._there(self._inner.write(data))

    async def _there(self, work: Coroutine[Any, Any, T]) -> T:
        """In the other process. Unavailable: it died meanwhile."""
        if self._host is None or self._host.dead:
            work.close()
            raise Unavailable(f"{self._node}: the connection was lost")
        done: asyncio.Task[T] = self._plane.loop.launch(self._host.process, work)  # type: ignore[arg-type, assignment]
        try:
            await asyncio.wait((done,))
        finally:
            done.cancel()
        if done.cancelled():
            raise Unavailable(f"{self._node}: the connection was lost")
        return done.result()


@dataclass
class Plane:
    """A store, and the processes around it."""

    seed: int = 0
    nodes: int = 2
    replicas: int = 1
    hands_over: bool = True
    """Nodes hand machines to each other; otherwise a drain destroys them and has them made elsewhere."""
    crash: Crash | None = None
    loss: Loss | None = None
    config: ControlPlaneConfig = CONFIG
    loop: ProcessLoop = field(init=False)
    store: MemoryStore = field(init=False)
    places: dict[str, MemoryHost] = field(init=False)
    hosts: dict[str, Host] = field(default_factory=dict)
    weather: Weather = field(default_factory=Weather)
    failure: Exception | None = None
    lives: int = 0
    supervised: bool = True

    def __post_init__(self) -> None:
        self.loop = ProcessLoop(self.seed)
        self.clock = VirtualClock()
        self.rng = random.Random(self.seed)
        self.faults = MachineFaults()
        self.places = {f"r1-{number}": MemoryHost(f"place-{number}") for number in range(1, self.nodes + 1)}
        self._restarts: set[asyncio.Task[None]] = set()
        self._keys = 0

    # What differs between tests

    def controllers(self, host: Host, graph: ControlPlane) -> Sequence[Service]:
        """Without the brake: in these few nodes every failure is one of too many."""
        machines, nodes = graph.machine_controller(None), graph.node_controller(None, None)
        return (machines, nodes, graph.janitor(), *self.more_controllers(host, graph))

    def more_controllers(self, host: Host, graph: ControlPlane) -> Sequence[Service]:  # noqa: ARG002 - for who overrides it
        return ()

    # Running

    def run(self, scenario: Callable[[Plane], Coroutine[Any, Any, T]]) -> T:
        """The scenario in this plane, from nothing to its end."""

        async def main() -> T:
            async with MemoryStore(clock=self.clock, rng=self.rng) as store:
                self.store = store
                await store.grant(1e8)  # the storage's own task must belong to nobody
                for number in range(1, self.replicas + 1):
                    self.spawn(f"replica-{number}")
                for node in self.places:
                    self.spawn(node)
                try:
                    return await scenario(self)
                finally:
                    self.supervised = False
                    await self._end()

        try:
            return run_virtual(main, loop=self.loop)
        except BaseException as error:
            name_run(error, f"{type(self).__name__} with seed {self.seed}", getattr(self, "store", None))
            raise

    def spawn(self, name: str) -> None:
        """Start the process of that name."""
        self.hosts[name] = AgentHost(self, name) if name in self.places else ReplicaHost(self, name)

    def kill(self, name: str) -> None:
        """SIGKILL, and a supervisor that starts it again."""
        host = self.hosts[name]
        if host.dead:
            return
        host.kill()
        if self.supervised:
            again = self.loop.create_task(self._again(name), context=outside())
            self._restarts.add(again)
            again.add_done_callback(self._restarts.discard)

    async def _again(self, name: str) -> None:
        await asyncio.sleep(RESTART)
        if self.supervised and self.hosts[name].dead:
            self.spawn(name)

    async def _end(self) -> None:
        for host in self.hosts.values():
            host.kill()
        for task in self._restarts:
            task.cancel()
        tasks = [host.task for host in self.hosts.values()]
        await asyncio.wait([*tasks, *self._restarts], timeout=60)
        await asyncio.sleep(2 * self.weather.slowest + 1)  # what was on its way arrives

    def passes(self, host: Host, point: str) -> bool:
        """Count a point; True: it is the one, and whoever reached it is dead now."""
        crash = self.crash
        if crash is None or not crash.armed or crash.where or (crash.watched and host.role != crash.watched):
            return False
        crash.passed += 1
        if crash.passed < crash.at:
            return False
        crash.where = f"{host.name}: {point}"
        for name, other in list(self.hosts.items()):
            if other.role in crash.victims and not (other.role == "agent" == host.role and other is not host):
                self.kill(name)
        return host.dead

    def fate(self, host: Host, writes: bool) -> str | None:
        """What becomes of a request; None: what the weather draws."""
        loss = self.loss
        if loss is None or not loss.armed or loss.where or host.role != loss.watched:
            return None
        if not writes and loss.kind in ("lost", "cut", "late"):
            return None  # a read that has no answer is a read that failed
        loss.passed += 1
        if loss.passed < loss.at:
            return None
        loss.where = host.name
        if loss.kind == "late":
            self.loop.call_soon(host.wire.half_cut)
            self.loop.call_later(HALF_CUT, host.wire.half_heal, context=outside())
        if loss.kind != "cut":
            return loss.kind
        self.loop.call_soon(host.wire.cut)  # when the request is on its way
        self.loop.call_later(CUT, host.wire.heal, context=outside())
        return "lost"

    # What a user does

    async def wish(self, do: Callable[[VmService, Request], Awaitable[T]]) -> T:
        """Ask until it is answered; each time with the same Idempotency-Key."""
        self._keys += 1
        request = Request(HOSTLER, key=f"key-{self._keys}", fingerprint=f"print-{self._keys}")
        end = self.clock.now() + PATIENCE
        while True:
            replicas = [host for host in self.hosts.values() if isinstance(host, ReplicaHost)]
            host = self.rng.choice(replicas)
            try:
                return await host.ask(lambda vms: do(vms, request))
            except (Conflict, Unavailable, Uncertain):  # a conflict: who died while it held the lock still holds it
                if self.clock.now() > end:
                    raise
                await asyncio.sleep(0.25)

    async def settled(self) -> None:
        """Until every wish is what there is. Wrong: not in time."""
        end = self.clock.now() + PATIENCE
        while (what := await self.unsettled()) is not None:
            if self.failure is not None:
                raise self.failure
            if self.clock.now() > end:
                raise Wrong(f"not settled {PATIENCE:g} s later: {what}")
            await asyncio.sleep(0.25)

    async def unsettled(self) -> str | None:
        """What is not yet as it was wished for."""
        wishes = {entry.value.id: entry.value for entry in (await VM.list(self.store)).entries}
        handles = {entry.value.id: entry.value for entry in (await HANDLE.list(self.store)).entries}
        there: dict[str, list[tuple[str, Any]]] = {}
        for node, place in self.places.items():
            place.expire(self.clock.now())
            for vm, row in place.contents.rows.items():
                there.setdefault(vm, []).append((node, row))
        for vm in {*there, *handles} - set(wishes):
            return f"{vm}: there though nobody wishes for it: {there.get(vm)}, {handles.get(vm)}"
        for id_, vm in wishes.items():
            if vm.deleting:
                return f"{id_}: still being deleted: {handles.get(id_)}"
            if (what := _unlike(vm, handles.get(id_), there.get(id_, []))) is not None:
                return f"{id_}: {what}"
        return None

    async def check(self, *, machines: int) -> None:
        """The end of every story: as many machines as were wished for, each once, and nothing left over."""
        await self.settled()
        await asyncio.sleep(2 * LOCK_TTL)  # a lock whose holder died is there until its lease ends
        rows = [row for place in self.places.values() for row in place.contents.rows.values()]
        if len(rows) != machines:
            raise Wrong(f"{len(rows)} machines, {machines} were wished for: {rows}")
        self.check_runs()
        for key, most in ((NAME, machines), (COMMAND, machines), (HANDLE, machines), (LOCK, 0), (ARRIVAL, 0)):
            found = (await self.store.range(key.prefix())).items
            if key is COMMAND:
                found = tuple(kv for kv in found if COMMAND.match(kv.key))
            if len(found) != most:
                raise Wrong(f"{len(found)} of {key.template}: {found}")
        if self.failure is not None:
            raise self.failure

    def check_runs(self) -> None:
        """No machine ever ran in two places at one instant, as the places themselves wrote it down."""
        now = self.clock.now()
        vms = {vm for place in self.places.values() for vm in (*place.contents.rows, *place.contents.ended_intervals())}
        for vm in vms:
            runs = sorted(
                (start, end if end is not None else now, node)
                for node, place in self.places.items()
                for start, end in place.intervals(vm, now)
            )
            for (_, end, first), (start, _, second) in pairwise(runs):
                if start < end:
                    raise Wrong(f"{vm} ran on {first} until {end:g} and on {second} from {start:g}")


def _unlike(vm: VirtualMachine, handle: Any, there: list[tuple[str, Any]]) -> str | None:
    if handle is None or len(there) != 1:
        return f"handle {handle}, machines {there}"
    node, row = there[0]
    state = MachineState.RUNNING if vm.power is Power.ON else MachineState.STOPPED
    if handle.node != node or handle.state is not state or handle.generation != vm.generation or row.state is not state:
        return f"wished {vm.power} (generation {vm.generation}); handle {handle}, machine {row}"
    later = row.spec != vm.spec and handle.at_next_boot and state is MachineState.RUNNING
    lost = {name for name, seen in handle.snapshots.items() if seen.detail.startswith("lost with")}
    wanted = set(vm.snapshots) - lost
    if (row.spec != vm.spec and not later) or row.resets != vm.resets or set(row.snapshots) != wanted:
        return f"wished {vm}; machine {row}"
    if vm.restore is not None and row.restored != vm.restore.number:
        return f"wished {vm.restore}; machine {row}"
    if vm.move is not None and handle.moved < vm.move.number:
        return f"wished {vm.move}; handle {handle}"
    return None
