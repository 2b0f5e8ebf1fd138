"""The benchmark of one store: clients that repeat one operation, in rounds in which two sides alternate.

Hosts are noisy, so nothing is measured once: two sides alternate in short rounds, and medians are compared. The other
side is a second store, or what the caller gives: `python -m bench store` gives the engine below the driver.
"""

from __future__ import annotations

import asyncio
import secrets
import statistics
from contextlib import AsyncExitStack
from time import perf_counter, process_time
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from hostler.ports.store import Put, Version
from hostler.wiring import open_store

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from hostler.ports.store import Store, Watch

Operation: TypeAlias = "Callable[[int, int], Awaitable[object]]"
"""One operation of client `number`, its `turn`-th."""

Baseline: TypeAlias = "Callable[[str], AbstractAsyncContextManager[Mapping[str, Operation]]]"
"""Opens the engine below the store: the same operations by name, on keys below the given prefix."""

ROUND = 0.25
BREATH = 16
"""Operations after which a client yields to the others: some engines answer without ever waiting."""
WATCHERS = 1_000
SETTLE = 0.5
VALUE = b'{"name":"vm-0042","node":"rack1-blade7","power":"on","image":"debian-12","memory_mib":2048,"labels":{"a":1}}'
KEYS = 1_000
"""Keys of the range; gets read one of them, puts overwrite one."""


class Figure(msgspec.Struct, frozen=True):
    """The results of one side. Times in microseconds; `per_second` and `cpu_us` are medians over the rounds.

    `cpu_us` is the processor time of this process per operation, in all its threads. On a busy host it is the most
    reliable figure.
    """

    per_second: float
    cpu_us: float
    p50_us: float
    p99_us: float
    count: int


class Round(msgspec.Struct, frozen=True):
    """One round of one side: `times` are seconds."""

    per_second: float
    cpu_us: float
    times: list[float]


class Row(msgspec.Struct, frozen=True):
    """One line of the result: a store, the side it is compared with, and `ratio`, the store's rate over the other's."""

    name: str
    clients: int
    ours: Figure
    other: Figure | None = None
    against: str = ""

    @property
    def ratio(self) -> float | None:
        """Return how many times as fast as the other side the store is."""
        return None if self.other is None else self.ours.per_second / self.other.per_second

    @property
    def cpu_ratio(self) -> float | None:
        """Return how many times as much the store does with the same processor time."""
        return None if self.other is None else self.other.cpu_us / self.ours.cpu_us


class Plan(msgspec.Struct, frozen=True):
    """What to measure."""

    url: str
    seconds: float
    clients: tuple[int, ...]
    peer: str | None = None


async def run(plan: Plan, tell: Callable[[str], None], baseline: Baseline | None = None) -> list[Row]:
    """Measure everything in the plan. All keys are below one new prefix, which is deleted at the end."""
    root = f"/hostler-bench/{secrets.token_hex(4)}/"
    rows: list[Row] = []
    async with open_store(plan.url) as store:
        await prepare_store(store, root)
        try:
            if baseline is None:
                rows += await _operation_rows(plan, operations(store, root), None, tell)
            else:
                async with baseline(root) as theirs:
                    rows += await _operation_rows(plan, operations(store, root), theirs, tell)
            for clients in plan.clients:
                tell(f"watch, {clients} clients")
                rows += await _watch_rows(store, root, clients, plan.seconds)
            rows += await _watcher_rows(plan, store, root, tell)
            if plan.peer is not None:
                rows += await _peer_rows(plan, store, root, tell)
        finally:
            await store.delete_prefix(root)
    return rows


async def _operation_rows(
    plan: Plan, ours: Mapping[str, Operation], theirs: Mapping[str, Operation] | None, tell: Callable[[str], None]
) -> list[Row]:
    rows = []
    for name, operation in ours.items():
        for clients in plan.clients:
            tell(f"{name}, {clients} clients")
            sides = [operation] if theirs is None else [operation, theirs[name]]
            figures = await alternate(sides, clients, plan.seconds)
            rows.append(Row(name, clients, figures[0], *((figures[1], "bare engine") if theirs else ())))
    return rows


async def _peer_rows(plan: Plan, store: Store, root: str, tell: Callable[[str], None]) -> list[Row]:
    rows = []
    async with open_store(plan.peer or "") as peer:
        await prepare_store(peer, root)
        try:
            ours, theirs = operations(store, root), operations(peer, root)
            for name in ("put", "get", "txn of 3"):
                for clients in plan.clients:
                    tell(f"{name} against the peer, {clients} clients")
                    figures = await alternate([ours[name], theirs[name]], clients, plan.seconds)
                    rows.append(Row(name, clients, figures[0], figures[1], "peer"))
        finally:
            await peer.delete_prefix(root)
    return rows


async def _watch_rows(store: Store, root: str, clients: int, seconds: float) -> list[Row]:
    """Measure watches: each client has its own watch, puts a key, and waits until it has received the event.

    Two figures: from the call of the put, which includes making it durable, and from the put's answer, which does not.
    """
    async with AsyncExitStack() as stack:
        watches = [await stack.enter_async_context(store.watch(f"{root}w/{n}/")) for n in range(clients)]
        late: list[float] = []

        async def see(client: int) -> float:
            await anext(watches[client])
            return perf_counter()

        async def put_and_see(client: int, turn: int) -> None:
            seeing = asyncio.ensure_future(see(client))
            await store.put(f"{root}w/{client}/{turn % 100}", VALUE)
            answered = perf_counter()
            late.append(max(0.0, await seeing - answered))

        numbers = range(max(3, round(seconds / ROUND)))
        rounds = [await one_round(put_and_see, clients, min(ROUND, seconds), number * 1000) for number in numbers]
    whole = figure(rounds)
    after = figure([Round(whole.per_second, whole.cpu_us, late)])
    return [Row("watch: put to event", clients, whole), Row("watch: answer to event", clients, after)]


