"""Whether slices are handled correctly, checked with each of their events, after all events of a revision.

slice_moves_legal        instances change state only by legal moves; a record is the aggregate of its instances
instance_numbers_unique  no two nodes have the same number of an artifact at the end of any revision
endpoints_before_active  an instance that becomes active and ready has all its endpoints by then
no_unreachable_endpoint  an instance that is stopping, or is gone, has no endpoint; and no endpoint stays for long if
                         its instance failed, is restarting, or was on a dead node
needs_kept               no instance is commanded to become active before the slices it needs have a ready instance
min_available_kept       no planned step stops a ready instance if too few would be left

The placement of new instances is checked in `slice_placement`: spread_kept, retries_heeded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

from hostler.errors import Damaged
from hostler.keys.families import ALIVE, BLUEPRINT, DEPLOYMENT, ENDPOINT, SLICE, SLICE_DECISION
from hostler.model.deployment import SliceState, aggregate, base_of, may_move
from hostler.sim.invariants import slice_placement
from hostler.sim.invariants.converged import value_of
from hostler.sim.invariants.slice_placement import KNOWN, Hindrance, Placement
from hostler.sim.world.host import FINE

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

    from hostler.model.deployment import SliceInstance, SliceSpec
    from hostler.model.rollout import Deployment
    from hostler.ports.store import Event
    from hostler.sim.world import World

    Telling: TypeAlias = Callable[[str, str, str, float | None], None]
    """Called with the invariant, the component, what is wrong, and since when (None: now)."""
    Instance: TypeAlias = tuple[str, int]
    """Artifact and number."""

T = TypeVar("T")
NAMES = (
    *("slice_moves_legal", "instance_numbers_unique", "endpoints_before_active", "no_unreachable_endpoint"),
    *("needs_kept", "min_available_kept", "no_stale_leader_write"),
    *slice_placement.NAMES,
)
EVERY = 2.0
HEARD = 2.0
"""Seconds in which an unhindered leader must have noticed an instance."""
_S = SliceState
_STOPPED = frozenset({_S.DEACTIVATING, _S.LOADED, _S.UNLOAD, _S.UNLOADING})
"""States of instances that are stopping or stopped."""


class _Move(NamedTuple):
    node: str
    artifact: str
    number: int
    old: SliceInstance | None
    new: SliceInstance | None


class SliceWatch:
    """Handles every event of the store, from before the first slice on."""

    def __init__(self, world: World, violated: Telling, fence: Callable[[], int | None]) -> None:
        self._world, self._violated, self._leading = world, violated, fence
        self.looks = dict.fromkeys(NAMES, 0)
        self._hindrance = Hindrance(world)
        self._placement = Placement(world, violated, self._hindrance)
        self._placement.looks = self.looks
        self.grace = 2 * world.plan.node_ttl + KNOWN
        self._alive: dict[str, None] = {}
        self._records: dict[str, dict[str, dict[int, SliceInstance]]] = {}
        """By node, then by artifact."""
        self._methods: dict[tuple[str, str], tuple[str, ...]] = {}
        self._where: dict[Instance, dict[str, None]] = {}
        self._endpoints: dict[Instance, dict[str, str]] = {}
        """The node of each method."""
        self._ready: dict[str, dict[tuple[str, int, str], None]] = {}
        """By slice: active and ready instances, with their node."""
        self._last_ready: dict[str, float] = {}
        self._specs: dict[str, tuple[str, SliceSpec]] = {}
        self._changed: dict[str, float] = {}
        self._before: dict[str, list[SliceSpec]] = {}
        """Recent earlier specs of a slice."""
        self._needs_changed: dict[str, float] = {}
        self._hurt: dict[str, float] = {}
        """When a slice last lost an instance by failure."""
        self._deployments: dict[str, Deployment] = {}
        self._moves: list[_Move] = []
        self._touched: dict[Instance, None] = {}
        self._suspects: dict[Instance, float] = {}
        self._told: dict[Instance, None] = {}
        self._revision, self._at = 0, 0.0
        self._families: tuple[tuple[str, Callable[[str, Event], None]], ...] = (
            (SLICE.prefix(), self._slice),
            (ENDPOINT.prefix(), self._endpoint),
            (ALIVE.prefix(), self._beat),
            (BLUEPRINT.prefix(), self._blueprint),
            (DEPLOYMENT.prefix(), self._deployment),
            (SLICE_DECISION.prefix(), self._decision),
        )
        self._task: asyncio.Task[None] | None = world.spawn(self._run(), "invariants: slices")

    def stop(self) -> None:
        """Stop checking."""
        self._judge()
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def heard(self, event: Event) -> None:
        """Handle any event of the store."""
        if event.kv.mod_revision != self._revision:
            self._judge()
            self._revision, self._at = event.kv.mod_revision, self._world.clock.now()
        key = event.kv.key
        for prefix, heard in self._families:
            if key.startswith(prefix):
                heard(key, event)
                return
        for prefix, told in self._placement.families:
            if key.startswith(prefix):
                told(key, event, self._at)
                return

    # Events

    def _beat(self, key: str, event: Event) -> None:
        node = ALIVE.parse(key)["node"]
        self._placement.beat(key, event, self._at)
        if event.type == "put":
            self._alive[node] = None
        elif self._alive.pop(node, "") is None:
            for artifact, instances in self._records.get(node, {}).items():
                self._hurt[base_of(artifact)] = self._at
                self._touched |= dict.fromkeys((artifact, number) for number in instances)

    def _slice(self, key: str, event: Event) -> None:
        parts = SLICE.match(key)
        if parts is None:
            return
        node, artifact = parts["node"], parts["artifact"]
        here = (node, artifact)
        records = self._records.setdefault(node, {})
        old = records.get(artifact, {})
        new: Mapping[int, SliceInstance] = {}
        methods: tuple[str, ...] = ()
        if event.type == "put":
            try:
                record = SLICE.entry(event.kv).value
            except Damaged as error:
                self._violated("slice_moves_legal", key, f"unreadable: {error}", None)
                return
            new, methods = record.each(), record.methods
            if not new or record.state is not aggregate(new):
                text = f"it is {record.state}, but its instances are {[str(one.state) for one in new.values()]}"
                self._violated("slice_moves_legal", key, text, None)
        for number in dict.fromkeys((*old, *new)):
            before, after = old.get(number), new.get(number)
            if before != after:
                self._check_move(_Move(node, artifact, number, before, after))
        if new:
            records[artifact], self._methods[here] = dict(new), methods
        else:
            records.pop(artifact, None)
            self._methods.pop(here, None)

    def _check_move(self, move: _Move) -> None:
        node, artifact, number, old, new = move
        was, now = None if old is None else old.state, None if new is None else new.state
        self._touched[artifact, number] = None
        self._placement.moved(node, artifact, old, new, self._at)
        if was is not now:
            self.looks["slice_moves_legal"] += 1
            if not may_move(was, now, node_dead=node not in self._alive):
                told = " to ".join("nothing" if state is None else state.value for state in (was, now))
                self._violated("slice_moves_legal", f"slice {artifact}#{number} on {node}", f"from {told}", None)
            self._moves.append(move)
        where = self._where.setdefault((artifact, number), {})
        if new is None:
            where.pop(node, None)
            if not where:
                self._where.pop((artifact, number), None)
        else:
            where[node] = None
        base, this = base_of(artifact), (artifact, number, node)
        if new is not None and new.state is _S.ACTIVE and new.ready:
            self._ready.setdefault(base, {})[this] = None
        elif self._ready.get(base, {}).pop(this, "") is None:
            self._last_ready[base] = self._at
            if new is None or new.state is not _S.DEACTIVATE:
                self._hurt[base] = self._at

    def _endpoint(self, key: str, event: Event) -> None:
        parts = ENDPOINT.match(key)
        if parts is None:
            return
        instance = parts["artifact"], int(parts["instance"])
        self._touched[instance] = None
        endpoints = self._endpoints.setdefault(instance, {})
        if event.type == "put":
            endpoints[parts["method"]] = ENDPOINT.entry(event.kv).value.node_id
            return
        endpoints.pop(parts["method"], None)
        if not endpoints:
            del self._endpoints[instance]

    def _blueprint(self, key: str, event: Event) -> None:
        name = BLUEPRINT.parse(key)["blueprint"]
        before: dict[str, SliceSpec] = {}
        for base, (owner, spec) in tuple(self._specs.items()):
            if owner == name:
                before[base] = spec
                lately = self._at - self._changed.get(base, -KNOWN) < KNOWN
                self._before[base] = [*(self._before.get(base, []) if lately else ()), spec]
                self._changed[base] = self._at
                del self._specs[base]
        if event.type == "put":
            for spec in BLUEPRINT.entry(event.kv).value.slices:
                self._specs[spec.base] = name, spec
                self._changed[spec.base] = self._at
                if spec.base in before and before[spec.base].needs != spec.needs:
                    self._needs_changed[spec.base] = self._at

    def _deployment(self, key: str, event: Event) -> None:
        base = DEPLOYMENT.parse(key)["base"]
        found = value_of(DEPLOYMENT, event)
        if found is None:
            self._deployments.pop(base, None)
        else:
            self._deployments[base] = found

    def _decision(self, key: str, event: Event) -> None:
        decision = value_of(SLICE_DECISION, event)
        if decision is None or not decision.fence:
            return
        self.looks["no_stale_leader_write"] += 1
        fence = self._leading()
        if decision.fence != fence:
            who = "there is no leader" if fence is None else f"the leader has fence {fence}"
            text = f"instances were placed under fence {decision.fence}, though {who}"
            self._violated("no_stale_leader_write", f"slice {SLICE_DECISION.parse(key)['artifact']}", text, None)

    # At the end of a revision

    def _judge(self) -> None:
        moves, self._moves = self._moves, []
        for move in moves:
            self._judge_move(move)
        self._placement.judge(self._specs, self._at)
        touched, self._touched = self._touched, {}
        for instance in touched:
            self._judge_instance(instance)

    def _judge_move(self, move: _Move) -> None:
        base, old, new = base_of(move.artifact), move.old, move.new
        if new is None:
            return
        if new.state is _S.ACTIVATE:
            self._judge_needs(move, base)
        elif new.state is _S.ACTIVE and new.ready:
            self._judge_endpoints(move)
        elif new.state is _S.DEACTIVATE and old is not None and old.ready:
            self._judge_available(base, move.artifact)
        elif new.state is _S.LOAD:
            self.looks["instance_numbers_unique"] += 1
            where = self._where.get((move.artifact, move.number), {})
            if len(where) > 1:
                text = f"{' and '.join(where)} have it at once"
                self._violated("instance_numbers_unique", f"slice {move.artifact}#{move.number}", text, self._at)

    def _judge_endpoints(self, move: _Move) -> None:
        self.looks["endpoints_before_active"] += 1
        methods = self._methods.get((move.node, move.artifact), ())
        shown = self._endpoints.get((move.artifact, move.number), {})
        missing = [method for method in methods if shown.get(method) != move.node]
        if missing or not shown:
            text = f"it is active, but has no endpoint of {', '.join(missing) or 'any method'}"
            self._violated("endpoints_before_active", f"slice {move.artifact}#{move.number}", text, self._at)

    def _judge_needs(self, move: _Move, base: str) -> None:
        spec = self._specs.get(base)
        if spec is None or self._at - self._needs_changed.get(base, -KNOWN) < KNOWN:
            return
        for need in spec[1].needs:
            self.looks["needs_kept"] += 1
            if not self._ready.get(need) and self._at - self._last_ready.get(need, -KNOWN) >= KNOWN:
                text = f"it must become active, but no instance of {need} is"
                self._violated("needs_kept", f"slice {move.artifact}#{move.number}", text, self._at)

    def _judge_available(self, base: str, artifact: str) -> None:
        """Check a planned stop. Only versions that get calls count, because other versions do not serve anyone."""
        found, deployment = self._specs.get(base), self._deployments.get(base)
        if found is None or self._hindrance.look() or self._at - self._hurt.get(base, -HEARD) < HEARD:
            return
        weights = {} if deployment is None else deployment.weights
        if weights and not weights.get(artifact):
            return
        specs = [found[1]]
        if self._at - self._changed.get(base, -KNOWN) < KNOWN:  # the leader may not know the newest spec
            specs += self._before.get(base, [])
        floor = min(_floor(spec, deployment) for spec in specs)
        self.looks["min_available_kept"] += 1
        ready = sum(not weights or weights.get(name, 0) > 0 for name, _, _ in self._ready.get(base, {}))
        if ready < floor:
            text = f"{ready} are ready after one was stopped; {floor} of {found[1].instances} must be"
            self._violated("min_available_kept", f"slice {base}", text, self._at)

    def _judge_instance(self, instance: Instance) -> None:
        """Check whether an instance may have its endpoints."""
        artifact, number = instance
        shown = self._endpoints.get(instance)
        if not shown:
            self._suspects.pop(instance, None)
            self._told.pop(instance, None)
            return
        self.looks["no_unreachable_endpoint"] += 1
        fine = True
        for method, node in shown.items():
            one = self._records.get(node, {}).get(artifact, {}).get(number)
            if one is None or one.state in _STOPPED:
                if instance not in self._told:
                    self._told[instance] = None
                    state = "gone" if one is None else str(one.state)
                    text = f"{method} has an endpoint on {node}, where the instance is {state}"
                    self._violated("no_unreachable_endpoint", f"slice {artifact}#{number}", text, self._at)
            elif not one.ready or one.state is _S.FAILED or node not in self._alive:
                fine = False
        if fine:
            self._suspects.pop(instance, None)
        else:
            self._suspects.setdefault(instance, self._at)

    async def _run(self) -> None:
        while True:
            await self._world.clock.sleep(EVERY)
            self._hindrance.look()
            self._placement.look(self._specs, self._changed)
            if self._suspects:
                self._look()

    def _look(self) -> None:
        now = self._world.clock.now()
        for instance, since in tuple(self._suspects.items()):
            nodes = dict.fromkeys(self._endpoints.get(instance, {}).values())
            hosts = [host for node in nodes if (host := self._world.blades.get(node)) is not None]
            if any(host.conditions is not FINE for host in hosts):
                self._suspects[instance] = now
            elif now - since > self.grace and instance not in self._told:
                self._told[instance] = None
                text = f"it has endpoints on {', '.join(nodes)}, but has not served there for {now - since:g} s"
                self._violated("no_unreachable_endpoint", f"slice {instance[0]}#{instance[1]}", text, since)


def _floor(spec: SliceSpec, deployment: Deployment | None) -> int:
    """Return how many instances must be ready during planned changes."""
    requested = spec.instances if deployment is None or deployment.scale is None else deployment.scale
    strategies = (spec.strategy, *(() if deployment is None else (deployment.strategy,)))
    missing: int = max(each.max_unavailable for each in strategies)
    return max(requested - missing, min(requested, spec.min_available))
