"""Which instance a call goes to: pure, from endpoints, weights, and what is under way.

The version first, by its weight: exactly, for versions take turns (smooth weighted round robin), each method by itself.
Then an instance of it: one of this node first, else the less loaded of two that chance names. Instances that could not
be reached lately, and nodes that failed this very call, come last. A choice costs the same however many instances there
are, unless most of them are to be avoided.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Collection, Mapping

    from hostler.model.deployment import Endpoint

SHUNNED_FIRST, SHUNNED_MOST = 0.5, 10.0
"""Seconds for which an instance that could not be reached is the last choice; twice as long each time."""

FULL = 0.05
"""Seconds for which one that refused a call is."""


class Instance:
    """An instance that can be called, and what this process has under way there."""

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
        """It could not be reached."""
        self.shunned_until = now + min(SHUNNED_MOST, SHUNNED_FIRST * 2**self.failures)
        self.failures = min(self.failures + 1, 10)

    def refused(self, now: float) -> None:
        """It takes no more calls for the moment: others have room, perhaps."""
        self.shunned_until = max(self.shunned_until, now + FULL)

    def reached(self) -> None:
        """It answered."""
        self.failures, self.shunned_until = 0, 0.0


class Place:
    """A method of an instance."""

    __slots__ = ("idempotent", "instance", "streams")

    def __init__(self, instance: Instance, *, idempotent: bool, streams: bool) -> None:
        self.instance, self.idempotent, self.streams = instance, idempotent, streams


class Avoided:
    """What failed in this very call."""

    __slots__ = ("instances", "nodes")

    def __init__(self) -> None:
        self.instances: list[Instance] = []
        self.nodes: list[str] = []

    def add(self, instance: Instance) -> None:
        """It did not do it."""
        self.instances.append(instance)
        self.nodes.append(instance.node)


_STRICT, _SHUNNED, _SAME_NODE, _ANY = range(4)


class Pool:
    """Places that do the same, those of this node apart."""

    __slots__ = ("_at", "_far", "_near")

    def __init__(self) -> None:
        self._near: list[Place] = []
        self._far: list[Place] = []
        self._at: dict[Place, int] = {}

    def __len__(self) -> int:
        return len(self._near) + len(self._far)

    def add(self, place: Place) -> None:
        """One more."""
        side = self._near if place.instance.local else self._far
        self._at[place] = len(side)
        side.append(place)

    def remove(self, place: Place) -> None:
        """One less; the last takes its seat."""
        at = self._at.pop(place)
        side = self._near if place.instance.local else self._far
        last = side.pop()
        if last is not place:
            side[at] = last
            self._at[last] = at

    def pick(self, now: float, rng: random.Random, avoided: Avoided | None, most: int = _ANY) -> Place | None:
        """The best there is; `most`: how far down one may go for it."""
        for level in range(most + 1):
            if level > _SHUNNED and avoided is None:
                return None
            for side in (self._near, self._far):
                if side:
                    found = _of_two(side, now, rng, avoided, level)
                    if found is not None:
                        return found
        return None


def _of_two(places: list[Place], now: float, rng: random.Random, avoided: Avoided | None, level: int) -> Place | None:
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
    """A version that takes its turns at a method."""

    __slots__ = ("artifact", "current", "pool", "weight")

    def __init__(self, artifact: str, weight: int, pool: Pool, current: int) -> None:
        self.artifact, self.weight, self.pool, self.current = artifact, weight, pool, current


class Routing:
    """What can be called of one slice: `put` and `drop` as endpoints come and go, `weigh`, `choose`."""

    def __init__(self, rng: random.Random, local: Collection[str] = ()) -> None:
        self._rng, self._local = rng, local
        self.weights: Mapping[str, int] = {}
        self._instances: dict[tuple[str, int], list[Instance]] = {}
        self._places: dict[tuple[str, str, int], Place] = {}
        self._pools: dict[tuple[str, str], Pool] = {}
        self._all: dict[str, Pool] = {}
        self._turns: dict[str, list[_Turn]] = {}

    # What there is

    def put(self, artifact: str, method: str, number: int, endpoint: Endpoint) -> None:
        """An endpoint is there, or has changed."""
        old = self._places.get((artifact, method, number))
        place = Place(
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
        """An endpoint is gone."""
        place = self._places.pop((artifact, method, number), None)
        if place is not None:
            self._remove(artifact, method, number, place)

    def weigh(self, weights: Mapping[str, int]) -> None:
        """Per cent of the calls, by artifact; empty: evenly over all instances."""
        if weights != self.weights:
            self.weights = dict(weights)
            for method in list(self._all):
                self._retake(method)

    def __len__(self) -> int:
        """How many endpoints there are."""
        return len(self._places)

    def methods(self, artifact: str | None = None) -> list[str]:
        """What can be called at all, in order."""
        return sorted({method for of, method in self._pools if artifact in (None, of)})

    def artifacts(self) -> list[str]:
        """Which versions have endpoints, in order."""
        return sorted({artifact for artifact, _ in self._pools})

    # Choosing

    def choose(self, method: str, artifact: str | None, now: float, avoided: Avoided | None = None) -> Place | None:
        """Where the call shall go; None: nowhere. `artifact`: exactly this version; None: by the weights."""
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
        """Versions that have the method, and no share of the calls."""
        return sorted(
            artifact for artifact, of in self._pools if of == method and self.weights and not self.weights.get(artifact)
        )

    # Inside

    def _again(self, method: str, now: float, avoided: Avoided) -> Place | None:
        """After a failure: another instance of the same version, else one of another that has a share of the calls.

        It takes nobody's turn: shares are of calls, not of tries.
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
        """Weights or versions changed: what each is owed stays."""
        owed = {turn.artifact: turn.current for turn in self._turns.get(method, ())}
        for turn in self._taken(method):
            turn.current = owed.get(turn.artifact, 0)

    def _instance(self, artifact: str, number: int, endpoint: Endpoint) -> Instance:
        """The one that all its methods share. Another address, another node: another process, which owes nothing."""
        known = self._instances.setdefault((artifact, number), [])
        for instance in known:
            if instance.node == endpoint.node_id and instance.address == endpoint.address:
                return instance
        local = endpoint.node_id in self._local
        instance = Instance(artifact, number, endpoint.node_id, endpoint.address, local=local)
        known.append(instance)
        return instance

    def _remove(self, artifact: str, method: str, number: int, place: Place) -> None:
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
        if not instance.places:  # what is under way there is not ours to end
            known = self._instances[artifact, number]
            known.remove(instance)
            if not known:
                del self._instances[artifact, number]


def _next(turns: list[_Turn]) -> Pool:
    """Whose turn it is: each is owed its weight more, and who is owed most pays for all."""
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
