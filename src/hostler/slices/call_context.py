"""The context of a call: the instance, the method and the deadline."""

from __future__ import annotations

import time
from contextvars import ContextVar

import msgspec


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """The context of a call, or (in `start`, `stop` and `healthy`) of the instance."""

    artifact: str = ""
    """`group:name:version`; empty: this process is not a worker."""
    instance: int = 0
    node: str = ""
    method: str = ""
    trace: str = ""
    """The trace of the request that the call belongs to."""
    ends_at: float | None = None
    """On the clock of `time.monotonic`; None: no deadline."""

    @property
    def left(self) -> float | None:
        """Return the seconds until the deadline; None: there is none."""
        return None if self.ends_at is None else max(0.0, self.ends_at - time.monotonic())


CURRENT: ContextVar[Context] = ContextVar("hostler.slices.context")
_NOWHERE = Context()
_here = _NOWHERE


def context() -> Context:
    """Return the context of the call that this code runs for."""
    return CURRENT.get(_here)


def be(here: Context) -> None:
    """Set the context outside of calls."""
    global _here  # noqa: PLW0603 - a process is one instance
    _here = here
