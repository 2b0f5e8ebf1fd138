"""Process one machine at a time: observe, decide, take one step, repeat.

A running step is finished before the next decision. Before each step the worker reads the newest command.

A machine is created only after the store knows that this node has begun (CREATING). So a machine whose handle still
says PLACED does not exist. If it exists nevertheless, it belongs to an earlier command and is retained first
(`retained`), unless the command says that it is the disk of this VM. No machine is destroyed because a command is
missing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from hostler.engine.agent import retained
from hostler.engine.agent.decide import (
    BOOTS,
    DOING,
    NOTHING,
    Action,
    StatusUpdate,
    Step,
    decide,
    has_ended,
    restorable,
    tell,
)
from hostler.engine.agent.migration import Migrations, going, is_stray, leave
from hostler.engine.agent.status_reporter import PATIENCE, ReportedMachine, Reports, pause
from hostler.engine.runtime.work_queue import WORKER_FAILED, WorkQueue
from hostler.errors import Closed, Forbidden, HostlerError, NotFound, Refused
from hostler.keys.families import ARRIVAL, COMMAND, HANDLE
from hostler.model.vm import MachineState, Power
from hostler.ports.machines import Label, MachinePlan, Ownership, Resets, Snapshots, required

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.engine.agent.config import NodeEnv
    from hostler.engine.agent.session import Session
    from hostler.keys.cache import Cache
    from hostler.keys.entry import Entry
    from hostler.model.node import Arrival, VmCommand
    from hostler.ports.machines import Machine, Peers

STEADY = 60.0
"""A machine that ran at least this long and stopped by itself is restarted at once; otherwise after a pause."""
BOOTING = 1.0
"""Seconds after which a machine that is starting is inspected again."""
ROOM = 0.1
"""Seconds between checks whether the obstacle to an incoming migration is gone."""
UNCONFIRMED = (
    "its machine is not on this node, and the store was restored from a backup: it may be on another node; it waits"
    " until all nodes have registered: confirm off or delete those that are gone (hostler node list)"
)
_HANDED = (MachineState.ARRIVING, MachineState.DEPARTED)
_HAVE_A_DISK = (
    MachineState.STARTING, MachineState.RUNNING, MachineState.STOPPING, MachineState.STOPPED, MachineState.ARRIVING,
    MachineState.DEPARTED,
)  # fmt: skip
_THERE = Step(Action.CREATE)
_DONE_AGAIN = (Action.START, Action.NOTHING)
_log = logging.getLogger("hostler.agent")


class Workers:
    """The state shared by all workers of a node."""

    def __init__(
        self,
        env: NodeEnv,
        commands: Cache[VmCommand],
        session: Session,
        *,
        arrivals: Cache[Arrival],
        peers: Peers | None,
        keep: Callable[[], None],
    ) -> None:
        """`keep`: called when the retained machines of this node have changed."""
        store, machines, plan, clock, rng = env.store, env.machines, env.config, env.clock, env.rng
        self._store, self._machines, self._plan, self._keep = store, machines, plan, keep
        self._arrivals = arrivals
        self._commands, self._session, self._clock, self._rng = commands, session, clock, rng
        self.queue = WorkQueue(
            self.work, clock=clock, rng=rng, tell=_log.error, counters={}, width=plan.workers, what="machine"
        )
        self.boots = BootSlots(self.queue, plan.boots)
        self.reports = Reports(store, session, clock=clock, node=plan.node)
        self._handovers = Migrations(store, machines, session, peers, node=plan.node, clock=clock, rng=rng)
        self.known: dict[str, ReportedMachine] = {}
        self.parked: dict[str, None] = {}
        """Machines that wait until the session allows actions."""
        self.foreign: set[str] = set()
        self.retained = 0
        """Number of machines taken out of service since the start."""
        self.removed = 0
        """Number of remains of moves that were removed since the start."""
        self.steps = 0

    async def work(self, vm: str) -> None:
        """Process a machine until nothing remains to be done for now. Other machines continue if this one fails."""
        try:
            await self._process(vm)
        except Exception as error:  # noqa: BLE001 - a bug, or a closed driver: other names must not be affected
            _log.error("machine %s: its worker failed; trying again later", vm, exc_info=error)
            self.queue.add(vm, after=WORKER_FAILED)
        finally:
            self.boots.end(vm)

    async def _process(self, vm: str) -> None:
        last = NOTHING
        while True:
            looked = await self._inspect(vm)
            if looked is None:
                return
            entry, known, seen = looked
            self._log_fenced(vm, known, seen)
            if not self._stands(vm, entry):
                continue
            if self._gave_up_untold(known):
                await self._tell(known, entry, seen)
                if not self._stands(vm, entry):
                    continue
            step = self._decide(entry.value, known, seen)
            if step is NOTHING:
                await self._rest(vm, known, entry, seen)
                return
            if step == last and step.action not in _DONE_AGAIN:
                why = f"{step}: it was done and had no effect; check the machine driver"
                known.record_failure(step, why, self._clock.now(), self._rng)
                continue
            waits = seen is not None and seen.state in _HANDED  # it ran until just now, and its users wait
            if step.action in BOOTS and not waits and not self.boots.take(vm):
                return
            try:
                done = await self._tell_and_do(vm, known, entry, seen, step)
            finally:
                self.boots.release(vm)
            if done is None:
                return
            last = step if done else NOTHING

    async def _inspect(self, vm: str) -> tuple[Entry[VmCommand], ReportedMachine, Machine | None] | None:
        """Return the newest command and the observed machine, or None (with a retry queued) if not possible."""
        self.queue.take(vm)
        if not self._session.may_act():
            self.parked[vm] = None
            return None
        entry = self._commands.get(node=self._plan.node, vm=vm)
        if entry is None:
            arrival = self._arrivals.get(node=self._plan.node, vm=vm)
            await (self._without_command(vm) if arrival is None else self._expect(vm, arrival))
            return None
        known = self._machine(vm, entry)
        if not known.read and not await self.reports.read(known, entry):
            self._try_telling_later(vm, known)
            return None
        try:
            seen = await self._machines.inspect(vm)
        except HostlerError as error:
            self._not_seen(vm, known, error)
            return None
        known.record_success(NOTHING)
        if seen is not None and not await self._is_ours_after_all(seen):
            await self._meet_foreign(vm, known, entry, seen)
            return None
        return entry, known, seen

    def _log_fenced(self, vm: str, known: ReportedMachine, seen: Machine | None) -> None:
        """Log that a machine stopped by itself because the store did not answer."""
        heard = self._session.heard_at
        if seen is None or not seen.fenced or seen.state not in (MachineState.STOPPED, MachineState.FAILED):
            return
        if known.seen is None or known.seen.state is not MachineState.RUNNING or heard is None:
            return
        since = self._clock.now() - heard
        if since >= self._plan.fencing_time:
            known.seen = seen
            _log.warning(
                "machine %s on node %s: stopped by itself, because the store has not answered for %.0f s (on_node_loss)"
                "; it starts again once the store is reachable",
                *(vm, self._plan.node, since),
            )

    async def _is_ours_after_all(self, machine: Machine) -> bool:
        """Check ownership again with fresh ids: the machine's state file may just have been moved into the cluster."""
        if not self.is_ours(machine):
            with suppress(HostlerError, TimeoutError):
                await self._session.learn_ids()
        return self.is_ours(machine)

    async def _meet_foreign(self, vm: str, known: ReportedMachine, entry: Entry[VmCommand], seen: Machine) -> None:
        """Report a foreign machine in place of ours. Leave it alone, create nothing, and do not report GONE."""
        why = f"machine {seen.id}: it belongs to another control plane or node; remove it, or give it back"
        known.leftover = False
        known.record_failure(_THERE, why, self._clock.now(), self._rng, refused=True)
        known.seen = seen
        next_at = known.put_off[_THERE].until
        if not await self._tell(known, entry, None):
            self._try_telling_later(vm, known)
        self.queue.add_at(vm, next_at)

    # Decide

    def _machine(self, vm: str, entry: Entry[VmCommand]) -> ReportedMachine:
        known = self.known.get(vm)
        if known is None or known.life != entry.create_revision:
            known = self.known[vm] = ReportedMachine(entry)
        known.meet(entry)
        return known

    def _stands(self, vm: str, entry: Entry[VmCommand]) -> bool:
        """Return whether this is still the newest command and may be carried out."""
        return self._commands.get(node=self._plan.node, vm=vm) is entry and self._session.may_act()

    def _decide(self, command: VmCommand, known: ReportedMachine, seen: Machine | None) -> Step:
        if seen is None:
            known.leftover = False
        elif is_stray(command, seen):
            known.leftover = True
        elif seen.state is not MachineState.CREATING and not known.leftover:
            self._give_up_restore(command, known, seen)
        self._note_end(command, known, seen)
        if seen is not None and seen.state in _HANDED:
            return self._next(command, known, seen, known.waiting(self._clock.now()))
        now = self._clock.now()
        step = self._next(command, known, seen, known.waiting(now))
        if step.action is Action.START and step not in known.put_off and seen is not None:
            fell = known.started_at is not None and now - known.started_at < STEADY
            known.falls = known.falls + 1 if fell else int(seen.state is MachineState.FAILED)
            if known.falls:
                known.record_failure(step, seen.detail or "it stopped by itself; it is started again", now, self._rng)
                known.put_off[step].until = now + pause(known.falls, self._rng)
                known.put_off[step].count = known.falls
                step = self._next(command, known, seen, known.waiting(now))
        return step

    def _next(
        self, command: VmCommand, known: ReportedMachine, seen: Machine | None, put_off: dict[Step, bool]
    ) -> Step:
        on_its_way = going(command, known, seen, self._plan.node)
        return decide(
            command,
            seen,
            settled=known.settled,
            leftover=known.leftover,
            going=on_its_way,
            put_off=put_off,
            ended=known.ended,
        )

    def _note_end(self, command: VmCommand, known: ReportedMachine, seen: Machine | None) -> None:
        """Record whether the machine stopped by itself and stays stopped."""
        node = self._plan.node
        known.ended = has_ended(command, seen, known.handle, node=node, ran=known.ran, was=known.ended)
        if command.power is Power.OFF or command.deleting:
            known.ran = False
        elif seen is not None and seen.state is MachineState.RUNNING:
            known.ran = True

    def _gave_up_untold(self, known: ReportedMachine) -> bool:
        """Return whether giving up a migration is not yet reported. Until then its outcome is uncertain."""
        handle, given_up = known.handle, known.given_up
        return (
            given_up is not None
            and handle is not None
            and handle.node == self._plan.node
            and handle.attempt < given_up.number
        )

    @staticmethod
    def _give_up_restore(command: VmCommand, known: ReportedMachine, seen: Machine) -> None:
        """Give up a restore whose snapshot is missing, even if a snapshot of that name is taken later."""
        restore = command.restore
        if restore is None or restore.number <= max(seen.restored, known.settled):
            return
        if not restorable(command, seen, known.settled):
            known.settled = restore.number
            known.note = f"restore to {restore.snapshot}: that snapshot is not on this node; nothing was restored"

    # Execute

    async def _tell_and_do(
        self, vm: str, known: ReportedMachine, entry: Entry[VmCommand], seen: Machine | None, step: Step
    ) -> bool | None:
        """Return whether the step was done; None: it is impossible now."""
        creates = step.action is Action.CREATE and seen is None
        if creates and not await self._note_lost_disk(vm, known, entry.value, step):
            return False
        if creates and entry.value.unconfirmed:
            known.record_failure(step, UNCONFIRMED, self._clock.now(), self._rng)
            return False
        if step.action in DOING and not known.leftover and not (known.failures and known.told):
            told = await self._tell(known, entry, seen, doing=step)
            if step.action is Action.CREATE and not (told or known.told):
                self._try_telling_later(vm, known)
                return None
            if not self._stands(vm, entry):
                return False
        if step.action is Action.CREATE and seen is None and entry.value.restore is not None:
            known.settled = max(known.settled, entry.value.restore.number)  # nothing exists that could be restored
        known.doing = step
        try:
            if step.action is Action.SEND and seen is not None:
                return None if await self._leave(known, entry, seen) else False
            machine = await self._do(entry.value, seen, step)
        except HostlerError as error:
            self._step_failed(known, step, error)
            return False
        finally:
            known.doing = None
        self.steps += 1
        known.record_success(step)
        now = self._clock.now()
        if step.action is Action.START:
            known.started_at, known.ran = now, True
            if machine is not None and machine.state is MachineState.STARTING:
                known.record_failure(step, "", now, self._rng)
                known.put_off[step].until, known.put_off[step].count = now + BOOTING, 0
        elif step.action in (Action.STOP, Action.SWITCH_OFF, Action.CREATE):
            known.started_at, known.ran = None, False
        return True

    async def _note_lost_disk(self, vm: str, known: ReportedMachine, command: VmCommand, step: Step) -> bool:
        """Record that the machine's disk on this node is gone. The handle says so before a new disk is made.

        Return False if the driver does not answer.
        """
        node, noted = self._plan.node, bool(known.new_disk_at)
        try:
            lost = await retained.has_lost_disk(self._machines, command, known.handle, node, noted=noted)
        except HostlerError as error:
            self._step_failed(known, step, error)
            return False
        if lost:
            known.new_disk_at = self._clock.wall()
        if lost and not noted:
            _log.warning("vm %s: its disk is no longer on node %s; a new one is made from its image", vm, node)
        return True

    async def _do(self, command: VmCommand, seen: Machine | None, step: Step) -> Machine | None:
        machines, vm = self._machines, command.vm
        match step.action:
            case Action.CREATE | Action.RESHAPE:
                return await self._make(command, seen)
            case Action.MARK if seen is not None:
                label = msgspec.structs.replace(seen.label, org=command.org, project=command.project)
                return await required(machines, Ownership).mark(_plan(command, label))
            case Action.START:
                return await machines.start(vm)
            case Action.STOP:
                return await machines.stop(vm, grace=self._plan.stop_grace)
            case Action.SWITCH_OFF:
                return await machines.stop(vm, grace=0.0)
            case Action.RESET:
                return await required(machines, Resets).reset(vm, step.number)
            case Action.SNAPSHOT:
                return await required(machines, Snapshots).snapshot(vm, step.name)
            case Action.DROP:
                return await required(machines, Snapshots).drop_snapshot(vm, step.name)
            case Action.RESTORE:
                return await required(machines, Snapshots).restore(vm, step.name, step.number)
            case Action.DELETE:
                await machines.delete(vm)
            case Action.RETAIN if seen is not None:
                await self._retain(seen)
        return None

    async def _make(self, command: VmCommand, seen: Machine | None) -> Machine:
        """Create a machine, reinstate a retained one, or apply a new spec to an existing one."""
        label = Label(command.org, command.project, command.vm, self._session.cluster, self._plan.node)
        if seen is not None:  # created when the id of the control plane or node was spelled differently
            label = seen.label
        if seen is not None and seen.state is not MachineState.CREATING:
            return await self._machines.create(_plan(command, label))
        try:
            return await retained.create(self._machines, _plan(command, label), command)
        finally:  # also if the answer was lost: it may be done
            if command.reinstate is not None:
                self._keep()

    async def _retain(self, seen: Machine) -> None:
        """Take a machine that is not assigned to this node out of service, and keep its disk."""
        vm, node = seen.label.vm, self._plan.node
        try:
            kept = await retained.retain(self._machines, seen, grace=self._plan.stop_grace, wall=self._clock.wall())
        finally:  # also if the answer was lost: it may be done
            self._keep()
        if kept is None:
            self.removed += 1
            _log.info("vm %s: not assigned to node %s; removed, because nothing was ever written to it", vm, node)
            return
        self.retained += 1
        _log.warning(
            "vm %s: not assigned to node %s; stopped and retained as %s (hostler vm retained list)", vm, node, kept.name
        )

    async def _leave(self, known: ReportedMachine, entry: Entry[VmCommand], seen: Machine) -> bool:
        if not await leave(self._handovers, known, entry, seen):
            return False
        known.read = False  # the handle now belongs to the other node
        self.steps += 1
        return True

    def heed(self, vm: str) -> None:
        """React to a changed command of this machine."""
        entry = self._commands.get(node=self._plan.node, vm=vm)
        self._handovers.heed(vm, None if entry is None else entry.value)

    def _step_failed(self, known: ReportedMachine, step: Step, error: HostlerError) -> None:
        # Forbidden: the node currently may not do this to any machine.
        refused = isinstance(error, Refused) and not isinstance(error, NotFound | Closed | Forbidden)
        if refused and step.action is Action.RESTORE:
            known.settled = step.number
            known.note = f"restore to {step.name}: {error}"
            return
        known.record_failure(step, f"{step}: {error}", self._clock.now(), self._rng, refused=refused, error=error)

    # Reporting

    async def _tell(
        self, known: ReportedMachine, entry: Entry[VmCommand], seen: Machine | None, *, doing: Step = NOTHING
    ) -> bool:
        telling = StatusUpdate(
            node=self._plan.node,
            driver=self._machines.name,
            at=self._clock.wall(),
            settled=known.settled,
            failures=known.failures,
            detail=next(reversed(known.detail.values()), "") or known.note,
            refused=known.refused,
            broken=known.broken,
            given_up=known.given_up,
            unmoved=known.unmoved,
            ended=known.ended,
            new_disk_at=known.new_disk_at,
        )
        handle = tell(entry.value, seen, known.handle, telling, doing=doing)
        return await self.reports.send(known, entry, handle)

    async def _rest(self, vm: str, known: ReportedMachine, entry: Entry[VmCommand], seen: Machine | None) -> None:
        """Report that nothing remains to be done now, and schedule the next retry if there is one."""
        next_at = known.next_at(self._clock.now())  # before anything is awaited: it may be due when that is done
        if self._next(entry.value, known, seen, {}) is NOTHING:
            known.record_agreement()
            next_at = None
        known.seen = seen
        if not known.leftover and not await self._tell(known, entry, seen):
            self._try_telling_later(vm, known)
        if next_at is not None:
            self.queue.add_at(vm, next_at)

    def _try_telling_later(self, vm: str, known: ReportedMachine) -> None:
        known.unsent = max(known.unsent, 1)
        self.queue.add_at(vm, self._clock.now() + min(pause(known.unsent, self._rng), 2 * PATIENCE) / 2)

    def _not_seen(self, vm: str, known: ReportedMachine, error: HostlerError) -> None:
        """Handle a failed lookup. It does not mean absence: nothing is known, and nothing is reported."""
        known.record_failure(NOTHING, f"inspect: {error}", self._clock.now(), self._rng, error=error)
        self.queue.add_at(vm, known.put_off[NOTHING].until)

    # Incoming migrations

    async def _expect(self, vm: str, arrival: Entry[Arrival]) -> None:
        """Prepare to receive a machine from another node. First remove any other machine of this VM."""
        try:
            seen = await self._machines.inspect(vm)
            if seen is not None and not await self._is_ours_after_all(seen):
                await self._handovers.refuse(arrival, f"machine {seen.id} there belongs to another owner; remove it")
            elif seen is not None and seen.state is not MachineState.ARRIVING:
                await self._without_command(vm, expected=True)
                self.queue.add_at(vm, self._clock.now() + ROOM)
            elif self._arrivals.get(node=self._plan.node, vm=vm) is arrival and self._session.may_act():
                await self._handovers.receive(arrival)
        except (HostlerError, TimeoutError) as error:
            _log.warning("machine %s: not ready to receive it yet: %s", vm, error)
            self.queue.add_at(vm, self._clock.now() + pause(2, self._rng))

    # Machines without a command

    async def _without_command(self, vm: str, *, expected: bool = False) -> None:
        """Retain a machine without a command, but only if it is certain that it is ours and has none."""
        key = COMMAND.fill(node=self._plan.node, vm=vm)
        number, revision = self._session.number, self._session.revision
        try:
            seen = await self._machines.inspect(vm)
            if seen is None or key in self._commands.unreadable:
                self.known.pop(vm, None)
                return
            if not self.is_ours(seen):
                self.foreign.add(vm)
                return
            async with asyncio.timeout(PATIENCE):
                when = [self._session.guard(), COMMAND.absent(node=self._plan.node, vm=vm)]
                if not expected:
                    when.append(ARRIVAL.absent(node=self._plan.node, vm=vm))
                result = await self._store.txn(when, [COMMAND.get_op(node=self._plan.node, vm=vm)])
            # A store that was put back to an older state may have this session in it; the next heartbeat ends it.
            certain = result.succeeded and result.revision >= revision
            if not certain or self._session.number != number or not self._session.may_act():
                self.queue.add_at(vm, self._clock.now() + pause(2, self._rng))
                return
            if seen.state in _HANDED and await self._is_elsewhere(seen):
                _log.info("vm %s: the remains of a move on node %s are removed", vm, self._plan.node)
                await self._machines.delete(vm)
                self.removed += 1
            else:
                await self._retain(seen)
        except (HostlerError, TimeoutError) as error:
            _log.warning("vm %s: seems not to be assigned to this node; it stays for now: %s", vm, error)
            self.queue.add_at(vm, self._clock.now() + pause(4, self._rng))
            return
        self.known.pop(vm, None)

    async def _is_elsewhere(self, seen: Machine) -> bool:
        """Return whether another node has the migrated machine with its complete disk. When in doubt, return False.

        A machine that was created again elsewhere has another disk, so this one may be the only copy of its data.
        """
        label = seen.label
        async with asyncio.timeout(PATIENCE):
            kv = await self._store.get(HANDLE.fill(org=label.org, project=label.project, vm=label.vm))
            handle = HANDLE.readable(kv)
            if handle is None or handle.value.node in ("", self._plan.node) or handle.value.state not in _HAVE_A_DISK:
                return False
            if not handle.value.disk_since and not handle.value.reinstated:
                return True  # it has had only one disk, which moves with it
            there = await COMMAND.get(self._store, node=handle.value.node, vm=label.vm)
        arrived = there is not None and there.value.arrived == seen.moved
        return seen.state is MachineState.DEPARTED and arrived and handle.value.lost_arrival < seen.moved

    def is_ours(self, machine: Machine) -> bool:
        """Return whether the machine was created for this control plane and this node."""
        return retained.is_ours(machine.label, self._session, self._plan.node)


class BootSlots:
    """Limits how many machines of a node start at the same time. The others wait, and are queued in turn."""

    def __init__(self, queue: WorkQueue, slots: int) -> None:
        self._queue, self._slots = queue, slots
        self._booting: set[str] = set()
        self._waiting: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of machines that wait for a slot."""
        return len(self._waiting)

    def has(self, vm: str) -> bool:
        """Return whether the machine waits for a slot."""
        return vm in self._waiting

    def take(self, vm: str) -> bool:
        """Take a slot; False: the machine is queued again when a slot is free."""
        if vm not in self._booting and len(self._booting) >= self._slots:
            self._waiting[vm] = None
            return False
        self._booting.add(vm)
        return True

    def release(self, vm: str) -> None:
        """Release the slot, if the machine has one."""
        self._booting.discard(vm)

    def end(self, vm: str) -> None:
        """End the work on a machine, which may not have booted: the next machine may no longer need its slot."""
        self._booting.discard(vm)
        if self._waiting and len(self._booting) < self._slots:
            self._queue.add(self._waiting.popitem(last=False)[0])


def _plan(command: VmCommand, label: Label) -> MachinePlan:
    return MachinePlan(label=label, spec=command.spec, name=command.name, fenced=command.fenced, tags=command.tags)
