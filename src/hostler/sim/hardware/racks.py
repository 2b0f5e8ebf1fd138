"""All racks: apply an event to a component, and propagate it to the components that depend on it."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from hostler.errors import Conflict, Invalid, NotFound
from hostler.model.name import fold
from hostler.sim.hardware import blade as blades
from hostler.sim.hardware.blade import BladeState, Due, Life, Supply, Timer, timer_text
from hostler.sim.hardware.event import Crash, Repair, Replace, Start, Stop, event_text, few_of, is_command
from hostler.sim.hardware.switch import CableState, Ignored, PduState, Switch, TorState, step, step_tor
from hostler.sim.hardware.wiring import Wiring, affected_components

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Iterator

    from hostler.sim.hardware.blade import BladeEvent
    from hostler.sim.hardware.event import Event
    from hostler.sim.hardware.wiring import Cable, RackPlan


State = BladeState | PduState | TorState | CableState


IN_VAIN = "without effect"
"""Marks the reason of a change that was requested but did not happen."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A change of one component. `before` and `after` are equal if the component ignored a command."""

    component: str
    before: State | None
    """None: the component is new."""
    after: State | None
    """None: the component was removed."""
    why: str
    cause: str
    """For a requested change: the cause that the caller gave. For a consequence: the component that it follows from.
    Empty: a timer expired."""
    at: float

    @property
    def moved(self) -> bool:
        return self.before != self.after

    @property
    def text(self) -> str:
        """`r1/b3: working → off: r1/pdu1 was cut`."""
        after = self.after.text if self.after is not None else "gone"
        before = self.before.text if self.before is not None else "new"
        return (
            f"{self.component}: {before} → {after}: {self.why}" if before != after else f"{self.component}: {self.why}"
        )


StateT = TypeVar("StateT")


class _Because(NamedTuple):
    why: str
    cause: str = ""


