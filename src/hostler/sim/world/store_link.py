"""Connection between a process of a world and the store: it can drop packets, which is not the same as a refusal."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeAlias

from hostler.errors import Unavailable, Uncertain
from hostler.keys.families import HANDLE
from hostler.kit.virtual_loop import outside
from hostler.sim.faulty_link import FaultyLink, deliver

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Coroutine, Sequence

    from hostler.drivers.store.memory import MemoryStore
    from hostler.ports.store import Comparison, Operation
    from hostler.sim.faulty_link import Weather

    Verb: TypeAlias = Callable[[], Coroutine[Any, Any, Any]]

DEADLINE = 5.0
"""Seconds after which a store driver gives up on an answer."""
RETRANSMITTED = 15.0
"""Seconds for which the network retransmits a request."""
_HANDLES = HANDLE.prefix()


class StoreLink(FaultyLink):
    """A `FaultyLink` that can drop packets. While it is cut and `silent`, nothing answers until the deadline.

    The store may still execute an abandoned request when the connection returns: the network retransmits it for
    `RETRANSMITTED` seconds.
    """

    def __init__(self, store: MemoryStore, rng: random.Random, weather: Weather, *, latency: float) -> None:
        super().__init__(store, rng, weather, latency=latency)
        self.silent = False
        self.late = 0.0
        """Seconds by which reports about machines are late."""
        self._sent: dict[object, tuple[asyncio.TimerHandle, Verb]] = {}

    def heal(self) -> None:
        super().heal()
        loop = asyncio.get_running_loop()
        for do in self._taken_back():
            loop.call_soon(deliver, do, context=outside())

    def follow(self, earlier: StoreLink) -> None:
        """Take over the requests of an earlier process of the same host: the network does not know that it died."""
        self._sent = earlier._sent

    def lose(self) -> None:
        """Drop all requests in flight: the host has no power and retransmits nothing."""
        self._taken_back()

    def txn(
        self, when: Sequence[Comparison], then: Sequence[Operation], otherwise: Sequence[Operation] = ()
    ) -> Coroutine[Any, Any, Any]:
        if self.late and any(getattr(op, "key", "").startswith(_HANDLES) for op in then):
            return self._late_txn(when, then, otherwise)
        return super().txn(when, then, otherwise)

    async def _late_txn(
        self, when: Sequence[Comparison], then: Sequence[Operation], otherwise: Sequence[Operation]
    ) -> Any:
        await asyncio.sleep(self.late)
        return await super().txn(when, then, otherwise)

    async def _call(self, do: Verb, *, writes: bool = True, prompt: bool = True) -> Any:
        if self.silent and not self._healed.is_set() and not self.dead:
            await self._wait_for_link(do, writes=writes)
        answer = await super()._call(do, writes=writes, prompt=prompt)
        if self.silent and not self._healed.is_set() and not self.dead:  # cut while the answer was in flight
            await asyncio.sleep(DEADLINE)
            raise _no_answer(writes=writes)
        return answer

    async def _wait_for_link(self, do: Verb, *, writes: bool) -> None:
        """Wait until the connection returns. Uncertain, Unavailable: not before the deadline."""
        arrives_late = writes and self._rng.random() < 0.5
        try:
            async with asyncio.timeout(DEADLINE):
                await self._healed.wait()
        except (TimeoutError, asyncio.CancelledError) as error:
            if arrives_late:
                self._keep(do)
            if isinstance(error, TimeoutError):
                raise _no_answer(writes=writes) from None
            raise

    def _keep(self, do: Verb) -> None:
        loop = asyncio.get_running_loop()
        letter = object()
        expiry = loop.call_later(RETRANSMITTED, self._sent.pop, letter, None, context=outside())
        self._sent[letter] = expiry, do

    def _taken_back(self) -> list[Verb]:
        sent = tuple(self._sent.values())
        self._sent.clear()
        for expiry, _ in sent:
            expiry.cancel()
        return [do for _, do in sent]


def _no_answer(*, writes: bool) -> Uncertain | Unavailable:
    return Uncertain("wire: no answer") if writes else Unavailable("wire: no answer")
