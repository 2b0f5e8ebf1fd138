"""How fast virtual time goes, and how the world is reached while it does: a loop in a thread of its own.

    manual      time stands still; a step lets it go on by so many seconds, or by so many instants at which something
                is due
    measured    `rate` virtual seconds for each real one
    no_wait     from one timer to the next, without waiting; on average at most `rate` virtual seconds for each real
                one, so that an idle world does not keep a processor busy

A change of mode names the epoch that it was decided under, and begins a new one: whoever decided from old news changes
nothing (`Conflict`), and steps of an epoch that is over are dropped. Calls from outside are served at the present
virtual instant, also while time stands still. Several that follow each other closely, as those of one request do, find
the same instant.

Calls that only look do not change what happens: their steps are taken after those of the world, in no drawn order, and
are not counted. Calls that change something enter the world (`enter`) between two rounds, and `place` says between
which: done again at the same place (`follow`), in a world of the same seed, they lead to the same world.
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
from hostler.kit.simulated_process import ProcessLoop, outside
from hostler.model.sim_api import MOST_EVENTS, MOST_SECONDS, RATES, Mode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable
    from contextvars import Context

T = TypeVar("T")

USUAL_RATE = 1.0
USUAL_LIMIT = 3600.0
"""The rate of no_wait, unless another is named: an hour in a second."""
MOST_STEPS = 100
"""Steps that may wait for each other."""
LOOK_EVERY = 0.05
"""Real seconds after which the present instant is brought up to date, where time passes and nothing is due."""
CAUGHT_UP = 1.0
"""Real seconds of lateness that are made up for; what is more is let go."""
LINGER = 0.003
"""Real seconds for which time stands still after a call from outside: the next one of the same request finds the
instant that the last one left."""
LINGER_MOST = 0.010
"""However many calls follow each other."""
SLICE = 0.005
"""Real seconds that the world then has for itself: calls are served, and not waited for."""
EARLY = 0.0005
"""Real seconds that time may be early by: no thread sleeps for less."""
ENDED = "simulation: it has ended; start it again"
_LOOKS: ContextVar[bool] = ContextVar("_LOOKS", default=False)
"""Whether the code that runs looks at the world from outside."""


class Place(msgspec.Struct, frozen=True):
    """Between which rounds of the world something happens, and at which instant."""

    round: int
    at: float


class Diverged(RuntimeError):
    """The world is not the one that was recorded."""


class Pace(msgspec.Struct, frozen=True):
    """What time goes by since the epoch began."""

    mode: Mode
    rate: float
    """Virtual seconds for each real one; no_wait: at most."""
    epoch: int


class Step(msgspec.Struct, kw_only=True, eq=False):
    """Time that was granted. Either `until` is finite or `events` is."""

    id: int
    epoch: int
    asked_at: float
    """The virtual instant in which it was asked for."""
    seconds: float | None = None
    events: int | None = None
    until: float | None = None
    """Where it ends; None before it has begun, for those before it move time, too."""
    left: int = 0
    """Events that are still to come."""
    done: Future[float]
    """The instant in which it ended. Conflict: it was dropped."""


class Over(Unavailable):
    """The loop has ended. What had `begun` may have been done."""

    def __init__(self, message: str, *, begun: bool = False) -> None:
        super().__init__(message)
        self.begun = begun


class _Call:
    """Something to do inside, asked for by another thread."""

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
        except Exception as error:  # noqa: BLE001 - it is the caller's
            self.fail(error)
        else:
            if not self.answer.done():
                self.answer.set_result(found)

    def fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


class PacedLoop(ProcessLoop):
    """Virtual time that goes as fast as it is told to. It starts as fast as it can, in epoch 0."""

    def __init__(self, seed: int, *, real: Callable[[], float] = time.monotonic) -> None:
        super().__init__(seed)
        self._real = real
        self._bell = threading.Condition()
        # Under the bell. All else belongs to the loop's own thread.
        self._waiting: list[_Call] = []
        self._over: str | None = None
        self._calls: dict[_Call, None] = {}
        self._pace = Pace(Mode.NO_WAIT, math.inf, 0)
        self._anchor = (0.0, real())
        self._steps: deque[Step] = deque()
        self._numbers = 0
        self._linger_until = self._linger_end = -math.inf
        self._round = 0
        self._script: deque[tuple[Place, Callable[[], None]]] = deque()
        self._diverged: Callable[[Diverged], None] = lambda _: None

    # From any thread

    def submit(self, do: Callable[[], Awaitable[T]]) -> Future[T]:
        """Let `do()` run inside, at the present instant; it belongs to no process.

        A future that is cancelled before it was begun is never begun. Over: the loop has ended.
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
        """Nobody waits for this one any more: it is cancelled."""
        if not answer.cancel() and not answer.done():

            async def cancel() -> None:
                for call in self._calls:
                    if call.answer is answer and call.task is not None:
                        call.task.cancel()

            self.submit(cancel)

    def end(self, why: str) -> None:
        """Answer everybody who still waits; nobody is let in any more. The loop itself need not run for it."""
        with self._bell:
            self._over = self._over or why
            waiting, self._waiting = self._waiting, []
        for call in waiting:
            call.fail(Over(why))
        for call in list(self._calls):
            call.fail(Over(why, begun=True))
        for step in tuple(self._steps):
            _drop(step, why)

    # Inside: in the loop's own thread

    @property
    def pace(self) -> Pace:
        """What time goes by."""
        return self._pace

    @property
    def steps_granted(self) -> tuple[Step, ...]:
        """Those that are not done yet; the first one is under way."""
        return tuple(self._steps)

    def change(self, mode: Mode, *, rate: float | None = None, epoch: int) -> Pace:
        """Another mode, decided under `epoch`. Conflict: that is over. Invalid: no such rate."""
        rate = _checked_rate(mode, rate)
        if epoch != self._pace.epoch:
            raise Conflict(
                f"mode: it was changed meanwhile, to {self._pace.mode.value} in epoch {self._pace.epoch}, and not in"
                f" epoch {epoch}; read /v1/sim again, then retry"
            )
        return self._begin(Pace(mode, rate, epoch + 1))

    def stand_still(self, *, epoch: int) -> None:
        """Let no time pass, from that epoch on: it was counted elsewhere."""
        self._begin(Pace(Mode.MANUAL, USUAL_RATE, epoch))

    def run_free(self) -> None:
        """As fast as it can, whatever the mode was: for the beginning and the end of a world."""
        self._begin(Pace(Mode.NO_WAIT, math.inf, self._pace.epoch + 1))

    def grant(self, *, seconds: float | None = None, events: int | None = None, epoch: int | None = None) -> Step:
        """Let time go on, after all that was granted before.

        Conflict: another mode, or not the epoch. Invalid: no such step. TooManyTries: too many wait already.
        """
        _check_step(seconds, events)
        if epoch is not None and epoch != self._pace.epoch:
            raise Conflict(
                f"step: it was meant for epoch {epoch}, and this is epoch {self._pace.epoch}; read /v1/sim again,"
                " then retry"
            )
        if self._pace.mode is not Mode.MANUAL:
            raise Conflict(
                f"step: time goes by itself in mode {self._pace.mode.value}; change the mode to manual, then step"
            )
        if len(self._steps) >= MOST_STEPS:
            raise TooManyTries(f"step: {MOST_STEPS} wait already; try again later", 1.0)
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
    def place(self) -> Place:
        """Where the world is: what is done now is done there."""
        return Place(self._round, self._now)

    def enter(self, do: Callable[[], T]) -> T:
        """Do something as part of the world; what it starts belongs to no process."""
        context = outside()
        context.run(_LOOKS.set, False)
        return context.run(do)

    def follow(self, script: Iterable[tuple[Place, Callable[[], None]]], diverged: Callable[[Diverged], None]) -> None:
        """Do each at its place, before a call from outside is let in. A world that does not come to one of the places
        stands still, and `diverged` is called."""
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
        """What is to be done here. A round only goes where the next place is still ahead."""
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

    def _admitted(self, handles: list[asyncio.Handle]) -> list[asyncio.Handle]:
        """The world's, which are drawn from, then those of who only looks."""
        world: list[asyncio.Handle] = []
        looking: list[asyncio.Handle] = []
        for handle in handles:
            (looking if handle._context.get(_LOOKS) else world).append(handle)  # type: ignore[attr-defined]
        if world:
            self._round += 1
            world = super()._admitted(world)
            if len(world) > 1:
                super()._shuffle(world)
        return world + looking

    def _shuffle(self, handles: list[asyncio.Handle]) -> None:
        """They are in order already."""

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
        """Whether time may jump to the next timer now; otherwise it has waited until there was something new."""
        pause = self._pause(self._due())
        if pause <= 0:
            return True
        with self._bell:
            if not self._waiting:
                self._bell.wait(None if pause == math.inf else pause)
        return False

    def _pause(self, due: float) -> float:
        """Real seconds to wait, if nobody calls; 0: what is due next may be done now."""
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
        early = (self._now - self._allowed(self._now)) / self._pace.rate
        return early if early > EARLY else 0.0

    def _stepping(self, due: float) -> bool:
        """Whether a step covers what is due next. Steps that cover no more than is done already are done."""
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
        """Where time passes by itself, up to the present; never past what is due, or ready, and not done yet."""
        if self._pace.mode is Mode.MEASURED and not self._ready:
            self._now = max(self._now, min(self._allowed(self._now), self._due()))

    def _due(self) -> float:
        """The instant of the next timer; infinite: there is none."""
        at = self.next_at()
        return math.inf if at is None else at

    def _allowed(self, reached: float) -> float:
        """How far time may be. Whoever is late by much makes up for some of it only."""
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
    """Runs `main` on a paced loop in a thread of its own, and serves calls from outside until it is stopped.

    `main` returns when it is cancelled. If it fails the loop goes on, so that calls are still answered; `failed` is
    told, as it is of everything that nobody in the world took care of.
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
        """Begin."""
        self._thread.start()

    def stop(self, *, within: float) -> bool:
        """End it; False: it is still busy after `within` real seconds, and was left alone. Blocks."""

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
        loop.set_exception_handler(self._noticed)
        try:
            self._task = loop.create_task(self._main(), name="world")
            self._task.add_done_callback(self._ended)
            loop.run_forever()
            loop.set_exception_handler(lambda *_: None)  # whatever ends now ends because all does
            loop.end(ENDED)
            self._cancel_all()
            loop.close()
        except BaseException as error:  # noqa: BLE001 - the thread ends here; whoever serves beside it goes on
            self._failed("the simulation ended", error)
            loop.end(f"simulation: it ended ({type(error).__name__}: {error}); start it again")

    def _cancel_all(self) -> None:
        left = [task for task in asyncio.all_tasks(self.loop) if not task.done()]
        for task in left:
            task.cancel()
        if left:
            self.loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed("the world ended", error)
        else:
            self.loop.stop()

    def _noticed(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self._failed(str(context.get("message", "")), error if error is not None else RuntimeError("no exception"))


def _looking() -> Context:
    context = outside()
    context.run(_LOOKS.set, True)
    return context


def _drop(step: Step, why: str) -> None:
    if not step.done.done():
        step.done.set_exception(Conflict(f"step {step.id}: {why} before it was done; read /v1/sim"))


def _checked_rate(mode: Mode, rate: float | None) -> float:
    if rate is None:
        return USUAL_LIMIT if mode is Mode.NO_WAIT else USUAL_RATE
    slowest, fastest = RATES
    if not slowest <= rate <= fastest:
        raise Invalid(f"rate {rate!r}: must be from {slowest:g} to {fastest:g} virtual seconds for each real one")
    return float(rate)


def _check_step(seconds: float | None, events: int | None) -> None:
    if (seconds is None) == (events is None):
        raise Invalid("step: how far? give either seconds or events")
    if seconds is not None and not 0 < seconds <= MOST_SECONDS:
        raise Invalid(f"seconds {seconds!r}: must be above 0 and at most {MOST_SECONDS:.0f}")
    if events is not None and not 1 <= events <= MOST_EVENTS:
        raise Invalid(f"events {events!r}: must be from 1 to {MOST_EVENTS}")
