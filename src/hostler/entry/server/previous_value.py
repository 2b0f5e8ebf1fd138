"""What stood under a key before it changed, where somebody has to know.

Kept here, for to be told it with every event costs etcd many times what the write did.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostler.ports.store import Event, KeyValue, Store

_PAGE = 1000


class Former:
    """The newest values under some prefixes, as far as events have told of them."""

    def __init__(self, prefixes: Sequence[str]) -> None:
        self._prefixes = tuple(dict.fromkeys(prefixes))
        self._values: dict[str, KeyValue] = {}

    async def read(self, store: Store, revision: int) -> None:
        """All of them, as they stood at `revision`. Compacted: that is no longer known."""
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
        """The event with what stood there before, if that is kept here; to be asked once for each, in their order."""
        key = event.kv.key
        if not key.startswith(self._prefixes):
            return event
        before = self._values.pop(key, None)
        if event.type == "put":
            self._values[key] = event.kv
        return msgspec.structs.replace(event, previous=before)
