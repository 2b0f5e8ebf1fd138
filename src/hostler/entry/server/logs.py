"""Structured logs: one line of JSON (or text) per event, to a stream or discarded."""

from __future__ import annotations

import logging
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TextIO

import structlog
import structlog.tracebacks

from hostler.kit.rate_limit import TokenBuckets

if TYPE_CHECKING:
    from structlog.typing import EventDict, FilteringBoundLogger

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
OFF = logging.CRITICAL + 10
_WITHOUT_VALUES = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
"""Without values of variables, which would put tokens into the log."""
_KIND = "_kind"
_ERROR = 400
"""The first HTTP status that is an error."""


class RateLimit:
    """Drops lines of a kind that come too often; the next line of that kind says how many (`suppressed`).

    Limited are warnings and errors, lines of other packages, and refused requests. All other lines record actions and
    are never dropped.
    """

    def __init__(self) -> None:
        def now() -> float:
            return time.monotonic()

        self._requests = TokenBuckets(5.0, 200.0, now=now)
        self._warnings = TokenBuckets(1.0, 50.0, now=now)
        self._foreign = TokenBuckets(0.1, 10.0, now=now)  # some have tracebacks of 25 kB
        self._suppressed: dict[str, int] = {}

    def __call__(self, _: Any, level: str, event: EventDict) -> EventDict:
        """Pass a line on, or drop it."""
        kind = event.pop(_KIND, None)
        status = event.get("status")
        if kind is not None:
            buckets = self._foreign
        elif isinstance(status, int) and status >= _ERROR:
            buckets, kind = self._requests, f"{event.get('event')} {status}"
        elif level in ("warning", "error", "critical", "exception"):
            buckets, kind = self._warnings, f"{event.get('part')} {event.get('event')}"
        else:
            return event
        if buckets.take(kind) > 0:
            self._suppressed[kind] = self._suppressed.get(kind, 0) + 1
            raise structlog.DropEvent
        if (suppressed := self._suppressed.pop(kind, 0)) > 0:
            event["suppressed"] = suppressed
        return event


def configure(level: str = "info", stream: TextIO | None = None, form: str = "json") -> None:
    """Configure logging for the whole process; `level` is debug, info, warning, error or off. Default stream: stderr.

    `form`: json, or text for people.
    """
    last: tuple[Any, ...] = (
        structlog.processors.ExceptionRenderer(_WITHOUT_VALUES),
        structlog.processors.JSONRenderer(),
    )
    if form == "text":
        last = (structlog.processors.format_exc_info, structlog.dev.ConsoleRenderer(colors=False))
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            RateLimit(),
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *last,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS.get(level, OFF)),
        logger_factory=structlog.WriteLoggerFactory(file=_Tolerant(stream)),  # type: ignore[arg-type]
        cache_logger_on_first_use=False,
    )
    # Logs of uvicorn and asyncio go through structlog too.
    handler = _Bridge()
    root = logging.getLogger()
    root.handlers[:] = [old for old in root.handlers if not isinstance(old, _Bridge)] + [handler]


def logger(**bound: Any) -> FilteringBoundLogger:
    """Return a logger that adds `bound` to each line. Without `configure`, warnings go to stderr."""
    if not structlog.is_configured():
        configure("warning")
    return structlog.get_logger(**bound)  # type: ignore[no-any-return]


class _Tolerant:
    """A stream, or the current standard error. A closed or full stream does not raise an error."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):
            (self._stream or sys.stderr).write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            (self._stream or sys.stderr).flush()


class _Bridge(logging.Handler):
    """Passes records of the standard library's logging to structlog, from level warning on."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)

    def emit(self, record: logging.LogRecord) -> None:
        log = logger(part=record.name)
        kind = {_KIND: f"{record.name} {record.levelno} {record.msg}"[:500]}
        log.log(record.levelno, record.getMessage(), exc_info=record.exc_info, **kind)
