"""Pace of virtual time, and access to the world from other threads: an event loop in its own thread.

    manual      time is paused; a step advances it by a number of seconds, or by a number of timer instants
    measured    `rate` virtual seconds for each real second
    no_wait     from one timer to the next, without waiting; on average at most `rate` virtual seconds for each real
                second, so that an idle world does not keep a processor busy

A change of mode names the epoch that it was decided under and begins a new epoch. A change that names an old epoch has
no effect (`Conflict`), and pending steps of an old epoch are dropped. Calls from outside are served at the present
virtual instant, also while time is paused. Several calls in close succession, such as those of one request, are served
at the same instant.

Calls that only read do not change what happens: their steps run after those of the world, in no random order, and are
not counted. Calls that change something enter the world (`enter`) between two rounds, and `place` identifies these
rounds. Replaying the calls at the same places (`follow`), in a world of the same seed, leads to the same world.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import deque
from concurrent.futures import Future
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from hostler.errors import Conflict, Invalid, TooManyTries, Unavailable
from hostler.kit.virtual_loop import ProcessLoop, outside
from hostler.model.sim_api import MOST_EVENTS, MOST_SECONDS, RATES, Mode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable
    from contextvars import Context

T = TypeVar("T")

USUAL_RATE = 1.0
USUAL_LIMIT = 3600.0
"""Default rate of no_wait: one hour per second."""
MOST_STEPS = 100
"""Most steps that may be queued."""
LOOK_EVERY = 0.05
"""Real seconds between updates of the present instant while time passes and no timer is due."""
CAUGHT_UP = 1.0
"""Real seconds of lateness that are made up for; lateness beyond that is dropped."""
LINGER = 0.003
"""Real seconds for which time is paused after a call from outside, so that the next call of the same request is served
at the same instant."""
LINGER_MOST = 0.010
"""Longest pause in real seconds, however many calls follow each other."""
SLICE = 0.005
"""Real seconds reserved for the world after a pause: calls are served, but time is not paused for them."""
EARLY = 0.0005
"""Real seconds by which time may be early: no thread sleeps for less."""
ENDED = "simulation: it has ended; start it again"
_LOOKS: ContextVar[bool] = ContextVar("_LOOKS", default=False)
"""Whether the running code reads the world from outside."""


class EventPosition(msgspec.Struct, frozen=True):
    """A position in the history of a world: a round and an instant."""

    round: int
    at: float


class Diverged(RuntimeError):
    """The world is not in the recorded state."""


class Pace(msgspec.Struct, frozen=True):
    """The pace of time in one epoch."""

    mode: Mode
    rate: float
    """Virtual seconds for each real second; an upper limit in mode no_wait."""
    epoch: int


class Step(msgspec.Struct, kw_only=True, eq=False):
    """A granted amount of time. Either `until` is finite or `events` is."""

    id: int
    epoch: int
    asked_at: float
    """The virtual instant at which the step was requested."""
    seconds: float | None = None
    events: int | None = None
    until: float | None = None
    """The instant at which the step ends; None until it begins, because earlier steps advance time, too."""
    left: int = 0
    """Number of events still to come."""
    done: Future[float]
    """The instant at which the step ended. Conflict: the step was dropped."""


class Over(Unavailable):
    """The loop has ended. A call that had `begun` may have been executed."""

    def __init__(self, message: str, *, begun: bool = False) -> None:
        super().__init__(message)
        self.begun = begun


class _Call:
    """A call from another thread."""

    __slots__ = ("answer", "do", "task")

    def __init__(self, do: Callable[[], Awaitable[Any]]) -> None:
        self.do = do
        self.answer: Future[Any] = Future()
        self.task: asyncio.Task[None] | None = None

    async def run(self) -> None:
        try:
            found = await self.do()
        except asyncio.CancelledError:
            self.fail(Over(ENDED, begun=True))
        except Exception as error:  # noqa: BLE001 - raised in the caller
            self.fail(error)
        else:
            if not self.answer.done():
                self.answer.set_result(found)

    def fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


class PacedLoop(ProcessLoop):
    """An event loop in virtual time with an adjustable pace. It starts at full speed, in epoch 0."""

    def __init__(self, seed: int, *, real: Callable[[], float] = time.monotonic) -> None:
        super().__init__(seed)
        self._real = real
        self._bell = threading.Condition()
        # Guarded by `_bell`. Only the loop's own thread uses the other attributes.
        self._waiting: list[_Call] = []
        self._over: str | None = None
        self._calls: dict[_Call, None] = {}
        self._pace = Pace(Mode.NO_WAIT, math.inf, 0)
        self._anchor = (0.0, real())
        self._steps: deque[Step] = deque()
        self._numbers = 0
        self._linger_until = self._linger_end = -math.inf
        self._round = 0
        self._script: deque[tuple[EventPosition, Callable[[], None]]] = deque()
        self._diverged: Callable[[Diverged], None] = lambda _: None

    # From any thread

    def submit(self, do: Callable[[], Awaitable[T]]) -> Future[T]:
        """Run `do()` on the loop, at the present instant, as part of no process.

        A future that is cancelled before its call begins is never executed. Over: the loop has ended.
        """
        call = _Call(do)
        with self._bell:
            if self._over is not None:
                call.fail(Over(self._over))
            else:
                self._waiting.append(call)
                self._bell.notify()
        return call.answer

    def withdraw(self, answer: Future[Any]) -> None:
        """Cancel a call whose caller no longer waits."""
        if not answer.cancel() and not answer.done():

            async def cancel() -> None:
                for call in self._calls:
                    if call.answer is answer and call.task is not None:
                        call.task.cancel()

            self.submit(cancel)

    def end(self, why: str) -> None:
        """Answer all waiting calls and accept no more. The loop itself need not be running."""
        with self._bell:
            self._over = self._over or why
            waiting, self._waiting = self._waiting, []
        for call in waiting:
            call.fail(Over(why))
        for call in list(self._calls):
            call.fail(Over(why, begun=True))
        for step in tuple(self._steps):
            _drop(step, why)

    # In the loop's own thread

    @property
    def pace(self) -> Pace:
        return self._pace

    @property
    def steps_granted(self) -> tuple[Step, ...]:
        """Steps that are not done yet; the first one is in progress."""
        return tuple(self._steps)

    def change(self, mode: Mode, *, rate: float | None = None, epoch: int) -> Pace:
        """Change the mode, decided under `epoch`. Conflict: that epoch is over. Invalid: rate out of range."""
        rate = _checked_rate(mode, rate)
        if epoch != self._pace.epoch:
            raise Conflict(
                f"mode: changed to {self._pace.mode.value} in epoch {self._pace.epoch}, so the request for"
                f" epoch {epoch} is outdated; read /v1/sim again, then retry"
            )
        return self._begin(Pace(mode, rate, epoch + 1))

    def stand_still(self, *, epoch: int) -> None:
        """Pause time, beginning with that epoch, which was counted elsewhere."""
        self._begin(Pace(Mode.MANUAL, USUAL_RATE, epoch))

    def run_free(self) -> None:
        """Run at full speed in any mode: for the start and the end of a world."""
        self._begin(Pace(Mode.NO_WAIT, math.inf, self._pace.epoch + 1))

    def grant(self, *, seconds: float | None = None, events: int | None = None, epoch: int | None = None) -> Step:
        """Advance time by one more step, after all steps granted before.

        Conflict: another mode, or another epoch. Invalid: no such step. TooManyTries: too many steps are queued.
        """
        _check_step(seconds, events)
        if epoch is not None and epoch != self._pace.epoch:
            raise Conflict(
                f"step: requested for epoch {epoch}, but the current epoch is {self._pace.epoch}; read /v1/sim again,"
                " then retry"
            )
        if self._pace.mode is not Mode.MANUAL:
            raise Conflict(
                f"step: time advances by itself in mode {self._pace.mode.value}; change the mode to manual, then step"
            )
        if len(self._steps) >= MOST_STEPS:
            raise TooManyTries(f"step: {MOST_STEPS} steps are already queued; try again later", 1.0)
        self._numbers += 1
        step = Step(
            id=self._numbers,
            epoch=self._pace.epoch,
            asked_at=self._now,
            seconds=seconds,
            events=events,
            left=events or 0,
            done=Future(),
        )
        self._steps.append(step)
        return step

    @property
    def place(self) -> EventPosition:
        """The present position of the world."""
        return EventPosition(self._round, self._now)

    def enter(self, do: Callable[[], T]) -> T:
        """Run something as part of the world; the tasks it starts belong to no process."""
        context = outside()
        context.run(_LOOKS.set, False)
        return context.run(do)

    def follow(
        self, script: Iterable[tuple[EventPosition, Callable[[], None]]], diverged: Callable[[Diverged], None]
    ) -> None:
        """Run each callback at its place, before calls from outside are served.

        If the world does not reach one of the places, time is paused and `diverged` is called.
        """
        self._script.extend(script)
        self._diverged = diverged

    # Rounds

    def _run_once(self) -> None:
        if self._script:
            self._act()
        elif self._waiting:
            self._let_in()
        if self._ready or self._pass_time():
            super()._run_once()

    def _act(self) -> None:
        """Run the callbacks that are due at this place. A round runs only if the next place is still ahead."""
        while self._script:
            place, do = self._script[0]
            if place.round > self._round and (self._ready or self._due() < math.inf):
                return
            if place.round != self._round or not self._now <= place.at <= self._due():
                self._script.clear()
                self.stand_still(epoch=self._pace.epoch + 1)
                why = f"round {place.round} was at {place.at:g} s, and round {self._round} is at {self._now:g} s"
                self._diverged(Diverged(why))
                return
            self._now = place.at
            self._script.popleft()
            self.enter(do)

    def _runnable(self, handles: list[asyncio.Handle]) -> list[asyncio.Handle]:
        """Return the world's handles in random order, then those of readers from outside."""
        world: list[asyncio.Handle] = []
        looking: list[asyncio.Handle] = []
        for handle in handles:
            (looking if handle._context.get(_LOOKS) else world).append(handle)  # type: ignore[attr-defined]
        if world:
            self._round += 1
            world = super()._runnable(world)
            if len(world) > 1:
                super()._shuffle(world)
        return world + looking

    def _shuffle(self, handles: list[asyncio.Handle]) -> None:
        """Do nothing: `_runnable` has already ordered the handles."""

    def _let_in(self) -> None:
        with self._bell:
            calls, self._waiting = self._waiting, []
        self._bring_up()
        for call in calls:
            if call.answer.set_running_or_notify_cancel():
                self._calls[call] = None
                context = _looking()
                call.task = self.create_task(call.run(), name="from outside", context=context)
                call.task.add_done_callback(
                    lambda _, call=call: self._calls.pop(call, None),  # type: ignore[misc]
                    context=context,
                )
        now = self._real()
        if now >= self._linger_until + SLICE:
            self._linger_end = now + LINGER_MOST
        if now < self._linger_until or now >= self._linger_until + SLICE:
            self._linger_until = min(now + LINGER, self._linger_end)

    def _pass_time(self) -> bool:
        """Return whether time may jump to the next timer now; if not, wait for the pause or a call first."""
        pause = self._pause(self._due())
        if pause <= 0:
            return True
        with self._bell:
            if not self._waiting:
                self._bell.wait(None if pause == math.inf else pause)
        return False

    def _pause(self, due: float) -> float:
        """Return the real seconds to wait unless a call arrives; 0: the next timer may run now."""
        lingers = self._linger_until - self._real()
        if lingers > 0:
            return lingers
        if self._pace.mode is Mode.MANUAL:
            return 0.0 if self._stepping(due) else math.inf
        if self._pace.mode is Mode.MEASURED:
            self._bring_up()
            early = (due - self._now) / self._pace.rate
            return min(early, LOOK_EVERY) if early > EARLY else 0.0
        if due == math.inf:
            return math.inf
        if self._pace.rate == math.inf:
            return 0.0
        early = (self._now - self._time_limit(self._now)) / self._pace.rate
        return early if early > EARLY else 0.0

    def _stepping(self, due: float) -> bool:
        """Return whether a step covers the next timer. Complete the steps that are used up."""
        while self._steps:
            step = self._steps[0]
            if step.seconds is not None:
                if step.until is None:
                    step.until = self._now + step.seconds
                if due <= step.until:
                    return True
                self._now = step.until
            elif step.left > 0 and due < math.inf:
                step.left -= 1
                return True
            self._steps.popleft()
            if not step.done.done():
                step.done.set_result(self._now)
        return False

    def _bring_up(self) -> None:
        """In mode measured, advance to the present, but never past a timer or a ready task that has not run yet."""
        if self._pace.mode is Mode.MEASURED and not self._ready:
            self._now = max(self._now, min(self._time_limit(self._now), self._due()))

    def _due(self) -> float:
        """Return the instant of the next timer, or infinity."""
        at = self.next_at()
        return math.inf if at is None else at

    def _time_limit(self, reached: float) -> float:
        """Return how far time may advance. A large lateness is made up for only in part."""
        rate = self._pace.rate
        at, since = self._anchor
        allowed = at + (self._real() - since) * rate
        late = (allowed - reached) / rate - CAUGHT_UP
        if late > 0:
            self._anchor = (at, since + late)
            allowed -= late * rate
        return allowed

    def _begin(self, pace: Pace) -> Pace:
        self._bring_up()
        self._pace = pace
        self._anchor = (self._now, self._real())
        while self._steps:
            _drop(self._steps.popleft(), f"the mode was changed to {pace.mode.value}")
        return pace


