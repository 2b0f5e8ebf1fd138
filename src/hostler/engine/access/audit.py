"""The audit log: which entries a caller may see, and queries of them.

A query reads the store and the audit files, by page, oldest or newest first, and returns only visible entries.
"""

from __future__ import annotations

import re
from contextlib import aclosing
from typing import TYPE_CHECKING, Self

import msgspec

from hostler.engine.access.grant import within_reach
from hostler.engine.history_entry import instant_of
from hostler.engine.history_reader import AHEAD, SKEW, HistorySource
from hostler.errors import Invalid
from hostler.keys.families import AUDIT, AUDIT_FILE, EPOCH, ORG_QUOTA, PROJECT, QUOTA, TOKEN, USER, VM, WORKLOAD
from hostler.keys.lab import LAB
from hostler.kit.tasks import Fairness
from hostler.model.access import EVERYWHERE
from hostler.model.access_api import AuditElsewhere, AuditPage, AuditView
from hostler.model.lab import ORG, lab_project
from hostler.model.node import EpochKind

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from hostler.engine.access.account_cache import Caches
    from hostler.engine.request import Caller
    from hostler.keys.entry import Entry
    from hostler.kit.clock import Clock
    from hostler.model.access import Audit, AuditFile
    from hostler.ports.audit_files import AuditFiles
    from hostler.ports.store import KeyValue, Store


def sees(caller: Caller, written: Entry[Audit], known: Caches) -> bool:
    """Return whether the write concerns a project of the caller, or an account that the caller may manage.

    Everything else, including deleted accounts and tokens, is visible to members of every org only.
    """
    audit = written.value
    workload = WORKLOAD.match(audit.subject)
    if workload is not None and EVERYWHERE not in caller.memberships:
        return sees_workload(caller, workload["workload"], written.create_revision, audit.at, known)
    return sees_subject(caller, audit.subject, written.create_revision, known)


def sees_workload(caller: Caller, name: str, revision: int, at: float | None, known: Caches) -> bool:
    """Return whether a past write to the workload concerned a project of the caller.

    The key of a workload names no project. A write older than its record concerned an earlier workload of the same
    name, possibly of another owner. Revisions show that; in a store that was filled from another one in bulk, the time
    does.
    """
    entry = known.workloads.get(workload=name)
    if entry is None or revision < entry.create_revision:
        return False
    if at is not None and at < entry.value.created_at - SKEW:
        return False
    return caller.sees(*entry.value.home)


def sees_subject(caller: Caller, subject: str, revision: int, known: Caches) -> bool:
    """Return whether a write to the record `subject` at that revision concerns the caller."""
    if EVERYWHERE in caller.memberships:
        return True
    parts = VM.match(subject) or QUOTA.match(subject) or PROJECT.match(subject)
    if parts is not None:
        return caller.sees(parts["org"], parts["project"])
    whole = ORG_QUOTA.match(subject)
    if whole is not None:
        return caller.sees_org(whole["org"])
    lab = LAB.match(subject)
    if lab is not None:
        return caller.sees(ORG, lab_project(lab["user"]))
    token = known.tokens.entries.get(subject) if TOKEN.match(subject) is not None else None
    user = known.users.entries.get(subject if token is None else USER.fill(user=token.value.user))
    # A write from before the account was created concerned an earlier account of that name, possibly elsewhere.
    if user is None or revision < user.create_revision:
        return False
    return user.parts["user"] == caller.name or within_reach(caller, user.value)


LOOKED_AT = 5000
"""Approximate number of entries that one request scans at most."""
AT_ONCE = 500
"""Number of entries that one read of the store returns, after the first read."""
SLACK = 0.00001
"""Seconds by which an instant may differ from its key: keys have microseconds, and floats are not exact."""
DAY = 86400.0
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")


