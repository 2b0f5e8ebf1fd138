"""The leader's controller for slices: keeps the number and version of instances that blueprints specify.

A slice (`group:name`) is reconciled when its blueprint, its deployment or one of its instances changes, and all slices
are resynced periodically. The cost depends on the work to do, because `slice_cache` indexes instances as they change.
Decisions are based on the mirrors, and written under their revisions and the leader's guard, many slice keys at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.engine.deployments import alerts, transactions
from hostler.engine.deployments.autoscale import desired_count
from hostler.engine.deployments.consistency import Doubles, OrphanEndpoints
from hostler.engine.deployments.decide import SliceSnapshot, decide
from hostler.engine.deployments.desired import Atomic, DesiredBlueprints, transitive_needs
from hostler.engine.deployments.failed_instances import Remedy
from hostler.engine.deployments.instance_placement import Loading, Loads
from hostler.engine.deployments.rebalance import Rebalance
from hostler.engine.deployments.state_machine import Limits
from hostler.engine.deployments.strategy import RolloutSnapshot, aim
from hostler.engine.deployments.version_set import NOBODY, new_side
from hostler.engine.runtime.controller import BatchController
from hostler.engine.runtime.guarded_writer import LAG, Txn, Why
from hostler.engine.runtime.work_queue import Resync
from hostler.keys.families import ALIVE, DEPLOYMENT, MEMBER, RETRIES, SLICE
from hostler.kit.plural import counted
from hostler.kit.tasks import Fairness
from hostler.model.deployment import SliceState, base_of
from hostler.ports.store import Delete

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from hostler.engine.deployments.call_metrics import Measured
    from hostler.engine.deployments.decide import SliceSteps
    from hostler.engine.deployments.strategy import Aim, VersionSet
    from hostler.engine.deployments.transactions import DesiredSlice
    from hostler.engine.runtime.env import ControllerEnv
    from hostler.engine.view import View
    from hostler.keys.entry import Entry
    from hostler.model.deployment import SliceSettings, SliceSpec
    from hostler.model.rollout import Deployment, Retries, SliceDecision

PASS_EVERY = 30.0
ROUNDS = 100
"""Consecutive batches for one slice before other slices get their turn."""
CONFLICTS = 4
"""Consecutive conflicts before the controller waits: a lagging mirror needs time to catch up."""
GATHER = 0.02
"""Seconds for which changes of instances are collected: a command to many nodes then costs one decision."""
_RETRIES, _DEPLOYMENTS = RETRIES.prefix(), DEPLOYMENT.prefix()


class DeploymentController(BatchController):
    """Leader service for deployments. Without `tracer` its decisions are not recorded in the decision log."""

    name = "deployments"
    pass_every = PASS_EVERY
    rounds = ROUNDS
    conflicts = CONFLICTS

    def __init__(
        self,
        env: ControllerEnv,
        view: View,
        *,
        measured: Callable[[str], Measured],
        limits: Limits | None = None,
        width: int = 16,
    ) -> None:
        mirrors = (view.slices, view.deployments, view.retries, view.owners, view.blueprints, view.alerts)
        super().__init__(env, width=width, mirrors=mirrors, learns=True)
        self._view, self._measured, self._min_ready = view, measured, (limits or Limits()).min_ready
        self._fleet = view.fleet
        self._blueprints = DesiredBlueprints(env.store, view)
        self._nodes = self._add_queue("nodes", self._bury, width)
        self._resync = Resync(self._bases, every=PASS_EVERY)
        self._strays = OrphanEndpoints(env.store, view, self._writing, clock=env.clock)
        self._loading = Loading(view, self._writing, clock=env.clock)
        self._remedy = Remedy(
            view,
            self._writing,
            self._queue.add,
            limits=limits or Limits(),
            clock=env.clock,
            tell=env.tell,
            mute=self._loading.mute,
        )
        self._rebalance = Rebalance(
            view, self._writing, self._loading, self._queue.add, limits=limits or Limits(), clock=env.clock
        )
        self._atomic = Atomic(env.store, view, self._blueprints, self._writing, env.clock, env.tell)
        self._alerts = alerts.Alerts(view, self._writing, measured, clock=env.clock, tell=env.tell)
        self._doubles = Doubles(env.store, self._writing, clock=env.clock, tell=env.tell)
        self._retries: dict[str, dict[str, None]] = {}  # artifacts with failures, by base
        self._homeless: dict[str, None] = {}  # slices that wait for a node
        self._awaited: dict[str, dict[str, None]] = {}  # slices that wait for another slice, by that slice
        self._batch: dict[str, int] = {}  # keys per transaction, reduced after conflicts with other writers
        self._told: dict[str, tuple[object, ...]] = {}  # last recorded reasons for instances without a node

    # The service

    async def read_caches(self) -> None:
        """Refresh everything that decisions are made from."""
        view = self._view
        await view.refresh(
            view.blueprints,
            view.owners,
            view.deployments,
            view.retries,
            view.alerts,
            view.slices,
            view.members,
            view.alive,
        )

    async def begin(self) -> None:
        """Build the indexes, and follow changes."""
        view = self._view
        await self._fleet.load()
        for key in (*view.retries.entries, *view.retries.unreadable):
            self._retry_changed(key)
        self.follow(
            *self._blueprints.listen(self._queue.add),
            self._fleet.listen(self._slice_changed),
            self._fleet.ground.listen(self._node_changed),
            view.deployments.listen(lambda key: self._queue.add(key[len(_DEPLOYMENTS) :])),
            view.retries.listen(self._retry_changed),
            view.alive.listen(self._alive_changed),
        )

    def state(self) -> dict[str, int]:
        """Return counters and current sizes for metrics."""
        return {**self.counters, "looks_waiting": len(self._queue), "waiting_for_a_node": len(self._homeless)}

    async def resync(self, *, first: bool) -> None:
        """Reconcile everything: all at once at the start, then in portions."""
        fairness = Fairness()
        for base in self._resync.all() if first else self._resync.next():
            self._queue.add(base, patient=True)
            await fairness.share()
        for node in self._fleet.nodes():
            if not self._fleet.ground.is_alive(node):
                self._nodes.add(node)
        await self._strays.look()

    def _bases(self) -> Iterator[str]:
        yield from self._blueprints.bases()
        yield from self._fleet.bases()
        yield from (base_of(key.rpartition("/")[2]) for key in tuple(self._fleet.hollow))
        yield from (key[len(_DEPLOYMENTS) :] for key in tuple(self._view.deployments.entries))

    # Changes

    def _slice_changed(self, base: str, node: str) -> None:
        self._queue.add(base, after=GATHER)
        waiting = self._awaited.pop(base, None) if self._awaited else None
        for other in waiting or ():
            self._queue.add(other, after=GATHER)
        if self._fleet.site(node).kind and not self._fleet.ground.is_alive(node):
            self._nodes.add(node)

    def _node_changed(self, node: str) -> None:
        """Handle a node that started or stopped accepting slices, or being drained."""
        self._rebalance.node_changed(node)
        for base in dict.fromkeys(map(base_of, self._fleet.on(node))):
            self._queue.add(base)
        if not self._fleet.site(node).kind:
            for base in tuple(self._homeless):
                self._queue.add(base, after=GATHER)

    def _alive_changed(self, key: str) -> None:
        if key not in self._view.alive.entries:
            node = ALIVE.parse(key)["node"]
            if self._fleet.count_on(node):
                self._nodes.add(node)

    def _retry_changed(self, key: str) -> None:
        artifact = key[len(_RETRIES) :]
        base = base_of(artifact)
        known = self._retries.setdefault(base, {})
        if key in self._view.retries.entries:
            known[artifact] = None
        else:
            known.pop(artifact, None)
            if not known:
                del self._retries[base]
        self._queue.add(base)

    # A dead node

    async def _bury(self, node: str) -> None:
        """Remove the instances of a dead node, endpoints first. The resulting change loads their replacements."""
        name = f"node {node}"
        if self._writing.in_doubt(name):
            await self._writing.resolve(name)
        if not await self._writing.caught_up(name):
            self._nodes.add(node, after=LAG)
            return
        if self._fleet.ground.is_alive(node) or not self._fleet.count_on(node):
            return
        entries = [entry for artifact in self._fleet.on(node) if (entry := self._fleet.entry(node, artifact))]
        member, silence = self._view.members.get(node=node), self._view.silences.get(node=node)
        slices = counted(len(entries), "slice", "slices")
        for txn in transactions.bury_node(node, entries, transactions.WRITES):
            why = Why(
                what="buried",
                why=f"node {node} is dead: removed {len(txn.when) - 1} of its {slices}, endpoints first",
                read=(member, *entries[:8]),
                cause="" if silence is None else silence.value.trace,
            )
            await self._writing.write(name, MEMBER.fill(node=node), txn, why)
        unread = [artifact for artifact in self._fleet.on(node) if not self._fleet.is_readable(node, artifact)]
        for txn in transactions.buried_unread(node, unread, transactions.BATCH):
            lost = counted(len(txn.then), "slice with an unreadable record", "slices with unreadable records")
            said = f"node {node} is dead: removed {lost}"
            await self._writing.write(name, MEMBER.fill(node=node), txn, Why(what="buried", why=said, read=(member,)))
        if entries:
            self._tell(f"node {node}: dead; removed {slices} from it and replacing them on other nodes")

    # One slice

    def on_conflict(self, base: str) -> None:
        """Write fewer keys at a time; the mirrors will receive the change."""
        self._batch[base] = max(1, self._batch.get(base, transactions.BATCH) // 4)

    async def step(self, base: str) -> bool:
        """Do what can be done now; return whether anything was done. Conflict: something changed concurrently."""
        view, fleet = self._view, self._fleet
        self._writing.count("looks")
        if self._blueprints.is_unreadable(base) or DEPLOYMENT.fill(base=base) in view.deployments.unreadable:
            return False  # the desired state is unknown
        if fleet.hollow and await self._drop_hollow(base):
            return True
        desired, spec = self._blueprints.of(base)
        deployment = view.deployments.get(base=base)
        if not _is_known(spec, deployment):
            return False  # a later release started a rollout that this one cannot continue
        roster = fleet.roster(base)
        if spec is None and deployment is None and desired.owner is None and not roster:
            self._forget(base)
            return False
        is_news = deployment is None or _is_news(desired, spec, deployment.value)
        revision = (
            await self._blueprints.revision(desired)
            if deployment is not None and is_news and spec is not None
            else None
        )
        afresh = is_news and not await self._is_about_others(desired, spec, deployment)
        counts = roster.counts(self._clock.wall(), self._min_ready)
        takes = fleet.ground.takes({} if spec is None else spec.node_labels)
        aims = aim(
            RolloutSnapshot(
                spec,
                desired.name,
                desired.number,
                revision is not None and revision.rollback_to > 0,
                None if deployment is None else deployment.value,
                counts,
                retries={} if afresh else self._retries_of(base),
                measured=self._measured,
                placeable=takes,
                retry=afresh or not is_news,
            ),
            now=self._clock.wall(),
        )
        if await self._advance(base, desired, deployment, aims, self._retry_entries(base) if afresh else ()):
            return True
        if await self._atomic.look(base, desired, spec, deployment):
            return True
        if await self._alerts.look(base, desired, spec, deployment, roster.ready):
            return True
        again = aims.again if spec is None or not spec.alerts else min(aims.again or alerts.EVERY, alerts.EVERY)
        if again:
            self._queue.add(base, after=again)
        fresh = 0 if aims.deployment is None else counts.get(new_side(aims.deployment), NOBODY).fresh
        look = SliceSnapshot(
            roster=roster,
            entry=fleet.entry,
            aim=aims,
            leaving=self._loading.nodes_to_leave(base, spec),
            most=0 if spec is None else _most_of(spec, aims),
            is_proving=fresh > 0,
            fresh=fresh,
            moves=spec is not None and aims.deployment is not None and aims.deployment.move is not None,
            takes=takes,
            may_activate=spec is None or self._has_needs(base, spec.needs),
            may_activate_previous=aims.deployment is None or self._has_needs(base, aims.deployment.previous_needs),
            may_remove=spec is not None or await self._is_needless(base, desired),
        )
        if await self._remedy.look(base, look, deployment, self._retry_entries(base), self._most(base)):
            return True
        if await self._doubles.look(base, look):
            return True
        if await self._rebalance.look(base, desired, spec, look, deployment, self._retry_entries(base)):
            return True
        plan = decide(look)
        return await self._do(base, desired, spec, look, plan)

    async def _drop_hollow(self, base: str) -> bool:
        """Delete slice keys that have no instances."""
        keys = [key for key in self._fleet.hollow if base_of(key.rpartition("/")[2]) == base]
        entries = [entry for key in keys[: transactions.BATCH] if (entry := self._view.slices.entries.get(key))]
        if not entries:
            return False
        txn = Txn([SLICE.unchanged(entry) for entry in entries], [Delete(entry.key) for entry in entries])
        why = Why(
            what="hollow",
            why=counted(len(entries), "slice key without any instance is", "slice keys without any instance are")
            + " dropped",
            read=tuple(entries),
        )
        await self._writing.write(base, DEPLOYMENT.fill(base=base), txn, why)
        return True

    def _forget(self, base: str) -> None:
        """Drop what is cached about a slice that is gone."""
        self._fleet.forget(base)
        self._remedy.forget(base)
        self._loading.forget(base)
        self._alerts.forget(base)
        for known in (self._homeless, self._batch, self._told):
            known.pop(base, None)

    def _retries_of(self, base: str) -> dict[str, Retries]:
        return {entry.parts["artifact"]: entry.value for entry in self._retry_entries(base)}

    def _retry_entries(self, base: str) -> list[Entry[Retries]]:
        found = (self._view.retries.get(artifact=artifact) for artifact in self._retries.get(base, ()))
        return [entry for entry in found if entry is not None]

    # Progress

    async def _is_about_others(
        self, desired: DesiredSlice, spec: SliceSpec | None, deployment: Entry[Deployment] | None
    ) -> bool:
        """Return whether the blueprint's new revision leaves this slice unchanged."""
        if spec is None or deployment is None or deployment.value.blueprint != desired.name:
            return False
        return await self._blueprints.is_about_others(desired, spec, deployment.value.number)

    async def _advance(
        self,
        base: str,
        desired: DesiredSlice,
        old: Entry[Deployment] | None,
        aims: Aim,
        failures: Iterable[Entry[Retries]],
    ) -> bool:
        """Write the deployment if it has changed. With a new revision, delete these failure records."""
        new, subject = aims.deployment, DEPLOYMENT.fill(base=base)
        if new is None:
            if self._fleet.roster(base) or self._is_damaged(base):
                return False
            txn = transactions.forget_slice(base, desired, old)
            if not txn.then:
                return False
            why = Why(what="forgotten", why="no blueprint names it, and no instance is left", read=(old, desired.owner))
            await self._writing.write(base, subject, txn, why)
            self._release(base)
            return True
        if old is not None and new == old.value:
            return False
        txn = transactions.write_deployment(base, desired, old, new, failures)
        what = new.phase.value if old is None or old.value.phase is not new.phase else "deployment"
        read = (old, desired.owner, desired.blueprint)
        await self._writing.write(base, subject, txn, Why(what=what, why=new.why or f"{new.artifact}", read=read))
        if what != "deployment":
            self._tell(f"slice {base}: {new.phase.value}: {new.artifact}{f': {new.why}' if new.why else ''}")
        return True

    def _is_damaged(self, base: str) -> bool:
        """Return whether a record of one of its instances is unreadable."""
        return any(base_of(key.rpartition("/")[2]) == base for key in self._view.slices.unreadable)

    # Dependencies

    def _has_needs(self, base: str, needs: Iterable[str]) -> bool:
        for need in needs:
            if not self._fleet.roster(need).ready:
                self._awaited.setdefault(need, {})[base] = None
                return False
        return True

    async def _is_needless(self, base: str, desired: DesiredSlice) -> bool:
        """Return whether no other slice that is being removed, of this blueprint or another one, still needs it."""
        others = {
            one.base: one
            for one in (*await self._blueprints.leaving(""), *await self._blueprints.company(base, desired))
        }
        needed = transitive_needs(base, others)  # in a cycle across revisions neither waits for the other
        for other in others.values():
            if other.base in needed or base not in other.needs:
                continue
            if self._fleet.roster(other.base) and self._blueprints.of(other.base)[1] is None:
                self._awaited.setdefault(other.base, {})[base] = None
                return False
        return True

    def _release(self, base: str) -> None:
        for other in self._awaited.pop(base, {}):
            self._queue.add(other)

    # Adding and removing instances

    async def _do(
        self, base: str, desired: DesiredSlice, spec: SliceSpec | None, look: SliceSnapshot, plan: SliceSteps
    ) -> bool:
        loads = Loads(plan.changes)
        try:
            return await self._carry_out(base, desired, spec, look, plan, loads)
        finally:
            for artifact, numbers in loads.numbers.items():
                self._fleet.planned_index(base).give_back(artifact, numbers)
            self._fleet.forget(base)

    async def _carry_out(  # noqa: PLR0917  (the spec, the snapshot, the plan)
        self,
        base: str,
        desired: DesiredSlice,
        spec: SliceSpec | None,
        look: SliceSnapshot,
        plan: SliceSteps,
        loads: Loads,
    ) -> bool:
        for side, wanted in plan.loads:
            count = self._may_load(base, side, wanted)
            if count and spec is not None and not loads.nodes:  # a placement affects the next side: decide again for it
                self._loading.place(base, spec, side, count, loads)
        if plan.stays and spec is not None and not loads.decisions:
            loads.decisions[spec.artifact] = self._loading.stays(base, spec, plan.stays, plan.stays_why)
        if any(decision.waiting for decision in loads.decisions.values()):
            self._homeless[base] = None
        else:
            self._homeless.pop(base, None)
        if not plan.changes:
            return await self._say(
                base, desired, loads.decisions, plan.stays_why if plan.stays and not plan.loads else ""
            )
        with self._loading.reserved(loads.nodes):
            await self._write(base, desired, plan, loads, look.aim.settings)
            await self._writing.caught_up(base)
        return True

    def _may_load(self, base: str, side: VersionSet, count: int) -> int:
        """Return how many instances may be loaded now; 0 during the pause after a failure."""
        entry = self._view.retries.get(artifact=side.artifact) if base in self._retries else None
        left = 0.0 if entry is None else entry.value.not_before - self._clock.wall()
        if left <= 0:
            return count
        self._queue.add(base, after=left + 0.001)
        return 0

    async def _say(self, base: str, desired: DesiredSlice, decisions: Mapping[str, SliceDecision], stays: str) -> bool:
        """Record why instances wait for a node, or stay on one that they must leave, if nothing else is written."""
        news = tuple((artifact, one.waiting, one.passed_over) for artifact, one in decisions.items() if one.waiting)
        if not news or self._told.get(base) == news:
            return False
        waiting = sum(one.waiting for one in decisions.values())
        why = counted(
            waiting, "instance waits for a node: no node accepts it", "instances wait for a node: no node accepts them"
        )
        if stays:
            stay = counted(waiting, "instance cannot leave its node", "instances cannot leave their nodes")
            why = f"{stay}: {stays}"
        reasons = tuple(reason for one in decisions.values() for reason in one.passed_over)
        txn = Txn(
            desired.unchanged(base),
            [transactions.placement_decision(one, artifact) for artifact, one in decisions.items()],
        )
        told = Why(what="waits", why=why, reasons=reasons, read=(desired.owner,))
        await self._writing.write(base, DEPLOYMENT.fill(base=base), txn, told)
        self._told[base] = news
        self._tell(f"slice {base}: {why}")
        return False

    async def _write(
        self, base: str, desired: DesiredSlice, plan: SliceSteps, loads: Loads, settings: Mapping[int, SliceSettings]
    ) -> None:
        """Write all changes, in batches of slice keys. Conflict: some of them were not written."""
        at, fleet = self._clock.wall(), self._fleet
        when, subject = desired.unchanged(base), DEPLOYMENT.fill(base=base)
        said = {**plan.said, SliceState.LOAD.value: len(loads.nodes)} if loads.nodes else plan.said
        why = ", ".join(f"{count} × {what}" for what, count in said.items())
        written = (
            transactions.slice_change(spot, fleet.entry(*spot), moves, at=at, settings=settings)
            for spot, moves in plan.changes.items()
        )
        for batch in transactions.batches(written, self._most(base)):
            txn = transactions.together(when, batch)
            decisions = loads.of(batch)
            txn.then += [transactions.placement_decision(one, artifact) for artifact, one in decisions]
            reasons = tuple(reason for _, one in decisions for reason in one.chosen[:3])
            read = tuple(one.entry for one in batch[:8])
            await self._writing.write(base, subject, txn, Why(what="moved", why=why, reasons=reasons, read=read))
            self._widen(base)
        self._told.pop(base, None)

    def _widen(self, base: str) -> None:
        """Increase the batch size again after a success."""
        most = self._batch.get(base)
        if most is not None and most * 2 < transactions.BATCH:
            self._batch[base] = most * 2
        elif most is not None:
            del self._batch[base]

    def _most(self, base: str) -> int:
        return self._batch.get(base, transactions.BATCH)


def _is_known(spec: SliceSpec | None, deployment: Entry[Deployment] | None) -> bool:
    """Return whether this release knows the strategy and the phase of the slice."""
    if spec is not None and not spec.strategy.type.is_known:
        return False
    return deployment is None or (deployment.value.phase.is_known and deployment.value.strategy.type.is_known)


def _is_news(desired: DesiredSlice, spec: SliceSpec | None, now: Deployment) -> bool:
    """Return whether there is a new revision, or the blueprint was changed by hand."""
    return now.number != desired.number or (
        spec is not None and (now.artifact, now.settings) != (spec.artifact, spec.settings)
    )


def _most_of(spec: SliceSpec, aims: Aim) -> int:
    """Return the maximum number of instances during a rollout."""
    now = aims.deployment
    return desired_count(spec, now.scale if now else None) + max(1, (now.strategy if now else spec.strategy).max_surge)
