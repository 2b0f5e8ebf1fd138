"""The clock interface.

Code in Hostler never asks the system for the time; it asks the clock it was given. Durations are float seconds.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Protocol


class Clock(Protocol):
    """A source of time."""

    def now(self) -> float:
        """Return seconds on a clock that never goes back; its zero has no meaning."""

    def wall(self) -> float:
        """Return seconds since 1970 by the wall clock; may jump."""

    async def sleep(self, seconds: float) -> None:
        """Return no earlier than `seconds` from now."""


_SINCE_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """The time of this host.

    `now()` counts from boot and also while the host is suspended, so every process of one host reads the same instant:
    a deadline written by one process can be kept by another. (If the host has no clock that counts suspends, it is the
    monotonic one.)
    """

    def now(self) -> float:
        return time.clock_gettime(_SINCE_BOOT)

    def wall(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def boot_id() -> str:
    """Return the id of the current boot. `SystemClock.now()` is comparable only within one boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
