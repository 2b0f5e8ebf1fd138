"""Slices of a light blade: the agent's own decisions (`engine.slices.decide`), without processes.

A row of the blade takes the place of a process. It outlives the agent and ends with the blade's power. All steps of a
node at one instant are done together and reported in one transaction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import msgspec

from hostler.engine.deployments.state_machine import changed_record
from hostler.engine.slices.decide import WINDOW, Do, Memory, Show, decide
from hostler.errors import Damaged, HostlerError
from hostler.keys.families import ALIVE, ENDPOINT, SLICE
from hostler.model.deployment import Endpoint, SliceSettings, SliceState, base_of
from hostler.ports.slices import Life, Method, Run, Running
from hostler.ports.store import ModRevision

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hostler.keys.entry import Entry
    from hostler.model.deployment import SliceInstance, SliceRecord
    from hostler.ports.store import Comparison, Event, Lease, Operation
    from hostler.sim.fault import SliceRefuses
    from hostler.sim.world.fast_blade import LightBlade
    from hostler.sim.world.host import Life as Process

    Instance: TypeAlias = tuple[str, int]

METHODS = (Method(name="call", idempotent=True),)
_NAMES = tuple(method.name for method in METHODS)
AT_ONCE = 100
"""Most operations of one transaction."""
AGAIN = (0.2, 10.0)
"""Seconds before a failed step is retried: first and longest delay."""
_USUAL = SliceSettings()


class _Known(msgspec.Struct):
    """The agent's memory of one instance."""

    state: SliceState | None = None
    inherited: bool = False
    shown: bool = False
    right: bool = False
    failed: str = ""
    falls: list[float] = msgspec.field(default_factory=list)
    restarted: int = 0
    tries: int = 0
    due_at: float = 0.0
    busy: bool = False


