"""The clock interface.

Code in Hostler never asks the system for the time; it asks the clock it was given. Durations are float seconds.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from functools import cache
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
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:  # not Linux
        return _boot_id_elsewhere()


_BOOT_NAMES = (b"kern.bootsessionuuid", b"kern.boot_id")
"""The id of the boot on macOS, and on FreeBSD."""


@cache
def _boot_id_elsewhere() -> str:
    """Return the kernel's id of the boot; on a host that has none, an id of this process.

    Processes of such a host treat each other's instants as those of an earlier boot: they go by the wall clock.
    """
    import ctypes  # slow to import, and not needed on Linux

    for name in _BOOT_NAMES:
        size = ctypes.c_size_t(128)
        text = ctypes.create_string_buffer(size.value)
        try:
            failed = ctypes.CDLL(None).sysctlbyname(name, text, ctypes.byref(size), None, ctypes.c_size_t(0))
        except AttributeError:  # this system has no such function
            break
        if not failed and text.value:
            return text.value.decode("ascii", "replace").lower()
    return f"process-{secrets.token_hex(8)}"
