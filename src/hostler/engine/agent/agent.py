"""The agent of one node."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from hostler.engine.agent.config import AgentState
from hostler.engine.agent.decide import Action
from hostler.engine.agent.retained import RetainedMachines
from hostler.engine.agent.session import Session
from hostler.engine.agent.worker import Workers
from hostler.engine.slices.slice_agent import SliceAgent
from hostler.errors import HostlerError
from hostler.keys.cache import Cache
from hostler.keys.families import ARRIVAL, COMMAND
from hostler.kit.tasks import run_together
from hostler.model.vm import MachineState
from hostler.ports.machines import migration_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from typing import Any

    from hostler.engine.agent.config import NodeEnv
    from hostler.engine.cluster_id import Memory
    from hostler.engine.deployments.state_machine import Limits
    from hostler.ports.machines import Machine, Peers
    from hostler.ports.slices import Slices

_CHUNK = 500
"""Number of machines compared before yielding to other tasks."""
_ON = (MachineState.STARTING, MachineState.RUNNING, MachineState.STOPPING)
_log = logging.getLogger("hostler.agent")


class Agent:
    """The agent of one node; `run` can be called once. The caller opens and closes the store and the machines."""

    def __init__(
        self,
        env: NodeEnv,
        *,
        peers: Peers | None = None,
        slices: Slices | None = None,
        limits: Limits | None = None,
        memory: Memory | None = None,
        accept: bool = False,
    ) -> None:
        """`peers`: connections to other nodes; without them no machine of this node is migrated.

        `slices`: the slice runtime; without it, slices assigned to this node are ignored. `limits`: timeouts of slice
        steps. `memory`, `accept`: as in Session.
        """
        store, machines, plan, clock, rng = env.store, env.machines, env.config, env.clock, env.rng
        self._machines, self._plan, self._clock = machines, plan, clock
        self.commands = Cache(store, COMMAND, clock=clock, rng=rng, node=plan.node)
        self.arrivals = Cache(store, ARRIVAL, clock=clock, rng=rng, node=plan.node)
        self.session = Session(
            env,
            prepare=self._prepare,
            changed=self._session_changed,
            moves=migration_of(machines) is not None and peers is not None,
            memory=memory,
            accept=accept,
        )
        self.retained = RetainedMachines(env, self.commands, self.session)
        self._workers = Workers(
            env,
            self.commands,
            self.session,
            arrivals=self.arrivals,
            peers=peers,
            keep=self.retained.schedule_check,
        )
        self.slices = None if slices is None else SliceAgent(env, slices, self.session, limits=limits)
        self._queue = self._workers.queue
        self.commands.listen(self._command_changed)
        self.arrivals.listen(lambda key: self._queue.add(ARRIVAL.parse(key)["vm"]))
        machines.listen(self._queue.add)
        self._main: asyncio.Task[None] | None = None
        self._closed = False
        self._retained_told = 0
        self._looked: tuple[Sequence[Machine], int, int] = ((), 0, -1)

    async def run(self) -> None:
        """Run until cancelled or until `aclose`. Raise Closed if the store is closed; machines keep running then."""
        if self._main is not None or self._closed:
            raise RuntimeError(f"agent of node {self._plan.node}: already run; make a new Agent to run again")
        self._main = asyncio.create_task(self._work(), name=f"agent {self._plan.node}")
        try:
            await asyncio.wait((self._main,))
        finally:
            if not self._main.done():
                self._main.cancel()
                await asyncio.wait((self._main,))
        if not self._main.cancelled():
            self._main.result()

    async def aclose(self, leaving: bool = True) -> None:
        """Stop the agent; the machines keep running. Calling it twice is allowed.

        `leaving`: announce the shutdown and revoke the lease. Otherwise the lease is left to expire. An agent that
        starts on the same machines before that takes the lease over, and the node never becomes unreachable.
        """
        self._closed = True
        if self._main is not None and not self._main.done():
            self._main.cancel()
            await asyncio.wait((self._main,))
        if leaving:
            await self.session.leave()

    def state(self) -> AgentState:
        """Return the current state."""
        heard = self.session.heard_at
        return AgentState(
            node=self._plan.node,
            holder=self.session.holder,
            registered=self.session.open,
            waits_for=self.session.waits_for,
            heard_ago=None if heard is None else self._clock.now() - heard,
            sessions=self.session.number,
            commands=len(self.commands.entries),
            slices=0 if self.slices is None else self.slices.instances,
            working=self._queue.working,
            waiting=self._queue.waiting + len(self._workers.boots) + len(self._workers.parked),
            failing=sum(1 for known in self._workers.known.values() if known.put_off),
            unreadable=tuple(sorted((*self.commands.unreadable, *self._unreadable_slices()))),
            foreign=len(self._workers.foreign),
            retained=self._workers.retained,
            removed=self._workers.removed,
            steps=self._workers.steps,
            reports=self._workers.reports.sent,
        )

    # Internals

    def _unreadable_slices(self) -> tuple[str, ...]:
        return () if self.slices is None else tuple(self.slices.slices.unreadable)

    async def _work(self) -> None:
        parts = {
            "commands": self.commands.run(),
            "arrivals": self.arrivals.run(),
            "retained requests": self.retained.requests.run(),
            "retained": self.retained.run(),
            "session": self.session.run(),
            "queue": self._queue.run(),
            "look": self._every(self._plan.look_every, self._look),
            "offer": self._every(self._plan.look_every, self._renew),
            "sweep": self._every(self._plan.sweep_every, self._sweep),
        }
        if self.slices is not None:
            parts["slices"] = self.slices.run()
        try:
            await run_together(f"agent {self._plan.node}", parts)
        finally:
            await self._queue.aclose()

    def _command_changed(self, key: str) -> None:
        vm = COMMAND.parse(key)["vm"]
        entry = self.commands.entries.get(key)
        if entry is not None:
            self.session.saw(entry.mod_revision)
        self._workers.heed(vm)
        self._queue.add(vm)

    def _session_changed(self) -> None:
        if self.slices is not None:
            self.slices.session_changed()
        self._tell_retained()
        if self._workers.parked and self.session.may_act():
            parked, self._workers.parked = self._workers.parked, {}
            for vm in parked:
                self._queue.add(vm)

    def _tell_retained(self) -> None:
        """Publish retained machines once per session: an earlier process may have failed to publish some."""
        if self.session.open and self.session.number != self._retained_told:
            self._retained_told = self.session.number
            self.retained.schedule_check()

    async def _prepare(self) -> None:
        """Prepare after each registration, before the fencing deadline is extended.

        Once the deadline is extended, a start that began earlier could succeed for a command that was deleted in the
        meantime. So no start may be in progress, and no fenced machine without a command may run.
        """
        starting = [
            vm for vm, known in self._workers.known.items() if known.doing and known.doing.action is Action.START
        ]
        await self._queue.stop(starting)
        await self.commands.refresh()
        await self.arrivals.refresh()
        if self.slices is not None:
            await self.slices.prepare()
        machines = await self._machines.list()
        for machine in machines:
            if machine.fenced and machine.state in _ON and self._is_uncommanded(machine):
                await self._machines.stop(machine.label.vm, grace=0.0)
        await self._swept(machines)

    def _is_unassigned(self, machine: Machine) -> bool:
        key = ARRIVAL.fill(node=self._plan.node, vm=machine.label.vm)
        expected = key in self.arrivals.entries or key in self.arrivals.unreadable
        return self._is_uncommanded(machine) and not expected

    def _is_uncommanded(self, machine: Machine) -> bool:
        key = COMMAND.fill(node=self._plan.node, vm=machine.label.vm)
        return (
            self._workers.is_ours(machine) and key not in self.commands.entries and key not in self.commands.unreadable
        )

    async def _every(self, seconds: float, do: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while True:
            await self._clock.sleep(seconds)
            try:
                await do()
            except HostlerError as error:
                _log.warning("node %s: its machines cannot be listed: %s", self._plan.node, error)

    async def _look(self) -> None:
        """Detect machines that changed by themselves."""
        machines = await self._machines.list()
        revision, turns = self.commands.revision, self._queue.turns
        if machines is self._looked[0] and (revision, turns) == self._looked[1:]:
            return  # the same list was already compared, and no worker has run since
        self._looked = (machines, revision, turns)
        seen = {machine.label.vm: machine for machine in machines}
        for number, entry in enumerate(list(self.commands.entries.values())):
            vm = entry.value.vm
            known, machine = self._workers.known.get(vm), seen.get(vm)
            if known is not None and (known.seen is machine or known.seen == machine):
                pass  # the common case
            elif not (self._queue.has(vm) or self._workers.boots.has(vm)):
                self._queue.add(vm)
            if number % _CHUNK == _CHUNK - 1:
                await asyncio.sleep(0)

    async def _renew(self) -> None:
        if self.session.open:
            offering = self.session.offering
            is_swept = offering.awaited and not any(map(self._is_unassigned, await self._machines.list()))
            await offering.renew(is_swept=is_swept)

    async def _sweep(self) -> None:
        await self._swept(await self._machines.list())

    async def _swept(self, machines: Sequence[Machine]) -> None:
        """Queue every machine without a command. The worker verifies that before it retains anything."""
        self._workers.foreign = {machine.label.vm for machine in machines if not self._workers.is_ours(machine)}
        for entry in tuple(self.arrivals.entries.values()):
            self._queue.add(entry.parts["vm"])
        for number, machine in enumerate(machines):
            if self._is_unassigned(machine):
                self._queue.add(machine.label.vm)
            if number % _CHUNK == _CHUNK - 1:
                await asyncio.sleep(0)