class PacedThread:
    """Runs `main` on a paced loop in its own thread, and serves calls from outside until it is stopped.

    `main` returns when it is cancelled. If `main` fails, the loop continues, so that calls are still answered. `failed`
    is called for that failure and for every unhandled exception in the world.
    """

    def __init__(
        self,
        loop: PacedLoop,
        main: Callable[[], Coroutine[Any, Any, None]],
        failed: Callable[[str, BaseException], None],
    ) -> None:
        self.loop, self._main, self._failed = loop, main, failed
        self._task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name="simulation", daemon=True)

    @property
    def alive(self) -> bool:
        """Whether calls are answered."""
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def stop(self, *, within: float) -> bool:
        """Stop the thread. False: it is still busy after `within` real seconds and was left running. Blocks."""

        async def leave() -> None:
            self.loop.run_free()
            if self._task is not None and not self._task.done():
                self._task.cancel()
            else:
                self.loop.stop()

        if self._thread.is_alive():
            self.loop.submit(leave)
            self._thread.join(within)
        self.loop.end(ENDED)
        return not self._thread.is_alive()

    # In the thread

    def _run(self) -> None:
        loop = self.loop
        asyncio.set_event_loop(loop)
        loop.set_exception_handler(self._handle_exception)
        try:
            self._task = loop.create_task(self._main(), name="world")
            self._task.add_done_callback(self._note_end)
            loop.run_forever()
            loop.set_exception_handler(lambda *_: None)  # tasks that fail from here on fail because the loop ends
            loop.end(ENDED)
            self._cancel_all()
            loop.close()
        except BaseException as error:  # noqa: BLE001 - the thread ends here, the server continues
            self._failed("the simulation ended", error)
            loop.end(f"simulation: ended ({type(error).__name__}: {error}); start it again")

    def _cancel_all(self) -> None:
        left = [task for task in asyncio.all_tasks(self.loop) if not task.done()]
        for task in left:
            task.cancel()
        if left:
            self.loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))

    def _note_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed("the world ended", error)
        else:
            self.loop.stop()

    def _handle_exception(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self._failed(str(context.get("message", "")), error if error is not None else RuntimeError("no exception"))


def _looking() -> Context:
    context = outside()
    context.run(_LOOKS.set, True)
    return context


def _drop(step: Step, why: str) -> None:
    if not step.done.done():
        step.done.set_exception(Conflict(f"step {step.id}: dropped: {why}; read /v1/sim"))


def _checked_rate(mode: Mode, rate: float | None) -> float:
    if rate is None:
        return USUAL_LIMIT if mode is Mode.NO_WAIT else USUAL_RATE
    slowest, fastest = RATES
    if not slowest <= rate <= fastest:
        raise Invalid(f"rate {rate!r}: must be from {slowest:g} to {fastest:g} virtual seconds for each real one")
    return float(rate)


def _check_step(seconds: float | None, events: int | None) -> None:
    if (seconds is None) == (events is None):
        raise Invalid("step: no length given; give either seconds or events")
    if seconds is not None and not 0 < seconds <= MOST_SECONDS:
        raise Invalid(f"seconds {seconds!r}: must be above 0 and at most {MOST_SECONDS:.0f}")
    if events is not None and not 1 <= events <= MOST_EVENTS:
        raise Invalid(f"events {events!r}: must be from 1 to {MOST_EVENTS}")
