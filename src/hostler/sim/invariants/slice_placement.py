"""Whether new instances go to the right nodes at the right time, checked with each instance that a node must load.

spread_kept      no node gets another instance of a slice while another suitable node has two fewer
retries_heeded   nothing is loaded again before the recorded retry time, whichever replica leads by then

Running instances are not moved to restore an even spread. So the placement is checked, not the present state. Records
that are written in several transactions have some time to become complete.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from hostler.engine.deployments.decide import UNTAKEN
from hostler.engine.deployments.instance_index import InstanceState, kind_of
from hostler.errors import Damaged
from hostler.keys.families import ALIVE, BLADE, MEMBER, REGION, RETRIES, ROOT, ZONE
from hostler.model.deployment import base_of
from hostler.model.inventory import Condition
from hostler.model.node import Lifecycle, node_id
from hostler.sim.fault import LeaderPaused
from hostler.sim.world.host import FINE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hostler.model.deployment import SliceInstance, SliceSpec
    from hostler.model.rollout import Retries
    from hostler.ports.store import Event
    from hostler.sim.world import World


S = TypeVar("S", bound=msgspec.Struct)
NAMES = ("spread_kept", "retries_heeded")
KNOWN = 10.0
"""Seconds in which a leader must have noticed an event."""
EARLY = 0.25
"""Seconds by which clocks may differ."""
MUTED = 1_000.0
"""Seconds for which a node that did not take up a command need not get another."""
FOR_EVER = float("inf")
_STUCK = (UNTAKEN, "stuck")


class _Member(msgspec.Struct):
    lifecycle: str = ""
    labels: dict[str, str] = {}


class _Hardware(msgspec.Struct):
    enabled: bool = True
    condition: str = Condition.OPERATIONAL.value


class _Suspect(NamedTuple):
    """A node that seems to have got one instance too many, and nodes that had two fewer."""

    since: float
    artifact: str
    others: tuple[str, ...]


class Hindrance:
    """Whether the leader is hindered. Faults of other processes do not count."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._last = -KNOWN

    def look(self) -> bool:
        """Return whether the leader is hindered, or was within the last `KNOWN` seconds. To be called periodically."""
        world, now = self._world, self._world.clock.now()
        leader = world.leader()
        if leader is None:
            return True  # the next leader reads everything again
        if leader.conditions is not FINE or any(isinstance(fault, LeaderPaused) for fault in world.faults.values()):
            self._last = now
        return now - self._last < KNOWN


