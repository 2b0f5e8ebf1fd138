"""Brake on mass failure: when many nodes become unreachable together, none of them is fenced.

One cause that cuts off many agents (a firewall in front of the store, a certificate, a bad release) looks like the
failure of all their nodes. Switching them off, or starting their machines elsewhere with new disks, would turn a
disturbance into data loss. So the leader waits, reports it, and leaves the decision to an operator. Otherwise nodes are
fenced one at a time.

`failed_together` and `holding` are pure. `Brake` keeps the instants at which nodes became unreachable, answers the
controllers of nodes and machines, and keeps the record that the API, `hostler doctor` and later leaders read.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from hostler.engine.controllers.node_lost import SETTLE, common_cause
from hostler.engine.runtime.controller import LeaderService
from hostler.engine.runtime.guarded_writer import Txn, Why
from hostler.errors import Unavailable, Uncertain
from hostler.keys.families import ALIVE, BRAKE, FENCING, MEMBER
from hostler.kit.plural import counted
from hostler.model.node import BrakeRecord, Lifecycle
from hostler.ports.store import Delete

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from hostler.engine.runtime.env import ControllerEnv
    from hostler.engine.view import View
    from hostler.keys.entry import Entry
    from hostler.model.node import NodeRecord
    from hostler.ports.store import Comparison, Operation

SHARE = 1 / 3
"""More than this share of the nodes is a mass failure."""
WINDOW = 60.0
"""Seconds within which they became unreachable."""
FENCE_EVERY = 10.0
"""Seconds between the fencing of two nodes."""
FEW = 2
"""This many nodes are no mass failure, unless they are all."""
LOOK_EVERY = 1.0


def failed_together(
    nodes: Collection[str],
    unreachable: Mapping[str, float | None],
    *,
    of: int | None = None,
    share: float = SHARE,
    window: float = WINDOW,
) -> frozenset[str]:
    """Return the nodes that became unreachable within one window and are too many; empty: no mass failure.

    `unreachable` has the instants; None is an unknown one, which counts in every window. All nodes are too many, and so
    are more than two nodes that exceed `share` of those that were reachable when the window began. `of`: the number of
    nodes at the time of the failure; nodes that joined later do not reduce the share of the failed ones.
    """
    failed = {node: at for node, at in unreachable.items() if node in nodes}
    total = len(nodes) if of is None else min(of, len(nodes))
    if not failed or len(failed) >= total:
        return frozenset(failed)
    unknown = [node for node, at in failed.items() if at is None]
    known = sorted((at, node) for node, at in failed.items() if at is not None)
    found: set[str] = set()
    taken = end = 0  # `found` has all known instants up to `taken`; the window reaches up to `end`
    for start in range(len(known) + 1):  # the last window begins after all known instants
        while start < len(known) and end < len(known) and known[end][0] <= known[start][0] + window:
            end += 1
        count = end - start + len(unknown)
        if count > FEW and count > share * (total - start):
            found.update(unknown, (node for _, node in known[max(start, taken) : end]))
            taken = max(taken, end)
    return frozenset(found)


def reachable_before(nodes: Collection[str], unreachable: Collection[str], group: Collection[str]) -> int:
    """Return the number of nodes that the group is a part of. Nodes that were unreachable before do not count."""
    return sum(node in group or node not in unreachable for node in nodes)


def holding(
    nodes: Collection[str],
    unreachable: Mapping[str, float | None],
    record: BrakeRecord | None,
    *,
    share: float = SHARE,
    window: float = WINDOW,
    recorded_at: float | None = None,
) -> frozenset[str]:
    """Return the nodes that make the brake hold; empty: it does not hold.

    The record of an earlier leader stays in force: its nodes count in every window until they are back, also after
    their removal, and the total number of nodes does not grow. Nodes that an operator released no longer count; further
    nodes do. `recorded_at`: when the record was written, on the clock of `unreachable`; None: unknown. Nodes that were
    unreachable long before that do not count: they may never return.
    """
    if record is None:
        return failed_together(nodes, unreachable, share=share, window=window)
    recorded = unreachable.keys() & frozenset(record.nodes)
    if record.released:
        nodes = frozenset(nodes) - recorded
        unreachable = {node: at for node, at in unreachable.items() if node not in recorded}
        return failed_together(nodes, unreachable, share=share, window=window)
    if recorded_at is not None:
        end = recorded_at - window - SETTLE
        earlier = {node for node, at in unreachable.items() if at is not None and at < end} - recorded
        nodes = frozenset(nodes) - earlier
        unreachable = {node: at for node, at in unreachable.items() if node not in earlier}
    removed = frozenset(record.nodes) - frozenset(nodes)
    unreachable = {**unreachable, **dict.fromkeys(recorded | removed)}
    group = failed_together({*nodes, *removed}, unreachable, of=record.of, share=share, window=window)
    return group - removed


class _Unreachable(msgspec.Struct, frozen=True):
    since: float | None
    """None: before this process led, and no record says when."""
    registered_at: float
    """From the node's record: a node that returned and left unnoticed has registered again."""