async def _watcher_rows(plan: Plan, store: Store, root: str, tell: Callable[[str], None]) -> list[Row]:
    """Measure the cost of 1,000 watchers on distinct prefixes for a write: none of them matches, or one matches."""
    rows = []
    for clients in (plan.clients[0], plan.clients[-1]):
        for concerned in (False, True):
            tell(f"{WATCHERS:,} watchers, {clients} clients")
            rows.append(await _watcher_row(store, root, clients, plan.seconds, concerned=concerned))
    return rows


async def _watcher_row(store: Store, root: str, clients: int, seconds: float, *, concerned: bool) -> Row:
    kind = "v" if concerned else "p"

    async def put(client: int, turn: int) -> object:
        return await store.put(f"{root}{kind}/{(client * 37 + turn) % WATCHERS}/key", VALUE)

    # Many watchers that see one put each are compared with one that sees all: an event is delivered either way.
    few = [f"{root}{kind}/"] if concerned else []
    many = [f"{root}{'v' if concerned else 'n'}/{n}/" for n in range(WATCHERS)]
    rounds: list[list[Round]] = [[], []]
    for number in range(max(4, round(seconds / ROUND)) + 1):
        for side, prefixes in enumerate((many, few)):
            async with AsyncExitStack() as stack:
                readers = [await _reader(stack, store.watch(prefix)) for prefix in prefixes]
                await one_round(
                    put, clients, min(SETTLE, seconds / 2)
                )  # the watches of the previous round are still being removed
                rounds[side].append(await one_round(put, clients, min(ROUND, seconds), number * 1000))
                for reader in readers:
                    reader.cancel()
                await asyncio.gather(*readers, return_exceptions=True)
    ours, other = (figure(side[1:]) for side in rounds)
    name = f"put, {WATCHERS:,} watchers, " + ("each put seen by one" if concerned else "none concerned")
    return Row(name, clients, ours, other, "one watcher" if concerned else "no watcher")


async def _reader(stack: AsyncExitStack, watch: Watch) -> asyncio.Task[None]:
    await stack.enter_async_context(watch)

    async def read() -> None:
        async for _ in watch:
            pass

    return asyncio.create_task(read())


def key(root: str, kind: str, number: int) -> str:
    """Return a key of typical length."""
    return f"{root}{kind}/{number % KEYS:06d}"


def operations(store: Store, root: str) -> dict[str, Operation]:
    """Return the operations on a store by name."""

    async def put(client: int, turn: int) -> object:
        return await store.put(key(root, "p", client * 37 + turn), VALUE)

    async def get(client: int, turn: int) -> object:
        return await store.get(key(root, "d", client * 37 + turn))

    async def txn(client: int, turn: int) -> object:
        names = three_keys(root, client, turn)
        return await store.txn([Version(names[0]) > -1], [Put(name, VALUE) for name in names])

    async def range_(client: int, turn: int) -> object:  # noqa: ARG001 - every range is the same
        return await store.range(f"{root}d/", limit=KEYS)

    return {"put": put, "get": get, "txn of 3": txn, "range of 1,000": range_}


def three_keys(root: str, client: int, turn: int) -> list[str]:
    return [key(root, f"t{part}", client * 37 + turn) for part in "abc"]


async def prepare_store(store: Store, root: str) -> None:
    """Write the keys that gets and ranges read."""
    for first in range(0, KEYS, 100):
        await store.txn([], [Put(key(root, "d", number), VALUE) for number in range(first, first + 100)])


async def one_round(operation: Operation, clients: int, seconds: float, turn: int = 0) -> Round:
    """Let the clients repeat the operation for some seconds."""
    times: list[float] = []
    worked = process_time()
    started = perf_counter()
    until = started + seconds

    async def client(number: int) -> None:
        done = 0
        before = perf_counter()
        while before < until:
            await operation(number, turn + done)
            now = perf_counter()
            times.append(now - before)
            done += 1
            if done % BREATH == 0:
                await asyncio.sleep(0)
                now = perf_counter()
            before = now

    await asyncio.gather(*(client(number) for number in range(clients)))
    cpu = (process_time() - worked) * 1e6 / max(1, len(times))
    return Round(len(times) / (perf_counter() - started), cpu, times)


async def alternate(sides: Sequence[Operation], clients: int, seconds: float) -> list[Figure]:
    """Alternate between the sides until each had `seconds`; the first round of each is not counted."""
    done: list[list[Round]] = [[] for _ in sides]
    rounds = max(3, round(seconds / ROUND))
    for number in range(rounds + 1):
        for side, operation in enumerate(sides):
            done[side].append(await one_round(operation, clients, seconds / rounds, number * 100_003))
    return [figure(side[1:]) for side in done]


def figure(rounds: Sequence[Round]) -> Figure:
    """Combine several rounds."""
    ordered = sorted(time for round_ in rounds for time in round_.times) or [0.0]
    return Figure(
        per_second=statistics.median(round_.per_second for round_ in rounds),
        cpu_us=statistics.median(round_.cpu_us for round_ in rounds),
        p50_us=ordered[len(ordered) // 2] * 1e6,
        p99_us=ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)] * 1e6,
        count=len(ordered),
    )
