"""Machines that a node takes out of service and keeps: their records, and requests to delete them."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from hostler.engine.agent.status_reporter import PATIENCE, pause
from hostler.errors import Conflict, HostlerError, NotFound, Refused
from hostler.keys.cache import Cache
from hostler.keys.families import RETAINED, RETAINED_REQUEST
from hostler.kit.plural import counted
from hostler.model.name import fold
from hostler.model.node import Retained
from hostler.model.vm import MachineState, has_disk
from hostler.ports.machines import Retention, ability, required

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hostler.engine.agent.config import NodeEnv
    from hostler.engine.agent.session import Session
    from hostler.keys.entry import Entry
    from hostler.model.node import RetainedRequest, VmCommand
    from hostler.model.vm import VmHandle
    from hostler.ports.machines import Label, Machine, MachinePlan, Machines, RetainedMachine
    from hostler.ports.store import Operation

BATCH = 50
"""Number of records written in one transaction."""
_ON = (MachineState.STARTING, MachineState.RUNNING, MachineState.STOPPING)
_log = logging.getLogger("hostler.agent")


def new_name(vm: str, wall: float) -> str:
    """Return the name for a machine that is retained now."""
    return f"{vm}-{time.strftime('%Y%m%d%H%M%S', time.gmtime(wall))}"


async def retain(machines: Machines, seen: Machine, *, grace: float, wall: float) -> RetainedMachine | None:
    """Shut a machine down and take it out of service; None: it had no written disk to keep."""
    if seen.state in _ON:
        await machines.stop(seen.label.vm, grace=grace)
    return await required(machines, Retention).retain(seen.label.vm, new_name(seen.label.vm, wall))


async def create(machines: Machines, plan: MachinePlan, command: VmCommand) -> Machine:
    """Create a missing machine, or reinstate the retained one that its command names."""
    name = command.reinstate
    if name == "":
        name = newest(await retained_by(machines), command.vm)
    if not name:
        return await machines.create(plan)
    try:
        return await required(machines, Retention).reinstate(name, plan)
    except NotFound as error:
        raise Refused(f"{error}; restore another one, or delete this virtual machine") from None


async def has_lost_disk(
    machines: Machines, command: VmCommand, handle: VmHandle | None, node: str, *, noted: bool
) -> bool:
    """Return whether a missing machine had a disk on this node and will be created with a new one.

    `noted`: the loss was found before, and its handle may say so already.
    """
    if handle is None or handle.node != node or command.reinstate:
        return False
    if not has_disk(handle) and (noted or handle.taken_from != node):
        return False
    return command.reinstate is None or newest(await retained_by(machines), command.vm) is None


async def retained_by(machines: Machines) -> Sequence[RetainedMachine]:
    """Return the retained machines of a node; none if its driver cannot retain machines."""
    retention = ability(machines, Retention)
    return () if retention is None else await retention.retained()


def newest(retained: Iterable[RetainedMachine], vm: str) -> str | None:
    """Return the name of the last retained machine of a VM, or None."""
    found = [(each.retained_at, each.name) for each in retained if each.label.vm == vm]
    return max(found)[1] if found else None


def is_ours(label: Label, session: Session, node: str) -> bool:
    """Return whether a machine with this label was created for this control plane and this node."""
    return bool(label.cluster) and label.cluster in session.ids and fold(label.node) == node


class RetainedMachines:
    """Publishes the retained machines of one node, and deletes those whose deletion was requested."""

    def __init__(
        self,
        env: NodeEnv,
        commands: Cache[VmCommand],
        session: Session,
    ) -> None:
        self._store, self._machines, self._node, self._commands = env.store, env.machines, env.config.node, commands
        self._session, self._clock, self._rng = session, env.clock, env.rng
        self.requests = Cache(env.store, RETAINED_REQUEST, clock=env.clock, rng=env.rng, node=self._node)
        self.requests.listen(lambda _: self.schedule_check())
        self._changed = asyncio.Event()
        self._failures = 0
        self._foreign: set[str] = set()
        self._elsewhere = 0

    def schedule_check(self) -> None:
        """Schedule a check: retained machines, requests or the session have changed."""
        self._changed.set()

    async def run(self) -> None:
        """Publish and delete until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            if not (self._session.open and self._session.may_act()):
                continue  # a new session calls `schedule_check`
            try:
                await self._publish()
                for entry in tuple(self.requests.entries.values()):
                    await self._delete(entry)
            except (HostlerError, TimeoutError) as error:
                self._failures += 1
                _log.warning("node %s: its retained machines could not be published: %s", self._node, error)
                await self._clock.sleep(pause(self._failures, self._rng))
                self._changed.set()
            else:
                self._failures = 0

    async def _publish(self) -> None:
        """Write the retained machines of this node to the store.

        Records of machines that this node retained in other storage stay, because their disks are there.
        """
        kept = await self._own_retained()
        async with asyncio.timeout(PATIENCE):
            listing = await RETAINED.list(self._store, node=self._node, strict=False)
        known = {entry.parts["name"]: entry.value for entry in listing.entries}
        there = {each.name: self._record(each, known.get(each.name)) for each in kept}
        elsewhere = {name for name, record in known.items() if record.place not in ("", self._machines.place)}
        elsewhere -= there.keys()
        if len(elsewhere) != self._elsewhere:
            self._elsewhere = len(elsewhere)
            if elsewhere:
                _log.warning(
                    "node %s: %s in other storage than its machines now; the records stay: hostler vm retained list",
                    *(self._node, counted(len(elsewhere), "retained machine is", "retained machines are")),
                )
        then: list[Operation] = [
            RETAINED.put(record, node=self._node, name=name)
            for name, record in there.items()
            if known.get(name) != record
        ]
        gone = sorted(known.keys() - there.keys() - elsewhere)  # in order, so that a simulation seed is reproducible
        then += [RETAINED.delete(node=self._node, name=name) for name in gone]
        for at in range(0, len(then), BATCH):
            async with asyncio.timeout(PATIENCE):
                if not (await self._store.txn([self._session.guard()], then[at : at + BATCH])).succeeded:
                    raise Conflict("the session is over; the next one publishes them")

    async def _delete(self, entry: Entry[RetainedRequest]) -> None:
        name = entry.parts["name"]
        kept = next((each for each in await self._own_retained() if each.name == name), None)
        if kept is not None:
            await self._commands.refresh()
            if await self._is_wanted(kept):
                return  # a VM is being restored from it, and its record is deleted with that
            async with asyncio.timeout(PATIENCE):
                when = [self._session.guard(), RETAINED_REQUEST.unchanged(entry)]
                if not (await self._store.txn(when, [RETAINED.get_op(node=self._node, name=name)])).succeeded:
                    return
            _log.warning("retained machine %s: deleted from node %s, requested by %s", name, self._node, entry.value.by)
            await required(self._machines, Retention).discard(name)
        async with asyncio.timeout(PATIENCE):
            await self._store.txn(
                [self._session.guard()],
                [RETAINED.delete(node=self._node, name=name), RETAINED_REQUEST.delete(node=self._node, name=name)],
            )

    async def _own_retained(self) -> list[RetainedMachine]:
        """Return the retained machines of this control plane and node. Others are left alone."""
        found = await retained_by(self._machines)
        if not all(is_ours(each.label, self._session, self._node) for each in found):
            await self._session.learn_ids()  # the machine's state file may just have been moved into the cluster
        ours = [each for each in found if is_ours(each.label, self._session, self._node)]
        foreign = {each.name for each in found} - {each.name for each in ours}
        for name in sorted(foreign - self._foreign):
            _log.warning("retained machine %s: belongs to another control plane or node, and is left alone", name)
        self._foreign = foreign
        return ours

    async def _is_wanted(self, kept: RetainedMachine) -> bool:
        """Return whether a command says to reinstate it and that is not done yet."""
        for entry in self._commands.entries.values():
            command = entry.value
            if command.reinstate == kept.name:
                return True
            if command.reinstate == "" and command.vm == kept.label.vm:
                return await self._machines.inspect(command.vm) is None
        return False

    def _record(self, machine: RetainedMachine, known: Retained | None) -> Retained:
        label = machine.label
        return Retained(
            name=machine.name,
            org=label.org,
            project=label.project,
            vm=label.vm,
            vm_name=machine.machine_name,
            spec=machine.spec,
            snapshots=machine.snapshots,
            retained_at=machine.retained_at,
            listed_at=0.0 if known is None else known.listed_at,
            disk_bytes=machine.disk_bytes,
            driver=self._machines.name,
            place=self._machines.place,
        )
