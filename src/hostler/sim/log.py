"""Log of a simulated world, in order. The same seed gives the same bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class LogEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One log entry."""

    number: int
    """Counts from 1."""
    at: float
    """Virtual seconds, to the microsecond."""
    kind: str
    """`hardware`, `fault`, `lifted`, `started`, `killed`, `paused`, `woken`, `leader`, `node`, `silent`, `returned`,
    `placed`, `taken`, `machine`, `workload`, `lab`, `decision`, `step`."""
    component: str
    """The affected component: `r1/pdu1`, `replica-1`, `node r1-b3`, `vm acme/shop/web-1`, …"""
    text: str
    cause: str = ""
    """The id of a fault, the component whose change led to the entry, or the id of a trace; empty: unknown."""
    id: str = ""
    """The id of a fault or trace, which other entries name as their cause."""


class Log:
    """A log in memory; `tell` is called with each new entry."""

    def __init__(
        self,
        now: Callable[[], float],
        *,
        tell: Callable[[LogEntry], None] = lambda _: None,
        kept: bool = True,
    ) -> None:
        """With `kept` False, entries are passed to `tell` and counted, but not stored."""
        self._now, self._tell, self._kept = now, tell, kept
        self._count = 0
        self.entries: list[LogEntry] = []

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[LogEntry]:
        return iter(self.entries)

    def add(
        self,
        kind: str,
        component: str,
        text: str,
        cause: str = "",
        id: str = "",  # noqa: A002 - the name of the field
    ) -> LogEntry:
        """Append an entry with the current time."""
        self._count += 1
        entry = LogEntry(self._count, round(self._now(), 6), kind, component, text, cause, id)
        if self._kept:
            self.entries.append(entry)
        self._tell(entry)
        return entry

    def lines(self) -> bytes:
        """Return all entries as JSON lines."""
        return b"".join(msgspec.json.encode(entry) + b"\n" for entry in self.entries)


def read_log(lines: bytes) -> list[LogEntry]:
    """Parse the output of `Log.lines`."""
    return [msgspec.json.decode(line, type=LogEntry) for line in lines.splitlines() if line.strip()]
