"""The leader's work on slices in virtual time: one store, small stand-ins for agents, and leaders that can be replaced.

Meanwhile every move of every slice is watched: an illegal one, or a number that two instances have, ends the story.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from hostler.drivers.store.memory import MemoryStore
from hostler.engine.decision_recorder import Tracer
from hostler.engine.deployments.call_metrics import Measured
from hostler.engine.deployments.controller import DeploymentController
from hostler.engine.deployments.state_machine import Limits, changed_record
from hostler.engine.runtime.env import ControllerEnv
from hostler.engine.view import View
from hostler.keys.families import (
    ALIVE,
    BLUEPRINT,
    BLUEPRINT_HISTORY,
    DEPLOYMENT,
    ENDPOINT,
    MEMBER,
    RETRIES,
    SLICE,
    SLICE_DECISION,
    SLICE_OWNER,
)
from hostler.kit.virtual_loop import VirtualClock, run_virtual
from hostler.model.deployment import Blueprint, Endpoint, SliceInstance, SliceSpec, SliceState, may_move
from hostler.model.inventory import Capacity
from hostler.model.node import Heartbeat, Lifecycle, NodeRecord
from hostler.model.rollout import BlueprintRevision, SliceOwner
from hostler.ports.store import Get, Put, Version

from .evidence import name_run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from hostler.keys.entry import Entry
    from hostler.model.deployment import SliceRecord
    from hostler.model.rollout import Deployment, Retries, SliceDecision
    from hostler.ports.store import Comparison, Store

S = SliceState
LEAD = "/lead"
_ANSWERS = {
    S.LOAD: S.LOADING,
    S.LOADING: S.LOADED,
    S.ACTIVATE: S.ACTIVATING,
    S.ACTIVATING: S.ACTIVE,
    S.DEACTIVATE: S.DEACTIVATING,
    S.DEACTIVATING: S.LOADED,
    S.UNLOAD: S.UNLOADING,
    S.UNLOADING: None,
}
METHODS = ("greet", "part")


class Leadership:
    """Somebody leads until the next one does."""

    def __init__(self, fence: int) -> None:
        self.fence = fence

    def check(self) -> None:
        pass

    def guard(self) -> Comparison:
        return Version(LEAD) == self.fence


class Standing:
    def __init__(self, fence: int) -> None:
        self.leadership: Any = Leadership(fence)


class Crashing:
    """A store whose user dies at a transaction: before it is done, or after it and before the answer."""

    def __init__(self, store: Store, *, at: int, after: bool) -> None:
        self._store, self._left, self._after = store, at, after
        self.died = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def txn(self, *args: Any) -> Any:
        self._left -= 1
        if self._left or self.died.is_set():
            if self.died.is_set():
                await asyncio.Event().wait()
            return await self._store.txn(*args)
        if self._after:
            await self._store.txn(*args)
        self.died.set()
        return await asyncio.Event().wait()


class Stage:
    def __init__(self, store: MemoryStore, clock: VirtualClock, rng: random.Random) -> None:
        self.store, self.clock, self.rng = store, clock, rng
        self.delay = 0.1
        """Seconds that each step takes a node."""
        self.refuses: Callable[[str, str, SliceState], str] = lambda _node, _artifact, _state: ""
        """Why a node fails a slice as it comes into a state; empty: it does not."""
        self.ignores: Callable[[str, str, SliceState], bool] = lambda _node, _artifact, _state: False
        self.told: list[str] = []
        self.wrong: list[str] = []
        self.fence = 0
        self.low: dict[str, int] = {}
        """The fewest instances that served, by base, since it was last cleared."""
        self.most: dict[str, int] = {}
        self.limits = Limits()
        self.measured: Callable[[str], Measured] = lambda _: Measured()
        self._tasks: list[asyncio.Task[None]] = []
        self._busy: dict[str, asyncio.Task[None]] = {}
        self._leader: asyncio.Task[None] | None = None
        self.controller: DeploymentController | None = None
        self.view: View | None = None

    # Nodes

    async def nodes(self, *names: str, **more: Any) -> None:
        for name in names:
            fields: dict[str, Any] = {"lifecycle": Lifecycle.ON_DUTY, "registered_at": 0.0, **more}
            record = NodeRecord(node=name, capacity=Capacity(cpus=1, memory_mib=1, disk_gib=1), **fields)
            beat = Heartbeat(holder=name, started_at=0.0)
            await self.store.txn([], [MEMBER.put(record, node=name), ALIVE.put(beat, node=name)])

    async def lifecycle(self, name: str, lifecycle: Lifecycle) -> None:
        entry = await MEMBER.get(self.store, node=name)
        assert entry is not None
        await MEMBER.replace(self.store, entry, msgspec.structs.replace(entry.value, lifecycle=lifecycle))

    async def die(self, name: str) -> None:
        await self.store.txn([], [ALIVE.delete(node=name)])

    # What people say

    async def apply(self, *specs: SliceSpec, name: str = "shop", rollback_to: int = 0) -> None:
        await self._write(name, Blueprint(slices=specs), rollback_to=rollback_to)

    async def remove(self, name: str = "shop") -> None:
        entry = await BLUEPRINT.get(self.store, blueprint=name)
        assert entry is not None
        history = (await BLUEPRINT_HISTORY.list(self.store, blueprint=name)).entries
        number = 1 + max(int(old.parts["number"]) for old in history)
        gone = BlueprintRevision(number=number, blueprint=entry.value, by="x", at=0.0, deleted=True)
        put = BLUEPRINT_HISTORY.put(gone, blueprint=name, number=number)
        await self.store.txn([], [BLUEPRINT.delete(blueprint=name), put])

    async def _write(self, name: str, blueprint: Blueprint, *, rollback_to: int) -> None:
        history = (await BLUEPRINT_HISTORY.list(self.store, blueprint=name)).entries
        number = 1 + max((int(old.parts["number"]) for old in history), default=0)
        revision = BlueprintRevision(number=number, blueprint=blueprint, by="x", at=0.0, rollback_to=rollback_to)
        owner = SliceOwner(blueprint=name, number=number)
        await self.store.txn(
            [],
            [
                BLUEPRINT.put(blueprint, blueprint=name),
                BLUEPRINT_HISTORY.put(revision, blueprint=name, number=number),
                *(SLICE_OWNER.put(owner, base=spec.base) for spec in blueprint.slices),
            ],
        )

    # Leaders

    async def lead(self, store: Any = None) -> None:
        """A new leader; whoever led before is gone."""
        await self.depose()
        result = await self.store.txn([], [Put(LEAD, b"x"), Get(LEAD)])
        self.fence = result.responses[1].version  # type: ignore[union-attr]
        ready = asyncio.Event()
        self._leader = asyncio.create_task(self._run_leader(store or self.store, ready), name="leader")
        waiting = asyncio.create_task(ready.wait())
        await asyncio.wait((waiting, self._leader), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if self._leader.done():
            self._leader.result()

    async def depose(self) -> None:
        if self._leader is not None:
            self._leader.cancel()
            await asyncio.gather(self._leader, return_exceptions=True)
            self._leader = None

    async def _run_leader(self, store: Any, ready: asyncio.Event) -> None:
        rng = random.Random(self.rng.random())
        view = self.view = View(store, clock=self.clock, rng=rng)
        viewing = asyncio.create_task(view.run())
        ids = iter(range(10**9))
        tracer = Tracer(self.clock, lambda: f"{self.fence}-{next(ids)}", "deployments")
        controller = self.controller = DeploymentController(
            ControllerEnv(store=store, clock=self.clock, rng=rng, tracer=tracer, tell=self.told.append),
            view,
            measured=self._measure,
            limits=self.limits,
        )
        try:
            await view.ready()
            await controller.start(Standing(self.fence))
            ready.set()
            await controller.run()
        finally:
            await controller.stop()
            viewing.cancel()
            await asyncio.gather(viewing, return_exceptions=True)

    def _measure(self, artifact: str) -> Measured:
        return self.measured(artifact)

    # Stand-ins for agents

    async def answer(self) -> None:
        async with self.store.watch(SLICE.prefix(), start_revision=1) as events:
            async for event in events:
                if event.type == "put" and event.kv.key not in self._busy:
                    key = event.kv.key
                    self._busy[key] = asyncio.create_task(self._walk(key))

    async def _walk(self, key: str) -> None:
        parts = SLICE.parse(key)
        node, artifact = parts["node"], parts["artifact"]
        try:
            while True:
                await asyncio.sleep(self.delay)
                entry = await SLICE.get(self.store, **parts)
                alive = await ALIVE.get(self.store, node=node)
                if entry is None or alive is None or not await self._step(entry, node, artifact):
                    return
        finally:
            del self._busy[key]

    async def _step(self, entry: Entry[SliceRecord], node: str, artifact: str) -> bool:
        changes: dict[int, SliceInstance | None] = {}
        then: list[Any] = []
        for number, one in entry.value.each().items():
            if one.state not in _ANSWERS or self.ignores(node, artifact, one.state):
                continue
            state = _ANSWERS[one.state]
            why = "" if state is None else self.refuses(node, artifact, state)
            if why:
                changes[number] = msgspec.structs.replace(one, state=S.FAILED, why=why)
                continue
            changes[number] = None if state is None else SliceInstance(state=state, template=one.template)
            for method in METHODS if state in (S.ACTIVE, S.DEACTIVATING) else ():
                ids: dict[str, Any] = {"artifact": artifact, "method": method, "instance": number}
                end = Endpoint(node_id=node, instance=number, state=S.ACTIVE)
                then.append(ENDPOINT.put(end, **ids) if state is S.ACTIVE else ENDPOINT.delete(**ids))
        if not changes:
            return False
        record = changed_record(entry.value, changes, at=self.clock.wall(), methods=METHODS)
        put = SLICE.delete(**entry.parts) if record is None else SLICE.put(record, **entry.parts)
        await self.store.txn([SLICE.unchanged(entry), ALIVE.exists(node=node)], [*then, put])
        return record is not None

    async def crash(self, node: str, artifact: str, number: int, why: str = "it crashed") -> None:
        entry = await SLICE.get(self.store, node=node, artifact=artifact)
        assert entry is not None
        failed = msgspec.structs.replace(entry.value.each()[number], state=S.FAILED, why=why)
        record = changed_record(entry.value, {number: failed}, at=self.clock.wall())
        assert record is not None
        ends = [ENDPOINT.delete(artifact=artifact, method=method, instance=number) for method in METHODS]
        await self.store.txn([SLICE.unchanged(entry)], [*ends, Put(entry.key, SLICE.encode(record))])

    # What is watched all the time

    async def watch(self) -> None:
        now: dict[str, dict[int, SliceInstance]] = {}
        async with self.store.watch(SLICE.prefix(), start_revision=1) as events:
            async for event in events:
                parts = SLICE.parse(event.kv.key)
                old = now.get(event.kv.key, {})
                new = dict(SLICE.entry(event.kv).value.each()) if event.type == "put" else {}
                now[event.kv.key] = new
                dead = await ALIVE.get(self.store, node=parts["node"]) is None
                for number in {**old, **new}:
                    was, one = old.get(number), new.get(number)
                    states = (None if was is None else was.state, None if one is None else one.state)
                    if states[0] is not states[1] and not may_move(*states, node_dead=dead):
                        self.wrong.append(f"{event.kv.key} {number}: {states[0]} to {states[1]}")
                self._count(now, parts["artifact"])

    def _count(self, now: dict[str, dict[int, SliceInstance]], artifact: str) -> None:
        numbers: dict[int, str] = {}
        base, ready, there = artifact.rpartition(":")[0], 0, 0
        for key, instances in now.items():
            if key.endswith(f"/{artifact}"):
                for number in instances:
                    if number in numbers:
                        self.wrong.append(f"{artifact} {number}: on {numbers[number]} and {key}")
                    numbers[number] = key
            if f"/{base}:" in key:
                ready += sum(one.state is S.ACTIVE and one.ready for one in instances.values())
                there += len(instances)
        self.low[base] = min(self.low.get(base, 10**9), ready)
        self.most[base] = max(self.most.get(base, 0), there)

    # What there is

    async def slices(self) -> dict[tuple[str, str, int], SliceInstance]:
        found = {}
        for entry in (await SLICE.list(self.store)).entries:
            for number, one in entry.value.each().items():
                found[entry.parts["node"], entry.parts["artifact"], number] = one
        return found

    async def ready(self, artifact: str) -> list[tuple[str, int]]:
        """Node and number of what serves."""
        return [
            (node, number)
            for (node, of, number), one in (await self.slices()).items()
            if of == artifact and one.state is S.ACTIVE and one.ready
        ]

    async def settled(self, *specs: SliceSpec) -> bool:
        """Whether exactly this runs."""
        found = await self.slices()
        wanted = {spec.artifact: spec.instances for spec in specs}
        counts = dict.fromkeys(wanted, 0)
        for (_, artifact, _), one in found.items():
            if artifact not in counts or one.state is not S.ACTIVE:
                return False
            counts[artifact] += 1
        ends = {entry.key for entry in (await ENDPOINT.list(self.store)).entries}
        return counts == wanted and ends == {
            ENDPOINT.fill(artifact=artifact, method=method, instance=number)
            for _, artifact, number in found
            for method in METHODS
        }

    async def until(self, holds: Callable[[], Awaitable[bool]], *, within: float = 120.0, what: str = "") -> None:
        ends = self.clock.now() + within
        while not await holds():
            if self._leader is not None and self._leader.done():
                self._leader.result()
            if self.clock.now() > ends:
                states = [f"{key}: {one.state} {one.why}" for key, one in sorted((await self.slices()).items())]
                raise AssertionError(f"not within {within} s: {what}; {states}; {self.told[-10:]}")
            await self.clock.sleep(0.05)
        assert self.wrong == []

    async def deployment(self, base: str) -> Deployment | None:
        entry = await DEPLOYMENT.get(self.store, base=base)
        return None if entry is None else entry.value

    async def retries(self, artifact: str) -> Retries | None:
        entry = await RETRIES.get(self.store, artifact=artifact)
        return None if entry is None else entry.value

    async def decision(self, artifact: str) -> SliceDecision | None:
        entry = await SLICE_DECISION.get(self.store, artifact=artifact)
        return None if entry is None else entry.value


@asynccontextmanager
async def staged(clock: VirtualClock, *, seed: int = 1) -> AsyncIterator[Stage]:
    async with MemoryStore(clock=clock) as store:
        stage = Stage(store, clock, random.Random(seed))
        tasks = [asyncio.create_task(stage.answer()), asyncio.create_task(stage.watch())]
        try:
            yield stage
            assert stage.wrong == []
        finally:
            await stage.depose()
            tasks += stage._busy.values()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def play(story: Callable[[Stage], Awaitable[None]], *, seed: int = 1) -> None:
    """Run it in virtual time."""
    clock = VirtualClock()

    stages: list[Stage] = []

    async def run() -> None:
        async with staged(clock, seed=seed) as stage:
            stages.append(stage)
            await story(stage)

    try:
        run_virtual(run, seed=seed)
    except BaseException as error:
        name_run(error, f"stage with seed {seed}", stages[0].store if stages else None)
        raise


def spec(artifact: str = "org:web:1", instances: int = 3, **more: Any) -> SliceSpec:
    return SliceSpec(artifact=artifact, instances=instances, **more)