class Placement:
    """Tracks nodes, failures and instances."""

    def __init__(
        self, world: World, violated: Callable[[str, str, str, float | None], None], hindrance: Hindrance
    ) -> None:
        self._world, self._violated, self._hindrance = world, violated, hindrance
        self.looks = dict.fromkeys(NAMES, 0)
        self._alive: dict[str, float] = {}
        self._duty: dict[str, float] = {}
        """Since when each node is on duty with its present labels."""
        self._labels: dict[str, dict[str, str]] = {}
        self._off: dict[str, None] = {}
        """Hardware that the inventory has taken out of service."""
        self._retries: dict[str, Retries] = {}
        self._avoided: dict[tuple[str, str], float] = {}
        """Until when an artifact need not go to a node, because it failed there."""
        self._muted: dict[str, float] = {}
        self._there: dict[str, dict[str, int]] = {}
        """By slice and node: instances that are not leaving."""
        self._changed: dict[tuple[str, str], float] = {}
        self._loaded: dict[tuple[str, str], None] = {}
        """Node and artifact, in the present revision."""
        self._suspects: dict[tuple[str, str], _Suspect] = {}
        """By slice and node."""
        self.families: tuple[tuple[str, Callable[[str, Event, float], None]], ...] = (
            (RETRIES.prefix(), self._retry),
            (MEMBER.prefix(), self._member),
            *((prefix, self._hardware) for prefix in (f"{ROOT}/rack", REGION.prefix(), ZONE.prefix())),
        )

    # Events

    def beat(self, key: str, event: Event, at: float) -> None:
        """Handle a heartbeat of a node, or its expiry."""
        node = ALIVE.parse(key)["node"]
        if event.type == "delete":
            self._alive.pop(node, None)
        else:
            self._alive.setdefault(node, at)

    def _member(self, key: str, event: Event, at: float) -> None:
        parts = MEMBER.match(key)
        if parts is None:
            return
        node = parts["node"]
        record = _Member() if event.type == "delete" else _read(_Member, event)
        if record.lifecycle != Lifecycle.ON_DUTY:
            self._duty.pop(node, None)
        elif node not in self._duty or self._labels.get(node) != record.labels:
            self._duty[node] = at
        self._labels[node] = record.labels

    def _hardware(self, key: str, event: Event, at: float) -> None:  # noqa: ARG002 - the same signature as the others
        parts = BLADE.match(key)
        what = key if parts is None else node_id(parts["rack"], parts["blade"])
        record = _Hardware() if event.type == "delete" else _read(_Hardware, event)
        if record.enabled and record.condition == Condition.OPERATIONAL:
            self._off.pop(what, None)
        else:
            self._off[what] = None

    def _retry(self, key: str, event: Event, at: float) -> None:
        parts = RETRIES.match(key)
        if parts is None:
            return
        artifact = parts["artifact"]
        before = self._retries.pop(artifact, None)
        for node in {} if before is None else before.nodes:
            self._avoided[artifact, node] = at + KNOWN
        if event.type == "put":
            try:
                record = self._retries[artifact] = RETRIES.entry(event.kv).value
            except Damaged:
                return
            for node in record.nodes:
                self._avoided[artifact, node] = FOR_EVER

    def moved(self, node: str, artifact: str, old: SliceInstance | None, new: SliceInstance | None, at: float) -> None:
        """Handle a changed state of an instance."""
        base, more = base_of(artifact), _is_there(new) - _is_there(old)
        if more:
            there = self._there.setdefault(base, {})
            there[node] = there.get(node, 0) + more
            self._changed[base, node] = at
            if not there[node]:
                del there[node]
        if new is not None and new.why.startswith(_STUCK):
            self._muted[node] = at + MUTED
        if old is None:
            self._loaded[node, artifact] = None

    # Checks

    def judge(self, specs: Mapping[str, tuple[str, SliceSpec]], at: float) -> None:
        """Check the placements of a revision after all its events."""
        if not self._loaded:
            return
        loaded, self._loaded = self._loaded, {}
        if self._hindrance.look():
            return
        early: dict[str, None] = {}
        for node, artifact in loaded:
            retries = self._retries.get(artifact)
            if retries is not None:
                self.looks["retries_heeded"] += 1
                left = retries.not_before - self._world.clock.wall()
                if left > EARLY and artifact not in early:
                    early[artifact] = None
                    text = f"{node} must load it {left:.1f} s before its retry time"
                    self._violated("retries_heeded", f"slice {artifact}", text, at)
            base = base_of(artifact)
            if self._there.get(base, {}).get(node, 0) < 2 or base not in specs:
                continue
            self.looks["spread_kept"] += 1
            others = self._fewer(node, artifact, specs[base][1], self._alive, at)
            if others:
                self._suspects[base, node] = _Suspect(at, artifact, others)

    def _fewer(
        self, node: str, artifact: str, spec: SliceSpec, among: Mapping[str, object] | tuple[str, ...], at: float
    ) -> tuple[str, ...]:
        """Return nodes that could have taken an instance, and have two fewer than this one."""
        if any("/" in what for what in self._off):
            return ()  # which nodes this affects is not known here
        base, blades = base_of(artifact), self._world.blades
        there = self._there.get(base, {})
        most = there.get(node, 0) - 2
        return tuple(
            other
            for other in among
            if there.get(other, 0) <= most
            and at - self._alive.get(other, at) > KNOWN
            and at - self._duty.get(other, at) > KNOWN
            and at - self._changed.get((base, other), -KNOWN) >= KNOWN
            and self._avoided.get((artifact, other), 0.0) <= at
            and self._muted.get(other, 0.0) <= at
            and other not in self._off
            and all(self._labels.get(other, {}).get(name) == value for name, value in spec.node_labels.items())
            and (host := blades.get(other)) is not None
            and host.runs
            and host.conditions is FINE
        )

    def look(self, specs: Mapping[str, tuple[str, SliceSpec]], changed: Mapping[str, float]) -> None:
        """Check whether earlier suspects are still suspicious."""
        now = self._world.clock.now()
        for (base, node), suspect in tuple(self._suspects.items()):
            found = specs.get(base)
            if found is None or changed.get(base, 0.0) > suspect.since or self._hindrance.look():
                del self._suspects[base, node]
            elif now - suspect.since > KNOWN:
                del self._suspects[base, node]
                others = self._fewer(node, suspect.artifact, found[1], suspect.others, now)
                if others:
                    there = self._there.get(base, {})
                    text = (
                        f"{node} got one more and has {there.get(node, 0)}, {others[0]} has {there.get(others[0], 0)}"
                    )
                    self._violated("spread_kept", f"slice {base}", text, suspect.since)


def _is_there(one: SliceInstance | None) -> int:
    return int(one is not None and kind_of(one) <= InstanceState.DOWN)


def _read(kind: type[S], event: Event) -> S:
    """Decode a record; return an empty one if it is unreadable."""
    try:
        return msgspec.json.decode(event.kv.value, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return kind()
