"""Controller of nodes: puts them on duty, decommissions drained ones, and has unreachable ones switched off."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec

from hostler.engine.controllers.node_lost import SETTLE, HeartbeatMonitor, LostNodes
from hostler.engine.runtime.controller import Controller
from hostler.engine.runtime.guarded_writer import Txn, Why
from hostler.engine.runtime.work_queue import Resync
from hostler.keys.families import ALIVE, ARRIVAL, COMMAND, MEMBER, SLICE
from hostler.model.node import POWER, DrainMode, Lifecycle, OffConfirmation
from hostler.ports.store import Put

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from hostler.engine.controllers.brake import Brake
    from hostler.engine.decision_recorder import Tracer
    from hostler.engine.view import View
    from hostler.keys.entry import Entry
    from hostler.kit.clock import Clock
    from hostler.model.node import NodeRecord
    from hostler.ports.power import Power
    from hostler.ports.store import Comparison, Store

PASS_EVERY = 30.0
POWER_GRACE = 30.0
ASK_POWER_EVERY = 60.0
RETELL = 1.0
"""Seconds after which recording an unreachable node is retried."""


class NodeController(Controller):
    """Reconciles nodes. With `power`, nodes that are unreachable for `power_grace` are switched off.

    That waits for `brake`, which holds while many are unreachable. Without `tracer` decisions are not recorded.
    """

    name = "nodes"
    pass_every = PASS_EVERY

    def __init__(
        self,
        store: Store,
        view: View,
        *,
        clock: Clock,
        rng: random.Random,
        brake: Brake | None = None,
        power: Power | None = None,
        power_grace: float = POWER_GRACE,
        tracer: Tracer | None = None,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        super().__init__(store, clock=clock, rng=rng, tracer=tracer, tell=tell, width=16)
        self._view, self._power, self._grace, self._brake = view, power, power_grace, brake
        self._silence = HeartbeatMonitor(view, clock=clock)
        within = SETTLE if power is None else power_grace  # it is recorded before any action follows from it
        self._absences = None if tracer is None else LostNodes(view, self._silence, tracer, clock=clock, within=within)
        self._resync = Resync(
            lambda: [entry.parts["node"] for entry in view.members.entries.values()], every=PASS_EVERY
        )
        self._asked: dict[str, float] = {}

    # The service

    async def read_caches(self) -> None:
        """Refresh the nodes and their heartbeats."""
        await self._view.refresh(self._view.members, self._view.alive, self._view.silences)

    async def begin(self) -> None:
        """Start to measure how long nodes are unreachable."""
        await self._view.fleet.load()
        if self._brake is not None:
            self._brake.listen(self._brake_ended)
        self.follow(
            self._view.members.listen(lambda key: self._changed(MEMBER.parse(key)["node"])),
            self._view.alive.listen(lambda key: self._changed(ALIVE.parse(key)["node"])),
            self._view.commands.listen(self._command_changed),
            self._view.arrivals.listen(self._arrival_changed),
            self._view.slices.listen(self._slice_changed),
            *(() if self._absences is None else self._absences.listen()),
        )

    async def resync(self, *, first: bool) -> None:
        """Queue nodes in turn, and the unreachable ones each time."""
        if first:
            self._silence.look_at_all()
            nodes = self._resync.all()
        else:
            nodes = [*self._resync.next(), *self._silence.nodes()]
            for node in nodes:
                self._silence.look(node)
        for node in nodes:
            self._queue.add(node)

    # Internal

    def _changed(self, node: str) -> None:
        if self._is_following:
            self._silence.look(node)
            self._queue.add(node)

    def _brake_ended(self) -> None:
        if self._is_following:
            for node in self._silence.nodes():
                self._queue.add(node)

    def _command_changed(self, key: str) -> None:
        if self._is_following and key not in self._view.commands.entries:
            node = COMMAND.parse(key)["node"]
            if not self._view.count_on(node):
                self._queue.add(node)

    def _arrival_changed(self, key: str) -> None:
        if self._is_following and key not in self._view.arrivals.entries:
            self._queue.add(ARRIVAL.parse(key)["node"])

    def _slice_changed(self, key: str) -> None:
        if self._is_following and key not in self._view.slices.entries:
            node = SLICE.parse(key)["node"]
            if not self._view.fleet.count_on(node):
                self._queue.add(node)

    async def reconcile(self, node: str) -> None:
        """Record how a node is, change its lifecycle, or switch it off."""
        entry = self._view.members.get(node=node)
        if entry is None:
            return
        record = entry.value
        heartbeat = self._view.alive.get(node=node)
        alive = heartbeat is not None
        silence = "" if self._absences is None else await self._tell_absence(entry, self._absences, alive=alive)
        if record.lifecycle is Lifecycle.JOINING and alive:
            on_duty = msgspec.structs.replace(record, lifecycle=Lifecycle.ON_DUTY)
            await self._write(
                entry, on_duty, [ALIVE.exists(node=node)], "on_duty", why="it has joined and is alive", cause=heartbeat
            )
        elif await self._is_drained(node, record):
            empty = msgspec.structs.replace(record, lifecycle=Lifecycle.DECOMMISSIONED)
            await self._write(entry, empty, [], "decommissioned", why="it is drained and empty")
        elif not alive and self._power is not None:
            await self._switch_off(node, entry, self._power, silence)

    async def _tell_absence(self, entry: Entry[NodeRecord], absences: LostNodes, *, alive: bool) -> str:
        """Record that the node is unreachable, or is back, unless done; return the id of that decision, if known."""
        if not alive and (wait := absences.wait(entry)) > 0:
            self._queue.add(entry.parts["node"], after=wait + 0.001)
        news = absences.news(entry, alive=alive, fence=self._writing.fence())
        if news is None:
            return absences.cause(entry.parts["node"])
        if await self._writing.commit("", entry.key, Txn(news.when, news.then), None) is None:
            self._writing.count("untold")  # it is recorded later; actions on the node do not wait for that
            self._queue.add(entry.parts["node"], after=RETELL)
            return absences.cause(entry.parts["node"])
        self._writing.count(news.what)
        return news.silence

    async def _is_drained(self, node: str, record: NodeRecord) -> bool:
        """Return whether a drained node is empty. It gets no new commands, so it stays empty."""
        if record.lifecycle is not Lifecycle.DRAINING or record.drain is not DrainMode.MOVE:
            return False
        if self._view.count_on(node) or self._view.arrivals_at(node) or self._view.fleet.count_on(node):
            return False
        # In this order: a machine handed over between the two reads changes from an arrival to a command.
        for prefix in (ARRIVAL.prefix(node=node), COMMAND.prefix(node=node), SLICE.prefix(node=node)):
            if (await self._store.range(prefix, limit=1, keys_only=True)).items:
                return False
        return True

    async def _switch_off(self, node: str, entry: Entry[NodeRecord], power: Power, silence: str) -> None:
        """Switch off a node that became unreachable unexpectedly and has machines that others could run.

        A power switch does not check a fence. The last check before it is a read of the store; a node that returns
        after that only loses time.
        """
        record = entry.value
        leaving = (Lifecycle.SHUTTING_DOWN, Lifecycle.DECOMMISSIONED)
        is_left = record.lifecycle in leaving or not record.lifecycle.is_known
        if record.off is not None or is_left or not self._view.count_on(node):
            return
        if record.awaited:
            return  # its agent may still be about to connect to this store, which is a copy
        # The leases of nodes that are cut off together end one after the other: by then the brake knows all of them.
        settled = 0.0 if self._brake is None else min(SETTLE, record.fencing_time / 4)
        left = max(self._grace, settled) - self._silence.lasted(entry)
        asked = self._asked.get(node)
        if asked is not None:
            left = max(left, asked + ASK_POWER_EVERY - self._clock.now())
        if left > 0:
            self._queue.add(node, after=left + 0.001)
            return
        if self._brake is not None and not self._brake.may_fence(node):
            if (wait := self._brake.wait()) < math.inf:
                self._queue.add(node, after=wait)
            return
        await self._writing.write("", entry.key, Txn([MEMBER.unchanged(entry), ALIVE.absent(node=node)], []), None)
        self._asked[node] = self._clock.now()
        self._writing.count("power_asked")
        if await power.switch_off(node):
            off = OffConfirmation(by=POWER, at=self._clock.wall())
            silent = f"it was unreachable for {self._silence.lasted(entry):.0f} s, and was switched off"
            await self._write(
                *(entry, msgspec.structs.replace(record, off=off), [ALIVE.absent(node=node)], "switched_off"),
                why=silent,
                cause=silence,
            )
            self._tell(f"node {node}: unreachable, and switched off; its machines are restarted elsewhere")
        else:
            self._queue.add(node, after=ASK_POWER_EVERY)

    async def _write(
        self,
        entry: Entry[NodeRecord],
        record: NodeRecord,
        when: list[Comparison],
        what: str,
        *,
        why: str,
        cause: Entry[Any] | str | None = None,
    ) -> None:
        """Write the node's record. Conflict: it has changed."""
        txn = Txn([MEMBER.unchanged(entry), *when], [Put(entry.key, MEMBER.encode(record))])
        told = Why(what=what, why=why, read=(entry,), cause=cause or "")
        await self._writing.write("", entry.key, txn, told)
