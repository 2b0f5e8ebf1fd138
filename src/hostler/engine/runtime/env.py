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

    from hostler.kit.clock import Clock


def say_nothing(_: str) -> None:
    """Log nothing."""


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
