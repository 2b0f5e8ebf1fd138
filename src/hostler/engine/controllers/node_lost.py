"""Unreachable and returned nodes: each is recorded once, by the leader that observes it, with a likely common cause.

A pdu or a tor that fails affects several nodes: each record names what most of the unreachable nodes have in common.

The heartbeat monitor knows since when nodes are unreachable, or reachable, as this process observed it. Only an
unbroken time without heartbeats on one monotonic clock counts. It is bound to the node's record: a node that returned
and left unnoticed has rewritten its record, and then the count starts again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from hostler.engine.decision_recorder import id_of
from hostler.engine.runtime.guarded_writer import Why
from hostler.keys.families import ALIVE, MEMBER, SILENT
from hostler.model.node import Lifecycle
from hostler.model.trace import Silent
from hostler.ports.store import Delete, ModRevision

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from hostler.engine.decision_recorder import Tracer
    from hostler.engine.view import View
    from hostler.keys.entry import Entry
    from hostler.kit.clock import Clock
    from hostler.model.node import NodeRecord
    from hostler.ports.store import Comparison, Operation


SETTLE = 4.0
"""Longest time without heartbeats before it is recorded, in seconds.

Leases that are no longer renewed end one after the other. After this time, nodes with the same cause are unreachable,
too.
"""
LOOK_EVERY = 1.0
"""Seconds between two scans of the unreachable nodes: many may become unreachable at once."""
NAMED = 3
"""Number of nodes that are named, of those that share something."""
_LEAVING = (Lifecycle.SHUTTING_DOWN, Lifecycle.DECOMMISSIONED)


class News(msgspec.Struct, frozen=True):
    """A transaction that records it; the caller adds the leader's guard."""

    what: str
    when: list[Comparison]
    then: list[Operation]
    silence: str = ""
    """The id of the decision that recorded the node as unreachable."""


class LostNodes:
    """Records unreachable nodes, at the latest `within` seconds after a node became unreachable."""

    def __init__(
        self, view: View, silence: HeartbeatMonitor, tracer: Tracer, *, clock: Clock, within: float = SETTLE
    ) -> None:
        self._view, self._silence, self._tracer, self._clock = view, silence, tracer, clock
        self._within = min(SETTLE, within)
        self._common = Common(view, silence, clock=clock)

    def listen(self) -> list[Callable[[], None]]:
        """Start following the caches. The returned functions end it."""
        return self._common.listen()

    def wait(self, member: Entry[NodeRecord]) -> float:
        """Return the seconds until an unreachable node may have to be recorded; 0.0: never, or now."""
        told = self._view.silences.get(node=member.parts["node"])
        if not self._tracer.kept or member.value.lifecycle in _LEAVING or _is_recorded(told, member):
            return 0.0
        return max(0.0, self._recorded_after(member) - self._silence.unreachable_for(member))

    def news(self, member: Entry[NodeRecord], *, alive: bool, fence: int) -> News | None:
        """Return what has to be recorded about the node now; None: nothing."""
        if not self._tracer.kept:
            return None
        node = member.parts["node"]
        told = self._view.silences.get(node=node)
        if alive:
            return None if told is None else self._return_news(node, member, told, fence)
        lasted = self._silence.unreachable_for(member)
        if _is_recorded(told, member) or member.value.lifecycle in _LEAVING or lasted < self._recorded_after(member):
            return None
        return self._loss_news(node, member, told, lasted, fence)

    def cause(self, node: str) -> str:
        """Return the id of the decision that recorded the node as unreachable; empty: there is none."""
        told = self._view.silences.get(node=node)
        return "" if told is None else told.value.trace

    def _recorded_after(self, member: Entry[NodeRecord]) -> float:
        """Return the seconds without heartbeats before it is recorded; always before machines are taken away."""
        fencing_time = member.value.fencing_time
        return min(self._within, fencing_time / 2) if fencing_time > 0 else self._within

    def _loss_news(
        self, node: str, member: Entry[NodeRecord], told: Entry[Silent] | None, lasted: float, fence: int
    ) -> News:
        why = f"it became unreachable: no heartbeat came before its lease ended, {lasted:.0f} s ago"
        if others := self._common.with_node(member):
            why = f"{why}; {others}"
        trace = self._tracer.put(Why(what="silent", why=why), subject=member.key, fence=fence)
        at = self._clock.wall()
        record = Silent(registered_at=member.value.registered_at, trace=id_of(trace), at=at)
        when = [MEMBER.unchanged(member), ALIVE.absent(node=node), self._as_seen(node, told)]
        return News("silent", when, [SILENT.put(record, node=node), trace], silence=record.trace)

    def _as_seen(self, node: str, told: Entry[Silent] | None) -> Comparison:
        """Return the comparison that the record is unchanged; an unreadable one is overwritten."""
        key = SILENT.fill(node=node)
        unreadable = self._view.silences.unreadable.get(key)
        if told is None and unreadable is not None:
            return ModRevision(key) == unreadable.kv.mod_revision
        return SILENT.absent(node=node) if told is None else SILENT.unchanged(told)

    def _return_news(self, node: str, member: Entry[NodeRecord], told: Entry[Silent], fence: int) -> News:
        then: list[Operation] = [Delete(told.key)]
        self._tracer.add(
            then,
            Why(
                what="returned",
                why=f"it sends heartbeats again, {max(0.0, self._clock.wall() - told.value.at):.0f} s later",
                read=(told,),
                cause=told.value.trace,
            ),
            subject=member.key,
            fence=fence,
        )
        return News("returned", [ALIVE.exists(node=node), SILENT.unchanged(told)], then)


