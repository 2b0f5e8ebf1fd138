"""Unreliable connection between a process and the store.

A request that was sent stays in flight independently of its sender. The store may execute it much later, even after the
sender was cancelled, stopped or killed. Such late requests make leader election hard, so they are modelled.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from hostler.errors import HostlerError, Lagged, Unavailable, Uncertain
from hostler.kit.virtual_loop import outside
from hostler.ports.store import lease_id

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from hostler.drivers.store.memory import MemoryStore
    from hostler.ports.store import Comparison, Event, Lease, Operation, Watch

LATE = 0.3
"""Seconds after which a late request is executed. Its sender has stopped waiting by then."""
LATENCY = 0.1
"""Largest latency of a request, and of its answer, in seconds; most take far less."""
_FATES = ("unavailable", "lost", "never", "slow", "hang", "deaf")


@dataclass
class Weather:
    """Probability of each fault per request, from 0 to 1; all other requests arrive and are answered soon."""

    unavailable: float = 0.0
    lost: float = 0.0
    never: float = 0.0
    slow: float = 0.0
    hang: float = 0.0
    deaf: float = 0.0
    """The request hangs and ignores cancellation."""
    lagged: float = 0.0
    slowest: float = 4.0
    fine: bool = field(init=False)
    """No request is affected by a fault."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name in _FATES or name == "lagged":  # read with every request, changed a few times in a run
            super().__setattr__("fine", not any(getattr(self, fate, 0.0) for fate in (*_FATES, "lagged")))

    def draw(self, rng: random.Random) -> str:
        chance = rng.random()
        for fate in _FATES:
            often: float = getattr(self, fate)
            if chance < often:
                return fate
            chance -= often
        return "fine"


