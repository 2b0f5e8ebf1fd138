"""A scene for the slices of one node: a store that can fail, an agent that can be killed, and a leader's hand.

Every revision is looked at: an endpoint that stands for what is not active, or for a node without a lease, is written
down as it comes to be.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from hostler.drivers.machines.simulated import MemoryHost, SimulatedMachines
from hostler.drivers.slices.simulated import SimulatedSlices, SliceHost, SliceTimes
from hostler.drivers.store.faulty import FaultyStore
from hostler.drivers.store.memory import MemoryStore
from hostler.engine.agent.agent import Agent
from hostler.engine.agent.config import AgentConfig, NodeEnv
from hostler.engine.deployments.state_machine import Limits, changed_record
from hostler.keys.families import ALIVE, ENDPOINT, SLICE
from hostler.kit.virtual_loop import VirtualClock, run_virtual
from hostler.model.deployment import SliceInstance, SliceSettings, SliceState, may_move

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from hostler.keys.entry import Entry
    from hostler.model.deployment import Endpoint, SliceRecord
    from hostler.ports.store import Event, Store

S = SliceState
A = "org:hello:1"
NODE = "a"
TTL = 15.0
OPEN = (S.ACTIVATING, S.ACTIVE, S.DEACTIVATE)
LIMITS = Limits(loading=20.0, activating=10.0, deactivating=5.0, unloading=20.0)
replace = msgspec.structs.replace


class Audit:
    """What must be true at every revision, looked at as the store itself tells it."""

    def __init__(self) -> None:
        self.slices: dict[str, SliceRecord] = {}
        self.endpoints: dict[str, tuple[int | None, Endpoint]] = {}
        self.alive: set[str] = set()
        self.wrong: list[str] = []
        self.writes = 0
        """Transactions that touched a slice key."""
        self.walked: list[tuple[str, int, SliceState | None]] = []

    def take(self, events: list[Event]) -> None:
        """One transaction."""
        writes = 0
        for event in events:
            key, put = event.kv.key, event.type == "put"
            if SLICE.match(key) is not None:
                writes = 1
                self._slice(key, SLICE.entry(event.kv).value if put and _readable(event) else None)
            elif ENDPOINT.match(key) is not None:
                if put:
                    self.endpoints[key] = event.kv.lease, ENDPOINT.entry(event.kv).value
                else:
                    self.endpoints.pop(key, None)
            elif ALIVE.match(key) is not None:
                (self.alive.add if put else self.alive.discard)(ALIVE.parse(key)["node"])
        self.writes += writes
        revision = events[-1].kv.mod_revision
        for key, (lease, endpoint) in self.endpoints.items():
            artifact = ENDPOINT.parse(key)["artifact"]
            record = self.slices.get(SLICE.fill(node=endpoint.node_id, artifact=artifact))
            one = None if record is None else record.each().get(endpoint.instance)
            if one is None or one.state not in OPEN:
                self.wrong.append(f"{revision}: {key} stands, and its instance is {one}")
            elif not one.ready:
                self.wrong.append(f"{revision}: {key} stands, and its instance is not ready")
            if endpoint.node_id not in self.alive or lease is None:
                self.wrong.append(f"{revision}: {key} stands, and its node has no lease")

    def _slice(self, key: str, record: SliceRecord | None) -> None:
        old = self.slices.pop(key, None)
        if record is not None:
            self.slices[key] = record
        before = {} if old is None else old.each()
        after = {} if record is None else record.each()
        for number in {**before, **after}:
            was, now = before.get(number), after.get(number)
            one, other = None if was is None else was.state, None if now is None else now.state
            if one is not other:
                self.walked.append((key, number, other))
                if not may_move(one, other):
                    self.wrong.append(f"{key}#{number}: went from {one} to {other}")


def _readable(event: Event) -> bool:
    return event.kv.value.startswith(b'{"')


class Scene:
    def __init__(self, bare: MemoryStore, store: FaultyStore, clock: VirtualClock, rng: random.Random) -> None:
        self.bare, self.store, self.clock, self.rng = bare, store, clock, rng
        self.machines_at, self.place = MemoryHost("place"), SliceHost("a.example")
        self.times = SliceTimes()
        self.agent: Agent
        self.slices: SimulatedSlices
        self._ids = itertools.count(1)
        self._task: asyncio.Task[None] | None = None

    async def start(self, store: Store | None = None, **plan: Any) -> None:
        """Start an agent on what runs."""
        machines = SimulatedMachines(self.machines_at, clock=self.clock, rng=self.rng, fences=False)
        await machines.__aenter__()
        self.slices = SimulatedSlices(
            self.place, clock=self.clock, rng=random.Random(self.rng.random()), times=self.times
        )
        env = NodeEnv(
            store=store or self.store,
            machines=machines,
            config=AgentConfig(node=NODE, node_ttl=TTL, **plan),
            clock=self.clock,
            rng=random.Random(self.rng.random()),
            new_id=lambda: f"id-{next(self._ids)}",
        )
        self.agent = Agent(env, slices=self.slices, limits=LIMITS)
        self._task = asyncio.create_task(self.agent.run(), name="agent")

    async def kill(self) -> None:
        """As by SIGKILL; what runs runs on."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
            self._task = None
            await self.slices.aclose()
            self.machines_at.disown()

    async def restart(self, **plan: Any) -> None:
        await self.kill()
        await self.start(**plan)

    @property
    def keeper(self) -> Any:
        return self.agent.slices

    # The leader's hand

    async def entry(self, artifact: str = A) -> Entry[SliceRecord] | None:
        return await SLICE.get(self.bare, node=NODE, artifact=artifact)

    async def one(self, number: int = 1, artifact: str = A) -> SliceInstance | None:
        entry = await self.entry(artifact)
        return None if entry is None else entry.value.each().get(number)

    async def state(self, number: int = 1, artifact: str = A) -> SliceState | None:
        one = await self.one(number, artifact)
        return None if one is None else one.state

    async def command(
        self,
        state: SliceState,
        *numbers: int,
        artifact: str = A,
        settings: dict[int, SliceSettings] | None = None,
        **fields: Any,
    ) -> None:
        """Write a command of the leader's."""
        while True:
            entry = await self.entry(artifact)
            record = None if entry is None else entry.value
            each = {} if record is None else record.each()
            changes = {
                number: replace(each[number], state=state, **fields)
                if number in each
                else SliceInstance(state=state, **fields)
                for number in numbers or (1,)
            }
            new = changed_record(record, changes, at=self.clock.wall(), settings=settings)
            assert new is not None
            parts = {"node": NODE, "artifact": artifact}
            when = [SLICE.absent(**parts)] if entry is None else [SLICE.unchanged(entry)]
            if (await self.bare.txn(when, [SLICE.put(new, **parts)])).succeeded:
                return

    async def endpoints(self, artifact: str = A) -> dict[str, Endpoint]:
        """By `method:instance`."""
        listing = await ENDPOINT.list(self.bare)
        return {
            f"{entry.parts['method']}:{entry.parts['instance']}": entry.value
            for entry in listing.entries
            if entry.parts["artifact"] == artifact
        }

    async def until(self, holds: Callable[[], Any], within: float = 60.0) -> float:
        """Until it holds; how long that took."""
        began = self.clock.now()
        while True:
            held = holds()
            if asyncio.iscoroutine(held):
                held = await held
            if held:
                return self.clock.now() - began
            entry = await self.entry()
            assert self.clock.now() - began < within, f"not within {within} s: {None if entry is None else entry.value}"
            await self.clock.sleep(0.02)

    async def reach(
        self, state: SliceState | None, *numbers: int, artifact: str = A, within: float = 60.0
    ) -> SliceInstance | None:
        """Until the instances are in that state; the first of them."""

        async def there() -> bool:
            entry = await self.entry(artifact)
            each = {} if entry is None else entry.value.each()
            found = [each.get(number) for number in numbers or (1,)]
            return all((None if one is None else one.state) is state for one in found)

        await self.until(there, within)
        return await self.one((numbers or (1,))[0], artifact)

    async def is_published(self, *numbers: int) -> bool:
        """Whether these and no others can be called where they are, and the store says that they are well."""
        found = await self.endpoints()
        if {endpoint.instance for endpoint in found.values()} != set(numbers):
            return False
        each = [await self.one(number) for number in numbers]
        if not all(one is not None and one.state is S.ACTIVE and one.ready for one in each):
            return False
        return all(
            endpoint.address == self.place.rows[f"{A}#{endpoint.instance}"].address for endpoint in found.values()
        )

    async def active(self, *numbers: int, artifact: str = A, **fields: Any) -> None:
        """Walk instances up to ACTIVE."""
        await self.command(S.LOAD, *numbers, artifact=artifact, **fields)
        await self.reach(S.LOADED, *numbers, artifact=artifact)
        await self.command(S.ACTIVATE, *numbers, artifact=artifact)
        await self.reach(S.ACTIVE, *numbers, artifact=artifact)

    async def audited(self) -> Audit:
        """The audit of everything that was written until now."""
        audit = Audit()
        last = await self.bare.put("audited", b"")
        events: list[Event] = []
        async with self.bare.watch("", start_revision=1) as watch:
            async for event in watch:
                if events and events[-1].kv.mod_revision != event.kv.mod_revision:
                    audit.take(events)
                    events = []
                events.append(event)
                if event.kv.mod_revision >= last:
                    return audit
        raise AssertionError("unreachable")


