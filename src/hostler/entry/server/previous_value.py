"""Previous values of changed keys, for the kinds of events that need them.

They are kept here because requesting them with every event costs etcd many times as much as the write itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostler.ports.store import Event, KeyValue, Store

_PAGE = 1000


class Former:
    """The latest values under some prefixes, updated by events."""

    def __init__(self, prefixes: Sequence[str]) -> None:
        self._prefixes = tuple(dict.fromkeys(prefixes))
        self._values: dict[str, KeyValue] = {}

    async def read(self, store: Store, revision: int) -> None:
        """Read all values as of `revision`. Compacted: that revision is no longer available."""
        found: dict[str, KeyValue] = {}
        for prefix in self._prefixes:
            after: str | None = None
            while True:
                page = await store.range(prefix, after=after, limit=_PAGE, revision=revision)
                found.update((kv.key, kv) for kv in page.items)
                if not page.more:
                    break
                after = page.items[-1].key
        self._values = found

    def completed(self, event: Event) -> Event:
        """Return the event with its previous value, if that is kept here. Call once for each event, in order."""
        key = event.kv.key
        if not key.startswith(self._prefixes):
            return event
        before = self._values.pop(key, None)
        if event.type == "put":
            self._values[key] = event.kv
        return msgspec.structs.replace(event, previous=before)
