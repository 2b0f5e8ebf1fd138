"""A small model of a cluster that does what strategies aim at, and checks what must hold at each step.

The leader of the model remembers nothing but the Deployment record, and can be made to die between its writes.
"""

from __future__ import annotations

import collections
import math
import random
from typing import TYPE_CHECKING

import msgspec

from hostler.engine.deployments.call_metrics import NOTHING, Measured
from hostler.engine.deployments.phases import trial, weight_of
from hostler.engine.deployments.strategy import Aim, Count, RolloutSnapshot, VersionSet, aim
from hostler.model.deployment import SliceSpec, Strategy, StrategyKind
from hostler.model.rollout import Deployment, Phase, Retries

if TYPE_CHECKING:
    from collections.abc import Callable

V1, V2, V3 = "org.example:slice:1", "org.example:slice:2", "org.example:slice:3"
GIVE_UP = 5
AT_REST = frozenset({Phase.DONE, Phase.FAILED})


def slice_spec(artifact: str = V1, instances: int = 3, **more: object) -> SliceSpec:
    """A slice as a blueprint has it; what else is told of it is taken from `more`."""
    return msgspec.convert({"artifact": artifact, "instances": instances, **more}, SliceSpec)


class Instance(msgspec.Struct):
    side: VersionSet
    name: int
    ready: bool = False
    ever_ready: bool = False


class Habits(msgspec.Struct, frozen=True, kw_only=True):
    """How a version behaves."""

    starts: bool = True
    slowness: int = 1
    """Steps that an instance takes to come up, at most."""
    crashes: float = 0.0
    """How probable it is at each step that a ready one is not ready for a while."""
    dies: float = 0.0
    """How probable it is at each step that an instance is gone with its node."""
    error_rate: float = 0.0
    latency_ms: float = 10.0


