"""Structured logs: one line of JSON each (or of text for people), to a stream or nowhere."""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TextIO

import structlog
import structlog.tracebacks

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
OFF = logging.CRITICAL + 10
_WITHOUT_VALUES = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
"""Values of variables would put tokens into the log."""


def configure(level: str = "info", stream: TextIO | None = None, form: str = "json") -> None:
    """For the whole process. `level` is debug, info, warning, error or off; the stream is stderr unless given.

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
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *last,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS.get(level, OFF)),
        logger_factory=structlog.WriteLoggerFactory(file=_Tolerant(stream)),  # type: ignore[arg-type]
        cache_logger_on_first_use=False,
    )
    # What uvicorn and asyncio say goes the same way.
    handler = _Bridge()
    root = logging.getLogger()
    root.handlers[:] = [old for old in root.handlers if not isinstance(old, _Bridge)] + [handler]


def logger(**bound: Any) -> FilteringBoundLogger:
    """A logger that says `bound` with each line. Warnings go to stderr if nobody said otherwise."""
    if not structlog.is_configured():
        configure("warning")
    return structlog.get_logger(**bound)  # type: ignore[no-any-return]


class _Tolerant:
    """A stream, or wherever standard error goes now. One that is closed or full is no reason for the work to fail."""

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
    """Hands records of the standard library to structlog; only what is a warning or worse."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)

    def emit(self, record: logging.LogRecord) -> None:
        log = logger(part=record.name)
        log.log(record.levelno, record.getMessage(), exc_info=record.exc_info)