@asynccontextmanager
async def scene(seed: int = 0) -> AsyncIterator[Scene]:
    clock, rng = VirtualClock(), random.Random(seed)
    bare = MemoryStore(clock=clock)
    store = FaultyStore(bare, random.Random(rng.random()), clock=clock)
    async with store:
        it = Scene(bare, store, clock, rng)
        try:
            yield it
        finally:
            await it.kill()


def played(play: Callable[[Scene], Awaitable[None]], seed: int = 0, *, audit: bool = True) -> None:
    """Play it in virtual time; at the end every revision is looked at."""

    async def main() -> None:
        async with scene(seed) as it:
            await play(it)
            if audit:
                assert (await it.audited()).wrong == []

    run_virtual(main, seed=seed)


class Hand:
    """A leader that walks instances up or down, and unloads what failed."""

    def __init__(self, it: Scene, *numbers: int) -> None:
        self._it, self._numbers = it, numbers

    async def up(self, *, published: bool = False) -> None:
        """Until all are active and ready; `published`: and can be called."""
        ways = {None: S.LOAD, S.LOADED: S.ACTIVATE, S.FAILED: S.UNLOAD}
        await self._walk(ways, S.ACTIVE)
        while published and not await self._it.is_published(*self._numbers):
            await self._it.clock.sleep(0.1)
            await self._walk(ways, S.ACTIVE)

    async def down(self) -> None:
        """Until all are gone."""
        ways = {S.ACTIVE: S.DEACTIVATE, S.LOADED: S.UNLOAD, S.FAILED: S.UNLOAD, S.LOAD: S.UNLOAD}
        await self._walk(ways, None)  # type: ignore[arg-type]

    async def _walk(self, ways: dict[SliceState | None, SliceState], goal: SliceState | None) -> None:
        began = self._it.clock.now()
        while True:
            entry = await self._it.entry()
            each = {} if entry is None else entry.value.each()
            left = 0
            for number in self._numbers:
                one = each.get(number)
                state = None if one is None else one.state
                left += state is not goal or (one is not None and not one.ready)
                if state in ways and state is not goal:
                    await self._it.command(ways[state], number)
            if not left:
                return
            assert self._it.clock.now() - began < 300, f"no rest: {each}"
            await self._it.clock.sleep(0.1)
