"""The verbs of simulated machines.

A verb consists of atomic steps (`begun`, `done`). Between them it waits, and there a crash or a cancellation leaves the
machine in a state that shows what was begun. Repeating the verb finishes it. Verbs of one machine run one at a time.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Self

import msgspec

from hostler.drivers.machines import validation
from hostler.drivers.machines.channel import MachineLog
from hostler.drivers.machines.simulated import transitions
from hostler.drivers.machines.simulated.console import SimulatedConsole, output_of
from hostler.drivers.machines.simulated.fault import FaultSource, MachineFaults
from hostler.drivers.machines.simulated.host import Row, closed, switched_off
from hostler.drivers.machines.simulated.move import Moving, SimulatedIncoming
from hostler.errors import NotFound, Refused, Unavailable, Uncertain
from hostler.kit.clock import SystemClock
from hostler.kit.tasks import Closing
from hostler.model.inventory import Capacity
from hostler.model.vm import MachineState, Readiness, Step
from hostler.ports.machines import ChannelKind, Machine, Offer, RetainedMachine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence

    from hostler.drivers.machines.simulated.fault import Draw, Kind, Verb
    from hostler.drivers.machines.simulated.host import Interval, Kept, SimulatedHost
    from hostler.kit.clock import Clock
    from hostler.ports.machines import Channel, MachinePlan

CAPACITY = Capacity(cpus=64, memory_mib=256 * 1024, disk_gib=4096)
_CALLS_IN_A_ROW = 20
"""Calls answered before other tasks may run: a caller that never waits must not starve the task it polls for."""
_HANDED = (MachineState.ARRIVING, MachineState.DEPARTED)
_replace = msgspec.structs.replace


class SimulatedMachines(Closing, Moving):
    """Machines that are rows in a place. Accepts any image, or only `images` (the empty name is the default image)."""

    def __init__(
        self,
        place: SimulatedHost,
        *,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        capacity: Capacity = CAPACITY,
        faults: MachineFaults | None = None,
        images: Collection[str] | None = None,
        fences: bool = True,
    ) -> None:
        self.clock = clock or SystemClock()
        self._place, self._capacity, self._images = place, capacity, images
        self.step: Callable[[str], Awaitable[None]] | None = None
        """Awaited before and after each internal step with its name (`start.begun:before`)."""
        self._fences = fences
        self._source = FaultSource(faults or MachineFaults(), rng or random.Random())  # noqa: S311 - guards nothing
        self._locks: dict[str, asyncio.Lock] = {}
        self._consoles: dict[str, set[SimulatedConsole]] = {}
        self._seen: dict[str, tuple[Row, Machine]] = {}
        self._listed: tuple[int, Sequence[Machine]] = (-1, ())
        self._calls = 0
        self._down = False
        self._listeners: list[Callable[[str], None]] = []

    @property
    def name(self) -> str:
        return "simulated"

    @property
    def place(self) -> str:
        return self._place.id

    @property
    def fences(self) -> bool:
        return self._fences

    @property
    def faults(self) -> MachineFaults:
        return self._source.faults

    def script(self, verb: Verb, kind: Kind, *, vm: str = "", nth: int = 1, times: int = 1) -> None:
        """Let the `nth` call of `verb` from now, and `times` calls in total, meet a fault; with `vm` only its calls."""
        self._source.script(verb, kind, vm=vm, nth=nth, times=times)

    def down(self) -> None:
        """Be unreachable until `up`: every verb raises Unavailable. The machines do not change."""
        self._down = True

    def up(self) -> None:
        """Be reachable again."""
        self._down = False

    def intervals(self, vm: str) -> Sequence[Interval]:
        """Return when the machines of that name ran, on `clock.now()`, as they recorded it themselves."""
        return self._place.intervals(vm, self.clock.now())

    def crash(self, vm: str, detail: str = "it crashed") -> None:
        """Let a running machine fail by itself."""
        self.guest(vm, lambda row, now: switched_off(row, now, MachineState.FAILED, detail))

    async def __aenter__(self) -> Self:
        self._place.open(self)
        return self

    async def aclose(self) -> None:
        """Close the driver; the machines keep running."""
        self._place.close(self)
        for consoles in self._consoles.values():
            for console in consoles:
                console.stir()

    # The verbs

    def listen(self, changed: Callable[[str], None]) -> None:
        self._listeners.append(changed)

    async def offer(self) -> Offer:
        await self._draw_fault("capacity", "")
        images = None if self._images is None else tuple(sorted(self._images))
        return Offer(capacity=self._capacity, images=images)

    async def create(self, plan: MachinePlan) -> Machine:
        validation.check_plan(plan, self._images)
        vm = plan.label.vm
        async with self._verb("create", vm) as draw:
            row = self._row(vm)
            if row is not None and row.label != plan.label:
                raise Refused(f"machine {vm!r}: it carries another label ({row.label}); change it from its own node")
            if row is not None and (row.on is not None or row.state in _HANDED):
                return self._machine(row)
            if row is None or row.state is MachineState.CREATING:
                disk = self._cloned_disk(plan)
                await self._do("create", "begun", lambda _: [transitions.row_with_disk(self._begin(plan), disk)])
                await self._half(draw, "create")
            await self._do("create", "done", lambda _: [transitions.row_with_spec(self._require_row(vm), plan)])
            return self._machine(self._require_row(vm))

    async def start(self, vm: str) -> Machine:
        async with self._verb("start", vm) as draw:
            row = self._whole(vm)
            if row.on is not None and row.state is MachineState.RUNNING:
                return self._machine(row)
            self._check_arrived(row)
            if row.restoring is not None:
                await self._do("start", "restored", lambda _: [transitions.row_after_restore(self._require_row(vm))])
            if row.state is not MachineState.STARTING:
                await self._do("start", "begun", lambda now: self._power_on(vm, now))
            await self._half(draw, "start")
            broken = draw.kind == "broken"
            await self._do("start", "done", lambda now: self._boot(vm, now, broken=broken))
            if broken:
                raise Uncertain(f"machine {vm!r}: it failed while it started; inspect it")
            return self._machine(self._require_row(vm))

    async def stop(self, vm: str, *, grace: float) -> Machine:
        validation.check_seconds("grace", grace)
        async with self._verb("stop", vm) as draw:
            row = self._require_row(vm)
            self._check_arrived(row)
            if row.on is not None and grace > 0:
                await self._do("stop", "begun", lambda _: self._still_on(vm, MachineState.STOPPING))
                patience = grace if draw.kind == "deaf" else min(grace, draw.delay)
                await self._half(msgspec.structs.replace(draw, delay=patience), "stop")
            if row.state not in (MachineState.STOPPED, MachineState.CREATING):
                await self._do("stop", "done", lambda now: [self._put_off(vm, now)])
            return self._machine(self._require_row(vm))

    async def reset(self, vm: str, number: int) -> Machine:
        validation.check_number(number)
        async with self._verb("reset", vm) as draw:
            if self._require_row(vm).resets < number:
                await self._half(draw, "reset")
                await self._do("reset", "done", lambda _: [transitions.was_reset(self._require_row(vm), number)])
            return self._machine(self._require_row(vm))

    async def delete(self, vm: str) -> None:
        validation.check_text("machine", vm)
        async with self._verb("delete", vm) as draw:
            if self._row(vm) is None:
                return
            await self._do("delete", "begun", lambda now: [transitions.unmade(self._require_row(vm), now)])
            await self._half(draw, "delete")
            await self._do("delete", "done", lambda _: [], gone=vm)

    async def retain(self, vm: str, name: str) -> RetainedMachine | None:
        validation.check_text("machine", vm)
        validation.check_text("retained machine", name)
        async with self._verb("retain", vm) as draw:
            kept, row = self._place.contents.kept.get(name), self._row(vm)
            if row is None:
                return None if kept is None or kept.row.vm != vm else _retained(kept)
            if kept is not None:
                raise Refused(f"machine {vm!r}: another machine is retained as {name!r}; retain it under another name")
            if row.state is MachineState.CREATING or (row.state is MachineState.ARRIVING and not row.whole):
                await self._do("retain", "unmade", lambda _: [], gone=vm)
                return None
            await self._do("retain", "off", lambda now: [self._put_off(vm, now)])
            await self._half(draw, "retain")
            await self._do("retain", "done", lambda now: self._keep(vm, name, now))
            return _retained(self._place.contents.kept[name])

    async def retained(self) -> Sequence[RetainedMachine]:
        await self._draw_fault("retained", "")
        return tuple(map(_retained, self._place.contents.kept.values()))

    async def reinstate(self, name: str, plan: MachinePlan) -> Machine:
        validation.check_text("retained machine", name)
        validation.check_plan(plan, None)
        vm = plan.label.vm
        async with self._verb("reinstate", vm) as draw:
            kept, row = self._place.contents.kept.get(name), self._row(vm)
            if kept is None:
                if row is None or row.state is MachineState.CREATING:
                    raise NotFound(f"machine {vm!r}: nothing is retained as {name!r} here; list what is retained")
                return self._machine(row)
            if row is not None and row.state is not MachineState.CREATING:
                raise Refused(f"machine {vm!r}: it exists, {row.state}; retain or delete it first")
            await self._half(draw, "reinstate")
            await self._do("reinstate", "done", lambda _: self._reinstate(name, plan))
            return self._machine(self._require_row(vm))

    async def discard(self, name: str) -> None:
        validation.check_text("retained machine", name)
        async with self._verb("discard", name) as draw:
            if name in self._place.contents.kept:
                await self._half(draw, "discard")
                await self._do("discard", "done", lambda _: self._discard(name))

    async def inspect(self, vm: str) -> Machine | None:
        await self._draw_fault("inspect", vm)
        row = self._row(vm)
        return None if row is None else self._machine(row)

    async def list(self) -> Sequence[Machine]:
        await self._draw_fault("list", "")
        self._now()
        contents = self._place.contents
        if self._listed[0] != contents.changes:
            self._listed = (contents.changes, tuple(self._machine(row) for row in contents.rows.values()))
        return self._listed[1]

    async def snapshot(self, vm: str, name: str) -> Machine:
        validation.check_text("snapshot", name)
        async with self._verb("snapshot", vm) as draw:
            row = self._here(vm)
            if name not in row.snapshots:
                if row.restoring is not None:
                    raise Refused(f"machine {vm!r}: its last restore was interrupted; restore or start it first")
                await self._half(draw, "snapshot")
                await self._do("snapshot", "done", lambda _: [transitions.with_snapshot(self._require_row(vm), name)])
            return self._machine(self._require_row(vm))

    async def restore(self, vm: str, name: str, number: int) -> Machine:
        validation.check_text("snapshot", name)
        validation.check_number(number)
        async with self._verb("restore", vm) as draw:
            row = self._here(vm)
            if row.restored >= number:
                return self._machine(row)
            if name not in row.snapshots:
                raise Refused(f"machine {vm!r}: no snapshot {name!r}; it has {_names(row.snapshots)}")
            await self._do(
                "restore", "begun", lambda now: [transitions.restoring(self._require_row(vm), now, name, number)]
            )
            await self._half(draw, "restore")
            await self._do("restore", "done", lambda _: [transitions.row_after_restore(self._require_row(vm))])
            return self._machine(self._require_row(vm))

    async def drop_snapshot(self, vm: str, name: str) -> Machine:
        validation.check_text("snapshot", name)
        async with self._verb("drop_snapshot", vm) as draw:
            row = self._require_row(vm)
            if name in row.snapshots:
                if row.restoring is not None and row.restoring[0] == name:
                    raise Refused(f"machine {vm!r}: it is being restored to {name!r}; restore or start it first")
                await self._half(draw, "drop_snapshot")
                await self._do(
                    "drop_snapshot", "done", lambda _: [transitions.without_snapshot(self._require_row(vm), name)]
                )
            return self._machine(self._require_row(vm))

    def channel(self, vm: str, kind: ChannelKind) -> Channel:
        if kind in (ChannelKind.ARRIVAL_STATE, ChannelKind.ARRIVAL_DISK):
            return SimulatedIncoming(self, vm)
        if kind is ChannelKind.LOG:
            return MachineLog(lambda: output_of(self, vm))
        if kind is not ChannelKind.CONSOLE:
            raise Refused(f"machine {vm!r}: a simulated machine has no channel {kind}; use its console")
        return SimulatedConsole(self, vm)

    async def hold(self, seconds: float, *, since: float | None = None) -> None:
        validation.check_finite("hold", seconds)
        asked = self.clock.now()
        if since is not None:
            validation.check_finite("since", since)
            asked = min(asked, since)
        await self._draw_fault("hold", "")
        # Counted from the request: a hold that was slow to arrive must not last longer.
        until = asked + max(0.0, seconds)
        if self.step is not None:
            await self.step("hold.done:before")
        self._place.hold(until, self._now())
        self._stir(self._consoles)
        if self.step is not None:
            await self.step("hold.done:after")

    # For consoles

    def expected(self, vm: str) -> Row:
        return self._require_row(vm)

    async def plug(self, console: SimulatedConsole, vm: str) -> Row:
        await self._draw_fault("console", vm)
        row = self._require_row(vm)
        if row.on is None:
            raise NotFound(f"machine {vm!r}: it is off and has no console; start it first")
        self._consoles.setdefault(vm, set()).add(console)
        return row

    def unplug(self, console: SimulatedConsole, vm: str) -> None:
        consoles = self._consoles.get(vm, set())
        consoles.discard(console)
        if not consoles:
            self._consoles.pop(vm, None)

    def running(self, vm: str, since: float) -> Row | None:
        row = self._row(vm)
        return row if row is not None and row.on == since else None

    def ends_at(self, row: Row) -> float | None:
        return self._place.contents.held_until if row.fenced else None

    def guest(self, vm: str, make: Callable[[Row, float], Row]) -> None:
        """Apply a change that a running machine makes to itself."""
        now = self._now()
        row = self._place.contents.rows.get(vm)
        if row is not None and row.on is not None:
            self._place.put([make(row, now)])
            self._stir([vm])
            for changed in self._listeners:
                changed(vm)

    # Inside

    @asynccontextmanager
    async def _verb(self, verb: Verb, vm: str) -> AsyncIterator[Draw]:
        """Run verbs that change a machine one at a time; yield the fault drawn for the call."""
        lock = self._locks.setdefault(vm, asyncio.Lock())
        try:
            async with lock:
                draw = await self._draw_fault(verb, vm, waits=False)
                if draw.kind == "never":
                    raise _lost_error(verb, vm)
                yield draw
                if draw.kind == "lost":
                    raise _lost_error(verb, vm)
        finally:
            if not lock.locked() and self._locks.get(vm) is lock and not getattr(lock, "_waiters", None):
                del self._locks[vm]

    async def _draw_fault(self, verb: Verb, vm: str, *, waits: bool = True) -> Draw:
        """Draw the fault of this call. Raises Closed or Unavailable if that ends the call."""
        self._now()
        draw = self._source.draw(verb, vm)
        self._calls += 1
        if waits and draw.delay:
            await self.clock.sleep(draw.delay)
        elif self._calls % _CALLS_IN_A_ROW == 0:
            await asyncio.sleep(0)  # by count: a simulation must not depend on the speed of the host
        if self._down or draw.kind == "unavailable":
            raise Unavailable(f"{verb}: the simulated machines are unreachable; nothing was changed, try again")
        return draw

    async def _half(self, draw: Draw, verb: Verb) -> None:
        """Wait between the steps of a verb; the verb may end here."""
        if draw.delay or self.step is not None:
            await self.clock.sleep(draw.delay)
        if draw.kind == "half":
            raise Uncertain(f"{verb}: interrupted half way; inspect the machine")

    async def _do(
        self, verb: Verb, part: str, make: Callable[[float], Iterable[Row]], *, gone: str | None = None
    ) -> None:
        """Run one step: apply `make` to the current state, atomically."""
        if self.step is not None:
            await self.step(f"{verb}.{part}:before")
        now = self._now()
        rows = list(make(now))
        self._place.put(rows)
        if gone is not None:
            self._place.delete(gone, now)
            self._seen.pop(gone, None)
        self._stir(row.vm for row in rows)
        if self.step is not None:
            await self.step(f"{verb}.{part}:after")

    def _now(self) -> float:
        """Return the current time, after stopping machines whose hold has expired."""
        if not self._place.belongs_to(self):
            raise closed("this verb")
        now = self.clock.now()
        self._place.expire(now)
        return now

    def _row(self, vm: str) -> Row | None:
        self._now()
        return self._place.contents.rows.get(vm)

    def _require_row(self, vm: str) -> Row:
        validation.check_text("machine", vm)
        row = self._row(vm)
        if row is None:
            raise NotFound(f"machine {vm!r}: not found on this node")
        return row

    def _whole(self, vm: str) -> Row:
        row = self._require_row(vm)
        if row.state is MachineState.CREATING:
            raise Refused(f"machine {vm!r}: its creation is incomplete; create it again")
        return row

    def _here(self, vm: str) -> Row:
        row = self._whole(vm)
        if row.state in _HANDED:
            raise Refused(f"machine {vm!r}: it is being migrated; start or stop it first")
        return row

    def _check_arrived(self, row: Row) -> None:
        if row.state is MachineState.ARRIVING and not row.whole:
            raise Refused(f"machine {row.vm!r}: its migration to this node is incomplete; delete it, or send the rest")

    def _cloned_disk(self, plan: MachinePlan) -> str:
        origin = plan.spec.origin
        if origin is None:
            return ""
        row = self._row(origin.vm)
        if row is None or origin.snapshot not in row.snapshots:
            raise Refused(
                f"machine {plan.label.vm!r}: its origin, snapshot {origin.snapshot!r} of {origin.vm!r}, is not on this"
                " node; delete this machine, and clone another snapshot"
            )
        return row.snapshots[origin.snapshot]

    def _put_off(self, vm: str, now: float) -> Row:
        row = self._require_row(vm)
        return switched_off(transitions.goes_on(row) if row.state in _HANDED else row, now)

    def _keep(self, vm: str, name: str, now: float) -> Sequence[Row]:
        if name in self._place.contents.kept:
            raise Unavailable(f"machine {vm!r}: another one was retained as {name!r} during the call; try again")
        self._place.keep(vm, name, now, self.clock.wall())
        self._seen.pop(vm, None)
        return ()

    def _reinstate(self, name: str, plan: MachinePlan) -> Sequence[Row]:
        kept = self._place.contents.kept.get(name)
        if kept is None:
            raise Unavailable(f"machine {plan.label.vm!r}: {name!r} is no longer retained; list what is retained")
        self._place.reinstate(name, transitions.row_in_service(kept.row, plan))
        return ()

    def _discard(self, name: str) -> Sequence[Row]:
        self._place.discard(name)
        return ()

    def _begin(self, plan: MachinePlan) -> Row:
        row = self._row(plan.label.vm)
        contents = self._place.contents
        begun = transitions.new_row(plan, contents.next_number if row is None else row.number)
        return _replace(begun, disk_id=f"{self._place.id}:{contents.changes}", disk_made_at=self.clock.wall())

    def _still_on(self, vm: str, state: MachineState) -> Sequence[Row]:
        row = self._require_row(vm)
        return [] if row.on is None else [_replace(row, state=state, detail="")]

    def _power_on(self, vm: str, now: float) -> Sequence[Row]:
        """Power a machine on. It runs from the first step of its start, so an interrupted start is visible."""
        row = self._require_row(vm)
        self._check_held(row, now)
        if row.state in _HANDED:
            resumed = row.memory
            row = transitions.goes_on(row)
            if resumed:  # it resumes: there is no boot, and nothing that could be interrupted
                return [_replace(row, state=MachineState.RUNNING, detail="", on=now, ready=self.clock.wall())]
        off = [] if row.on is None else [switched_off(row, now)]  # an interrupted stop is finished first
        return [*off, _replace(off[0] if off else row, state=MachineState.STARTING, detail="", on=now)]

    def _boot(self, vm: str, now: float, *, broken: bool) -> Sequence[Row]:
        row = self._require_row(vm)
        if row.on is None:
            self._check_held(row, now)
            raise Uncertain(f"machine {vm!r}: it ended while it started; inspect it")
        if broken:
            return [switched_off(row, now, MachineState.FAILED, "it failed while it started")]
        if row.state is MachineState.RUNNING:
            return []
        wrote = {"boots": row.boots + 1, "writes": row.writes + 1}
        return [_replace(row, state=MachineState.RUNNING, detail="", ready=self.clock.wall(), **wrote)]

    def _check_held(self, row: Row, now: float) -> None:
        until = self._place.contents.held_until
        if row.fenced and (until is None or now >= until):
            raise Unavailable(f"machine {row.vm!r}: it is fenced and not held, so it does not start; hold it first")

    def _machine(self, row: Row) -> Machine:
        """Return the row as defined by the port; built once for each state, because reads are far more frequent."""
        seen = self._seen.get(row.vm)
        if seen is not None and seen[0] is row:
            return seen[1]
        being_restored = "" if row.restoring is None else f"a restore to {row.restoring[0]!r} is incomplete"
        machine = Machine(
            label=row.label,
            id=f"sim-{self._place.id[:8]}-{row.number}",
            state=row.state,
            spec=row.spec,
            fenced=row.fenced,
            tags=row.tags,
            address=seen[1].address if seen else transitions.address(self._place.id, row.vm),
            detail=row.detail or being_restored,
            resets=row.resets,
            restored=row.restored,
            moved=row.moved,
            snapshots=tuple(row.snapshots),
            readiness=None if row.ready is None else Readiness(step=Step.AVAILABLE, since=row.ready),
        )
        self._seen[row.vm] = (row, machine)
        return machine

    def _stir(self, vms: Iterable[str]) -> None:
        if self._consoles:
            for vm in vms:
                for console in self._consoles.get(vm, ()):
                    console.stir()


def _lost_error(verb: Verb, vm: str) -> Uncertain:
    return Uncertain(f"{verb} {vm!r}: the answer was lost; it may have happened, inspect the machine")


def _retained(kept: Kept) -> RetainedMachine:
    row = kept.row
    return RetainedMachine(
        name=kept.name,
        label=row.label,
        machine_name=row.name,
        spec=row.spec,
        snapshots=tuple(row.snapshots),
        retained_at=kept.at,
        disk_bytes=len(row.disk) + sum(map(len, row.snapshots.values())),
    )


def _names(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "none"
