"""The benchmark of one store."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import AsyncExitStack
from time import perf_counter
from typing import TYPE_CHECKING

import msgspec

from hostler.entry.bench.measure import ROUND, Figure, Round, alternate, figure, one_round
from hostler.entry.bench.work import VALUE, of_bare, of_store, prepare_bare, prepare_store
from hostler.wiring import open_bare, open_store

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.ports.bare import Bare
    from hostler.ports.store import Store, Watch

WATCHERS = 1_000
SETTLE = 0.5


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
    watchers: bool = True


async def run(plan: Plan, tell: Callable[[str], None]) -> list[Row]:
    """Measure everything in the plan. All keys are below one new prefix, which is deleted at the end."""
    root = f"/hostler-bench/{secrets.token_hex(4)}/"
    rows: list[Row] = []
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(open_store(plan.url))
        bare = open_bare(plan.url)
        if bare is not None:
            await stack.enter_async_context(bare)
            await prepare_bare(bare, root)
        await prepare_store(store, root)
        try:
            rows += await _operations(plan, store, bare, root, tell)
            for clients in plan.clients:
                tell(f"watch, {clients} clients")
                rows += await _watch_rows(store, root, clients, plan.seconds)
            if plan.watchers:
                rows += await _watcher_rows(plan, store, root, tell)
            if plan.peer is not None:
                rows += await _peer_rows(plan, store, root, tell)
        finally:
            await store.delete_prefix(root)
    return rows


async def _operations(plan: Plan, store: Store, bare: Bare | None, root: str, tell: Callable[[str], None]) -> list[Row]:
    ours = of_store(store, root)
    theirs = None if bare is None else of_bare(bare, root)
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
            ours, theirs = of_store(store, root), of_store(peer, root)
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
