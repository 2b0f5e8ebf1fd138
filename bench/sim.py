"""Speed of the simulation: a large datacenter for an hour, a small one in virtual time, placement, one fault.

Real controllers, placement, elections and services on the in-memory store. The large worlds have light agents
(`hostler.sim.world`): they take commands and report like agents, but renew no heartbeats. The small world has real
agents with all their heartbeats. Times are processor time, because other processes may use this host.
"""

from __future__ import annotations

import gc
import random
import resource
from contextlib import contextmanager
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any

import click
import msgspec

from bench.options import parts_option, report_options
from bench.report import Row, report
from hostler.engine.inventory.inventory_file import inventory_in
from hostler.engine.placement import Cluster, NodeState, PlacementRequest, place
from hostler.entry.cli.progress import Ticker
from hostler.model.inventory import Capacity
from hostler.model.node import Lifecycle
from hostler.model.vm import MachineState, VmSpec
from hostler.model.workload_api import WorkloadApply
from hostler.sim.hardware import Crash, Repair
from hostler.sim.world import World, WorldConfig, run_world

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from hostler.engine.inventory.inventory_file import Inventory

IN_RACK = 40
HOUR = 3600.0
PER_WORKLOAD = 1_000
FEW_PER_WORKLOAD = 100
"""Used to compare clusters of different sizes: the machines of a blade then belong to about ten workloads in each."""
NO_MORE = 3.0
"""Limit for the cost of one fault with a hundred times as many blades, as a factor; memory access is slower then."""
SHAPE = VmSpec(cpus=1, memory_mib=1024, disk_gib=10)
FAULTS = 10
PROJECTS = 100


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The size of the benchmark."""

    parts: tuple[str, ...] = ("scale", "ratio", "placement", "curve")
    blades: int = 10_000
    machines: int = 100_000
    hour: float = HOUR
    ratio_blades: int = 100
    ratio_seconds: float = 2_000.0
    nodes: int = 10_000
    instances: int = 1_000_000
    curve: tuple[int, ...] = (100, 1_000, 10_000)


def run(plan: Plan, tell: Callable[[str], None]) -> list[Row]:
    """Run all parts of the plan. The large world comes first, because memory is measured as the peak."""
    parts: dict[str, Callable[[Plan, Callable[[str], None]], list[Row]]] = {
        "scale": scale,
        "ratio": ratio,
        "placement": placement,
        "curve": curve,
    }
    rows: list[Row] = []
    with _seldom():
        for name, measured in parts.items():
            if name in plan.parts:
                rows += measured(plan, tell)
    return rows


@contextmanager
def _seldom() -> Iterator[None]:
    """Run the garbage collector rarely: millions of objects live as long as their world."""
    before = gc.get_threshold()
    gc.set_threshold(50_000, 50, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _inventory(blades: int) -> Inventory:
    racks = [
        {
            "name": f"r{rack}",
            "pdus": [{"name": f"pdu{n}", "ports": IN_RACK + 4} for n in (1, 2)],
            "tors": [{"name": "tor1", "ports": IN_RACK}],
            "blades": {
                "count": min(IN_RACK, blades - rack * IN_RACK),
                "prefix": "b",
                "cpus": 16,
                "memory": "64GiB",
                "disk": "500GiB",
            },
        }
        for rack in range((blades + IN_RACK - 1) // IN_RACK)
    ]
    return inventory_in({"racks": racks})


async def _wait_until_filled(
    world: World, machines: int, tell: Callable[[str], None], *, per_workload: int = PER_WORKLOAD
) -> None:
    """Wait until all nodes are in service and all machines run."""
    blades = len(world.blades)

    async def on_duty() -> bool:
        view = _view(world)
        found = () if view is None else view.members.entries.values()
        return sum(1 for entry in found if entry.value.lifecycle is Lifecycle.ON_DUTY) >= blades

    async def all_run() -> bool:
        found = _running(world)
        tell(f"{blades:,} blades, {found:,} of {machines:,} machines run")
        return found >= machines

    if not await world.until(on_duty, within=600, every=1.0):
        raise RuntimeError(f"bench: not all of {blades} nodes came into service")
    for number in range(0, machines, per_workload):
        count = min(per_workload, machines - number)
        wanted = WorkloadApply(name=f"w{number // per_workload}", instances=count, spec=SHAPE)
        await world.ask(lambda services, wanted=wanted: services.workloads.apply(services.request, wanted))  # type: ignore[misc]
    if not await world.until(all_run, within=6_000, every=1.0):
        raise RuntimeError(f"bench: only {_running(world)} of {machines} machines run")


def _view(world: World) -> Any:
    leader = world.leader()
    return None if leader is None or leader.plane is None else leader.plane.view


def _running(world: World) -> int:
    view = _view(world)
    found = () if view is None else view.handles.entries.values()
    return sum(1 for entry in found if entry.value.state is MachineState.RUNNING)


def scale(plan: Plan, tell: Callable[[str], None]) -> list[Row]:
    """Place many machines on many blades and run them for an hour, in which one blade in a hundred fails."""
    began, began_cpu = perf_counter(), process_time()
    what = f"{plan.blades:,} blades, {plan.machines:,} machines"
    laps: list[float] = []

    async def story(world: World) -> int:
        await _wait_until_filled(world, plan.machines, tell)
        laps.append(process_time())
        rng = random.Random(1)  # noqa: S311 - chooses blades
        bad = rng.sample(sorted(world.blades), max(1, plan.blades // 100))
        start = world.clock.now()
        for number, node in enumerate(bad, 1):
            await world.sleep(start + plan.hour * 0.9 * number / len(bad) - world.clock.now())
            tell(f"{what}: {number:,} of {len(bad):,} blades failed")
            world.apply(Crash(world.blades[node].component))
        await world.sleep(start + plan.hour - world.clock.now())
        laps.append(process_time())
        return _running(world)

    world_plan = WorldConfig(inventory=_inventory(plan.blades), replicas=2, agents="light", log=False)
    running = run_world(world_plan, story, seed=1)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
    return [
        Row(
            what=f"{what}: placed and run for an hour", found=perf_counter() - began, unit="s", wanted=120, at_most=True
        ),
        Row(what=f"{what}: … processor time", found=process_time() - began_cpu, unit="s"),
        Row(what=f"{what}: … of which until all run", found=laps[0] - began_cpu, unit="s"),
        Row(what=f"{what}: … of which the hour", found=laps[1] - laps[0], unit="s"),
        Row(what=f"{what}: memory, at most", found=memory, unit="GiB", wanted=4, at_most=True),
        Row(what=f"{what}: run in the end", found=running, unit="machines", wanted=plan.machines),
    ]


def ratio(plan: Plan, tell: Callable[[str], None]) -> list[Row]:
    """Measure virtual seconds per real second, of blades with real agents and their heartbeats."""
    blades, machines = plan.ratio_blades, plan.ratio_blades * 10
    tell(f"{blades:,} blades against the clock")

    async def story(world: World) -> tuple[float, float]:
        await _wait_until_filled(world, machines, tell)
        await world.sleep(60)
        began, began_cpu = perf_counter(), process_time()
        await world.sleep(plan.ratio_seconds)
        return perf_counter() - began, process_time() - began_cpu

    world_plan = WorldConfig(inventory=_inventory(blades), replicas=2, log=False)
    real, cpu = run_world(world_plan, story, seed=1)
    what = f"{blades:,} blades with real agents, {machines:,} machines: virtual seconds"
    return [
        Row(what=f"{what} for each real one", found=plan.ratio_seconds / real, unit="", wanted=1_000),
        Row(what=f"{what} for each of processor time", found=plan.ratio_seconds / cpu, unit=""),
    ]


def placement(plan: Plan, tell: Callable[[str], None]) -> list[Row]:
    """Measure placement alone, one by one until all are placed, workload by workload, as a leader places them."""
    tell(f"placing {plan.instances:,} instances on {plan.nodes:,} nodes")
    room = max(1, plan.instances * 4 // (plan.nodes * 3))
    capacity = Capacity(cpus=room, memory_mib=room * 4096, disk_gib=room * 100)

    def nodes() -> Iterator[NodeState]:
        for number in range(plan.nodes):
            rack = f"r{number // IN_RACK}"
            yield NodeState(
                node=f"{rack}-{number % IN_RACK}",
                capacity=capacity,
                rack=rack,
                pdus=(f"{rack}/pdu1", f"{rack}/pdu2"),
                tors=(f"{rack}/tor1",),
            )

    cluster = Cluster(nodes())
    spec = VmSpec(cpus=1, memory_mib=2048, disk_gib=10)
    wanted = [
        PlacementRequest(vm=f"vm-{number:08}", project=f"bench/p{number * PROJECTS // plan.instances}", spec=spec)
        for number in range(plan.instances)
    ]
    began, began_cpu = perf_counter(), process_time()
    for one in wanted:
        decision = place(one, cluster)
        if decision.node is None:
            raise RuntimeError(f"bench: {decision.summary}")
        cluster.use(one.vm, decision.node, one)
    what = f"{plan.instances:,} instances on {plan.nodes:,} nodes: placed"
    return [
        Row(what=what, found=plan.instances / (perf_counter() - began), unit="per second", wanted=50_000),
        Row(what=f"{what}, by processor time", found=plan.instances / (process_time() - began_cpu), unit="per second"),
    ]


def curve(plan: Plan, tell: Callable[[str], None]) -> list[Row]:
    """Measure the cost of the failure of one blade with ten machines, by the size of the cluster."""
    rows: list[Row] = []
    found: list[_Cost] = []
    for blades in plan.curve:
        cost = run_world(
            WorldConfig(inventory=_inventory(blades), replicas=1, agents="light", log=False),
            lambda world, blades=blades: _one_fault(world, blades * 10, tell),  # type: ignore[misc]
            seed=1,
        )
        found.append(cost)
        what = f"one of {blades:,} blades fails, and ten machines go elsewhere"
        times = cost.seconds / found[0].seconds
        rows.append(
            Row(
                what=f"{what}: processor time",
                found=cost.seconds * 1000,
                unit="ms",
                other=found[0].seconds * 1000,
                ratio=times,
                wanted=NO_MORE * found[0].seconds * 1000 if len(found) > 1 else None,
                at_most=True,
            )
        )
        rows.append(
            Row(
                what=f"{what}: steps of the event loop",
                found=cost.steps,
                unit="",
                other=found[0].steps,
                ratio=cost.steps / found[0].steps,
            )
        )
    return rows


class _Cost(msgspec.Struct, frozen=True):
    """The cost of one fault, beyond the cost of the same time without one."""

    seconds: float
    """Processor seconds."""
    steps: float
    """Steps of the event loop: the same on every host, whatever its load."""


async def _one_fault(world: World, machines: int, tell: Callable[[str], None]) -> _Cost:
    """Return the median over a few rounds."""
    await _wait_until_filled(world, machines, tell, per_workload=FEW_PER_WORKLOAD)
    await world.sleep(300)
    gc.collect()
    gc.freeze()
    costs: list[_Cost] = []
    rng = random.Random(2)  # noqa: S311 - chooses blades
    for _ in range(3):
        began, steps = process_time(), world.loop.steps
        await world.sleep(300)
        idle, idle_steps = process_time() - began, world.loop.steps - steps
        bad = rng.sample([node for node in sorted(world.blades) if world.blades[node].alive], FAULTS)
        began, steps = process_time(), world.loop.steps
        for node in bad:
            world.apply(Crash(world.blades[node].component))
            await world.sleep(150 / FAULTS)
        await world.sleep(150)
        took, made = process_time() - began, world.loop.steps - steps
        costs.append(_Cost((took - idle) / FAULTS, (made - idle_steps) / FAULTS))
        for node in bad:
            world.apply(Repair(world.blades[node].component))
        await world.sleep(120)
    gc.unfreeze()
    return sorted(costs, key=lambda cost: cost.seconds)[1]


PARTS = ("scale", "ratio", "placement", "curve")


def _sizes(_: click.Context, __: click.Parameter, text: str) -> tuple[int, ...]:
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or min(found) < 20 or max(found) > 100_000:
        raise click.BadParameter(f"{text!r}: give whole numbers from 20 to 100000, like 100,1000,10000")
    return found


@click.command("sim")
@parts_option(PARTS)
@click.option("--blades", type=click.IntRange(min=20), default=10_000, show_default=True, help="Large datacenter.")
@click.option("--machines", type=click.IntRange(min=1), default=100_000, show_default=True, help="Large datacenter.")
@click.option("--ratio-blades", type=click.IntRange(min=1), default=100, show_default=True, help="Small datacenter.")
@click.option("--ratio-seconds", type=click.FloatRange(min=1), default=2_000.0, show_default=True, help="Virtual time.")
@click.option("--nodes", type=click.IntRange(min=40), default=10_000, show_default=True, help="Nodes to place on.")
@click.option("--instances", type=click.IntRange(min=1), default=1_000_000, show_default=True, help="To place.")
@click.option("--curve", callback=_sizes, default="100,1000,10000", show_default=True, help="Blades, for one fault.")
@report_options
def command(json_file: Path | None, markdown_file: Path | None, **sizes: object) -> None:
    """Measure the simulator: an hour of a large datacenter, speed against real time, placement, one fault."""
    with Ticker() as ticker:
        rows = run(Plan(**sizes), ticker.tell)  # type: ignore[arg-type]
    report("simulation", rows, json_file, markdown_file)
