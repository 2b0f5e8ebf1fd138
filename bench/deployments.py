"""Throughput of deployments: a million instances from an empty cluster, and the cost of one node failure.

The leader's real controller runs on a real store. The nodes are simulated: every slice key is answered as an agent
answers it, state by state, with compare-and-set, and with the endpoints before ACTIVE; nothing is executed. A node
answers all pending requests in as few transactions as the engine's limit of operations allows; no transaction spans two
nodes. An instance counts once its node has written ACTIVE.
"""

from __future__ import annotations

import asyncio
import resource
import statistics
import tempfile
from collections import Counter
from contextlib import asynccontextmanager
from pathlib import Path
from time import perf_counter, process_time, time
from typing import TYPE_CHECKING, Any, cast

import click
import msgspec

from bench.deployments_bare import bound, noted_on
from bench.leading import lead
from bench.options import parts_option, report_options
from bench.plane_fill import fill_nodes, node
from bench.plane_http import until
from bench.report import Row, report
from hostler.engine.deployments.call_metrics import Measured
from hostler.engine.deployments.state_machine import changed_record
from hostler.entry.cli.progress import Ticker
from hostler.errors import Invalid, Missed, Unavailable, Uncertain
from hostler.keys.families import ALIVE, BLUEPRINT, BLUEPRINT_HISTORY, ENDPOINT, SLICE, SLICE_OWNER
from hostler.kit.tasks import run_together
from hostler.model.deployment import Blueprint, Endpoint, SliceRecord, SliceSpec, SliceState
from hostler.model.rollout import BlueprintRevision, SliceOwner
from hostler.ports.store import Delete, ModRevision, Put
from hostler.wiring import open_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from bench.deployments_bare import Bound, Noted
    from hostler.model.deployment import SliceInstance
    from hostler.ports.store import Event, KeyValue, Operation, Store

