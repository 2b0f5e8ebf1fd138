"""The audit log outside the store: one file per day, each line chained to the previous one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostler.ports.store import KeyValue


class DayFile(msgspec.Struct, frozen=True):
    """The end of one day's file."""

    day: str
    """`2026-11-15`."""
    lines: int
    chain: str
    """The hash of the last line. It depends on every line before it, including those of earlier files."""


class FiledLine(msgspec.Struct, frozen=True):
    """One line of the audit log in a file."""

    kv: KeyValue
    """The entry as it was in the store: key, value and the revision in which it was written."""
    start: int
    """Offset of the line in its file."""
    end: int
    """Offset of the next line."""


class AuditFiles(Protocol):
    """The audit files of one folder.

    Unavailable: the folder cannot be read or written; no line of the call counts as filed.

    Lines are only ever appended. A line that the newest file already ends with is not appended again, so an interrupted
    call can be repeated.
    """

    @property
    def place(self) -> str:
        """An id that no other folder has."""

    @property
    def host(self) -> str:
        """The host that has the folder."""

    @property
    def folder(self) -> str:
        """The path of the folder on that host."""

    async def append(self, lines: Sequence[KeyValue]) -> tuple[DayFile, ...]:
        """Append entries of the audit log in this order and return the files that contain them. Durable on return.

        An entry goes into the file of its day, or into the newest file if that file is of a later day.
        """

    async def newest(self) -> DayFile | None:
        """Return the file that lines are appended to; None: there are no files yet."""

    async def days(self) -> tuple[str, ...]:
        """Return the days that have files, oldest first."""

    async def read(self, day: str, start: int, limit: int) -> list[FiledLine]:
        """Return lines of a day from a position on, in file order; empty: no more lines."""

    async def read_back(self, day: str, end: int | None, limit: int) -> list[FiledLine]:
        """Return lines of a day before a position (None: the end), last line first; empty: no more lines."""
