"""Deletes orphan endpoints: a slice's key was removed by hand, and its node did not notice.

One page of endpoints is checked at a time, so that the cost does not depend on the size of the cluster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.engine.deployments.transactions import WRITES
from hostler.engine.runtime.guarded_writer import Txn, Why
from hostler.errors import Conflict, Damaged, Invalid, Unavailable, Uncertain
from hostler.keys.families import ENDPOINT, SLICE
from hostler.kit.plural import counted
from hostler.ports.store import Delete, Version

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hostler.engine.runtime.guarded_writer import GuardedWriter
    from hostler.engine.view import View
    from hostler.keys.entry import Entry
    from hostler.kit.clock import Clock
    from hostler.model.deployment import Endpoint
    from hostler.ports.store import Comparison, KeyValue, Store

EVERY = 60.0
PAGE = 1000
MOST = WRITES // 2
"""Endpoints deleted in one transaction: each is compared, and so is the slice record that does not contain it."""
_NAME = "strays"


class OrphanEndpoints:
    """Search for orphan endpoints, for one leadership."""

    def __init__(self, store: Store, view: View, writing: GuardedWriter, *, clock: Clock) -> None:
        self._store, self._view, self._writing, self._clock = store, view, writing, clock
        self._next_at = clock.now() + EVERY
        self._after: str | None = None

    async def look(self) -> None:
        """Check the next page if it is due. What fails is retried when the page is due again."""
        if self._clock.now() < self._next_at:
            return
        self._next_at = self._clock.now() + EVERY
        if not await self._writing.caught_up(_NAME):
            return
        try:
            page = await self._store.range(ENDPOINT.prefix(), after=self._after, limit=PAGE)
            self._after = page.items[-1].key if page.more else None
            found = list(self._strays(page.items))
            for first in range(0, len(found), MOST):
                await self._drop(found[first : first + MOST])
        except (Conflict, Unavailable, Uncertain):
            self._writing.count("strays_left")

    def _strays(self, kvs: Iterable[KeyValue]) -> Iterable[Entry[Endpoint]]:
        slices = self._view.slices
        for kv in kvs:
            try:
                entry = ENDPOINT.entry(kv)
            except (Damaged, Invalid):
                continue
            parts = {"node": entry.value.node_id, "artifact": entry.parts["artifact"]}
            if SLICE.fill(**parts) in slices.unreadable:
                continue
            record = slices.get(**parts)
            if record is None or int(entry.parts["instance"]) not in record.value.each():
                yield entry

    async def _drop(self, strays: list[Entry[Endpoint]]) -> None:
        """Delete endpoints if the slices are as this leader knows them: an instance may have been added just now."""
        when: dict[str, Comparison] = {}
        for one in strays:
            key = SLICE.fill(node=one.value.node_id, artifact=one.parts["artifact"])
            record = self._view.slices.entries.get(key)
            when[key] = Version(key) == 0 if record is None else SLICE.unchanged(record)
        txn = Txn([*when.values(), *map(ENDPOINT.unchanged, strays)], [Delete(one.key) for one in strays])
        why = Why(
            what="strays",
            why=counted(
                len(strays),
                "endpoint belongs to no instance of a slice, and is",
                "endpoints belong to no instance of a slice, and are",
            )
            + " dropped",
            read=tuple(strays[:8]),
        )
        await self._writing.write(_NAME, strays[0].key, txn, why)
