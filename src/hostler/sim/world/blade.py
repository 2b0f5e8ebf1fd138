"""A blade: an agent on simulated machines, as in `hostler agent`, with its slices and its connections to other blades.

Slices outlive the agent, and fail according to the conditions of the blade. Connections do not depend on the store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self, TypeVar

from hostler.drivers.machines.simulated import MachineFaults, Odds, SimulatedMachines
from hostler.drivers.slices.simulated import SimulatedSlices, SliceHost, SliceTimes
from hostler.engine.agent.config import AgentConfig
from hostler.engine.control_plane import NodePorts
from hostler.errors import Refused, Unavailable
from hostler.kit.virtual_loop import outside
from hostler.model.deployment import base_of
from hostler.ports.slices import Life as SliceLife
from hostler.sim.world.hardware import DiskHost
from hostler.sim.world.host import ROUNDED, Host, chance

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from hostler.drivers.machines.simulated import MemoryHost
    from hostler.drivers.machines.simulated.fault import Verb
    from hostler.drivers.slices.simulated import Verb as SliceVerb
    from hostler.ports.machines import Channel, ChannelKind
    from hostler.sim.world.config import BladeConfig, WorldConfig
    from hostler.sim.world.host import Conditions, Life
    from hostler.sim.world.world import World


_ON_DISK: tuple[Verb, ...] = (
    *("create", "start", "reset", "delete", "snapshot", "restore", "drop_snapshot", "receive", "send"),
)
"""Operations that a slow disk delays."""


class BladeHost(Host):
    """One blade. Its machines are in a place that outlives every process."""

    kind = "blade"

    def __init__(self, world: World, plan: BladeConfig) -> None:
        super().__init__(world, plan.node, plan.component)
        self.node, self.blade = plan.node, plan
        self.serial = 1
        """Identifies the piece of hardware. A replacement has another place and none of the old data."""
        self.place = self._new_place()
        # the component that holds machines is not the one that makes them
        self.faults = MachineFaults(verbs={"hold": Odds()})
        self.machines: SimulatedMachines | None = None
        """The machines of the running agent; None: no agent is running."""
        self.runs = True
        """Whether the hardware can run software."""
        self.connected = True
        """Whether the blade reaches the network."""
        self.earlier: list[MemoryHost] = []
        """Places of replaced hardware: evidence of what ran there."""
        self.slice_place = WorldSlices(self)
        self._tune()

    def may_run(self) -> bool:
        return self.runs

    @property
    def silent(self) -> bool:
        return not self.connected or self.conditions.silent

    def meet(self, conditions: Conditions) -> None:
        super().meet(conditions)
        self._tune()

    def _tune(self) -> None:
        """Set the duration and failure rate of machine operations from the plan and the conditions."""
        plan, now, faults = self.world.plan, self.conditions, self.faults
        times = {"create": plan.make_time, "start": plan.boot_time}
        for verb in _ON_DISK:
            faults.delays[verb] = times.get(verb, 0.0) + now.delay
        faults.every = Odds(unavailable=now.errors / 2, lost=now.errors / 4, half=now.errors / 4)

    def carry(self, *, runs: bool, connected: bool, serial: int, cause: str) -> None:
        """Apply a change of the hardware."""
        self.runs, self.connected = runs, connected
        if serial != self.serial:
            self.lose_power(cause)
            self.serial = serial
            self.earlier.append(self.place)
            self.place = self._new_place()
        if not runs:
            self.lose_power(cause)
        elif self.alive and self.life is not None:
            self.trouble = "" if connected else cause
            self.wire_up(self.life.wire)
        else:
            self.start(cause)

    def _new_place(self) -> MemoryHost:
        return DiskHost(f"place-{self.node}-{self.serial}", self.node, self.world.disks)

    async def main(self, life: Life) -> None:
        machines = SimulatedMachines(
            self.place,
            clock=life.clock,
            rng=life.rng,
            capacity=self.blade.capacity,
            faults=self.faults,
            images=self.blade.images,
            fences=self.blade.fences,
        )
        async with machines:
            self.machines = machines
            await self.run_agent(life, machines)

    def agent_plan(self) -> AgentConfig:
        """Return the configuration of the agent."""
        plan = self.world.plan
        return AgentConfig(
            node=self.node,
            labels=self.blade.labels,
            rack=self.blade.rack,
            pdus=self.blade.pdus,
            tors=self.blade.tors,
            store="sim://store",
            node_ttl=plan.node_ttl,
            fencing_time=plan.fencing_time,
            stop_grace=plan.stop_grace,
            boots=plan.boots,
        )

    async def run_agent(self, life: Life, machines: SimulatedMachines) -> None:
        """Run the agent on its machines until it is killed."""
        world = self.world
        env = life.env(lambda text: world.log_line(self, text))
        ports = NodePorts(machines=machines, peers=self._peers(), slices=self._slices(life))
        await world.parts.agent(life.wire, env, ports, self.agent_plan()).run()

    def _slices(self, life: Life) -> SimulatedSlices | None:
        if not self.world.plan.slices:
            return None
        rng = chance(self.world.seed, f"{life.process} slices")
        return SimulatedSlices(self.slice_place, clock=life.clock, rng=rng, times=slice_times(self.world.plan))

    def _peers(self) -> WorldPeers | None:
        return WorldPeers(self) if self.world.plan.hands_over and self.blade.moves else None

    def slices_there(self) -> dict[tuple[str, int], SliceLife]:
        """Return the slices that run on the blade itself, by artifact and number."""
        return self.slice_place.there()

    def crash_slices(self, artifact: str) -> None:
        self.slice_place.end(artifact)

    def kill(self, cause: str = "") -> None:
        super().kill(cause)
        self._gone()

    def ended(self, life: Life, error: Exception | None) -> None:
        self._gone()
        super().ended(life, error)

    def _gone(self) -> None:
        self.machines = None
        self.place.disown()
        self.slice_place.disown()
        self.let_lapse()

    def let_lapse(self) -> None:
        """Record when fenced machines stop by themselves, even if no agent is running then."""
        until = self.place.contents.held_until
        if until is not None and self.place.contents.fenced_on:
            left = max(0.0, self.clock.underneath(until) - self.world.clock.now()) + ROUNDED
            place = self.place
            self.world.loop.call_later(left, lambda: place.expire(self.clock.now()), context=outside())

    def lose_power(self, cause: str = "") -> None:
        """Kill the process and switch off every machine at this instant."""
        self.kill(cause)
        if self.life is not None:
            self.life.wire.lose()
        self.place.power_off(self.clock.now())
        self.slice_place.reboot()

    def vms(self) -> Iterable[str]:
        """Return every machine that is on this blade or ever ran on it."""
        places = (*self.earlier, self.place)
        return dict.fromkeys(vm for place in places for vm in (*place.contents.rows, *place.contents.ended_intervals()))

    def intervals(self, vm: str) -> Sequence[tuple[float, float | None]]:
        """Return when that machine ran here, on the world's clock, as its places recorded it."""
        true, now = self.clock.underneath, self.clock.now()
        found = [run for place in (*self.earlier, self.place) for run in place.intervals(vm, now)]
        return [(true(start), None if end is None else true(end)) for start, end in found]


