"""An environment of which a test names only what it is about."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING

from hostler.engine.runtime.env import Env, say_nothing

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.kit.clock import Clock


def env_on(
    clock: Clock,
    rng: random.Random | None = None,
    *,
    new_id: Callable[[], str] | None = None,
    new_secret: Callable[[], str] | None = None,
    tell: Callable[[str], None] = say_nothing,
) -> Env:
    """With ids and secrets that are counted, and one log for everything."""
    numbers = itertools.count(1)
    return Env(
        clock,
        rng or random.Random(1),
        new_id or (lambda: f"id-{next(numbers)}"),
        new_secret or (lambda: f"secret-{next(numbers)}"),
        tell=tell,
        warn=tell,
    )
