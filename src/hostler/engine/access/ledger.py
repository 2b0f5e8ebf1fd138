"""Reading the audit: page by page, forwards or newest first, and of it what the caller sees and asks for."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

import msgspec

from hostler.engine.access.audit import sees
from hostler.engine.annals import AHEAD, Line
from hostler.engine.happening import instant_of
from hostler.errors import Invalid
from hostler.keys.access import AUDIT
from hostler.model.api import AuditPage, AuditView

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from hostler.engine.access.known import Mirrors
    from hostler.engine.request import Caller
    from hostler.keys.entry import Entry
    from hostler.kit.clock import Clock
    from hostler.model.access import Audit
    from hostler.ports.store import KeyValue, Store

LOOKED_AT = 5000
"""Writes of the audit that one request goes through at most, about."""
AT_ONCE = 500
"""Of these, read by one call of the store, after the first."""
SLACK = 0.00001
"""Seconds by which an instant may differ from what its key says: keys count microseconds, and floats not quite."""
DAY = 86400.0


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Which writes. What is empty asks for nothing."""

    day: str = ""
    who: str = ""
    verb: str = ""
    """`vm.create`, or the beginning of one: `vm.`."""
    subject: str = ""
    """Any part of the key of what was written, or of its name."""

    def has(self, written: Audit, name: Callable[[str], str]) -> bool:
        """Whether it is one of them. The day is not looked at. `name`: what the record at a key is called."""
        return (
            (not self.who or written.who.casefold() == self.who.casefold())
            and written.verb.startswith(self.verb)
            and self._is_about(written, name)
        )

    def _is_about(self, written: Audit, name: Callable[[str], str]) -> bool:
        part = self.subject.casefold()
        return part in written.subject.casefold() or part in _called(written, name).casefold()


async def page(
    store: Store,
    caller: Caller,
    known: Mirrors,
    wanted: Wanted,
    *,
    limit: int,
    after: str | None = None,
    newest: bool = False,
    clock: Clock,
    name: Callable[[str], str] = lambda _: "",
) -> AuditPage:
    """A page, which may be short, or empty, and not be the last. To those who do not belong everywhere, only what
    concerns them. `name`: what people call the record at a key."""
    place = None
    if after is not None:
        day, slash, write = after.partition("/")
        if not slash:
            raise Invalid("query after: it is no `after` of an audit page; take it from the last page")
        place = AUDIT.fill(day=day, write=write)
    items: list[AuditView] = []
    looked, last = 0, None
    lines = _back(store, wanted.day, place, clock) if newest else _forth(store, wanted.day, place, limit)
    async with aclosing(lines):
        async for kv in lines:
            if len(items) == limit or looked == LOOKED_AT:
                break  # there is this one more
            entry = AUDIT.entry(kv)
            looked, last = looked + 1, entry
            if wanted.has(entry.value, name) and sees(caller, entry, known):
                items.append(_shown(entry, name))
        else:
            last = None
    return AuditPage(items=tuple(items), after=f"{last.parts['day']}/{last.parts['write']}" if last else None)


async def _forth(store: Store, day: str, place: str | None, limit: int) -> AsyncGenerator[KeyValue, None]:
    prefix = AUDIT.prefix(day=day) if day else AUDIT.prefix()
    more, many = True, limit + 1
    while more:
        found = await store.range(prefix, after=place, limit=many)
        for kv in found.items:
            yield kv
        more, many = found.more, max(many, AT_ONCE)  # what was asked for is rare
        if more:
            place = found.items[-1].key


async def _back(store: Store, day: str, place: str | None, clock: Clock) -> AsyncGenerator[KeyValue, None]:
    """Newest first."""
    end, ahead = clock.wall() + AHEAD, AHEAD
    if day:
        midnight = instant_of(AUDIT.fill(day=day, write="00:00:00.000000-"))
        if midnight is None:
            raise Invalid(f"query day: {day} is no day; write it as 2026-11-15")
        end, ahead = midnight + DAY, 0.0
    if place is not None:
        instant = instant_of(place)
        if instant is None:
            raise Invalid("query after: it is no `after` of an audit page; take it from the last page")
        if instant + SLACK < end:
            end, ahead = instant + SLACK, 0.0
    prefix = AUDIT.prefix(day=day) if day else ""
    async with aclosing(Line(store, AUDIT.prefix()).back(end, ahead=ahead)) as lists:
        async for found in lists:
            for kv in found:
                if day and not kv.key.startswith(prefix):
                    return
                if place is None or kv.key < place:
                    yield kv


def _called(written: Audit, name: Callable[[str], str]) -> str:
    """As it was called then; of what was written before that was kept, as it is called now."""
    return written.name or name(written.subject)


def _shown(entry: Entry[Audit], name: Callable[[str], str]) -> AuditView:
    record = entry.value
    return AuditView(
        who=record.who,
        verb=record.verb,
        subject=record.subject,
        before=record.before,
        after=entry.create_revision,
        at=record.at,
        source=record.source,
        name=_called(record, name),
    )