T = TypeVar("T")


class WorldPeers:
    """The connections of one blade."""

    def __init__(self, here: BladeHost) -> None:
        self._here = here

    def channel(self, node: str, vm: str, door: ChannelKind) -> PeerChannel:
        return PeerChannel(self._here, node, vm, door)


class PeerChannel:
    """A connection to a port of a machine on another blade; its operations run in that blade's process."""

    def __init__(self, here: BladeHost, node: str, vm: str, door: ChannelKind) -> None:
        self._here, self._node, self._vm, self._door = here, node, vm, door
        self._life: Life | None = None
        self._inner: Channel | None = None

    async def __aenter__(self) -> Self:
        there = self._here.world.blades.get(self._node)
        if there is None or not there.alive or there.machines is None or not self._connected(there):
            raise Unavailable(f"{self._node}: not reachable")
        self._life, self._inner = there.life, there.machines.channel(self._vm, self._door)
        await self._there(self._inner.__aenter__)
        return self

    async def __aexit__(self, *_: object) -> None:
        inner = self._inner
        if inner is not None and self._life is not None and not self._life.dead:
            await self._there(lambda: inner.__aexit__(None, None, None), always=True)

    async def read(self) -> bytes:
        return b"" if self._inner is None else await self._there(self._inner.read)

    async def write(self, data: bytes) -> None:
        inner = self._inner
        if inner is not None:
            await self._there(lambda: inner.write(data))

    def _connected(self, there: BladeHost) -> bool:
        return self._here.world.reach(self._here, there)

    async def _there(self, work: Callable[[], Awaitable[T]], *, always: bool = False) -> T:
        """Run something in the other process. Unavailable: it died, or the network is cut.

        `always`: run even if the network is cut, because the other end notices by itself.
        """
        life = self._life
        there = self._here.world.blades.get(self._node)
        if life is None or life.dead or there is None or not (always or self._connected(there)):
            raise Unavailable(f"{self._node}: the connection was lost")
        return await life.call(work)


class WorldSlices(SliceHost):
    """The slices of one blade."""

    def __init__(self, blade: BladeHost) -> None:
        super().__init__(blade.node)
        self._blade = blade
        self._chance = chance(blade.world.seed, f"slices of {blade.node}")

    def there(self) -> dict[tuple[str, int], SliceLife]:
        """Return the life of each slice, by artifact and number."""
        return {(row.run.artifact, row.run.instance): row.life for row in self.rows.values()}

    def end(self, artifact: str) -> None:
        """End all active instances of an artifact or slice by themselves; empty: of all."""
        for name, row in tuple(self.rows.items()):
            if row.life is SliceLife.ACTIVE and artifact in ("", row.run.artifact, base_of(row.run.artifact)):
                self.crash(name, "it was killed")

    def disown(self) -> None:
        """Forget the listeners of an agent that is gone."""
        self._changed.clear()

    def raise_fault(self, artifact: str, verb: SliceVerb) -> None:
        now = self._blade.conditions
        for fault in now.refuses:
            concerned = verb == fault.step and fault.artifact in ("", artifact, base_of(artifact))
            if concerned and self._chance.random() < fault.chance:
                raise Refused(f"{artifact}: {verb} failed (simulated)")
        if now.errors and self._chance.random() < now.errors:
            raise Unavailable(f"{artifact}: {verb} failed this time (simulated)")
        super().raise_fault(artifact, verb)

    def slowness(self, artifact: str) -> float:
        return super().slowness(artifact) + self._blade.conditions.delay


def slice_times(plan: WorldConfig) -> SliceTimes:
    """Return how long it takes to load and to start a slice."""
    return SliceTimes(load=plan.load_time, activate=plan.start_time)