WANTED = 4_000
MEMORY = 6.0
AT_ONCE = 256
"""Concurrent transactions of nodes."""
AT_ONCE_ETCD = 8
"""Same limit on etcd: more would queue up in etcd, while requests that wait here are answered together."""
PATIENCE = 1_800.0
METHOD = "process"
DEATHS = 6
PAUSE = 0.2
BATCH = 100
"""Most operations per transaction of a node; etcd allows 128."""
_SLICES = SLICE.prefix()
_ANSWERS = {
    SliceState.LOAD: (SliceState.LOADING, SliceState.LOADED),
    SliceState.ACTIVATE: (SliceState.ACTIVATING, SliceState.ACTIVE),
    SliceState.DEACTIVATE: (SliceState.DEACTIVATING, SliceState.LOADED),
    SliceState.UNLOAD: (SliceState.UNLOADING, None),
}


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The size of the benchmark."""

    parts: tuple[str, ...] = ("embedded", "etcd", "loss")
    nodes: int = 5_000
    instances: int = 1_000_000
    blueprints: int = 50
    etcd: str = ""
    """URL of an etcd; empty: that part is left out."""
    etcd_instances: int = 100_000
    curve: tuple[int, ...] = (500, 5_000)


async def measure(plan: Plan, tell: Callable[[str], None]) -> list[Row]:
    """Run all parts of the plan."""
    rows: list[Row] = []
    if "embedded" in plan.parts:
        with tempfile.TemporaryDirectory(prefix="hostler-bench-") as folder:
            url = f"sqlite://{Path(folder) / 'bench.db'}"
            rows += await _measure_store(url, plan, plan.instances, "embedded store", tell)
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
        rows.append(Row(what="memory, leader and nodes", found=peak, unit="GiB", wanted=MEMORY, at_most=True))
    if "etcd" in plan.parts and plan.etcd:
        rows += await _measure_store(plan.etcd, plan, plan.etcd_instances, "etcd", tell, AT_ONCE_ETCD)
    if "loss" in plan.parts:
        rows += await _losses(plan, tell)
    return rows


async def _measure_store(  # noqa: PLR0917  (where, how much, how)
    url: str, plan: Plan, instances: int, where: str, tell: Callable[[str], None], at_once: int = AT_ONCE
) -> list[Row]:
    async with open_store(url) as store:
        if (
            await store.range("", limit=1, keys_only=True)
        ).items:  # existing records would be counted, or waited for in vain
            raise Invalid(f"bench deployments: the store ({where}) is not empty; give an empty one")
        await fill_nodes(store, plan.nodes)
        noted = noted_on(url, store)
        async with _cluster(store if noted is None else cast("Store", noted), at_once) as nodes:
            began, worked = perf_counter(), process_time()
            await _deploy(store, nodes, blueprints=plan.blueprints, instances=instances, where=f"{where}: ", tell=tell)
            seconds, spent = perf_counter() - began, process_time() - worked
        what = f"{instances:,} instances on {plan.nodes:,} nodes, {where}"
        done = Row(what=what, found=instances / seconds, unit="per second", wanted=WANTED)
        cost = Row(what=f"processor time of each, {where}", found=spent / instances * 1e6, unit="µs")
        if noted is None:
            return [done, cost]
        tell(f"{where}: the same transactions by a bare client")
        return _rows(done, cost, noted, await bound(url, store, noted), instances, where)


def _rows(  # noqa: PLR0917  (ours, theirs, of how many)
    done: Row, cost: Row, noted: Noted, bare: Bound, instances: int, where: str
) -> list[Row]:
    """Return the rows, compared with what a bare client reaches with the same transactions."""
    against = "the same transactions, bare"
    other, other_cost = instances * bare.share, bare.cpu / instances * 1e6
    sent = len(noted.shapes)
    return [
        msgspec.structs.replace(
            done, against=against, other=other, ratio=done.found / other, cpu_ratio=other_cost / cost.found
        ),
        msgspec.structs.replace(cost, against=against, other=other_cost),
        Row(what=f"transactions, {where}", found=sent, unit=f"of {noted.operations / sent:.1f} operations"),
    ]


async def _losses(plan: Plan, tell: Callable[[str], None]) -> list[Row]:
    """Measure a node failure with the same number of slices on the node, in clusters of different sizes."""
    costs: list[float] = []
    rows: list[Row] = []
    for size in plan.curve:
        async with open_store("memory://") as store:
            await fill_nodes(store, size)
            async with _cluster(store, AT_ONCE) as nodes:
                await _deploy(store, nodes, blueprints=20, instances=size * 20, where=f"{size:,} nodes: ", tell=tell)
                each = [await _lost(store, nodes, node(number).node, size * 20) for number in range(DEATHS)]
                costs.append(statistics.median(each[1:]))  # the first one also completes work that the start left over
        rows.append(
            Row(
                what=f"one of {size:,} nodes dies, with 20 instances",
                found=costs[-1] * 1000,
                unit="ms",
                wanted=costs[0] * 3000 if len(costs) > 1 else None,
                at_most=True,
            )
        )
    return rows


async def _lost(store: Store, nodes: Nodes, dead: str, instances: int) -> float:
    """Return the processor seconds until everything that was on the node runs elsewhere."""
    nodes.dead.add(dead)
    worked = process_time()
    await store.delete(ALIVE.fill(node=dead))
    await _wait_until_settled(nodes, instances, lambda _: None, "")
    return process_time() - worked


@asynccontextmanager
async def _cluster(store: Store, at_once: int) -> AsyncIterator[Nodes]:
    """Run a leader and its nodes."""

    nodes = Nodes(store, at_once)
    nodes.answering = asyncio.create_task(nodes.run(), name="bench: nodes")
    try:
        async with lead(store, lambda graph: (graph.deployment_controller(lambda _: Measured()),)):
            yield nodes
    finally:
        nodes.answering.cancel()
        await asyncio.gather(nodes.answering, return_exceptions=True)


async def _deploy(
    store: Store, nodes: Nodes, *, blueprints: int, instances: int, where: str, tell: Callable[[str], None]
) -> None:
    """Apply the blueprints, as the service does, and wait until every instance is active."""
    for number in range(blueprints):
        each = instances // blueprints + (number < instances % blueprints)
        name, spec = f"blueprint-{number}", SliceSpec(artifact=f"bench:slice-{number}:1.0.0", instances=each)
        blueprint = Blueprint(slices=(spec,))
        revision = BlueprintRevision(number=1, blueprint=blueprint, by="bench", at=time())
        await store.txn(
            [BLUEPRINT.absent(blueprint=name)],
            [
                BLUEPRINT.put(blueprint, blueprint=name),
                BLUEPRINT_HISTORY.put(revision, blueprint=name, number=1),
                SLICE_OWNER.put(SliceOwner(blueprint=name, number=1), base=spec.base),
            ],
        )
    await _wait_until_settled(nodes, instances, tell, where)


async def _wait_until_settled(nodes: Nodes, instances: int, tell: Callable[[str], None], where: str) -> None:
    async def done() -> bool:
        nodes.check()
        tell(f"{where}{nodes.count:,} of {instances:,} instances are active")
        buried = not any(nodes.keys_on[dead] for dead in nodes.dead)
        return nodes.count >= instances and buried and not nodes.busy

    await until(f"{instances:,} instances", done, PATIENCE)


class Nodes:
    """The answers of all nodes. Each node handles one batch at a time: everything requested since its last one."""

    def __init__(self, store: Store, at_once: int) -> None:
        self._store, self._at_once = store, at_once
        self._waiting: dict[str, dict[str, KeyValue]] = {}
        """Requests that are not handled yet, by node and slice key."""
        self._turns: asyncio.Queue[str] = asyncio.Queue()
        """Nodes with requests."""
        self._wrote: dict[str, int] = {}
        """The revision of each node's last write, by slice key: events up to it request nothing."""
        self.busy = 0
        self.dead: set[str] = set()
        self.active: dict[str, int] = {}
        """Active instances by slice key."""
        self.keys_on: Counter[str] = Counter()
        """Number of slice keys with active instances, by node."""
        self.count = 0
        self.answering: asyncio.Task[None] | None = None

    def check(self) -> None:
        """Raise the error that ended the answers, if any: waiting would never end."""
        if self.answering is not None and self.answering.done():
            self.answering.result()

    async def run(self) -> None:
        """Run until cancelled."""
        workers = {f"node {n}": self._work() for n in range(self._at_once)}
        await run_together("bench", {"listening": self._listen(), **workers})

    async def _listen(self) -> None:
        while True:
            try:
                start = await self._read()
                async with self._store.watch(SLICE.prefix(), start_revision=start, previous=False) as watch:
                    async for event in watch:
                        self._heard(event)
            except Missed:
                continue  # too many events: read everything again, and continue from there

    async def _read(self) -> int:
        """Read all slice keys. Return the revision to watch from."""
        after, revision = None, 0
        while True:
            page = await self._store.range(SLICE.prefix(), after=after, limit=1_000)
            revision = revision or page.revision
            for kv in page.items:
                self._ask(kv)
            if not page.more:
                return revision + 1
            after = page.items[-1].key

    def _heard(self, event: Event) -> None:
        if event.type == "delete":
            self._is_active(event.kv.key, 0)
        if event.kv.mod_revision > self._wrote.get(event.kv.key, 0):
            self._ask(event.kv)

    def _ask(self, kv: KeyValue) -> None:
        name = _node_of(kv.key)
        asked = self._waiting.setdefault(name, {})
        if not asked:
            self._turns.put_nowait(name)
        asked[kv.key] = kv

    def _is_active(self, key: str, number: int) -> None:
        before = self.active.pop(key, 0)
        self.count += number - before
        self.keys_on[_node_of(key)] += bool(number) - bool(before)
        if number:
            self.active[key] = number

    async def _work(self) -> None:
        while True:
            name = await self._turns.get()
            self.busy += 1
            try:
                await self._answer(self._waiting.pop(name), alive=name not in self.dead)
            finally:
                self.busy -= 1

    async def _answer(self, waiting: dict[str, KeyValue], *, alive: bool) -> None:
        """Write two steps of each key, in as few transactions as the limit of operations allows."""
        asked = [one for kv in waiting.values() if alive and (one := _Asked.of(kv)) is not None]
        while asked:
            room = BATCH
            batch: list[_Asked] = []
            while asked and (not batch or asked[-1].operations <= room):
                room -= asked[-1].operations
                batch.append(asked.pop())
            await self._go_on(batch, 0)

    async def _go_on(self, batch: list[_Asked], first: int) -> None:
        for step in range(first, 2):
            revision = await self._write(batch, [operation for one in batch for operation in one.step(step)])
            if revision is None:  # one of them has changed, and its event will come; the others are written one by one
                for one in batch if len(batch) > 1 else ():
                    await self._go_on([one], step)
                return
            for one in batch:
                one.done(revision)
                self._wrote[one.key] = revision
        for one in batch:
            self._is_active(one.key, one.active)

    async def _write(self, batch: list[_Asked], then: list[Operation]) -> int | None:
        """Return the revision; None: a key has changed. After an outage, check what was written and try again."""
        first = batch[0]
        while True:
            try:
                result = await self._store.txn([ModRevision(one.key) == one.revision for one in batch], then)
            except (Unavailable, Uncertain):
                await asyncio.sleep(PAUSE)
                found = await self._store.get(first.key)
                if found is not None and found.mod_revision == first.revision:
                    continue
                return first.wrote(found)
            return result.revision if result.succeeded else None


