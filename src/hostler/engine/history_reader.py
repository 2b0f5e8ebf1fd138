"""Reader of the history: audit log and decisions in the store, by id and by revision; audit log entries in files.

Those in the store are ordered by time, each by the clock of its writer. The entry of a revision is found by bisection:
the first entry after an instant is older or newer than the revision. Clocks may differ slightly, so where the order of
time is not that of the revisions, the neighbouring entries are read, too. Reading files is bounded in entries and time.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from hostler.engine.history_entry import OF_AUDIT, HistoryEntry, instant_of, is_reported, made_of, of_audit, of_report
from hostler.engine.idempotent_writer import instants
from hostler.errors import Compacted, Damaged, Invalid, Unavailable
from hostler.keys.families import AUDIT, EPOCH, TRACE
from hostler.kit.tasks import Fairness
from hostler.model.control_api import Sort

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable

    from hostler.kit.clock import Clock
    from hostler.model.node import Epoch
    from hostler.ports.audit_files import AuditFiles
    from hostler.ports.store import KeyValue, Page, Store


PAGE = 500
FEW = 64
"""Number of entries that a search for one entry reads at once."""
SKEW = 5.0
"""Seconds by which clocks of replicas may differ when an entry is searched by revision."""
AHEAD = 86400.0
"""Seconds by which a clock may be ahead of ours when entries are listed."""
NARROW = 0.001
_LAST = 253402300799.0
"""The last second that a key can express: 9999-12-31."""


class HistorySource:
    """The audit log or the decision log as a sequence in the store."""

    def __init__(self, store: Store, prefix: str) -> None:
        self._store, self._prefix = store, prefix
        self._first: KeyValue | None = None

    async def first(self) -> KeyValue | None:
        """Return the oldest entry that is kept."""
        if self._first is None:
            items = (await self._store.range(self._prefix, limit=1, keys_only=True)).items
            self._first = items[0] if items else None
        return self._first

    async def back(self, end: float, *, ahead: float = 0.0) -> AsyncGenerator[list[KeyValue], None]:
        """Yield everything before the instant `end`, newest first, in lists of varying length.

        `ahead`: this many of the last seconds are in the future; only clocks ahead of ours wrote there.
        """
        first = await self.first()
        if first is None:
            return
        floor = instant_of(first.key) or 0.0
        high, width = end, 2.0
        while high > floor:
            # Entries from clocks ahead of ours are only a small part, if there are any.
            to_come = ahead if high == end else 0.0
            low = max(high - to_come - width, floor - 1.0)
            found = await self._between(low, high, at_most=2 * PAGE if width > NARROW and not to_come else None)
            if found is None:
                width /= 8
                continue
            if found:
                yield found[::-1]
            high = low
            if len(found) < PAGE // 4:
                width *= 8

    async def _between(self, low: float, high: float, *, at_most: int | None) -> list[KeyValue] | None:
        """Return what was written from `low` up to but not including `high`; None: that is more than `at_most`."""
        after, end = self._key(low), self._key(high)
        found: list[KeyValue] = []
        more = True
        while more:
            page = await self._store.range(self._prefix, after=after, limit=PAGE)
            inside = [kv for kv in page.items if kv.key < end]
            found += inside
            more = page.more and len(inside) == len(page.items)
            if more:
                after = page.items[-1].key
            if at_most is not None and (len(found) > at_most or (more and len(found) == at_most)):
                return None
        return found

    async def find(self, revision: int, near: float) -> tuple[KeyValue | None, list[KeyValue]]:
        """Return the entry of that revision, written before `near` or slightly later; and everything that was read."""
        first = await self.first()
        seen: list[KeyValue] = []
        if first is None or first.create_revision > revision:
            return None, seen
        floor = (instant_of(first.key) or 0.0) - 1.0
        low, high = await self._bracketed(revision, near, floor)
        cursor = self._key(low)
        for _ in range(64):
            page = await self._page(cursor)
            seen += page.items
            if any(kv.create_revision == revision for kv in page.items):
                break
            if not page.more or page.items[-1].create_revision > revision:
                seen += await self._neighbours(cursor)
                break
            cursor = page.items[-1].key
            low = max(low, instant_of(cursor) or low)
            middle = (low + high) / 2
            if high - low > NARROW:
                after = await self._page(self._key(middle), 1)
                if after.items and after.items[0].create_revision <= revision:
                    cursor, low = self._key(middle), middle
                else:
                    high = middle
        return next((kv for kv in seen if kv.create_revision == revision), None), seen

    async def _bracketed(self, revision: int, near: float, floor: float) -> tuple[float, float]:
        """Return two instants between which the entry was written, if it exists. The steps back grow."""
        low, high, step = near, near + SKEW, 1.0
        while low > floor:
            after = await self._page(self._key(low), 1)
            if after.items and after.items[0].create_revision <= revision:
                return low, high
            low, high, step = max(floor, low - step), min(high, low + SKEW), step * 8
        return floor, high

    async def _neighbours(self, cursor: str) -> list[KeyValue]:
        """Return entries shortly before and after: another clock may have put the entry there."""
        at = instant_of(cursor)
        if at is None:
            return []
        found: list[KeyValue] = []
        after, end = self._key(at - SKEW), self._key(at + SKEW)
        for _ in range(4):
            page = await self._page(after, 4 * FEW)
            found += page.items
            if not page.more or page.items[-1].key > end:
                break
            after = page.items[-1].key
        return found

    async def _page(self, after: str, limit: int = FEW) -> Page:
        return await self._store.range(self._prefix, after=after, limit=limit)

    def _key(self, at: float) -> str:
        return self._prefix + "/".join(instants(min(max(at, 0.0), _LAST)))


class HistoryReader:
    """The history, read for one query. Nothing is read twice."""

    def __init__(self, store: Store, *, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._traces, self._audit = HistorySource(store, TRACE.prefix()), HistorySource(store, AUDIT.prefix())
        self._known: dict[int, HistoryEntry] = {}
        self._missing: set[int] = set()
        self._filed: dict[str, HistoryEntry] = {}
        self._covered: tuple[int, int] | None = None
        self.unreadable = 0
        self.border = 0
        """Revisions up to this one were written by a copy or restore and have no meaning for the order."""
        self.epoch: Epoch | None = None
        """How the store was created, if it was copied or restored."""

    async def find_border(self) -> None:
        """Find where the history of this store begins. Call this first."""
        begun = (await EPOCH.list(self._store, strict=False)).entries
        if begun:
            newest = max(begun, key=lambda entry: entry.mod_revision)
            self.border, self.epoch = newest.mod_revision, newest.value

    def add(self, filed: Iterable[HistoryEntry]) -> None:
        """Add audit log entries from files that are no longer in the store."""
        for happening in filed:
            self._filed[happening.id] = happening
            if happening.revision > self.border:
                self._known.setdefault(happening.revision, happening)

    def order(self, happening: HistoryEntry) -> tuple[int, float]:
        """Return a sort key, greater for later entries: the revision, or the clock for entries up to the border."""
        return (happening.revision, 0.0) if happening.revision > self.border else (self.border, happening.at or 0.0)

    def _is_later(self, one: KeyValue, other: KeyValue) -> bool:
        if max(one.create_revision, other.create_revision) > self.border:
            return one.create_revision > other.create_revision
        return (instant_of(one.key) or 0.0) > (instant_of(other.key) or 0.0)

    async def back(self, end: float | None = None) -> AsyncGenerator[HistoryEntry | None, None]:
        """Yield everything that happened before `end`, newest first; None stands for an unreadable record.

        A write of the leader that is also in the audit log is returned once, as a decision.
        """
        ahead = AHEAD if end is None else 0.0
        end = self._clock.wall() + AHEAD if end is None else end
        traces = _Reader(self._traces.back(end, ahead=ahead), self.border)
        audit = _Reader(self._audit.back(end, ahead=ahead), self.border)
        fairness = Fairness()
        while True:
            await fairness.share()
            one, other = await traces.peek(), await audit.peek()
            if one is None and other is None:
                return
            if one is None or (other is not None and self._is_later(other, one)):
                yield self._read(audit.take())
                continue
            if other is not None and other.create_revision == one.create_revision > self.border:
                audit.take()
            yield self._read(traces.take())

    async def at(self, revision: int, near: float | None = None) -> HistoryEntry | None:
        """Return what happened in that revision, before `near` or slightly later; None: no record of it is kept."""
        if revision in self._known:
            return self._known[revision]
        if revision <= self.border or revision in self._missing or self._is_covered(revision):
            return None
        near = self._clock.wall() if near is None else near
        for line in (self._traces, self._audit):
            kv, seen = await line.find(revision, near)
            for other in seen:
                if other.create_revision not in self._known:
                    self._read(other)
            if kv is not None and revision in self._known:
                return self._known[revision]
        self._missing.add(revision)
        return None

    async def get(self, id_: str) -> HistoryEntry | None:
        """Return an entry by its id; None: there is none, or it is no longer kept."""
        if id_ in self._filed:
            return self._filed[id_]
        family, tail = (AUDIT, id_.removeprefix(OF_AUDIT)) if id_.startswith(OF_AUDIT) else (TRACE, id_)
        key = family.prefix() + tail
        try:
            kv = await self._store.get(key) if family.match(key) is not None else None
        except Invalid:
            return None
        return None if kv is None else self._read(kv)

    async def report(self, key: str, revision: int) -> HistoryEntry | None:
        """Return what an agent or a user wrote there in that revision; None: no such write, or it is too old.

        Only for revisions that have no decision and no audit log entry.
        """
        if not is_reported(key) or revision <= self.border:
            return None
        try:
            kv = await self._store.get(key, revision=revision)
        except (Compacted, Invalid):
            kv = None
        if kv is not None and kv.mod_revision != revision:
            return None  # the reference is forged
        return None if kv is None and await self._is_forgotten(revision) else of_report(key, revision, kv)

    async def before(self, key: str, revision: int) -> int:
        """Return the revision of the key before that one; 0: the key did not exist, or the revision is compacted."""
        try:
            kv = await self._store.get(key, revision=revision - 1) if revision > self.border + 1 else None
        except (Compacted, Invalid):
            return 0
        return 0 if kv is None else kv.mod_revision

    # Internal

    async def _is_forgotten(self, revision: int) -> bool:
        """Return whether it is so old that its decision record would have been deleted."""
        first = await self._traces.first()
        return first is None or revision < first.create_revision

    def cover(self, newest: int, oldest: int) -> None:
        """Mark these revisions as fully read: an entry that is unknown does not exist."""
        self._covered = (oldest, newest)

    def _is_covered(self, revision: int) -> bool:
        return self._covered is not None and self._covered[0] <= revision <= self._covered[1]

    def _read(self, kv: KeyValue) -> HistoryEntry | None:
        happening = made_of(kv)
        if happening is None:
            self.unreadable += 1
            return None
        if happening.revision <= self.border:
            return happening  # its revision is shared with unrelated records
        known = self._known.get(happening.revision)
        if known is None or known.sort is not Sort.DECISION:
            self._known[happening.revision] = happening
        return happening


class _Reader:
    """Single entries of one sequence, ordered by revision as far as revisions are known."""

    def __init__(self, lists: AsyncIterator[list[KeyValue]], border: int) -> None:
        self._lists, self._border = lists, border
        self._waiting: list[KeyValue] = []  # in reverse order: the next entry is the last

    async def peek(self) -> KeyValue | None:
        """Return the next entry; None: there is none."""
        while not self._waiting:
            try:
                found = await anext(self._lists)
            except StopAsyncIteration:
                return None
            self._waiting = sorted(found, key=lambda kv: (max(kv.create_revision, self._border), kv.key))
        return self._waiting[-1]

    def take(self) -> KeyValue:
        """Return and remove the entry that `peek` returned."""
        return self._waiting.pop()


LOOKED_AT = 50_000
"""Largest number of entries that one query scans, newest first."""
WITHIN = 2.0
"""Seconds that one query spends on files at most, including waiting for other readers."""
AT_ONCE = 500
MOST = 200
"""Largest number of entries that one query returns."""


class Needed(msgspec.Struct, frozen=True):
    """Selects entries: all about an object, and those that caused known steps."""

    parts: tuple[str, ...]
    """Parts of keys: an entry about the object contains one of them."""
    is_about: Callable[[HistoryEntry], bool]
    revisions: frozenset[int] = frozenset()
    ids: frozenset[str] = frozenset()
    root: str = ""
    """The key of the object's own record. Entries from before its creation are about another object."""