class Model:
    """A cluster with one slice."""

    def __init__(self, spec: SliceSpec, *, seed: int = 0, deaths: float = 0.0, unplaceable: float = 0.0) -> None:
        self.rng = random.Random(seed)
        self.spec: SliceSpec | None = spec
        self.number = 1
        self.rollback = False
        self.deployment: Deployment | None = None
        self.instances: list[Instance] = []
        self.leaving: list[Instance] = []
        self.retries: dict[str, Retries] = {}
        self.habits: dict[str, Habits] = collections.defaultdict(Habits)
        self.now = 1000.0
        self.tick = 1.0
        self.deaths = deaths
        """How probable it is that a leader dies in the middle of its writes."""
        self.unplaceable = unplaceable
        self.calls_per_second = 200.0
        self.counted: dict[str, tuple[float, float, float]] = {}
        self.names = 0
        self.phases: list[Phase] = []
        self.weights: list[dict[str, int]] = []
        self.told: Callable[[str], Measured] | None = None
        self.leader_died = False
        """In the last step."""

    def apply(self, spec: SliceSpec | None, *, rollback: bool = False) -> None:
        """What a blueprint says from now on; None: it is deleted."""
        self.spec, self.rollback = spec, rollback
        self.number += 1

    def counts(self) -> dict[VersionSet, Count]:
        there = collections.Counter(one.side for one in self.instances)
        ready = collections.Counter(one.side for one in self.instances if one.ready)
        leaving = collections.Counter(one.side for one in self.leaving)
        sides = sorted({*there, *leaving})
        return {side: Count(there=there[side], ready=ready[side], leaving=leaving[side]) for side in sides}

    def count(self, artifact: str) -> Count:
        found = [count for side, count in self.counts().items() if side.artifact == artifact]
        return Count(there=sum(one.there for one in found), ready=sum(one.ready for one in found))

    def measured(self, artifact: str) -> Measured:
        if self.told is not None:
            return self.told(artifact)
        calls, errors, since = self.counted.get(artifact, (0.0, 0.0, 0.0))
        if not since:
            return NOTHING
        latency = self.habits[artifact].latency_ms
        return Measured(calls=int(calls), errors=math.ceil(errors), p95_ms=latency, since=since)

    def aimed(self, *, placeable: bool = True) -> Aim:
        return aim(
            RolloutSnapshot(
                self.spec,
                "production",
                self.number,
                self.rollback,
                self.deployment,
                self.counts(),
                retries=self.retries,
                measured=self.measured,
                placeable=placeable,
            ),
            now=self.now,
        )

    def step(self) -> bool:
        """One look of the leader, and what comes of it; whether anything was done."""
        placeable = self.rng.random() >= self.unplaceable
        found = self.aimed(placeable=placeable)
        dies_at = self.rng.randrange(3) if self.rng.random() < self.deaths else -1
        self.leader_died = dies_at >= 0
        before = self.deployment
        changed = False
        if dies_at != 0:
            self.check_record(before, found.deployment)
            changed = found.deployment != before
            self.deployment = found.deployment
        if dies_at != 1:
            changed |= self.carry_out(found, before, placeable=placeable, partly=dies_at == 2)
        if self.deployment is not None:
            self.phases.append(self.deployment.phase)
            if not self.weights or self.weights[-1] != self.deployment.weights:
                self.weights.append(self.deployment.weights)
        return changed

    def carry_out(self, found: Aim, before: Deployment | None, *, placeable: bool, partly: bool) -> bool:
        wants, spare = dict(found.wants), dict(found.spare)
        counts, there, loaded, removed = self.counts(), len(self.instances), 0, 0
        known = [one.weights if one else {} for one in (before, self.deployment)]
        served = [self.serving(weights) for weights in known]
        for side in sorted({*wants, *counts}):
            more = wants.get(side, 0) - counts.get(side, Count()).there
            if more > 0 and placeable and not self.is_waiting(side.artifact):
                for _ in range(self.rng.randint(0, more) if partly else more):
                    loaded += 1
                    self.names += 1
                    self.instances.append(Instance(side, self.names))
            going = sorted((one for one in self.instances if one.side == side), key=lambda one: (one.ready, -one.name))
            allowed = spare.get(side, 0)
            for one in going[: max(0, -more)]:
                if one.ready and not allowed:
                    break
                if partly and self.rng.random() < 0.5:
                    continue
                allowed -= one.ready
                removed += 1
                self.instances.remove(one)
                self.leaving.append(one)
        if self.spec is not None and found.deployment is not None:
            for weights, had in zip(known, served, strict=True):
                self.check_floor(found.deployment, weights, had)
            self.check_ceiling(found.deployment, there, loaded)
        return bool(loaded or removed)

    def is_waiting(self, artifact: str) -> bool:
        retries = self.retries.get(artifact)
        return retries is not None and self.now < retries.not_before

    def serving(self, weights: dict[str, int]) -> int:
        """Ready instances that get calls by these weights."""
        return sum(one.ready and (not weights or weights.get(one.side.artifact, 0) > 0) for one in self.instances)

    # What must hold.

    def check_floor(self, now: Deployment, weights: dict[str, int], served: int) -> None:
        """What was planned leaves as many that serve as it may, whichever weights routers know."""
        assert self.spec is not None
        wished = self.wished(now)
        strategy = now.strategy if now.phase not in AT_REST | {Phase.STARTING} else self.spec.strategy
        floor = min(wished, max(wished - strategy.max_unavailable, self.spec.min_available))
        after = self.serving(weights)
        assert after >= min(served, floor), f"{now.phase}: {served} served, now {after}, and {floor} must"

    def check_ceiling(self, now: Deployment, there: int, loaded: int) -> None:
        assert self.spec is not None
        wished, strategy = self.wished(now), now.strategy
        new = VersionSet(now.artifact, now.template)
        of_new = sum(one.side == new for one in self.instances)
        if not loaded:
            return
        if now.phase in {Phase.ROLLING, Phase.BACKING_OUT}:
            is_fixed = max(wished - strategy.max_unavailable, self.spec.min_available) >= wished
            surge = max(strategy.max_surge, 1 if is_fixed else 0)
            assert len(self.instances) <= wished + surge
        elif now.phase is Phase.CANARY:
            assert of_new <= max(trial(now, wished), there)
        assert of_new <= max(wished, there)

    def wished(self, now: Deployment) -> int:
        assert self.spec is not None
        return now.scale or self.spec.instances

    def check_record(self, before: Deployment | None, now: Deployment | None) -> None:
        if now is None:
            assert not self.instances
            assert not self.leaving
            return
        if now.weights:
            assert sum(now.weights.values()) == 100
        old = before.weights if before else {}
        if now.weights == old:
            return
        counts = self.counts()
        was = before is not None and before.phase in AT_REST and now.previous != now.artifact
        if was and now.phase in AT_REST and self.serving(old) and not now.weights:
            held_back = {artifact for artifact, weight in old.items() if not weight}
            assert not [one for one in (*self.instances, *self.leaving) if one.side.artifact in held_back]
        for artifact, weight in now.weights.items():
            ready = sum(count.ready for side, count in counts.items() if side.artifact == artifact)
            if weight > old.get(artifact, 0):
                assert ready, f"{now.phase}: {weight} % to {artifact}, of which none is ready"
        share = now.weights.get(now.artifact, 0)
        if now.phase is Phase.CANARY and share > old.get(now.artifact, 0):
            assert share == weight_of(now)
            assert self.count(now.artifact).ready >= trial(now, self.wished(now))
        if now.phase in {Phase.STANDBY, Phase.KEEPING} and now.weights:
            assert sorted(now.weights.values()) == [0, 100]

    # What the world does.

    def world(self) -> None:
        """Time passes: instances come up, fail, crash and die; what leaves is gone."""
        self.now += self.tick
        self.leaving = [one for one in self.leaving if self.rng.random() < 0.3]
        for one in list(self.instances):
            habits = self.habits[one.side.artifact]
            if habits.dies and self.rng.random() < habits.dies:
                self.instances.remove(one)
            elif not one.ready and self.rng.randrange(max(1, habits.slowness)) == 0:
                self.come_up(one, habits)
            elif one.ready and habits.crashes and self.rng.random() < habits.crashes:
                one.ready = False
        self.call()

    def come_up(self, one: Instance, habits: Habits) -> None:
        artifact = one.side.artifact
        retries = self.retries.get(artifact, Retries())
        if habits.starts:
            one.ready = one.ever_ready = True
            if retries.failures:
                self.retries[artifact] = msgspec.structs.replace(retries, failures=0, given_up=False)
            return
        self.instances.remove(one)
        started = self.deployment.started_at if self.deployment else 0.0
        failures = 1 + (retries.failures if retries.at > started else 0)
        under_way = self.deployment is not None and self.deployment.phase not in AT_REST
        self.retries[artifact] = Retries(
            failures=failures,
            given_up=under_way and failures >= GIVE_UP,
            not_before=self.now + min(8, 2 ** (failures - 1)),
            at=self.now,
            why="it does not start",
        )

    def call(self) -> None:
        """Routers share the calls out by weight, and count anew when the deployment changes."""
        deployment = self.deployment
        if deployment is None:
            return
        ready = collections.Counter(one.side.artifact for one in self.instances if one.ready)
        weights = {a: w for a, w in (deployment.weights or ready).items() if w and ready[a]}
        for artifact in sorted({*weights, *self.counted}):
            calls, errors, since = self.counted.get(artifact, (0.0, 0.0, 0.0))
            if since < deployment.changed_at:
                calls, errors, since = 0.0, 0.0, self.now - self.tick
                since = max(since, deployment.changed_at)
            more = self.calls_per_second * self.tick * weights.get(artifact, 0) / (sum(weights.values()) or 1)
            self.counted[artifact] = (calls + more, errors + more * self.habits[artifact].error_rate, since)

    # Whole plays.

    def play(self, steps: int) -> None:
        for _ in range(steps):
            self.step()
            self.world()

    def settle(self, within: int = 1500) -> Deployment | None:
        """Play until nothing is done any more; it must come to rest."""
        quiet = 0
        for _ in range(within):
            moved = self.step()
            self.world()
            at_rest = self.deployment is None or self.deployment.phase in AT_REST
            comes_up = any(not one.ready for one in self.instances)
            waits = comes_up or self.leaving or any(map(self.is_waiting, self.retries))
            quiet = 0 if moved or not at_rest or waits or self.leader_died else quiet + 1
            if quiet >= 3:
                return self.deployment
        raise AssertionError(f"no rest: {self.deployment} {self.counts()} {self.retries}")

    def ready(self) -> dict[str, int]:
        found = collections.Counter(one.side.artifact for one in self.instances if one.ready)
        return dict(sorted(found.items()))

    def there(self) -> dict[str, int]:
        return dict(sorted(collections.Counter(one.side.artifact for one in self.instances).items()))


def running(spec: SliceSpec, **more: float) -> Model:
    """A model in which the slice's first version is there and done."""
    model = Model(spec, **more)  # type: ignore[arg-type]
    done = model.settle()
    assert done is not None
    assert done.phase is Phase.DONE
    model.phases.clear()
    model.weights.clear()
    return model


STRATEGIES = {
    "rolling": Strategy(),
    "rolling, wide": Strategy(max_surge=3, max_unavailable=1),
    "rolling, no surge": Strategy(max_surge=0, max_unavailable=1),
    "canary": msgspec.convert(
        {"type": "canary", "stages": [{"weight": 10, "hold": 3}, {"weight": 50, "hold": 3}]}, Strategy
    ),
    "blue-green": Strategy(type=StrategyKind.BLUE_GREEN, bake=2.0, keep=5.0),
}
