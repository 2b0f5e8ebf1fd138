"""A simulated world inside a server, in its own thread: users set its pace, inject faults and repair hardware.

All methods are called on the server's event loop and run in the world's thread, at the present virtual instant.
"""

from __future__ import annotations

import asyncio
import difflib
import hashlib
import math
import traceback
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from hostler.errors import Conflict, HostlerError, Invalid, NotFound, Refused
from hostler.model.name import fold
from hostler.model.node import Lifecycle
from hostler.model.sim_api import (
    FaultKind,
    FaultKindPage,
    FaultNumber,
    FaultView,
    HardwareCommandView,
    HardwareVerb,
    Mode,
    ProposalPage,
    ProposalView,
    SimComponent,
    SimLogEntry,
    SimLogPage,
    SimRack,
    SimReplica,
    SimView,
    StepView,
)
from hostler.sim.fault import FAULTS, fault_of
from hostler.sim.hardware import BladeState, Target, perform, propose
from hostler.sim.hardware.event import Connect, Disconnect, PowerOff, PowerOn, Start, Stop
from hostler.sim.hardware.racks import IN_VAIN
from hostler.sim.journal import (
    FORMAT,
    MOST,
    VERSION,
    AutoRepair,
    Begin,
    Command,
    Entry,
    Header,
    Inject,
    Journal,
    JournaledStore,
    Lift,
    Repaired,
    StoreAct,
    saved_bytes,
)
from hostler.sim.thread_bridge import BridgedClock, BridgedStore, across
from hostler.sim.time_control import Diverged, PacedLoop, PacedThread
from hostler.sim.world import World

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from hostler.model.sim_api import FaultInject, HardwareCommand, ModeSet, RepairMode, StepGrant
    from hostler.sim.fault import Fault
    from hostler.sim.hardware import Event, Proposal
    from hostler.sim.journal import Act, Saved, WorldAct
    from hostler.sim.time_control import EventPosition, Step
    from hostler.sim.world import WorldConfig
    from hostler.sim.world.event_log import LogEntry

T = TypeVar("T")

REPAIR_EVERY = 5.0
"""Virtual seconds between two passes of the automatic repair."""
_COMMANDS: dict[HardwareVerb, Callable[[str], Event]] = {
    HardwareVerb.POWER_ON: PowerOn,
    HardwareVerb.POWER_OFF: PowerOff,
    HardwareVerb.CONNECT: Connect,
    HardwareVerb.DISCONNECT: Disconnect,
    HardwareVerb.START: Start,
    HardwareVerb.STOP: Stop,
}
KEPT = 100_000
"""Approximate number of log entries to keep; older entries are dropped."""
FAILURES = 20
SHOWN = 500
"""Most faults, proposals and faulty components in one view."""
WITHIN = 10.0
"""Real seconds to wait for a world that is busy with something else."""


@dataclass(frozen=True, kw_only=True)
class Story:
    """A world and the timeline that runs in it."""

    name: str
    about: str = ""
    seed: int = 1
    plan: WorldConfig
    play: Callable[[World, Callable[[int], None]], Awaitable[None]] | None = None
    """Runs the timeline. It reports how many actions are still to come and returns when there are none."""
    scenario: str = ""
    """The scenario file with everything included, which a saved simulation contains. Empty: it cannot be saved."""
    release: str = ""
    """The release of Hostler. Another release may not be able to resume the simulation."""


