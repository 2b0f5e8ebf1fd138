"""Places new instances: nodes, numbers and reasons. A choice counts at once, before the mirrors contain it."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from hostler.engine import text
from hostler.engine.deployments import spread
from hostler.engine.deployments.node_cache import SILENT, UNKNOWN, has
from hostler.kit.plural import counted
from hostler.model.deployment import SliceInstance, SliceState
from hostler.model.rollout import SliceDecision
from hostler.model.trace import Reason

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hostler.engine.deployments import transactions
    from hostler.engine.deployments.decide import Spot
    from hostler.engine.deployments.version_set import VersionSet
    from hostler.engine.runtime.guarded_writer import GuardedWriter
    from hostler.engine.view import View
    from hostler.kit.clock import Clock
    from hostler.model.deployment import SliceSpec

AVOIDED = 300.0
"""Seconds after a failure during which a node is the last choice."""


class Loads:
    """New instances of one decision: nodes, numbers and reasons."""

    def __init__(self, changes: dict[Spot, dict[int, SliceInstance]]) -> None:
        self.changes = changes
        self.nodes: list[str] = []
        self.numbers: dict[str, list[int]] = {}
        self.reasons: dict[Spot, Reason] = {}
        self.decisions: dict[str, SliceDecision] = {}

    def of(self, batch: Sequence[transactions.Written]) -> list[tuple[str, SliceDecision]]:
        """Return the decisions behind these slice keys."""
        found = []
        for artifact, decision in self.decisions.items():
            nodes = (one.key.split("/")[-2] for one in batch if one.key.endswith(f"/{artifact}"))
            chosen = tuple(self.reasons[node, artifact] for node in nodes if (node, artifact) in self.reasons)
            if chosen or decision.waiting:
                found.append((artifact, replace(decision, chosen=chosen)))
        return found


class Loading:
    """Placement of new instances, for one leadership."""

    def __init__(self, view: View, writing: GuardedWriter, *, clock: Clock) -> None:
        self._view, self._fleet, self._writing, self._clock = view, view.fleet, writing, clock
        self._fitting: dict[str, tuple[object, ...]] = {}  # by slice: the inputs for which all its nodes had its labels

        self._muted: dict[str, float] = {}  # nodes that ignore commands, and until when they get no new instances

    def mute(self, node: str) -> None:
        """Give a node that ignores commands no new instances for `AVOIDED` seconds."""
        self._muted[node] = self._clock.now() + AVOIDED

    def forget(self, base: str) -> None:
        """Drop what is cached about a slice that is gone."""
        self._fitting.pop(base, None)

    def nodes_to_leave(self, base: str, spec: SliceSpec | None) -> Mapping[str, None]:
        """Return the nodes that its instances must leave: drained nodes, and nodes without the required labels."""
        ground, on = self._fleet.ground, self._fleet.roster(base).on
        if spec is None or not spec.node_labels:
            return ground.leaving
        seen = (spec.node_labels, ground.relabelled, len(on))
        if self._fitting.get(base) == seen:
            return ground.leaving
        unfit = [node for node in on if not has(ground.site(node), spec.node_labels)]
        if not unfit:
            self._fitting[base] = seen
            return ground.leaving
        return {**ground.leaving, **{node: None for node in unfit if ground.site(node).kind not in {SILENT, UNKNOWN}}}

    def place(self, base: str, spec: SliceSpec, side: VersionSet, count: int, loads: Loads) -> None:
        """Choose nodes and numbers for new instances."""
        fleet, artifact = self._fleet, side.artifact
        roster, now = fleet.planned_index(base), self._clock.wall()
        said: dict[str, Mapping[str, Any]] = {"labels": spec.node_labels, "failed": self._failed_on(artifact, now)}
        damaged, muted = self._view.slices.unreadable, self._muted_nodes()
        barred = (lambda node: node in muted or not fleet.is_readable(node, artifact)) if damaged or muted else _never
        same = roster.party(side).there_on if len(roster.parties) > 1 else _never
        choices = spread.assign(count, roster, fleet.ground, barred=barred, same=same, **said)
        numbers = roster.numbers_of(artifact).take(len(choices))
        loads.numbers.setdefault(artifact, []).extend(numbers)
        by_node: dict[str, list[int]] = {}
        for choice, number in zip(choices, numbers):
            one = SliceInstance(state=SliceState.LOAD, template=side.template, why=choice.why)
            loads.changes.setdefault((choice.node, artifact), {})[number] = one
            by_node.setdefault(choice.node, []).append(number)
        whys = {choice.node: choice.why for choice in reversed(choices)}
        loads.nodes += [choice.node for choice in choices]
        for node, of in by_node.items():
            loads.reasons[node, artifact] = Reason(subject=node, why=f"{text.instances(of)}: {whys[node]}")
        loads.decisions[artifact] = SliceDecision(
            chosen=(),
            passed_over=spread.passed_over(list(by_node), roster, fleet.ground, barred=muted, **said),
            waiting=count - len(choices),
            fence=self._writing.fence(),
            at=now,
        )

    def _muted_nodes(self) -> dict[str, str]:
        """Return the nodes that get no new instances for now, and the reason."""
        if self._muted:
            now = self._clock.now()
            self._muted = {node: until for node, until in self._muted.items() if until > now}
        return dict.fromkeys(self._muted, "its agent has not carried out commands in time")

    def avoided_nodes(self, artifact: str) -> frozenset[str]:
        """Return nodes to avoid if there is a choice: the artifact failed there recently, or they ignore commands."""
        unreadable = (node for node in self._fleet.nodes() if not self._fleet.is_readable(node, artifact))
        damaged = unreadable if self._view.slices.unreadable else ()
        return frozenset((*self._failed_on(artifact, self._clock.wall()), *self._muted_nodes(), *damaged))

    def _failed_on(self, artifact: str, now: float) -> dict[str, int]:
        entry = self._view.retries.get(artifact=artifact) if self._view.retries.entries else None
        return {} if entry is None or now - entry.value.at > AVOIDED else entry.value.nodes

    def stays(self, base: str, spec: SliceSpec, count: int, why: str) -> SliceDecision:
        """Return the decision that explains why instances are still on nodes that they must leave."""
        roster, ground = self._fleet.roster(base), self._fleet.ground
        reasons = spread.passed_over((), roster, ground, labels=spec.node_labels, failed={})
        where = "that are drained or lack labels" if spec.node_labels else "that are drained"
        said = f"{counted(count, 'instance')} on nodes {where}: {why}"
        return SliceDecision(
            chosen=(),
            passed_over=(Reason(subject=spec.artifact, why=said), *reasons),
            waiting=count,
            fence=self._writing.fence(),
            at=self._clock.wall(),
        )

    @contextmanager
    def reserved(self, nodes: Sequence[str]) -> Iterator[None]:
        """Reserve one instance on each node while the context is open: other slices are placed concurrently."""
        counts, ground = Counter(nodes), self._fleet.ground
        for node, count in counts.items():
            ground.add(node, count)
        try:
            yield
        finally:
            for node, count in counts.items():
                ground.add(node, -count)


def _never(_: str) -> bool:
    return False