class Brake(LeaderService):
    """Keeps the brake. Started before the controllers that ask it. Each leader has its own."""

    name = "brake"

    def __init__(
        self,
        env: ControllerEnv,
        view: View,
        *,
        share: float = SHARE,
        window: float = WINDOW,
        fence_every: float = FENCE_EVERY,
    ) -> None:
        super().__init__(env)
        self._view = view
        self._share, self._window, self._every = share, window, fence_every
        self._unreachable: dict[str, _Unreachable] = {}
        self._group: frozenset[str] = frozenset()
        self._changed = True
        self._held_at: float | None = None
        self._next_at = -math.inf
        self._admitted: set[str] = set()
        self._listeners: list[Callable[[], None]] = []

    # For the controllers

    def may_fence(self, node: str) -> bool:
        """Return whether an unreachable node may be fenced, and its machines taken, now.

        A call that succeeds uses a turn.
        """
        self._look()
        if self._group or node not in self._unreachable:
            return False
        if node in self._admitted:
            return True
        if self._clock.now() < self._next_at:
            return False
        self._next_at = self._clock.now() + self._every
        self._admitted.add(node)
        return True

    def wait(self) -> float:
        """Return the seconds after which to ask again; infinite while the brake holds (see `listen`)."""
        self._look()
        return math.inf if self._group else max(0.1, self._next_at - self._clock.now())

    def listen(self, ended: Callable[[], None]) -> None:
        """Call `ended` each time the brake no longer holds."""
        self._listeners.append(ended)

    # The service

    async def read_caches(self) -> None:
        """Refresh the nodes and the records about them."""
        view = self._view
        await view.refresh(view.members, view.alive, view.silences, view.brakes)

    async def begin(self) -> None:
        """Read which nodes are unreachable, and since when, as far as records say."""
        view = self._view
        for entry in view.members.entries.values():
            if view.alive.get(**entry.parts) is None:
                since = self._recorded_since(entry)
                self._unreachable[entry.parts["node"]] = _Unreachable(since, entry.value.registered_at)
        self.follow(
            view.members.listen(lambda key: self._node_changed(MEMBER.parse(key)["node"])),
            view.alive.listen(lambda key: self._node_changed(ALIVE.parse(key)["node"])),
            view.brakes.listen(lambda _: self._record_changed()),
        )

    async def run(self) -> None:
        """Run until cancelled. LeadershipLost: another replica leads."""
        while True:
            self._changed = True  # nodes that shut down count while they have machines
            self._look()
            try:
                await self._keep_record()
            except (Unavailable, Uncertain):
                self._writing.count("unrecorded")
            await self._clock.sleep(LOOK_EVERY)

    # Internal

    def _recorded_since(self, member: Entry[NodeRecord]) -> float | None:
        """Return when the node became unreachable, at the latest, from records of earlier leaders, on our clock."""
        silent, record = self._view.silences.get(**member.parts), member.value
        if silent is not None and silent.value.registered_at == record.registered_at:
            at = silent.value.at
        elif record.off is not None:
            at = record.off.at
        else:
            return None
        ago = self._clock.wall() - at
        return self._clock.now() - ago if ago >= 0 else None  # the clocks disagree: unknown

    def _node_changed(self, node: str) -> None:
        self._changed = True
        member = self._view.members.get(node=node)
        known = self._unreachable.get(node)
        if member is None or self._view.alive.get(node=node) is not None:
            self._unreachable.pop(node, None)
            self._admitted.discard(node)
        elif known is None or known.registered_at != member.value.registered_at:
            self._unreachable[node] = _Unreachable(self._clock.now(), member.value.registered_at)
            self._admitted.discard(node)

    def _record_changed(self) -> None:
        self._changed = True
        self._look()

    def _record(self) -> Entry[BrakeRecord] | None:
        return self._view.brakes.get(scope=FENCING)

    def _nodes(self) -> list[str]:
        return [entry.parts["node"] for entry in self._view.members.entries.values() if self._counts(entry)]

    def _counts(self, member: Entry[NodeRecord]) -> bool:
        """Return whether the node counts.

        Decommissioned nodes do not; a node with a stopped agent does while it has machines.
        """
        lifecycle = member.value.lifecycle
        if lifecycle is Lifecycle.SHUTTING_DOWN:
            return self._view.count_on(member.parts["node"]) > 0
        return lifecycle is not Lifecycle.DECOMMISSIONED

    def _holding(self, record: BrakeRecord | None) -> frozenset[str]:
        if not self._unreachable:
            return frozenset()
        instants = {node: one.since for node, one in self._unreachable.items()}
        ago = -1.0 if record is None else self._clock.wall() - record.at
        at = self._clock.now() - ago if ago >= 0 else None  # the clocks disagree: unknown
        return holding(self._nodes(), instants, record, share=self._share, window=self._window, recorded_at=at)

    def _look(self) -> None:
        """Decide again whether the brake holds, if anything has changed."""
        if not self._changed:
            return
        self._changed = False
        entry = self._record()
        self._group = self._holding(None if entry is None else entry.value)
        now = self._clock.now()
        if self._group:
            self._held_at = now if self._held_at is None else self._held_at
            self._admitted.clear()
        elif self._held_at is not None:
            lasted, self._held_at = now - self._held_at, None
            if entry is None or not entry.value.released:
                # Nodes that are still unreachable have been so for long. They get time to return like the others.
                self._next_at = max(self._next_at, now + min(self._window, lasted))
            for ended in self._listeners:
                ended()

    async def _keep_record(self) -> None:
        """Write, change or delete the record, so that it matches the current state."""
        entry, group = self._record(), self._group
        record = None if entry is None else entry.value
        if group:
            if self._held_at is None or self._clock.now() - self._held_at < SETTLE:
                return
            held = None if record is None or record.released else record
            if held is None or not group <= frozenset(held.nodes):
                await self._announce(entry, group, held)
                return
        if entry is None or record is None:
            return
        left = tuple(node for node in record.nodes if self._view.alive.get(node=node) is None)
        if not group and not self._holding(msgspec.structs.replace(record, released_at=None)):
            await self._end(entry, sum(node in self._unreachable for node in left), record.of)
        elif left != record.nodes:  # a node that was back is covered neither by the record nor by its release
            await self._write(entry, BRAKE.put(msgspec.structs.replace(record, nodes=left), scope=FENCING))

    async def _announce(
        self, entry: Entry[BrakeRecord] | None, group: frozenset[str], held: BrakeRecord | None
    ) -> None:
        """Write the record. `held`: the current record; its nodes stay, and its total number of nodes does not grow."""
        of, nodes = reachable_before(self._nodes(), self._unreachable, group), sorted(group)
        if held is not None:
            nodes = sorted({*group, *(node for node in held.nodes if self._view.alive.get(node=node) is None)})
            of = max(len(nodes), min(of, held.of))
        cause = common_cause(self._view, sorted(group))
        record = BrakeRecord(nodes=tuple(nodes), of=of, cause=cause, at=self._clock.wall())
        why = f"{len(nodes)} of {counted(of, 'node')} became unreachable together, {cause}; none is fenced"
        if await self._write(entry, BRAKE.put(record, scope=FENCING), Why(what="brake", why=why, read=(entry,))):
            self._tell(
                f"brake: {why}: no node is switched off and no machine is taken until enough of them are back;"
                " if they are lost for good: hostler node brake release"
            )

    async def _end(self, entry: Entry[BrakeRecord], left: int, of: int) -> None:
        why = f"of {counted(of, 'node')} only {left} are still unreachable; nodes are fenced one at a time again"
        if await self._write(entry, Delete(entry.key), Why(what="brake_ended", why=why, read=(entry,))):
            self._tell(f"brake: no longer holds: {why}")

    async def _write(self, entry: Entry[BrakeRecord] | None, operation: Operation, why: Why | None = None) -> bool:
        """Commit a change of the record; False: another process changed it, and the next pass reads it again."""
        same: Comparison = BRAKE.absent(scope=FENCING) if entry is None else BRAKE.unchanged(entry)
        return await self._writing.commit("", BRAKE.fill(scope=FENCING), Txn([same], [operation]), why) is not None