class Simulation:
    """A running simulation. `told` is called for every failure inside the world."""

    def __init__(self, story: Story, *, told: Callable[[str], None], within: float = WITHIN) -> None:
        self._story, self._told, self._within = story, told, within
        self._loop = PacedLoop(story.seed)
        self._world: World | None = None
        self._begun: Future[World] = Future()
        self._failures: deque[str] = deque(maxlen=FAILURES)
        self._to_come = 0
        self._commands = 0
        self._repairing: asyncio.Task[None] | None = None
        self._thread = PacedThread(self._loop, self._main, self._note_failure)
        self._epoch = 0.0
        self._journal = Journal()
        self._log_digest = hashlib.sha256()
        self._resumed: Future[str] = Future()
        """The digest of the world at the place where it was saved."""

    async def start(self) -> None:
        """Wait until the world has started; time runs at full speed. Raise whatever prevents the start."""
        self._thread.start()
        await asyncio.wrap_future(self._begun)

    async def resume(self, saved: Saved, name: str) -> None:
        """Replay a saved simulation up to the place where it was saved, then pause time.

        Replaces `start`, `boot` and `play`. Refused: the state differs, because another release of Hostler runs it.
        """
        header = saved.header
        script: list[tuple[EventPosition, Callable[[], None]]] = [
            (each.place, self._again(each)) for each in saved.entries
        ]
        end = (header.place, lambda: self._stand_at(header.epoch))
        self._loop.follow([*script, end], self._resumed.set_exception)
        self._thread.start()
        found, why = "", "its state is different"
        await asyncio.wrap_future(self._begun)
        try:
            found = await asyncio.wrap_future(self._resumed)
        except Diverged as error:
            why = str(error)
        if found != header.digest:
            release = self._story.release
            other = "" if header.release == release else f"; use Hostler {header.release}, which wrote it"
            raise Refused(
                f"{name}: Hostler {release} does not reach the saved state ({why}){other}; the file is unchanged"
            )

    async def place(self) -> EventPosition:
        """Return the present position of the world."""
        return await self._inside(lambda: self._loop.place)

    async def save(self) -> bytes:
        """Return the file of the simulation in its present state.

        Refused: too many inputs. Invalid: it has no scenario.
        """
        if not self._story.scenario:
            raise Invalid("simulation: not made from a scenario, so it cannot be saved")

        def taken() -> tuple[Header, list[bytes]]:
            if self._journal.full:
                raise Refused(
                    f"simulation: more than {MOST // 1024 // 1024} MiB of inputs were written; it can no longer be"
                    " saved"
                )
            pace = self._loop.pace
            header = Header(
                format=FORMAT,
                version=VERSION,
                release=self._story.release,
                scenario=self._story.scenario,
                seed=self._story.seed,
                mode=pace.mode,
                rate=pace.rate if math.isfinite(pace.rate) else None,
                epoch=pace.epoch,
                place=self._loop.place,
                entries=len(self._journal.lines),
                digest=self._digest(),
            )
            return header, list(self._journal.lines)

        header, lines = await self._inside(taken)
        return await asyncio.to_thread(saved_bytes, header, lines)

    async def stop(self, *, within: float) -> None:
        """Stop the simulation, within so many real seconds."""
        await asyncio.to_thread(self._thread.stop, within=within)

    def store(self) -> BridgedStore:
        """Return the world's store without faults, for requests that are not part of the simulation."""
        aside = self._running_world().store.aside()
        return BridgedStore(JournaledStore(aside, self._perform), self._loop)

    def clock(self) -> BridgedClock:
        """Return the world's clock."""
        return BridgedClock(self._loop, epoch=self._epoch)

    def rate(self) -> float:
        """Return the virtual seconds per real second; 0.0: time is paused or jumps."""
        pace = self._loop.pace
        return pace.rate if pace.mode is Mode.MEASURED else 0.0

    async def boot(self, *, within: float) -> bool:
        """Run at full speed until there is a leader and all nodes are on duty, then pause time.

        Return whether that happened within so many virtual seconds.
        """

        async def booted() -> bool:
            world = self._running_world()
            done = await world.until(_boot_condition(world), within=within)
            self._loop.change(Mode.MANUAL, epoch=self._loop.pace.epoch)
            return done

        return await across(self._loop, booted)

    async def play(self, mode: Mode, *, rate: float | None = None) -> None:
        """Start the timeline, in this mode."""

        def begin() -> None:
            self._loop.change(mode, rate=rate, epoch=self._loop.pace.epoch)
            self._perform(Begin())

        await self._inside(begin)

    async def go_on(self, mode: Mode, *, rate: float | None = None) -> None:
        """Continue in this mode, after `resume`."""
        await self._inside(lambda: self._loop.change(mode, rate=rate, epoch=self._loop.pace.epoch))

    async def hold(self) -> None:
        """Pause time. Pending steps are dropped, and their callers get Conflict."""
        await self._inside(lambda: self._loop.change(Mode.MANUAL, epoch=self._loop.pace.epoch))

    # Requests of users

    async def view(self) -> SimView:
        """Return the complete state of the simulation."""
        return await self._inside(self._view)

    async def change(self, wanted: ModeSet) -> None:
        """Change the mode. Conflict: the epoch is over."""
        await self._inside(lambda: self._loop.change(wanted.mode, rate=wanted.rate, epoch=wanted.epoch))

    async def step(self, wanted: StepGrant, *, within: float) -> StepView:
        """Advance time; return the step when it is done, or after `within` real seconds."""

        def grant() -> Step:
            return self._loop.grant(seconds=wanted.seconds, events=wanted.events, epoch=wanted.epoch)

        step = await self._inside(grant)
        done = asyncio.wrap_future(step.done)
        await asyncio.wait((done,), timeout=within)
        if not done.done():
            done.add_done_callback(lambda done: done.exception())  # the caller no longer waits for it
            return _step(step, now=self._loop.time())
        return _step(step, now=done.result(), done=True)

    async def inject(self, wanted: FaultInject) -> FaultView:
        """Inject a fault. Invalid: no such fault. NotFound: no such component."""
        fields = {name: value for name, value in msgspec.to_builtins(wanted).items() if value not in (None, "")}
        fault_of(fields)
        done: FaultView = await self._inside(lambda: self._perform(Inject(fields)))
        return done

    def kinds(self) -> FaultKindPage:
        """Return all kinds of faults."""
        return FaultKindPage(items=tuple(map(_kind, FAULTS.values())))

    async def lift(self, id_: str) -> FaultView:
        """Lift a fault. NotFound: the fault is not active."""

        done: FaultView = await self._inside(lambda: self._perform(Lift(id_)))
        return done

    async def command(self, wanted: HardwareCommand) -> HardwareCommandView:
        """Switch hardware on or off. Conflict: the component has changed since the command was decided."""
        if wanted.command not in _COMMANDS:
            raise Invalid(f"command {wanted.command}: unknown; the commands are {', '.join(_COMMANDS)}")
        done: HardwareCommandView = await self._inside(lambda: self._perform(Command(wanted)))
        return done

    async def proposals(self) -> ProposalPage:
        """Return the proposed repairs."""
        return await self._inside(self._page)

    async def repair(self, id_: str) -> ProposalView:
        """Perform a proposed repair. NotFound: it is no longer proposed."""

        done: ProposalView = await self._inside(lambda: self._perform(Repaired(id_)))
        return done

    async def auto_repair(self, wanted: RepairMode) -> ProposalPage:
        """Turn automatic repair on or off. It performs the repairs for which commands are enough."""

        done: ProposalPage = await self._inside(lambda: self._perform(AutoRepair(wanted.automatic)))
        return done

    async def log(self, *, after: int, limit: int, last: bool) -> SimLogPage:
        """Return log entries after the entry of that number; with `last`, the newest of them."""

        def read() -> SimLogPage:
            log = self._running_world().log
            first = log.entries[0].number if log.entries else 1
            start = max(0, after + 1 - first)
            if last:
                start = max(start, len(log.entries) - limit)
            found = log.entries[start : start + limit]
            more = start + limit < len(log.entries)
            return SimLogPage(
                items=tuple(map(_entry, found)), after=str(found[-1].number) if more else None, total=len(log)
            )

        return await self._inside(read)

    # Changes to the world

    def _perform(self, act: Act) -> Any:
        """Record an action in the journal, then perform it, between two rounds of the world."""
        self._running_world()
        self._journal.add(self._loop.place, act)
        return self._loop.enter(lambda: self._done(act))

    def _again(self, entry: Entry) -> Callable[[], None]:
        """Return a function that repeats a recorded action; an action that failed fails again."""

        def again() -> None:
            self._journal.add(entry.place, entry.act)
            with suppress(HostlerError):
                self._done(entry.act)

        return again

    def _stand_at(self, epoch: int) -> None:
        self._loop.stand_still(epoch=epoch + 1)
        self._resumed.set_result(self._digest())

    def _done(self, act: Act) -> Any:
        if isinstance(act, StoreAct):
            return act.done(self._running_world().store.aside())
        return self._done_to_world(act)

    def _done_to_world(self, act: WorldAct) -> Any:
        match act:
            case Begin():
                if self._story.play is not None:
                    self._running_world().spawn(self._play(self._story.play), "timeline")
            case Inject(fault=fields):
                return self._inject(fields)
            case Lift(id=id_):
                return self._lift(id_)
            case Command(command=command):
                return self._switch(command)
            case Repaired(id=id_):
                return self._repair(id_)
            case AutoRepair(automatic=automatic):
                return self._automate(automatic)
        return None

    def _inject(self, fields: dict[str, Any]) -> FaultView:
        fault = fault_of(fields)
        try:
            id_ = self._running_world().inject(fault)
        except NotFound as error:
            raise NotFound(f"{error}{self._nearest(fault.on)}") from None
        return FaultView(id=id_, fault=fault.name, on=fault.on, text=fault.told())

    def _lift(self, id_: str) -> FaultView:
        world = self._running_world()
        fault = world.faults.get(id_)
        world.lift(id_)
        if fault is None:
            raise NotFound(f"fault {id_}: not active")
        return FaultView(id=id_, fault=fault.name, on=fault.on, text=fault.told())

    def _switch(self, wanted: HardwareCommand) -> HardwareCommandView:
        world = self._running_world()
        event, now = _COMMANDS[wanted.command](wanted.on), self._loop.time()
        try:
            world.racks.check_guard(event, wanted.guard, now=now)
        except NotFound as error:
            raise NotFound(f"{error}{self._nearest(wanted.on)}") from None
        self._commands += 1
        id_ = f"command-{self._commands}"
        text = f"{id_}: {wanted.command} {fold(wanted.on)}, decided at {wanted.guard:g} s"
        world.log.add("command", fold(wanted.on), text, id=id_)
        changes = [change.text for change in world.apply(event, cause=id_)]
        followed = not any(f", {IN_VAIN}: " in text for text in changes)
        return HardwareCommandView(
            id=id_, command=wanted.command, on=fold(wanted.on), at=now, changes=tuple(changes), followed=followed
        )

    def _repair(self, id_: str) -> ProposalView:
        proposals = {proposal.id: proposal for proposal in self._proposals()}
        found = proposals.get(id_)
        if found is None:
            close = difflib.get_close_matches(id_, proposals, 3) or list(proposals)[:3]
            raise NotFound(f"repair {id_}: not proposed; the proposals are {', '.join(close) or 'none'}")
        self._mend(found)
        return _proposal(found)

    def _automate(self, automatic: bool) -> ProposalPage:
        if self._repairing is not None and not automatic:
            self._repairing.cancel()
            self._repairing = None
        elif self._repairing is None and automatic:
            self._repairing = self._running_world().spawn(self._repair_by_itself(), "automatic repair")
        return self._page()

    def _digest(self) -> str:
        """Return the digest of the world: time, random state, log, store, hardware and faults."""
        world = self._running_world()
        found = hashlib.sha256(self._log_digest.digest())
        found.update(repr((self._loop.place, self._loop.rng.getstate(), self._repairing is not None)).encode())
        for part in world.store.aside().parts():
            found.update(part)
        for rack in world.racks.racks():
            for component in sorted(world.racks.wiring(rack).kinds):
                found.update(f"{component} {world.racks.state(component).text}\n".encode())
        for id_, fault in world.faults.items():
            found.update(f"{id_} {fault.told()}\n".encode())
        return found.hexdigest()

    # In the world's thread

    async def _main(self) -> None:
        story = self._story
        try:
            world = World(story.plan, seed=story.seed, loop=self._loop, tell=self._note_entry)
            await world.__aenter__()
        except Exception as error:  # noqa: BLE001 - raised by `start`
            self._begun.set_exception(error)
            return
        try:
            self._world = world
            self._epoch = world.clock.wall() - world.clock.now()
            self._begun.set_result(world)
            await asyncio.Event().wait()
        finally:
            await world.__aexit__(None, None, None)

    async def _play(self, play: Callable[[World, Callable[[int], None]], Awaitable[None]]) -> None:
        def to_come(number: int) -> None:
            self._to_come = number

        try:
            await play(self._running_world(), to_come)
        except Exception as error:  # noqa: BLE001 - the world continues without its timeline
            self._note_failure("the timeline ended", error)

    def _note_entry(self, entry: LogEntry) -> None:
        self._log_digest.update(msgspec.json.encode(entry))
        entries = self._world.log.entries if self._world is not None else []
        if len(entries) > 2 * KEPT:
            del entries[:-KEPT]

    def _note_failure(self, what: str, error: BaseException) -> None:
        """Record a failure. Called in the world's thread."""
        text = f"{what}: {type(error).__name__}: {error}"
        place = traceback.extract_tb(error.__traceback__)[-1:]
        if place and not isinstance(error, HostlerError):
            text += f" ({place[0].name}, {place[0].filename.rpartition('/')[2]}:{place[0].lineno})"
        self._failures.append(text)
        self._told(text)

    def _running_world(self) -> World:
        if self._world is None:
            raise Conflict("simulation: not started yet; try again")
        return self._world

    async def _inside(self, do: Callable[[], T]) -> T:
        async def done() -> T:
            return do()

        try:
            return await across(self._loop, done, within=self._within)
        except TimeoutError:
            raise Conflict(f"simulation: busy for more than {self._within:g} s; try again later") from None

    # Repairs

    def _proposals(self) -> tuple[Proposal, ...]:
        racks = self._running_world().racks
        return propose(Target(racks.wiring(name).plan for name in racks.racks()), racks)

    def _page(self) -> ProposalPage:
        return ProposalPage(
            items=tuple(map(_proposal, self._proposals()[:SHOWN])), automatic=self._repairing is not None
        )

    def _mend(self, proposal: Proposal) -> None:
        """Perform a repair. It also lifts the faults on the component."""
        world = self._running_world()
        world.log.add("repair", proposal.component, f"{proposal.text}: {proposal.reason}")
        for id_, fault in tuple(world.faults.items()):
            if fold(fault.on) == proposal.component:
                world.lift(id_)
        for event in perform(proposal):
            world.apply(event, cause=proposal.id)

    async def _repair_by_itself(self) -> None:
        while True:
            for proposal in self._proposals():
                if proposal.automatic:
                    self._mend(proposal)
            await asyncio.sleep(REPAIR_EVERY)

    # Views

    def _view(self) -> SimView:
        world, loop, story = self._running_world(), self._loop, self._story
        pace, now = loop.pace, loop.time()
        failures = (*self._failures, *(f"{name} ended: {error!r}" for name, error in world.failures[-FAILURES:]))
        return SimView(
            name=story.name,
            about=story.about,
            seed=story.seed,
            mode=pace.mode,
            rate=pace.rate if math.isfinite(pace.rate) else 0.0,
            epoch=pace.epoch,
            now=round(now, 6),
            wall=world.clock.wall(),
            steps=tuple(_step(step, now=now) for step in loop.steps_granted),
            next_at=loop.next_at(),
            auto_repair=self._repairing is not None,
            faults=tuple(
                FaultView(id=id_, fault=fault.name, on=fault.on, text=fault.told())
                for id_, fault in list(world.faults.items())[:SHOWN]
            ),
            proposals=tuple(map(_proposal, self._proposals()[:SHOWN])),
            racks=self._racks(),
            replicas=tuple(
                SimReplica(name=host.name, runs=host.alive, leads=host.leads) for host in world.replicas.values()
            ),
            log=len(world.log),
            timeline=self._to_come,
            failures=failures,
        )

    def _racks(self) -> tuple[SimRack, ...]:
        """Return the racks. The cost depends on the number of faulty components."""
        racks = self._running_world().racks
        amiss: dict[str, list[SimComponent]] = {}
        down: dict[str, int] = {}
        for number, address in enumerate(racks.amiss):
            state, rack = racks.state(address), address.partition("/")[0]
            down[rack] = down.get(rack, 0) + (isinstance(state, BladeState) and not state.working)
            if number < SHOWN:
                amiss.setdefault(rack, []).append(SimComponent(component=address, state=state.text))
        found = []
        for name in racks.racks():
            blades = sum(1 for _ in racks.wiring(name).of("blade"))
            components = tuple(sorted(amiss.get(name, ()), key=lambda each: each.component))
            found.append(SimRack(name=name, blades=blades, working=blades - down.get(name, 0), amiss=components))
        return tuple(found)

    def _nearest(self, name: str) -> str:
        """Return a suggestion for a misspelled name."""
        world = self._running_world()
        names = [*world.racks.racks(), *world.replicas]
        rack = fold(name).partition("/")[0]
        if rack in world.racks.racks():
            names = list(world.racks.wiring(rack).kinds)
        close = [] if fold(name) in names else difflib.get_close_matches(fold(name), names, 3, 0.5)
        return f"; did you mean {' or '.join(close)}?" if close else ""


