"""Controller of virtual machines: places them, passes specs to nodes, takes them from lost nodes, deletes records.

A name is reconciled when one of its records or its node changes, and in the periodic resync (`resync`). Reconciling
costs nothing if there is nothing to do. Decisions from the caches are written under their revisions; if that fails, the
records are read from the store and decided again.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from hostler.engine.controllers import clone_source, consistency_check, messages, retention
from hostler.engine.controllers import snapshot as sight
from hostler.engine.controllers.allocations import Allocations
from hostler.engine.controllers.decision import NOTHING, Act, Duty, NodeCase, Step, decide
from hostler.engine.controllers.drain import Drains, Moves, duty_of
from hostler.engine.controllers.messages import Circumstances
from hostler.engine.controllers.node_lost import HeartbeatMonitor
from hostler.engine.controllers.snapshot import VmSnapshot
from hostler.engine.controllers.transactions import (
    not_expected,
    not_moved,
    pending,
    placement_transaction,
    step_transaction,
    trimming_transaction,
)
from hostler.engine.controllers.watch_triggers import PASS_EVERY, WatchTriggers
from hostler.engine.placement import must_join, not_run, place, wanted_of
from hostler.engine.runtime.controller import SnapshotController
from hostler.engine.runtime.guarded_writer import Txn, Why
from hostler.errors import Conflict, Missed, Unavailable, Uncertain
from hostler.keys.families import ACTUAL, COMMAND, INSTANCE, NAME, TARGET, VM
from hostler.kit.tasks import Fairness
from hostler.model.trace import Reason
from hostler.model.workload import instance_parts
from hostler.ports.store import Delete

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from hostler.engine.controllers.brake import Brake
    from hostler.engine.controllers.messages import DecisionMessage
    from hostler.engine.placement import Decision, PlacementRequest
    from hostler.engine.runtime.controller import Attempt
    from hostler.engine.runtime.env import ControllerEnv
    from hostler.engine.view import View
    from hostler.keys.entry import Entry
    from hostler.model.node import NodeRecord
    from hostler.model.vm import VirtualMachine, VmHandle
    from hostler.ports.store import Comparison, Operation, Store


class MachineController(SnapshotController[VmSnapshot]):
    """Reconciles virtual machines. `release` returns the quota pieces of a final delete.

    Machines are taken from unreachable nodes as `brake` permits.
    """

    name = "machines"
    pass_every = PASS_EVERY

    def __init__(
        self,
        env: ControllerEnv,
        view: View,
        *,
        release: Callable[[Store, VirtualMachine], Awaitable[tuple[list[Comparison], list[Operation]]]],
        brake: Brake | None = None,
        width: int = 64,
    ) -> None:
        mirrors = (view.vms, view.handles, view.commands, view.arrivals)
        super().__init__(env, width=width, mirrors=mirrors)
        self._view, self._release, self._brake = view, release, brake
        room = asyncio.Event()
        self.books = Allocations(view, room.set)
        self._silence = HeartbeatMonitor(view, clock=env.clock)
        self._nodes = self._add_queue("nodes", self._look_at_node, 8)
        self._attention = WatchTriggers(
            view, self._queue, self._nodes, books=self.books, silence=self._silence, room=room, clock=env.clock
        )
        self._moves = Moves(view, self.books)
        self._drains = Drains(view, self.books, self._moves, clock=env.clock, stuck=self._attention.stuck)
        self._names_inspected = False
        self._fairness = Fairness()
        # one scan of a node at a time: concurrent scans would fill every turn of the event loop
        self._scanning = asyncio.Lock()
        self._placing: dict[str, PlacementRequest] = {}  # by id: machines whose placement is being written
        self._tied: dict[str, PlacementRequest] = {}  # those of them with affinity rules

    # The service

    async def read_caches(self) -> None:
        """Refresh everything that decisions are made from."""
        view = self._view
        await view.refresh(view.vms, view.handles, view.commands, view.arrivals, view.members, view.alive)
        await view.refresh(view.retained, view.retained_requests)

    async def begin(self) -> None:
        """Report inconsistencies, and start from there."""
        if self._brake is not None:
            self._brake.listen(self._brake_ended)
        self.follow(*self._attention.listen())  # first, because loading takes time and other tasks may write during it
        await self.books.load()
        self._silence.look_at_all()
        fairness = Fairness()
        for line in consistency_check.inspected(self._view, self.counters):
            self._tell(line)
            await fairness.share()
        for entry in self._view.members.entries.values():
            self._nodes.add(entry.parts["node"])

    async def stop(self) -> None:
        """Stop following the caches."""
        self._attention.stop()
        await super().stop()

    def works(self) -> dict[str, Coroutine[Any, Any, None]]:
        """Return what else runs."""
        return {"pending": self._attention.retry_pending()}

    async def resync(self, *, first: bool) -> None:
        """Queue everything that has something to do, first at once and then in turn."""
        await (self._attention.look_at_all if first else self._attention.look_at_next)(self._wants)
        if not self._names_inspected:
            await self._inspect_names()

    def state(self) -> dict[str, int]:
        """Return counters and current sizes, for metrics."""
        return {**self.counters, "waiting": len(self._queue), "pending_now": len(self._attention.pending)}

    def _wants(self, seen: VmSnapshot) -> bool:
        """Return whether there is something to do."""
        return self._decide(seen).act is not Act.NOTHING

    async def _inspect_names(self) -> None:
        """Report orphaned names, once and after all other work: only an operator can resolve them."""
        with suppress(Unavailable, Uncertain, Missed):
            for line in await consistency_check.names_without_vm(self._store, self._view, self.counters):
                self._tell(f"{line}; run hostler doctor for the repair")
            self._names_inspected = True

    # Nodes

    def _brake_ended(self) -> None:
        if self._is_following:
            for node in self._silence.nodes():
                self._nodes.add(node)

    async def _look_at_node(self, node: str) -> None:
        """Queue the machines of a node that have something to do; fenced ones after their fencing time."""
        held_back = False
        async with self._scanning:
            for entry in self._view.commands_of(node):
                seen = sight.from_view(self._view, sight.name_of_command(entry.value))
                if self._decide(seen).act is not Act.NOTHING:
                    self._queue.add(seen.name)
                held_back = held_back or self._is_held_back(seen, self._condition(seen))
                await self._fairness.share()
            for arrival in self._view.arrivals_at(node):
                self._queue.add(sight.name_of_command(arrival.value.command))
        member = self._view.members.get(node=node)
        if member is None:
            return
        if self._view.alive.get(node=node) is None:
            left = member.value.fencing_time - self._silence.unreachable_for(member)
            if left > 0 and self._view.count_on(node):
                self._nodes.add(node, after=left + 0.001)
            if held_back and self._brake is not None and (wait := self._brake.wait()) < math.inf:
                self._nodes.add(node, after=wait)
        if duty_of(member.value) is not Duty.SERVE:
            await self._drain(node, member)

    async def _drain(self, node: str, member: Entry[NodeRecord]) -> None:
        """Let the next machine leave, or record why a machine cannot."""
        turn = self._drains.next(node, member.value)
        for name, why in turn.stuck:
            await self._say_why(name, why)
        if turn.name is not None:
            seen = sight.from_view(self._view, turn.name)
            step = self._decide(seen, turn.duty)
            if turn.to:
                if step.act is not Act.NOTHING or not await self._depart(seen, turn.to, "drained"):
                    raise Conflict(f"node {node}: {turn.name} has just changed; it will be reconciled again")
                self._drains.began(node, turn.name)
            elif step.act is Act.INSTRUCT and await self._write(
                *(seen, step_transaction(step, seen, self._writing.fence(), self._clock.wall()), "drained"),
                messages.step(step, seen, self._around(seen, turn.duty)),
            ):
                self._drains.began(node, turn.name)
            else:
                self._drains.arrives(turn.name.rpartition("/")[2])
                raise Conflict(f"node {node}: {turn.name} has just changed; it will be reconciled again")
        if turn.again > 0:
            self._nodes.add(node, after=turn.again)

    async def _say_why(self, name: str, why: str) -> None:
        seen = sight.from_view(self._view, name)
        step = self._drains.stuck_step(seen, why)
        if step.act is Act.INSTRUCT:
            txn = step_transaction(step, seen, self._writing.fence(), self._clock.wall())
            await self._write(seen, txn, "drain_stuck", messages.drain_stuck(seen, why))

    async def _write(self, seen: VmSnapshot, txn: Txn, what: str, told: DecisionMessage) -> bool:
        return await self._commit(seen, txn, what, told) is not None

    async def _commit(self, seen: VmSnapshot, txn: Txn, what: str, told: DecisionMessage) -> int | None:
        why = Why(what=what, why=told.why, reasons=told.reasons, read=messages.records_read(seen), cause=told.cause)
        return await self._writing.commit(seen.name, VM.prefix() + seen.name, txn, why)

    # One machine

    def snapshot(self, name: str) -> VmSnapshot:
        """Return the records of a machine from the caches."""
        return sight.from_view(self._view, name)

    async def read_snapshot(self, name: str, last: VmSnapshot | None) -> VmSnapshot:
        """Return the current state in the store, which resolves unknown outcomes."""
        node = "" if last is None else last.node
        id_ = name.rpartition("/")[2]
        doubtful = {COMMAND.parse(key)["node"] for key in self._writing.doubtful_keys(name) if COMMAND.matches(key)}
        nodes = {*self._view.nodes_of(id_), node, *doubtful} - {""}
        nodes |= {entry.parts["node"] for entry in self._view.arrivals_of(id_)}
        seen = await sight.from_store(self._store, name, nodes, self._writing.guard())
        if self._writing.in_doubt(name):
            if seen.command is not None and seen.node in doubtful:
                self.books.keep(id_, seen.command.mod_revision)
            else:
                self.books.cancel(id_)
            self.books.confirm_arrival(id_, None if seen.arrival is None else seen.arrival.mod_revision)
            # A decision from older caches would release the capacity that it has.
            self._writing.settle(name, seen.vm, seen.handle, *seen.arrivals, seen.command, *seen.extra)
        return seen

    async def step(self, seen: VmSnapshot, attempt: Attempt) -> bool:
        """Take one step; False: its conditions did not hold."""
        step = self._decide(seen)
        if step.act is Act.PLACE and seen.vm is not None:
            return await self._place(seen, seen.vm, attempt.avoid)
        self._attention.pending.discard(seen.name)
        if step.act is Act.MOVE and seen.vm is not None:
            return await self._move(seen, seen.vm.value)
        if step.act is Act.NOTHING:
            if seen.strays:
                txn = not_expected(seen)
                return await self._write(seen, txn, "not_expected", messages.not_expected(seen))
            if seen.extra and seen.handle is not None and seen.handle.value.node == seen.node:
                self._tell(f"{seen.name}: more than one node has a command; only the node of its handle keeps it")
                return await self._write(seen, trimming_transaction(seen), "trimmed", messages.trimming(seen))
            return True
        txn = step_transaction(step, seen, self._writing.fence(), self._clock.wall())
        if step.act is Act.SWEEP and seen.handle is not None:
            self._tell(f"{seen.handle.key}: a handle without a VM record; the handle is deleted, no disk is")
        if step.act in (Act.FORGET, Act.FORGET_LOST) and seen.vm is not None:
            self._drains.arrives(seen.vm.value.id)
            await self._add_name_and_quota(seen.vm.value, txn)
            await self._add_instance(seen.vm.value, txn)
        return await self._write(seen, txn, step.act.name.lower(), messages.step(step, seen, self._around(seen)))

    def _around(self, seen: VmSnapshot, duty: Duty | None = None) -> Circumstances:
        """Return the circumstances of a step, for its message."""
        silence = self._view.silences.get(node=seen.node) if seen.node else None
        return Circumstances(
            self._case(seen),
            duty or self._duty(seen),
            0.0 if seen.member is None else self._silence.unreachable_for(seen.member),
            "" if silence is None else silence.value.trace,
        )

    def _duty(self, seen: VmSnapshot) -> Duty:
        return Duty.SERVE if seen.member is None else duty_of(seen.member.value)

    def _decide(self, seen: VmSnapshot, duty: Duty | None = None) -> Step:
        if seen.unreadable:
            return NOTHING
        case = self._case(seen)
        step = decide(
            None if seen.vm is None else seen.vm.value,
            None if seen.handle is None else seen.handle.value,
            None if seen.command is None else seen.command.value,
            seen.node,
            case,
            duty or self._duty(seen),
            sight.way(seen, source_alive=case is NodeCase.ALIVE),
        )
        command = None if seen.command is None else seen.command.value
        if step is NOTHING and command is not None and command.unconfirmed and not self._awaits_nodes():
            return Step(Act.INSTRUCT, msgspec.structs.replace(command, unconfirmed=False))
        return step

    def _awaits_nodes(self) -> bool:
        """Return whether a node may have machines that a restored store does not know."""
        members = self._view.members
        return bool(members.unreadable) or any(
            entry.value.awaited and entry.value.off is None for entry in members.entries.values()
        )

    def _case(self, seen: VmSnapshot) -> NodeCase:
        """Return the case of its node.

        While the brake holds back its machines, a harmless node counts as unreachable only.
        """
        condition = self._condition(seen)
        return NodeCase.SILENT if self._is_held_back(seen, condition) else condition

    def _is_held_back(self, seen: VmSnapshot, condition: NodeCase) -> bool:
        """Return whether it stays on its node although it does not run there, until the brake permits fencing.

        An operator's confirmation that this node is off is not held back. Nor is a deletion, which starts the machine
        nowhere.
        """
        if self._brake is None or (seen.vm is not None and seen.vm.value.deleting):
            return False
        if condition is NodeCase.LONG_SILENT:
            waits = seen.command is not None and seen.command.value.fenced
        else:
            off = None if seen.member is None else seen.member.value.off
            waits = condition is NodeCase.OFF and off is not None and off.by_power
        return waits and not self._brake.may_fence(seen.node)

    def _condition(self, seen: VmSnapshot) -> NodeCase:
        if seen.alive is not None:  # a node without a record gets no new commands: it was removed
            return NodeCase.SILENT if seen.member is None else NodeCase.ALIVE
        if seen.member is None:
            return NodeCase.UNKNOWN
        if seen.member.value.off is not None:
            return NodeCase.OFF
        if seen.member.value.awaited:
            return NodeCase.SILENT  # its machines may run there under the control plane that this store was copied from
        fencing_time = seen.member.value.fencing_time
        lasted = self._silence.unreachable_for(seen.member)
        return NodeCase.LONG_SILENT if 0 < fencing_time <= lasted else NodeCase.SILENT

    async def _place(self, seen: VmSnapshot, vm: Entry[VirtualMachine], avoid: set[str]) -> bool:
        wanted = wanted_of(vm.value, exclude=frozenset(avoid | seen.foreign))
        id_ = vm.value.id
        self._drains.arrives(id_)
        self._check_order(wanted)
        decision = self._choose_node(seen, vm.value, wanted)
        if decision.node is None:
            if avoid:
                raise Conflict(f"{seen.name}: the suitable nodes have just changed; it will be reconciled again")
            self._attention.pending.add(seen.name)
            if seen.handle is not None and _says(seen.handle.value, decision.summary, vm.value):
                return True
            txn = pending(seen, vm, decision, self._clock.wall())
            return await self._write(seen, txn, "pending", messages.placement(seen, decision))
        self._attention.pending.discard(seen.name)
        member = self._view.members.get(node=decision.node)
        if member is None:
            self.books.sync_node(decision.node)
            return False
        node = decision.node
        if unrun := not_run(vm.value.spec, (member.value,)):
            decision = decision.adding(Reason(subject="user_data", why=unrun))
        txn = placement_transaction(seen, vm, member, decision, fence=self._writing.fence(), at=self._clock.wall())
        self.books.reserve(id_, node, wanted)
        self._placing[id_] = wanted
        if wanted.affinity:
            self._tied[id_] = wanted
        try:
            revision = await self._commit(seen, txn, "place", messages.placement(seen, decision))
        except Uncertain:
            raise  # the capacity stays reserved until the outcome is known
        except BaseException:
            self.books.cancel(id_)
            raise
        finally:
            del self._placing[id_]
            self._tied.pop(id_, None)
        if revision is None:
            self.books.cancel(id_)
            avoid.add(node)
            return False
        self.books.keep(id_, revision)
        return True

    def _check_order(self, wanted: PlacementRequest) -> None:
        """Raise Conflict if a machine with an affinity to this one, in either direction, is being placed.

        Such machines are placed one after the other: the first write may fail, and then its node is another one.
        """
        for other in (self._placing if wanted.affinity else self._tied).values():
            if must_join(wanted, other) or must_join(other, wanted):
                with_ = other.name or other.vm
                raise Conflict(f"vm {wanted.name or wanted.vm}: {with_} is being placed; it will be reconciled again")

    # Moving

    async def _move(self, seen: VmSnapshot, vm: VirtualMachine) -> bool:
        """Begin the requested move, or record why not."""
        move, why = vm.move, ""
        if move is not None and move.to != seen.node:
            why = self._moves.against(seen, vm, move.to)
            if not why:
                return await self._depart(seen, move.to, "moving", wish=move.number, stop=move.stop)
        txn = not_moved(seen, why, at=self._clock.wall())
        return txn is None or await self._write(seen, txn, "not_moved", messages.not_moved(seen, why))

    async def _depart(self, seen: VmSnapshot, to: str, what: str, *, wish: int = 0, stop: bool = False) -> bool:
        txn = self._moves.start_transaction(seen, to, self._writing.fence(), wish=wish, stop=stop)
        if txn is None or seen.vm is None:
            return False
        vm = seen.vm.value.id
        self.books.expect(to, wanted_of(seen.vm.value))
        try:
            revision = await self._commit(seen, txn, what, messages.moving(seen, to, wish=wish))
        except Uncertain:
            raise  # the capacity stays reserved until the outcome is known
        except BaseException:
            self.books.confirm_arrival(vm, None)
            raise
        self.books.confirm_arrival(vm, revision)
        return revision is not None

    def _choose_node(self, seen: VmSnapshot, vm: VirtualMachine, wanted: PlacementRequest) -> Decision:
        """Choose a node: the one with the retained disk; for a clone, that of its origin."""
        handle = None if seen.handle is None else seen.handle.value
        tie = retention.tie(self._view, vm, handle, reachable_for=self._silence.reachable_for)
        if tie is not None:
            if not tie.node:
                return retention.nowhere(tie.why)
            decision = self._run_placement(wanted_of(vm, exclude=wanted.exclude, only=tie.node, tied=tie.why))
            if decision.node is None and tie.only and tie.lasts < math.inf:
                self._queue.add(seen.name, after=tie.lasts + 0.001)
            if tie.only or decision.node is not None:
                return decision
        if vm.spec.origin is None:
            return self._run_placement(wanted)
        node, why = clone_source.node_of(self._view, vm, vm.spec.origin)
        if not node:
            return clone_source.nowhere(vm.spec.origin, why)
        return self._run_placement(
            wanted_of(vm, exclude=wanted.exclude, only=node, tied=f"its origin is on node {node}")
        )

    def _run_placement(self, wanted: PlacementRequest) -> Decision:
        with self.books.alone(wanted.vm) as cluster:
            return place(wanted, cluster)

    async def _add_name_and_quota(self, vm: VirtualMachine, txn: Txn) -> None:
        name = await NAME.get(self._store, org=vm.org, project=vm.project, name=vm.name)
        if name is not None and name.value == vm.id:
            txn.when.append(NAME.unchanged(name))
            txn.then.append(Delete(name.key))
        when, then = await self._release(self._store, vm)
        txn.when += when
        txn.then += then

    async def _add_instance(self, vm: VirtualMachine, txn: Txn) -> None:
        """Delete the instance of the machine with it, unless the instance has another machine."""
        ids = instance_parts(vm.instance)
        instance = None if ids is None else await INSTANCE.get(self._store, **ids)
        if ids is not None and instance is not None and instance.value.vm == vm.id:
            txn.when.append(INSTANCE.unchanged(instance))
            txn.then += [Delete(instance.key), TARGET.delete(**ids), ACTUAL.delete(**ids)]


def _says(handle: VmHandle, summary: str, vm: VirtualMachine) -> bool:
    """Return whether the handle of an unplaced machine has this summary, and no snapshot that was deleted."""
    return handle.detail == summary and handle.snapshots.keys() <= set(vm.snapshots)
