"""Machine drivers that do only what every driver does, and how their abilities are found."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Self

import pytest

from hostler.engine.agent import retained
from hostler.errors import Refused
from hostler.kit.virtual_loop import VirtualClock, run_virtual
from hostler.model.inventory import Capacity
from hostler.model.node import VmCommand
from hostler.model.vm import MachineState, VmSpec
from hostler.ports.machines import (
    Fencing,
    Label,
    MachinePlan,
    Machines,
    Migration,
    OverdueFences,
    Ownership,
    Resets,
    Retention,
    Snapshots,
    ability,
    fencing_of,
    migration_of,
    required,
)
from hostler.testing import MachineSetup, MemoryHost, SimulatedMachines, check_machines

if TYPE_CHECKING:
    from collections.abc import Callable

ABILITIES = (Resets, Snapshots, Ownership, Retention, Migration, Fencing)
SPEC = VmSpec(cpus=1, memory_mib=128)
VERBS = ("listen", "offer", "create", "start", "stop", "delete", "inspect", "list", "channel")


class Core:
    """The nine verbs of every driver, of simulated machines, and no other."""

    def __init__(self, machines: SimulatedMachines) -> None:
        self._machines = machines
        for verb in VERBS:
            setattr(self, verb, getattr(machines, verb))

    name = "core"

    @property
    def place(self) -> str:
        return self._machines.place

    async def __aenter__(self) -> Self:
        await self._machines.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._machines.__aexit__(*error)  # type: ignore[arg-type]


class Wrapper:
    """Passes everything on."""

    def __init__(self, machines: SimulatedMachines) -> None:
        self._machines = machines

    def __getattr__(self, name: str) -> Any:
        return getattr(self._machines, name)


def simulated(host: MemoryHost | None = None) -> SimulatedMachines:
    capacity = Capacity(cpus=4, memory_mib=1024)
    return SimulatedMachines(host or MemoryHost(), clock=VirtualClock(), capacity=capacity)


def core(host: MemoryHost | None = None) -> Machines:
    machines = Core(simulated(host))
    assert isinstance(machines, Machines)
    return machines


def test_the_core_has_nine_verbs() -> None:
    verbs = [name for name, member in vars(Machines).items() if inspect.isfunction(member) and not name.startswith("_")]
    assert sorted(verbs) == sorted(VERBS)


def test_abilities_are_found_by_their_verbs() -> None:
    for kind in ABILITIES:
        assert ability(core(), kind) is None
        assert ability(simulated(), kind) is not None
        assert ability(Wrapper(simulated()), kind) is not None, "a wrapper hides nothing"
        with pytest.raises(Refused, match=f"machines of kind 'core' have no {kind.__name__.lower()}"):
            required(core(), kind)
    assert ability(simulated(), OverdueFences) is None
    assert fencing_of(core()) is None
    assert migration_of(core()) is None
    assert fencing_of(simulated()) is not None


def test_an_ability_that_is_switched_off_is_none() -> None:
    class Off(SimulatedMachines):
        fences = moves = False  # type: ignore[assignment]

    machines = Off(MemoryHost(), clock=VirtualClock())
    assert ability(machines, Fencing) is not None
    assert fencing_of(machines) is None
    assert migration_of(machines) is None


def test_a_driver_of_nine_verbs_passes_the_suite() -> None:
    host = MemoryHost()

    async def main() -> None:
        await check_machines(lambda: core(host), setup=MachineSetup(late=0.1, within=60))

    run_virtual(main)


def in_virtual_time(story: Callable[[Machines], Any]) -> None:
    async def main() -> None:
        async with core() as machines:
            await story(machines)

    run_virtual(main)


def test_a_machine_that_cannot_be_retained_is_stopped_and_stays() -> None:
    async def story(machines: Machines) -> None:
        await machines.create(MachinePlan(label=Label("o", "p", "vm"), spec=SPEC))
        seen = await machines.start("vm")
        with pytest.raises(Refused, match="have no retention"):
            await retained.retain(machines, seen, grace=1.0, wall=0.0)
        left = await machines.inspect("vm")
        assert left is not None
        assert left.state is MachineState.STOPPED
        assert await retained.retained_by(machines) == ()

    in_virtual_time(story)


@pytest.mark.parametrize(("named", "made"), [(None, True), ("", True), ("vm-2026", False)])
def test_a_missing_machine_is_created_unless_a_retained_disk_is_named(named: str | None, made: bool) -> None:
    async def story(machines: Machines) -> None:
        plan = MachinePlan(label=Label("o", "p", "vm"), spec=SPEC)
        command = VmCommand(vm="vm", org="o", project="p", spec=SPEC, generation=1, fence=1, reinstate=named)
        if made:
            await retained.create(machines, plan, command)
        else:
            with pytest.raises(Refused, match="have no retention"):
                await retained.create(machines, plan, command)
        assert (await machines.inspect("vm") is not None) is made

    in_virtual_time(story)
