"""A question about a copy, and its answer."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import msgspec

from hostler.engine.controllers.brake import SHARE
from hostler.engine.controllers.decision import DRAIN
from hostler.errors import Invalid, NotFound
from hostler.keys.families import COMMAND, HANDLE, VM
from hostler.kit.plural import counted
from hostler.kit.virtual_loop import ProcessLoop, run_virtual
from hostler.model.inventory_api import Drain
from hostler.model.name import fold
from hostler.model.vm import MachineState, Power, VmHandle
from hostler.sim.fault import Fault  # noqa: TC001 - msgspec reads annotations at run time
from hostler.sim.whatif.slice_report import SliceFate, SliceMoves
from hostler.sim.whatif.snapshot import NOT_YET, furnish, world_plan
from hostler.sim.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hostler.model.vm import VirtualMachine
    from hostler.sim.whatif.snapshot import Copied
    from hostler.sim.world import BladeHost

QUIET = 75.0
"""Seconds without a write after which nothing more will happen: a leader has made every periodic pass by then."""
LOOK_EVERY = 5.0


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What to do to the copy, all at once."""

    drain: tuple[str, ...] = ()
    """Nodes, blades (`r1/b3`), racks, zones and regions."""
    faults: tuple[Fault, ...] = ()
    within: float = 7200.0
    """Seconds in which the copy must settle."""
    boot_time: float = 0.0
    """Seconds that a machine takes to start."""
    power: bool = False
    """Whether the control plane can switch off an unreachable node, and then knows that the node is off."""
    brake_share: float = SHARE
    """As in the settings: if more than this fraction of the nodes become unreachable together, none is fenced."""
    seed: int = 0


class Fate(enum.StrEnum):
    """The effect on a machine."""

    MOVED = "moved"
    """It runs on another node, and never stopped."""
    RESTARTED = "restarted"
    """It was off for some time."""
    STAYS_OFF = "stays off"
    """It should run, but does not."""
    NO_ROOM = "no room"
    """It should run, but no node can take it."""
    STUCK = "stuck"
    """It still runs on a node that it should have left."""