class Racks:
    """Simulated hardware. The cost of an event depends on the affected components, not on the size of the racks.

    Initially everything is on and works; with `cold`, blades have just been switched on and boot. Names in the plans
    are folded; addresses passed to methods need not be.
    """

    def __init__(self, plans: Iterable[RackPlan], rng: random.Random, *, now: float = 0.0, cold: bool = False) -> None:
        self._rng, self._now = rng, now
        self._wirings: dict[str, Wiring] = {}
        self._states: dict[str, State] = {}
        self._timers: list[tuple[float, int, str, int]] = []
        self._count = 0
        self._gone: dict[str, BladeState] = {}
        """Last state of each removed blade: its pending timers must not affect a blade that is installed in its
        slot."""
        self.amiss: dict[str, None] = {}
        """Addresses of all components that are not in their original state."""
        self._changed_at: dict[str, float] = {}
        for plan in plans:
            if plan.name in self._wirings:
                raise Invalid(f"rack {plan.name}: planned twice; rename one")
            self._install(Wiring(plan), [], warm=not cold)

    # Actions

    def apply(self, event: Event, *, now: float, cause: str = "") -> list[Change]:
        """Apply an event and return all changes that follow at this instant, in order. Timers due by then run first.

        NotFound: no such component. Invalid: the event does not apply to this component.
        """
        wiring, address = self._find(event.on)
        components = affected_components(event, address, wiring)
        changes = self.advance(now)
        for component in components:
            if wiring.kinds[component] == "blade":
                self._do_to_blade(component, event, cause, changes)
            else:
                self._do_to_switch(wiring, component, event, cause, changes)
        return changes

    def advance(self, now: float) -> list[Change]:
        """Advance time to `now`: each timer that is due runs at its instant."""
        if now < self._now:
            raise Invalid(f"hardware: time went back from {self._now:g} to {now:g} s; it only goes forward")
        changes: list[Change] = []
        while self._timers and self._timers[0][0] <= now:
            due, _, address, epoch = heapq.heappop(self._timers)
            self._now = due
            state = self._states.get(address)
            if isinstance(state, BladeState):
                self._step_blade(address, Due(epoch), _Because(timer_text(state)), changes)
        self._now = now
        return changes

    def check_guard(self, event: Event, guard: float, *, now: float) -> None:
        """Raise Conflict if a component that `event` affects has changed after the instant `guard`.

        A change at `guard` itself counts as known. Invalid: `guard` is in the future, or the event does not apply.
        """
        if guard > now:
            raise Invalid(f"{event.on}: the guard tick {guard:g} s is in the future; it is {now:g} s now")
        wiring, address = self._find(event.on)
        for component in dict.fromkeys((address, *affected_components(event, address, wiring))):
            changed_at = self._changed_at.get(component, 0.0)
            if changed_at > guard:
                raise Conflict(
                    f"{event.on}: the command was decided at {guard:g} s, but {component} changed at"
                    f" {changed_at:g} s; read its state, then decide again"
                )

    def next_at(self) -> float | None:
        """Return the instant of the next timer; None: there is none."""
        while self._timers:
            due, _, address, epoch = self._timers[0]
            state = self._states.get(address)
            if isinstance(state, BladeState) and state.epoch == epoch:
                return due
            heapq.heappop(self._timers)
        return None

    def revise(self, plans: Iterable[RackPlan], *, now: float) -> list[Change]:
        """Replace the plans. Unchanged components keep their state; a new blade boots."""
        changes = self.advance(now)
        wirings = {plan.name: plan for plan in plans}
        for name in [name for name in self._wirings if name not in wirings]:
            for address in self._wirings.pop(name).kinds:
                self._take_out(address, changes)
        for name, plan in wirings.items():
            before = self._wirings.get(name)
            if before is None or before.plan != plan:
                after = Wiring(plan)
                for address in before.kinds if before is not None else ():
                    if _what_is_there(before, address) != _what_is_there(after, address):
                        self._take_out(address, changes)
                self._install(after, changes, warm=False)
        return changes

    # State

    def state(self, address: str) -> State:
        """Return the state of a component. NotFound: no such component."""
        wiring, found = self._find(address)
        if found == wiring.plan.name:
            raise Invalid(f"{found}: a rack has no state of its own; name a component of the rack")
        return self._states[found]

    def blade(self, address: str) -> BladeState:
        """NotFound: no such component. Invalid: not a blade."""
        return self._of(BladeState, address)

    def pdu(self, address: str) -> PduState:
        """NotFound: no such component. Invalid: not a pdu."""
        return self._of(PduState, address)

    def tor(self, address: str) -> TorState:
        """NotFound: no such component. Invalid: not a tor."""
        return self._of(TorState, address)

    def cable(self, address: str) -> CableState:
        """NotFound: no such component. Invalid: not a cable."""
        return self._of(CableState, address)

    def switch(self, address: str) -> PduState | TorState | CableState:
        """NotFound: no such component. Invalid: it is a blade."""
        state = self.state(address)
        if isinstance(state, BladeState):
            raise Invalid(f"{address}: is a blade")
        return state

    def wiring(self, rack: str) -> Wiring:
        """Return the wiring of a rack. NotFound: no such rack."""
        found = self._wirings.get(fold(rack.partition("/")[0]))
        if found is None:
            raise NotFound(f"rack {rack.partition('/')[0]}: no such rack; there are {few_of(self._wirings)}")
        return found

    def racks(self) -> tuple[str, ...]:
        return tuple(self._wirings)

    def blades(self) -> Iterator[str]:
        """Return the addresses of all blades."""
        return (address for wiring in self._wirings.values() for address in wiring.of("blade"))

    def carries(self, cable: Cable) -> bool:
        """Return whether a cable currently carries power or network."""
        source, state = self._states[cable.source], self._states[cable.address]
        return isinstance(source, Switch) and isinstance(state, Switch) and source.carries and state.carries

    def power_of(self, address: str) -> tuple[str, ...]:
        """Return what to Cut (and later Join) to take power from a pdu, cable, blade, tor or rack.

        Invalid: it has none.
        """
        return self._lines(address, power=True)

    def network_of(self, address: str) -> tuple[str, ...]:
        """Return what to Cut (and later Join) to take network from a tor, cable, blade or rack.

        Invalid: it has none.
        """
        return self._lines(address, power=False)

    # Internals

    def _find(self, address: str) -> tuple[Wiring, str]:
        wiring, folded = self.wiring(address), fold(address)
        if folded != wiring.plan.name and folded not in wiring.kinds:
            raise NotFound(f"{address}: no such component; rack {wiring.plan.name} has {few_of(wiring.kinds)}")
        return wiring, folded

    def _of(self, kind: type[StateT], address: str) -> StateT:
        state = self.state(address)
        if not isinstance(state, kind):
            raise Invalid(f"{address}: not a {kind.__name__.removesuffix('State').lower()}")
        return state

    def _lines(self, address: str, *, power: bool) -> tuple[str, ...]:
        wiring, found = self._find(address)
        what: tuple[str, ...] = ()
        if found == wiring.plan.name:
            what = tuple(wiring.of("pdu" if power else "tor"))
        elif wiring.kinds[found] == ("pdu" if power else "tor"):
            what = (found,)
        elif found in wiring.cables:
            what = (found,) if wiring.cables[found].power is power else ()
        else:
            what = tuple(each.address for each in (wiring.power_to if power else wiring.network_to)(found))
        if not what:
            raise Invalid(f"{address}: has no {'power' if power else 'network'} that could be cut")
        return what

    def _do_to_switch(self, wiring: Wiring, address: str, event: Event, cause: str, changes: list[Change]) -> None:
        before = self._states[address]
        if isinstance(event, Start | Stop | Crash) or not isinstance(before, Switch):
            raise RuntimeError(f"{address}: {event!r} does not apply")
        after, ignored = step_tor(before, event) if isinstance(before, TorState) else step(before, event)
        cable = wiring.cables.get(address)
        if cable is not None and before.on is not after.on and is_command(event):
            source = self._states[cable.source]
            if isinstance(source, Switch) and source.stuck:
                after, ignored = before, (Ignored(f"{cable.source} is stuck"),)
        why = event_text(event, wiring.kinds[address])
        if ignored:
            why = f"{why}, {IN_VAIN}: {ignored[0].why}"
        elif after == before:
            return
        change = self._put(address, after, _Because(why, cause), changes)
        if before.carries is not after.carries:
            self._follow(wiring, change, wiring.ports[address] if cable is None else (cable,), changes)

    def _follow(self, wiring: Wiring, change: Change, cables: Iterable[Cable], changes: list[Change]) -> None:
        """Propagate a change of what these cables carry to the items at their ends: tors first, each blade once."""
        hanging: dict[str, Change] = {}
        for cable in cables:
            if wiring.kinds[cable.item] == "blade":
                hanging[cable.item] = change
            elif (told := self._feed(wiring, cable.item, change, changes)) is not None:
                for each in wiring.ports[cable.item]:
                    hanging.setdefault(each.item, told)
        for address, by in hanging.items():
            self._supply(wiring, address, _Because(f"{by.component}: {by.why}", by.component), changes)

    def _feed(self, wiring: Wiring, tor: str, by: Change, changes: list[Change]) -> Change | None:
        """Update the power of a tor. Return the change if it affects what the tor carries."""
        before, powered = self.tor(tor), self._is_fed(wiring, tor)
        if before.powered is powered:
            return None
        after = msgspec.structs.replace(before, powered=powered)
        told = self._put(tor, after, _Because(f"{by.component}: {by.why}", by.component), changes)
        return told if before.carries is not after.carries else None

    def _is_fed(self, wiring: Wiring, item: str) -> bool:
        cables = wiring.power_to(item)
        if not cables:
            return not wiring.power_known or wiring.kinds[item] == "tor"
        return any(map(self.carries, cables))

    def _supply(self, wiring: Wiring, address: str, because: _Because, changes: list[Change]) -> None:
        connected = not wiring.network_known or any(map(self.carries, wiring.network_to(address)))
        supply = Supply(powered=self._is_fed(wiring, address), connected=connected)
        self._step_blade(address, supply, because, changes)

    def _do_to_blade(self, address: str, event: Event, cause: str, changes: list[Change]) -> None:
        if not isinstance(event, Crash | Start | Stop | Repair | Replace):
            raise RuntimeError(f"{address}: {event!r} does not apply")
        self._step_blade(address, event, _Because(event_text(event, "blade"), cause), changes)

    def _step_blade(self, address: str, event: BladeEvent, because: _Because, changes: list[Change]) -> None:
        before = self.blade(address)
        after, effects = blades.step(before, event, now=self._now, rng=self._rng)
        for effect in effects:
            if isinstance(effect, Timer):
                self._count += 1
                heapq.heappush(self._timers, (effect.due, self._count, address, effect.epoch))
            else:
                because = _Because(f"{because.why}, {IN_VAIN}: {effect.why}", because.cause)
        if after != before or any(isinstance(effect, Ignored) for effect in effects):
            self._put(address, after, because, changes)

    def _put(self, address: str, after: State, because: _Because, changes: list[Change]) -> Change:
        change = Change(
            component=address, before=self._states.get(address), after=after,
            why=because.why, cause=because.cause, at=self._now,
        )  # fmt: skip
        self._states[address] = after
        self._changed_at[address] = self._now
        if after.sound:
            self.amiss.pop(address, None)
        else:
            self.amiss.setdefault(address)
        changes.append(change)
        return change

    # Installing and removing

    def _install(self, wiring: Wiring, changes: list[Change], *, warm: bool) -> None:
        """Install every component that has no state yet, with `warm` with running blades. Then update all supplies."""
        self._wirings[wiring.plan.name] = wiring
        fresh = [address for address in wiring.kinds if address not in self._states]
        for address in fresh:
            new: State
            match wiring.kinds[address]:
                case "pdu":
                    new = _NEW_PDU
                case "tor":
                    new = _NEW_TOR
                case "cable":
                    new = _NEW_CABLE
                case "blade":
                    new = self._new_blade(address, warm=warm)
            self._put(address, new, _Because("installed"), changes)
        for address in wiring.of("tor"):
            tor, powered = self.tor(address), self._is_fed(wiring, address)
            if tor.powered is not powered:
                self._put(address, msgspec.structs.replace(tor, powered=powered), _Because("rewired"), changes)
        for address in wiring.of("blade"):
            self._supply(wiring, address, _Because("rewired"), changes)

    def _new_blade(self, address: str, *, warm: bool) -> BladeState:
        if warm:
            return _WARM_BLADE
        last = self._gone.pop(address, None)
        if last is None:
            return _NEW_BLADE
        return msgspec.structs.replace(_NEW_BLADE, serial=last.serial + 1, epoch=last.epoch + 1)

    def _take_out(self, address: str, changes: list[Change]) -> None:
        before = self._states.pop(address)
        self.amiss.pop(address, None)
        if isinstance(before, BladeState):
            self._gone[address] = before
        changes.append(Change(
            component=address, before=before, after=None, why="removed from the rack", cause="", at=self._now
        ))  # fmt: skip


_NEW_PDU, _NEW_TOR, _NEW_CABLE = PduState(), TorState(), CableState()
_NEW_BLADE, _WARM_BLADE = BladeState(life=Life.DOWN, powered=False, connected=False), BladeState()


def _what_is_there(wiring: Wiring | None, address: str) -> object:
    return wiring and (wiring.kinds.get(address), wiring.cables.get(address))