class _Asked:
    """The request of one slice key to its node."""

    def __init__(self, key: str, record: SliceRecord, revision: int) -> None:
        self.key, self.revision = key, revision
        self._parts: dict[str, Any] = dict(SLICE.parse(key))
        self._record: SliceRecord | None = record
        self._following: SliceRecord | None = None
        self._instances = {n: one for n, one in record.each().items() if one.state in _ANSWERS}
        self.operations = 1 + len(self._instances)
        """Operations of the largest step: the record and the endpoints."""

    @classmethod
    def of(cls, kv: KeyValue) -> _Asked | None:
        """Return the request; None: nothing is requested."""
        record = SLICE.decode(kv.value) if kv.value else None
        found = None if record is None else cls(kv.key, record, kv.mod_revision)
        return found if found is not None and found.operations > 1 else None

    def step(self, step: int) -> list[Operation]:
        """Return the node's next write."""
        changes = {number: _with_state(one, _ANSWERS[one.state][step]) for number, one in self._instances.items()}
        then: list[Operation] = _endpoints(self._parts, changes) if step == 1 else []
        if self._record is not None:
            self._following = changed_record(self._record, changes, at=int(time()))
        following = self._following
        then.append(Delete(self.key) if following is None else Put(self.key, SLICE.encode(following)))
        return then

    def wrote(self, found: KeyValue | None) -> int | None:
        """Return the revision if the value is the node's last write; None: it is not."""
        if found is None or self._following is None or found.value != self._following.encode():
            return None
        return found.mod_revision

    def done(self, revision: int) -> None:
        """Record that the step was written."""
        self._record, self.revision = self._following, revision

    @property
    def active(self) -> int:
        """Return the number of active instances."""
        each = () if self._record is None else self._record.each().values()
        return sum(1 for one in each if one.state is SliceState.ACTIVE)