def _is_recorded(told: Entry[Silent] | None, member: Entry[NodeRecord]) -> bool:
    """Return whether this outage was recorded, and not one before the node returned and left unnoticed."""
    return told is not None and told.value.registered_at == member.value.registered_at


class Common:
    """What unreachable nodes have in common. The nodes on each pdu, tor and rack are counted as nodes come and go."""

    def __init__(self, view: View, silence: HeartbeatMonitor, *, clock: Clock) -> None:
        self._view, self._silence, self._clock = view, silence, clock
        self._hanging: dict[str, list[str]] = {}  # what each node depends on
        self._all: dict[str, int] = {}  # number of nodes that depend on it
        self._looked_at: float | None = None
        self._silent: dict[str, list[str]] = {}  # unreachable nodes, by what they depend on

    def listen(self) -> list[Callable[[], None]]:
        """Count all nodes, and follow the caches from now on. The returned functions end it."""
        self._hanging, self._all = {}, {}
        for entry in self._view.members.entries.values():
            self._note(entry.parts["node"])
        return [
            self._view.members.listen(lambda key: self._note(MEMBER.parse(key)["node"])),
            self._view.inventory.listen(self._note),
        ]

    def with_node(self, member: Entry[NodeRecord]) -> str:
        """Return which other unreachable nodes share something with this one, and what; if none, its dependencies."""
        self._look()
        own, best, parts = member.parts["node"], (0.0, 0), self._parts(member)
        found = f"it depends on {', '.join(parts)}" if parts else ""
        for part in parts:
            others = [node for node in self._silent.get(part, ()) if node != own]
            share = (len(others) + 1) / max(self._all.get(part, 0), len(others) + 1)
            if others and (share, len(others)) > best:
                best, found = (share, len(others)), _sentence(others, part, self._all.get(part, 0))
        return found

    def _look(self) -> None:
        now = self._clock.now()
        if self._looked_at is not None and now - self._looked_at < LOOK_EVERY:
            return
        self._looked_at, self._silent = now, {}
        for node in sorted(self._silence.nodes()):
            for part in self._hanging.get(node, ()):
                self._silent.setdefault(part, []).append(node)

    def _note(self, node: str) -> None:
        """Update a node after a change of its record or its inventory data."""
        for part in self._hanging.pop(node, ()):
            self._all[part] -= 1
            if not self._all[part]:
                del self._all[part]
        member = self._view.members.get(node=node)
        if member is not None and member.value.lifecycle not in _LEAVING:
            self._hanging[node] = self._parts(member)
            for part in self._hanging[node]:
                self._all[part] = self._all.get(part, 0) + 1

    def _parts(self, member: Entry[NodeRecord]) -> list[str]:
        return _parts(self._view, member)


