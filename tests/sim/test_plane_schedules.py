"""Random schedules of a whole control plane.

Processes are killed and suspended, nodes cut off, powered off and confirmed to be off, answers lost and late, while
users go on wishing. In the end all that is wished for exists once; and at no instant did a machine run in two places,
as the machines themselves wrote it down.

A failure names its seed: `run_schedule(seed)` plays it again.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from dose import seeds
from harness.artefacts import keep

from hostler.engine.idempotent_writer import Writer
from hostler.engine.nodes import NodeService
from hostler.engine.request import HOSTLER, Request
from hostler.engine.view import View
from hostler.errors import Conflict, HostlerError, NotFound, Refused
from hostler.keys.families import ALIVE, HANDLE, VM
from hostler.kit.virtual_loop import outside
from hostler.model.inventory_api import Drain
from hostler.model.node import DrainMode
from hostler.model.vm import OnNodeLoss, Power, VmSpec
from hostler.model.vm_api import MoveRequest, VmCreate, VmUpdate

from .plane import FENCING_TIME, NODE_TTL, ORG, PROJECT, Plane, ReplicaHost

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

AT = (ORG, PROJECT)
SPAN = 90.0
LOSS = (OnNodeLoss.RECREATE, OnNodeLoss.FENCE, OnNodeLoss.WAIT)
MACHINE_FAULTS = ("unavailable", "never", "half", "lost", "broken", "deaf", "slow")
NAMES = ("a", "b", "c", "d")
ALONE = 5
"""In every fifth schedule no node hands its machines to another."""
VERBS = ("create", "create", "start", "start", "stop", "reset", "update", "delete", "move", "move")


class Schedule:
    """One plane, users, and a director who makes trouble; all from one seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.plane = Plane(seed=seed, nodes=3, replicas=2, hands_over=seed % ALONE != ALONE - 1)
        self.plane.faults.delays.update(create=0.5, start=1.0, stop=1.0, delete=0.3, receive=0.2, send=1.5)
        self.eagerness = self.rng.choice((1.0, 0.3, 0.1))
        """Wishes per second and user."""
        self.seen: Counter[str] = Counter()
        self.healing: set[asyncio.Task[None]] = set()

    def run(self) -> Counter[str]:
        self.plane.run(self._scenario)
        return self.seen

    async def _scenario(self, plane: Plane) -> None:
        users = [asyncio.create_task(self._user(random.Random(f"{self.seed} user {n}"))) for n in range(3)]
        try:
            await self._disturb(plane.clock.now() + SPAN)
        finally:
            for user in users:
                user.cancel()
            await asyncio.gather(*users, return_exceptions=True)
        await self._calm()
        for user in users:
            if not user.cancelled() and (error := user.exception()) is not None:
                raise error
        await asyncio.sleep(30.0)  # what users have asked for is done by then, or never
        await plane.settled()
        wishes = (await VM.list(plane.store, org=ORG, project=PROJECT)).entries
        wished = len(wishes)
        for entry in (await HANDLE.list(plane.store, org=ORG, project=PROJECT)).entries:
            self.seen["departures"] += entry.value.attempt
            self.seen["given up"] += bool(entry.value.unmoved)
            self.seen["moved"] += bool(entry.value.attempt and not entry.value.unmoved)
        self.seen["machines in the end"] += wished
        await plane.check(machines=wished)

    # Users

    async def _user(self, rng: random.Random) -> None:
        while True:
            await asyncio.sleep(rng.expovariate(self.eagerness))
            name, verb = (
                rng.choice(NAMES),
                rng.choice(VERBS),
            )
            replicas = [host for host in self.plane.hosts.values() if isinstance(host, ReplicaHost)]
            request = Request(HOSTLER, key=f"{rng.getrandbits(64)}", fingerprint=verb)
            for _ in range(3):
                host = rng.choice(replicas)
                try:
                    await host.ask(lambda vms, v=verb, n=name, r=request: self._asked(vms, r, v, n, rng))
                except (NotFound, Refused, Conflict):
                    break
                except HostlerError:
                    await asyncio.sleep(rng.random())
                    continue
                self.seen[verb] += 1
                break

    async def _asked(self, vms: object, request: Request, verb: str, name: str, rng: random.Random) -> None:
        do: Callable[..., Awaitable[object]] = getattr(vms, verb)
        if verb == "create":
            loss = rng.choice(LOSS)
            wanted = VmCreate(
                name=name, spec=VmSpec(cpus=1, memory_mib=64), power=rng.choice(tuple(Power)), on_node_loss=loss
            )
            await do(request, *AT, wanted)
        elif verb == "update":
            await do(request, *AT, name, VmUpdate(cpus=rng.randint(1, 4), on_node_loss=rng.choice(LOSS)))
        elif verb == "move":
            await do(request, *AT, name, MoveRequest(to=rng.choice(tuple(self.plane.places)), stop=rng.random() < 0.3))
        else:
            await do(request, *AT, name)

    # Trouble

    async def _disturb(self, until: float) -> None:
        actions = [
            self.kill,
            self.suspend,
            self.cut,
            self.power_off,
            self.turn_weather,
            self.drain,
            self.break_machines,
        ]
        chosen = self.rng.sample(actions, self.rng.randint(1, len(actions)))
        pace = self.rng.choice((1.0, 3.0, 8.0))
        await asyncio.sleep(3.0)
        while self.plane.clock.now() < until:
            await asyncio.sleep(self.rng.uniform(0.2, 2.0) * pace)
            action = self.rng.choice(chosen)
            self.seen[action.__name__] += 1
            action()
            self.plane.check_runs()
            if self.plane.failure is not None:
                raise self.plane.failure

    def _any(self, role: str = "") -> str:
        return self.rng.choice([name for name, host in self.plane.hosts.items() if not role or host.role == role])

    def kill(self) -> None:
        """SIGKILL of a process; the machines of a node run on."""
        self.plane.kill(self._any())

    def suspend(self) -> None:
        """SIGSTOP, often for longer than every ttl."""
        process = self.plane.hosts[self._any()].process
        self.plane.loop.suspend(process)
        self._after(self.rng.random() ** 2 * 3 * FENCING_TIME, lambda: self.plane.loop.wake(process))

    def cut(self) -> None:
        wire = self.plane.hosts[self._any()].wire
        wire.cut()
        self._after(self.rng.random() ** 2 * 4 * FENCING_TIME, wire.heal)

    def power_off(self) -> None:
        """A node loses its power; an operator confirms it, often; it comes back later."""
        node = self._any("agent")
        place = self.plane.places[node]
        self.plane.supervised, before = False, self.plane.supervised
        self.plane.kill(node)
        self.plane.supervised = before
        place.power_off(self.plane.clock.now())
        if self.rng.random() < 0.7:
            self._after(self.rng.uniform(0.0, 3 * NODE_TTL), lambda: self._go(self._confirm(node)))
        self._after(self.rng.uniform(0.5, 4 * FENCING_TIME), lambda: self._back(node))

    def _back(self, node: str) -> None:
        if self.plane.hosts[node].dead:
            self.plane.spawn(node)

    async def _confirm(self, node: str) -> None:
        """The operator has looked: the node is off, as it is. The service refuses while its lease lives."""
        for _ in range(20):
            host = self.plane.hosts[node]
            if not host.dead:
                return
            if await ALIVE.get(self.plane.store, node=node) is None:
                with_view = await self._desk()
                try:
                    if self.plane.hosts[node].dead:
                        await with_view.confirm_off(Request(HOSTLER), node)
                        self.seen["confirmed off"] += 1
                except HostlerError:
                    pass
                return
            await asyncio.sleep(1.0)

    async def _desk(self) -> NodeService:
        """A service of the operator's own, straight on the store."""
        plane = self.plane
        view = View(plane.store, clock=plane.clock)
        await view.refresh()
        writer = Writer(
            plane.store, clock=plane.clock, new_id=lambda: f"{self.rng.getrandbits(64)}", healthy=lambda: True
        )
        return NodeService(plane.store, writer, view, clock=plane.clock)

    def drain(self) -> None:
        self._go(self._drain(self._any("agent"), self.rng.choice(tuple(DrainMode)), self.rng.uniform(1.0, 20.0)))

    async def _drain(self, node: str, mode: DrainMode, lasts: float) -> None:
        desk = await self._desk()
        try:
            await desk.drain(Request(HOSTLER), node, Drain(mode=mode))
            self.seen[f"drained: {mode}"] += 1
        except HostlerError:
            return
        await asyncio.sleep(lasts)
        await self._activate(node)

    async def _activate(self, node: str) -> None:
        for _ in range(5):
            try:
                await (await self._desk()).activate(Request(HOSTLER), node)
                return
            except HostlerError:
                await asyncio.sleep(0.1)

    def turn_weather(self) -> None:
        """No call hangs for ever: every store has its deadlines. But it may take longer than any lease."""
        for name in ("unavailable", "lost", "never", "slow", "lagged"):
            setattr(self.plane.weather, name, self.rng.choice((0.0, 0.0, self.rng.random() * 0.2)))
        self.plane.weather.slowest = self.rng.choice((0.25, 1.0, 2.0)) * NODE_TTL

    def break_machines(self) -> None:
        for name in MACHINE_FAULTS:
            setattr(self.plane.faults.every, name, self.rng.choice((0.0, 0.0, self.rng.random() * 0.2)))

    def _after(self, seconds: float, do: Callable[[], None]) -> None:
        async def later() -> None:
            await asyncio.sleep(seconds)
            do()

        self._go(later())

    def _go(self, work: object) -> None:
        task = self.plane.loop.create_task(work, context=outside())  # type: ignore[arg-type, var-annotated]
        self.healing.add(task)
        task.add_done_callback(self.healing.discard)

    # The end

    async def _calm(self) -> None:
        plane = self.plane
        for name in ("unavailable", "lost", "never", "slow", "lagged"):
            setattr(plane.weather, name, 0.0)
        for name in MACHINE_FAULTS:
            setattr(plane.faults.every, name, 0.0)
        while self.healing:
            await asyncio.wait(self.healing)
        for host in list(plane.hosts.values()):
            plane.loop.wake(host.process)
            host.wire.heal()
        for node in plane.places:
            self._back(node)
            await self._activate(node)


def run_schedule(seed: int) -> Counter[str]:
    """What happened in it; whatever is wrong is raised, with a note that names the seed."""
    schedule = Schedule(seed)
    try:
        return schedule.run()
    except BaseException as error:
        error.add_note(f"seed {seed}; {dict(schedule.seen)}")
        keep("tally", schedule.seen)
        raise


CHUNK = 10


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("chunk", seeds(test=2, pool=12, full=300))
def test_whatever_breaks_no_machine_runs_twice_and_all_converges(chunk: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(chunk * CHUNK, (chunk + 1) * CHUNK):
        seen += run_schedule(seed)
    assert seen["create"] > CHUNK, seen
    assert seen["departures"] > 0, seen
    assert seen["machines in the end"] > 0, seen