def _node_of(key: str) -> str:
    return key[len(_SLICES) :].partition("/")[0]


def _with_state(one: SliceInstance, state: SliceState | None) -> SliceInstance | None:
    return None if state is None else msgspec.structs.replace(one, state=state, since=0)


def _endpoints(parts: dict[str, Any], changes: Mapping[int, SliceInstance | None]) -> list[Operation]:
    found: list[Operation] = []
    for number, one in changes.items():
        if one is not None and one.state is SliceState.ACTIVE:
            there = Endpoint(node_id=parts["node"], instance=number, state=one.state, address="127.0.0.1:9")
            found.append(ENDPOINT.put(there, artifact=parts["artifact"], method=METHOD, instance=number))
    return found


PARTS = ("embedded", "etcd", "loss")


@click.command("deployments")
@parts_option(PARTS)
@click.option("--nodes", type=click.IntRange(min=2), default=5_000, show_default=True, help="Simulated nodes.")
@click.option(
    "--instances", type=click.IntRange(min=1), default=1_000_000, show_default=True, help="On the embedded store."
)
@click.option("--blueprints", type=click.IntRange(min=1), default=50, show_default=True, help="Number of blueprints.")
@click.option("--etcd", default="", help="URL of an etcd. Without it, the etcd part is left out.")
@click.option("--etcd-instances", type=click.IntRange(min=1), default=100_000, show_default=True, help="On etcd.")
@report_options
def command(json_file: Path | None, markdown_file: Path | None, **sizes: object) -> None:
    """Measure deployments: a million slice instances on an empty cluster, and the cost of losing one node."""
    with Ticker() as ticker:
        rows = asyncio.run(measure(Plan(**sizes), ticker.tell))  # type: ignore[arg-type]
    report("deployments", rows, json_file, markdown_file)