class AuditFilter(msgspec.Struct, frozen=True, kw_only=True):
    """A filter. Empty fields match everything."""

    day: str = ""
    who: str = ""
    verb: str = ""
    """`vm.create`, or a prefix: `vm.`."""
    subject: str = ""
    """Any part of the key that was written, or of its name."""

    def has(self, written: Audit, name: Callable[[str], str]) -> bool:
        """Return whether the entry matches. The day is not checked. `name`: returns the name of the record at a key."""
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
    known: Caches,
    wanted: AuditFilter,
    *,
    limit: int,
    after: str | None = None,
    newest: bool = False,
    clock: Clock,
    name: Callable[[str], str] = lambda _: "",
    files: AuditFiles | None = None,
) -> AuditPage:
    """Return a page, which may be short or empty without being the last.

    Callers who are not members of every org get only entries that concern them. `name`: returns the name that users
    know for a key. `files`: entries that are no longer in the store.
    """
    place = None if after is None else _Place.read(after)
    items: list[AuditView] = []
    looked, last = 0, None
    reading = _Reading(store, files, wanted.day, place, clock)
    lines = reading.back() if newest else reading.forth(limit)
    fairness, border = Fairness(), await _border(store)
    async with aclosing(lines):
        async for kv, where in lines:
            if len(items) == limit or looked == LOOKED_AT:
                break  # there is at least one more
            await fairness.share()
            entry = AUDIT.entry(kv)
            looked, last = looked + 1, where
            if wanted.has(entry.value, name) and sees(caller, entry, known):
                copied = entry.create_revision <= (border if where.offset is None else entry.value.before)
                items.append(_shown(entry, name, copied=copied))
        else:
            last = None
    elsewhere = await _elsewhere(store, files, wanted.day)
    return AuditPage(items=tuple(items), after=str(last) if last else None, elsewhere=elsewhere)


class _Place(msgspec.Struct, frozen=True):
    """Position after an entry: `2026-11-15/10:15:30.123456-5f3a` in the store, `2026-11-15/@4096` in a file."""

    day: str
    write: str = ""
    offset: int | None = None

    def __str__(self) -> str:
        return f"{self.day}/{self.write}" if self.offset is None else f"{self.day}/@{self.offset}"

    @property
    def key(self) -> str:
        """Return the key in the store."""
        return AUDIT.fill(day=self.day, write=self.write)

    @classmethod
    def of(cls, kv: KeyValue) -> Self:
        """Return the position of an entry in the store."""
        parts = AUDIT.parse(kv.key)
        return cls(parts["day"], parts["write"])

    @classmethod
    def read(cls, text: str) -> Self:
        """Parse a position; otherwise raise Invalid."""
        day, slash, write = text.partition("/")
        if slash and write[:1] == "@" and write[1:].isdecimal() and len(write) < 20 and _DAY.fullmatch(day):
            return cls(day, offset=int(write[1:]))
        if not slash:
            raise Invalid("query after: not a cursor of an audit page; use the `after` of the last page")
        AUDIT.fill(day=day, write=write)
        return cls(day, write)


class _Reading:
    """Entries of the store and of the files in sequence, each with its position.

    An entry that is moved to a file during the query may occur in two pages, but none is left out.
    """

    def __init__(self, store: Store, files: AuditFiles | None, day: str, place: _Place | None, clock: Clock) -> None:
        self._store, self._files, self._day, self._place, self._clock = store, files, day, place, clock
        self._seen: set[str] = set()

    async def forth(self, limit: int) -> AsyncGenerator[tuple[KeyValue, _Place], None]:
        """Yield oldest first: the files, then the store as it was before the files were read."""
        place = self._place
        prefix = AUDIT.prefix(day=self._day) if self._day else AUDIT.prefix()
        after = place.key if place is not None and place.offset is None else None
        found = await self._store.range(prefix, after=after, limit=limit + 1)
        if await self._may_be_in_files(place):
            async for filed in self._filed_forth(limit):
                yield filed
        while True:
            for kv in found.items:
                if kv.key not in self._seen:
                    yield kv, _Place.of(kv)
            if not found.more:
                return
            # Matches are rare: read more at once.
            many, after = max(limit + 1, AT_ONCE), found.items[-1].key
            found = await self._store.range(prefix, after=after, limit=many, revision=found.revision)

    async def back(self) -> AsyncGenerator[tuple[KeyValue, _Place], None]:
        """Yield newest first: the store, then the files."""
        place = self._place
        if place is None or place.offset is None:
            async with aclosing(
                _back(self._store, self._day, None if place is None else place.key, self._clock)
            ) as kvs:
                async for kv in kvs:
                    self._seen.add(kv.key)
                    yield kv, _Place.of(kv)
        if self._files is None:
            return
        for day in reversed(await self._days()):
            end = None if place is None or place.offset is None or day != place.day else place.offset
            if place is not None and place.offset is not None and day > place.day:
                continue
            while lines := await self._files.read_back(day, end, AT_ONCE):
                end = lines[-1].start
                for line in lines:
                    if line.kv.key not in self._seen:
                        yield line.kv, _Place(day, offset=line.start)

    async def _filed_forth(self, limit: int) -> AsyncGenerator[tuple[KeyValue, _Place], None]:
        place = self._place
        after = place.key if place is not None and place.offset is None else ""
        for day in await self._days():
            if place is not None and day < place.day:
                continue
            start = place.offset if place is not None and place.offset is not None and day == place.day else 0
            while self._files is not None and (lines := await self._files.read(day, start, max(limit + 1, AT_ONCE))):
                start = lines[-1].end
                for line in lines:
                    self._seen.add(line.kv.key)
                    if line.kv.key > after:
                        yield line.kv, _Place(day, offset=line.end)

    async def _may_be_in_files(self, place: _Place | None) -> bool:
        """Return whether a following entry may be in a file; False while the store has entries before the position."""
        if self._files is None:
            return False
        if place is None or place.offset is not None:
            return True
        first = (await self._store.range(AUDIT.prefix(), limit=1, keys_only=True)).items
        return not first or first[0].key > place.key

    async def _days(self) -> tuple[str, ...]:
        days = () if self._files is None else await self._files.days()
        return tuple(day for day in days if not self._day or day == self._day)


