"""What the stores of one host share: verbs that are one transaction, and deadlines that outlive their process.

Within one boot of the host every process reads the same monotonic clock, so a deadline is an instant on it: a restarted
process finds a lease with exactly the time it has left, and changes of the wall clock do not matter. The wall clock is
used only across a reboot, and never extends a lease beyond its own ttl.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from hostler.kit.clock import boot_id
from hostler.kit.tasks import Closing
from hostler.ports.store import (
    Delete,
    DeletePrefix,
    Put,
    check_delete_prefix,
    check_key,
    check_put,
    check_range,
    check_revision,
    lease_id,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostler.drivers.store.mvcc import Mvcc
    from hostler.kit.clock import Clock
    from hostler.ports.store import Comparison, KeyValue, Lease, Operation, Page, TxnResult


class LocalStore(Closing):
    """The verbs of the port that are one transaction, by `_commit`."""

    async def _commit(
        self, when: Sequence[Comparison], then: Sequence[Operation], otherwise: Sequence[Operation]
    ) -> TxnResult:
        raise NotImplementedError

    async def put(self, key: str, value: bytes, *, lease: int | Lease | None = None) -> int:
        check_put(key, value)
        return (await self._commit((), (Put(key, value, lease_id(lease)),), ())).revision

    async def delete(self, key: str) -> bool:
        check_key(key)
        return bool((await self._commit((), (Delete(key),), ())).responses[0])

    async def delete_prefix(self, prefix: str) -> int:
        check_delete_prefix(prefix)
        return int((await self._commit((), (DeletePrefix(prefix),), ())).responses[0])  # type: ignore[arg-type]


class StateStore(LocalStore):
    """A local store whose state is in memory; `_current` returns it, as new as a linearizable read must be."""

    async def _current(self) -> Mvcc:
        raise NotImplementedError

    async def get(self, key: str, *, revision: int | None = None) -> KeyValue | None:
        check_key(key)
        check_revision(revision)
        return (await self._current()).get(key, revision)

    async def range(
        self,
        prefix: str,
        *,
        after: str | None = None,
        limit: int | None = None,
        revision: int | None = None,
        keys_only: bool = False,
    ) -> Page:
        check_range(prefix, after, limit, revision)
        state = await self._current()
        return state.range(prefix, after=after, limit=limit, revision=revision, keys_only=keys_only)


class Deadline(msgspec.Struct, frozen=True):
    """An instant: on the host's monotonic clock within one boot, and on the wall clock."""

    boot: str
    at: float
    wall: float


class HostTime:
    """Creates deadlines and converts them to the current boot."""

    def __init__(self, clock: Clock, boot: str | None = None) -> None:
        self._clock = clock
        self.boot = boot or boot_id()

    def now(self) -> float:
        """Return this boot's monotonic time."""
        return self._clock.now()

    def wall(self) -> float:
        """Return the wall clock's time."""
        return self._clock.wall()

    def after(self, seconds: float) -> Deadline:
        """Return the instant `seconds` from now."""
        return Deadline(self.boot, self._clock.now() + seconds, self._clock.wall() + seconds)

    def local(self, deadline: Deadline, ttl: float) -> Deadline:
        """Return the same deadline on this boot's clock; never further away than `ttl`."""
        if deadline.boot == self.boot:
            return deadline
        return self.after(min(ttl, max(0.0, deadline.wall - self._clock.wall())))
