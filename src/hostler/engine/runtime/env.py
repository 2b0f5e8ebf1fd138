"""The environment of a process: time, randomness, identity and logging, as one value.

Everything that decides or waits gets these from the composition root (`engine/control_plane.py`), never from the
system. Therefore the whole control plane runs in virtual time, and the same seed gives the same run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from hostler.engine.decision_recorder import Tracer
    from hostler.kit.clock import Clock
    from hostler.ports.store import Store


def say_nothing(_: str) -> None:
    """Log nothing."""


def no_id() -> str:
    """Raise an error: the service was built without a source of ids."""
    raise RuntimeError("this service was built without a source of ids")


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerEnv:
    """What every service of the leader, and a lab worker, works with."""

    store: Store
    clock: Clock
    rng: random.Random
    new_id: Callable[[], str] = no_id
    """Returns an id that no other call returns."""
    tracer: Tracer | None = None
    """Records decisions; None: they are not recorded."""
    tell: Callable[[str], None] = say_nothing
    """Logs a line."""


@dataclass(frozen=True, slots=True)
class Env:
    """The environment of a process. Metrics are not in it: a component counts in its `counters`."""

    clock: Clock
    rng: random.Random
    """Spreads retries and chooses between equals; guards nothing."""
    new_id: Callable[[], str]
    """Returns an id that no other call returns."""
    new_secret: Callable[[], str]
    """Returns 256 unpredictable bits as text."""
    tell: Callable[[str], None] = say_nothing
    """Logs a line."""
    warn: Callable[[str], None] = say_nothing
    """Logs a line that an operator should act on."""