async def _elsewhere(store: Store, files: AuditFiles | None, day: str) -> tuple[AuditElsewhere, ...]:
    """Return files that the store recorded and that this process does not have."""
    recorded = (await AUDIT_FILE.list(store, strict=False)).entries
    if not recorded:
        return ()
    own, days = ("", ()) if files is None else (files.place, await files.days())
    missing: dict[str, list[Entry[AuditFile]]] = {}
    for entry in recorded:
        here = entry.parts["place"] == own and entry.parts["day"] in days
        if not here and (not day or entry.parts["day"] == day):
            missing.setdefault(entry.parts["place"], []).append(entry)
    return tuple(
        AuditElsewhere(
            host=entries[-1].value.host,
            folder=entries[-1].value.folder,
            first=entries[0].parts["day"],
            last=entries[-1].parts["day"],
            lines=sum(entry.value.lines for entry in entries),
        )
        for entries in missing.values()
    )


async def _back(store: Store, day: str, place: str | None, clock: Clock) -> AsyncGenerator[KeyValue, None]:
    """Yield the entries of the store, newest first."""
    end, ahead = clock.wall() + AHEAD, AHEAD
    if day:
        midnight = instant_of(AUDIT.fill(day=day, write="00:00:00.000000-"))
        if midnight is None:
            raise Invalid(f"query day: {day} is not a day; write it as 2026-11-15")
        end, ahead = midnight + DAY, 0.0
    if place is not None:
        instant = instant_of(place)
        if instant is None:
            raise Invalid("query after: not a cursor of an audit page; use the `after` of the last page")
        if instant + SLACK < end:
            end, ahead = instant + SLACK, 0.0
    prefix = AUDIT.prefix(day=day) if day else ""
    async with aclosing(HistorySource(store, AUDIT.prefix()).back(end, ahead=ahead)) as lists:
        async for found in lists:
            for kv in found:
                if day and not kv.key.startswith(prefix):
                    return
                if place is None or kv.key < place:
                    yield kv


def _called(written: Audit, name: Callable[[str], str]) -> str:
    """Return the name at the time of the write; for entries without it, the current name."""
    return written.name or name(written.subject)


async def _border(store: Store) -> int:
    """Return the revision up to which a copy or restore wrote this store: entries there had other revisions."""
    begun = (await EPOCH.list(store, strict=False)).entries
    return max((one.mod_revision for one in begun if one.value.begun_by is not EpochKind.ACTIVATION), default=0)


def _shown(entry: Entry[Audit], name: Callable[[str], str], *, copied: bool) -> AuditView:
    record = entry.value
    return AuditView(
        who=record.who,
        verb=record.verb,
        subject=record.subject,
        before=record.before,
        after=0 if copied else entry.create_revision,
        at=record.at,
        source=record.source,
        name=_called(record, name),
        count=1 if record.count is msgspec.UNSET else record.count,
    )
