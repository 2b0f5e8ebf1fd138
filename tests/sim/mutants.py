# ruff: noqa: ARG002, ARG005 - a defect often is an argument that is ignored
"""Elections with one defect each, to see that the schedules find it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hostler.drivers.ttl.store import StoreTtlStorage
from hostler.engine.elections import Elections, Leadership
from hostler.ports.store import Delete

from .world import Rules

if TYPE_CHECKING:
    from collections.abc import Callable

MUTANTS: list[tuple[str, Rules, str]] = []


class FenceBeforeClaim(Elections):
    """Draws the number first, then takes the key: who sleeps between the two leads with an old number."""

    async def _acquire(self, key: str, value: str, ttl: float) -> Leadership | None:
        if await self._within(ttl, self.storage.get(key)) is not None:
            return None
        self._drawn = await self._within(ttl, super()._next_fence(key, ttl, self.clock.now() + ttl))
        return await super()._acquire(key, value, ttl)

    async def _next_fence(self, key: str, ttl: float, until: float) -> int:
        return self._drawn


class LateDeadline(Elections):
    """Counts the leadership's life from the answer, not from the question."""

    async def _acquire(self, key: str, value: str, ttl: float) -> Leadership | None:
        leadership = await super()._acquire(key, value, ttl)
        if leadership is not None:
            leadership.deadline = self.clock.now() + ttl
            renewed = leadership._renewed

            async def late() -> bool | None:
                outcome = await renewed()
                if outcome:
                    leadership.deadline = self.clock.now() + ttl
                return outcome

            leadership._renewed = late  # type: ignore[method-assign]
        return leadership


class _Endless(Leadership):
    @property
    def held(self) -> bool:
        return self.lost is None

    def _lose_in_time(self) -> None:
        return


class NoDeadline(Elections):
    """Leads until the storage says otherwise, and a storage that hangs says nothing."""

    async def _acquire(self, key: str, value: str, ttl: float) -> Leadership | None:
        leadership = await super()._acquire(key, value, ttl)
        if leadership is not None:
            leadership.__class__ = _Endless
        return leadership


class DeleteWithoutCompare(StoreTtlStorage):
    """Removes whatever stands there: also the successor's record, if the request was long on its way."""

    async def compare_and_delete(self, key: str, old: str) -> bool:
        result = await self._store.txn([], [Delete(key)])
        return bool(result.responses[0])


def _mutant(name: str, found_as: str, **parts: Callable[..., Any]) -> None:
    MUTANTS.append((name, Rules(**parts), found_as))


_mutant("the fence is drawn before the claim", "leads .* after fence", elections=FenceBeforeClaim)
_mutant("the deadline counts from the answer", "both .* are held", elections=LateDeadline)
_mutant("there is no deadline while the storage hangs", "both .* are held", elections=NoDeadline)
_mutant("release deletes without comparing", "both .* are held", storage=DeleteWithoutCompare)
_mutant("writes carry no guard", "wrote with fence", guards=lambda leadership: [])
