"""Definition of a claim about machines, its environment, and the runner of all claims."""

from __future__ import annotations

import importlib
import secrets
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

import msgspec

from hostler.kit.clock import SystemClock
from hostler.model.vm import MachineState, VmSpec
from hostler.ports.machines import (
    Fencing,
    Label,
    Machine,
    MachinePlan,
    Machines,
    Migration,
    Ownership,
    Resets,
    RetainedMachine,
    Retention,
    Snapshots,
    ability,
    fencing_of,
    migration_of,
)
from hostler.testing.claim import check_all, on_time, trying
from hostler.testing.claim import loop_time as loop_time  # noqa: PLC0414 - re-exported for claims
from hostler.testing.claim import refused as refused  # noqa: PLC0414 - re-exported for claims

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Sequence

    from hostler.testing.claim import OnTime

    Body = Callable[["MachineTrial"], Awaitable[None]]

_CHAPTERS = ("basics", "numbered_operations", "fence", "lifetime", "move", "ownership", "retain")

Save: TypeAlias = "Callable[[Machines, str, str], Awaitable[None]]"
Show: TypeAlias = "Callable[[Machines, str], Awaitable[str]]"
PowerOff: TypeAlias = "Callable[[Machines, str], Awaitable[None]]"
Now: TypeAlias = "Callable[[Machines], float]"
Elsewhere: TypeAlias = "Callable[[], Machines]"
Boots: TypeAlias = "Callable[[Machines, str], Awaitable[int]]"


class AllMachines(Machines, Resets, Snapshots, Ownership, Retention, Migration, Fencing, Protocol):
    """Machines with every ability. A claim uses those that it `needs`; without them it is not checked."""


class MachineSetup(msgspec.Struct, frozen=True, kw_only=True):
    """What a suite must know of a driver: the sizes and the speed of its machines, and how to look into one."""

    spec: VmSpec = VmSpec(cpus=1, memory_mib=128)
    other_spec: VmSpec = VmSpec(cpus=2, memory_mib=192)
    unknown_image: str | None = None
    """An image that does not exist. None: the driver accepts every name, and this is not checked."""
    within: float = 30.0
    """Seconds in which any single operation ends."""
    grace: float = 5.0
    """Seconds in which a machine shuts down after a request."""
    stops_within: float = 2.0
    """Seconds in which a machine that has not shut down in time is off."""
    hold: float = 1.0
    """How long a claim holds fenced machines whose end it waits for; longer than a machine takes to start."""
    late: float = 0.5
    """How many seconds too late a machine that is not held may stop."""
    now: Now = lambda _: SystemClock().now()
    """Returns the driver's clock."""
    on_time: OnTime = on_time
    """Checks durations."""
    points: int = 40
    """Most suspension points at which each operation is cancelled."""
    turn: int = 0
    """A different number selects other suspension points, if there are too many."""
    save: Save | None = None
    """Writes a text to a running machine's disk. None, for this and the next two: claims that need it are skipped."""
    show: Show | None = None
    """Reads the text from a running machine's disk."""
    boots: Boots | None = None
    """Returns how often a running machine has booted."""
    elsewhere: Elsewhere | None = None
    """Returns a driver of another place, not open yet, as a migration target. None: migration is not checked."""
    power_off: PowerOff | None = None
    """Lets the guest of an available machine switch itself off. None: not checked."""
    console: bool = True
    """Whether the machines have a serial port here; if not, the claims check that opening it is refused."""


class MachineClaim(msgspec.Struct, frozen=True):
    """One property of every machine driver. `str(claim)` is the claim as text.

    `fences`: only for drivers that support fencing; `moves`: only for drivers that support migration; `needs`: only for
    drivers with these abilities. Claims run one by
    one, because a place can be opened only once.
    """

    name: str
    body: Body
    fences: bool = False
    waits: bool = False
    moves: bool = False
    needs: tuple[type, ...] = ()

    def __str__(self) -> str:
        return self.name

    async def check(self, open_machines: Callable[[], Machines], *, setup: MachineSetup | None = None) -> None:
        """Check the claim. Raise AssertionError, or the driver's exception, with a note that names the claim."""
        setup = setup or MachineSetup()
        async with trying(self.name, within=100 * setup.within):
            trial = MachineTrial(open_machines, setup)
            await trial.open()
            try:
                if not all(map(trial.has, self.needs)):
                    return
                if self.moves:
                    await trial.open_elsewhere(self.body)
                elif not self.fences or trial.fences:
                    await self.body(trial)
            finally:
                await trial.tidy()