def _parts(view: View, member: Entry[NodeRecord]) -> list[str]:
    """Return what it depends on, the smallest first: nodes that share a pdu also share the rack."""
    wiring, record = view.inventory.wiring(member.parts["node"]), member.value
    rack, pdus, tors = (record.rack, record.pdus, record.tors) if wiring is None else wiring
    parts = [f"pdu {pdu}" for pdu in pdus] + [f"tor {tor}" for tor in tors]
    return parts + ([f"rack {rack}"] if rack else [])


def common_cause(view: View, nodes: Collection[str]) -> str:
    """Name what most of these nodes have in common: a pdu, tor or rack, and the store endpoint of their agents."""
    all_: dict[str, int] = {}
    own: dict[str, int] = {}
    endpoints: dict[str, int] = {}
    for member in view.members.entries.values():
        for part in _parts(view, member):
            all_[part] = all_.get(part, 0) + 1
            if member.parts["node"] in nodes:
                own[part] = own.get(part, 0) + 1
        if member.parts["node"] in nodes and member.value.store:
            endpoints[member.value.store] = endpoints.get(member.value.store, 0) + 1
    found = []
    part = max(own, key=lambda part: (own[part], own[part] / all_[part]), default="")
    if part and 2 * own[part] > len(nodes):
        found.append(f"{_so_many(own[part], nodes)} on {part} ({own[part]} of its {all_[part]} nodes)")
    endpoint = max(endpoints, key=lambda one: endpoints[one], default="")
    if endpoint and 2 * endpoints[endpoint] > len(nodes):
        found.append(f"{_so_many(endpoints[endpoint], nodes)} agents of store endpoint {endpoint}")
    return ", ".join(found) or "with no pdu, tor, rack or store endpoint that most of them share"


def _so_many(count: int, of: Collection[str]) -> str:
    return "all of them" if count == len(of) else f"{count} of them"


def _sentence(others: list[str], part: str, of: int) -> str:
    names = ", ".join(others[:NAMED])
    more = f" and {len(others) - NAMED} more" if len(others) > NAMED else ""
    verb = "shares" if len(others) == 1 else "share"
    return f"so did {names}{more}, which {verb} {part} ({len(others) + 1} of its {max(of, len(others) + 1)} nodes)"


class _Count(msgspec.Struct, frozen=True):
    since: float
    record: int
    """The revision of the record."""


class HeartbeatMonitor:
    """Observations of one leader; those of another leader do not count."""

    def __init__(self, view: View, *, clock: Clock) -> None:
        self._view, self._clock = view, clock
        self._counts: dict[str, _Count] = {}
        self._reachable: dict[str, float] = {}  # since when

    def look(self, node: str) -> None:
        """Update a node. Call it after each change of the node's record or heartbeat."""
        member = self._view.members.get(node=node)
        is_alive = self._view.alive.get(node=node) is not None
        if member is None or not is_alive:
            self._reachable.pop(node, None)
        else:
            self._reachable.setdefault(node, self._clock.now())
        if member is None or is_alive:
            self._counts.pop(node, None)
            return
        count = self._counts.get(node)
        if count is None or count.record != member.mod_revision:
            self._counts[node] = _Count(self._clock.now(), member.mod_revision)

    def look_at_all(self) -> None:
        """Update every known node."""
        for node in [*self._counts, *(entry.parts["node"] for entry in self._view.members.entries.values())]:
            self.look(node)

    def nodes(self) -> tuple[str, ...]:
        """Return the unreachable nodes."""
        return tuple(self._counts)

    def unreachable_for(self, member: Entry[NodeRecord]) -> float:
        """Return the seconds without heartbeats under this record; 0.0: the node is alive, or was not observed."""
        count = self._counts.get(member.parts["node"])
        if count is None or count.record != member.mod_revision:
            return 0.0
        return self._clock.now() - count.since

    def reachable_for(self, node: str) -> float:
        """Return the seconds since this process first saw the node alive; 0.0: it has not yet."""
        return self._clock.now() - self._reachable.get(node, self._clock.now())
