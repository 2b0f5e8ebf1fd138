"""Password hashing: make a hash that can be stored, and verify a password against it."""

from __future__ import annotations

from typing import Protocol


class Hasher(Protocol):
    """Hashes passwords, deliberately slowly and off the event loop.

    TooManyTries: too many requests are already waiting; nothing was computed. Closed: used after `aclose`.
    """

    async def hash(self, password: str) -> str:
        """Return a hash of the password that can be stored. It is salted, so no two hashes are equal."""

    async def verify(self, kept: str, password: str) -> bool:
        """Return whether `kept` is a hash of this password.

        False also if `kept` is empty or not a hash. That takes as long as a wrong password does, so that the duration
        does not reveal the difference.
        """

    async def aclose(self) -> None:
        """Release everything; waiting requests end with Closed."""