class MachineTrial:
    """The environment of a claim: an open driver, and private machines."""

    machines: AllMachines
    there: AllMachines
    """At another place, in claims about migration."""

    def __init__(self, open_machines: Callable[[], Machines], setup: MachineSetup) -> None:
        self._open_machines, self.setup = open_machines, setup
        self._run = f"check-{secrets.token_hex(4)}"
        self._names: set[str] = set()
        self._opened: Machines | None = None

    def fresh(self) -> AllMachines:
        """Return a driver of the same place, not open yet."""
        return cast("AllMachines", self._open_machines())

    def has(self, kind: type) -> bool:
        """Return whether the driver has an ability."""
        return ability(self.machines, kind) is not None

    @property
    def fences(self) -> bool:
        return fencing_of(self.machines) is not None

    async def open(self) -> AllMachines:
        """Open the driver."""
        self.machines = self.fresh()
        await self.machines.__aenter__()
        self._opened = self.machines
        return self.machines

    async def open_elsewhere(self, body: Body) -> None:
        """Run the claim with another place open, if machines can be migrated there."""
        if migration_of(self.machines) is None or self.setup.elsewhere is None:
            return
        async with self.setup.elsewhere() as there:
            self.there = cast("AllMachines", there)
            try:
                await body(self)
            finally:
                for vm in sorted(self._names):
                    await self.there.delete(vm)

    async def close(self) -> None:
        """Close the driver; the machines stay."""
        if self._opened is not None:
            opened, self._opened = self._opened, None
            await opened.__aexit__(None, None, None)

    async def reopen(self) -> AllMachines:
        """Close and open the driver, as a restart of the agent does."""
        await self.close()
        return await self.open()

    def vm(self, name: str = "a") -> str:
        """Return the id of a machine of this trial, which is removed at its end."""
        self._names.add(f"{self._run}-{name}")
        return f"{self._run}-{name}"

    def plan(self, name: str = "a", **changes: Any) -> MachinePlan:
        """Return a plan for the machine."""
        label = Label("check", "machines", self.vm(name), self._run)
        return msgspec.structs.replace(MachinePlan(label=label, spec=self.setup.spec, name=name), **changes)

    async def made(self, name: str = "a", **changes: Any) -> str:
        """Create a stopped machine; return its id."""
        plan = self.plan(name, **changes)
        await self.machines.create(plan)
        return plan.label.vm

    async def running(self, name: str = "a", **changes: Any) -> str:
        """Create a running machine; return its id."""
        vm = await self.made(name, **changes)
        machine = await self.machines.start(vm)
        assert machine.state is MachineState.RUNNING, f"started, but {machine.state}"
        return vm

    async def seen(self, vm: str) -> Machine:
        """Return a machine that must exist."""
        machine = await self.machines.inspect(vm)
        assert machine is not None, f"machine {vm!r} not found"
        return machine

    async def state(self, vm: str) -> MachineState:
        return (await self.seen(vm)).state

    async def listed(self) -> dict[str, Machine]:
        """Return the machines of this trial, as listed."""
        return {m.label.vm: m for m in await self.machines.list() if m.label.cluster == self._run}

    async def retained(self) -> dict[str, RetainedMachine]:
        """Return the retained machines of this trial, by name."""
        found = await self.machines.retained() if self.has(Retention) else ()
        return {m.name: m for m in found if m.label.cluster == self._run}

    # Verbs of abilities in claims about something else: without the ability they do nothing.

    async def snapshot(self, vm: str, name: str) -> None:
        if self.has(Snapshots):
            await self.machines.snapshot(vm, name)

    async def restore(self, vm: str, name: str, number: int) -> None:
        if self.has(Snapshots):
            await self.machines.restore(vm, name, number)

    async def drop_snapshot(self, vm: str, name: str) -> None:
        if self.has(Snapshots):
            await self.machines.drop_snapshot(vm, name)

    async def reset(self, vm: str, number: int) -> None:
        if self.has(Resets):
            await self.machines.reset(vm, number)

    async def hold(self, seconds: float) -> None:
        if self.has(Fencing):
            await self.machines.hold(seconds)

    async def tidy(self) -> None:
        """Remove what the trial created, and close."""
        try:
            if self._opened is None:
                await self.open()
            for vm in sorted(self._names):
                await self.machines.delete(vm)
            for name in await self.retained():
                await self.machines.discard(name)
        finally:
            await self.close()


_CLAIMS: list[MachineClaim] = []


def claim(
    *, fences: bool = False, moves: bool = False, needs: tuple[type, ...] = (), name: str = ""
) -> Callable[[Body], Body]:
    """Register an async function as a claim; its name, or the given one, is the claim as text."""

    def register(body: Body) -> Body:
        _CLAIMS.append(MachineClaim(name or getattr(body, "__name__", "?"), body, fences, moves=moves, needs=needs))
        return body

    return register


def machine_claims() -> Sequence[MachineClaim]:
    """Return all claims about machine drivers."""
    for chapter in _CHAPTERS:
        importlib.import_module(f"hostler.testing.machines.{chapter}")
    return tuple(_CLAIMS)


async def check_machines(
    open_machines: Callable[[], Machines],
    *,
    setup: MachineSetup | None = None,
    only: Collection[str] | None = None,
) -> None:
    """Check that a driver implements the machines port; raise a group with all failures.

    `open_machines()` returns a driver that is not open yet. Each call returns a new one of the same place, and one at a
    time is open. `setup` describes the size and the speed of its machines. `only` names the claims to check (see
    `machine_claims`).
    """
    await check_all("machines", machine_claims(), lambda claim: claim.check(open_machines, setup=setup), only)


# Vocabulary of claims


def core(machine: Machine | None) -> tuple[object, ...] | None:
    """Return what must be the same after an operation, however often it was started."""
    if machine is None:
        return None
    m = machine
    return m.label, m.state, m.spec, m.fenced, m.tags, m.resets, m.restored, tuple(sorted(m.snapshots))
