"""A hardware watchdog, Linux's `/dev/watchdog`: it resets the host unless it is fed in time."""

from __future__ import annotations

import fcntl
import os
import struct
from typing import TYPE_CHECKING

from hostler.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SET_TIMEOUT, GET_TIMEOUT = 0xC0045706, 0x80045707
"""WDIOC_SETTIMEOUT and WDIOC_GETTIMEOUT of linux/watchdog.h, in seconds."""
FOOD, DISARM = b"\0", b"V"
"""DISARM is the "magic close": closing the device after it stops the watchdog, if its driver allows that."""
_SECONDS = struct.Struct("i")


class WatchdogDevice:
    """The opened device, which starts it. Without `disarm` it continues after `close` and after the process ends."""

    def __init__(
        self, path: Path, *, timeout: float, ioctl: Callable[[int, int, bytes], bytes | int] = fcntl.ioctl
    ) -> None:
        """Set the time after which it resets the host. Unavailable: it cannot be opened, or has no such time."""
        self._path = path
        try:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise Unavailable(
                f"watchdog {path}: cannot be opened: {error.strerror}; load its driver (for example softdog), give this"
                " user write permission, end other processes that use it, or remove `watchdog` from the settings"
            ) from None
        self.timeout = 0.0
        """Seconds. The driver may round the value, or support only one."""
        for request in (SET_TIMEOUT, GET_TIMEOUT):
            try:
                answer = ioctl(self._descriptor, request, _SECONDS.pack(max(1, int(timeout))))
                self.timeout = float(_SECONDS.unpack(bytes(answer))[0])
            except (OSError, TypeError, struct.error):  # some drivers have a fixed time
                continue
        if self.timeout <= 0:
            self.disarm()
            self.close()
            raise Unavailable(
                f"watchdog {path}: does not report its timeout, so it cannot be used; use"
                " another device, or remove `watchdog` from the settings"
            )

    def feed(self) -> None:
        """Restart the countdown. Unavailable: the device rejects it."""
        self._write(FOOD)

    def disarm(self) -> None:
        """Make it stop when it is closed."""
        self._write(DISARM)

    def close(self) -> None:
        os.close(self._descriptor)

    def _write(self, data: bytes) -> None:
        try:
            os.write(self._descriptor, data)
        except OSError as error:
            raise Unavailable(
                f"watchdog {self._path}: cannot be written to: {error.strerror}; it may reset this host; see its driver"
            ) from None
