"""What happened in a simulated world, in order. The same seed gives the same bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class LogEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that happened."""

    number: int
    """From 1."""
    at: float
    """Virtual seconds, to the microsecond."""
    kind: str
    """`hardware`, `fault`, `lifted`, `started`, `killed`, `paused`, `woken`, `leader`, `node`, `silent`, `returned`,
    `placed`, `taken`, `machine`, `workload`, `lab`, `decision`, `step`."""
    component: str
    """What it happened to: `r1/pdu1`, `replica-1`, `node r1-b3`, `vm acme/shop/web-1`, …"""
    text: str
    cause: str = ""
    """The id of a fault, the component whose change led to it, or the id of a trace; empty: not known."""
    id: str = ""
    """Of a fault or a trace: what others name as their cause."""


class Log:
    """Kept whole in memory; `tell` hears each entry as it is made."""

    def __init__(
        self,
        now: Callable[[], float],
        *,
        tell: Callable[[LogEntry], None] = lambda _: None,
        kept: bool = True,
    ) -> None:
        """`kept` False: entries are told and counted, and not kept."""
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
        id: str = "",  # noqa: A002 - the name of what it is
    ) -> LogEntry:
        """Write down what happens now."""
        self._count += 1
        entry = LogEntry(self._count, round(self._now(), 6), kind, component, text, cause, id)
        if self._kept:
            self.entries.append(entry)
        self._tell(entry)
        return entry

    def lines(self) -> bytes:
        """All of it as JSON lines."""
        return b"".join(msgspec.json.encode(entry) + b"\n" for entry in self.entries)


def read_log(lines: bytes) -> list[LogEntry]:
    """What `Log.lines` wrote."""
    return [msgspec.json.decode(line, type=LogEntry) for line in lines.splitlines() if line.strip()]
