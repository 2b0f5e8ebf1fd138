"""What a bare client reaches with the transactions of a deployment: the upper bound that the engine allows here.

The measured run records its transactions: the number of comparisons, writes and reads of each, and the bytes. The
engine's own client sends an even sample of them again, with the same average concurrency and the same number of
watches. Nothing decides, reads or writes records in between.
"""

from __future__ import annotations

import asyncio
import statistics
from contextlib import aclosing, suppress
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any, cast

import msgspec

from bench.bare import BareBatches, open_bare
from hostler.ports.store import Get, Put

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hostler.ports.store import Comparison, Operation, Store, TxnResult

ROUNDS = 3
SAMPLE = 1_000
"""Transactions per round."""
WATCHES = 2
"""The leader's watch and the nodes' watch."""
WRITES_OF_A_KEY = 6
"""Writes per key from LOAD to ACTIVE."""
FEWEST = 200
"""Fewest keys, so that the keys of one transaction differ."""
ROOT = "bench-bare/"


class Shape(msgspec.Struct, frozen=True, gc=False):
    """The shape of one transaction."""

    compared: int
    written: int
    read: int
    """Reads in the branch that runs if a comparison fails."""
    size: int
    """Bytes of the written keys and values."""


class Noted:
    """A store that records its transactions."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.shapes: list[Shape] = []
        self._under_way = self._levels = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def txn(
        self, when: Sequence[Comparison], then: Sequence[Operation], otherwise: Sequence[Operation] = ()
    ) -> TxnResult:
        """Record a transaction, and pass it to the store."""
        size = sum(len(one.key) + len(one.value) for one in then if isinstance(one, Put))
        read = sum(isinstance(one, Get) for one in otherwise)
        self.shapes.append(Shape(len(when), len(then), read, size))
        self._under_way += 1
        self._levels += self._under_way
        try:
            return await self._store.txn(when, then, otherwise)
        finally:
            self._under_way -= 1

    @property
    def at_once(self) -> int:
        """Return the average number of concurrent transactions."""
        return max(1, round(self._levels / max(1, len(self.shapes))))

    @property
    def operations(self) -> int:
        """Return the number of all writes."""
        return sum(shape.written for shape in self.shapes)


class Bound(msgspec.Struct, frozen=True):
    """What the bare client reached."""

    share: float
    """Share of all transactions per second."""
    cpu: float
    """Processor seconds of this process for all of them."""


def noted_on(url: str, store: Store) -> Noted | None:
    """Return a recording store; None: there is no bare client of that engine to compare with."""
    return Noted(store) if isinstance(open_bare(url), BareBatches) else None


async def bound(url: str, store: Store, noted: Noted) -> Bound:
    """Send a sample of the recorded transactions with the bare client."""
    bare = cast("BareBatches", open_bare(url))
    shapes = [shape for shape in noted.shapes if shape.written]
    step = max(1, len(shapes) // SAMPLE)
    found: list[Bound] = []
    async with bare:
        try:
            for number in range(ROUNDS):
                sample = shapes[number % step :: step]
                seconds, worked = await _send(bare, sample, noted.at_once)
                share = len(sample) / len(shapes)
                found.append(Bound(share / seconds, worked / share))
        finally:
            await store.delete_prefix(ROOT)
    return Bound(statistics.median(one.share for one in found), statistics.median(one.cpu for one in found))


async def _send(bare: BareBatches, shapes: Sequence[Shape], at_once: int) -> tuple[float, float]:
    """Return the seconds until all are written and received by the watches, and processor seconds of this process."""
    total = sum(shape.written for shape in shapes)
    names = _names(max(FEWEST, total // WRITES_OF_A_KEY))
    waiting = iter(shapes)
    ready = [asyncio.Event() for _ in range(WATCHES)]

    async def hear(stands: asyncio.Event) -> None:
        left = total
        async with aclosing(bare.watch(ROOT.encode(), previous=False)) as watch:  # closed before its connection
            async for key, _ in watch:
                if not key:
                    stands.set()
                    continue
                left -= 1
                if not left:
                    return

    async def send() -> None:
        for shape in waiting:
            keys = [next(names) for _ in range(shape.written)]
            value = b"v" * max(0, shape.size // shape.written - len(keys[0]))
            await bare.batch(keys, value, compared=shape.compared, read=shape.read)

    hearing = [asyncio.create_task(hear(stands)) for stands in ready]
    try:
        for stands in ready:
            await stands.wait()
        began, worked = perf_counter(), process_time()
        await asyncio.gather(*(send() for _ in range(at_once)))
        await asyncio.gather(*hearing)
        return perf_counter() - began, process_time() - worked
    finally:
        for task in hearing:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


def _names(count: int) -> Iterator[bytes]:
    """Yield keys as long as those of slices, in a loop."""
    while True:
        for number in range(count):
            yield f"{ROOT}node-{number // 20:05}/bench:slice-{number % 20}:1.0.0".encode()
