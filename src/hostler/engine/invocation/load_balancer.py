"""Chooses the instance for a call: pure, from endpoints, weights and calls in flight.

First the version, by its weight: smooth weighted round robin, per method, so the shares are exact. Then an instance of
that version: one on this node if there is one, otherwise the less loaded of two random ones. Instances that were
recently unreachable, and nodes that failed during this call, are the last choice. The cost of a choice does not depend
on the number of instances, unless most of them must be avoided.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Collection, Mapping

    from hostler.model.deployment import Endpoint

SHUNNED_FIRST, SHUNNED_MOST = 0.5, 10.0
"""Seconds for which an unreachable instance is the last choice; doubled with each failure, up to the maximum."""

FULL = 0.05
"""Seconds for which an instance that refused a call is the last choice."""


class Instance:
    """An instance that can be called, and the number of calls that this process has in flight there."""

    __slots__ = ("address", "artifact", "failures", "in_flight", "local", "node", "number", "places", "shunned_until")

    def __init__(self, artifact: str, number: int, node: str, address: str, *, local: bool) -> None:
        self.artifact, self.number, self.node, self.address, self.local = artifact, number, node, address, local
        self.in_flight = 0
        self.places = 0
        self.failures = 0
        self.shunned_until = 0.0

    def __repr__(self) -> str:
        return f"{self.artifact}#{self.number} on {self.node}"

    def unreachable(self, now: float) -> None:
        """Record that the instance could not be reached."""
        self.shunned_until = now + min(SHUNNED_MOST, SHUNNED_FIRST * 2**self.failures)
        self.failures = min(self.failures + 1, 10)

    def refused(self, now: float) -> None:
        """Record that the instance accepts no more calls at the moment, so that others are tried first."""
        self.shunned_until = max(self.shunned_until, now + FULL)

    def reached(self) -> None:
        """Record that the instance answered."""
        self.failures, self.shunned_until = 0, 0.0


class CallTarget:
    """An endpoint: one method of an instance."""

    __slots__ = ("idempotent", "instance", "streams")

    def __init__(self, instance: Instance, *, idempotent: bool, streams: bool) -> None:
        self.instance, self.idempotent, self.streams = instance, idempotent, streams


class Avoided:
    """Instances and nodes that failed during the current call."""

    __slots__ = ("instances", "nodes")

    def __init__(self) -> None:
        self.instances: list[Instance] = []
        self.nodes: list[str] = []

    def add(self, instance: Instance) -> None:
        """Add the instance of a failed try."""
        self.instances.append(instance)
        self.nodes.append(instance.node)


_STRICT, _SHUNNED, _SAME_NODE, _ANY = range(4)


class Pool:
    """Equivalent endpoints; those on this node are kept in a separate list."""

    __slots__ = ("_at", "_far", "_near")

    def __init__(self) -> None:
        self._near: list[CallTarget] = []
        self._far: list[CallTarget] = []
        self._at: dict[CallTarget, int] = {}

    def __len__(self) -> int:
        return len(self._near) + len(self._far)

    def add(self, place: CallTarget) -> None:
        """Add an endpoint."""
        side = self._near if place.instance.local else self._far
        self._at[place] = len(side)
        side.append(place)

    def remove(self, place: CallTarget) -> None:
        """Remove an endpoint; the last one takes its position."""
        at = self._at.pop(place)
        side = self._near if place.instance.local else self._far
        last = side.pop()
        if last is not place:
            side[at] = last
            self._at[last] = at

    def pick(self, now: float, rng: random.Random, avoided: Avoided | None, most: int = _ANY) -> CallTarget | None:
        """Return the best endpoint; `most` is the lowest preference level that is acceptable."""
        for level in range(most + 1):
            if level > _SHUNNED and avoided is None:
                return None
            for side in (self._near, self._far):
                if side:
                    found = _of_two(side, now, rng, avoided, level)
                    if found is not None:
                        return found
        return None


def _of_two(
    places: list[CallTarget], now: float, rng: random.Random, avoided: Avoided | None, level: int
) -> CallTarget | None:
    count = len(places)
    if count == 1:
        return places[0] if _may(places[0].instance, now, avoided, level) else None
    at = int(rng.random() * count)
    one, two = places[at], places[(at + 1 + int(rng.random() * (count - 1))) % count]
    first, second = _may(one.instance, now, avoided, level), _may(two.instance, now, avoided, level)
    if first and second:
        return two if two.instance.in_flight < one.instance.in_flight else one
    if first or second:
        return one if first else two
    for step in range(count):
        place = places[(at + step) % count]
        if _may(place.instance, now, avoided, level):
            return place
    return None


def _may(instance: Instance, now: float, avoided: Avoided | None, level: int) -> bool:
    if level == _STRICT and instance.shunned_until > now:
        return False
    if avoided is None or level == _ANY:
        return True
    if level == _SAME_NODE:
        return instance not in avoided.instances
    return instance.node not in avoided.nodes


class _Turn:
    """A version of a method in the weighted round robin."""

    __slots__ = ("artifact", "current", "pool", "weight")

    def __init__(self, artifact: str, weight: int, pool: Pool, current: int) -> None:
        self.artifact, self.weight, self.pool, self.current = artifact, weight, pool, current


class Routing:
    """Endpoints of one slice: `put` and `drop` follow the store, `weigh` sets the weights, `choose` picks one."""

    def __init__(self, rng: random.Random, local: Collection[str] = ()) -> None:
        self._rng, self._local = rng, local
        self.weights: Mapping[str, int] = {}
        self._instances: dict[tuple[str, int], list[Instance]] = {}
        self._places: dict[tuple[str, str, int], CallTarget] = {}
        self._pools: dict[tuple[str, str], Pool] = {}
        self._all: dict[str, Pool] = {}
        self._turns: dict[str, list[_Turn]] = {}

    # Endpoints

    def put(self, artifact: str, method: str, number: int, endpoint: Endpoint) -> None:
        """Add or replace an endpoint."""
        old = self._places.get((artifact, method, number))
        place = CallTarget(
            self._instance(artifact, number, endpoint), idempotent=endpoint.idempotent, streams=endpoint.streams
        )
        place.instance.places += 1
        self._places[artifact, method, number] = place
        pool = self._pools.get((artifact, method))
        if pool is None:
            pool = self._pools[artifact, method] = Pool()
            self._retake(method)
        pool.add(place)
        self._all.setdefault(method, Pool()).add(place)
        if old is not None:
            self._remove(artifact, method, number, old)

    def drop(self, artifact: str, method: str, number: int) -> None:
        """Remove an endpoint."""
        place = self._places.pop((artifact, method, number), None)
        if place is not None:
            self._remove(artifact, method, number, place)

    def weigh(self, weights: Mapping[str, int]) -> None:
        """Set the percentage of calls per artifact; empty: distribute calls evenly over all instances."""
        if weights != self.weights:
            self.weights = dict(weights)
            for method in list(self._all):
                self._retake(method)

    def __len__(self) -> int:
        """Return the number of endpoints."""
        return len(self._places)

    def methods(self, artifact: str | None = None) -> list[str]:
        """Return all callable methods, sorted."""
        return sorted({method for of, method in self._pools if artifact in (None, of)})

    def artifacts(self) -> list[str]:
        """Return the versions that have endpoints, sorted."""
        return sorted({artifact for artifact, _ in self._pools})

    # Choosing

    def choose(
        self, method: str, artifact: str | None, now: float, avoided: Avoided | None = None
    ) -> CallTarget | None:
        """Return the endpoint for a call, or None. `artifact`: exactly this version; None: by the weights."""
        if artifact is not None:
            pool = self._pools.get((artifact, method))
            return None if pool is None else pool.pick(now, self._rng, avoided)
        if avoided is not None and avoided.instances:
            return self._again(method, now, avoided)
        if self.weights:
            turns = self._turns.get(method) or self._taken(method)
            pool = _next(turns) if turns else None
        else:
            pool = self._all.get(method)
        return None if pool is None else pool.pick(now, self._rng, avoided)

    def withheld(self, method: str) -> list[str]:
        """Return the versions that have the method but no share of the calls."""
        return sorted(
            artifact for artifact, of in self._pools if of == method and self.weights and not self.weights.get(artifact)
        )

    # Internal

    def _again(self, method: str, now: float, avoided: Avoided) -> CallTarget | None:
        """Choose again after a failure: another instance of the same version, or of another version with a share.

        A retry does not advance the round robin: shares are shares of calls, not of tries.
        """
        if not self.weights:
            pool = self._all.get(method)
            return None if pool is None else pool.pick(now, self._rng, avoided)
        turns = self._turns.get(method) or self._taken(method)
        last = avoided.instances[-1].artifact
        ordered = sorted(turns, key=lambda turn: (turn.artifact != last, -turn.weight))
        for most in (_STRICT, _SAME_NODE, _ANY):
            for turn in ordered:
                found = turn.pool.pick(now, self._rng, avoided, most)
                if found is not None:
                    return found
        return None

    def _taken(self, method: str) -> list[_Turn]:
        turns = [
            _Turn(artifact, weight, self._pools[artifact, method], 0)
            for artifact, weight in sorted(self.weights.items())
            if weight > 0 and (artifact, method) in self._pools
        ]
        self._turns[method] = turns
        return turns

    def _retake(self, method: str) -> None:
        """Rebuild the round robin after a change of weights or versions; keep the current value of each version."""
        owed = {turn.artifact: turn.current for turn in self._turns.get(method, ())}
        for turn in self._taken(method):
            turn.current = owed.get(turn.artifact, 0)

    def _instance(self, artifact: str, number: int, endpoint: Endpoint) -> Instance:
        """Return the instance shared by all its methods. A new address or node means a new process without failures."""
        known = self._instances.setdefault((artifact, number), [])
        for instance in known:
            if instance.node == endpoint.node_id and instance.address == endpoint.address:
                return instance
        local = endpoint.node_id in self._local
        instance = Instance(artifact, number, endpoint.node_id, endpoint.address, local=local)
        known.append(instance)
        return instance

    def _remove(self, artifact: str, method: str, number: int, place: CallTarget) -> None:
        pool, everything = self._pools[artifact, method], self._all[method]
        pool.remove(place)
        everything.remove(place)
        if not len(pool):
            del self._pools[artifact, method]
            self._retake(method)
        if not len(everything):
            del self._all[method]
            self._turns.pop(method, None)
        instance = place.instance
        instance.places -= 1
        if not instance.places:  # calls in flight there continue
            known = self._instances[artifact, number]
            known.remove(instance)
            if not known:
                del self._instances[artifact, number]


def _next(turns: list[_Turn]) -> Pool:
    """Return the next pool: each version gains its weight, and the one with the most pays the total."""
    if len(turns) == 1:
        return turns[0].pool
    best, total = turns[0], 0
    for turn in turns:
        turn.current += turn.weight
        total += turn.weight
        if turn.current > best.current:
            best = turn
    best.current -= total
    return best.pool
