"""Controller of nodes: puts them on duty, decommissions drained ones, and has unreachable ones switched off.

    snapshot ──decide──▶ step ──confirmed by the store or the power switch──▶ transaction

Before that, it records that a node is unreachable, or is back.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from hostler.engine.controllers.node_decision import (
    ASK_POWER_EVERY,
    POWER_GRACE,
    Act,
    NodeSnapshot,
    PowerRules,
    decide,
    power_permission,
    transaction,
)
from hostler.engine.controllers.node_lost import SETTLE, HeartbeatMonitor, LostNodes
from hostler.engine.runtime.controller import Controller
from hostler.engine.runtime.guarded_writer import Txn
from hostler.engine.runtime.work_queue import Resync
from hostler.keys.families import ALIVE, ARRIVAL, COMMAND, MEMBER, SLICE

if TYPE_CHECKING:
    from hostler.engine.controllers.brake import Brake
    from hostler.engine.runtime.env import ControllerEnv
    from hostler.engine.view import View
    from hostler.keys.entry import Entry
    from hostler.model.node import NodeRecord
    from hostler.ports.power import Power

PASS_EVERY = 30.0
RECORD_AGAIN = 1.0
"""Seconds after which recording an unreachable node is retried."""

CATCH_UP = 1.0
"""Seconds after which a node is reconciled again that the caches call empty and the store does not."""


class NodeController(Controller):
    """Reconciles nodes. With `power`, nodes that are unreachable for `power_grace` are switched off.

    That waits for `brake`, which holds while many are unreachable.
    """

    name = "nodes"
    pass_every = PASS_EVERY

    def __init__(
        self,
        env: ControllerEnv,
        view: View,
        *,
        brake: Brake | None = None,
        power: Power | None = None,
        power_grace: float = POWER_GRACE,
    ) -> None:
        super().__init__(env, width=16)
        self._view, self._power, self._brake = view, power, brake
        settle = 0.0 if brake is None else SETTLE
        self._power_rules = None if power is None else PowerRules(power_grace, settle)
        self._heartbeats = HeartbeatMonitor(view, clock=env.clock)
        within = SETTLE if power is None else power_grace  # it is recorded before any action follows from it
        self._absences = (
            None
            if env.tracer is None
            else LostNodes(view, self._heartbeats, env.tracer, clock=env.clock, within=within)
        )
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
            self._heartbeats.look_at_all()
            nodes = self._resync.all()
        else:
            nodes = [*self._resync.next(), *self._heartbeats.nodes()]
            for node in nodes:
                self._heartbeats.look(node)
        for node in nodes:
            self._queue.add(node)

    # Internal

    def _changed(self, node: str) -> None:
        if self._is_following:
            self._heartbeats.look(node)
            self._queue.add(node)

    def _brake_ended(self) -> None:
        if self._is_following:
            for node in self._heartbeats.nodes():
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
        member = self._view.members.get(node=node)
        if member is None:
            return
        silence = await self._record_reachability(member)
        snapshot = self.snapshot(member)
        step = decide(snapshot, self._power_rules, self._clock.now())
        if step.after is not None:
            self._queue.add(node, after=step.after)
        match step.act:
            case Act.DECOMMISSION if not await self._is_empty_in_store(node):
                self._queue.add(node, after=CATCH_UP)  # the caches are behind the store
                return
            case Act.SWITCH_OFF if not await self._switch_off(snapshot):
                return
            case Act.SWITCH_OFF:
                snapshot = msgspec.structs.replace(snapshot, unreachable_for=self._heartbeats.unreachable_for(member))
            case Act.NOTHING:
                return
        txn, why = transaction(snapshot, step.act, at=self._clock.wall(), silence=silence)
        await self._writing.write("", member.key, txn, why)
        if step.act is Act.SWITCH_OFF:
            self._tell(f"node {node}: unreachable, and switched off; its machines are restarted elsewhere")

    def snapshot(self, member: Entry[NodeRecord]) -> NodeSnapshot:
        """Return what a decision about a node is based on, from the caches."""
        node, view = member.parts["node"], self._view
        machines = view.count_on(node)
        return NodeSnapshot(
            member=member,
            heartbeat=view.alive.get(node=node),
            machines=machines,
            is_empty=not machines and not view.arrivals_at(node) and not view.fleet.count_on(node),
            unreachable_for=self._heartbeats.unreachable_for(member),
            power_asked_at=self._asked.get(node),
        )

    async def _record_reachability(self, entry: Entry[NodeRecord]) -> str:
        """Record that the node is unreachable, or is back, unless done; return the id of that decision, if known."""
        absences = self._absences
        if absences is None:
            return ""
        alive = self._view.alive.get(**entry.parts) is not None
        if not alive and (wait := absences.wait(entry)) > 0:
            self._queue.add(entry.parts["node"], after=wait + 0.001)
        news = absences.news(entry, alive=alive, fence=self._writing.fence())
        if news is None:
            return absences.cause(entry.parts["node"])
        if await self._writing.commit("", entry.key, Txn(news.when, news.then), None) is None:
            self._writing.count("untold")  # it is recorded later; actions on the node do not wait for that
            self._queue.add(entry.parts["node"], after=RECORD_AGAIN)
            return absences.cause(entry.parts["node"])
        self._writing.count(news.what)
        return news.silence

    async def _is_empty_in_store(self, node: str) -> bool:
        """Return whether a drained node is empty. It gets no new commands, so it stays empty."""
        # In this order: a machine handed over between the two reads changes from an arrival to a command.
        for prefix in (ARRIVAL.prefix(node=node), COMMAND.prefix(node=node), SLICE.prefix(node=node)):
            if (await self._store.range(prefix, limit=1, keys_only=True)).items:
                return False
        return True

    async def _switch_off(self, snapshot: NodeSnapshot) -> bool:
        """Switch off the node if the brake permits it; return whether it is off.

        A power switch does not check a fence. The last check before it is a read of the store; a node that returns
        after that only loses time.
        """
        node, member, brake = snapshot.node, snapshot.member, self._brake
        if self._power is None:
            return False
        if brake is not None and not brake.may_fence(node):
            if (wait := brake.wait()) < math.inf:
                self._queue.add(node, after=wait)
            return False
        await self._writing.write("", member.key, power_permission(snapshot), None)
        self._asked[node] = self._clock.now()
        self._writing.count("power_asked")
        if await self._power.switch_off(node):
            return True
        self._queue.add(node, after=ASK_POWER_EVERY)
        return False
