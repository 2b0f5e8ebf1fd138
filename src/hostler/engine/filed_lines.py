"""Lookup of audit log entries in files, for the explanation of an object. Bounded in entries and in time."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from hostler.engine.history_entry import of_audit
from hostler.errors import Damaged, Invalid, Unavailable
from hostler.kit.tasks import Fairness

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from hostler.engine.history_entry import HistoryEntry
    from hostler.model.node import Epoch
    from hostler.ports.audit_files import AuditFiles
    from hostler.ports.store import KeyValue

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
