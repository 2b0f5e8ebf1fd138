"""Copying one store into another, whatever their engines are."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

from hostler.entry.transfer.fill import MARKER, check_complete, fill
from hostler.entry.transfer.walk import items

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from hostler.entry.transfer.fill import Outcome, Progress
    from hostler.ports.store import KeyValue, Store


class StoreSource:
    """A store as of one revision.

    Keys that are attached to a lease are left out and counted, unless `with_leased`: without their lease they would
    live for ever.
    """

    def __init__(self, store: Store, name: str, prefix: str, *, revision: int, with_leased: bool) -> None:
        self.name, self.revision, self.leased = name, revision, 0
        self._store, self._prefix, self._with_leased = store, prefix, with_leased

    async def entries(self) -> AsyncGenerator[KeyValue, None]:
        self.leased = 0
        async with aclosing(items(self._store, self._prefix, revision=self.revision)) as found:
            async for kv in found:
                if kv.lease is not None:
                    self.leased += 1
                    if not self._with_leased:
                        continue
                if kv.key != MARKER:
                    yield kv


async def source_of(store: Store, name: str, prefix: str, *, with_leased: bool) -> StoreSource:
    """The store as it is now. Conflict: it is an unfinished copy itself."""
    check_complete(await store.get(MARKER), name)
    page = await store.range(prefix, limit=1, keys_only=True)
    return StoreSource(store, name, prefix, revision=page.revision, with_leased=with_leased)


async def copy(
    source: Store,
    target: Store,
    name: str,
    *,
    prefix: str,
    overwrite: bool,
    with_leased: bool,
    report: Callable[[Progress], None],
) -> tuple[Outcome, StoreSource]:
    """Make what is under `prefix` in `target` what it is in `source` now; see `fill` for how it can end."""
    snapshot = await source_of(source, name, prefix, with_leased=with_leased)
    return await fill(target, snapshot, prefix, merge=overwrite, report=report), snapshot
