"""Claims that wait: many at once, and each is tried once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping


async def all_hold(claims: Mapping[str, Awaitable[None]]) -> None:
    """Try claims side by side, by driver and name; raise a group with every one that does not hold."""
    failures: list[Exception] = []

    async def attempt(name: str, claim: Awaitable[None]) -> None:
        try:
            await claim
        except Exception as error:  # noqa: BLE001 - all of them are reported, together
            error.add_note(f"on {name}")
            failures.append(error)

    await asyncio.gather(*(attempt(name, claim) for name, claim in claims.items()))
    if failures:
        raise ExceptionGroup(f"{len(failures)} of {len(claims)} claims do not hold", failures)


class Lent:
    """A client that somebody else opens and closes, for one of the claims that share it."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def aclose(self) -> None:
        pass
