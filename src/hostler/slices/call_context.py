"""Where a method runs, and how much time it has."""

from __future__ import annotations

import time
from contextvars import ContextVar

import msgspec


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """Of a call, or (in `start`, `stop` and `healthy`) of the instance."""

    artifact: str = ""
    """`group:name:version`; empty: this is no worker."""
    instance: int = 0
    node: str = ""
    method: str = ""
    trace: str = ""
    """Of the request that the call belongs to."""
    ends_at: float | None = None
    """On the clock of `time.monotonic`; None: it has all the time."""

    @property
    def left(self) -> float | None:
        """Seconds until nobody waits for the answer any more; None: all the time."""
        return None if self.ends_at is None else max(0.0, self.ends_at - time.monotonic())


CURRENT: ContextVar[Context] = ContextVar("hostler.slices.context")
_NOWHERE = Context()
_here = _NOWHERE


def context() -> Context:
    """Of the call that this code runs for."""
    return CURRENT.get(_here)


def be(here: Context) -> None:
    """What `context` tells outside of calls."""
    global _here  # noqa: PLW0603 - a process is one instance
    _here = here
