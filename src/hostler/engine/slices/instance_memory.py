"""What the agent remembers about an instance. All of it may be lost: the store and the driver are authoritative."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from hostler.engine.slices.decide import MAX_WHY, RESTARTS, SHOWN, WINDOW, Memory
from hostler.model.deployment import SliceState
from hostler.ports.slices import Life

if TYPE_CHECKING:
    import random

    from hostler.model.deployment import SliceInstance
    from hostler.ports.slices import Method, Running

FIRST_PAUSE = 0.2
LONGEST_PAUSE = 10.0


def pause(failures: int, rng: random.Random) -> float:
    """Return the seconds to wait after this number of consecutive failures."""
    span = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(max(0, failures - 1), 16))
    return rng.uniform(span / 2, span)


class InstanceMemory:
    """Memory of one instance, from its first observation until it is gone."""

    __slots__ = (
        "begun_at",
        "detail",
        "due_at",
        "ended",
        "failed",
        "fallen",
        "falls",
        "inherited",
        "published",
        "restarted",
        "shown",
        "state",
        "tries",
        "unsent",
        "untold",
    )

    def __init__(self, instance: SliceInstance | None, now: float, *, inherited: bool) -> None:
        self.state = None if instance is None else instance.state
        self.inherited = inherited
        self.begun_at = now
        """When the instance entered its state, as far as this process knows."""
        self.tries = 0
        self.due_at = 0.0
        self.failed = ""
        self.detail = ""
        self.ended = ""
        """Why the process last exited in this state."""
        self.fallen = False
        """The process exited, and the pause before its restart has begun."""
        self.falls: deque[float] = deque(maxlen=RESTARTS + 1)
        """Times of the restarts."""
        self.restarted = 0
        self.untold = False
        self.unsent = 0
        """Consecutive failures to write to the store."""
        # An instance first seen in a state with endpoints was published by an earlier process.
        # A running instance without a key may have had one.
        self.shown = self.state is None or self.state in SHOWN
        self.published: tuple[int, str, tuple[Method, ...]] | None = None
        """Session, address and methods of the published endpoints."""

    def meet(self, instance: SliceInstance | None, now: float) -> None:
        """Take over the observed state. A new state clears the failures of the old one."""
        state = None if instance is None else instance.state
        if state is self.state:
            return
        if state is None or self.state is None:
            # The number is used by a new instance. The last one may have been removed by hand and left its endpoints.
            self.shown = self.shown or state in SHOWN
            self.falls.clear()
        self.state, self.begun_at, self.inherited = state, now, False
        self.tries, self.due_at, self.failed, self.detail = 0, 0.0, "", ""
        self.fallen, self.restarted, self.untold, self.ended = False, 0, False, ""

    def notice(self, running: Running | None, now: float, rng: random.Random) -> None:
        """Schedule the restart of an active instance that exited. The pause grows with each restart."""
        if self.state is not SliceState.ACTIVE or (running is not None and running.life is Life.ACTIVE):
            self.fallen = False
        elif not self.fallen:
            self.fallen = True
            if running is not None and running.detail:
                self.detail = self.ended = running.detail[:MAX_WHY]
            self.due_at = now + pause(1 + self._recent(now), rng)

    def failing(self, why: str, now: float, rng: random.Random) -> None:
        """Record that a step failed, and schedule the next attempt."""
        self.tries += 1
        self.detail = why[:MAX_WHY]
        self.due_at = now + pause(self.tries, rng)

    def fell(self, now: float) -> None:
        """Record a restart."""
        self.falls.append(now)
        self.fallen = False

    def memory(self, now: float, *, session: int, running: Running | None) -> Memory:
        """Return the memory as a value for `decide`."""
        right = (
            self.published is not None
            and running is not None
            and self.published == (session, running.address, running.methods)
        )
        return Memory(
            inherited=self.inherited,
            shown=self.shown,
            right=right,
            failed=self.failed,
            untold=self.untold,
            falls=self._recent(now),
            restarted=self.restarted,
            detail=self.detail,
            tries=self.tries,
            ended=self.ended,
            due_at=self.due_at,
            now=now,
        )

    def _recent(self, now: float) -> int:
        while self.falls and self.falls[0] <= now - WINDOW:
            self.falls.popleft()
        return len(self.falls)