class FiledLines:
    """Reads audit files for one query at a time. One per process."""

    def __init__(self, files: AuditFiles | None) -> None:
        self._files = files
        self._turn = asyncio.Lock()

    async def find(self, needed: Needed, *, border: int, epoch: Epoch | None) -> list[HistoryEntry]:
        """Return the entries, newest first; fewer if reading takes too long or a file cannot be read.

        Entries from before a copy or restore carry revisions of another store, so their revision is set to 0.
        """
        found: list[HistoryEntry] = []
        if self._files is None:
            return found
        wanted = set(needed.revisions), set(needed.ids)
        with suppress(TimeoutError, Unavailable, Damaged):
            async with asyncio.timeout(WITHIN), self._turn:
                async for kv in self._back(self._files):
                    line = _read(kv, needed, border, epoch)
                    if line is None:
                        continue
                    found.append(line)
                    for one, value in zip(wanted, (line.revision, line.id)):
                        one.discard(value)  # type: ignore[attr-defined]
                    is_root = line.subject == needed.root and not any(touch.revision for touch in line.touches)
                    if len(found) == MOST or (is_root and not any(wanted)):
                        break
        return found

    async def _back(self, files: AuditFiles) -> AsyncGenerator[KeyValue, None]:
        fairness, left = Fairness(), LOOKED_AT
        for day in reversed(await files.days()):
            end: int | None = None
            while left > 0 and (lines := await files.read_back(day, end, min(AT_ONCE, left))):
                end, left = lines[-1].start, left - len(lines)
                for line in lines:
                    await fairness.share()
                    yield line.kv


def _read(kv: KeyValue, needed: Needed, border: int, epoch: Epoch | None) -> HistoryEntry | None:
    """Return the entry if it is needed. Most are not, and are not decoded."""
    by_revision = kv.create_revision in needed.revisions
    if not (by_revision or needed.ids or any(part.encode() in kv.value for part in needed.parts)):
        return None
    try:
        line = of_audit(kv)
    except (Damaged, Invalid):
        return None
    is_older = kv.create_revision <= border or (epoch is not None and (line.at or 0.0) < epoch.at)
    if is_older:
        line = msgspec.structs.replace(line, revision=0)
    led = line.id in needed.ids or (by_revision and not is_older)
    return line if led or needed.is_about(line) else None
