"""Time comes in through the door.

Nothing in Hostler asks the system for the time; it asks the clock it was given. Durations are float seconds.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Protocol


class Clock(Protocol):
    """Where time comes from."""

    def now(self) -> float:
        """Seconds on a clock that never goes back; its zero means nothing."""

    def wall(self) -> float:
        """Seconds since 1970, as the calendar has it; may jump."""

    async def sleep(self, seconds: float) -> None:
        """Come back no earlier than `seconds` from now."""


_SINCE_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """The machine's own time.

    `now()` counts from the machine's boot and also while it is suspended, so every process of one machine reads the
    same instant: a deadline written by one process can be kept by another. (Where the host has no clock that counts
    suspends, it is the monotonic one.)
    """

    def now(self) -> float:
        return time.clock_gettime(_SINCE_BOOT)

    def wall(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def boot_id() -> str:
    """Names the span in which `SystemClock.now()` is comparable: it changes when the machine boots."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
