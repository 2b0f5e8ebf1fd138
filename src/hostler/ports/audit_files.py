"""The audit log outside the store: one file per day, each line chained to the one before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostler.ports.store import KeyValue


class DayFile(msgspec.Struct, frozen=True):
    """How far the file of one day goes."""

    day: str
    """`2026-11-15`."""
    lines: int
    chain: str
    """The hash of the last line, which depends on every line before it, also of earlier files."""


class FiledLine(msgspec.Struct, frozen=True):
    """One line of the audit log in a file."""

    kv: KeyValue
    """As it was in the store: key, value and the revision in which it was written."""
    start: int
    """Where the line begins in its file."""
    end: int
    """Where the next one begins."""


class AuditFiles(Protocol):
    """The files of one folder. Unavailable: the folder cannot be read or written; nothing counts as filed.

    Lines are only ever appended. A line that the newest file ends with is not appended again, so a call that was
    interrupted can be repeated.
    """

    @property
    def place(self) -> str:
        """A name that no other folder has."""

    @property
    def host(self) -> str:
        """The machine that has the folder."""

    @property
    def folder(self) -> str:
        """Its path there."""

    async def append(self, lines: Sequence[KeyValue]) -> tuple[DayFile, ...]:
        """File lines of the audit log, in this order; the files that they are in. Durable when this returns.

        A line goes into the file of its day, or into the newest file if that is later.
        """

    async def newest(self) -> DayFile | None:
        """The file that lines are appended to; None: there is none yet."""

    async def days(self) -> tuple[str, ...]:
        """The days that there are files of, the oldest first."""

    async def read(self, day: str, start: int, limit: int) -> list[FiledLine]:
        """Lines of a day from a position on, in the order of the file; empty: there are no more."""

    async def read_back(self, day: str, end: int | None, limit: int) -> list[FiledLine]:
        """Lines of a day before a position (None: the end), the last one first; empty: there are no more."""
