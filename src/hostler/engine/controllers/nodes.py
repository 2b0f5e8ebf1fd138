"""The leader's work on nodes: on duty, drained and empty, silent and to be switched off."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from hostler.engine.controllers.queue import Queue
from hostler.engine.controllers.silence import Silence
from hostler.errors import Conflict, LeadershipLost, Unavailable, Uncertain
from hostler.keys.node import ALIVE, ARRIVAL, COMMAND, MEMBER
from hostler.kit.backoff import Backoff
from hostler.kit.together import run_together
from hostler.model.node import DrainMode, Lifecycle, OffConfirmation
from hostler.ports.store import Put

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from hostler.engine.service import Standing
    from hostler.engine.view import View
    from hostler.keys.entry import Entry
    from hostler.kit.clock import Clock
    from hostler.model.node import NodeRecord
    from hostler.ports.power import Power
    from hostler.ports.store import Comparison, Store

PASS_EVERY = 30.0
POWER_GRACE = 30.0
ASK_POWER_EVERY = 60.0
WHO = "hostler"


class NodeController:
    """A service for a replica's controllers. With `power`, nodes that are silent for `power_grace` are switched off."""

    name = "nodes"

    def __init__(
        self,
        store: Store,
        view: View,
        *,
        clock: Clock,
        rng: random.Random,
        power: Power | None = None,
        power_grace: float = POWER_GRACE,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._store, self._view, self._clock, self._rng = store, view, clock, rng
        self._power, self._grace, self._tell = power, power_grace, tell
        self.counters: dict[str, int] = {}
        self._silence = Silence(view, clock=clock)
        self._queue = Queue(self._look, clock=clock, rng=rng, tell=tell, counters=self.counters, width=16)
        self._asked: dict[str, float] = {}
        self._standing: Standing | None = None
        self._listening = False
        self._ends_of_listening: list[Callable[[], None]] = []

    # The service

    async def start(self, standing: Standing) -> None:
        """Read the nodes anew, and begin to count the silence of those that are silent."""
        self._standing = standing
        backoff = Backoff(0.05, 2.0, rng=self._rng)
        while True:
            try:
                await self._view.refresh(self._view.members, self._view.alive)
                break
            except (Unavailable, Uncertain):
                await self._clock.sleep(backoff.next())
        self._listening = True
        self._ends_of_listening = [
            self._view.members.listen(lambda key: self._changed(MEMBER.parse(key)["node"])),
            self._view.alive.listen(lambda key: self._changed(ALIVE.parse(key)["node"])),
            self._view.commands.listen(self._command_changed),
            self._view.arrivals.listen(self._arrival_changed),
        ]

    async def run(self) -> None:
        """Until cancelled. LeadershipLost: somebody else leads."""
        await run_together("nodes", {"names": self._queue.run(), "pass": self._pass()})

    async def stop(self) -> None:
        """Hear no more."""
        self._listening = False
        for end in self._ends_of_listening:
            end()

    # Inside

    def _changed(self, node: str) -> None:
        if self._listening:
            self._silence.look(node)
            self._queue.add(node)

    def _command_changed(self, key: str) -> None:
        if self._listening and key not in self._view.commands.entries:
            node = COMMAND.parse(key)["node"]
            if not self._view.count_on(node):
                self._queue.add(node)

    def _arrival_changed(self, key: str) -> None:
        if self._listening and key not in self._view.arrivals.entries:
            self._queue.add(ARRIVAL.parse(key)["node"])

    async def _pass(self) -> None:
        while True:
            self._silence.look_at_all()
            for entry in self._view.members.entries.values():
                self._queue.add(entry.parts["node"])
            await self._clock.sleep(PASS_EVERY)

    async def _look(self, node: str) -> None:
        entry = self._view.members.get(node=node)
        if entry is None:
            return
        record = entry.value
        alive = self._view.alive.get(node=node) is not None
        if record.lifecycle is Lifecycle.JOINING and alive:
            on_duty = msgspec.structs.replace(record, lifecycle=Lifecycle.ON_DUTY)
            await self._write(entry, on_duty, [ALIVE.exists(node=node)], "on_duty")
        elif await self._is_drained(node, record):
            empty = msgspec.structs.replace(record, lifecycle=Lifecycle.DECOMMISSIONED)
            await self._write(entry, empty, [], "decommissioned")
        elif not alive and self._power is not None:
            await self._switch_off(node, entry, self._power)

    async def _is_drained(self, node: str, record: NodeRecord) -> bool:
        """Nothing is told to a node that is drained, so one that is empty now stays so."""
        if record.lifecycle is not Lifecycle.DRAINING or record.drain is not DrainMode.MOVE:
            return False
        if self._view.count_on(node) or self._view.arrivals_at(node):
            return False
        # In this order: what is handed over between the two looks was an arrival, and is a command.
        for prefix in (ARRIVAL.prefix(node=node), COMMAND.prefix(node=node)):
            if (await self._store.range(prefix, limit=1, keys_only=True)).items:
                return False
        return True

    async def _switch_off(self, node: str, entry: Entry[NodeRecord], power: Power) -> None:
        """Only nodes that fell silent by themselves, and have something that others could run.

        A switch knows no fence. The last look before it is at the store; a node that came back since has lost nothing
        but time.
        """
        record = entry.value
        leaving = (Lifecycle.SHUTTING_DOWN, Lifecycle.DECOMMISSIONED)
        if record.off is not None or record.lifecycle in leaving or not self._view.count_on(node):
            return
        left = self._grace - self._silence.lasted(entry)
        asked = self._asked.get(node)
        if asked is not None:
            left = max(left, asked + ASK_POWER_EVERY - self._clock.now())
        if left > 0:
            self._queue.add(node, after=left + 0.001)
            return
        result = await self._store.txn([self._guard(), MEMBER.unchanged(entry), ALIVE.absent(node=node)], [])
        if not result.succeeded:
            await self._lost(entry)
        self._asked[node] = self._clock.now()
        self._count("power_asked")
        if await power.switch_off(node):
            off = OffConfirmation(by=WHO, at=self._clock.wall())
            await self._write(
                entry, msgspec.structs.replace(record, off=off), [ALIVE.absent(node=node)], "switched_off"
            )
            self._tell(f"node {node}: silent, and switched off; its machines are started elsewhere")
        else:
            self._queue.add(node, after=ASK_POWER_EVERY)

    async def _write(self, entry: Entry[NodeRecord], record: NodeRecord, when: list[Comparison], what: str) -> None:
        """Conflict: it has changed meanwhile."""
        put = Put(entry.key, MEMBER.encode(record))
        if not (await self._store.txn([self._guard(), MEMBER.unchanged(entry), *when], [put])).succeeded:
            await self._lost(entry)
        self._count(what)

    async def _lost(self, entry: Entry[NodeRecord]) -> None:
        """A condition did not hold: the leadership's, or the node's."""
        guard = self._guard()
        if not guard.holds(await self._store.get(guard.key)):
            raise LeadershipLost(f"leadership {guard.key}: somebody took or removed its record; stop what it was for")
        raise Conflict(f"node {entry.value.node}: it has just changed; it will be looked at again")

    def _guard(self) -> Comparison:
        if self._standing is None:
            raise RuntimeError("nodes: used before it was started")
        self._standing.leadership.check()
        return self._standing.leadership.guard()

    def _count(self, what: str) -> None:
        self.counters[what] = self.counters.get(what, 0) + 1