class Affected(msgspec.Struct, frozen=True, kw_only=True):
    """One affected machine."""

    vm: str
    """`org/project/vm`."""
    name: str
    fate: Fate
    before: str
    """Its node; empty: none."""
    after: str
    away: float = 0.0
    """Seconds for which it did not run, if it runs again."""
    why: str = ""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The effects of the question."""

    revision: int
    """The revision of the copied store."""
    affected: tuple[Affected, ...]
    unaffected: int
    """Machines that keep running on their node, or are off as they should be."""
    waiting: int
    """Machines that had no node, or were not running, before."""
    took: float
    """Seconds until nothing changed any more."""
    settled: bool
    """False: changes were still happening at the end of the time."""
    silent: tuple[str, ...] = ()
    """Nodes that were already unreachable: nothing is moved there."""
    left_out: tuple[str, ...] = ()
    """Nodes in a rack of the inventory that are not in the inventory themselves: their cables are unknown."""
    unreadable: int = 0
    slices: tuple[SliceFate, ...] = ()
    """Slices of which an instance would move, or of which fewer would serve for some time."""


def ask(copy: Copied, question: Question, tell: Callable[[str], None] = lambda _: None) -> Answer:
    """Simulate a question. NotFound, Invalid: it names something that does not exist."""
    loop = ProcessLoop(question.seed)
    plan = world_plan(copy, boot_time=question.boot_time, power=question.power, brake_share=question.brake_share)
    world = World(plan, seed=question.seed, loop=loop)
    left_out = furnish(world, copy)
    nodes = _nodes_of(copy, question.drain, world)

    async def main() -> Answer:
        async with world:
            return await _Asking(world, copy, question, nodes=nodes, left_out=left_out, tell=tell).answer()

    return run_virtual(main, loop=loop)


class _Asking:
    def __init__(
        self,
        world: World,
        copy: Copied,
        question: Question,
        *,
        nodes: Sequence[str],
        left_out: tuple[str, ...],
        tell: Callable[[str], None],
    ) -> None:
        self._world, self._copy, self._question, self._nodes = world, copy, question, nodes
        self._left_out, self._tell = left_out, tell
        self._stuck: dict[str, str] = {}  # why machines are still on a drained node
        self._ran_on: dict[str, list[BladeHost]] = {}
        self._slices = SliceMoves(world) if world.plan.slices else None

    async def answer(self) -> Answer:
        world, question = self._world, self._question
        machines, nodes = counted(len(self._copy.vms), "machine"), counted(len(world.blades), "node")
        self._tell(f"{machines} on {nodes}, as of revision {self._copy.revision}")
        await world.sleep(LOOK_EVERY)
        for replica in world.replicas.values():
            replica.held.pop(NOT_YET, None)
            replica.start()
        await self._quiet(question.within)
        before = await self._machines()
        ran = frozenset(name for name, (_, handle) in before.items() if self._runs(name, handle))
        began = world.clock.now()
        if self._slices is not None:
            self._slices.begin()
        for fault in question.faults:
            self._tell(f"fault: {fault.told()}")
            world.inject(fault)
        for node in self._nodes:
            self._tell(f"drained: {node}")
            await world.ask(lambda services, node=node: services.nodes.drain(services.request, node, Drain()))  # type: ignore[misc]
        settled, took = await self._quiet(question.within)
        for node in self._nodes:
            for entry in (await COMMAND.list(world.store, node=node, strict=False)).entries:
                told = [reason.why for reason in entry.value.reasons if reason.subject == DRAIN]
                self._stuck[entry.value.vm] = "; ".join(told)
        answer = self._answer(before, ran, await self._machines(), began=began, took=took, settled=settled)
        slices = () if self._slices is None else await self._slices.fates()
        return msgspec.structs.replace(answer, slices=slices)

    async def _quiet(self, within: float) -> tuple[bool, float]:
        """Wait until nothing is written any more; return whether that happened in time, and when the last write was."""
        world = self._world
        wait = max(QUIET, 3 * world.plan.fencing_time)
        began = changed = world.clock.now()
        seen = -1
        while True:
            revision = (await world.store.status()).revision
            now = world.clock.now()
            if revision != seen:
                seen, changed = revision, now
            if now - changed >= wait:
                return True, changed - began
            if now - began >= within:
                return False, now - began
            self._tell(f"{now - began:.0f} s of its time, {revision} revisions")
            await world.sleep(LOOK_EVERY)

    async def _machines(self) -> dict[str, tuple[VirtualMachine, VmHandle | None]]:
        store = self._world.store
        vms = (await VM.list(store, strict=False)).entries
        handles = {entry.key.removeprefix(HANDLE.prefix()): entry.value for entry in (await HANDLE.list(store)).entries}
        found = {entry.key.removeprefix(VM.prefix()): entry.value for entry in vms}
        return {name: (vm, handles.get(name)) for name, vm in found.items()}

    def _answer(
        self,
        before: dict[str, tuple[VirtualMachine, VmHandle | None]],
        ran: frozenset[str],
        after: dict[str, tuple[VirtualMachine, VmHandle | None]],
        *,
        began: float,
        took: float,
        settled: bool,
    ) -> Answer:
        for host in self._world.blades.values():
            contents = host.place.contents
            for id_ in dict.fromkeys((*contents.rows, *contents.ended_intervals())):
                self._ran_on.setdefault(id_, []).append(host)
        affected: list[Affected] = []
        unaffected = waiting = 0
        for name, (vm, handle) in sorted(before.items()):
            if vm.deleting:
                unaffected += 1
            elif vm.power is not Power.ON:
                found = self._moved_off(name, vm, handle, after.get(name, (vm, None))[1])
                affected += [] if found is None else [found]
                unaffected += found is None
            elif name not in ran:
                waiting += 1
            elif (found := self._effect_on(name, vm, handle, after.get(name, (vm, None))[1], began)) is None:
                unaffected += 1
            else:
                affected.append(found)
        return Answer(
            revision=self._copy.revision,
            affected=tuple(affected),
            unaffected=unaffected,
            waiting=waiting,
            took=took,
            settled=settled,
            silent=tuple(sorted(set(self._copy.members) & set(self._world.blades) - self._copy.alive)),
            left_out=self._left_out,
            unreadable=len(self._copy.unreadable),
        )

    def _runs(self, name: str, handle: VmHandle | None) -> bool:
        """Return whether the machine is running on the node that its handle names."""
        host = None if handle is None else self._world.blades.get(fold(handle.node))
        if host is None:
            return False
        runs = host.intervals(name.rpartition("/")[2])
        return bool(runs) and runs[-1][1] is None

    def _effect_on(
        self, name: str, vm: VirtualMachine, old: VmHandle | None, new: VmHandle | None, began: float
    ) -> Affected | None:
        here, there = "" if old is None else fold(old.node), "" if new is None else fold(new.node)
        runs = self._runs(name, new)
        why = "" if new is None else new.detail
        away = self._away(vm.id, began) if runs else 0.0
        if runs and here == there:
            if here in self._nodes:
                fate, why = Fate.STUCK, self._stuck.get(vm.id, why)
            elif away > 0:
                fate = Fate.RESTARTED
            else:
                return None
        elif runs:
            fate = Fate.RESTARTED if away > 0 else Fate.MOVED
        elif new is not None and new.state is MachineState.PENDING:
            fate = Fate.NO_ROOM
        else:
            fate = Fate.STAYS_OFF
            why = why or self._waits(vm, there)
        return Affected(vm=name, name=vm.name, fate=fate, before=here, after=there, away=away, why=why)

    def _moved_off(self, name: str, vm: VirtualMachine, old: VmHandle | None, new: VmHandle | None) -> Affected | None:
        """Return the effect on a machine that is off, and should be."""
        here, there = "" if old is None else fold(old.node), "" if new is None else fold(new.node)
        if here == there and here not in self._nodes:
            return None
        fate = Fate.STUCK if here == there else Fate.MOVED
        why = self._stuck.get(vm.id, "") if fate is Fate.STUCK else "it is off"
        if new is not None and new.state is MachineState.PENDING:
            fate, why = Fate.NO_ROOM, new.detail
        return Affected(vm=name, name=vm.name, fate=fate, before=here, after=there, why=why)

    def _waits(self, vm: VirtualMachine, node: str) -> str:
        host = self._world.blades.get(node)
        if host is not None and (not host.alive or host.silent):
            return (
                f"node {node} is unreachable, and on_node_loss is {vm.on_node_loss}: it is started elsewhere once an"
                f" operator confirms that the node is off (hostler node confirm-off {node})"
            )
        return "it is not running, for an unknown reason"

    def _away(self, vm: str, began: float) -> float:
        """Return the seconds since `began` in which the machine was not running anywhere."""
        now = self._world.clock.now()
        spans = sorted(
            (max(start, began), now if end is None else end)
            for host in self._ran_on.get(vm, ())
            for start, end in host.intervals(vm)
            if end is None or end > began
        )
        away, until = 0.0, began
        for start, end in spans:
            away += max(0.0, start - until)
            until = max(until, end)
        return round(away + max(0.0, now - until), 3)


def _nodes_of(copy: Copied, names: Sequence[str], world: World) -> tuple[str, ...]:
    """Return the nodes that these names mean. NotFound: a name means none."""
    nodes: dict[str, None] = {}
    for name in names:
        folded = fold(name)
        found = [
            node
            for node, member in copy.members.items()
            if node in world.blades and folded in (node, node.replace("-", "/", 1), fold(member.rack or ""))
        ]
        for full in copy.inventory.racks:
            rack = full.rack
            if folded in (
                fold(rack.name),
                fold(rack.zone),
                fold(rack.region),
                f"{fold(rack.region)}/{fold(rack.zone)}",
            ):
                prefix = f"{fold(rack.name)}-"
                found += [node for node in copy.members if node.startswith(prefix) and node in world.blades]
        if not found:
            raise NotFound(f"drain {name}: no node, rack, zone or region of that name has registered nodes")
        nodes |= dict.fromkeys(found)
    alive = [node for node in nodes if node in copy.alive]
    if nodes and not alive:
        raise Invalid(f"drain {', '.join(names)}: all its nodes are already unreachable; nothing there can be moved")
    return tuple(nodes)
