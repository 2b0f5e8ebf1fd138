"""What a claim about machines is, what it works with, and how all of them are run."""

from __future__ import annotations

import importlib
import secrets
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from hostler.kit.clock import SystemClock
from hostler.model.vm import MachineState, VmSpec
from hostler.ports.machines import Label, Machine, MachinePlan, RetainedMachine
from hostler.testing.claim import check_all, on_time, trying
from hostler.testing.claim import loop_time as loop_time  # noqa: PLC0414 - a word that claims are written in
from hostler.testing.claim import refused as refused  # noqa: PLC0414 - another

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Sequence

    from hostler.ports.machines import Machines
    from hostler.testing.claim import OnTime

    Body = Callable[["MachineTrial"], Awaitable[None]]

_CHAPTERS = (
    "basics",
    "numbered_operations",
    "fence",
    "interruption",
    "lifetime",
    "serial",
    "availability",
    "move",
    "ownership",
    "retain",
)

Save: TypeAlias = "Callable[[Machines, str, str], Awaitable[None]]"
Show: TypeAlias = "Callable[[Machines, str], Awaitable[str]]"
PowerOff: TypeAlias = "Callable[[Machines, str], Awaitable[None]]"
Now: TypeAlias = "Callable[[Machines], float]"
Elsewhere: TypeAlias = "Callable[[], Machines]"
Boots: TypeAlias = "Callable[[Machines, str], Awaitable[int]]"


class MachineSetup(msgspec.Struct, frozen=True, kw_only=True):
    """What a suite must know of a driver: its sizes, its pace, and how to look into a machine."""

    spec: VmSpec = VmSpec(cpus=1, memory_mib=128)
    other_spec: VmSpec = VmSpec(cpus=2, memory_mib=192)
    unknown_image: str | None = None
    """An image that does not exist. None: the driver takes every name, and nothing is claimed of it."""
    within: float = 30.0
    """Seconds in which any single verb ends."""
    grace: float = 5.0
    """Seconds in which a machine that is asked to shut down has done so."""
    stops_within: float = 2.0
    """Seconds in which a machine that has not shut down in time is off."""
    hold: float = 1.0
    """How long a claim holds fenced machines whose end it waits for; longer than a machine takes to start."""
    late: float = 0.5
    """How many seconds later a machine that is not held may stop."""
    now: Now = lambda _: SystemClock().now()
    """What the driver's clock says."""
    on_time: OnTime = on_time
    """Judges how long things take."""
    points: int = 40
    """At how many of its suspensions, at most, each verb is cut."""
    turn: int = 0
    """Another number: other suspensions, where they are too many."""
    save: Save | None = None
    """Put a text on a running machine's disk. None, of this and the next two: what they would show is not claimed."""
    show: Show | None = None
    """The text on a running machine's disk."""
    boots: Boots | None = None
    """How often a running machine has booted."""
    elsewhere: Elsewhere | None = None
    """A driver of another place, not open yet, to which machines are handed. None: nothing is claimed of that."""
    power_off: PowerOff | None = None
    """Let the guest of a machine that is available switch itself off. None: nothing is claimed of it."""
    console: bool = True
    """The machines have a serial port that leads here; else it is claimed that theirs is refused."""


class MachineClaim(msgspec.Struct, frozen=True):
    """One thing that is true of every machine driver. `str(claim)` is the claim in words.

    `fences`: made only of drivers that say that they fence; `moves`: of those that say that they hand machines over.
    Claims run one by one, for a place is open once.
    """

    name: str
    body: Body
    fences: bool = False
    waits: bool = False
    moves: bool = False

    def __str__(self) -> str:
        return self.name

    async def check(self, open_machines: Callable[[], Machines], *, setup: MachineSetup | None = None) -> None:
        """Try the claim; AssertionError or what the driver raised, with a note that names it."""
        setup = setup or MachineSetup()
        async with trying(self.name, within=100 * setup.within):
            trial = MachineTrial(open_machines, setup)
            await trial.open()
            try:
                if self.moves:
                    await trial.open_elsewhere(self.body)
                elif not self.fences or trial.machines.fences:
                    await self.body(trial)
            finally:
                await trial.tidy()