class LightSlices:
    """The slices of one blade. `there` is what runs; the rest is the agent's memory, which is lost with the agent."""

    def __init__(self, blade: LightBlade) -> None:
        self._blade = blade
        self.there: dict[Instance, Running] = {}
        self._told: dict[str, Entry[SliceRecord]] = {}
        self._known: dict[Instance, _Known] = {}
        self._dirty: dict[str, None] = {}
        self._works = False

    # External events

    def power_off(self) -> None:
        """Stop everything."""
        self.there.clear()

    def crash(self, artifact: str) -> None:
        """End the processes of the artifact or slice; of all, if empty."""
        for (name, number), running in tuple(self.there.items()):
            if artifact in ("", name, base_of(name)) and running.life is Life.ACTIVE:
                ended = msgspec.structs.replace(running, life=Life.ENDED, address="", detail="it was killed")
                self.there[name, number] = ended
                self._touch(name)

    def begin(self) -> None:
        """Reset the memory for a new agent process."""
        self._told, self._known, self._dirty, self._works = {}, {}, {}, False

    def session(self) -> None:
        """Handle a new registration of the node: endpoints must be attached to the new lease."""
        for known in self._known.values():
            known.right = False

    # Input

    async def look(self, *, first: bool) -> None:
        """Read all slices of the node."""
        listing = await SLICE.list(self._blade.world.store, node=self._blade.node, strict=False)
        self._told = {SLICE.parse(entry.key)["artifact"]: entry for entry in listing.entries}
        if first:
            for artifact, entry in self._told.items():
                for number, one in entry.value.each().items():
                    self._known[artifact, number] = _Known(state=one.state, inherited=True)
        for artifact in dict.fromkeys((*self._told, *(name for name, _ in self.there))):
            self._touch(artifact)

    def heard(self, artifact: str, event: Event) -> None:
        """Handle a changed slice of the node."""
        if event.type == "delete":
            self._told.pop(artifact, None)
        else:
            try:
                self._told[artifact] = SLICE.entry(event.kv)
            except Damaged:
                return
        self._touch(artifact)

    def _touch(self, artifact: str) -> None:
        self._dirty[artifact] = None
        blade, life = self._blade, self._blade.life
        if not self._works and life is not None and not life.dead and blade.reachable:
            self._works = True
            blade.world.loop.launch(life.process, self._work(life))

    # Execution

    async def _work(self, life: Process) -> None:
        try:
            await self._blade.clock.sleep(0)
            while self._dirty and self._blade.reachable:
                artifacts, self._dirty = tuple(self._dirty), {}
                await self._pass(life, artifacts)
        finally:
            self._works = False

    async def _pass(self, life: Process, artifacts: Iterable[str]) -> None:
        """Decide about all instances of these artifacts, write the reports, and start the steps."""
        writes: list[tuple[str, dict[int, SliceInstance | None], dict[int, Show]]] = []
        begun: list[tuple[str, int, Do]] = []
        orphans: list[tuple[str, int]] = []
        wake: float | None = None
        now = self._blade.clock.now()
        for artifact in artifacts:
            changes: dict[int, SliceInstance | None] = {}
            shows: dict[int, Show] = {}
            for number in self._numbers(artifact):
                step = decide(*self._case(artifact, number, now))
                if step.do is Do.TELL:
                    changes[number] = step.instance
                    shows[number] = step.show
                elif step.do is Do.WITHDRAW:
                    orphans.append((artifact, number))
                elif step.do is Do.REST:
                    if step.at is not None:
                        wake = step.at if wake is None else min(wake, step.at)
                elif not self._known[artifact, number].busy:
                    self._known[artifact, number].busy = True
                    begun.append((artifact, number, step.do))
            if changes:
                writes.append((artifact, changes, shows))
        if begun:
            self._blade.world.loop.launch(life.process, self._do(life, begun))
        if wake is not None:
            self._blade.world.loop.launch(life.process, self._later(wake, artifacts))
        for artifact, number in orphans:
            await self._withdraw(artifact, number)
        if writes:
            await self._write(writes)

    def _numbers(self, artifact: str) -> dict[int, None]:
        entry = self._told.get(artifact)
        told = {} if entry is None else entry.value.each()
        runs = (number for name, number in self.there if name == artifact)
        return dict.fromkeys((*told, *runs))

    def _case(self, artifact: str, number: int, now: float) -> tuple[Run, SliceInstance | None, Running | None, Memory]:
        entry = self._told.get(artifact)
        one = None if entry is None else entry.value.each().get(number)
        known = self._known.setdefault((artifact, number), _Known())
        state = None if one is None else one.state
        if known.state is not state:
            keep = known.falls if state is SliceState.ACTIVE else []
            known = self._known[artifact, number] = _Known(
                state=state, shown=known.shown, right=known.right, falls=keep, busy=known.busy
            )
        memory = Memory(
            inherited=known.inherited,
            shown=known.shown,
            right=known.right,
            failed=known.failed,
            falls=sum(1 for at in known.falls if now - at < WINDOW),
            restarted=known.restarted,
            due_at=known.due_at,
            now=now,
        )
        return self._run(artifact, number, one), one, self.there.get((artifact, number)), memory

    def _run(self, artifact: str, number: int, one: SliceInstance | None) -> Run:
        entry, there = self._told.get(artifact), self.there.get((artifact, number))
        if one is None or entry is None:
            return Run(artifact=artifact, instance=number) if there is None else there.run
        settings = entry.value.settings.get(one.template, _USUAL)
        return Run(artifact=artifact, instance=number, template=one.template, settings=settings)

    async def _later(self, at: float, artifacts: Iterable[str]) -> None:
        await self._blade.clock.sleep(max(0.001, at - self._blade.clock.now()))
        for artifact in artifacts:
            self._touch(artifact)

    # Steps

    async def _do(self, life: Process, begun: list[tuple[str, int, Do]]) -> None:
        """Perform all steps at once; this takes as long as the longest of them."""
        plan, extra = self._blade.world.plan, self._blade.conditions.delay
        longest = max(plan.load_time if do is Do.LOAD else plan.start_time for _, _, do in begun)
        await self._blade.clock.sleep(longest * (0.5 + 0.5 * life.rng.random()) + extra)
        for artifact, number, do in begun:
            known = self._known.get((artifact, number))
            if known is not None:
                known.busy = False
                self._done(life, artifact, number, do, known)
            self._touch(artifact)

    def _done(self, life: Process, artifact: str, number: int, do: Do, known: _Known) -> None:
        now, blade = self._blade.clock.now(), self._blade
        if life.rng.random() < blade.conditions.errors:
            known.tries += 1
            known.due_at = now + min(AGAIN[1], AGAIN[0] * 2**known.tries)
            return
        if do is Do.RESTART:
            known.falls.append(now)
            known.due_at = now + min(AGAIN[1], AGAIN[0] * 2 ** len(known.falls))
        why = _refusal(blade.conditions.refuses, artifact, do, life)
        if why:
            if do is not Do.RESTART:
                known.failed = why
            return
        entry = self._told.get(artifact)
        one = None if entry is None else entry.value.each().get(number)
        run = self._run(artifact, number, one)
        match do:
            case Do.LOAD | Do.DEACTIVATE:
                self.there[artifact, number] = Running(run=run, life=Life.LOADED, methods=METHODS)
            case Do.ACTIVATE | Do.RESTART:
                address = f"{blade.node}:{7000 + number}"
                self.there[artifact, number] = Running(run=run, life=Life.ACTIVE, methods=METHODS, address=address)
                known.right = False
                known.restarted += do is Do.RESTART
            case Do.UNLOAD:
                self.there.pop((artifact, number), None)
            case _:
                pass

    # Reports

    async def _write(self, writes: list[tuple[str, dict[int, SliceInstance | None], dict[int, Show]]]) -> None:
        if self._blade.conditions.late:
            await self._blade.clock.sleep(self._blade.conditions.late)
        when: list[Comparison] = []
        then: list[Operation] = []
        told: list[tuple[str, dict[int, Show], dict[int, SliceInstance | None]]] = []
        for artifact, every, shows in writes:
            for changes in _parts(every):
                operations = self._operations(artifact, changes, shows)
                if operations is None:
                    continue
                if then and len(then) + len(operations[1]) > AT_ONCE:
                    await self._txn(when, then, told)
                    when, then, told = [], [], []
                when.append(operations[0])
                then += operations[1]
                told.append((artifact, shows, changes))
                if len(changes) < len(every):
                    await self._txn(when, then, told)  # the rest follows when this write has been seen
                    when, then, told = [], [], []
                    break
        if then:
            await self._txn(when, then, told)

    def _operations(
        self, artifact: str, changes: dict[int, SliceInstance | None], shows: dict[int, Show]
    ) -> tuple[Comparison, list[Operation]] | None:
        entry, lease, node = self._told.get(artifact), self._blade.lease, self._blade.node
        if entry is None or lease is None:
            return None
        record = changed_record(entry.value, changes, at=self._blade.clock.wall(), methods=_NAMES)
        then: list[Operation] = [
            SLICE.delete(node=node, artifact=artifact)
            if record is None
            else SLICE.put(record, node=node, artifact=artifact)
        ]
        for number in changes:
            then += self._endpoints(artifact, number, shows[number], lease)
        return SLICE.unchanged(entry), then

    def _endpoints(self, artifact: str, number: int, show: Show, lease: Lease) -> list[Operation]:
        running = self.there.get((artifact, number))
        if show is Show.PUT and running is not None:
            shown = Endpoint(
                node_id=self._blade.node,
                instance=number,
                state=SliceState.ACTIVE,
                address=running.address,
                idempotent=True,
            )
            return [
                ENDPOINT.put(shown, lease=lease, artifact=artifact, method=name, instance=number) for name in _NAMES
            ]
        if show is Show.DROP and self._is_ours(artifact, number):
            return [ENDPOINT.delete(artifact=artifact, method=name, instance=number) for name in _NAMES]
        return []

    async def _withdraw(self, artifact: str, number: int) -> None:
        """Withdraw the endpoints of an instance without a key, unless its number is now on another node."""
        blade = self._blade
        self._dirty[artifact] = None
        try:
            when: list[Comparison] = [ModRevision(ALIVE.fill(node=blade.node)) == blade.registered]
            then: list[Operation] = []
            for name in _NAMES:
                entry = await ENDPOINT.get(blade.world.store, artifact=artifact, method=name, instance=number)
                if entry is not None and entry.value.node_id == blade.node:
                    when.append(ENDPOINT.unchanged(entry))
                    then.append(ENDPOINT.delete(artifact=artifact, method=name, instance=number))
            done = not then or (await blade.world.store.txn(when, then)).succeeded
        except HostlerError:
            done = False
        if done:
            known = self._known.setdefault((artifact, number), _Known())
            known.shown = known.right = False
        else:
            await blade.clock.sleep(0.05)

    def _is_ours(self, artifact: str, number: int) -> bool:
        """Return whether the key of this node has that number; no other node can have it then."""
        entry = self._told.get(artifact)
        return entry is not None and number in entry.value.each()

    async def _txn(
        self,
        when: list[Comparison],
        then: list[Operation],
        told: list[tuple[str, dict[int, Show], dict[int, SliceInstance | None]]],
    ) -> None:
        """Commit reports. A report that was overtaken is decided again after its event."""
        blade = self._blade
        if not blade.reachable or not blade.registered:
            return
        guard = ModRevision(ALIVE.fill(node=blade.node)) == blade.registered
        try:
            result = await blade.world.store.txn([*when, guard], then)
        except HostlerError:
            result = None
        if result is None or not result.succeeded:
            for artifact, _, _ in told:
                self._dirty[artifact] = None
            await blade.clock.sleep(0.05)
            return
        for artifact, shows, changes in told:
            for number, one in changes.items():
                known = self._known.setdefault((artifact, number), _Known())
                if shows[number] is Show.PUT:
                    known.shown, known.right, known.restarted = True, True, 0
                elif shows[number] is Show.DROP:
                    known.shown = known.right = False
                if one is None:
                    self._known.pop((artifact, number), None)


def _parts(changes: dict[int, SliceInstance | None]) -> list[dict[int, SliceInstance | None]]:
    """Split changes so that each part fits into one transaction."""
    most = AT_ONCE // (1 + len(METHODS))
    items = list(changes.items())
    return [dict(items[at : at + most]) for at in range(0, len(items), most)]


def _refusal(refuses: tuple[SliceRefuses, ...], artifact: str, do: Do, life: Process) -> str:
    """Return why a step fails permanently; empty: it does not."""
    steps = {"load": (Do.LOAD,), "activate": (Do.ACTIVATE, Do.RESTART)}
    for fault in refuses:
        concerned = fault.artifact in ("", artifact, base_of(artifact)) and do in steps[fault.step]
        if concerned and life.rng.random() < fault.chance:
            return f"{artifact}: cannot be {'loaded' if fault.step == 'load' else 'started'} (simulated)"
    return ""