def _kind(fault: type[Fault]) -> FaultKind:
    fields = msgspec.structs.fields(fault)
    numbers = tuple(
        FaultNumber(name=field.encode_name, default=msgspec.json.encode(field.default).decode().strip('"'))
        for field in fields
        if field.encode_name not in ("on", "for", "names")
    )
    about = " ".join((fault.__doc__ or "").split())
    return FaultKind(fault=str(fault.__struct_config__.tag), about=about, places=fault.place, numbers=numbers)


def _step(step: Step, *, now: float, done: bool = False) -> StepView:
    return StepView(id=step.id, epoch=step.epoch, asked_at=step.asked_at, done=done, now=round(now, 6))


def _proposal(proposal: Proposal) -> ProposalView:
    return ProposalView(
        id=proposal.id,
        what=proposal.kind,
        component=proposal.component,
        text=proposal.text,
        reason=proposal.reason,
        automatic=proposal.automatic,
    )


def _entry(entry: LogEntry) -> SimLogEntry:
    return SimLogEntry(
        number=entry.number,
        at=entry.at,
        what=entry.kind,
        component=entry.component,
        text=entry.text,
        cause=entry.cause,
        id=entry.id,
    )


def _boot_condition(world: World) -> Callable[[], Coroutine[Any, Any, bool]]:
    async def met() -> bool:
        leader = world.leader()
        if leader is None or leader.plane is None:
            return False
        view = leader.plane.view
        for node, host in world.blades.items():
            member = view.members.get(node=node)
            if host.runs and (member is None or member.value.lifecycle is Lifecycle.JOINING):
                return False
        return True

    return met
