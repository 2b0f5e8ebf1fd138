"""Refused requests in the audit log: one entry per account, address, kind and minute, with a count.

Each replica counts in memory and writes once a minute, at most `LINES` entries and one for all others, so that an
attack cannot fill the store. A name that no account has is not written, because users also type passwords there.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

from hostler.engine.idempotent_writer import instants
from hostler.errors import HostlerError
from hostler.keys.families import AUDIT, USER
from hostler.kit.connections import origin
from hostler.model.access import Audit

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.kit.clock import Clock
    from hostler.ports.store import Put, Store

EVERY = 60.0
LINES = 20
"""Number of entries that a replica writes per minute, plus one for all others."""
HELD = 1000
"""Number of combinations that are counted individually."""
OTHERS = ("", "", "others")
LAST_WITHIN = 1.0
"""Seconds for the last write at the end of a process."""
SIGN_IN, CREDENTIAL, RIGHT, BUDGET = "sign-in", "credential", "right", "budget"
"""Kinds: a wrong password; no valid token or ticket; a missing right; more than the budget."""


class Refusals:
    """Counts refused requests. One per server. `exists` returns whether there is an account of that name."""

    def __init__(self, store: Store, *, clock: Clock, new_id: Callable[[], str], exists: Callable[[str], bool]) -> None:
        self._store, self._clock, self._new_id, self._exists = store, clock, new_id, exists
        self._counts: Counter[tuple[str, str, str]] = Counter()
        self._routes: dict[tuple[str, str, str], str] = {}

    def note(self, kind: str, account: str, source: str, route: str) -> None:
        """Count a refused request. `account`: the one that made it, or that a sign-in named."""
        key = (account if account and self._exists(account) else "", origin(source), kind)
        if key not in self._counts and len(self._counts) >= HELD:
            key = OTHERS
        self._counts[key] += 1
        self._routes[key] = route

    async def run(self) -> None:
        """Write once a minute, until cancelled."""
        while True:
            await self._clock.sleep(EVERY)
            await self.flush()

    async def aclose(self) -> None:
        """Write the remaining counts, if the store answers soon."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WITHIN):
                await self.flush()

    async def flush(self) -> None:
        """Write the counts. Counts that the store does not accept are kept."""
        if not self._counts:
            return
        counts, routes = self._counts, self._routes
        self._counts, self._routes = Counter(), {}
        told = dict(counts.most_common(LINES))
        rest = counts.total() - sum(told.values())
        if rest:
            told[OTHERS] = told.get(OTHERS, 0) + rest
            routes.setdefault(OTHERS, "")
        try:
            await self._store.txn([], [self._line(key, count, routes.get(key, "")) for key, count in told.items()])
        except HostlerError:  # if it was written after all, these are counted twice
            self._counts.update(told)
            self._routes = {**routes, **self._routes}

    def _line(self, key: tuple[str, str, str], count: int, route: str) -> Put:
        account, source, kind = key
        wall = self._clock.wall()
        day, instant = instants(wall)
        record = Audit(
            who=account,
            verb=f"refused.{kind}",
            subject=USER.fill(user=account) if account else "",
            at=wall,
            source=source,
            name=route,
            count=count,
        )
        return AUDIT.put(record, day=day, write=f"{instant}-{self._new_id()}")
