"""Effect of each fault, and how it is undone.

Hardware faults become events of the racks. Other faults are conditions under which hosts run (`host.Conditions`),
or happen to a process at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.errors import Invalid, NotFound
from hostler.kit.virtual_loop import outside
from hostler.model.name import fold
from hostler.sim.fault import (
    AgentKilled,
    BladeCrash,
    CableStuck,
    LeaderKilled,
    LeaderPaused,
    NetworkFault,
    Partition,
    PduStuck,
    PowerFault,
    ReplicaKilled,
    SliceCrash,
    TorStuck,
)
from hostler.sim.hardware import Crash, Cut, Join, Repair, Stick, Unstick
from hostler.sim.world.host import conditions

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable, Sequence

    from hostler.sim.fault import Fault
    from hostler.sim.hardware import Event, Racks
    from hostler.sim.world.host import Host
    from hostler.sim.world.world import World

_KILLS = (AgentKilled, ReplicaKilled, LeaderKilled)
_AT_ONCE = (*_KILLS, SliceCrash)
"""Faults that are over at once, unless they prevent a start."""


class Injection:
    """The faults of a world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.active: dict[str, Fault] = {}
        self._count = 0
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._lines: dict[str, dict[str, None]] = {}  # cut or stuck components, and the faults that keep them so
        self._wants: dict[str, tuple[str, ...]] = {}  # the same by fault
        self._processes: dict[str, tuple[tuple[Host, int], ...]] = {}  # processes that a fault paused or prevents

    def inject(self, fault: Fault) -> str:
        """Inject a fault now; return its id. Invalid, NotFound: it names nothing that it could affect."""
        hosts, lines = self._targets(fault)
        self._count += 1
        id_ = f"fault-{self._count}"
        self._world.log.add("fault", fault.on or fault.name, f"{id_}: {fault.told()}", id=id_)
        if not isinstance(fault, _AT_ONCE) or fault.for_ is not None:
            self.active[id_] = fault
            if fault.for_ is not None:
                loop = self._world.loop
                self._timers[id_] = loop.call_later(fault.for_, self.lift, id_, context=outside())
        match fault:
            case LeaderPaused():
                self._pause(id_, hosts)
            case AgentKilled() | ReplicaKilled() | LeaderKilled():
                self._kill(id_, fault, hosts)
            case SliceCrash(artifact=artifact):
                for host in hosts:
                    host.crash_slices(artifact)
            case BladeCrash(lasting=lasting):
                for host in hosts:
                    self._world.hardware.apply(Crash(host.component, lasting=lasting), cause=id_)
                self._wants[id_] = tuple(host.component for host in hosts)
                self._processes[id_] = tuple((host, host.lives) for host in hosts)
            case _:
                self._break(id_, fault, lines)
                self._meet(hosts)
        return id_

    def lift(self, id_: str) -> None:
        """Undo a fault. NotFound: the fault is not active."""
        fault = self.active.pop(id_, None)
        if fault is None:
            raise NotFound(f"fault {id_}: not active; the active faults are {', '.join(self.active) or 'none'}")
        timer = self._timers.pop(id_, None)
        if timer is not None:
            timer.cancel()
        self._world.log.add("lifted", fault.on or fault.name, f"{id_}: {fault.name}")
        if isinstance(fault, BladeCrash):
            self._processes.pop(id_, None)
            for component in self._wants.pop(id_, ()):
                if not self._keeps_down(component):
                    self._apply(Repair(component), id_)
            return
        self._mend_lines(id_, fault)
        for host, number in self._processes.pop(id_, ()):
            if isinstance(fault, LeaderPaused):
                if host.lives == number and not self._holds(host, number):
                    host.wake(id_)
            elif host.held.pop(id_, "") is None:
                host.start(id_)
        self._meet(self._hosts_of(fault))

    def note_repair(self, component: str) -> None:
        """Handle a manual repair or replacement: no fault keeps the component broken any more.

        A fault that affected nothing else is over.
        """
        for id_, wants in tuple(self._wants.items()):
            if component not in wants:
                continue
            self._wants[id_] = tuple(each for each in wants if each != component)
            line = _line(self.active[id_], component)
            wanted = self._lines.get(line, {})
            wanted.pop(id_, None)
            if not wanted:
                self._lines.pop(line, None)
            if not self._wants[id_]:
                self.lift(id_)

    def stop(self) -> None:
        """Cancel all timers that would lift faults."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def meet(self, host: Host) -> None:
        """Apply the conditions of the active faults to a host."""
        host.meet(conditions(fault for fault in self.active.values() if _concerns(fault, host)))

    def together(self, one: Host, other: Host) -> bool:
        """Return whether no partition separates two hosts."""
        cuts = [fault for fault in self.active.values() if isinstance(fault, Partition)]
        return all(_concerns(fault, one) == _concerns(fault, other) for fault in cuts)

    # Affected hosts and components

    def _targets(self, fault: Fault) -> tuple[Sequence[Host], Sequence[str]]:
        """Return the hosts and components that a fault affects. Invalid, NotFound: there are none."""
        if isinstance(fault, LeaderPaused | LeaderKilled) and not fault.on:
            leader = self._world.leader()
            return ((leader,) if leader is not None else ()), ()
        if fault.on and fault.place == ("all",):
            raise Invalid(f"fault {fault.name}: affects no named component; omit `on`")
        if not fault.on and "all" not in fault.place and not (isinstance(fault, Partition) and fault.names):
            raise Invalid(f"fault {fault.name}: no component given; set `on` to a {_or(fault.place)}")
        match fault:
            case PowerFault(on=on):
                return (), self._racks.power_of(on)
            case NetworkFault(on=on):
                return (), self._racks.network_of(on)
            case PduStuck(on=on):
                self._racks.pdu(on)
                return (), (fold(on),)
            case TorStuck(on=on):
                self._racks.tor(on)
                return (), (fold(on),)
            case CableStuck(on=on):
                self._racks.cable(on)
                return (), (fold(on),)
            case _:
                return self._hosts_of(fault, strictly=True), ()

    @property
    def _racks(self) -> Racks:
        return self._world.hardware.racks

    def _hosts_of(self, fault: Fault, *, strictly: bool = False) -> Sequence[Host]:
        """Return the hosts that a fault affects. NotFound, with `strictly`: a name matches no host."""
        if isinstance(fault, PowerFault | NetworkFault | PduStuck | TorStuck | CableStuck):
            return ()
        names = fault.members if isinstance(fault, Partition) else (fault.on,) if fault.on else ()
        if not names:
            return [host for host in self._world.hosts.values() if _concerns(fault, host)]
        found: dict[Host, None] = {}
        for name in names:
            hosts = [host for host in self._world.hosts_named(name) if _concerns(fault, host)]
            if strictly and not hosts:
                raise NotFound(f"fault {fault.name}: {name}: no such {_or(fault.place)}")
            found |= dict.fromkeys(hosts)
        return tuple(found)

    # Effects

    def _meet(self, hosts: Iterable[Host]) -> None:
        for host in hosts:
            self.meet(host)

    def _break(self, id_: str, fault: Fault, lines: Sequence[str]) -> None:
        self._wants[id_] = tuple(lines)
        for line in lines:
            wanted = self._lines.setdefault(_line(fault, line), {})
            if not wanted:
                cut = isinstance(fault, PowerFault | NetworkFault)
                self._world.hardware.apply(Cut(line) if cut else Stick(line), cause=id_)
            wanted[id_] = None

    def _mend_lines(self, id_: str, fault: Fault) -> None:
        cut = isinstance(fault, PowerFault | NetworkFault)
        for line in self._wants.pop(id_, ()):
            wanted = self._lines.get(_line(fault, line), {})
            wanted.pop(id_, None)
            if not wanted:
                self._lines.pop(_line(fault, line), None)
                self._apply(Join(line) if cut else Unstick(line), id_)

    def _keeps_down(self, blade: str) -> bool:
        """Return whether a crash keeps the blade down: it is lasting, or the blade has not run since."""
        for id_, wants in self._wants.items():
            fault = self.active.get(id_)
            if isinstance(fault, BladeCrash) and blade in wants:
                crashed = self._processes.get(id_, ())
                if fault.lasting or any(host.component == blade and host.lives == life for host, life in crashed):
                    return True
        return False

    def _apply(self, event: Event, id_: str) -> None:
        """Apply an event; a component that was removed in the meantime needs nothing."""
        try:
            self._world.hardware.apply(event, cause=id_)
        except NotFound:
            self._world.log.add("lifted", event.on, f"{id_}: removed in the meantime")

    def _pause(self, id_: str, hosts: Sequence[Host]) -> None:
        self._processes[id_] = tuple((host, host.lives) for host in hosts)
        for host in hosts:
            host.pause(id_)

    def _holds(self, host: Host, number: int) -> bool:
        """Return whether another fault pauses that process."""
        return any(
            isinstance(self.active.get(id_), LeaderPaused) and (host, number) in processes
            for id_, processes in self._processes.items()
        )

    def _kill(self, id_: str, fault: Fault, hosts: Sequence[Host]) -> None:
        if fault.for_ is not None:
            self._processes[id_] = tuple((host, host.lives) for host in hosts)
        for host in hosts:
            if fault.for_ is not None:
                host.held[id_] = None
            self._world.kill(host.name, cause=id_)


def _line(fault: Fault, line: str) -> str:
    return line if isinstance(fault, PowerFault | NetworkFault) else f"{line} stuck"


def _concerns(fault: Fault, host: Host) -> bool:
    """Return whether a fault affects a host. `on` may name a rack if `place` allows racks."""
    names = fault.members if isinstance(fault, Partition) else (fault.on,)
    if not any(names):
        return host.kind in fault.place
    for name in names:
        folded = fold(name)
        if folded in (host.name, host.component):
            return host.kind in fault.place
        if "rack" in fault.place and host.kind == "blade" and host.component.startswith(f"{folded}/"):
            return True
    return False


def _or(kinds: Sequence[str]) -> str:
    named = [kind for kind in kinds if kind != "all"]
    return named[0] if len(named) == 1 else f"{', '.join(named[:-1])} or {named[-1]}"
