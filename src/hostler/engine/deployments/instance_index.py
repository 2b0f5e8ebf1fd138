"""Index of the instances of one slice: counted by version, settings, state, node, rack, PDU and ToR switch.

The ready instances are also counted by the second in which they became active: an instance that has just started may
fail soon.
"""

from __future__ import annotations

import enum
import heapq
import math
from typing import TYPE_CHECKING

from hostler.engine.deployments.state_machine import LEAVING
from hostler.engine.deployments.version_set import Count, VersionSet
from hostler.model.deployment import SliceState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hostler.engine.deployments.node_cache import FailureDomain
    from hostler.model.deployment import SliceInstance


class InstanceState(enum.IntEnum):
    """Condition of an instance. Up to DOWN it is not leaving, from DEACTIVATE to UNLOADING it is."""

    LOAD = 0
    LOADING = 1
    LOADED = 2
    ACTIVATE = 3
    ACTIVATING = 4
    ACTIVE = 5
    """ACTIVE and ready."""
    DOWN = 6
    """ACTIVE, but not ready."""
    DEACTIVATE = 7
    DEACTIVATING = 8
    LEFT = 9
    """LOADED, and leaving."""
    UNLOAD = 10
    UNLOADING = 11
    FAILED = 12


UNDER_WAY = tuple(
    kind
    for kind in InstanceState
    if kind
    not in (InstanceState.LOADED, InstanceState.ACTIVE, InstanceState.DOWN, InstanceState.LEFT, InstanceState.FAILED)
)
_KINDS: dict[SliceState, int] = {state: int(InstanceState[state.name]) for state in SliceState}
_LOADED, _ACTIVE, _DOWN, _LEFT, _FAILED = map(
    int, (InstanceState.LOADED, InstanceState.ACTIVE, InstanceState.DOWN, InstanceState.LEFT, InstanceState.FAILED)
)
_UNLOADING = int(InstanceState.UNLOADING)
_THERE = _DOWN + 1


def kind_of(one: SliceInstance) -> int:
    """Return the condition of an instance as an `InstanceState`."""
    kind = _KINDS.get(one.state, _UNLOADING)  # an unknown state does not serve, and only its node acts on it
    if kind == _ACTIVE:
        return kind if one.ready else _DOWN
    return _LEFT if kind == _LOADED and one.why.startswith(LEAVING) else kind


class Numbers:
    """The numbers of one artifact's instances: unique in the cluster; the lowest free number is taken first."""

    __slots__ = ("_free", "_out", "_top", "_used", "doubled")

    def __init__(self) -> None:
        self._used: dict[int, int] = {}  # number of instances; more than one only after manual interference
        self._out: set[int] = set()  # taken, and not given back
        self.doubled: dict[int, None] = {}
        """Numbers that more than one instance has."""
        self._free: list[tuple[int, int]] = []  # from, to; may contain numbers that are in use again
        self._top = 0

    def __len__(self) -> int:
        return len(self._used)

    def __bool__(self) -> bool:
        """Return whether any number is used or taken."""
        return bool(self._used or self._out)

    def is_out(self) -> bool:
        """Return whether any number is taken and not given back."""
        return bool(self._out)

    def use(self, number: int) -> None:
        """Record an instance with this number."""
        times = self._used[number] = self._used.get(number, 0) + 1
        if times > 1:
            self.doubled[number] = None
        self._reach(number)

    def drop(self, number: int) -> None:
        """Remove an instance with this number."""
        left = self._used[number] - 1
        if left:
            self._used[number] = left
        else:
            del self._used[number]
            if number not in self._out:
                heapq.heappush(self._free, (number, number))
        if left < 2:
            self.doubled.pop(number, None)

    def take(self, count: int) -> list[int]:
        """Take the lowest free numbers. They stay reserved until they are given back."""
        found: list[int] = []
        while len(found) < count and self._free:
            start, end = heapq.heappop(self._free)
            while start <= end and len(found) < count:
                if start not in self._used and start not in self._out:
                    self._out.add(start)
                    found.append(start)
                start += 1
            if start <= end:
                heapq.heappush(self._free, (start, end))
        while len(found) < count:
            self._top += 1
            self._out.add(self._top)
            found.append(self._top)
        return found

    def give_back(self, number: int) -> None:
        """Give back a taken number. It is free again unless an instance uses it."""
        self._out.discard(number)
        self._reach(number)
        if number not in self._used:
            heapq.heappush(self._free, (number, number))

    def _reach(self, number: int) -> None:
        """Extend the known range to this number; record the unused numbers below it as free."""
        if number > self._top:
            if number > self._top + 1:
                heapq.heappush(self._free, (self._top + 1, number - 1))
            self._top = number


