"""What slices and endpoints went through, as whoever follows the store sees it: a moment later, never earlier."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Self

from hostler.keys.cache import Cache
from hostler.keys.families import ENDPOINT, SLICE
from hostler.kit.clock import SystemClock
from hostler.kit.tasks import run_together
from hostler.model.deployment import may_move
from hostler.wiring import open_store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostler.model.deployment import Endpoint, SliceRecord, SliceState


class StoreLog:
    """Follows slices, and the endpoints of one of their methods, while it is entered."""

    def __init__(self, url: str, method: str = "who") -> None:
        self._url, self._method = url, method
        self._stack = AsyncExitStack()
        self._states: dict[str, dict[int, SliceState]] = {}
        self.moves = 0
        self.illegal: list[str] = []
        self.gone: dict[tuple[str, int], list[float]] = defaultdict(list)
        """When an instance, by version and number, lost its endpoint."""

    async def __aenter__(self) -> Self:
        store = await self._stack.enter_async_context(open_store(self._url))
        self._endpoints: Cache[Endpoint] = Cache(store, ENDPOINT, clock=SystemClock())
        self._slices: Cache[SliceRecord] = Cache(store, SLICE, clock=SystemClock())
        self._endpoints.listen(self._endpoint_changed)
        self._slices.listen(self._slice_changed)
        parts = {"endpoints": self._endpoints.run(), "slices": self._slices.run()}
        following = asyncio.create_task(run_together("store log", parts), name="store log")
        self._stack.push_async_callback(asyncio.wait, (following,))
        self._stack.callback(following.cancel)
        await self._endpoints.ready()
        await self._slices.ready()
        return self

    async def __aexit__(self, *ended: object) -> None:
        await self._stack.aclose()

    def leases(self, node: str) -> set[int | None]:
        """What the endpoints of a node hang on."""
        return {entry.lease for entry in self._endpoints.entries.values() if entry.value.node_id == node}

    def lateness(self, answers: Sequence[tuple[float, dict[str, Any]]]) -> float:
        """Seconds after its endpoint had gone at which an instance took a call, the most there was; 0: none did.

        A process that was called for the first time after that is another instance of the same number.
        """
        calls: dict[tuple[str, int, str], list[float]] = defaultdict(list)
        for _, answer in answers:
            calls[answer["version"], answer["instance"], answer["worker"]].append(answer["at"])
        found = 0.0
        for (version, number, _), times in calls.items():
            first, last = min(times), max(times)
            found = max([found, *(last - gone for gone in self.gone[version, number] if first < gone)])
        return found

    def _endpoint_changed(self, key: str) -> None:
        parts = ENDPOINT.parse(key)
        if parts["method"] == self._method and key not in self._endpoints.entries:
            self.gone[parts["artifact"].rpartition(":")[2], int(parts["instance"])].append(time.monotonic())

    def _slice_changed(self, key: str) -> None:
        entry, old = self._slices.entries.get(key), self._states.pop(key, {})
        new = {} if entry is None else {number: one.state for number, one in entry.value.each().items()}
        if new:
            self._states[key] = new
        for number in sorted({*old, *new}):
            before, after = old.get(number), new.get(number)
            if before is not after:
                self.moves += 1
                if not may_move(before, after):
                    self.illegal.append(f"{key} {number}: {before} → {after}")
