"""Cache of all slices of the mirror, loaded on first use and indexed one change at a time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from msgspec import UNSET

from hostler.engine.deployments.instance_index import InstanceIndex, InstanceState, kind_of
from hostler.engine.deployments.node_cache import NodeCache, has
from hostler.engine.deployments.state_machine import since
from hostler.keys.families import SLICE
from hostler.kit.tasks import Fairness
from hostler.model.deployment import SliceState, base_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from hostler.engine.deployments.node_cache import FailureDomain, NodeSite
    from hostler.engine.view import View
    from hostler.keys.entry import Entry
    from hostler.model.deployment import SliceRecord

SLICES = SLICE.prefix()
_NOTHING = InstanceIndex()
_ACTIVE = int(InstanceState.ACTIVE)


class SliceCache:
    """The slice cache of the process: `View.fleet`. Callers must not modify what it returns."""

    def __init__(self, view: View) -> None:
        self._view = view
        self.ground = NodeCache(view)
        self._rosters: dict[str, InstanceIndex] = {}
        self._on: dict[str, dict[str, None]] = {}  # artifacts by node, including those with unreadable records
        self._known: dict[str, SliceRecord] = {}
        self.hollow: dict[str, None] = {}
        """Keys with an empty list of instances; only a manual write creates such a key."""
        self._listeners: list[Callable[[str, str], None]] = []
        self._loading = asyncio.Lock()
        self._loaded = self._listening = False
        self.ground.moved = self._hung_elsewhere

    async def load(self) -> None:
        """Load the contents of the mirrors on the first call, and follow them from then on."""
        async with self._loading:
            if not self._listening:  # listen first, because loading takes time
                self._listening = True
                self.ground.follow()
                self._view.slices.listen(self._changed)
            if not self._loaded:
                fairness = Fairness()
                for entry in tuple(self._view.members.entries.values()):
                    self.ground.look(entry.parts["node"])
                    await fairness.share()
                for key in (*self._view.slices.entries, *self._view.slices.unreadable):
                    self._changed(key)
                    await fairness.share()
                self._loaded = True

    def listen(self, changed: Callable[[str, str], None]) -> Callable[[], None]:
        """Call `changed(base, node)` when a slice on a node has changed. Return a function that ends this."""
        self._listeners = [*self._listeners, changed]

        def end() -> None:
            self._listeners = [other for other in self._listeners if other is not changed]

        return end

    def roster(self, base: str) -> InstanceIndex:
        """Return the instances of `group:name`."""
        return self._rosters.get(base, _NOTHING)

    def crowded_nodes(self, base: str, labels: Mapping[str, str]) -> tuple[str, str] | None:
        """Return the node that has all of two or more instances, and another one that accepts slices; or None."""
        on = self.roster(base).on
        node = next(iter(on), "")
        if len(on) != 1 or on[node] < 2:
            return None
        sites = self.ground.sites.values()
        others = (one.node for one in sites if one.node != node and not one.kind and has(one, labels))
        other = next(others, None)
        return None if other is None else (node, other)

    def planned_index(self, base: str) -> InstanceIndex:
        """Return the instances of `group:name`, to take numbers from; the index is kept even while it is empty."""
        return self._rosters.setdefault(base, InstanceIndex())

    def forget(self, base: str) -> None:
        """Drop the index of a slice if it is empty and nothing is planned for it."""
        roster = self._rosters.get(base)
        if roster is not None and not roster and not roster.is_planned():
            del self._rosters[base]

    def bases(self) -> list[str]:
        """Return the slices that have instances or planned ones."""
        return list(self._rosters)

    def nodes(self) -> list[str]:
        """Return the nodes that have slice keys."""
        return list(self._on)

    def on(self, node: str) -> Iterable[str]:
        """Return the artifacts that have a key on the node."""
        return tuple(self._on.get(node, ()))

    def count_on(self, node: str) -> int:
        """Return how many artifacts have a key on the node, including unreadable ones."""
        return len(self._on.get(node, ()))

    def entry(self, node: str, artifact: str) -> Entry[SliceRecord] | None:
        """Return the record from the mirror."""
        return self._view.slices.entries.get(f"{SLICES}{node}/{artifact}")

    def is_readable(self, node: str, artifact: str) -> bool:
        """Return whether the record is absent or readable."""
        return f"{SLICES}{node}/{artifact}" not in self._view.slices.unreadable

    def site(self, node: str) -> NodeSite:
        """Return the cached state of a node."""
        return self.ground.site(node)

    # Changes

    def _changed(self, key: str) -> None:
        entry = self._view.slices.entries.get(key)
        new = None if entry is None else entry.value
        old = self._known.get(key)
        node, _, artifact = key[len(SLICES) :].partition("/")
        if new is not None and not new.instances and new.instances is not UNSET:
            self.hollow[key] = None
        elif self.hollow:
            self.hollow.pop(key, None)
        if new is None:
            if key in self._view.slices.unreadable:  # its last readable value still counts
                self._on.setdefault(node, {})[artifact] = None
                return
            self._known.pop(key, None)
            self._forget(node, artifact)
        else:
            self._known[key] = new
            if old is None:
                self._on.setdefault(node, {})[artifact] = None
        base = base_of(artifact)
        if new is not old:
            self._compare(base, node, artifact, old, new)
        for changed in self._listeners:
            changed(base, node)

    def _compare(self, base: str, node: str, artifact: str, old: SliceRecord | None, new: SliceRecord | None) -> None:
        roster = self._rosters.get(base)
        if roster is None:
            roster = self._rosters[base] = InstanceIndex()
        place = self.ground.site(node).place
        before = {} if old is None else old.each()
        after = {} if new is None else new.each()
        more = 0
        for number, one in after.items():
            kind, was = kind_of(one), before.get(number)
            if was is None:
                roster.add(node, place, artifact, number, one.template, kind)
                more += 1
            elif was is not one:
                now, then = (one.template, kind), (was.template, kind_of(was))
                if now != then:
                    roster.change(node, place, artifact, then, now)
            if kind == _ACTIVE and new is not None:
                roster.ages.add((artifact, one.template), since(new, one))
        for number, was in before.items():
            if old is not None and was.state is SliceState.ACTIVE and was.ready:
                roster.ages.drop((artifact, was.template), since(old, was))
            if number not in after:
                roster.remove(node, place, artifact, number, was.template, kind_of(was))
                more -= 1
        if more:
            self.ground.add(node, more)
        self.forget(base)

    def _forget(self, node: str, artifact: str) -> None:
        on = self._on.get(node)
        if on is not None:
            on.pop(artifact, None)
            if not on:
                del self._on[node]

    def _hung_elsewhere(self, node: str, before: FailureDomain) -> None:
        place = self.ground.site(node).place
        for base in dict.fromkeys(base_of(artifact) for artifact in self._on.get(node, ())):
            roster = self._rosters.get(base)
            count = 0 if roster is None else roster.on.get(node, 0)
            if roster is not None and count:
                roster.settle(node, before, -count)
                roster.settle(node, place, count)