class Party:
    """The instances of one side, by condition and node: `nodes[kind]` maps each node to its number of instances."""

    __slots__ = ("nodes", "side", "totals")

    def __init__(self, side: VersionSet) -> None:
        self.side = side
        self.totals = [0] * len(InstanceState)
        self.nodes: list[dict[str, int]] = [{} for _ in InstanceState]

    def count(self, fresh: int = 0) -> Count:
        """Return the counts for the strategies. `fresh`: ready instances that became ready only recently."""
        totals = self.totals
        return Count(
            there=sum(totals[:_THERE]),
            ready=totals[_ACTIVE],
            fresh=min(fresh, totals[_ACTIVE]),
            leaving=sum(totals[_THERE:_FAILED]),
            failed=totals[_FAILED],
        )

    def there_on(self, node: str) -> int:
        """Return the number of instances on the node that are not leaving."""
        return sum(nodes.get(node, 0) for nodes in self.nodes[:_THERE])


class InstanceIndex:
    """All versions of one slice."""

    __slots__ = ("ages", "levels", "numbers", "on", "parties", "pdus", "racks", "ready", "tors")

    def __init__(self) -> None:
        self.parties: dict[tuple[str, int], Party] = {}
        """By artifact and template; only sides that have instances."""
        self.on: dict[str, int] = {}
        """Instances that are not leaving, by node."""
        self.levels: dict[FailureDomain, dict[int, dict[str, None]]] = {}
        """Nodes with instances, by location and by number of instances, in order of insertion."""
        self.racks: dict[str, int] = {}
        self.pdus: dict[str, int] = {}
        self.tors: dict[str, int] = {}
        self.numbers: dict[str, Numbers] = {}
        """By artifact."""
        self.ready = 0
        """Ready instances of all sides."""
        self.ages = Ages()
        """Activation times of the ready instances."""

    def __bool__(self) -> bool:
        return bool(self.parties)

    def counts(self, now: float = 0.0, min_ready: float = 0.0) -> dict[VersionSet, Count]:
        """Return the counts by side. Instances that have been active for less than `min_ready` seconds are fresh."""
        ages = self.ages
        return {party.side: party.count(ages.fresh(side, now, min_ready)) for side, party in self.parties.items()}

    def party(self, side: VersionSet) -> Party:
        """Return the instances of a side; an empty value, which is not kept, if it has none."""
        return self.parties.get((side.artifact, side.template)) or Party(side)

    def numbers_of(self, artifact: str) -> Numbers:
        """Return the numbers of an artifact; the caller may take some."""
        numbers = self.numbers.get(artifact)
        if numbers is None:
            numbers = self.numbers[artifact] = Numbers()
        return numbers

    def give_back(self, artifact: str, numbers: Iterable[int]) -> None:
        """Give back taken numbers; those that are not used are free again."""
        given = self.numbers_of(artifact)
        for number in numbers:
            given.give_back(number)
        self._tidy(artifact)

    def is_planned(self) -> bool:
        """Return whether numbers are taken for instances that are to be loaded and do not exist yet."""
        return any(numbers.is_out() for numbers in self.numbers.values())

    def is_under_way(self) -> bool:
        """Return whether any instance is in a transitional state."""
        return any(party.totals[kind] for party in self.parties.values() for kind in UNDER_WAY)

    def is_down(self) -> bool:
        """Return whether any instance is active but not ready."""
        return any(party.totals[_DOWN] for party in self.parties.values())

    # Updates

    def add(  # noqa: PLR0917  (where, and what)
        self, node: str, place: FailureDomain, artifact: str, number: int, template: int, kind: int
    ) -> None:
        """Add an instance."""
        self.numbers_of(artifact).use(number)
        self._count(node, artifact, template, kind)
        if kind < _THERE:
            self.settle(node, place, 1)

    def remove(  # noqa: PLR0917  (where, and what)
        self, node: str, place: FailureDomain, artifact: str, number: int, template: int, kind: int
    ) -> None:
        """Remove an instance."""
        self.numbers[artifact].drop(number)
        self._discount(node, artifact, template, kind)
        if kind < _THERE:
            self.settle(node, place, -1)

    def change(
        self, node: str, place: FailureDomain, artifact: str, old: tuple[int, int], new: tuple[int, int]
    ) -> None:  # (template, kind)
        """Change the template or condition of an instance."""
        self._discount(node, artifact, *old)
        self._count(node, artifact, *new)
        if (old[1] < _THERE) != (new[1] < _THERE):
            self.settle(node, place, 1 if new[1] < _THERE else -1)

    def settle(self, node: str, place: FailureDomain, more: int) -> None:
        """Add `more` (possibly negative) to the number of instances on the node that are not leaving."""
        before = self.on.get(node, 0)
        after = before + more
        levels = self.levels.setdefault(place, {})
        if before:
            same = levels[before]
            del same[node]
            if not same:
                del levels[before]
        if after:
            self.on[node] = after
            levels.setdefault(after, {})[node] = None
        else:
            self.on.pop(node, None)
            if not levels:
                del self.levels[place]
        _more(self.racks, place.rack, more)
        for pdu in place.pdus:
            _more(self.pdus, pdu, more)
        for tor in place.tors:
            _more(self.tors, tor, more)

    def _count(self, node: str, artifact: str, template: int, kind: int) -> None:
        party = self.parties.get((artifact, template))
        if party is None:
            party = self.parties[artifact, template] = Party(VersionSet(artifact, template))
        party.totals[kind] += 1
        nodes = party.nodes[kind]
        nodes[node] = nodes.get(node, 0) + 1
        if kind == _ACTIVE:
            self.ready += 1

    def _discount(self, node: str, artifact: str, template: int, kind: int) -> None:
        party = self.parties[artifact, template]
        party.totals[kind] -= 1
        nodes = party.nodes[kind]
        left = nodes[node] - 1
        if left:
            nodes[node] = left
        else:
            del nodes[node]
        if kind == _ACTIVE:
            self.ready -= 1
        if not any(party.totals):
            del self.parties[artifact, template]
            self._tidy(artifact)

    def _tidy(self, artifact: str) -> None:
        """Drop the numbers of an artifact that has no instances and no taken numbers."""
        if not self.numbers[artifact]:
            del self.numbers[artifact]


