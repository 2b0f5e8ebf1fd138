"""Passwords: what is kept of them, and whether one is right."""

from __future__ import annotations

from typing import Protocol


class Hasher(Protocol):
    """Slow on purpose, and off the event loop.

    TooManyTries: too many wait already; nothing was looked at. Closed: used after `aclose`.
    """

    async def hash(self, password: str) -> str:
        """What may be kept of the password: salted, so no two are alike."""

    async def verify(self, kept: str, password: str) -> bool:
        """Whether `kept` was made from this password.

        False also if `kept` is empty or is no hash; that takes as long as a wrong password, so that the time it takes
        does not tell one from the other.
        """

    async def aclose(self) -> None:
        """Let go of everything; what still waits ends with Closed."""