class MachineTrial:
    """What a claim works with: an open driver, and machines that nobody else knows."""

    machines: Machines
    there: Machines
    """At another place, in claims of moves."""

    def __init__(self, open_machines: Callable[[], Machines], setup: MachineSetup) -> None:
        self._open_machines, self.setup = open_machines, setup
        self._run = f"check-{secrets.token_hex(4)}"
        self._names: set[str] = set()
        self._opened: Machines | None = None

    def fresh(self) -> Machines:
        """A driver of the same place that was not opened yet."""
        return self._open_machines()

    async def open(self) -> Machines:
        """Open the driver."""
        self.machines = self.fresh()
        await self.machines.__aenter__()
        self._opened = self.machines
        return self.machines

    async def open_elsewhere(self, body: Body) -> None:
        """Do it with another place open, if machines can be handed there."""
        if not self.machines.moves or self.setup.elsewhere is None:
            return
        async with self.setup.elsewhere() as self.there:
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

    async def reopen(self) -> Machines:
        """What a restart of the agent does."""
        await self.close()
        return await self.open()

    def vm(self, name: str = "a") -> str:
        """The id of a machine of this trial, which is removed at its end."""
        self._names.add(f"{self._run}-{name}")
        return f"{self._run}-{name}"

    def plan(self, name: str = "a", **changes: Any) -> MachinePlan:
        """A plan for it."""
        label = Label("check", "machines", self.vm(name), self._run)
        return msgspec.structs.replace(MachinePlan(label=label, spec=self.setup.spec, name=name), **changes)

    async def made(self, name: str = "a", **changes: Any) -> str:
        """A machine that is there, stopped; its id."""
        plan = self.plan(name, **changes)
        await self.machines.create(plan)
        return plan.label.vm

    async def running(self, name: str = "a", **changes: Any) -> str:
        """A machine that runs; its id."""
        vm = await self.made(name, **changes)
        machine = await self.machines.start(vm)
        assert machine.state is MachineState.RUNNING, f"started, and {machine.state}"
        return vm

    async def seen(self, vm: str) -> Machine:
        """A machine that must be there."""
        machine = await self.machines.inspect(vm)
        assert machine is not None, f"there is no {vm!r}"
        return machine

    async def state(self, vm: str) -> MachineState:
        return (await self.seen(vm)).state

    async def listed(self) -> dict[str, Machine]:
        """The machines of this trial, as listed."""
        return {m.label.vm: m for m in await self.machines.list() if m.label.cluster == self._run}

    async def retained(self) -> dict[str, RetainedMachine]:
        """What is retained of the machines of this trial, by its name."""
        return {m.name: m for m in await self.machines.retained() if m.label.cluster == self._run}

    async def tidy(self) -> None:
        """Remove what the trial made, and close."""
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


def claim(*, fences: bool = False, moves: bool = False, name: str = "") -> Callable[[Body], Body]:
    """Make a claim of an async function: its name, or the one given, is the claim in words."""

    def register(body: Body) -> Body:
        _CLAIMS.append(MachineClaim(name or getattr(body, "__name__", "?"), body, fences, moves=moves))
        return body

    return register


def machine_claims() -> Sequence[MachineClaim]:
    """Every claim that is made of a machine driver."""
    for chapter in _CHAPTERS:
        importlib.import_module(f"hostler.testing.machines.{chapter}")
    return tuple(_CLAIMS)


async def check_machines(
    open_machines: Callable[[], Machines],
    *,
    setup: MachineSetup | None = None,
    only: Collection[str] | None = None,
) -> None:
    """Check that a driver does what the machines port promises; raises a group with every claim that does not hold.

    `open_machines()` returns a driver that is not open yet; each call gives a new one of the same place, and one at a
    time is open. `setup` says how large and how slow its machines are. `only` names the claims to check (see
    `machine_claims`).
    """
    await check_all("machines", machine_claims(), lambda claim: claim.check(open_machines, setup=setup), only)


# Words that claims are written in.


def core(machine: Machine | None) -> tuple[object, ...] | None:
    """What must be the same after a verb, however often it was begun."""
    if machine is None:
        return None
    m = machine
    return m.label, m.state, m.spec, m.fenced, m.tags, m.resets, m.restored, tuple(sorted(m.snapshots))