def _more(counts: dict[str, int], name: str, more: int) -> None:
    if not name:
        return
    left = counts.get(name, 0) + more
    if left:
        counts[name] = left
    else:
        counts.pop(name, None)


class Ages:
    """Instances by artifact, template and second of activation."""

    __slots__ = ("_since",)

    def __init__(self) -> None:
        self._since: dict[tuple[str, int], dict[int, int]] = {}

    def add(self, side: tuple[str, int], since: int) -> None:
        """Count an instance that is active since this second."""
        counts = self._since.setdefault(side, {})
        counts[since] = counts.get(since, 0) + 1

    def drop(self, side: tuple[str, int], since: int) -> None:
        """Remove an instance from the count."""
        counts = self._since[side]
        left = counts[since] - 1
        if left:
            counts[since] = left
        else:
            del counts[since]
            if not counts:
                del self._since[side]

    def fresh(self, side: tuple[str, int], now: float, min_ready: float) -> int:
        """Return how many instances have been active for less than `min_ready` seconds.

        An instance whose node's clock puts it more than `min_ready` seconds into the future is not counted, because it
        would be waited for indefinitely.
        """
        counts = self._since.get(side)
        if not counts or min_ready <= 0:
            return 0
        return _count(counts, now - min_ready, now + min_ready)

    def came(self, artifact: str, after: float, until: float) -> int:
        """Return how many instances of an artifact became active after `after` and not later than `until`."""
        return sum(_count(counts, after, until) for (name, _), counts in self._since.items() if name == artifact)


def _count(counts: dict[int, int], after: float, until: float) -> int:
    first, last = math.floor(after) + 1, math.floor(until)
    if last - first < len(counts):
        return sum(counts.get(since, 0) for since in range(first, last + 1))
    return sum(count for since, count in counts.items() if first <= since <= last)