class FaultyLink:
    """A store as one process reaches it. Entering and closing it do not affect the underlying store.

    If no fault is possible (no latency, fine weather, no `step` callback), calls go directly to the store. This makes
    it possible to simulate a cluster a thousand times faster than real time.
    """

    def __init__(self, store: MemoryStore, rng: random.Random, weather: Weather, *, latency: float = LATENCY) -> None:
        """`latency` is the largest latency of a request and of its answer; 0: none, and nothing is drawn for it."""
        self._store, self._rng, self._weather, self._latency = store, rng, weather, latency
        self._healed = asyncio.Event()
        self._healed.set()
        self._told = asyncio.Event()
        self._told.set()
        self.dead = False
        self.step: Callable[[str], Awaitable[None]] | None = None
        """Awaited before each request is sent, and again when it is executed but not answered yet."""
        self.fate: Callable[[bool], str | None] = _no_fate
        """Called with whether the request writes; returns its outcome, or None to draw it from the weather."""
        self.busy_until = 0.0
        """When the last request in flight has arrived and the last deaf request can be cancelled again."""

    def cut(self) -> None:
        self._healed.clear()

    def heal(self) -> None:
        self._healed.set()

    def half_cut(self) -> None:
        """Cut one direction: reads are answered, writes fail, and watches deliver nothing."""
        self._told.clear()

    def half_heal(self) -> None:
        self._told.set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return

    async def aclose(self) -> None:
        return

    # Operations of the store port

    def get(self, key: str, *, revision: int | None = None) -> Coroutine[Any, Any, Any]:
        if self.is_plain():
            return self._store.get(key, revision=revision)
        return self._call(lambda: self._store.get(key, revision=revision), writes=False)

    def range(self, prefix: str, **options: Any) -> Coroutine[Any, Any, Any]:
        if self.is_plain():
            return self._store.range(prefix, **options)
        return self._call(lambda: self._store.range(prefix, **options), writes=False)

    async def put(self, key: str, value: bytes, *, lease: Any = None) -> Any:
        return await self.ask(lambda: self._store.put(key, value, lease=lease_id(lease)))

    async def delete(self, key: str) -> Any:
        return await self.ask(lambda: self._store.delete(key))

    async def delete_prefix(self, prefix: str) -> Any:
        return await self.ask(lambda: self._store.delete_prefix(prefix))

    async def compact(self, revision: int) -> None:
        await self.ask(lambda: self._store.compact(revision))

    async def status(self) -> Any:
        return await self._call(self._store.status, writes=False)

    def lease_lateness(self, ttl: float) -> float:
        return self._store.lease_lateness(ttl)

    def txn(
        self, when: Sequence[Comparison], then: Sequence[Operation], otherwise: Sequence[Operation] = ()
    ) -> Coroutine[Any, Any, Any]:
        if self.is_plain():
            return self._store.txn(when, then, otherwise)
        return self._call(lambda: self._store.txn(when, then, otherwise))

    async def grant(self, ttl: float) -> LinkLease:
        return LinkLease(self, await self.ask(lambda: self._store.grant(ttl)))

    def watch(self, prefix: str, *, start_revision: int | None = None, previous: bool = True) -> LinkWatch:
        watch = self._store.watch(prefix, start_revision=start_revision, previous=previous)
        return LinkWatch(self, watch, prefix)

    def ask(self, do: Callable[[], Coroutine[Any, Any, Any]]) -> Coroutine[Any, Any, Any]:
        """Call a store operation that writes."""
        return do() if self.is_plain() else self._call(do)

    async def call(self, do: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Call something other than the store over the same wire; the call may wait there."""
        return await self._call(do, prompt=False)

    async def pass_through(self, event: Event, prefix: str) -> None:
        """Wait until the event has come through. Lagged: it was lost."""
        await self._healed.wait()
        await self._told.wait()
        if self._rng.random() < self._weather.lagged:
            raise Lagged(prefix, event.kv.mod_revision)

    # Internals

    def is_plain(self) -> bool:
        """Whether no fault is possible on this wire."""
        return (
            self._latency == 0.0
            and self._weather.fine
            and self.step is None
            and self.fate is _no_fate
            and not self.dead
            and self._healed.is_set()
            and self._told.is_set()
        )

    async def _call(
        self, do: Callable[[], Coroutine[Any, Any, Any]], *, writes: bool = True, prompt: bool = True
    ) -> Any:
        rng, loop = self._rng, asyncio.get_running_loop()
        if self.step is not None and not self.dead:
            await self.step("ask")
        there, back = self._way(), self._way()
        fate = self.fate(writes) or self._weather.draw(rng)
        lets = self._healed.is_set() and (self._told.is_set() or not writes)
        if self.dead or not lets or fate == "unavailable":
            await asyncio.sleep(there)
            raise Unavailable("wire: cut")
        if fate == "slow":
            delay = self._weather.slowest * rng.random() ** 2
            there, back = (there + delay, back) if rng.random() < 0.5 else (there, back + delay)
        if fate == "late":
            there += LATE
        arrives = not (fate == "never" or (fate in ("hang", "deaf") and rng.random() < 0.5))
        self.busy_until = max(self.busy_until, loop.time() + there)
        answer = loop.create_future()
        loop.call_later(there, _serve, do if arrives else None, answer, prompt, context=outside())
        if fate == "late":
            answer.cancel()  # the sender does not wait for the answer
            raise Uncertain("wire: no answer")
        if fate == "hang":
            await asyncio.sleep(1e9)  # until the caller is cancelled
        if fate == "deaf":
            await self._deaf(rng.random() * 2 * self._weather.slowest)
        result = await answer
        if self.step is not None and not self.dead:
            await self.step("done")
        await asyncio.sleep(back)
        if fate in ("lost", "never", "hang", "deaf"):
            raise Uncertain("wire: no answer") if writes else Unavailable("wire: no answer")
        return result

    def _way(self) -> float:
        return self._rng.random() ** 4 * self._latency if self._latency else 0.0

    async def _deaf(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        self.busy_until = max(self.busy_until, end)
        while loop.time() < end:
            try:
                await asyncio.sleep(end - loop.time())
            except asyncio.CancelledError:
                if self.dead:
                    raise


def _no_fate(writes: bool) -> str | None:  # noqa: ARG001 - the signature of `fate`
    return None


def deliver(do: Callable[[], Coroutine[Any, Any, Any]]) -> None:
    """Execute a store operation whose sender no longer waits for the answer."""
    answer = asyncio.get_running_loop().create_future()
    answer.cancel()
    _serve(do, answer, prompt=True)


def _serve(do: Callable[[], Coroutine[Any, Any, Any]] | None, answer: asyncio.Future[Any], prompt: bool) -> None:
    """Execute a request that has arrived; None: it was lost. It is executed even if its sender is dead by now."""
    if do is None:
        if not answer.done():
            answer.set_result(None)
    elif prompt:
        _continue(do(), answer)
    else:
        asyncio.get_running_loop().create_task(do()).add_done_callback(lambda done: _pass_answer(done, answer))


def _pass_answer(done: asyncio.Task[Any], answer: asyncio.Future[Any]) -> None:
    error = None if done.cancelled() else done.exception()
    if answer.done() or done.cancelled():
        answer.cancel()
        if error is not None and not isinstance(error, HostlerError):
            raise error
    elif error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(done.result())


def _continue(work: Coroutine[Any, Any, Any], answer: asyncio.Future[Any]) -> None:
    """Run a store operation to its end: it answers in one step, or yields to others and waits for nothing else."""
    try:
        work.send(None)
    except StopIteration as done:
        if not answer.done():
            answer.set_result(done.value)
    except Exception as error:
        if not answer.done():
            answer.set_exception(error)
        elif not isinstance(error, HostlerError):
            raise
    else:
        asyncio.get_running_loop().call_soon(_continue, work, answer)


class LinkLease:
    """A lease as one process reaches it."""

    def __init__(self, wire: FaultyLink, lease: Lease) -> None:
        self._wire, self._lease = wire, lease
        self.id, self.ttl = lease.id, lease.ttl

    def keep_alive(self) -> Coroutine[Any, Any, None]:
        return self._wire.ask(self._lease.keep_alive)

    async def revoke(self) -> None:
        await self._wire.ask(self._lease.revoke)

    async def remaining(self) -> float:
        left: float = await self._wire.ask(self._lease.remaining)
        return left


class LinkWatch:
    """A watch as one process reaches it: it delivers nothing while the wire is cut."""

    def __init__(self, wire: FaultyLink, watch: Watch, prefix: str) -> None:
        self._wire, self._watch, self._prefix = wire, watch, prefix

    async def __aenter__(self) -> Self:
        await self._watch.__aenter__()
        return self

    async def __aexit__(self, *details: object) -> None:
        await self._watch.__aexit__(*details)  # type: ignore[arg-type]

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        event = await self._watch.__anext__()
        if not self._wire.is_plain():
            await self._wire.pass_through(event, self._prefix)
        return event
