"""Routes one call: choose an instance, send the call, retry where that is safe, and measure it.

A call is retried at most three times, on another instance if there is one. It is retried only if it provably did not
start, or if its method is declared idempotent and the response was lost. A method that raised has answered. A stream
that has begun is never retried. One deadline covers all tries.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hostler.engine.invocation.call_metrics import Measures
from hostler.engine.invocation.endpoints import Routes, Why
from hostler.engine.invocation.load_balancer import Avoided
from hostler.errors import (
    Closed,
    DeadlinePassed,
    HostlerError,
    Invalid,
    NotFound,
    Raised,
    Unavailable,
    Uncertain,
)
from hostler.kit.rate_limit import Backoff
from hostler.model.deployment import Artifact, base_of
from hostler.ports.calls import Call, CallFailed, Fault, NotAdmitted, Unreachable

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncIterator, Callable, Collection

    from hostler.engine.invocation.load_balancer import CallTarget, Instance
    from hostler.kit.clock import Clock
    from hostler.ports.calls import Items, WorkerConnections
    from hostler.ports.store import Store

RETRIES = 3
ADMISSION = 5.0
"""Seconds during which workers may not know this process yet."""
LATELY = 5.0
"""Seconds after the removal of its last endpoint during which a slice counts as recently served."""
PATIENCE = 1.0
"""Seconds that a call waits for an endpoint of a recently served slice: a new process may be replacing the old one."""
READ_WITHIN, READ_AT_LEAST = 5.0, 1.0
"""Maximum seconds that a call waits for the first read of a slice's endpoints, and the minimum even for a shorter call:
"not found" helps the first caller of a slice more than "unknown"."""
IDLE, IDLE_EMPTY = 600.0, 5.0
"""Seconds without calls after which a slice is no longer watched; the second for a slice without endpoints."""
SWEEP_EVERY = 5.0
MOST = 10_000
"""Slices that are watched at the same time."""
WITHIN, MAX_WITHIN = 30.0, 3600.0
"""Default and maximum deadline of a call in seconds."""
STOPPED = "Stopped"
"""Error name that workers report for a call that they ended because they were stopped."""


class Router:
    """The router of a process; `run` maintains it until it is cancelled. The caller closes the lines."""

    def __init__(
        self,
        store: Store,
        lines: WorkerConnections,
        *,
        clock: Clock,
        rng: random.Random,
        local: Collection[str] = (),
        why: Why | None = None,
    ) -> None:
        """`local`: the folded names of the nodes on this host; the collection may grow."""
        self._store, self._lines, self._clock, self._rng, self._local = store, lines, clock, rng, local
        self._why = why or Why(store, clock=clock)
        self.measures = Measures(clock)
        self._routes: dict[str, Routes] = {}
        self._following: dict[str, asyncio.Task[None]] = {}
        self._targets: dict[str, tuple[str, str | None]] = {}
        self._closed = False
        self.retries = 0
        self.nowhere = 0
        self.late = 0

    @property
    def counters(self) -> dict[str, float]:
        """Counters for `/metrics`."""
        return {
            "calls": float(self.measures.calls),
            "errors": float(self.measures.errors),
            "retries": float(self.retries),
            "no_endpoint": float(self.nowhere),
            "late": float(self.late),
            "followed": float(len(self._routes)),
        }

    async def run(self) -> None:
        """Stop watching unused slices; when cancelled, stop watching all slices."""
        try:
            while True:
                await self._clock.sleep(SWEEP_EVERY)
                now = self._clock.now()
                for routes in list(self._routes.values()):
                    idle = IDLE if routes.lately(LATELY) or routes.routing.weights else IDLE_EMPTY
                    if not routes.waiting and now - routes.used_at > idle:
                        self._forget(routes)
        finally:
            self._closed = True
            following = list(self._following.values())
            for routes in list(self._routes.values()):
                self._forget(routes)
            await asyncio.gather(*following, return_exceptions=True)

    async def ask(
        self,
        target: str,
        method: str,
        arguments: bytes,
        *,
        within: float = WITHIN,
        trace: str = "",
        served_by: Callable[[Instance], None] | None = None,
    ) -> bytes | Items:
        """Call a method of `group:name`, by the weights of its versions, or of exactly `group:name:version`.

        `served_by` is called with the instance that answers, before this returns.

        Return one JSON value, or a stream of them that has begun. NotFound: no such slice or method. Invalid: wrong
        arguments. Unavailable: no instance takes the call now, and why; it did not start. DeadlinePassed, Uncertain:
        the call may have been executed. Raised: the method raised.
        """
        clock = self._clock
        began = clock.now()
        base, artifact = self._targets.get(target) or self._target(target)
        routes = self._routes.get(base)
        if routes is None or not routes.read:
            routes = await self._follow(base, artifact, within)
        routes.used_at = began
        routing, ends_at = routes.routing, began + within
        avoided: Avoided | None = None
        tries, started = 0, False
        backoff: Backoff | None = None
        while True:
            now = clock.now()
            place = routing.choose(method, artifact, now, avoided)
            if place is None:
                try:
                    place = await self._await_endpoint(routes, method, artifact, ends_at)
                except HostlerError as error:
                    raise _truly(error, started) from None
                now = clock.now()
            instance = place.instance
            call = Call(0, method, arguments, ends_at - now, trace, instance.artifact, instance.number)
            try:
                answer = await self._send(place, call, now)
                if served_by is not None:
                    served_by(instance)
                return answer
            except CallFailed as error:
                self._learn(instance, error, now)
                if not _may_repeat(error, place):
                    raise self._error(target, method, instance, error) from None
                started = started or error.started
                if not (isinstance(error, NotAdmitted) and now - began < ADMISSION):
                    tries += 1
                if backoff is None:
                    backoff, avoided = Backoff(0.01, 0.25, 3.0, rng=self._rng), Avoided()
                pause = backoff.next()
                if tries > RETRIES or clock.now() + pause >= ends_at:
                    raise _truly(self._error(target, method, instance, error), started) from None
                avoided.add(instance)  # type: ignore[union-attr]  # set together with the backoff
                self.retries += 1
            await clock.sleep(pause)
            if self._routes.get(base) is not routes:  # the slice was dropped as unused while the call waited
                try:
                    routes = await self._follow(base, artifact, ends_at - clock.now())
                except HostlerError as failed:
                    raise _truly(failed, started) from None
                routing = routes.routing
            routes.used_at = clock.now()

    async def call(
        self, target: str, method: str, arguments: bytes, *, within: float = WITHIN, trace: str = ""
    ) -> AsyncIterator[bytes]:
        """Call as `ask` does, and yield the one value or the values of the stream."""
        answer = await self.ask(target, method, arguments, within=within, trace=trace)
        if isinstance(answer, bytes):
            yield answer
            return
        try:
            async for value in answer:
                yield value
        finally:
            await answer.aclose()

    # One try

    async def _send(self, place: CallTarget, call: Call, began: float) -> bytes | Items:
        instance, measures = place.instance, self.measures
        artifact = instance.artifact
        instance.in_flight += 1
        measures.begin(artifact)
        streams = False
        try:
            answer = await self._lines.ask(instance.address, call, alone=place.streams)
            if type(answer) is bytes:
                measures.count(artifact, self._clock.now() - began, error=False)
                if instance.failures:
                    instance.reached()
                return answer
            streams = True
            return _Stream(answer, self, instance, call.method, began)  # type: ignore[arg-type]
        finally:
            if not streams:
                self.over(instance)

    def over(self, instance: Instance) -> None:
        """Record that a call to the instance has ended, successfully or not."""
        instance.in_flight -= 1
        self.measures.end(instance.artifact)

    def _learn(self, instance: Instance, error: CallFailed, began: float) -> None:
        if isinstance(error, Unreachable):
            instance.unreachable(self._clock.now())
        elif error.fault is Fault.REFUSED:
            instance.refused(self._clock.now())
        elif error.started:
            if error.fault is None:  # its process or host ended: prefer other instances until it is replaced
                instance.unreachable(self._clock.now())
            self.measures.count(instance.artifact, self._clock.now() - began, error=True)

    def failed(self, instance: Instance, method: str, error: CallFailed, began: float) -> HostlerError:
        """Record that a stream of the instance failed, and return the error for the caller."""
        self._learn(instance, error, began)
        return self._error(instance.artifact, method, instance, error)

    def _error(self, target: str, method: str, instance: Instance, error: CallFailed) -> HostlerError:
        """Return the error for the caller, from the failure of the last try."""
        what, said = f"{target} {method}", error.message
        if error.fault is Fault.ARGUMENTS:
            return Invalid(f"{what}: {said}; correct the arguments")
        if error.fault is Fault.NO_METHOD:
            return NotFound(f"{what}: {said}")
        if error.fault is Fault.DEADLINE:
            self.late += 1
            if not error.started:
                return Unavailable(f"{what}: {said}; it did not start, try again with more time")
            return DeadlinePassed(f"{what}: {said} ({instance}); it may have been executed, check before you repeat it")
        if error.fault is Fault.TOO_LARGE:
            return Raised(f"{what}: {said}", error="TooLarge", said=said)
        if error.fault is Fault.RAISED:
            return Raised(
                f"{what}: {instance} raised {error.error or 'an error'}: {said}", error=error.error, said=said
            )
        if error.started:
            return Uncertain(
                f"{what}: {instance} gave no answer: {said}; it may have been executed, check before you repeat it"
            )
        return Unavailable(f"{what}: {instance} did not accept it: {said}; it did not start, try again later")

    # Endpoints

    def _target(self, target: str) -> tuple[str, str | None]:
        """Return the slice, and its version if the target names one."""
        whole = target if target.count(":") > 1 else f"{target}:0"
        try:
            Artifact.parse(whole)
        except Invalid:
            raise Invalid(f"slice {target[:300]!r}: must be group:name or group:name:version") from None
        found = base_of(whole), None if whole is not target else target
        if len(self._targets) >= MOST:
            self._targets.clear()
        self._targets[target] = found
        return found

    async def _follow(self, base: str, artifact: str | None, within: float) -> Routes:
        """Return the endpoint cache of a slice once the store was read. NotFound: no such slice; nothing is watched."""
        routes = self._routes.get(base)
        if routes is not None and routes.unknown:
            self._forget(routes)
            routes = None
        if routes is None:
            if self._closed:
                raise Closed("router: closed")
            if len(self._routes) >= MOST:
                self._forget(min(self._routes.values(), key=lambda one: (one.waiting, one.used_at)))
            routes = Routes(self._store, base, clock=self._clock, rng=self._rng, local=self._local)
            self._routes[base] = routes
            self._following[base] = asyncio.create_task(routes.run(), name=f"routes of {base}")
        routes.waiting += 1
        ready = asyncio.create_task(routes.ready(), name=f"routes of {base}: reading")
        patience = min(max(within, READ_AT_LEAST), READ_WITHIN)
        late = asyncio.create_task(self._clock.sleep(patience), name=f"routes of {base}: patience")
        try:
            await asyncio.wait((ready, late, self._following[base]), return_when=asyncio.FIRST_COMPLETED)
        finally:
            routes.waiting -= 1
            for task in (ready, late):
                task.cancel()
            await asyncio.gather(ready, late, return_exceptions=True)
        if routes.unknown:
            self._forget(routes)
            self.nowhere += 1
            raise await self._why.nowhere(base, artifact, (), ())
        if not routes.read:
            raise Unavailable(
                f"slice {base}: its endpoints are not known yet because the store has not answered; try again later"
            )
        return routes

    async def _await_endpoint(self, routes: Routes, method: str, artifact: str | None, ends_at: float) -> CallTarget:
        """Wait briefly for an endpoint if the slice had one recently; otherwise raise the reason why there is none."""
        routing, clock = routes.routing, self._clock
        until = min(ends_at, clock.now() + PATIENCE)
        while True:
            known = routing.methods(artifact)
            if known and method not in known:
                has = ", ".join(known[:20])
                raise NotFound(f"slice {artifact or routes.base}: no method {method[:100]!r}; available: {has}")
            left = until - clock.now()
            if left <= 0 or not routes.lately(LATELY) or (artifact is not None and len(routing)):
                break
            routes.waiting += 1
            changed = asyncio.create_task(routes.wait_for_change(), name="call: waiting for an endpoint")
            late = asyncio.create_task(clock.sleep(left), name="call: patience")
            try:
                await asyncio.wait((changed, late), return_when=asyncio.FIRST_COMPLETED)
            finally:
                routes.waiting -= 1
                for task in (changed, late):
                    task.cancel()
                await asyncio.gather(changed, late, return_exceptions=True)
            place = routing.choose(method, artifact, clock.now())
            if place is not None:
                return place
        self.nowhere += 1
        raise await self._why.nowhere(routes.base, artifact, routing.withheld(method), routing.artifacts())

    def _forget(self, routes: Routes) -> None:
        if self._routes.get(routes.base) is routes:  # otherwise another call was faster
            del self._routes[routes.base]
            self._following.pop(routes.base).cancel()


def _may_repeat(error: CallFailed, place: CallTarget) -> bool:
    """Return whether the call may be sent again."""
    if error.fault in (Fault.ARGUMENTS, Fault.NO_METHOD, Fault.DEADLINE, Fault.TOO_LARGE):
        return False
    if not error.started:
        return True
    return place.idempotent and (error.fault is None or error.error == STOPPED)


def _truly(error: HostlerError, started: bool) -> HostlerError:
    """Turn the error of the last try into Uncertain if an earlier try started and its response was lost."""
    if not started or not isinstance(error, Unavailable | NotFound):
        return error
    return Uncertain(f"{str(error).partition('; ')[0]}; an earlier try gave no answer, so it may have been executed")


class _Stream:
    """A stream that has begun: it counts as in flight until it ends."""

    __slots__ = ("_began", "_instance", "_items", "_method", "_over", "_router")

    def __init__(self, items: Items, router: Router, instance: Instance, method: str, began: float) -> None:
        self._items, self._router, self._instance = items, router, instance
        self._method, self._began, self._over = method, began, False

    def __aiter__(self) -> _Stream:
        return self

    async def __anext__(self) -> bytes:
        try:
            return await self._items.__anext__()
        except StopAsyncIteration:
            if not self._over:
                measures, clock = self._router.measures, self._router._clock
                measures.count(self._instance.artifact, clock.now() - self._began, error=False)
            await self.aclose()
            raise
        except CallFailed as error:
            await self.aclose()
            raise self._router.failed(self._instance, self._method, error, self._began) from None

    async def aclose(self) -> None:
        """Stop reading the stream."""
        if not self._over:
            self._over = True
            self._router.over(self._instance)
            await self._items.aclose()
