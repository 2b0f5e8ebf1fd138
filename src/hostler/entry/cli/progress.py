"""Progress of long operations on stderr: a live line on a terminal, otherwise a plain line every few seconds."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Self

from hostler.entry.cli.failure import note

if TYPE_CHECKING:
    from types import TracebackType

    from rich.status import Status

EVERY = 5.0


class Ticker:
    """Shows the latest progress line."""

    def __init__(self) -> None:
        self._status: Status | None = None
        self._last = time.monotonic()

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console

            self._status = Console(stderr=True).status("starting …")
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def tell(self, line: str) -> None:
        """Show `line`; without a terminal, at most once in `EVERY` seconds."""
        if self._status is not None:
            from rich.text import Text

            self._status.update(Text(line))
        elif time.monotonic() - self._last >= EVERY:
            self._last = time.monotonic()
            note(line)
